-- From 0.2.0 to 0.3.0: layouts, JSON, short codes, tickets.

-- Layouts.

CREATE TYPE id_layout;

-- STABLE, as an epoch in the future is refused.
CREATE FUNCTION id_layout_in(cstring) RETURNS id_layout
    STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_in_wrapper';
CREATE FUNCTION id_layout_out(id_layout) RETURNS cstring
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_out_wrapper';
CREATE FUNCTION id_layout_recv(internal) RETURNS id_layout
    STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_recv_wrapper';
CREATE FUNCTION id_layout_send(id_layout) RETURNS bytea
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_send_wrapper';

CREATE TYPE id_layout (
    INPUT = id_layout_in,
    OUTPUT = id_layout_out,
    RECEIVE = id_layout_recv,
    SEND = id_layout_send,
    INTERNALLENGTH = 16,
    ALIGNMENT = double
);

CREATE FUNCTION id_layout_eq(id_layout, id_layout) RETURNS boolean
    IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_eq_wrapper';
CREATE FUNCTION id_layout_ne(id_layout, id_layout) RETURNS boolean
    IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_ne_wrapper';
CREATE FUNCTION id_layout_hash(id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_hash_wrapper';
CREATE FUNCTION id_layout_hash_extended(id_layout, bigint) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_hash_extended_wrapper';

CREATE OPERATOR = (
    FUNCTION = id_layout_eq, LEFTARG = id_layout, RIGHTARG = id_layout,
    COMMUTATOR = OPERATOR(=), NEGATOR = OPERATOR(<>), RESTRICT = eqsel, JOIN = eqjoinsel, HASHES
);
CREATE OPERATOR <> (
    FUNCTION = id_layout_ne, LEFTARG = id_layout, RIGHTARG = id_layout,
    COMMUTATOR = OPERATOR(<>), NEGATOR = OPERATOR(=), RESTRICT = neqsel, JOIN = neqjoinsel
);
CREATE OPERATOR CLASS id_layout_ops DEFAULT FOR TYPE id_layout USING hash AS
    OPERATOR 1 =,
    FUNCTION 1 id_layout_hash(id_layout),
    FUNCTION 2 id_layout_hash_extended(id_layout, bigint);

-- Minting and reading in a layout.

CREATE FUNCTION next_id(shard integer, seq_name regclass, layout id_layout) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'next_id_layout_wrapper';
CREATE FUNCTION next_ids(shard integer, seq_name regclass, count integer, layout id_layout) RETURNS SETOF bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'next_ids_layout_wrapper';
CREATE FUNCTION make_id(at timestamptz, shard integer, seq bigint, layout id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'make_id_layout_wrapper';
CREATE FUNCTION id_time(id bigint, layout id_layout) RETURNS timestamptz
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_time_layout_wrapper';
CREATE FUNCTION id_shard(id bigint, layout id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_shard_layout_wrapper';
CREATE FUNCTION id_seq(id bigint, layout id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_seq_layout_wrapper';
CREATE FUNCTION id_json(id bigint, layout id_layout) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_json_layout_wrapper';
CREATE FUNCTION id_min(at timestamptz, layout id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_min_layout_wrapper';
CREATE FUNCTION id_max(at timestamptz, layout id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_max_layout_wrapper';

CREATE FUNCTION id_parts(id bigint, layout id_layout, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT id_time(id, layout), id_shard(id, layout), id_seq(id, layout);
    END;

CREATE FUNCTION id_between(id bigint, lo timestamptz, hi timestamptz, layout id_layout) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= id_min(lo, layout) AND id < id_min(hi, layout);

-- JSON and short codes.

CREATE FUNCTION id_json(id bigint) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_json_wrapper';
CREATE FUNCTION id_shortcode(id bigint) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_shortcode_wrapper';
CREATE FUNCTION shortcode_id(code text) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'shortcode_id_wrapper';

-- Tickets.

CREATE FUNCTION insta_ids.create_ticket_server(name text, server integer, servers integer, bits integer DEFAULT 64)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sequence text := 'ticket_' || name;
    longest integer := current_setting('max_identifier_length');
BEGIN
    IF name = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'name of a ticket server is empty';
    END IF;
    IF octet_length(sequence) > longest THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('name of ticket server "%s" is too long', name),
            DETAIL = format('It has %s bytes, and can have %s.', octet_length(name), longest - length('ticket_'));
    END IF;
    IF servers < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('number of ticket servers %s is less than 1', servers);
    END IF;
    IF server NOT BETWEEN 1 AND servers THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('ticket server number %s is out of range', server),
            DETAIL = format('Ticket servers are numbered from 1 to %s.', servers);
    END IF;
    IF bits NOT IN (32, 64) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('tickets cannot have %s bits', bits),
            DETAIL = 'Tickets have 32 or 64 bits.';
    END IF;
    EXECUTE format(
        'CREATE SEQUENCE insta_ids.%I AS %s START %s MINVALUE %3$s INCREMENT %s NO CYCLE CACHE 1',
        sequence, CASE bits WHEN 32 THEN 'integer' ELSE 'bigint' END, server, servers);
EXCEPTION
    -- The second, when two sessions make it at once.
    WHEN duplicate_table OR unique_violation THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = format('ticket server "%s" already exists', name);
END
$$;

CREATE FUNCTION insta_ids.next_ticket(name text) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'next_ticket_wrapper';

-- What is new in the schema of administration is for superusers, whatever ALTER DEFAULT PRIVILEGES gives away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON FUNCTION %s FROM %s', p.oid::regprocedure, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM pg_proc p, aclexplode(coalesce(proacl, acldefault('f', proowner)))
        WHERE pronamespace = 'insta_ids'::regnamespace AND proname IN ('create_ticket_server', 'next_ticket') AND grantee <> proowner
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;
GRANT EXECUTE ON FUNCTION insta_ids.next_ticket(text) TO PUBLIC;

-- What each function is.

COMMENT ON FUNCTION next_id(integer, regclass) IS
    'next id of a shard, from the sequence and the clock';
COMMENT ON FUNCTION next_id(integer, regclass, id_layout) IS
    'next id of a shard, from the sequence and the clock';
COMMENT ON FUNCTION next_ids(integer, regclass, integer) IS
    'next ids of a shard, count of them';
COMMENT ON FUNCTION next_ids(integer, regclass, integer, id_layout) IS
    'next ids of a shard, count of them';
COMMENT ON FUNCTION make_id(timestamptz, integer, bigint) IS
    'id of an instant, a shard and a sequence value; not a new one';
COMMENT ON FUNCTION make_id(timestamptz, integer, bigint, id_layout) IS
    'id of an instant, a shard and a sequence value; not a new one';
COMMENT ON FUNCTION id_time(bigint) IS
    'time of an id, to the unit of its layout';
COMMENT ON FUNCTION id_time(bigint, id_layout) IS
    'time of an id, to the unit of its layout';
COMMENT ON FUNCTION id_shard(bigint) IS
    'shard of an id';
COMMENT ON FUNCTION id_shard(bigint, id_layout) IS
    'shard of an id';
COMMENT ON FUNCTION id_seq(bigint) IS
    'sequence value of an id, modulo what its field holds';
COMMENT ON FUNCTION id_seq(bigint, id_layout) IS
    'sequence value of an id, modulo what its field holds';
COMMENT ON FUNCTION id_parts(bigint) IS
    'time, shard and sequence value of an id';
COMMENT ON FUNCTION id_parts(bigint, id_layout) IS
    'time, shard and sequence value of an id';
COMMENT ON FUNCTION id_json(bigint) IS
    'parts of an id as JSON, the id itself as a string';
COMMENT ON FUNCTION id_json(bigint, id_layout) IS
    'parts of an id as JSON, the id itself as a string';
COMMENT ON FUNCTION id_min(timestamptz) IS
    'smallest id of an instant';
COMMENT ON FUNCTION id_min(timestamptz, id_layout) IS
    'smallest id of an instant';
COMMENT ON FUNCTION id_max(timestamptz) IS
    'greatest id of an instant';
COMMENT ON FUNCTION id_max(timestamptz, id_layout) IS
    'greatest id of an instant';
COMMENT ON FUNCTION id_between(bigint, timestamptz, timestamptz) IS
    'whether an id is from lo (inclusive) to hi (exclusive)';
COMMENT ON FUNCTION id_between(bigint, timestamptz, timestamptz, id_layout) IS
    'whether an id is from lo (inclusive) to hi (exclusive)';
COMMENT ON FUNCTION id_shortcode(bigint) IS
    'short code of an id, as in Instagram''s URLs';
COMMENT ON FUNCTION shortcode_id(text) IS
    'id of a short code';
COMMENT ON TYPE id_layout IS
    'what an id is made of: the widths of its fields, its epoch, its unit of time';
COMMENT ON FUNCTION id_layout_in(cstring) IS
    'I/O of layouts';
COMMENT ON FUNCTION id_layout_out(id_layout) IS
    'I/O of layouts';
COMMENT ON FUNCTION id_layout_recv(internal) IS
    'I/O of layouts';
COMMENT ON FUNCTION id_layout_send(id_layout) IS
    'I/O of layouts';
COMMENT ON FUNCTION id_layout_eq(id_layout, id_layout) IS
    'comparison of layouts';
COMMENT ON FUNCTION id_layout_ne(id_layout, id_layout) IS
    'comparison of layouts';
COMMENT ON FUNCTION id_layout_hash(id_layout) IS
    'hash of a layout';
COMMENT ON FUNCTION id_layout_hash_extended(id_layout, bigint) IS
    'hash of a layout';
COMMENT ON OPERATOR =(id_layout, id_layout) IS
    'equal';
COMMENT ON OPERATOR <>(id_layout, id_layout) IS
    'not equal';
COMMENT ON FUNCTION insta_ids.create_ticket_server(text, integer, integer, integer) IS
    'makes this server one of several that give out tickets';
COMMENT ON FUNCTION insta_ids.next_ticket(text) IS
    'next ticket of a ticket server';

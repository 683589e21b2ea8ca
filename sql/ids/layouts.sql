-- Layouts: the type id_layout, which many other files use. It is part of the state, because a type cannot be replaced.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TYPE @extschema@.id_layout;

-- STABLE and not IMMUTABLE, because an epoch in the future raises an error.
CREATE FUNCTION @extschema@.id_layout_in(cstring) RETURNS @extschema@.id_layout
    STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_in_wrapper';
CREATE FUNCTION @extschema@.id_layout_out(@extschema@.id_layout) RETURNS cstring
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_out_wrapper';
CREATE FUNCTION @extschema@.id_layout_recv(internal) RETURNS @extschema@.id_layout
    STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_recv_wrapper';
CREATE FUNCTION @extschema@.id_layout_send(@extschema@.id_layout) RETURNS bytea
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_send_wrapper';

CREATE TYPE @extschema@.id_layout (
    INPUT = @extschema@.id_layout_in,
    OUTPUT = @extschema@.id_layout_out,
    RECEIVE = @extschema@.id_layout_recv,
    SEND = @extschema@.id_layout_send,
    INTERNALLENGTH = 16,
    ALIGNMENT = double
);

CREATE FUNCTION @extschema@.id_layout_eq(@extschema@.id_layout, @extschema@.id_layout) RETURNS boolean
    IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_eq_wrapper';
CREATE FUNCTION @extschema@.id_layout_ne(@extschema@.id_layout, @extschema@.id_layout) RETURNS boolean
    IMMUTABLE STRICT LEAKPROOF PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_ne_wrapper';
CREATE FUNCTION @extschema@.id_layout_hash(@extschema@.id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_hash_wrapper';
CREATE FUNCTION @extschema@.id_layout_hash_extended(@extschema@.id_layout, bigint) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_layout_hash_extended_wrapper';

CREATE OPERATOR @extschema@.= (
    FUNCTION = @extschema@.id_layout_eq, LEFTARG = @extschema@.id_layout, RIGHTARG = @extschema@.id_layout,
    COMMUTATOR = OPERATOR(@extschema@.=), NEGATOR = OPERATOR(@extschema@.<>), RESTRICT = eqsel, JOIN = eqjoinsel, HASHES
);
CREATE OPERATOR @extschema@.<> (
    FUNCTION = @extschema@.id_layout_ne, LEFTARG = @extschema@.id_layout, RIGHTARG = @extschema@.id_layout,
    COMMUTATOR = OPERATOR(@extschema@.<>), NEGATOR = OPERATOR(@extschema@.=), RESTRICT = neqsel, JOIN = neqjoinsel
);
CREATE OPERATOR CLASS @extschema@.id_layout_ops DEFAULT FOR TYPE @extschema@.id_layout USING hash AS
    OPERATOR 1 @extschema@.=,
    FUNCTION 1 @extschema@.id_layout_hash(@extschema@.id_layout),
    FUNCTION 2 @extschema@.id_layout_hash_extended(@extschema@.id_layout, bigint);
COMMENT ON TYPE @extschema@.id_layout IS 'what an id is made of: the widths of its fields, its epoch, its unit of time';
COMMENT ON FUNCTION @extschema@.id_layout_in(cstring) IS 'I/O of layouts';
COMMENT ON FUNCTION @extschema@.id_layout_out(@extschema@.id_layout) IS 'I/O of layouts';
COMMENT ON FUNCTION @extschema@.id_layout_recv(internal) IS 'I/O of layouts';
COMMENT ON FUNCTION @extschema@.id_layout_send(@extschema@.id_layout) IS 'I/O of layouts';
COMMENT ON FUNCTION @extschema@.id_layout_eq(@extschema@.id_layout, @extschema@.id_layout) IS 'comparison of layouts';
COMMENT ON FUNCTION @extschema@.id_layout_ne(@extschema@.id_layout, @extschema@.id_layout) IS 'comparison of layouts';
COMMENT ON FUNCTION @extschema@.id_layout_hash(@extschema@.id_layout) IS 'hash of a layout';
COMMENT ON FUNCTION @extschema@.id_layout_hash_extended(@extschema@.id_layout, bigint) IS 'hash of a layout';
COMMENT ON OPERATOR @extschema@.=(@extschema@.id_layout, @extschema@.id_layout) IS 'equal';
COMMENT ON OPERATOR @extschema@.<>(@extschema@.id_layout, @extschema@.id_layout) IS 'not equal';

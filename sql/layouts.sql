-- The type id_layout, before all functions that use it.

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

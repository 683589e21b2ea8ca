-- Readers that the planner must see through, or that return a row: plain SQL over the native ones.
-- Their bodies are parsed here, so they hold to the functions themselves, whatever the search path.

CREATE FUNCTION id_parts(id bigint, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT id_time(id), id_shard(id), id_seq(id);
    END;

CREATE FUNCTION id_parts(id bigint, layout id_layout, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT id_time(id, layout), id_shard(id, layout), id_seq(id, layout);
    END;

-- Not STRICT: a strict function does not inline, and then its index is not used.
CREATE FUNCTION id_between(id bigint, lo timestamptz, hi timestamptz) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= id_min(lo) AND id < id_min(hi);

CREATE FUNCTION id_between(id bigint, lo timestamptz, hi timestamptz, layout id_layout) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= id_min(lo, layout) AND id < id_min(hi, layout);

CREATE FUNCTION shortcode_id(code text) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'shortcode_id_wrapper';

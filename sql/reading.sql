-- Readers that the planner must see through, or that return a row: plain SQL over the native ones.
-- Their bodies are parsed here, so they hold to the functions themselves, whatever the search path.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION @extschema@.id_parts(id bigint, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT @extschema@.id_time(id), @extschema@.id_shard(id), @extschema@.id_seq(id);
    END;

CREATE FUNCTION @extschema@.id_parts(id bigint, layout @extschema@.id_layout, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT @extschema@.id_time(id, layout), @extschema@.id_shard(id, layout), @extschema@.id_seq(id, layout);
    END;

-- Not STRICT: a strict function does not inline, and then its index is not used.
CREATE FUNCTION @extschema@.id_between(id bigint, lo timestamptz, hi timestamptz) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= @extschema@.id_min(lo) AND id < @extschema@.id_min(hi);

CREATE FUNCTION @extschema@.id_between(id bigint, lo timestamptz, hi timestamptz, layout @extschema@.id_layout) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= @extschema@.id_min(lo, layout) AND id < @extschema@.id_min(hi, layout);

CREATE FUNCTION @extschema@.shortcode_id(code text) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'shortcode_id_wrapper';
SET LOCAL search_path = @extschema@, pg_temp;

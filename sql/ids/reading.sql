-- Reading: functions that read ids. The default layout is Instagram's.

CREATE OR REPLACE FUNCTION @extschema@.id_time(id bigint) RETURNS timestamptz
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_time_wrapper';
COMMENT ON FUNCTION @extschema@.id_time(bigint) IS 'time of an id, to the unit of its layout';
CREATE OR REPLACE FUNCTION @extschema@.id_time(id bigint, layout @extschema@.id_layout) RETURNS timestamptz
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_time_layout_wrapper';
COMMENT ON FUNCTION @extschema@.id_time(bigint, @extschema@.id_layout) IS 'time of an id, to the unit of its layout';

CREATE OR REPLACE FUNCTION @extschema@.id_shard(id bigint) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_shard_wrapper';
COMMENT ON FUNCTION @extschema@.id_shard(bigint) IS 'shard of an id';
CREATE OR REPLACE FUNCTION @extschema@.id_shard(id bigint, layout @extschema@.id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_shard_layout_wrapper';
COMMENT ON FUNCTION @extschema@.id_shard(bigint, @extschema@.id_layout) IS 'shard of an id';

CREATE OR REPLACE FUNCTION @extschema@.id_seq(id bigint) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_seq_wrapper';
COMMENT ON FUNCTION @extschema@.id_seq(bigint) IS 'sequence value of an id, modulo what its field holds';
CREATE OR REPLACE FUNCTION @extschema@.id_seq(id bigint, layout @extschema@.id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_seq_layout_wrapper';
COMMENT ON FUNCTION @extschema@.id_seq(bigint, @extschema@.id_layout) IS 'sequence value of an id, modulo what its field holds';

CREATE OR REPLACE FUNCTION @extschema@.id_json(id bigint) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_json_wrapper';
COMMENT ON FUNCTION @extschema@.id_json(bigint) IS 'parts of an id as JSON, the id itself as a string';
CREATE OR REPLACE FUNCTION @extschema@.id_json(id bigint, layout @extschema@.id_layout) RETURNS jsonb
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_json_layout_wrapper';
COMMENT ON FUNCTION @extschema@.id_json(bigint, @extschema@.id_layout) IS 'parts of an id as JSON, the id itself as a string';

CREATE OR REPLACE FUNCTION @extschema@.id_min(at timestamptz) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_min_wrapper';
COMMENT ON FUNCTION @extschema@.id_min(timestamptz) IS 'smallest id of the unit of time that an instant is in';
CREATE OR REPLACE FUNCTION @extschema@.id_min(at timestamptz, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_min_layout_wrapper';
COMMENT ON FUNCTION @extschema@.id_min(timestamptz, @extschema@.id_layout) IS 'smallest id of the unit of time that an instant is in';

CREATE OR REPLACE FUNCTION @extschema@.id_max(at timestamptz) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_max_wrapper';
COMMENT ON FUNCTION @extschema@.id_max(timestamptz) IS 'greatest id of the unit of time that an instant is in';
CREATE OR REPLACE FUNCTION @extschema@.id_max(at timestamptz, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_max_layout_wrapper';
COMMENT ON FUNCTION @extschema@.id_max(timestamptz, @extschema@.id_layout) IS 'greatest id of the unit of time that an instant is in';

CREATE OR REPLACE FUNCTION @extschema@.id_shortcode(id bigint) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_shortcode_wrapper';
COMMENT ON FUNCTION @extschema@.id_shortcode(bigint) IS 'short code of an id, as in Instagram''s URLs';

CREATE OR REPLACE FUNCTION @extschema@.id_parts(id bigint, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT @extschema@.id_time(id), @extschema@.id_shard(id), @extschema@.id_seq(id);
    END;

CREATE OR REPLACE FUNCTION @extschema@.id_parts(id bigint, layout @extschema@.id_layout, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT @extschema@.id_time(id, layout), @extschema@.id_shard(id, layout), @extschema@.id_seq(id, layout);
    END;
COMMENT ON FUNCTION @extschema@.id_parts(bigint) IS 'time, shard and sequence value of an id';
COMMENT ON FUNCTION @extschema@.id_parts(bigint, @extschema@.id_layout) IS 'time, shard and sequence value of an id';

-- A STRICT function would not be inlined, and then PostgreSQL could not use an index on the id.
CREATE OR REPLACE FUNCTION @extschema@.id_between(id bigint, lo timestamptz, hi timestamptz) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= @extschema@.id_min(lo) AND id < @extschema@.id_min(hi);

CREATE OR REPLACE FUNCTION @extschema@.id_between(id bigint, lo timestamptz, hi timestamptz, layout @extschema@.id_layout) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= @extschema@.id_min(lo, layout) AND id < @extschema@.id_min(hi, layout);
COMMENT ON FUNCTION @extschema@.id_between(bigint, timestamptz, timestamptz) IS 'whether an id is from lo (inclusive) to hi (exclusive)';
COMMENT ON FUNCTION @extschema@.id_between(bigint, timestamptz, timestamptz, @extschema@.id_layout) IS
    'whether an id is from lo (inclusive) to hi (exclusive)';

CREATE OR REPLACE FUNCTION @extschema@.shortcode_id(code text) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'shortcode_id_wrapper';
COMMENT ON FUNCTION @extschema@.shortcode_id(text) IS 'id of a short code';

CREATE OR REPLACE FUNCTION @extschema@.id_mask(id bigint, key bytea) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_mask_wrapper';
COMMENT ON FUNCTION @extschema@.id_mask(bigint, bytea) IS 'id as a text that tells nothing without the key';

CREATE OR REPLACE FUNCTION @extschema@.id_unmask(masked text, key bytea, null_if_invalid boolean DEFAULT false) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_unmask_wrapper';
COMMENT ON FUNCTION @extschema@.id_unmask(text, bytea, boolean) IS 'id of a masked id';

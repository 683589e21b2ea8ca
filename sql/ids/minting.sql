-- Minting: functions that make ids from a sequence and the clock. The default layout is Instagram's.

CREATE OR REPLACE FUNCTION @extschema@.next_id(shard integer, seq_name regclass) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_next_id';
COMMENT ON FUNCTION @extschema@.next_id(integer, regclass) IS 'next id of a shard, from the sequence and the clock';
CREATE OR REPLACE FUNCTION @extschema@.next_id(shard integer, seq_name regclass, layout @extschema@.id_layout) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_next_id_layout';
COMMENT ON FUNCTION @extschema@.next_id(integer, regclass, @extschema@.id_layout) IS 'next id of a shard, from the sequence and the clock';

CREATE OR REPLACE FUNCTION @extschema@.next_ids(shard integer, seq_name regclass, count integer) RETURNS SETOF bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_next_ids';
COMMENT ON FUNCTION @extschema@.next_ids(integer, regclass, integer) IS 'next ids of a shard, count of them';
CREATE OR REPLACE FUNCTION @extschema@.next_ids(shard integer, seq_name regclass, count integer, layout @extschema@.id_layout) RETURNS SETOF bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_next_ids';
COMMENT ON FUNCTION @extschema@.next_ids(integer, regclass, integer, @extschema@.id_layout) IS 'next ids of a shard, count of them';

CREATE OR REPLACE FUNCTION @extschema@.make_id(at timestamptz, shard integer, seq bigint) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'make_id_wrapper';
COMMENT ON FUNCTION @extschema@.make_id(timestamptz, integer, bigint) IS 'id of an instant, a shard and a sequence value; not a new one';
CREATE OR REPLACE FUNCTION @extschema@.make_id(at timestamptz, shard integer, seq bigint, layout @extschema@.id_layout) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'make_id_layout_wrapper';
COMMENT ON FUNCTION @extschema@.make_id(timestamptz, integer, bigint, @extschema@.id_layout) IS 'id of an instant, a shard and a sequence value; not a new one';

-- Setup: the number of shards, the names of their schemas, and the layout of their ids.
--
-- The extension's functions read no view of the schema insta_ids. Each role can name these views, and CREATE RULE waits for its lock
-- before it checks whether the role owns the view: others would wait behind it.
CREATE OR REPLACE VIEW insta_ids.config AS SELECT c.shards, c.prefix, c.layout FROM insta_ids_internal.config c;
COMMENT ON VIEW insta_ids.config IS 'what init set up: number of shards, prefix of their schemas, layout of their ids';

-- Refuses changes of what init set up.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_config_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE object_not_in_prerequisite_state USING MESSAGE = 'number of shards, prefix and layout cannot be changed',
        DETAIL = 'Ids, schemas and what others remember of them were made with these.';
END
$$;
CREATE OR REPLACE TRIGGER keep BEFORE UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.config
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.refuse_config_change();

-- Refuses rows about shards unless the role has the rights of the owner of the shards' schemas. A forged row could make a
-- superuser's call drop or fence a schema. New rows about a missing schema are refused, because another role could create it.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_shard_owner() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    prefix name;
    other name;
BEGIN
    -- A restore by a superuser may load rows before their schemas exist.
    IF insta_ids_internal.is_superuser() THEN
        RETURN coalesce(NEW, OLD);
    END IF;
    prefix := (insta_ids_internal.require_config()).prefix;
    -- An old row about a missing schema may change, because nothing is left to protect. A departed shard's schema has another
    -- name.
    SELECT min(s.schema) INTO other
    FROM (VALUES (to_jsonb(OLD), false), (to_jsonb(NEW), true)) w (written, is_new)
    CROSS JOIN LATERAL (
        SELECT prefix || s.shard, true, w.is_new AND TG_TABLE_NAME <> 'departed_shard'
        FROM jsonb_array_elements_text(coalesce(w.written -> 'shards', jsonb_build_array(w.written -> 'shard'))) s (shard)
        UNION ALL
        -- A move blocks other commands on all shards of its range, so all of these count.
        SELECT prefix || s.shard, true, false
        FROM insta_ids_internal.shard s
        WHERE s.shard BETWEEN (w.written ->> 'first')::integer AND (w.written ->> 'last')::integer
        UNION ALL
        SELECT w.written ->> 'schema',
               w.written ->> 'schema' = insta_ids_internal.departed_schema((w.written ->> 'shard')::integer, prefix),
               w.is_new
    ) s (schema, is_of_shard, must_exist)
    LEFT JOIN pg_namespace n ON n.nspname = s.schema
    WHERE NOT s.is_of_shard OR NOT coalesce(pg_has_role(n.nspowner, 'USAGE'), NOT s.must_exist);
    IF other IS NOT NULL THEN
        RAISE insufficient_privilege USING MESSAGE = format('must be owner of schema %I', other);
    END IF;
    RETURN coalesce(NEW, OLD);
END
$$;
CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.shard
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
-- All triggers that check roles also fire in sessions that apply changes of another server.
ALTER TABLE insta_ids_internal.shard ENABLE ALWAYS TRIGGER require_owner;

-- Raises an error unless the role has the rights of the owner of each table that a row names. The arguments of the trigger are the
-- columns with these tables.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_table_owner() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other text;
BEGIN
    -- A row about a dropped table may be deleted by all roles. A new row about a missing table is refused. The name of a table
    -- that is missing is its OID, which could be the name of another table.
    SELECT coalesce(c.relname, r.relation) INTO other
    FROM unnest(TG_ARGV) a (name)
    CROSS JOIN LATERAL (VALUES (to_jsonb(OLD) ->> a.name, false), (to_jsonb(NEW) ->> a.name, true)) r (relation, is_new)
    LEFT JOIN pg_class c ON c.oid = to_regclass(r.relation) AND r.relation !~ '^[0-9]+$'
    WHERE r.relation IS NOT NULL AND coalesce(NOT pg_has_role(c.relowner, 'USAGE'), r.is_new);
    IF FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = format('must be owner of table %s', other);
    END IF;
    RETURN coalesce(NEW, OLD);
END
$$;

-- Returns the name that a shard's schema gets when the shard moves away.
CREATE OR REPLACE FUNCTION insta_ids_internal.departed_schema(shard integer, prefix text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'departed_schema_wrapper';

-- The shards of this database, and their schemas. oid is NULL if the schema is missing.
CREATE OR REPLACE VIEW insta_ids_internal.shard_schema AS
SELECT s.shard, p.schema, n.oid
FROM insta_ids_internal.shard s
CROSS JOIN LATERAL (SELECT ((SELECT c.prefix FROM insta_ids_internal.config c) || s.shard::text)::name AS schema) p
LEFT JOIN pg_namespace n ON n.nspname = p.schema;

-- The relations of shards that contain rows or values: tables, foreign tables and sequences.
CREATE OR REPLACE VIEW insta_ids_internal.shard_relation AS
SELECT s.shard, s.schema, c.relname AS name, c.oid::regclass AS relation, c.relkind AS kind,
       c.relpersistence AS persistence, c.relispartition AS is_partition
FROM insta_ids_internal.shard_schema s
JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind IN ('r', 'p', 'f', 'S');

-- Returns what init set up. Raises an error if init was not called. All roles may know this, but few may read the table, so it runs
-- with the rights of its owner.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_config() RETURNS insta_ids_internal.config
    STABLE PARALLEL SAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids_internal.config;
BEGIN
    SELECT * INTO config FROM insta_ids_internal.config c;
    IF NOT FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'shards are not set up',
            HINT = 'Call insta_ids.init() with the number of shards.';
    END IF;
    RETURN config;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.init(
        shards integer, prefix name DEFAULT 'insta', layout @extschema@.id_layout DEFAULT 'instagram')
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids_internal.config;
    -- The shard number is greatest if all bits of the id are 1.
    last integer := insta_ids_internal.id_shard((-1)::bigint, layout);
    longest integer := current_setting('max_identifier_length');
    taken record;
BEGIN
    IF shards < 1 OR shards - 1 > last THEN
        RAISE numeric_value_out_of_range USING MESSAGE = format('number of shards %s is out of range', shards),
            DETAIL = format('Ids of the layout "%s" have 1 to %s.', layout, last::bigint + 1);
    ELSIF prefix = '' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'prefix of schemas is empty';
    ELSIF starts_with(prefix, 'pg_') THEN
        RAISE reserved_name USING MESSAGE = format('prefix "%s" is reserved', prefix),
            DETAIL = 'Schemas whose names begin with "pg_" are PostgreSQL''s own.';
    ELSIF octet_length(prefix || (shards - 1)::text) > longest THEN
        RAISE invalid_parameter_value USING MESSAGE = format('prefix "%s" is too long', prefix),
            DETAIL = format('With the number of the last shard it has %s bytes, and a schema''s name can have %s.',
                octet_length(prefix || (shards - 1)::text), longest);
    END IF;

    INSERT INTO insta_ids_internal.config VALUES (shards, prefix, layout);
    SELECT count(*) AS schemas, min(n.nspname) AS one INTO taken
    FROM generate_series(0, shards - 1) s JOIN pg_namespace n ON n.nspname = (prefix || s::text)::name;
    IF taken.schemas > 0 THEN
        RAISE NOTICE USING
            MESSAGE = 'some schemas are already called like shards',
            DETAIL = format('There are %s, "%s" for one.', taken.schemas, taken.one),
            HINT = 'Call insta_ids.adopt() for those that run the published function.';
    END IF;
EXCEPTION
    WHEN unique_violation THEN
        SELECT * INTO config FROM insta_ids_internal.require_config();
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'shards are already set up',
            DETAIL = format('There are %s, with the prefix "%s" and the layout "%s".',
                config.shards, config.prefix, config.layout);
END
$$;
COMMENT ON FUNCTION insta_ids.init(integer, name, @extschema@.id_layout) IS
    'sets up shards, once: how many there are, the prefix of their schemas, the layout of their ids';

CREATE OR REPLACE FUNCTION insta_ids.shard_of(key bigint, shards integer) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'shard_of_wrapper';
-- One name per type: drivers send parameters without a type, for which PostgreSQL prefers the overload of text to that of bigint.
-- The key's bytes are hashed, so the result does not depend on its collation.
CREATE OR REPLACE FUNCTION insta_ids.shard_of_text(key text, shards integer) RETURNS integer
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN insta_ids.shard_of(pg_catalog.hashtextextended(key COLLATE pg_catalog."C", 0), shards);
CREATE OR REPLACE FUNCTION insta_ids.shard_of_uuid(key uuid, shards integer) RETURNS integer
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN insta_ids.shard_of(pg_catalog.uuid_hash_extended(key, 0), shards);

CREATE OR REPLACE FUNCTION insta_ids.shard_of(key bigint) RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE sql RETURN insta_ids.shard_of(key, (insta_ids_internal.require_config()).shards);
CREATE OR REPLACE FUNCTION insta_ids.shard_of_text(key text) RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE sql RETURN insta_ids.shard_of_text(key, (insta_ids_internal.require_config()).shards);
CREATE OR REPLACE FUNCTION insta_ids.shard_of_uuid(key uuid) RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE sql RETURN insta_ids.shard_of_uuid(key, (insta_ids_internal.require_config()).shards);
COMMENT ON FUNCTION insta_ids.shard_of(bigint) IS 'shard of a key: the key modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(bigint, integer) IS 'shard of a key: the key modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of_text(text) IS 'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of_text(text, integer) IS 'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of_uuid(uuid) IS 'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of_uuid(uuid, integer) IS 'shard of a key: its hash modulo the number of shards';

-- All roles may call this function, but few may use what it calls. So it runs with the rights of its owner.
CREATE OR REPLACE FUNCTION insta_ids.schema_of(shard integer) RETURNS name
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids_internal.config := insta_ids_internal.require_config();
BEGIN
    IF shard NOT BETWEEN 0 AND config.shards - 1 THEN
        RAISE numeric_value_out_of_range USING MESSAGE = format('shard %s is out of range', shard),
            DETAIL = format('Shards are numbered from 0 to %s.', config.shards - 1);
    END IF;
    RETURN config.prefix || shard::text;
END
$$;
COMMENT ON FUNCTION insta_ids.schema_of(integer) IS 'schema of a shard';

CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.move
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.move ENABLE ALWAYS TRIGGER require_owner;
CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.move_outcome
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.move_outcome ENABLE ALWAYS TRIGGER require_owner;
CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.departed_shard
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.departed_shard ENABLE ALWAYS TRIGGER require_owner;
CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.fence
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.fence ENABLE ALWAYS TRIGGER require_owner;
-- A role may record a failure in a shard of another owner.
CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT ON insta_ids_internal.shard_migration
    FOR EACH ROW WHEN (NEW.message IS NULL) EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
CREATE OR REPLACE TRIGGER require_owner_before BEFORE UPDATE OR DELETE ON insta_ids_internal.shard_migration
    FOR EACH ROW WHEN (OLD.message IS NULL) EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
CREATE OR REPLACE TRIGGER require_owner_after BEFORE UPDATE ON insta_ids_internal.shard_migration
    FOR EACH ROW WHEN (NEW.message IS NULL) EXECUTE FUNCTION insta_ids_internal.require_shard_owner();
ALTER TABLE insta_ids_internal.shard_migration ENABLE ALWAYS TRIGGER require_owner;
ALTER TABLE insta_ids_internal.shard_migration ENABLE ALWAYS TRIGGER require_owner_before;
ALTER TABLE insta_ids_internal.shard_migration ENABLE ALWAYS TRIGGER require_owner_after;

-- A shard is dropped.

-- Returns the objects outside of a schema that depend on objects in it. DROP SCHEMA ... RESTRICT cannot tell this, because it fails for
-- every schema that is not empty.
CREATE OR REPLACE FUNCTION insta_ids_internal.dependents_of(schema oid) RETURNS SETOF text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Looks for objects that depend on a part of the schema and are not parts themselves.
    RETURN QUERY
    WITH RECURSIVE parts AS (
        SELECT d.classid, d.objid FROM pg_depend d
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema
            AND d.classid <> 'pg_extension'::regclass
        UNION
        SELECT d.classid, d.objid
        FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid
        WHERE d.deptype <> 'n'
    )
    SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid)
    FROM (SELECT 'pg_namespace'::regclass, schema UNION ALL SELECT * FROM parts) p (classid, objid)
    JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid AND d.deptype = 'n'
    WHERE (d.classid, d.objid) NOT IN (SELECT * FROM parts);
END
$$;

-- Raises an error if objects outside of a shard's schema depend on objects in it.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_no_dependents(shard integer, schema oid) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    outside CONSTANT text := (SELECT min(d) FROM insta_ids_internal.dependents_of(schema) d);
BEGIN
    IF outside IS NOT NULL THEN
        RAISE dependent_objects_still_exist USING
            MESSAGE = format('cannot drop shard %s because other objects depend on it', shard),
            DETAIL = format('One is %s.', outside),
            HINT = 'Drop them first, or use force => true to drop them with it.';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.drop_shard(shard integer, force boolean DEFAULT false) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    has_left boolean;
    remains name;
    dropped oid;
    relation regclass;
BEGIN
    PERFORM insta_ids_internal.require_not_moving(shard, shard);
    has_left := EXISTS (SELECT FROM insta_ids_internal.departed_shard d WHERE d.shard = drop_shard.shard AND d.schema IS NOT NULL);
    SELECT d.schema INTO remains FROM insta_ids_internal.departed_shard d WHERE d.shard = drop_shard.shard FOR UPDATE;
    IF has_left AND remains IS NULL THEN
        RAISE serialization_failure USING MESSAGE = format('shard %s came back or was dropped meanwhile', shard),
            HINT = 'Look at insta_ids.shards, and call again.';
    END IF;
    IF remains IS NOT NULL THEN
        UPDATE insta_ids_internal.departed_shard d SET schema = NULL WHERE d.shard = drop_shard.shard;
        schema := remains;
    ELSE
        DELETE FROM insta_ids_internal.fence f WHERE f.shard = drop_shard.shard;
        DELETE FROM insta_ids_internal.shard s WHERE s.shard = drop_shard.shard;
        IF NOT FOUND THEN
            RAISE undefined_object USING MESSAGE = format('shard %s does not exist', shard);
        END IF;
        -- Another session may have offered the shard before this one locked its row.
        PERFORM insta_ids_internal.require_not_moving(shard, shard);
        DELETE FROM insta_ids_internal.shard_migration s WHERE s.shard = drop_shard.shard;
    END IF;
    -- The schema is looked up only now: the session that held the row before may have dropped and created it.
    dropped := to_regnamespace(quote_ident(schema));
    IF dropped IS NULL THEN
        RETURN;
    END IF;

    IF NOT force THEN
        PERFORM insta_ids_internal.require_read_committed();
        -- From here on, no session can create anything in the schema.
        PERFORM insta_ids_internal.lock_schema(dropped);
        PERFORM insta_ids_internal.require_heaps(ARRAY[dropped], false,
            'If you need none of its rows, use force => true to drop the shard with all that is in it.'::text);
        -- Dropping a table also drops its partitions and child tables in other schemas.
        FOR relation IN
            WITH RECURSIVE tree AS (
                SELECT c.oid FROM pg_class c WHERE c.relnamespace = dropped
                UNION
                SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid
            )
            SELECT c.oid FROM tree t JOIN pg_class c ON c.oid = t.oid WHERE c.relkind IN ('r', 'p') ORDER BY c.oid
        LOOP
            PERFORM insta_ids_internal.lock_relation(relation, 'ACCESS EXCLUSIVE');
            IF remains IS NULL AND insta_ids_internal.has_rows(relation) THEN
                RAISE object_not_in_prerequisite_state USING MESSAGE = format('shard %s is not empty', shard),
                    DETAIL = format('Table %s has rows.', relation),
                    HINT = 'Use force => true to drop it with all that is in it.';
            END IF;
        END LOOP;
        PERFORM insta_ids_internal.require_no_dependents(shard, dropped);
    END IF;
    -- Loads the library, which is to see what sequences are dropped. From PostgreSQL 17 on, it may not be preloaded.
    PERFORM insta_ids_internal.steady_ms();
    EXECUTE format('DROP SCHEMA %I CASCADE', schema);
END
$$;
COMMENT ON FUNCTION insta_ids.drop_shard(integer, boolean) IS 'drops a shard that is empty, or by force';

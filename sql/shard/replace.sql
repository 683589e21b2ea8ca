-- Another schema takes the place of a shard's: one that was restored from a dump.

-- Takes all privileges on a schema from other roles than its owner, and grants them on another one, which gets the same owner.
CREATE OR REPLACE FUNCTION insta_ids_internal.hand_over_privileges(schema regnamespace, successor regnamespace) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner CONSTANT regrole := (SELECT n.nspowner::regrole FROM pg_namespace n WHERE n.oid = schema);
    granted record;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = successor AND n.nspowner = owner) THEN
        EXECUTE format('ALTER SCHEMA %s OWNER TO %s', successor, owner);
    END IF;
    FOR granted IN
        SELECT a.privilege_type AS privilege, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee,
               CASE WHEN a.is_grantable THEN 'WITH GRANT OPTION' END AS option
        FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a WHERE n.oid = schema AND a.grantee <> n.nspowner
    LOOP
        EXECUTE format('GRANT %s ON SCHEMA %s TO %s %s', granted.privilege, successor, granted.grantee, granted.option);
        EXECUTE format('REVOKE %s ON SCHEMA %s FROM %s CASCADE', granted.privilege, schema, granted.grantee);
    END LOOP;
END
$$;

-- Refuses all writes to a table of a schema that was replaced.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_write() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE read_only_sql_transaction USING MESSAGE = format('schema %I was replaced', TG_TABLE_SCHEMA),
        DETAIL = 'Its shard has another schema now.',
        HINT = 'Try again.';
END
$$;

-- Lets nobody write to the tables of a shard any more, or take values of its sequences. Statements that wait for a lock on one of
-- them, or reach it through a view or a function of the schema, would do so under its new name, with ids that the new schema can
-- mint, too.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_writes(shard integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next record;
BEGIN
    FOR next IN
        SELECT r.relation, r.kind, CASE WHEN s.seqincrement > 0 THEN s.seqmax ELSE s.seqmin END AS last_value
        FROM insta_ids_internal.shard_relation r LEFT JOIN pg_sequence s ON s.seqrelid = r.relation
        WHERE r.shard = refuse_writes.shard AND r.kind IN ('r', 'p', 'S') ORDER BY r.relation
    LOOP
        IF next.kind = 'S' THEN
            -- RESTART takes from sessions what they have cached.
            EXECUTE format('ALTER SEQUENCE %s NO CYCLE RESTART WITH %s', next.relation, next.last_value);
            PERFORM setval(next.relation, next.last_value);
            CONTINUE;
        END IF;
        EXECUTE format('CREATE TRIGGER insta_ids_replaced BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE ON %s'
            || ' FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.refuse_write()', next.relation);
        EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER insta_ids_replaced', next.relation);
        -- They are of the shard, which has other tables now.
        EXECUTE format('DROP TRIGGER insta_ids_fence ON %s', next.relation);
        EXECUTE format('DROP TRIGGER IF EXISTS insta_ids_fence_rows ON %s', next.relation);
    END LOOP;
END
$$;

-- Returns the publications that have tables of a schema by name.
CREATE OR REPLACE FUNCTION insta_ids_internal.publications_of(schema oid) RETURNS SETOF name
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT p.pubname
    FROM pg_publication p
    WHERE EXISTS (
            SELECT FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid WHERE r.prpubid = p.oid AND c.relnamespace = schema)
        OR EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = p.oid AND n.pnnspid = schema);
END
$$;

-- Raises an error if a publication has tables of a schema by name, because it would not have those that replace them.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_not_published(schema regnamespace) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    publication CONSTANT name := (SELECT min(p) FROM insta_ids_internal.publications_of(schema) p);
BEGIN
    IF publication IS NOT NULL THEN
        RAISE dependent_objects_still_exist USING
            MESSAGE = format('publication "%s" has tables of schema %s', publication, schema),
            HINT = 'Take them out of it by ALTER PUBLICATION, and add the new ones afterwards.';
    END IF;
END
$$;

-- After the rename, `schema` is the shard's, and the one that it had is called `kept`.
CREATE OR REPLACE FUNCTION insta_ids.replace_shard(
        shard integer, schema regnamespace, migrated_to text DEFAULT NULL, lock_timeout interval DEFAULT '2s') RETURNS name
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    replaced CONSTANT name := insta_ids.schema_of(shard);
    -- A name of more than 63 bytes would lose the shard's number.
    kept CONSTANT name := CASE WHEN octet_length(replaced) <= 54 THEN 'replaced_' || replaced ELSE 'replaced_' || shard::text END;
    old regnamespace;
    was_fenced boolean;
    last_ids timestamptz;
BEGIN
    IF shard IS NULL OR schema IS NULL OR lock_timeout IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.set_lock_timeout(lock_timeout);
    PERFORM insta_ids_internal.lock_shards(ARRAY[shard]);
    -- These are statements of their own, because they must see what other sessions committed before the lock.
    PERFORM insta_ids_internal.require_not_moving(shard, shard);
    old := to_regnamespace(quote_ident(replaced));
    IF EXISTS (SELECT FROM insta_ids_internal.shard_schema s WHERE s.oid = replace_shard.schema)
        OR NOT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = replace_shard.schema)
    THEN
        RAISE invalid_parameter_value USING MESSAGE = format('schema %s cannot replace shard %s', schema, shard),
            DETAIL = 'It must be a schema that is not of a shard.';
    ELSIF to_regnamespace(quote_ident(kept)) IS NOT NULL THEN
        RAISE duplicate_schema USING MESSAGE = format('schema "%s" already exists', kept),
            DETAIL = format('Schema "%s" gets this name.', replaced),
            HINT = 'Drop or rename it.';
    END IF;
    PERFORM insta_ids_internal.lock_schema(schema);
    IF old IS NOT NULL THEN
        -- From here on, no session can create anything in the schema.
        PERFORM insta_ids_internal.lock_schema(old);
        PERFORM insta_ids_internal.require_no_dependents(shard, old), insta_ids_internal.require_not_published(old);
        was_fenced := EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = replace_shard.shard);
        -- Waits for writers. Later ones wait until the transaction ends, and then find the other schema.
        PERFORM insta_ids_internal.close_shards(ARRAY[shard], NULL, lock_timeout);
        PERFORM insta_ids_internal.open_shards(ARRAY[shard]);
        last_ids := (SELECT c.id_time FROM insta_ids.clock() c) + insta_ids_internal.setting('insta_ids.max_ahead'::text)::interval;
        PERFORM insta_ids_internal.refuse_writes(shard), insta_ids_internal.hand_over_privileges(old, schema);
        EXECUTE format('ALTER SCHEMA %I RENAME TO %I', replaced, kept);
    END IF;
    DELETE FROM insta_ids_internal.shard s WHERE s.shard = replace_shard.shard;
    DELETE FROM insta_ids_internal.shard_migration m WHERE m.shard = replace_shard.shard;
    EXECUTE format('ALTER SCHEMA %s RENAME TO %I', schema, replaced);
    PERFORM insta_ids.adopt(schema, shard, lock_timeout, migrated_to => migrated_to);
    IF old IS NOT NULL THEN
        -- The new schema's sequences may have the values of the ids that the old one minted last.
        PERFORM insta_ids_internal.raise_id_time(shard, last_ids, clock_timestamp());
        -- The triggers of a fence refuse writers whose snapshot is older than the new row of the shard: they would not see the new rows.
        PERFORM insta_ids_internal.close_shards(ARRAY[shard], NULL, lock_timeout);
        PERFORM insta_ids_internal.open_shards(ARRAY[shard]) WHERE NOT was_fenced;
        -- Another session may have referred to the old tables since. This waits for all who use them.
        PERFORM insta_ids_internal.lock_relations(
            ARRAY(SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = old AND c.relkind IN ('r', 'p') ORDER BY c.oid),
            'ACCESS EXCLUSIVE', '{}', format('schema %s', old), lock_timeout);
        PERFORM insta_ids_internal.require_no_dependents(shard, old), insta_ids_internal.require_not_published(old);
    END IF;
    RETURN CASE WHEN old IS NOT NULL THEN kept END;
END
$$;
COMMENT ON FUNCTION insta_ids.replace_shard(integer, regnamespace, text, interval) IS
    'makes a schema the shard''s, renames the one it had, and returns its new name';

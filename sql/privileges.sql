-- Privileges in the extension's two schemas.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Nobody may do more than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        WITH schemas AS (
            SELECT oid, nspname, nspowner, nspacl FROM pg_namespace WHERE nspname IN ('insta_ids', 'insta_ids_internal')
        )
        SELECT format('REVOKE ALL ON %s FROM %s', object, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM (
            SELECT format('SCHEMA %I', nspname), nspowner, nspacl FROM schemas
            UNION ALL
            SELECT format(CASE relkind WHEN 'S' THEN 'SEQUENCE %s' ELSE '%s' END, oid::regclass), relowner, relacl
            FROM pg_class WHERE relnamespace IN (SELECT oid FROM schemas)
            UNION ALL
            SELECT format('ROUTINE %s', oid::regprocedure), proowner, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc WHERE pronamespace IN (SELECT oid FROM schemas)
        ) o (object, owner, acl), aclexplode(acl)
        WHERE grantee <> owner
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;
GRANT USAGE ON SCHEMA insta_ids TO PUBLIC;
-- For all who may use their schema.
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA insta_ids_internal TO PUBLIC;
GRANT EXECUTE ON FUNCTION insta_ids.library_version(), insta_ids.is_older(text, text), insta_ids.clock(), insta_ids.lock_capacity(),
    insta_ids.check_isolation(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION insta_ids.next_ticket(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION
    insta_ids.configured(), insta_ids.schema_of(integer), insta_ids.shard_map(), insta_ids.this_node(), insta_ids.writer_slot(),
    insta_ids.shard_of(bigint), insta_ids.shard_of(text), insta_ids.shard_of(uuid),
    insta_ids.shard_of(bigint, integer), insta_ids.shard_of(text, integer), insta_ids.shard_of(uuid, integer),
    insta_ids.partitions(regclass), insta_ids.plproxy_partitions(), insta_ids.dsn_parameters(text), insta_ids.percent_decoded(text)
    TO PUBLIC;
GRANT SELECT ON insta_ids.partitioned, insta_ids.config, insta_ids.map TO PUBLIC;
-- For pg_dump by the database's owner.
GRANT USAGE ON SCHEMA insta_ids_internal TO pg_database_owner;
GRANT SELECT ON ALL TABLES IN SCHEMA insta_ids_internal TO pg_database_owner;
GRANT SELECT ON SEQUENCE insta_ids_internal.lease TO pg_database_owner;
GRANT EXECUTE ON FUNCTION insta_ids.stat_get_ids() TO pg_monitor;
GRANT SELECT ON insta_ids.stat_ids TO pg_monitor;

-- Whoever may create functions beside next_id can have others call them instead.
DO $$
DECLARE
    roles CONSTANT text := (
        SELECT insta_ids_internal.creators(n.nspname)
        FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'insta_ids');
BEGIN
    IF roles IS NOT NULL THEN
        RAISE WARNING USING
            MESSAGE = format('roles that are no superusers may create objects in schema %s of insta_ids', '@extschema@'),
            DETAIL = format('They are: %s. A function of theirs can be taken for one of the extension.', roles),
            HINT = 'Create the extension in a schema of its own: CREATE SCHEMA ids; CREATE EXTENSION insta_ids SCHEMA ids.';
    END IF;
END
$$;
SET LOCAL search_path = @extschema@, pg_temp;

-- Privileges in the schema of administration.

-- Nobody may do more than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON %s FROM %s', object, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM (
            SELECT 'SCHEMA insta_ids', nspowner, nspacl FROM pg_namespace WHERE nspname = 'insta_ids'
            UNION ALL
            SELECT format(CASE relkind WHEN 'S' THEN 'SEQUENCE %s' ELSE '%s' END, oid::regclass), relowner, relacl
            FROM pg_class WHERE relnamespace = 'insta_ids'::regnamespace
            UNION ALL
            SELECT format('ROUTINE %s', oid::regprocedure), proowner, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc WHERE pronamespace = 'insta_ids'::regnamespace
        ) o (object, owner, acl), aclexplode(acl)
        WHERE grantee <> owner
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;
GRANT USAGE ON SCHEMA insta_ids TO PUBLIC;
GRANT EXECUTE ON FUNCTION insta_ids.library_version(), insta_ids.is_older(text, text), insta_ids.clock(), insta_ids.lock_capacity(),
    insta_ids.check_isolation(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION insta_ids.next_ticket(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION
    insta_ids.configured(), insta_ids.schema_of(integer), insta_ids.shard_map(), insta_ids.this_node(), insta_ids.writer_slot(),
    insta_ids.shard_of(bigint), insta_ids.shard_of(text), insta_ids.shard_of(uuid),
    insta_ids.shard_of(bigint, integer), insta_ids.shard_of(text, integer), insta_ids.shard_of(uuid, integer),
    insta_ids.plproxy_partitions(), insta_ids.dsn_parameters(text), insta_ids.percent_decoded(text)
    TO PUBLIC;
-- They are no secret, and an owner of the database may dump them.
GRANT SELECT ON SEQUENCE insta_ids.lease TO PUBLIC;
GRANT SELECT ON insta_ids.partitioned, insta_ids.config TO PUBLIC;
GRANT SELECT ON insta_ids.node, insta_ids.assignment, insta_ids.map, insta_ids.writer, insta_ids.move TO PUBLIC;
GRANT SELECT ON insta_ids.shard, insta_ids.migration, insta_ids.shard_migration, insta_ids.fence, insta_ids.moved,
    insta_ids.ended_move TO pg_database_owner;
GRANT EXECUTE ON FUNCTION insta_ids.stat_get_ids() TO pg_monitor;
GRANT SELECT ON insta_ids.stat_ids TO pg_monitor;

-- What runs once, when the extension is created. These triggers are here because PostgreSQL cannot replace triggers of these
-- kinds. An update that changes one must drop and create it.

CREATE EVENT TRIGGER insta_ids_refuse_ddl_at_start ON ddl_command_start
    WHEN TAG IN ('ALTER TABLE', 'CREATE INDEX', 'DROP INDEX') EXECUTE FUNCTION insta_ids_internal.watch_ddl();
CREATE EVENT TRIGGER insta_ids_refuse_ddl ON ddl_command_end EXECUTE FUNCTION insta_ids_internal.watch_ddl();
CREATE EVENT TRIGGER insta_ids_refuse_drop ON sql_drop EXECUTE FUNCTION insta_ids_internal.watch_ddl();
COMMENT ON EVENT TRIGGER insta_ids_refuse_ddl_at_start IS
    'refuses statements with CONCURRENTLY in a shard that is fenced or moves';
COMMENT ON EVENT TRIGGER insta_ids_refuse_ddl IS
    'refuses to alter objects of a shard that is fenced or moves, and a table that is being distributed';
COMMENT ON EVENT TRIGGER insta_ids_refuse_drop IS
    'refuses to drop objects of a shard that is fenced or moves, and a table that is being distributed';

CREATE CONSTRAINT TRIGGER tell AFTER INSERT OR UPDATE ON insta_ids_internal.map
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.notify_map();
ALTER TABLE insta_ids_internal.map ENABLE ALWAYS TRIGGER tell;

-- Takes the first lease. It ends later than the time of every id of other databases of this server. The same holds for ids that
-- this database had before the extension was dropped.
DO $$
BEGIN
    IF pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 170000
        OR 'insta_ids' = ANY (
            pg_catalog.regexp_split_to_array(pg_catalog.current_setting('shared_preload_libraries'), $re$[\s,"/]+$re$))
    THEN
        PERFORM insta_ids.advance_clock('1970-01-01');
    END IF;
END
$$;

-- Revokes what ALTER DEFAULT PRIVILEGES has granted to other roles. An update does not repeat this, because administrators may
-- have granted privileges since.
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

-- A role that may create functions in the schema of next_id can make other roles call these functions instead.
DO $$
DECLARE
    roles CONSTANT text := (
        SELECT insta_ids_internal.creators(e.extnamespace) FROM pg_extension e WHERE e.extname = 'insta_ids');
BEGIN
    IF roles IS NOT NULL THEN
        RAISE WARNING USING
            MESSAGE = format('roles that are no superusers may create objects in schema %s of insta_ids', '@extschema@'),
            DETAIL = format('They are: %s. A function of theirs can be taken for one of the extension.', roles),
            HINT = 'Create the extension in a schema of its own: CREATE SCHEMA ids; CREATE EXTENSION insta_ids SCHEMA ids.';
    END IF;
END
$$;

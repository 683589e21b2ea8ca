-- Provisioning: privileges for roles that manage shards without being superusers.

-- Grants a role what it needs to set up, create, migrate, check, adopt, map, fence and drop shards, and to offer them to
-- another server. This includes USAGE on the extension's own schema, but not the privilege to create schemas in the database.
CREATE OR REPLACE FUNCTION insta_ids.grant_provisioning(role regrole) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE undefined_object USING MESSAGE = format('role "%s" does not exist', role);
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA insta_ids_internal TO %s', role);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA insta_ids_internal TO %s', role);
    EXECUTE format(
        'GRANT SELECT ON insta_ids.shards, insta_ids.migration_status, insta_ids.progress, insta_ids.moves,'
        || ' insta_ids.shard_load, insta_ids.distributions TO %s', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION insta_ids_internal.connected_standbys, insta_ids_internal.stat_get_shards,'
        || ' insta_ids_internal.succeed, insta_ids_internal.note_change, insta_ids_internal.start_distributor TO %s', role);
    EXECUTE format('GRANT INSERT ON insta_ids_internal.config, insta_ids_internal.move_outcome, insta_ids_internal.former_migration TO %s', role);
    EXECUTE format('GRANT INSERT, DELETE ON insta_ids_internal.partitioned_table, insta_ids_internal.ended_key TO %s', role);
    EXECUTE format('GRANT DELETE ON insta_ids_internal.change TO %s', role);
    EXECUTE format('GRANT INSERT, UPDATE, DELETE ON insta_ids_internal.shard, insta_ids_internal.migration,'
        || ' insta_ids_internal.shard_migration, insta_ids_internal.work, insta_ids_internal.node,'
        || ' insta_ids_internal.assignment, insta_ids_internal.map, insta_ids_internal.fence, insta_ids_internal.move,'
        || ' insta_ids_internal.departed_shard, insta_ids_internal.distribution TO %s', role);
END
$$;
COMMENT ON FUNCTION insta_ids.grant_provisioning(regrole) IS
    'lets a role administer shards: set up, create, migrate, check, adopt, map, fence, drop and offer them';

-- Privileges. This file comes after all objects to which it grants privileges.
--
-- Everybody may execute every function, as is usual in PostgreSQL. A function has the rights of its caller, unless it is a
-- SECURITY DEFINER function that says why. Nearly all functions need tables that only some roles may use, in a schema that
-- other roles may not use. Functions that act on the whole server, or that serve superusers alone, are taken from everybody.
-- So is a function that neither touches a table of the extension nor checks the rights of its caller.
GRANT USAGE ON SCHEMA insta_ids TO PUBLIC;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA insta_ids, insta_ids_internal TO PUBLIC;
GRANT SELECT ON insta_ids.config, insta_ids.map TO PUBLIC;
REVOKE EXECUTE ON FUNCTION insta_ids.advance_clock, insta_ids.reset_clock, insta_ids.stat_reset,
    insta_ids.acquire_writer_slot, insta_ids.create_ticket_server, insta_ids.install_plproxy, insta_ids.grant_provisioning
    FROM PUBLIC;
REVOKE EXECUTE ON PROCEDURE insta_ids.move_shards, insta_ids.move_abort FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION insta_ids.check_move, insta_ids.move_diff, insta_ids_internal.check_move, insta_ids_internal.end_pauses,
    insta_ids_internal.start_driver, insta_ids_internal.start_distributor, insta_ids_internal.await_driver, insta_ids_internal.succeed, insta_ids_internal.note_change
    FROM PUBLIC;
-- PostgreSQL shows what these return to few roles only.
REVOKE EXECUTE ON FUNCTION insta_ids_internal.stat_get_ids, insta_ids_internal.connected_standbys,
    insta_ids_internal.stat_get_shards FROM PUBLIC;
GRANT EXECUTE ON FUNCTION insta_ids_internal.stat_get_ids, insta_ids_internal.stat_get_shards TO pg_monitor;
GRANT SELECT ON insta_ids.stat_ids, insta_ids.shard_load, insta_ids.shards, insta_ids.migration_status, insta_ids.progress,
    insta_ids.moves, insta_ids.distributions TO pg_monitor;
-- The owner of the database can run pg_dump.
GRANT USAGE ON SCHEMA insta_ids_internal TO pg_database_owner;
GRANT SELECT ON ALL TABLES IN SCHEMA insta_ids_internal TO pg_database_owner;

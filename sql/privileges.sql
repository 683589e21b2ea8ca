-- Privileges. This file comes after all objects to which it grants privileges.
--
-- All roles may execute most functions, as is usual in PostgreSQL, because functions run with the rights of their callers.
-- Nearly all functions need tables and functions of schema insta_ids_internal, and a role without USAGE on it cannot name
-- these. EXECUTE is revoked only for functions that act on the whole server, or that only superusers need.
GRANT USAGE ON SCHEMA insta_ids TO PUBLIC;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA insta_ids, insta_ids_internal TO PUBLIC;
GRANT SELECT ON insta_ids.config, insta_ids.map TO PUBLIC;
REVOKE EXECUTE ON FUNCTION insta_ids.advance_clock, insta_ids.reset_clock, insta_ids.stat_reset,
    insta_ids.acquire_writer_slot, insta_ids.create_ticket_server, insta_ids.install_plproxy, insta_ids.grant_provisioning
    FROM PUBLIC;
REVOKE EXECUTE ON PROCEDURE insta_ids.move_shards, insta_ids.move_abort FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION insta_ids_internal.stat_get_ids FROM PUBLIC;
GRANT EXECUTE ON FUNCTION insta_ids_internal.stat_get_ids TO pg_monitor;
GRANT SELECT ON insta_ids.stat_ids TO pg_monitor;
-- The owner of the database can run pg_dump.
GRANT USAGE ON SCHEMA insta_ids_internal TO pg_database_owner;
GRANT SELECT ON ALL TABLES IN SCHEMA insta_ids_internal TO pg_database_owner;
GRANT SELECT ON SEQUENCE insta_ids_internal.lease TO pg_database_owner;

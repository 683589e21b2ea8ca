//! Names that no statement of the extension may find by the search path.

use postgres::Client;

/// The search path of a session in which every name of `pg_catalog` that is not qualified raises an error.
pub const POISONED_PATH: &str = "pg_poison, pg_catalog";

/// A schema with each operator, function, type and relation of `pg_catalog`, of the same name and with the same arguments. It
/// stands for what another role could plant, and each use of it is an error: the operators and types are shells, the functions
/// are procedures, and the relations are indexes. So what the search path decides, in a construct of whatever kind, is
/// found when the statement is parsed. Rows of the catalog are copied, since CREATE makes no shell of an operator.
///
/// `pg_dump` leaves out a schema whose name begins with `pg_`.
const POISON: &str = "
    BEGIN;
    SET LOCAL search_path = pg_catalog;
    SET LOCAL allow_system_table_mods = on;
    CREATE SCHEMA pg_poison;
    CREATE TABLE pg_poison.nothing ();
    GRANT USAGE ON SCHEMA pg_poison TO PUBLIC;
    INSERT INTO pg_operator
    SELECT copy.* FROM pg_operator o, jsonb_populate_record(o, jsonb_build_object(
        'oid', pg_nextoid('pg_operator', 'oid', 'pg_operator_oid_index'),
        'oprnamespace', 'pg_poison'::regnamespace::oid, 'oprcode', 0)) copy
    WHERE o.oprnamespace = 'pg_catalog'::regnamespace;
    INSERT INTO pg_proc
    SELECT copy.* FROM pg_proc p, jsonb_populate_record(p, jsonb_build_object(
        'oid', pg_nextoid('pg_proc', 'oid', 'pg_proc_oid_index'),
        'pronamespace', 'pg_poison'::regnamespace::oid, 'prokind', 'p', 'proretset', false)) copy
    WHERE p.pronamespace = 'pg_catalog'::regnamespace;
    DO $$
    DECLARE
        command text;
    BEGIN
        FOR command IN
            SELECT format('CREATE TYPE pg_poison.%I', t.typname) FROM pg_type t
            WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typelem = 0
            UNION ALL
            SELECT format('CREATE INDEX %I ON pg_poison.nothing ((true))', c.relname) FROM pg_class c
            WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'v')
        LOOP
            EXECUTE command;
        END LOOP;
    END $$;
    COMMIT";

/// What PostgreSQL writes about a name that was found in that schema.
pub const POISONED: [&str; 3] = ["is only a shell", " is a procedure", "cannot open relation \"pg_"];

/// Adds the schema to a database that does not have it.
pub fn poison(client: &mut Client) {
    let is_new = "SELECT pg_catalog.to_regnamespace('pg_poison') IS NULL";
    if client.query_one(is_new, &[]).unwrap().get(0) {
        client.batch_execute(POISON).unwrap();
    }
}

//! Each entry by which code of the extension runs with more rights than its caller's, or in a session that did not call it, has a
//! test. A new one fails here until its test is named.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use support::{Cluster, checkout, texts};

/// Functions with the rights of their owner.
const DEFINERS: &[(&str, &str)] = &[
    ("insta_ids.partitions", "partitions.sql"),
    ("insta_ids.schema_of", "a_lock_on_a_view_of_users_stops_no_function"),
    ("insta_ids.shard_map", "a_lock_on_a_view_of_users_stops_no_function"),
    ("insta_ids.version", "a_lock_on_a_view_of_users_stops_no_function"),
    ("insta_ids_internal.connected_standbys", "functions_of_superusers_are_withheld"),
    ("insta_ids_internal.notify_map", "assigning_shards_changes_the_map_and_its_version"),
    ("insta_ids_internal.plproxy_partitions", "plproxy_routes_by_the_map"),
    ("insta_ids_internal.refuse_ddl", "nothing_is_half_done_in_a_fenced_shard"),
    ("insta_ids_internal.refuse_ddl_at_start", "nothing_is_half_done_in_a_fenced_shard"),
    ("insta_ids_internal.require_config", "a_lock_on_a_view_of_users_stops_no_function"),
    ("insta_ids_internal.stat_get_shards", "functions_of_superusers_are_withheld"),
];

/// Background workers, by the function of the library in which they begin.
const WORKERS: &[(&str, &str)] = &[
    ("insta_ids_drive_distribution", "tables_are_distributed_without_the_caller"),
    ("insta_ids_drive_move", "the_worker_of_a_move_takes_nothing_from_its_database"),
    ("insta_ids_end_pauses", "the_worker_of_a_fence_takes_nothing_from_its_database"),
    ("insta_ids_resume_moves", "the_worker_that_starts_with_the_server_runs_nothing_in_other_databases"),
];

/// Functions of triggers and event triggers, which run in sessions that do something else.
const TRIGGERS: &[(&str, &str)] = &[
    ("bump_map_version", "assigning_shards_changes_the_map_and_its_version"),
    ("forget_map_on_change", "sessions_follow_a_change_of_the_map_at_once"),
    ("guard_write", "session_replication_role_does_not_get_past_a_fence"),
    ("note_change", "a_superuser_does_not_run_code_of_a_tables_owner"),
    ("notify_map", "assigning_shards_changes_the_map_and_its_version"),
    ("refuse_config_change", "shards.sql"),
    ("refuse_distributed_write", "rows_go_to_the_shards_while_clients_write"),
    ("refuse_lease_change", "only_the_extension_writes_it"),
    ("refuse_migration_change", "what_is_recorded_is_what_was_applied"),
    ("refuse_truncate", "tables_of_all_kinds_go_to_the_shards"),
    ("refuse_write", "a_dump_takes_the_place_of_a_shard_while_clients_write"),
    ("refuse_writer_change", "only_the_extension_writes_it"),
    ("require_author", "a_migration_runs_only_with_rights_its_author_has"),
    ("require_open_move", "a_provisioner_cannot_write_rows_about_shards_of_others"),
    ("require_own_changes", "a_superuser_does_not_run_code_of_a_tables_owner"),
    ("require_shard_owner", "a_provisioner_cannot_write_rows_about_shards_of_others"),
    ("require_source", "a_provisioner_cannot_write_rows_about_shards_of_others"),
    ("require_table_owner", "a_provisioner_cannot_write_rows_about_shards_of_others"),
    ("watch_ddl", "nothing_is_half_done_in_a_fenced_shard"),
];

/// What roles without any privilege of their own can call or read, in addition to what mints and reads IDs. Each is in the table of
/// SECURITY.md.
const PUBLIC: &[(&str, &str)] = &[
    ("insta_ids.config", "a_lock_on_a_view_of_users_stops_no_function"),
    ("insta_ids.map", "a_lock_on_a_view_of_users_stops_no_function"),
];

/// The tests that there are: functions in files of tests, and files of `pg_regress`.
fn tests(directory: &Path, found: &mut String) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            tests(&path, found)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("attacks/entries.rs") {
            found.push_str(&fs::read_to_string(path)?);
        } else if path.extension().is_some_and(|kind| kind == "sql") {
            found.extend(["fn ", &path.file_name().unwrap().to_string_lossy(), "()"]);
        }
    }
    Ok(())
}

#[test]
fn each_entry_names_its_test() {
    let cluster = Cluster::start("entries");
    let mut client = cluster.connect();
    let of_extension = "SELECT p.oid::regproc::text FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
        JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'insta_ids' AND d.deptype = 'e'";
    let definers = texts(&mut client, &format!("{of_extension} WHERE p.prosecdef"));
    let triggers = texts(
        &mut client,
        &format!("{of_extension} WHERE p.prorettype IN ('trigger'::regtype, 'event_trigger'::regtype)"),
    );
    let triggers = triggers.iter().map(|name| name.rsplit('.').next().unwrap().to_owned()).collect();
    let readable = texts(
        &mut client,
        "SELECT c.oid::regclass::text FROM pg_class c
         WHERE c.relnamespace IN ('insta_ids'::regnamespace, 'insta_ids_internal'::regnamespace)
             AND EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee = 0)",
    );
    let mut library = String::new();
    for file in fs::read_dir(checkout().join("src/pg/workers")).unwrap() {
        library.push_str(&fs::read_to_string(file.unwrap().path()).unwrap());
    }
    let workers = [".set_function(\"", ".bgw_function_name = \""]
        .into_iter()
        .flat_map(|before| library.split(before).skip(1))
        .map(|rest| rest.split('"').next().unwrap().to_owned());

    let mut all = String::new();
    tests(&checkout().join("tests"), &mut all).unwrap();
    for (what, mut found, named) in [
        ("functions with the rights of their owner", definers, DEFINERS),
        ("functions of triggers", triggers, TRIGGERS),
        ("relations that everybody can read", readable, PUBLIC),
        ("background workers", workers.collect(), WORKERS),
    ] {
        found.sort();
        found.dedup();
        let named: BTreeMap<_, _> = named.iter().copied().collect();
        assert_eq!(found, named.keys().copied().collect::<Vec<_>>(), "{what}");
        for (entry, test) in named {
            assert!(all.contains(&format!("fn {test}()")), "{entry} names {test}, which is no test");
        }
    }
}

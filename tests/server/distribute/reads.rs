//! What clients see that still read the old tables after the switch.

use support::refused;

use super::{REGISTERED, Rows, remains, tables};
use crate::moves::FENCED;

/// With `refuse_reads`, each statement that names an old table fails, also one that finds no row, or locks rows.
#[test]
fn reads_of_old_tables_fail_if_that_is_wanted() {
    let cluster = tables("distribute_reads");
    let mut client = cluster.connect();
    client.batch_execute("CREATE ROLE reader; GRANT SELECT, INSERT, UPDATE ON users TO reader").unwrap();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    let both = "SELECT insta_ids.distribute_switch(views => true, refuse_reads => true)";
    assert_eq!(refused(&mut client, both).message(), "views and refuse_reads cannot both be true");
    let call = "SELECT insta_ids.distribute_switch(refuse_reads => true);";
    let call = cluster.psql(&["-d", "postgres"], call).wait_with_output().unwrap();
    let said = String::from_utf8(call.stderr).unwrap();
    assert!(said.contains("NOTICE:  distribute: writers have waited for "), "{said}");
    for role in ["postgres", "reader"] {
        client.batch_execute(&format!("SET ROLE {role}")).unwrap();
        for read in [
            "SELECT FROM users",
            "SELECT id FROM users WHERE id = -1 FOR UPDATE",
            "SELECT count(*) FROM generate_series(1, 2) n WHERE EXISTS (SELECT FROM users u WHERE u.id = n)",
            "PREPARE q (bigint) AS SELECT bio FROM users WHERE id = $1; EXECUTE q (-1)",
        ] {
            let error = refused(&mut client, read);
            assert_eq!(
                (error.code().code(), error.message(), error.hint()),
                (
                    "55000",
                    "table public.users cannot be read, because its rows have gone to the shards",
                    Some("Read table \"users\" of the row's shard.")
                ),
                "{role}: {read}"
            );
            client.batch_execute("DEALLOCATE ALL").unwrap();
        }
        assert_eq!(refused(&mut client, "INSERT INTO users (email) VALUES ('')").code(), FENCED);
    }
    client.batch_execute("RESET ROLE").unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    assert_eq!(remains(&mut client), [""; 0]);
    assert_eq!(Rows::of_sources(&mut client).users.len(), 500);
}

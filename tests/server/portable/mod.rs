//! Promise: sql/portable.sql mints unique ids and reads them, on a server with nothing of ours installed.

mod minting;
mod reading;
mod refusing;

use std::fs;
use std::process::Command;

use postgres::Client;
use support::{Cluster, NOT_PRELOADED, blocks, checkout, count};

/// Installs it in a database, in the first schema of this path.
fn install(cluster: &Cluster, database: &str, path: &str) {
    let sql = fs::read_to_string(checkout().join("sql/portable.sql")).unwrap();
    let mut client = cluster.connect_to(database);
    client.batch_execute(&format!("SET search_path = {path}; {sql}")).unwrap();
}

/// A server without the extension, with a sequence `public.s` that is guarded, and the functions in the schema `ids`.
fn plain(name: &str, sequence: &str) -> (Cluster, Client) {
    let cluster = Cluster::with(name, &[NOT_PRELOADED]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE SCHEMA ids; GRANT USAGE ON SCHEMA ids TO PUBLIC").unwrap();
    install(&cluster, "postgres", "ids");
    client.batch_execute(&format!("CREATE SEQUENCE s {sequence}; SELECT ids.guard_sequence('s')")).unwrap();
    (cluster, client)
}

/// The page's steps, from an empty database to the extension and back.
#[test]
fn each_step_of_docs_portable_works() {
    let cluster = Cluster::bare("portable_docs");
    let mut client = cluster.connect();
    client.batch_execute("CREATE SCHEMA ids").unwrap();
    install(&cluster, "postgres", "ids");
    let steps: Vec<_> =
        ["sql portable", "sql adopted"].iter().flat_map(|kind| blocks("docs/portable.md", kind)).collect();
    assert_eq!(steps.len(), 5);
    for step in steps {
        client.batch_execute(&step).unwrap_or_else(|error| panic!("{step}: {error}"));
    }
    client.batch_execute("INSERT INTO insta5.photos (user_id) VALUES (1), (2)").unwrap();
    assert_eq!(count(&mut client, "SELECT count(DISTINCT id) FROM insta5.photos"), 3);
    assert_eq!(
        count(
            &mut client,
            "SELECT last_value - max(id) FROM insta5.table_id_seq_newest, insta5.photos GROUP BY last_value"
        ),
        0
    );
}

/// What `pg_tle` is given runs in the transaction of CREATE EXTENSION, and makes the same functions.
#[test]
fn the_script_for_pg_tle_makes_the_same_functions() {
    let (_cluster, mut client) = plain("portable_tle", "");
    let made = Command::new(checkout().join("scripts/tle")).output().unwrap();
    let script = fs::read_to_string(String::from_utf8(made.stdout).unwrap().trim()).unwrap();
    client
        .batch_execute(
            "CREATE SCHEMA pgtle; CREATE SCHEMA again;
             CREATE FUNCTION pgtle.install_extension(name text, version text, description text, text text) RETURNS void
                LANGUAGE plpgsql SET search_path = again AS 'BEGIN EXECUTE text; END'",
        )
        .unwrap();
    client.batch_execute(&script).unwrap();
    let differ = "SELECT count(*) FILTER (WHERE (a.prosrc, a.prosqlbody IS NULL, a.proconfig) IS DISTINCT FROM (b.prosrc, b.prosqlbody IS NULL, b.proconfig))
            + abs(count(*) - 11)
        FROM pg_proc a JOIN pg_proc b USING (proname, proargtypes)
        WHERE a.pronamespace = 'ids'::regnamespace AND b.pronamespace = 'again'::regnamespace";
    assert_eq!(count(&mut client, differ), 0);
}

//! Promise: by the pattern of docs/masking.md a role masks ids, and neither it nor the log sees a key.

use postgres::Client;

use support::{Cluster, blocks, refused, texts};

/// A server with what the document makes: two versions of the key, functions, a photo. And a role that may read photos.
fn server(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::with(name, &["log_statement = all", "log_min_duration_statement = 0"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    for example in blocks("docs/masking.md", "sql") {
        client.batch_execute(&example).unwrap();
    }
    client.batch_execute("GRANT SELECT ON photos TO app; CREATE ROLE other").unwrap();
    (cluster, client)
}

#[test]
fn a_role_masks_ids_without_seeing_a_key() {
    let (cluster, mut client) = server("masking");
    let keys = texts(&mut client, "SELECT encode(key, 'hex') FROM mask_key ORDER BY version");
    assert_eq!(keys.len(), 2);
    let id: i64 = client.query_one("SELECT id FROM photos", &[]).unwrap().get(0);

    client.batch_execute("SET ROLE app").unwrap();
    let masked = &texts(&mut client, "SELECT public_id(id) FROM photos")[0];
    assert!(masked.starts_with("2.") && masked.len() == 13, "{masked}");
    let found = client.query("SELECT id FROM photos WHERE id = private_id($1)", &[&masked]).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].get::<_, i64>(0), id);
    for unknown in
        ["", "2.", "3.AAAAAAAAAAA", "2.AAAAAAAAAA?", "AAAAAAAAAAA", &masked[2..], &format!("{masked}A")]
    {
        let found: Option<i64> = client.query_one("SELECT private_id($1)", &[&unknown]).unwrap().get(0);
        assert_eq!(found, None, "{unknown}");
    }
    assert_eq!(refused(&mut client, "SELECT key FROM mask_key").code().code(), "42501");

    let plans = [
        "EXPLAIN (VERBOSE, ANALYZE) SELECT public_id(id) FROM photos",
        "EXPLAIN (VERBOSE) SELECT id FROM photos WHERE id = private_id('2.AAAAAAAAAAA')",
        "EXPLAIN (VERBOSE) SELECT public_id(7)",
    ]
    .map(|plan| texts(&mut client, plan).join("\n"));
    client.batch_execute("RESET ROLE; SET ROLE other").unwrap();
    assert_eq!(refused(&mut client, "SELECT private_id('2.AAAAAAAAAAA')").code().code(), "42501");
    client.batch_execute("RESET ROLE").unwrap();
    for (id, key, code) in [("?", "sha256('')", "22P02"), ("?", "key", "22023")] {
        let command =
            format!("SELECT id_unmask('{id}', {key}) FROM (SELECT substr(key, 2) AS key FROM mask_key) k");
        assert_eq!(refused(&mut client, &command).code().code(), code);
    }
    let log = cluster.log();
    assert!(log.contains("public_id(7)"));
    for key in keys {
        // Each way of writing bytes has either all the digits, or those of the middle.
        for text in plans.iter().chain([&log]) {
            assert!(!text.to_lowercase().contains(&key[8..40]), "{text}");
        }
    }
}

#[test]
fn the_key_changes_and_old_texts_are_still_read() {
    let (_cluster, mut client) = server("masking_keys");
    let read = |client: &mut Client, masked: &str| -> Option<i64> {
        client.query_one("SELECT private_id($1)", &[&masked]).unwrap().get(0)
    };
    let second = texts(&mut client, "SELECT public_id(7)").remove(0);
    client.batch_execute("INSERT INTO mask_key VALUES (22, sha256('twenty-two'))").unwrap();
    let last = texts(&mut client, "SELECT public_id(7)").remove(0);
    assert!(second.starts_with("2.") && last.starts_with("22."), "{second} {last}");
    assert_eq!((read(&mut client, &second), read(&mut client, &last)), (Some(7), Some(7)));
    client.batch_execute("DELETE FROM mask_key WHERE version = 2").unwrap();
    assert_eq!((read(&mut client, &second), read(&mut client, &last)), (None, Some(7)));
}

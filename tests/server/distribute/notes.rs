//! What a transaction changes is noted when it ends, many changes in one row: none is lost, whatever happens within the transaction.

use postgres::Client;
use support::{Cluster, count};

use super::{REGISTERED, Rows, tables, tables_with};

/// Changes a photo and its likes, in a subtransaction that may fail.
const CHANGE: &str = "CREATE FUNCTION change(photo bigint, fails boolean) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE photos SET title = title || ' changed' WHERE id = photo;
        DELETE FROM likes WHERE photo_id = photo;
        IF fails THEN RAISE EXCEPTION 'no'; END IF;
    EXCEPTION WHEN raise_exception THEN NULL;
    END $$";

/// A change each of an outer transaction and of subtransactions that are kept or undone, with few and with many rows.
const TRANSACTIONS: &str = "
    BEGIN;
    UPDATE photos SET title = 'before' WHERE id <= 10;
    SAVEPOINT one;
    UPDATE photos SET title = 'undone' WHERE id BETWEEN 1 AND 300;
    DELETE FROM photos WHERE id BETWEEN 301 AND 310;
    ROLLBACK TO one;
    SAVEPOINT two;
    UPDATE photos SET title = 'kept' WHERE id BETWEEN 401 AND 700;
    SAVEPOINT three;
    DELETE FROM photos WHERE id BETWEEN 411 AND 420;
    UPDATE users SET id = id + 10000 WHERE id BETWEEN 21 AND 40;
    RELEASE two;
    UPDATE photos SET user_id = 1 + user_id % 500 WHERE id BETWEEN 701 AND 900;
    COMMIT;

    BEGIN;
    UPDATE photos SET title = 'lost' WHERE id BETWEEN 901 AND 905;
    ROLLBACK;
    BEGIN;
    SELECT change(n, n % 2 = 0) FROM generate_series(1001, 1200) n;
    COMMIT;
    BEGIN;
    UPDATE photos SET title = 'first' WHERE id = 1300;
    SELECT change(n, n % 3 = 0) FROM generate_series(1301, 1400) n;
    COMMIT;

    BEGIN;
    UPDATE photos SET title = 'prepared' WHERE id BETWEEN 1501 AND 1510;
    PREPARE TRANSACTION 'one';
    UPDATE photos SET title = 'alone' WHERE id = 1600;
    COMMIT PREPARED 'one';";

/// All rows of `tables()` are in the shards, and changes of the sources are noted.
fn copied(cluster: &Cluster) -> Client {
    let mut client = cluster.connect();
    // What is left of an earlier distribution does not count.
    client
        .batch_execute("INSERT INTO insta_ids_internal.change VALUES ('users', '{no key}', '{no key}')")
        .unwrap();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client
}

#[test]
fn every_change_of_a_transaction_is_noted() {
    let cluster = tables_with("distribute_notes", &["max_prepared_transactions = 2"]);
    let mut client = copied(&cluster);
    client.batch_execute(CHANGE).unwrap();
    for statement in TRANSACTIONS.split(';').filter(|statement| !statement.trim().is_empty()) {
        client.batch_execute(statement).unwrap();
    }
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    let sources = Rows::of_sources(&mut client);
    assert_eq!(sources.photos[&1].1, "before");
    assert_eq!(sources.photos[&1300].1, "first");
    assert_eq!(Rows::of_shards(&mut client), sources);
}

/// Also if the switch is in a subtransaction, whose failure must not lose what was noted before.
#[test]
fn the_transaction_that_switches_may_have_written() {
    let cluster = tables("distribute_own_notes");
    let mut client = copied(&cluster);
    for statement in [
        "BEGIN",
        "UPDATE photos SET title = 'mine' WHERE id <= 70",
        "SAVEPOINT one",
        "SELECT insta_ids.distribute_switch()",
        "ROLLBACK TO one",
        "UPDATE photos SET title = 'mine, too' WHERE id = 71",
        "SAVEPOINT two",
        "SELECT insta_ids.distribute_switch()",
        "COMMIT",
    ] {
        client.batch_execute(statement).unwrap();
    }
    let sources = Rows::of_sources(&mut client);
    assert_eq!(sources.photos[&71].1, "mine, too");
    assert_eq!(Rows::of_shards(&mut client), sources);
    // And on the way back.
    client
        .batch_execute(
            "BEGIN; UPDATE insta1.photos SET title = 'theirs'; SELECT insta_ids.distribute_abort(); COMMIT",
        )
        .unwrap();
    assert!(count(&mut client, "SELECT count(*) FROM photos WHERE title = 'theirs'") > 0);
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.change"), 0);
}

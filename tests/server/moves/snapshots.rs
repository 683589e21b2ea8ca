//! A transaction whose snapshot is older than the hand-over does not see the rows that have moved, so it may not write.

use postgres::error::SqlState;
use postgres::{Client, Error};
use support::pair::{Move, Pair, STEPS, before};
use support::{Cluster, count, refused};

use super::FENCED;

/// Statements that write to a shard, which has a row.
const WRITES: [&str; 10] = [
    "UPDATE insta2.photos SET caption = 'b'",
    "DELETE FROM insta2.photos",
    "INSERT INTO insta2.photos DEFAULT VALUES",
    "INSERT INTO insta2.photos SELECT FROM insta2.photos",
    "MERGE INTO insta2.photos p USING (SELECT 1) s ON true WHEN MATCHED THEN UPDATE SET caption = 'b'",
    "WITH p AS (UPDATE insta2.photos SET caption = 'b' RETURNING id) SELECT count(*) FROM p",
    "DO $$ BEGIN UPDATE insta2.photos SET caption = 'b'; IF NOT FOUND THEN RAISE 'no row'; END IF; END $$",
    "SELECT write()",
    "COPY insta2.photos (caption) FROM PROGRAM 'echo c'",
    "TRUNCATE insta2.photos CASCADE",
];

const WRITE: &str = "CREATE FUNCTION write() RETURNS void LANGUAGE plpgsql AS
    $$BEGIN UPDATE insta2.photos SET caption = 'b'; IF NOT FOUND THEN RAISE 'no row'; END IF; END$$";

/// The outcome of each write, in a transaction that continues afterwards.
fn write_all(client: &mut Client) -> Vec<(&'static str, Result<(), Error>)> {
    let mut outcomes = Vec::new();
    for statement in WRITES {
        client.batch_execute("SAVEPOINT before").unwrap();
        outcomes.push((statement, client.batch_execute(statement)));
        client.batch_execute("ROLLBACK TO before").unwrap();
    }
    outcomes
}

#[track_caller]
fn all_refused(client: &mut Client, code: &SqlState) {
    for (statement, outcome) in write_all(client) {
        let error = outcome.expect_err(statement);
        assert_eq!(error.code(), Some(code), "{statement}: {error:?}");
    }
}

#[track_caller]
fn all_pass(client: &mut Client) {
    for (statement, outcome) in write_all(client) {
        outcome.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

fn begin(cluster: &Cluster, level: &str) -> Client {
    let mut client = cluster.connect();
    client
        .batch_execute(&format!("SET lock_timeout = '5s'; BEGIN ISOLATION LEVEL {level}; SELECT 1"))
        .unwrap();
    client
}

const OLD: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

/// Snapshots from before and during the move are refused on the target. Those from after it, and READ COMMITTED, are not.
#[test]
fn an_old_snapshot_does_not_write_on_the_target() {
    let pair = Pair::start("old_snapshots");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    b.batch_execute(WRITE).unwrap();
    let mut old: Vec<_> = OLD.map(|level| begin(&pair.b, level)).into();
    let mut committed = begin(&pair.b, "READ COMMITTED");
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("copied"));
    old.extend(OLD.map(|level| begin(&pair.b, level)));
    all_refused(&mut old[2], FENCED);
    let mut prepared = begin(&pair.b, "REPEATABLE READ");
    prepared.batch_execute("PREPARE w AS UPDATE insta2.photos SET caption = 'b'").unwrap();
    prepared.batch_execute("DECLARE c CURSOR FOR SELECT id FROM insta2.photos FOR UPDATE").unwrap();
    let mut held = begin(&pair.b, "REPEATABLE READ");
    held.batch_execute("DECLARE h CURSOR WITH HOLD FOR SELECT id FROM insta2.photos; COMMIT").unwrap();
    moving.steps(&STEPS[4..]);

    prepared.batch_execute("SAVEPOINT s").unwrap();
    for write in ["EXECUTE w", "UPDATE insta2.photos SET caption = 'b' WHERE CURRENT OF c"] {
        assert_eq!(refused(&mut prepared, write).code(), &SqlState::T_R_SERIALIZATION_FAILURE, "{write}");
        prepared.batch_execute("ROLLBACK TO s").unwrap();
    }
    prepared.batch_execute("ROLLBACK").unwrap();
    // What a cursor has kept is rows. Statements of later transactions have snapshots of their own.
    held.batch_execute("FETCH h; UPDATE insta2.photos SET caption = NULL").unwrap();
    for client in &mut old {
        all_refused(client, &SqlState::T_R_SERIALIZATION_FAILURE);
    }
    let error = refused(&mut old[0], "DELETE FROM insta2.photos");
    assert_eq!(error.message(), "could not serialize access to shard 2");
    assert_eq!(
        error.detail(),
        Some("Rows came to the shard from elsewhere after the snapshot of the transaction was taken.")
    );
    assert_eq!(error.hint(), Some("Roll back, and run the whole transaction again."));
    all_pass(&mut committed);
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let mut client = begin(&pair.b, level);
        all_pass(&mut client);
        // Nor does a change of the shard's row, or of the map, make a snapshot too old.
        b.batch_execute("SELECT insta_ids.pin_shards(2, 2), insta_ids.pin_shards(2, 2, false), insta_ids_internal.forget_map()").unwrap();
        all_pass(&mut client);
    }
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta2.photos"), 1);
}

/// A snapshot that saw the shard before it left does not see the rows with which it returned.
#[test]
fn an_old_snapshot_does_not_write_to_a_shard_that_came_back() {
    let pair = Pair::start("came_back");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    a.batch_execute(WRITE).unwrap();
    let mut old: Vec<_> = OLD.map(|level| begin(&pair.a, level)).into();
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    let error = refused(&mut old[0], "UPDATE insta2__moved.photos SET caption = 'b'");
    assert_eq!(error.code(), FENCED);
    old[0].batch_execute("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").unwrap();
    a.batch_execute("SELECT insta_ids.drop_shard(2)").unwrap();
    a.batch_execute("CALL insta_ids.move_shards(2, 2, 'b')").unwrap();
    for client in &mut old {
        all_refused(client, &SqlState::T_R_SERIALIZATION_FAILURE);
    }
    all_pass(&mut begin(&pair.a, "REPEATABLE READ"));
}

/// On the source, and where a shard never moved, the rows are where they were.
#[test]
fn an_old_snapshot_writes_where_the_rows_stayed() {
    let pair = Pair::start("stayed");
    let mut a = pair.a.connect();
    a.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    a.batch_execute(WRITE).unwrap();
    let mut old: Vec<_> = OLD.map(|level| begin(&pair.a, level)).into();
    a.batch_execute("SELECT insta_ids.fence(2)").unwrap();
    let fenced = |client: &mut Client| {
        client.batch_execute("SAVEPOINT before").unwrap();
        assert_eq!(refused(client, WRITES[0]).code(), FENCED);
        client.batch_execute("ROLLBACK TO before").unwrap();
    };
    fenced(&mut old[0]);
    a.batch_execute("SELECT insta_ids.unfence(2)").unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("release"));
    fenced(&mut old[1]);
    moving.abort().unwrap();
    // A shard of the same transaction's time, which no fence has ever closed.
    a.batch_execute("SELECT insta_ids.create_shard(9)").unwrap();
    for client in &mut old {
        all_pass(client);
        client.batch_execute("INSERT INTO insta9.photos DEFAULT VALUES").unwrap();
    }
}

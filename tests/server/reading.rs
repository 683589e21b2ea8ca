//! Promise: docs/reading-by-time.md says which readers miss rows, and which do not. All are run in its own words.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::{Client, NoTls, SimpleQueryMessage};

use support::Chance;
use support::blocks;
use support::{Cluster, becomes, count, within};

const DOCUMENT: &str = "docs/reading-by-time.md";

/// The one block of the document that is named so.
fn block(name: &str) -> String {
    let blocks = blocks(DOCUMENT, &format!("sql {name}"));
    assert_eq!(blocks.len(), 1, "{name}");
    blocks.into_iter().next().unwrap()
}

/// A server on which the document's examples were run, and all kinds of readers can be.
fn server(name: &str) -> Cluster {
    // A transaction of autovacuum would be waited for, too.
    let settings = ["wal_level = logical", "max_prepared_transactions = 10", "autovacuum = off"];
    let cluster = Cluster::with(name, &[&[], &settings[..]].concat());
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    for example in blocks(DOCUMENT, "sql") {
        client.batch_execute(&example).unwrap();
    }
    for example in [block("page"), block("batch")] {
        client.batch_execute(&example.replace("$1", "id_max(now())")).unwrap();
    }
    client.batch_execute("TRUNCATE photos").unwrap();
    for statement in block("reader of the log begins").split_inclusive(';') {
        client.batch_execute(statement).unwrap();
    }
    cluster
}

/// The document's readers, each with what it keeps from one time to the next.
enum Reader {
    Naive { last: i64 },
    ByTransaction { last: (String, i64) },
    OfTheLog,
    WithALag { last: i64 },
}

impl Reader {
    fn all() -> [Self; 4] {
        [
            Self::Naive { last: 0 },
            Self::ByTransaction { last: ("'0'".into(), 0) },
            Self::OfTheLog,
            Self::WithALag { last: 0 },
        ]
    }

    fn name(&self) -> &str {
        match self {
            Self::Naive { .. } => "naive reader",
            Self::ByTransaction { .. } => "reader by transaction",
            Self::OfTheLog => "reader of the log",
            Self::WithALag { .. } => "reader with a lag",
        }
    }

    /// The ids of the rows that it reads now.
    fn read(&mut self, client: &mut Client) -> Vec<i64> {
        let name = self.name().to_owned();
        let query = || block(&name);
        match self {
            Self::Naive { last } => ids(client, &query().replace("$1", &last.to_string()), last),
            Self::ByTransaction { last: (xid, last) } => {
                let query = query().replace("$1", xid).replace("$2", &last.to_string());
                let rows = rows(client, &query);
                if let Some(row) = rows.last() {
                    *xid = format!("'{}'", row[0]);
                    *last = row[1].parse().unwrap();
                }
                rows.iter().map(|row| row[1].parse().unwrap()).collect()
            }
            // Of pgoutput's messages, those that begin with an I, for an insert. The first column is the id: its
            // length is in the 13th byte, and from the next on it is text.
            Self::OfTheLog => {
                let changes = "
                    SELECT convert_from(substring(data FROM 14 FOR get_byte(data, 12)), 'UTF8')
                    FROM pg_logical_slot_get_binary_changes(
                        'reader', NULL, NULL, 'proto_version', '1', 'publication_names', 'photos')
                    WHERE get_byte(data, 0) = ascii('I')";
                rows(client, changes).iter().map(|row| row[0].parse().unwrap()).collect()
            }
            Self::WithALag { last } => {
                let horizon = &rows(client, &block("reader with a lag looks"))[0][0];
                ids(client, &query().replace("$1", &last.to_string()).replace("$2", horizon), last)
            }
        }
    }
}

/// The rows of a query, as text.
fn rows(client: &mut Client, query: &str) -> Vec<Vec<String>> {
    let messages = client.simple_query(query).unwrap();
    messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).unwrap().to_owned()).collect())
            }
            _ => None,
        })
        .collect()
}

/// The ids that a query returns; the last one is kept.
fn ids(client: &mut Client, query: &str, last: &mut i64) -> Vec<i64> {
    let ids: Vec<i64> = rows(client, query).iter().map(|row| row[0].parse().unwrap()).collect();
    *last = ids.last().copied().unwrap_or(*last);
    ids
}

fn insert(client: &mut Client) -> i64 {
    client.query_one("INSERT INTO photos (user_id) VALUES (1) RETURNING id", &[]).unwrap().get(0)
}

/// Two sessions: the one that is first to take an id is last to commit. Only the naive reader misses its row.
#[test]
fn only_the_naive_reader_misses_a_late_commit() {
    let cluster = server("late_commit");
    let (mut slow, mut fast, mut reading) = (cluster.connect(), cluster.connect(), cluster.connect());
    let mut readers = Reader::all();
    let mut read: [Vec<i64>; 4] = Default::default();
    slow.batch_execute("BEGIN").unwrap();
    let late = insert(&mut slow);
    let early = insert(&mut fast);
    assert!(late < early);
    for _ in 0..2 {
        for (reader, read) in readers.iter_mut().zip(&mut read) {
            read.extend(reader.read(&mut reading));
        }
        slow.batch_execute("COMMIT").unwrap();
    }
    let [naive, by_transaction, of_the_log, with_a_lag] = read;
    assert_eq!(naive, [early], "the naive reader");
    assert_eq!(by_transaction, [late, early]);
    assert_eq!(of_the_log, [early, late]);
    assert_eq!(with_a_lag, [late, early]);
}

/// Eight sessions that commit late, by chance, roll back, and use savepoints, while all the readers poll.
#[test]
fn all_documented_readers_see_every_row() {
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 150;
    let cluster = server("readers");
    let stop = AtomicBool::new(false);
    let (mut committed, readers) = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|seed| {
                let mut client = cluster.connect();
                scope.spawn(move || {
                    let mut chance = Chance::from_seed(seed);
                    let mut committed = Vec::new();
                    for _ in 0..ROUNDS {
                        client.batch_execute("BEGIN").unwrap();
                        let mut inserted = vec![insert(&mut client)];
                        thread::sleep(Duration::from_millis(chance.below(20)));
                        client.batch_execute("SAVEPOINT a").unwrap();
                        let undone = insert(&mut client);
                        if chance.below(2) == 0 {
                            client.batch_execute("ROLLBACK TO a").unwrap();
                        } else {
                            inserted.push(undone);
                        }
                        if chance.below(4) == 0 {
                            client.batch_execute("ROLLBACK").unwrap();
                        } else {
                            client.batch_execute("COMMIT").unwrap();
                            committed.extend(inserted);
                        }
                    }
                    committed
                })
            })
            .collect();
        let readers: Vec<_> = Reader::all()
            .into_iter()
            .map(|mut reader| {
                let (mut client, stop) = (cluster.connect(), &stop);
                scope.spawn(move || {
                    let mut read = Vec::new();
                    loop {
                        // What it reads after all have ended is all there is.
                        let last = stop.load(Ordering::Relaxed);
                        read.extend(reader.read(&mut client));
                        if last {
                            // Whoever has more than one batch left.
                            loop {
                                let more = reader.read(&mut client);
                                if more.is_empty() {
                                    return (reader, read);
                                }
                                read.extend(more);
                            }
                        }
                    }
                })
            })
            .collect();
        let committed: Vec<i64> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        // A reader with a lag reads no id that is as new as the oldest transaction, which can be another reader's.
        let newest = committed.iter().max().unwrap();
        let all_are_older = format!("SELECT ({}) > {newest}", block("reader with a lag looks"));
        let mut client = cluster.connect();
        let older = becomes(Duration::from_mins(1), || client.query_one(&all_are_older, &[]).unwrap().get(0));
        stop.store(true, Ordering::Relaxed);
        assert!(older, "a transaction goes on");
        let readers: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        (committed, readers)
    });
    committed.sort_unstable();
    for (reader, mut read) in readers {
        read.sort_unstable();
        println!("{} of {} rows: {}", read.len(), committed.len(), reader.name());
        if let Reader::Naive { .. } = reader {
            assert!(read.len() < committed.len(), "the naive reader missed nothing");
        } else {
            assert_eq!(read, committed, "{}", reader.name());
        }
    }
}

/// What the document says must hold for the lag: where it does not, the row is missed. By transaction it is not.
#[test]
fn a_lag_misses_rows_where_its_conditions_do_not_hold() {
    let cluster = server("lag");
    cluster
        .connect()
        .batch_execute(
            "CREATE ROLE blind LOGIN; CREATE ROLE seeing LOGIN; GRANT pg_read_all_stats TO seeing;
             GRANT SELECT ON photos TO blind, seeing",
        )
        .unwrap();
    // What the slow session does before its row and after it, and who reads.
    for (what, before, after, user, enough) in [
        ("all holds", "", "", "postgres", true),
        ("a reader that sees all sessions", "", "", "seeing", true),
        ("a reader that sees its own", "", "", "blind", false),
        ("a session that is not tracked", "SET track_activities = off;", "", "postgres", false),
        ("a prepared transaction", "", "PREPARE TRANSACTION 'a'", "postgres", false),
    ] {
        cluster.connect().batch_execute("TRUNCATE photos").unwrap();
        let (mut slow, mut fast) = (cluster.connect(), cluster.connect());
        let mut client = cluster.config().user(user).connect(NoTls).unwrap();
        let [_, mut by_transaction, _, mut with_a_lag] = Reader::all();
        slow.batch_execute(&format!("{before} BEGIN")).unwrap();
        let late = insert(&mut slow);
        slow.batch_execute(after).unwrap();
        let early = insert(&mut fast);
        // So that the reader does not begin in the same millisecond.
        thread::sleep(Duration::from_millis(20));
        assert_eq!(with_a_lag.read(&mut client), if enough { vec![] } else { vec![early] }, "{what}");
        assert_eq!(by_transaction.read(&mut client), [], "{what}");
        slow.batch_execute(if after.is_empty() { "COMMIT" } else { "COMMIT PREPARED 'a'" }).unwrap();
        assert_eq!(with_a_lag.read(&mut client), if enough { vec![late, early] } else { vec![] }, "{what}");
        assert_eq!(by_transaction.read(&mut client), [late, early], "{what}");
    }
}

/// The id was taken before the transaction that inserts it.
#[test]
fn an_id_taken_before_its_transaction_is_read() {
    let cluster = server("beforehand");
    let (mut slow, mut fast, mut client) = (cluster.connect(), cluster.connect(), cluster.connect());
    let [_, mut by_transaction, _, mut with_a_lag] = Reader::all();
    let taken: i64 = slow.query_one("SELECT next_id(5, 'photos_id_seq')", &[]).unwrap().get(0);
    let early = insert(&mut fast);
    thread::sleep(Duration::from_millis(20));
    slow.batch_execute("BEGIN").unwrap();
    slow.execute("INSERT INTO photos VALUES ($1, 1)", &[&taken]).unwrap();
    assert_eq!(with_a_lag.read(&mut client), [early]);
    assert_eq!(by_transaction.read(&mut client), [early]);
    slow.batch_execute("COMMIT").unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(with_a_lag.read(&mut client), []);
    assert_eq!(by_transaction.read(&mut client), [taken]);
}

/// A transaction ends after the snapshot of the rows was taken, and before the look at the sessions.
#[test]
fn a_transaction_that_ends_after_the_snapshot_is_read() {
    let cluster = server("snapshot");
    let (mut slow, mut fast, mut client) = (cluster.connect(), cluster.connect(), cluster.connect());
    let [_, mut by_transaction, _, mut with_a_lag] = Reader::all();
    slow.batch_execute("BEGIN").unwrap();
    let late = insert(&mut slow);
    let early = insert(&mut fast);
    thread::sleep(Duration::from_millis(20));
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM photos").unwrap();
    slow.batch_execute("COMMIT").unwrap();
    assert_eq!(with_a_lag.read(&mut client), [early]);
    assert_eq!(by_transaction.read(&mut client), []);
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(with_a_lag.read(&mut client), []);
    assert_eq!(by_transaction.read(&mut client), [late, early]);
}

/// Whoever writes in another database is waited for, whoever reads there is not.
#[test]
fn reading_by_transaction_waits_for_writers_of_other_databases() {
    let cluster = server("databases");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE other").unwrap();
    let mut other = cluster.connect_to("other");
    let [_, mut by_transaction, ..] = Reader::all();
    other.batch_execute("BEGIN; SELECT FROM pg_class").unwrap();
    let first = insert(&mut client);
    assert_eq!(by_transaction.read(&mut client), [first]);
    other.batch_execute("SELECT pg_current_xact_id()").unwrap();
    let second = insert(&mut client);
    assert_eq!(by_transaction.read(&mut client), []);
    other.batch_execute("COMMIT").unwrap();
    assert_eq!(by_transaction.read(&mut client), [second]);
}

/// Also where the rows are read on a standby, which knows no session of the primary.
#[test]
fn reading_by_transaction_works_on_a_standby() {
    let cluster = server("written");
    let (mut slow, mut fast) = (cluster.connect(), cluster.connect());
    let standby = cluster.standby("read");
    let mut client = standby.connect();
    let [_, mut by_transaction, _, mut with_a_lag] = Reader::all();
    let mut await_rows = |rows: i64| {
        within(Duration::from_secs(30), || count(&mut client, "SELECT count(*) FROM photos") >= rows);
        thread::sleep(Duration::from_millis(20));
        (with_a_lag.read(&mut client), by_transaction.read(&mut client))
    };
    slow.batch_execute("BEGIN").unwrap();
    let late = insert(&mut slow);
    let early = insert(&mut fast);
    assert_eq!(await_rows(1), (vec![early], vec![]));
    slow.batch_execute("COMMIT").unwrap();
    assert_eq!(await_rows(2), (vec![], vec![late, early]));
}

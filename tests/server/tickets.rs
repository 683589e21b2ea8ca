//! Promise: ticket servers never give out the same ticket twice, over crash and restart, whether the ticket was
//! used in a transaction that was committed or not; and while one of them stands, tickets go on.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, NoTls};

use support::blocks;
use support::{Cluster, count, duplicates, within};

/// Nothing but a flush brings WAL from the server's memory to its files, and a kill leaves what is in the files.
const UNFLUSHED: [&str; 7] = [
    "synchronous_commit = off",
    "wal_writer_delay = '10s'",
    "bgwriter_lru_maxpages = 0",
    "checkpoint_timeout = '1h'",
    "autovacuum = off",
    "wal_level = minimal",
    "max_wal_senders = 0",
];

fn ticket_server(cluster: &str, server: i32, servers: i32) -> Cluster {
    let cluster = Cluster::with(cluster, &UNFLUSHED);
    cluster
        .connect()
        .batch_execute(&format!(
            "CREATE EXTENSION insta_ids; SELECT insta_ids.create_ticket_server('photos', {server}, {servers})"
        ))
        .unwrap();
    cluster
}

fn next_ticket(client: &mut Client, name: &str) -> Result<i64, postgres::Error> {
    client.query_one("SELECT insta_ids.next_ticket($1)", &[&name]).map(|row| row.get(0))
}

/// The server dies with all that was in its memory only, and comes back.
fn kill_and_start(cluster: &Cluster) {
    cluster.signal("KILL");
    cluster.up_again();
}

/// Nobody commits, the tickets are used elsewhere, and the server dies.
#[test]
fn no_ticket_comes_again_after_a_crash() {
    let cluster = ticket_server("unflushed", 1, 1);
    let mut one = cluster.connect();
    let mut other = cluster.connect();
    one.batch_execute("SELECT insta_ids.create_ticket_server('shared', 1, 1); CREATE SEQUENCE plain")
        .unwrap();
    one.batch_execute("CHECKPOINT").unwrap();
    one.batch_execute("BEGIN").unwrap();
    other.batch_execute("BEGIN").unwrap();
    // Once, as what a session's first look at the catalog logs is flushed with it.
    next_ticket(&mut other, "shared").unwrap();
    let own = next_ticket(&mut one, "photos").unwrap();
    // This session logs the ticket that the other one is given: `nextval` logs 32 at a time.
    one.batch_execute("SELECT nextval('insta_ids.ticket_shared') FROM generate_series(1, 40)").unwrap();
    let shared = next_ticket(&mut other, "shared").unwrap();
    let plain: i64 = one.query_one("SELECT nextval('plain')", &[]).unwrap().get(0);
    assert_eq!((own, shared, plain), (1, 42, 1));
    kill_and_start(&cluster);
    let mut client = cluster.reconnect();
    let again: i64 = client.query_one("SELECT nextval('plain')", &[]).unwrap().get(0);
    assert_eq!(again, plain, "the crash did not take away what was not flushed");
    assert!(next_ticket(&mut client, "photos").unwrap() > own, "the ticket came again");
    assert!(
        next_ticket(&mut client, "shared").unwrap() > shared,
        "a ticket that another session logged came again"
    );
}

/// Sessions that take tickets from a list of servers, as `host=/a,/b` in a connection string: from the first of them
/// that answers. They come back to it now and then.
struct Takers<'a> {
    hosts: Vec<String>,
    stop: &'a AtomicBool,
    taken: &'a AtomicUsize,
}

impl Takers<'_> {
    /// One session, until it is told to stop: the tickets that it was given.
    fn take(&self) -> Vec<i64> {
        let servers = format!("host={} user=postgres dbname=postgres", self.hosts.join(","));
        let mut tickets = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            match Client::connect(&servers, NoTls)
                .and_then(|mut client| self.take_from(&mut client, &mut tickets))
            {
                Ok(()) => {}
                Err(error) => {
                    // The server died, or comes up.
                    let code = error.code().map_or("", SqlState::code);
                    assert!(code.is_empty() || code.starts_with("57"), "{error}");
                    thread::sleep(Duration::from_millis(5));
                }
            }
        }
        tickets
    }

    /// Half of them in a transaction that is not committed.
    fn take_from(&self, client: &mut Client, tickets: &mut Vec<i64>) -> Result<(), postgres::Error> {
        for round in 0..20 {
            client.batch_execute(if round % 2 == 0 { "BEGIN" } else { "" })?;
            for _ in 0..10 {
                tickets.push(next_ticket(client, "photos")?);
                self.taken.fetch_add(1, Ordering::Relaxed);
            }
            client.batch_execute(if round % 2 == 0 { "ROLLBACK" } else { "" })?;
        }
        Ok(())
    }

    fn await_more(&self, tickets: usize) {
        let wanted = self.taken.load(Ordering::Relaxed) + tickets;
        within(Duration::from_mins(1), || self.taken.load(Ordering::Relaxed) >= wanted);
    }
}

fn last_ticket(cluster: &Cluster) -> i64 {
    count(&mut cluster.connect(), "SELECT last_value FROM insta_ids.ticket_photos")
}

fn host(cluster: &Cluster) -> String {
    cluster.socket.display().to_string()
}

/// Runs sessions, `of_each` for every list of hosts, and meanwhile does something; returns what each was given.
fn take_from(hosts: &[Vec<String>], of_each: usize, meanwhile: impl FnOnce(&Takers)) -> Vec<Vec<i64>> {
    let (stop, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
    let takers: Vec<Takers> =
        hosts.iter().map(|hosts| Takers { hosts: hosts.clone(), stop: &stop, taken: &taken }).collect();
    thread::scope(|scope| {
        let sessions: Vec<_> =
            takers.iter().flat_map(|takers| (0..of_each).map(|_| scope.spawn(|| takers.take()))).collect();
        // Also when it finds something: else the sessions would go on, and the test with them.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(&takers[0])));
        stop.store(true, Ordering::Relaxed);
        let tickets = sessions.into_iter().map(|session| session.join().unwrap()).collect();
        done.unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        tickets
    })
}

/// Odd and even: either of them may be gone, and the other may be far ahead.
#[test]
fn either_of_two_ticket_servers_may_be_gone() {
    let (odd, even) = (ticket_server("odd", 1, 2), ticket_server("even", 2, 2));
    let lists = [vec![host(&odd), host(&even)], vec![host(&even), host(&odd)]];
    let tickets = take_from(&lists, 4, |takers| {
        takers.await_more(2000);
        for round in 0..3 {
            for (gone, name) in [(&odd, "odd"), (&even, "even")] {
                gone.signal("KILL");
                takers.await_more(2000);
                gone.up_again();
                takers.await_more(2000);
                println!("round {round}: {name} was gone, and is back");
            }
        }
        // Longer without one, so that they drift apart.
        odd.signal("KILL");
        let before = last_ticket(&even);
        takers.await_more(20_000);
        let drift = last_ticket(&even) - before;
        assert!(drift > 20_000, "no drift: {drift}");
        odd.up_again();
        takers.await_more(5_000);
    });
    let all: usize = tickets.iter().map(Vec::len).sum();
    let of = |parity| tickets.iter().flatten().filter(move |&&ticket| ticket % 2 == parity);
    let (odds, evens) = (of(1).max().unwrap(), of(0).max().unwrap());
    println!("{all} tickets, {} odd up to {odds}, {} even up to {evens}", of(1).count(), of(0).count());
    assert_eq!(duplicates(&tickets), 0, "of {all} tickets");
    for session in &tickets {
        assert!([0, 1].iter().all(|parity| session.iter().any(|ticket| ticket % 2 == *parity)));
    }
}

/// The steps of docs/reference.md, while tickets are taken.
#[test]
fn a_third_ticket_server_is_added_as_documented() {
    const CEILING: i64 = 1_000_000;
    let run = |cluster: &Cluster, step: &str| {
        let sql = blocks("docs/reference.md", &format!("sql {step}"));
        assert_eq!(sql.len(), 1, "{step}");
        cluster.connect().batch_execute(&sql[0]).unwrap();
    };
    let (one, two) = (ticket_server("one", 1, 2), ticket_server("two", 2, 2));
    let three = Cluster::with("three", &UNFLUSHED);
    three.connect().batch_execute("CREATE EXTENSION insta_ids").unwrap();
    let servers = [&one, &two, &three];
    let hosts = |order: [usize; 2]| order.map(|n| host(servers[n])).to_vec();
    let mut tickets = take_from(&[hosts([0, 1]), hosts([1, 0])], 4, |takers| {
        takers.await_more(2000);
        for cluster in [&one, &two] {
            run(cluster, "servers 1 and 2");
        }
        takers.await_more(2000);
        run(&one, "server 1");
        takers.await_more(2000);
        run(&two, "server 2");
        takers.await_more(2000);
        run(&three, "server 3");
        takers.await_more(2000);
    });
    tickets.extend(take_from(&[hosts([0, 1]), hosts([1, 2]), hosts([2, 0])], 3, |takers| {
        takers.await_more(5000);
        for server in servers {
            kill_and_start(server);
            takers.await_more(5000);
        }
    }));
    let all: usize = tickets.iter().map(Vec::len).sum();
    println!("{all} tickets from two servers and then three");
    assert_eq!(duplicates(&tickets), 0, "of {all} tickets");
    assert!(tickets.iter().flatten().any(|&ticket| ticket < CEILING));
    for (cluster, class) in servers.iter().zip([1, 2, 0]) {
        let ticket = next_ticket(&mut cluster.connect(), "photos").unwrap();
        assert!(ticket > CEILING && ticket % 3 == class, "{ticket} from {}", cluster.name);
    }
}

/// The sequence is dumped with its value, though the schema it is in is the extension's.
#[test]
fn a_dump_restores_ticket_servers() {
    let cluster = ticket_server("dumped", 2, 3);
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.create_ticket_server('of \"32\"', 1, 3, 32); CREATE ROLE app;
             GRANT USAGE ON SEQUENCE insta_ids.ticket_photos TO app",
        )
        .unwrap();
    client.batch_execute("CREATE DATABASE copy").unwrap();
    for name in ["photos", "photos", "of \"32\""] {
        next_ticket(&mut client, name).unwrap();
    }
    cluster.restore("postgres", "postgres", "copy");
    let mut copy = cluster.connect_to("copy");
    let integer: bool = copy
        .query_one(
            "SELECT data_type = 'integer'::regtype FROM pg_sequences WHERE sequencename LIKE '%32%'",
            &[],
        )
        .unwrap()
        .get(0);
    assert!(integer);
    copy.batch_execute("SET ROLE app").unwrap();
    assert_eq!(next_ticket(&mut copy, "photos").unwrap(), 8);
    copy.batch_execute("RESET ROLE").unwrap();
    assert_eq!(next_ticket(&mut copy, "of \"32\"").unwrap(), 4);
}

/// DROP EXTENSION refuses, and the sequence can be moved out of its way and back.
#[test]
fn tickets_outlive_the_extension() {
    let cluster = ticket_server("outlive", 1, 2);
    let mut client = cluster.connect();
    assert_eq!(next_ticket(&mut client, "photos").unwrap(), 1);
    let error = client.batch_execute("DROP EXTENSION insta_ids").unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST));
    client
        .batch_execute(
            "ALTER SEQUENCE insta_ids.ticket_photos SET SCHEMA public; DROP EXTENSION insta_ids;
             CREATE EXTENSION insta_ids; ALTER SEQUENCE public.ticket_photos SET SCHEMA insta_ids",
        )
        .unwrap();
    assert_eq!(next_ticket(&mut client, "photos").unwrap(), 3);
}

/// Of many calls at once, one makes it.
#[test]
fn a_ticket_server_made_by_many_at_once_is_made_once() {
    let cluster = ticket_server("at_once", 1, 1);
    for round in 0..20 {
        let start = Barrier::new(8);
        let made: usize = thread::scope(|scope| {
            let sessions: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = cluster.connect();
                        start.wait();
                        let make = format!("SELECT insta_ids.create_ticket_server('round {round}', 1, 1)");
                        match client.batch_execute(&make) {
                            Ok(()) => 1,
                            Err(error) => {
                                assert_eq!(error.code(), Some(&SqlState::DUPLICATE_OBJECT), "{error}");
                                0
                            }
                        }
                    })
                })
                .collect();
            sessions.into_iter().map(|session| session.join().unwrap()).sum()
        });
        assert_eq!(made, 1);
    }
}

/// A name as long as a text can be is not repeated in the message: that would be too long to be reported.
#[test]
fn a_name_of_a_gigabyte_is_not_repeated_in_the_error() {
    let cluster = Cluster::start("gigabyte");
    let mut client = cluster.connect();
    for call in ["insta_ids.next_ticket(x)", "shortcode_id(x)", "x::id_layout"] {
        for (character, times) in [("x", 1_073_741_800), ("é", 1 << 20)] {
            let query = format!("SELECT {call} FROM repeat('{character}', {times}) x");
            let error = client.query(&query, &[]).unwrap_err();
            let error = error.as_db_error().unwrap();
            assert!(error.message().len() < 400, "{call}: {}", error.message().len());
        }
    }
    assert!(!cluster.log().contains("terminated by signal"));
}

/// Names are of the database's encoding.
#[test]
fn names_are_of_the_databases_encoding() {
    let cluster = Cluster::start("latin1");
    cluster
        .connect()
        .batch_execute("CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        .unwrap();
    let mut client = cluster.connect_to("latin1");
    client
        .batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.create_ticket_server('é', 1, 1)")
        .unwrap();
    assert_eq!(next_ticket(&mut client, "é").unwrap(), 1);
    let error = next_ticket(&mut client, "ü").unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code(), &SqlState::UNDEFINED_OBJECT);
    assert_eq!(error.message(), r#"ticket server "\xfc" does not exist"#);
}

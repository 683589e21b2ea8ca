//! Promise: a shard can have a database of its own, made, migrated, checked and moved as docs/databases.md does it.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, NoTls};

use support::blocks;
use support::pair::settings;
use support::{Cluster, checkout, clock_ahead, count, disorders, duplicates, ids, pg_config, refused, texts};

const DOCUMENT: &str = "docs/databases.md";

/// The servers `a` and `b` of the document.
struct Servers {
    a: Cluster,
    b: Cluster,
}

impl Servers {
    /// With the template on `a`; the clock of `b` is ahead by so many seconds.
    fn start(name: &str, ahead: i32) -> Self {
        let made = |node: &str| {
            let settings = settings(node);
            let settings: Vec<_> = settings.iter().map(String::as_str).collect();
            Cluster::made(&format!("{name}_{node}"), &[&["make"], &settings[..]].concat())
        };
        let mut servers = Self { a: made("a"), b: made("b") };
        servers.b.environment = clock_ahead(ahead);
        servers.a.up();
        servers.b.up();
        servers.follow("bash template");
        servers
    }

    /// With the addresses of these for those in the document.
    fn addressed(&self, text: &str) -> String {
        [("10.0.0.1", &self.a), ("10.0.0.2", &self.b)]
            .iter()
            .fold(text.to_owned(), |text, (address, server)| {
                text.replace(address, &server.socket.display().to_string())
            })
    }

    /// Runs this in a shell that has sourced the functions; whether it succeeds, and what it prints.
    fn shell(&self, script: &str) -> (bool, String) {
        let script = format!("exec 2>&1\n{}{script}", blocks(DOCUMENT, "bash source")[0]);
        let path = format!("{}:{}", pg_config("--bindir"), std::env::var("PATH").unwrap());
        let output = Command::new("bash")
            .args(["-c", &self.addressed(&script)])
            .env("PATH", path)
            .current_dir(checkout())
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
    }

    /// Does what the document says; what that prints.
    fn follow(&self, kind: &str) -> String {
        let [block] = &blocks(DOCUMENT, kind)[..] else { panic!("not one block {kind}") };
        let (succeeded, printed) = self.shell(&format!("set -e\n{block}"));
        assert!(succeeded, "{block}{printed}");
        printed
    }

    /// The document's client: the id of the row that it writes.
    fn client(&self) -> i64 {
        let [block] = &blocks(DOCUMENT, "python")[..] else { panic!("not one client") };
        let script =
            format!("import sys\nsys.path.append('demo')\nfrom client import Fleet\n{block}\nprint(photo)");
        let run = Command::new("/usr/bin/python3")
            .args(["-B", "-c", &self.addressed(&script)])
            .current_dir(checkout())
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap().trim().parse().unwrap()
    }
}

/// docs/databases.md, with twenty databases on one server.
#[test]
fn twenty_databases_on_a_server() {
    let servers = Servers::start("databases", 0);
    let a = &servers.a;
    // One by hand, and that once more with the others.
    let by_hand = &blocks(DOCUMENT, "psql shard")[0];
    let (succeeded, printed) =
        servers.shell(&format!("psql -XqAt -v ON_ERROR_STOP=1 postgres <<'SQL'\n{by_hand}SQL"));
    assert!(succeeded && printed.ends_with("|5"), "{printed}");
    servers.follow("bash make");
    let numbers = || 0..20;
    let shards: Vec<_> = numbers().map(|shard| format!("insta{shard}: insta{shard}|a|active|1")).collect();
    let of_each = "each <<<'SELECT schema, node, state, applied FROM insta_ids.shards'";
    assert_eq!(servers.shell(of_each), (true, shards.join("\n")));

    // They mint at once, each for its shard.
    let minted: Vec<_> = thread::scope(|scope| {
        let sessions: Vec<_> = numbers()
            .map(|shard| {
                let insert = format!(
                    "INSERT INTO insta{shard}.photos (user_id) SELECT {shard} FROM generate_series(1, 5000) RETURNING id"
                );
                scope.spawn(move || a.connect_to(&format!("insta{shard}")).query(&insert, &[]).unwrap())
            })
            .collect();
        sessions
            .into_iter()
            .map(|session| session.join().unwrap().iter().map(|row| row.get(0)).collect::<Vec<i64>>())
            .collect()
    });
    assert_eq!((minted.iter().map(Vec::len).sum::<usize>(), duplicates(&minted)), (100_000, 0));
    for (shard, minted) in (0..).zip(&minted) {
        assert!(minted.iter().all(|id| id >> 10 & 8191 == shard));
    }

    // And for no other.
    let mut five = a.connect_to("insta5");
    let [refusals] = &blocks(DOCUMENT, "sql insta5-fails")[..] else { panic!("not one block of refusals") };
    let refusals: Vec<_> = refusals.split("\n\n").collect();
    assert_eq!(refusals.len(), 2);
    for refusal in refusals {
        let error = refused(&mut five, refusal);
        let said = format!("-- ERROR:  {}: {}\n", error.code().code(), error.message());
        assert!(format!("{refusal}\n").contains(&said), "{said}{refusal}");
        if let Some(shown) = refusal.split("-- DETAIL:  ").nth(1) {
            assert_eq!(error.detail(), Some(shown.trim_end()));
        }
    }
    let create = "SELECT insta_ids.create_shard(6)";
    assert_eq!(refused(&mut five, create).code(), &SqlState::READ_ONLY_SQL_TRANSACTION);

    // A migration, twice; what is made afterwards has it, too.
    for _ in 0..2 {
        assert_eq!(servers.follow("bash migrate"), "");
    }
    five.batch_execute("INSERT INTO insta5.photos (user_id, caption) VALUES (4005, 'no filter')").unwrap();
    assert_eq!(servers.shell("make_database 20"), (true, String::new()));
    assert_eq!(servers.follow("bash check"), "");
    let another = "SELECT insta_ids.add_migration('0003', 'CREATE TABLE likes (id bigint PRIMARY KEY)')";
    a.connect_to("insta_template").batch_execute(another).unwrap();
    let lacking: Vec<_> = (0..=20).map(|shard| format!("insta{shard}: 0003")).collect();
    assert_eq!(servers.shell("lacking"), (true, lacking.join("\n")));
    // Where one cannot be migrated, the others are.
    a.connect_to("insta2").batch_execute("CREATE TABLE insta2.likes (id text PRIMARY KEY)").unwrap();
    let (succeeded, printed) = servers.shell(&format!("each <<<\"{another}; CALL insta_ids.migrate()\""));
    assert!(!succeeded && printed.lines().all(|line| line.starts_with("insta2: ")), "{printed}");
    assert_eq!(servers.shell("lacking").1, "insta2: 0003");

    // A dump has the whole shard, which mints once the map has it on the other server.
    let restore = "sql -h 10.0.0.2 postgres <<<'CREATE DATABASE insta4' && pg_dump insta4 | sql -h 10.0.0.2 insta4 >/dev/null";
    assert_eq!(servers.shell(restore), (true, String::new()));
    let mut restored = servers.b.connect_to("insta4");
    assert_eq!(count(&mut restored, "SELECT count(*) FROM insta4.photos"), 5000);
    let insert = "INSERT INTO insta4.photos (user_id) VALUES (4004)";
    assert_eq!(refused(&mut restored, insert).code(), &SqlState::READ_ONLY_SQL_TRANSACTION);
    restored
        .batch_execute(
            "SELECT insta_ids.add_node('b', 'host=10.0.0.2 dbname=insta4'); SELECT insta_ids.assign(4, 4, 'b')",
        )
        .unwrap();
    restored.batch_execute(insert).unwrap();
    assert_eq!(servers.shell("twice 10.0.0.1 10.0.0.2"), (true, "4".to_owned()));

    // Whatever is wrong is found, in its database.
    a.connect_to("insta3").batch_execute("CREATE INDEX ON insta3.photos (caption)").unwrap();
    a.connect_to("insta7").batch_execute("DROP SCHEMA insta7 CASCADE").unwrap();
    a.connect().batch_execute("CREATE DATABASE insta99 TEMPLATE insta6").unwrap();
    a.connect_to("insta99").batch_execute("SELECT insta6.next_id()").unwrap();
    let (succeeded, printed) = servers.shell("check");
    let found: Vec<_> = printed.lines().map(|line| line.rsplit_once('|').unwrap().0).collect();
    assert_eq!(
        (succeeded, &found[..]),
        (
            false,
            &[
                "insta2: error|failed_migration|0003",
                "insta7: error|missing_schema|insta7",
                "insta99: error|other_database|insta6"
            ][..]
        )
    );
    let compare = &blocks(DOCUMENT, "bash check")[0];
    let compared = servers.shell(&compare.replacen("check\n", "", 1)).1;
    let mut unlike: Vec<_> = compared.lines().filter(|line| line.ends_with(": not like most")).collect();
    unlike.sort_unstable();
    assert_eq!(
        unlike,
        ["insta2: not like most", "insta3: not like most", "insta7: not like most"],
        "{compared}"
    );
    let different: Vec<_> = compared.lines().filter(|line| line.starts_with(['<', '>'])).collect();
    assert_eq!(different.len(), 1, "{compared}");
    assert!(different[0].contains("photos_caption_idx"), "{compared}");
    assert!(compared.ends_with("\n4\n6"), "{compared}");
}

/// What writers of shard 5 have committed, each on the server that takes it.
fn written(servers: &Servers, during: impl FnOnce()) -> Vec<Vec<i64>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut nodes = [&servers.a, &servers.b].into_iter().cycle();
                    let mut session: Option<Client> = None;
                    let mut committed = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let Some(client) = &mut session else {
                            // On the one that is not moved to yet there is no such database.
                            session = nodes.next().unwrap().config().dbname("insta5").connect(NoTls).ok();
                            continue;
                        };
                        let insert =
                            "INSERT INTO insta5.photos (user_id) SELECT 4005 FROM generate_series(1, 10) RETURNING id";
                        match client.query(insert, &[]) {
                            Ok(rows) => committed.extend(rows.iter().map(|row| row.get::<_, i64>(0))),
                            Err(error) => {
                                let moved = [&SqlState::READ_ONLY_SQL_TRANSACTION, &SqlState::UNDEFINED_TABLE];
                                assert!(error.code().is_some_and(|code| moved.contains(&code)), "{error:?}");
                                session = None;
                            }
                        }
                        thread::sleep(Duration::from_millis(5));
                    }
                    committed
                })
            })
            .collect();
        during();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    })
}

/// docs/databases.md, when a database moves to another server.
#[test]
fn a_database_moves_to_another_server() {
    let servers = Servers::start("databases_move", -30);
    assert_eq!(servers.shell("make_database 5 && make_database 6"), (true, String::new()));
    let rows = "SELECT id FROM insta5.photos ORDER BY id";
    let preload =
        "INSERT INTO insta5.photos (user_id) SELECT 4005 FROM generate_series(1, 20000) RETURNING id";
    let before =
        ids(&mut servers.a.connect_to("insta5"), &format!("WITH new AS ({preload}) SELECT id FROM new"));
    let by_client = vec![servers.client()];
    assert_eq!(ids(&mut servers.a.connect_to("insta5"), rows).last(), by_client.last());

    let now = "SELECT extract(epoch FROM clock_timestamp())::bigint";
    let [behind, right] = [&servers.b, &servers.a].map(|server| count(&mut server.connect(), now));
    assert!(behind < right - 20);
    let mut committed = written(&servers, || {
        thread::sleep(Duration::from_millis(300));
        println!("{}", servers.follow("bash move"));
        thread::sleep(Duration::from_millis(300));
    });
    // Each writer's ids go on upwards, although the clock is half a minute behind.
    assert!(committed.iter().all(|ids| ids.len() > 100 && disorders(ids) == 0));
    committed.extend([before, by_client]);

    // What is left behind refuses, and names the one that has it.
    let mut left = servers.a.connect_to("insta5");
    let error = refused(&mut left, "SELECT insta_ids.create_shard(5)");
    assert!(error.detail().unwrap().contains(r#"it is on node "b""#), "{error:?}");
    assert!(!servers.shell("make_database 5").0);
    assert_eq!(servers.shell("check; twice 10.0.0.1 10.0.0.2"), (true, String::new()));
    committed.push(vec![servers.client()]);

    assert_eq!(servers.follow("bash leave"), "");
    committed.push(vec![servers.client()]);
    let mut all: Vec<i64> = committed.iter().flatten().copied().collect();
    all.sort_unstable();
    let mut there = servers.b.connect_to("insta5");
    assert_eq!((duplicates(&committed), ids(&mut there, rows)), (0, all));
    assert_eq!(texts(&mut there, "SELECT code FROM insta_ids.check_fleet()"), [""; 0]);
    assert_eq!(servers.shell("check; PGHOST=10.0.0.2 check"), (true, String::new()));
    assert_eq!(
        texts(
            &mut servers.a.connect(),
            "SELECT datname::text FROM pg_database WHERE datname ~ '^insta[0-9]'"
        ),
        ["insta6"]
    );
    assert_eq!(count(&mut servers.a.connect(), "SELECT count(*) FROM pg_replication_slots"), 0);
    servers
        .a
        .connect_to("insta6")
        .batch_execute("INSERT INTO insta6.photos (user_id) VALUES (4006)")
        .unwrap();
}

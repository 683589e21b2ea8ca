//! Promise: a fleet is seen, balanced, drained, migrated and checked from any of its nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::{Client, NoTls};

use support::pair::{MIGRATION, settings, shard_map};
use support::{Cluster, count, duplicates, ids, refused, texts, within};

use crate::moves::FENCED;

/// Nodes `a`, `b` and so on, and the shards 0 to 11, which are all on `a`.
fn fleet(name: &str, nodes: usize) -> Vec<Cluster> {
    let names = ["a", "b", "c", "d"];
    let servers: Vec<_> = names[..nodes]
        .iter()
        .map(|node| {
            let mut settings = settings(node);
            settings.push("wal_retrieve_retry_interval = '100ms'".into());
            Cluster::with(&format!("{name}_{node}"), &settings)
        })
        .collect();
    let mut a = servers[0].connect();
    a.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(64)").unwrap();
    a.batch_execute(MIGRATION).unwrap();
    for (node, server) in names.iter().zip(&servers) {
        let dsn = format!("host={} user=postgres dbname=postgres", server.socket.display());
        a.execute("SELECT insta_ids.add_node($1::text, $2)", &[node, &dsn]).unwrap();
    }
    a.batch_execute("SELECT insta_ids.assign(0, 63, 'a')").unwrap();
    a.batch_execute("CALL insta_ids.create_shards(0, 11)").unwrap();
    let map = shard_map(&mut a);
    for server in &servers[1..] {
        let mut other = server.connect();
        other.batch_execute("CREATE EXTENSION insta_ids").unwrap();
        other.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&map]).unwrap();
    }
    servers
}

/// How many shards each node has, by its own word.
fn shards(servers: &[Cluster]) -> Vec<i64> {
    let active = "SELECT count(*) FROM insta_ids.shards WHERE state = 'active'";
    servers.iter().map(|server| count(&mut server.connect(), active)).collect()
}

/// Rows that clients insert into some shards on whichever node has them, while something happens.
fn written(servers: &[Cluster], during: impl FnOnce()) -> Vec<Vec<i64>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|shard| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut nodes = servers.iter().cycle();
                    let mut client = nodes.next().unwrap().connect();
                    let mut committed = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        match client.query(
                            &format!("INSERT INTO insta{shard}.photos DEFAULT VALUES RETURNING id"),
                            &[],
                        ) {
                            Ok(rows) => committed.extend(rows.iter().map(|row| row.get::<_, i64>(0))),
                            Err(error) => {
                                let elsewhere = [FENCED.code(), "42P01"];
                                assert!(
                                    error.code().is_some_and(|code| elsewhere.contains(&code.code())),
                                    "{error:?}"
                                );
                                client = nodes.next().unwrap().connect();
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

/// Each row is there once, on one node.
fn check_rows(servers: &[Cluster], committed: &[Vec<i64>]) {
    assert_eq!(duplicates(committed), 0);
    for (shard, committed) in committed.iter().enumerate() {
        let mut there = Vec::new();
        for server in servers {
            let mut client = server.connect();
            let is_here =
                format!("SELECT count(*) FROM insta_ids.shards WHERE shard = {shard} AND state = 'active'");
            if count(&mut client, &is_here) == 1 {
                there.push(ids(&mut client, &format!("SELECT id FROM insta{shard}.photos")));
            }
        }
        assert_eq!(there.len(), 1, "nodes that have shard {shard}");
        let mut committed = committed.clone();
        committed.sort_unstable();
        there[0].sort_unstable();
        assert_eq!(there[0], committed, "shard {shard}");
    }
}

/// By one call each, from any node, while clients write.
#[test]
fn a_fleet_is_balanced_and_drained_under_writers() {
    let servers = fleet("balanced", 3);
    let mut b = servers[1].connect();
    let plan = "SELECT concat_ws(' ', step, first, last, from_node, to_node, balance_before, balance_after)
        FROM insta_ids.rebalance_plan('shards')";
    let steps = texts(&mut b, plan);
    assert!(steps[0].starts_with("1 ") && steps[0].contains(" a "), "{steps:?}");
    let ends = texts(
        &mut b,
        "SELECT balance_before || ' ' || last_value(balance_after) OVER () FROM insta_ids.rebalance_plan('shards')",
    );
    assert_eq!(ends[0], "3 1");
    let committed = written(&servers, || {
        b.batch_execute("CALL insta_ids.rebalance('shards', at_once => 2)").unwrap();
        assert_eq!(shards(&servers), [4, 4, 4]);
        // There is nothing left to do.
        b.batch_execute("CALL insta_ids.rebalance('shards')").unwrap();
        assert_eq!(texts(&mut b, plan), [""; 0]);
        for server in &servers {
            let moved = "SELECT insta_ids.drop_shard(shard) FROM insta_ids.shards WHERE state = 'moved'";
            server.connect().batch_execute(moved).unwrap();
        }
        servers[2].connect().batch_execute("CALL insta_ids.drain_node('a')").unwrap();
    });
    let left = shards(&servers);
    assert_eq!((left[0], left[1] + left[2]), (0, 12), "{left:?}");
    check_rows(&servers, &committed);
    let maps: Vec<_> = servers.iter().map(|server| shard_map(&mut server.connect())).collect();
    assert_eq!(maps[0], maps[1]);
    assert_eq!(maps[0], maps[2]);
    // Now the node can go.
    b.batch_execute("SELECT insta_ids.drop_node('a')").unwrap();
}

/// Nodes have weights, shards are pinned, and nodes are left as they are.
#[test]
fn a_plan_does_what_it_is_asked() {
    let servers = fleet("planned", 3);
    let mut a = servers[0].connect();
    let plan = |client: &mut Client, arguments: &str| {
        texts(
            client,
            &format!(
                "SELECT to_node || ' ' || sum(last - first + 1) FROM insta_ids.rebalance_plan({arguments}) GROUP BY to_node ORDER BY 1"
            ),
        )
    };
    assert_eq!(plan(&mut a, "'shards'"), ["b 4", "c 4"]);
    assert_eq!(plan(&mut a, "'bytes'"), ["b 4", "c 4"]);
    assert_eq!(plan(&mut a, "'rows'"), [""; 0]);
    assert_eq!(plan(&mut a, "'shards', exclude => '{c}'"), ["b 6"]);
    assert_eq!(plan(&mut a, "'shards', threshold => 3"), [""; 0]);
    a.batch_execute(
        "SELECT insta_ids.add_node(node, dsn, weight => 2) FROM insta_ids_internal.node WHERE node = 'b'",
    )
    .unwrap();
    assert_eq!(plan(&mut a, "'shards'"), ["b 6", "c 3"]);
    assert_eq!(plan(&mut a, "'shards', drain => '{a}'"), ["b 8", "c 4"]);
    a.batch_execute("SELECT insta_ids.pin_shards(0, 9)").unwrap();
    assert_eq!(plan(&mut a, "'shards'").len(), 2);
    assert_eq!(
        count(
            &mut a,
            "SELECT sum(last - first + 1) FROM insta_ids.rebalance_plan('shards') WHERE first >= 10"
        ),
        2
    );
    for (call, message) in [
        ("insta_ids.rebalance_plan('speed')", "shards cannot be balanced by \"speed\""),
        ("insta_ids.rebalance_plan(threshold => -1)", "threshold cannot be -1"),
        (
            "insta_ids.rebalance_plan(drain => '{a}', exclude => '{a}')",
            "a node cannot be drained and excluded",
        ),
        ("insta_ids.rebalance_plan(drain => '{z}')", "node \"z\" does not exist"),
        ("insta_ids.rebalance_plan(drain => '{a}')", "shard 0 cannot leave node \"a\""),
        ("insta_ids.rebalance_plan('ids', sample => '0')", "sample cannot take 00:00:00"),
        ("insta_ids.rebalance_plan(drain => '{b}', exclude => '{a, c}')", "no node takes the shards"),
        ("insta_ids.pin_shards(20, 30)", "no shard from 20 to 30 is here"),
        ("insta_ids.pin_shards(20, 64)", "shard 64 is out of range"),
        ("insta_ids.add_node('c', 'host=c', weight => -1)", "weight of a node cannot be -1"),
        ("insta_ids.fleet('-1 s')", "sample cannot take -00:00:01"),
    ] {
        assert_eq!(refused(&mut a, &format!("SELECT {call}")).message(), message, "{call}");
    }
    a.batch_execute("SELECT insta_ids.pin_shards(0, 9, false)").unwrap();
    // What is written now counts, not what was written before.
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut client = servers[0].connect();
            for _ in 0..40 {
                client
                    .batch_execute("INSERT INTO insta3.photos SELECT FROM generate_series(1, 100)")
                    .unwrap();
                client.batch_execute("SELECT pg_sleep(0.05)").unwrap();
            }
        });
        let by_rate = "SELECT concat_ws(' ', first, last) FROM insta_ids.rebalance_plan('inserted', sample => '1500 ms')";
        let steps = texts(&mut servers[1].connect(), by_rate);
        writing.join().unwrap();
        // All of the load is one shard's, so nothing gets better.
        assert_eq!(steps, [""; 0]);
    });
    assert_eq!(
        texts(
            &mut a,
            "SELECT concat_ws(' ', shard, rows, ids >= 3999, inserted) FROM insta_ids.shard_load WHERE shard = 3"
        ),
        ["3 4000 t 4000"]
    );
    // Roles that monitor see what is here. They may not connect to other nodes, as superusers do.
    a.batch_execute("CREATE ROLE watcher IN ROLE pg_monitor; CREATE ROLE other; SET ROLE watcher").unwrap();
    assert_eq!(count(&mut a, "SELECT count(*) FROM insta_ids.shard_load"), 12);
    assert_eq!(refused(&mut a, "SELECT insta_ids.fleet()").code().code(), "42501");
    a.batch_execute("RESET ROLE; SET ROLE other").unwrap();
    for query in ["SELECT * FROM insta_ids.shard_load", "SELECT * FROM insta_ids.fleet()"] {
        assert_eq!(refused(&mut a, query).code().code(), "42501", "{query}");
    }
}

/// A shard goes to no node that still has the schema which it left there.
#[test]
fn a_plan_avoids_what_is_left_of_shards() {
    let servers = fleet("remains", 3);
    let (mut a, mut b) = (servers[0].connect(), servers[1].connect());
    b.batch_execute("CALL insta_ids.move_shards(0, 5, 'a')").unwrap();
    let plan =
        "SELECT DISTINCT to_node::text FROM insta_ids.rebalance_plan('shards', drain => '{b}') ORDER BY 1";
    assert_eq!(texts(&mut b, plan), ["c"]);
    let error = refused(&mut b, "CALL insta_ids.drain_node('b', 'shards', exclude => '{c}')");
    assert_eq!(error.message(), "shard 0 cannot leave node \"b\"");
    assert_eq!(error.detail(), Some("Each other node still has the schema that the shard left there."));
    assert_eq!(error.hint(), Some("On another node: SELECT insta_ids.drop_shard(0)."));
    a.batch_execute("SELECT insta_ids.drop_shard(s) FROM generate_series(0, 5) s").unwrap();
    b.batch_execute("CALL insta_ids.drain_node('b', 'shards', exclude => '{c}')").unwrap();
    assert_eq!(shards(&servers), [12, 0, 0]);
}

/// A drained node gives away its ranges itself, as only it knows which shards it has; and only to nodes that can take them.
#[test]
fn a_drained_node_gives_away_what_it_does_not_have() {
    let servers = fleet("given", 3);
    let (mut a, mut b) = (servers[0].connect(), servers[1].connect());
    b.batch_execute("CALL insta_ids.drain_node('a', exclude => '{c}')").unwrap();
    let holders = "SELECT DISTINCT node::text FROM insta_ids.map ORDER BY 1";
    for server in &servers {
        assert_eq!(texts(&mut server.connect(), holders), ["b"]);
    }
    // As shards that were made after the plan.
    let error = refused(&mut a, "SELECT insta_ids_internal.give_away_ranges('b', '{}')");
    assert_eq!(error.message(), "shard 0 is here, and open to writers");
    // Shards that are gone for good had been on `a` before, which takes them back only by a move.
    a.batch_execute("SELECT insta_ids.drop_shard(s) FROM generate_series(0, 11) s").unwrap();
    b.batch_execute("SELECT insta_ids.drop_shard(s, force => true) FROM generate_series(0, 11) s").unwrap();
    let error = refused(&mut a, "CALL insta_ids.drain_node('b', exclude => '{c}')");
    assert_eq!(error.message(), "no node takes the range of shards from 0 to 11");
    a.batch_execute("CALL insta_ids.drain_node('b')").unwrap();
    for server in &servers {
        assert_eq!(texts(&mut server.connect(), holders), ["a", "c"]);
    }
}

/// A connection string that leads elsewhere is told, names may be as long as PostgreSQL has them, and options are refused.
#[test]
fn connections_are_to_the_nodes_that_they_are_taken_for() {
    let servers = fleet("connected", 2);
    let mut a = servers[0].connect();
    let there = "SELECT concat_ws('; ', node, is_reachable, reason) FROM insta_ids.fleet('10 ms')";
    let dsn = |server: &Cluster| format!("host={} user=postgres dbname=postgres", server.socket.display());
    a.execute("SELECT insta_ids.add_node('b', $1)", &[&dsn(&servers[0])]).unwrap();
    let other = "b; f; connection string of node \"b\" leads to another server: That server is node \"a\".";
    assert_eq!(texts(&mut a, there), ["a; t", other]);
    let error = refused(&mut a, "CALL insta_ids.rebalance('shards')");
    assert_eq!(error.message(), "node \"b\" does not answer");
    a.execute("SELECT insta_ids.add_node('b', $1)", &[&dsn(&servers[1])]).unwrap();
    let long = ["x".repeat(62) + "1", "x".repeat(62) + "2"];
    for name in &long {
        a.execute("SELECT insta_ids.add_node($1::text, $2)", &[name, &dsn(&servers[1])]).unwrap();
    }
    let reasons = texts(&mut a, there);
    assert!(reasons[2..].iter().all(|reason| reason.contains("leads to another server")), "{reasons:?}");
    for options in ["options='-c work_mem=1MB'", "Options = -cwork_mem=1MB"] {
        let error = refused(&mut a, &format!("SELECT insta_ids.add_node('c', $$host=c {options}$$)"));
        assert_eq!(error.message(), "connection string has options");
    }
    let error =
        refused(&mut a, "SELECT insta_ids.add_node('c', 'postgresql://c/app?options=-cwork_mem%3D1MB')");
    assert_eq!(error.message(), "connection string has options");
}

/// No function of a schema that others own is called, also where a call fails.
#[test]
fn calls_that_fail_call_nothing_of_others() {
    let servers = fleet("failing", 2);
    let mut a = servers[0].connect();
    a.batch_execute(
        "CREATE FUNCTION public.format(text, integer, integer) RETURNS text LANGUAGE plpgsql
             AS $$BEGIN CREATE TABLE public.was_here (); RETURN ''; END$$;
         CREATE FUNCTION public.format(text, bigint, bigint) RETURNS text LANGUAGE plpgsql
             AS $$BEGIN CREATE TABLE public.was_here (); RETURN ''; END$$",
    )
    .unwrap();
    servers[1].stop();
    assert_eq!(refused(&mut a, "CALL insta_ids.migrate_fleet()").message(), "1 of 2 nodes are not migrated");
    servers[1].up();
    let error = refused(&mut a, "CALL insta_ids.rebalance('shards', max_pause => '-1 s')");
    assert!(error.message().ends_with(" moves were not made"), "{error:?}");
    assert_eq!(count(&mut a, "SELECT count(*) FROM pg_class WHERE relname = 'was_here'"), 0);
}

/// A node that is away is told by name, and stops what it takes part in.
#[test]
fn a_node_that_is_away_stops_its_own_moves_only() {
    let servers = fleet("away", 3);
    let mut a = servers[0].connect();
    a.batch_execute("INSERT INTO insta0.photos SELECT FROM generate_series(1, 100)").unwrap();
    // A standby of `a` that is not connected keeps the source from releasing the shards.
    a.batch_execute("SELECT pg_create_physical_replication_slot('kept', true)").unwrap();
    thread::scope(|scope| {
        let balancing = scope.spawn(|| {
            let mut b = servers[1].connect();
            refused(&mut b, "CALL insta_ids.rebalance('shards')")
        });
        within(Duration::from_secs(30), || {
            let moving = "SELECT count(*) FROM insta_ids.moves WHERE to_node = 'b'";
            count(&mut servers[0].connect(), moving) > 0
        });
        servers[2].stop();
        a.batch_execute("SELECT pg_drop_replication_slot('kept')").unwrap();
        let error = balancing.join().unwrap();
        assert!(error.message().ends_with(" moves were not made"), "{error:?}");
        assert!(error.detail().unwrap().starts_with("Node \"c\": "), "{error:?}");
    });
    assert_eq!(shards(&servers[..2]), [8, 4]);
    let mut b = servers[1].connect();
    let fleet =
        "SELECT concat_ws(' ', node, is_reachable, shards, pending, moves, reason LIKE '%' || node || '%')
        FROM insta_ids.fleet('10 ms')";
    assert_eq!(texts(&mut b, fleet), ["a t 8 0 0", "b t 4 0 0", "c f t"]);
    let error = refused(&mut b, "SELECT insta_ids.rebalance_plan('shards')");
    assert_eq!(error.message(), "node \"c\" does not answer");
    assert_eq!(error.hint(), Some("Mend that, or leave the node as it is: exclude => ARRAY['c']."));
    b.batch_execute("CALL insta_ids.rebalance('shards', exclude => ARRAY['c'])").unwrap();
    assert_eq!(shards(&servers[..2]), [6, 6]);
    servers[2].up();
    b.batch_execute("CALL insta_ids.rebalance('shards')").unwrap();
    assert_eq!(shards(&servers), [4, 4, 4]);
}

/// A call that was ended leaves its move to the target, and the next call goes on.
#[test]
fn a_call_that_ends_is_called_again() {
    let servers = fleet("resumed", 2);
    let mut a = servers[0].connect();
    a.batch_execute("SELECT pg_create_physical_replication_slot('kept', true)").unwrap();
    let b = servers[1].connect();
    let cancel = b.cancel_token();
    thread::scope(|scope| {
        let balancing = scope.spawn(move || {
            let mut b = b;
            refused(&mut b, "CALL insta_ids.rebalance('shards')")
        });
        within(Duration::from_secs(30), || count(&mut a, "SELECT count(*) FROM insta_ids.moves") > 0);
        thread::sleep(Duration::from_millis(300));
        cancel.cancel_query(NoTls).unwrap();
        assert_eq!(balancing.join().unwrap().code().code(), "57014");
    });
    a.batch_execute("SELECT pg_drop_replication_slot('kept')").unwrap();
    a.batch_execute("CALL insta_ids.rebalance('shards')").unwrap();
    assert_eq!(shards(&servers), [6, 6]);
    for server in &servers {
        assert_eq!(count(&mut server.connect(), "SELECT count(*) FROM insta_ids.moves"), 0);
    }
}

/// All nodes get the migrations of one, or none does.
#[test]
fn migrations_go_to_all_nodes() {
    let servers = fleet("migrated", 2);
    let (mut a, mut b) = (servers[0].connect(), servers[1].connect());
    b.batch_execute("CALL insta_ids.move_shards(0, 3, 'a')").unwrap();
    a.batch_execute("SELECT insta_ids.add_migration('0002', 'ALTER TABLE likes ADD at timestamptz')")
        .unwrap();
    a.batch_execute("CALL insta_ids.migrate_fleet()").unwrap();
    let columns = "SELECT count(*) FROM pg_attribute WHERE attrelid::regclass::text LIKE 'insta%.likes' AND attname = 'at'";
    // What is left of the shards that have moved stays as it was.
    assert_eq!((count(&mut a, columns), count(&mut b, columns)), (8, 4));
    // One that fails on a node: its table has other columns there.
    b.batch_execute("ALTER TABLE insta2.likes ADD weight int").unwrap();
    a.batch_execute("SELECT insta_ids.add_migration('0003', 'ALTER TABLE likes ADD weight int')").unwrap();
    let error = refused(&mut a, "CALL insta_ids.migrate_fleet()");
    assert_eq!(error.message(), "1 of 2 nodes are not migrated");
    assert!(error.detail().unwrap().starts_with("Node \"b\": "), "{error:?}");
    b.batch_execute("ALTER TABLE insta2.likes DROP weight").unwrap();
    a.batch_execute("CALL insta_ids.migrate_fleet()").unwrap();
    assert_eq!(texts(&mut a, "SELECT pending::text FROM insta_ids.fleet('10 ms')"), ["0", "0"]);
    assert_eq!(texts(&mut b, "SELECT concat_ws(' ', node, code) FROM insta_ids.check_fleet()"), [""; 0]);
    // Those that disagree are told, and nothing is done.
    b.batch_execute("SELECT insta_ids.add_migration('0004', 'SELECT 1')").unwrap();
    a.batch_execute("SELECT insta_ids.add_migration('0004', 'SELECT 2')").unwrap();
    let error = refused(&mut a, "CALL insta_ids.migrate_fleet()");
    assert_eq!(error.message(), "migrations of node \"b\" are not those of this node");
    assert_eq!(error.detail(), Some("The first that differs is \"0004\"."));
    // What is wrong on one node is found from another.
    b.batch_execute("DROP TABLE insta1.likes").unwrap();
    let found =
        "SELECT DISTINCT concat_ws(' ', node, code) FROM insta_ids.check_fleet() WHERE object LIKE 'insta1%'";
    assert_eq!(texts(&mut a, found), ["b missing_object"]);
}

/// Nodes with other migrations are found, whichever node asks, and shards that no node has open.
#[test]
fn other_migrations_and_closed_shards_are_found() {
    let servers = fleet("disagreeing", 2);
    let [mut a, mut b] = [0, 1].map(|place: usize| servers[place].connect());
    let found = |client: &mut Client| {
        texts(
            client,
            "SELECT concat_ws('|', severity, code, node, detail, hint) FROM insta_ids.check_fleet()
             WHERE code IN ('open_nowhere', 'other_migrations') ORDER BY code, object",
        )
    };
    let lacks = "warning|other_migrations|b|0 of its migrations are missing on node \"a\" or differ there, \
                 and it lacks 1 of that node, for example \"0001\".|On node a: CALL insta_ids.migrate_fleet()";
    // Settings of a node are not compared.
    for setting in ["TimeZone = 'Asia/Kathmandu'", "bytea_output = 'escape'"] {
        b.batch_execute(&format!("ALTER DATABASE postgres SET {setting}")).unwrap();
    }
    for client in [&mut a, &mut b] {
        assert_eq!(found(client), [lacks]);
    }
    // Long names are not cut.
    a.batch_execute("SELECT insta_ids.add_migration('0001' || repeat('x', 70) || n, 'CREATE TABLE t' || n || ' ()') FROM generate_series(1, 2) n")
        .unwrap();
    a.batch_execute("CALL insta_ids.migrate_fleet()").unwrap();
    assert_eq!(found(&mut a), [""; 0]);
    b.batch_execute("SELECT insta_ids.add_migration('0002', 'CREATE TABLE of_b ()')").unwrap();
    let more = "warning|other_migrations|b|1 of its migrations are missing on node \"a\" or differ there, \
                and it lacks 0 of that node, for example \"0002\".|On node b: CALL insta_ids.migrate_fleet()";
    assert_eq!(found(&mut a), [more]);
    a.batch_execute(
        "SELECT insta_ids.add_migration('0002', 'CREATE TABLE of_a ()', ids_since => '2026-01-01')",
    )
    .unwrap();
    let other = "error|other_migrations|b|1 of its migrations are missing on node \"a\" or differ there, \
                 and it lacks 0 of that node, for example \"0002\".|Compare insta_ids.migration_status of both nodes.";
    assert_eq!(found(&mut b), [other]);

    a.batch_execute("SELECT insta_ids.fence(5)").unwrap();
    let closed = "warning|open_nowhere|a|No node accepts writes to it. It is fenced on a.\
                  |See insta_ids.moves there. Without a move: SELECT insta_ids.unfence(5)";
    assert_eq!(found(&mut b), [closed, other]);
    servers[1].stop();
    assert_eq!(found(&mut a), [""; 0]);
}

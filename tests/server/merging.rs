//! Promise: maps that were changed on different servers become one map, whatever the order in which the servers hear of them.

use postgres::Client;

use support::pair::{Move, Pair, before, settings, shard_map};
use support::{Chance, Cluster, count, refused, texts};

const SHARDS: u64 = 12;

/// Two maps as one.
fn merged(client: &mut Client, ranges: &str, others: &str) -> String {
    let merge = "SELECT insta_ids_internal.merge_assignments($1::text::jsonb, $2::text::jsonb)::text";
    client.query_one(merge, &[&ranges, &others]).unwrap().get(0)
}

/// Random assignments, in which a shard is on one node only in each version.
fn ranges(chance: &mut Chance) -> (String, Vec<Option<(u64, u64)>>) {
    let mut newest = vec![None; usize::try_from(SHARDS).unwrap()];
    let mut ranges = Vec::new();
    let mut first = chance.below(3);
    while first < SHARDS {
        let last = (first + chance.below(4)).min(SHARDS - 1);
        let version = chance.below(9);
        // Each version gives a shard to one node, on all servers.
        let node = version * 7 % 5;
        ranges.push(format!("[{first}, {last}, \"n{node}\", {version}]"));
        for shard in first..=last {
            newest[usize::try_from(shard).unwrap()] = Some((version, node));
        }
        first = last + 1 + chance.below(3);
    }
    (format!("[{}]", ranges.join(", ")), newest)
}

/// Each shard is where it was assigned last, in whatever order maps are merged, and however often.
#[test]
fn the_newest_assignment_of_each_shard_counts() {
    let cluster = Cluster::start("merging");
    let mut client = cluster.connect();
    let mut chance = Chance::from_seed(11);
    for _ in 0..200 {
        let [(a, a_has), (b, b_has), (c, _)] = [(); 3].map(|()| ranges(&mut chance));
        let ab = merged(&mut client, &a, &b);
        let expected = a_has.iter().zip(&b_has).map(|(a, b)| a.max(b)).collect::<Vec<_>>();
        for (shard, newest) in expected.iter().enumerate() {
            let found = "SELECT r.version || ' ' || r.node
                FROM insta_ids_internal.read_assignments($1::text::jsonb) r WHERE $2 BETWEEN r.first AND r.last";
            let found = client.query_opt(found, &[&ab, &i32::try_from(shard).unwrap()]).unwrap();
            let newest = newest.map(|(version, node)| format!("{version} n{node}"));
            assert_eq!(found.map(|row| row.get::<_, String>(0)), newest, "{shard} of {a} and {b}");
        }
        assert_eq!(merged(&mut client, &b, &a), ab, "{a} and {b}");
        assert_eq!(merged(&mut client, &ab, &a), ab, "{a} and {b}");
        let bc = merged(&mut client, &b, &c);
        assert_eq!(merged(&mut client, &ab, &c), merged(&mut client, &a, &bc), "{a}, {b} and {c}");
    }
}

/// The servers `a`, `b` and `c`, which have the same map of these nodes, and a session on each.
fn three_servers(name: &str, nodes: &str) -> ([Cluster; 3], [Client; 3]) {
    let servers = ["a", "b", "c"].map(|node| Cluster::with(&format!("{name}_{node}"), &settings(node)));
    let mut clients = servers.each_ref().map(Cluster::connect);
    for client in &mut clients {
        client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    }
    clients[0]
        .batch_execute(&format!(
            "SELECT insta_ids.init(64);
             SELECT insta_ids.add_node(n, 'host=' || n) FROM unnest('{{{nodes}}}'::name[]) n;
             SELECT insta_ids.assign(0, 63, 'a')"
        ))
        .unwrap();
    for to in [1, 2] {
        tell(&mut clients, 0, to);
    }
    (servers, clients)
}

/// One server applies the map of another.
fn tell(clients: &mut [Client; 3], from: usize, to: usize) {
    let map = shard_map(&mut clients[from]);
    clients[to].execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&map]).unwrap();
}

/// Two servers change their maps at the same time, and a third one hears of that in another order.
#[test]
fn maps_that_were_changed_at_once_become_the_same() {
    let (_servers, mut clients) = three_servers("merged", "a, b, c");
    let version = "SELECT version FROM insta_ids_internal.map";
    let before = count(&mut clients[0], version);
    clients[0].batch_execute("SELECT insta_ids.assign(5, 7, 'b')").unwrap();
    clients[1]
        .batch_execute("SELECT insta_ids.assign(40, 40, 'c'), insta_ids.add_node('d', 'host=d')")
        .unwrap();
    clients[2].batch_execute("SELECT insta_ids.assign(7, 9, 'b')").unwrap();
    // An old map brings nothing.
    tell(&mut clients, 0, 1);
    let after = count(&mut clients[1], version);
    tell(&mut clients, 0, 1);
    assert_eq!((after > before + 1, count(&mut clients[1], version)), (true, after));
    for (from, to) in [(2, 0), (1, 2), (2, 0), (0, 1)] {
        tell(&mut clients, from, to);
    }
    let maps = clients.each_mut().map(shard_map);
    assert_eq!(maps[0], maps[1]);
    assert_eq!(maps[0], maps[2]);
    let nodes = "SELECT string_agg(node || ranges, ', ' ORDER BY node)
        FROM (SELECT node, range_agg(int4range(first, last, '[]')) AS ranges FROM insta_ids.map GROUP BY node) n";
    assert_eq!(texts(&mut clients[2], nodes), ["a{[0,5),[10,40),[41,64)}, b{[5,10)}, c{[40,41)}"]);
    assert_eq!(count(&mut clients[0], "SELECT count(*) FROM insta_ids_internal.node"), 4);

    // What contradicts is not merged, and says who can decide.
    clients[0].batch_execute("SELECT insta_ids.assign(20, 20, 'b')").unwrap();
    clients[1].batch_execute("SELECT insta_ids.assign(19, 21, 'c')").unwrap();
    let map = shard_map(&mut clients[0]);
    let apply = format!("SELECT insta_ids.apply_map('{map}')");
    let error = refused(&mut clients[1], &apply);
    assert_eq!(error.message(), "maps contradict each other about shard 20");
    let here = "SELECT insta_ids.assign(20, 20, 'b')";
    let hint =
        format!("If it is on node \"b\", here: {here}. If not, there: SELECT insta_ids.assign(20, 20, 'c').");
    assert_eq!(error.hint(), Some(&*hint));
    clients[1].batch_execute(here).unwrap();
    tell(&mut clients, 0, 1);
    assert_eq!(
        texts(&mut clients[1], nodes),
        ["a{[0,5),[10,19),[22,40),[41,64)}, b{[5,10),[20,21)}, c{[19,20),[21,22),[40,41)}"]
    );
}

/// A third server hears of a move when the move ends, or at the next move.
#[test]
fn other_nodes_hear_of_a_move() {
    let pair = Pair::start("hearing");
    let c = Cluster::with("hearing_c", &settings("c"));
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let dsn = format!("host={} user=postgres dbname=postgres", c.socket.display());
    a.execute("SELECT insta_ids.add_node('c', $1)", &[&dsn]).unwrap();
    b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    c.connect().batch_execute("CREATE EXTENSION insta_ids").unwrap();
    b.batch_execute("CALL insta_ids.move_shards(1, 1, 'a')").unwrap();
    let map = shard_map(&mut a);
    assert_eq!([shard_map(&mut b), shard_map(&mut c.connect())], [map.clone(), map.clone()]);
    // One that is away does not keep the move from its end.
    c.stop();
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    assert_eq!(shard_map(&mut b), shard_map(&mut a));
    c.up();
    assert_eq!(shard_map(&mut c.connect()), map);
    b.batch_execute("CALL insta_ids.move_shards(3, 3, 'a')").unwrap();
    assert_eq!(shard_map(&mut c.connect()), shard_map(&mut a));
}

/// A shard moves on, while the server that it left first has a map of a much higher version.
#[test]
fn the_last_move_of_a_shard_counts() {
    let pair = Pair::start("onward");
    let c = Cluster::with("onward_c", &settings("c"));
    let mut a = pair.a.connect();
    let dsn = format!("host={} user=postgres dbname=postgres", c.socket.display());
    a.execute("SELECT insta_ids.add_node('c', $1)", &[&dsn]).unwrap();
    let mut third = c.connect();
    third.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    third.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("finish"));
    for _ in 0..5 {
        a.batch_execute("SELECT insta_ids.assign(40, 40, 'b'), insta_ids.assign(40, 40, 'a')").unwrap();
    }
    moving.steps(&["finish"]);
    third.batch_execute("CALL insta_ids.move_shards(2, 2, 'b')").unwrap();
    third.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    for client in [&mut a, &mut third, &mut pair.b.connect()] {
        assert_eq!(
            texts(client, "SELECT node::text FROM insta_ids.map WHERE 2 BETWEEN first AND last"),
            ["c"]
        );
    }
}

/// Equal maps are stored alike, however the shards came to their node.
#[test]
fn neighbours_become_one_range_where_they_move_together() {
    let pair = Pair::start("merged_ranges");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    // The two shards were assigned in different versions.
    for statement in [
        "SELECT insta_ids.fence(1)",
        "SELECT insta_ids.assign(1, 1, 'b')",
        "SELECT insta_ids.assign(1, 1, 'a')",
        "SELECT insta_ids.unfence(1)",
    ] {
        a.batch_execute(statement).unwrap();
    }
    b.execute("SELECT insta_ids.apply_map($1::text::jsonb)", &[&shard_map(&mut a)]).unwrap();
    b.batch_execute("CALL insta_ids.move_shards(0, 1, 'a')").unwrap();
    let ranges = "SELECT concat_ws(' ', first, last, node) FROM insta_ids_internal.assignment ORDER BY first";
    for client in [&mut a, &mut b] {
        assert_eq!(texts(client, ranges), ["0 1 b", "2 63 a"]);
    }
    assert_eq!(texts(&mut a, "SELECT code FROM insta_ids.check_fleet() WHERE code LIKE '%map'"), [""; 0]);
}

/// Each node is as it was changed last, whoever changed another one meanwhile.
#[test]
fn the_newest_address_of_each_node_counts() {
    let (_servers, mut clients) = three_servers("addressed", "a, b, c, d");
    // Two nodes fail over at the same time, a third server changes other things more often, and drops a node.
    clients[0].batch_execute("SELECT insta_ids.add_node('a', 'host=a2')").unwrap();
    clients[1].batch_execute("SELECT insta_ids.add_node('b', 'host=b2')").unwrap();
    for weight in 2..9 {
        clients[2]
            .batch_execute(&format!("SELECT insta_ids.add_node('c', 'host=c', weight => {weight})"))
            .unwrap();
    }
    clients[2].batch_execute("SELECT insta_ids.drop_node('d')").unwrap();
    for (from, to) in [(1, 2), (0, 1), (1, 0), (0, 2), (2, 1), (1, 0)] {
        tell(&mut clients, from, to);
    }
    let maps = clients.each_mut().map(shard_map);
    assert_eq!(maps[0], maps[1]);
    assert_eq!(maps[0], maps[2]);
    let nodes = "SELECT concat_ws(' ', node, dsn, weight) FROM insta_ids_internal.node ORDER BY node";
    assert_eq!(texts(&mut clients[0], nodes), ["a host=a2 1", "b host=b2 1", "c host=c 8"]);

    // A node that was dropped can come back, and a map that has not heard of that takes nothing away.
    clients[1].batch_execute("SELECT insta_ids.add_node('d', 'host=d2')").unwrap();
    for (from, to) in [(0, 1), (1, 0), (1, 2)] {
        tell(&mut clients, from, to);
    }
    for client in &mut clients {
        assert_eq!(texts(client, nodes)[3], "d host=d2 1");
    }

    // What contradicts is not merged, and says who can decide.
    clients[0].batch_execute("SELECT insta_ids.add_node('d', 'host=d3')").unwrap();
    clients[1].batch_execute("SELECT insta_ids.drop_node('d')").unwrap();
    let map = shard_map(&mut clients[0]);
    let error = refused(&mut clients[1], &format!("SELECT insta_ids.apply_map('{map}')"));
    assert_eq!(error.message(), "maps contradict each other about node \"d\"");
    let here = "SELECT insta_ids.add_node('d', 'host=d3', 3, 1)";
    let hint = format!("If it is as here, there: SELECT insta_ids.drop_node('d'). If not, here: {here}.");
    assert_eq!(error.hint(), Some(&*hint));
    clients[1].batch_execute(here).unwrap();
    tell(&mut clients, 0, 1);
    tell(&mut clients, 1, 0);
    assert_eq!(texts(&mut clients[0], nodes)[3], "d host=d3 1");

    clients[0].batch_execute("SELECT insta_ids.add_node('e', 'host=e')").unwrap();
    clients[1].batch_execute("SELECT insta_ids.add_node('f', 'host=f')").unwrap();
    let map = shard_map(&mut clients[0]);
    let error = refused(&mut clients[1], &format!("SELECT insta_ids.apply_map('{map}')"));
    assert_eq!(error.message(), "nodes \"e\" and \"f\" have the same number 4");
    clients[1].batch_execute("SELECT insta_ids.add_node('f', 'host=f', 5)").unwrap();
    tell(&mut clients, 0, 1);
}

/// Nodes as one map, whatever the order in which maps are merged.
#[test]
fn nodes_are_merged_in_any_order() {
    let cluster = Cluster::start("merging_nodes");
    let mut client = cluster.connect();
    let mut chance = Chance::from_seed(12);
    let mut merge = |one: &str, other: &str| -> String {
        let merge = "SELECT insta_ids_internal.merge_nodes($1::text::jsonb, $2::text::jsonb)::text";
        client.query_one(merge, &[&one, &other]).unwrap().get(0)
    };
    let nodes = |chance: &mut Chance| {
        let (mut nodes, mut dropped) = (Vec::new(), Vec::new());
        for node in 0..6 {
            // Each version changes a node in one way, on all servers.
            let version = chance.below(9);
            match (version + node) % 3 {
                0 => dropped.push(format!(r#"{{"node": "n{node}", "version": {version}}}"#)),
                1 => nodes.push(format!(
                    r#"{{"node": "n{node}", "version": {version}, "dsn": "host=h{version}", "ord": {node}, "weight": 1}}"#
                )),
                _ => (),
            }
        }
        format!(r#"{{"nodes": [{}], "dropped_nodes": [{}]}}"#, nodes.join(", "), dropped.join(", "))
    };
    for _ in 0..200 {
        let [a, b, c] = [(); 3].map(|()| nodes(&mut chance));
        let ab = merge(&a, &b);
        assert_eq!(merge(&b, &a), ab, "{a} and {b}");
        assert_eq!(merge(&ab, &a), ab, "{a} and {b}");
        let bc = merge(&b, &c);
        assert_eq!(merge(&ab, &c), merge(&a, &bc), "{a}, {b} and {c}");
    }
}

/// A map that has dropped a node is refused where shards are on the node, or move from or to it.
#[test]
fn a_map_drops_no_node_that_is_used() {
    let pair = Pair::start("used_node");
    let c = Cluster::with("used_node_c", &settings("c"));
    let (mut a, mut b, mut third) = (pair.a.connect(), pair.b.connect(), c.connect());
    third.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    let apply = |map: String| format!("SELECT insta_ids.apply_map('{map}')");
    third.batch_execute(&apply(shard_map(&mut a))).unwrap();
    third.batch_execute("SELECT insta_ids.drop_node('b')").unwrap();

    let mut moving = Move::of(&pair, 2, 2);
    moving.steps(before("copied"));
    let dropping = apply(shard_map(&mut third));
    let missing = "node \"b\" does not exist";
    for client in [&mut a, &mut b] {
        assert_eq!(refused(client, &dropping).message(), missing);
    }
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    assert_eq!(refused(&mut a, &dropping).message(), missing);
    let used = apply(shard_map(&mut a));
    assert_eq!(refused(&mut third, &used).message(), missing);
    let dsn = texts(&mut a, "SELECT dsn FROM insta_ids_internal.node WHERE node = 'b'").remove(0);
    third.execute("SELECT insta_ids.add_node('b', $1)", &[&dsn]).unwrap();
    third.batch_execute(&used).unwrap();
    a.batch_execute(&apply(shard_map(&mut third))).unwrap();
    b.batch_execute(&apply(shard_map(&mut third))).unwrap();
    assert_eq!(shard_map(&mut a), shard_map(&mut b));
}

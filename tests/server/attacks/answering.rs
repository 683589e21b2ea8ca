//! A node that answers anything, or nothing, is named. It does no harm to the others.

use std::net::TcpListener;
use std::time::Instant;

use support::pair::{Pair, shard_map};
use support::{count, refused, texts};

/// What is wrong in an answer of node b, as the function that makes it returns it.
const NONSENSE: [&str; 8] = [
    "'{\"shards\": 99999999999999999999}'",
    "'{\"load\": [{\"shard\": 1, \"rows\": 9223372036854775807, \"bytes\": 1}]}'",
    "'{\"load\": [{\"shard\": -1}]}'",
    "'{\"load\": {\"shard\": [1]}}'",
    "'{\"remains\": [\"x\"], \"total\": {}, \"load\": []}'",
    "'[1, 2]'",
    "'7'",
    "NULL",
];

#[test]
fn one_bad_node_does_not_hide_the_others() {
    let pair = Pair::start("bad_node");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let report = |answer: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION insta_ids_internal.node_report(with_shards boolean) RETURNS jsonb LANGUAGE sql AS $$SELECT {answer}::jsonb$$"
        )
    };
    for nonsense in NONSENSE {
        b.batch_execute(&report(nonsense)).unwrap();
        let fleet = "SELECT concat_ws(' ', node, is_reachable, shards, reason IS NOT NULL) FROM insta_ids.fleet('10 ms')";
        assert_eq!(texts(&mut a, fleet), ["a t 4 f", "b f t"], "{nonsense}");
        let error = refused(&mut a, "SELECT insta_ids.rebalance_plan()");
        assert_eq!(error.message(), "node \"b\" does not answer", "{nonsense}");
        a.batch_execute("SELECT insta_ids.rebalance_plan(exclude => '{b}')").unwrap();
    }
    // Errors that no handler would catch if they were of this server.
    for code in ["57014", "P0004", "57P01"] {
        b.batch_execute(&format!(
            "CREATE OR REPLACE FUNCTION insta_ids_internal.node_report(with_shards boolean) RETURNS jsonb LANGUAGE plpgsql AS
                $$BEGIN RAISE 'no' USING ERRCODE = '{code}'; END$$"
        ))
        .unwrap();
        let fleet = "SELECT concat_ws(' ', node, is_reachable, shards, reason) FROM insta_ids.fleet('10 ms')";
        assert_eq!(texts(&mut a, fleet), ["a t 4", "b f no"], "{code}");
    }
    // It answers too late, but the others are not waited for as long as it.
    b.batch_execute(&report("to_jsonb(pg_sleep(60)::text)")).unwrap();
    a.batch_execute("SET insta_ids.node_timeout = '1s'").unwrap();
    let begun = Instant::now();
    let reasons = texts(&mut a, "SELECT coalesce(reason, 'well') FROM insta_ids.fleet('10 ms')");
    assert_eq!(reasons, ["well", "node \"b\" did not answer in time"]);
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());

    // What it says of itself is shown, and what to do is not its to say.
    b.batch_execute(
        "CREATE OR REPLACE FUNCTION insta_ids.check() RETURNS SETOF insta_ids.finding LANGUAGE sql AS
            $$SELECT ('warning', 'x', 'y', 'z', 'DROP TABLE precious')::insta_ids.finding$$",
    )
    .unwrap();
    let found = "SELECT concat_ws(' ', node, code, hint) FROM insta_ids.check_fleet() WHERE code = 'x'";
    assert_eq!(texts(&mut a, found), ["b x On node b, call insta_ids.check()."]);
    b.batch_execute(
        "CREATE OR REPLACE FUNCTION insta_ids.check() RETURNS SETOF insta_ids.finding LANGUAGE sql AS $$SELECT NULL::insta_ids.finding FROM pg_sleep(60)$$",
    )
    .unwrap();
    let found =
        "SELECT concat_ws(' ', node, code, detail) FROM insta_ids.check_fleet() WHERE severity = 'error'";
    assert_eq!(texts(&mut a, found), ["b other_answer node \"b\" did not answer in time"]);
}

/// A server accepts the connection, and never says a word.
#[test]
fn a_silent_server_is_waited_for_as_long_as_its_connection_string_says() {
    let pair = Pair::start("silent");
    let mut a = pair.a.connect();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    for (dsn, least, most) in [
        (format!("host=127.0.0.1 port={port} connect_timeout=2"), 2, 6),
        (format!("postgresql://127.0.0.1:{port}/x?connect_timeout=2"), 2, 6),
        // Naming one timeout leaves the others as they are.
        (format!("host=127.0.0.1 port={port} keepalives=0"), 10, 16),
    ] {
        a.execute("SELECT insta_ids.add_node('b', $1)", &[&dsn]).unwrap();
        let begun = Instant::now();
        let error = refused(&mut a, "CALL insta_ids.move_shards(4, 4, 'b')");
        assert_eq!(error.message(), "node \"b\" did not answer in time", "{dsn}");
        let took = begun.elapsed().as_secs();
        assert!((least..most).contains(&took), "{dsn}: {took} s");
    }
}

/// A move that has handed over tells the others, and does not wait for one of them forever.
#[test]
fn a_node_that_never_takes_the_map_does_not_keep_a_move_open() {
    let pair = Pair::start("never_taken");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    a.batch_execute(
        "CREATE OR REPLACE FUNCTION insta_ids.apply_map(map jsonb) RETURNS void LANGUAGE sql AS $$SELECT pg_sleep(300)$$",
    )
    .unwrap();
    b.batch_execute("ALTER SYSTEM SET insta_ids.node_timeout = '1s'").unwrap();
    b.batch_execute("SELECT pg_reload_conf(); SET statement_timeout = '60s'").unwrap();
    b.batch_execute("CALL insta_ids.move_shards(2, 2, 'a')").unwrap();
    assert_eq!(count(&mut b, "SELECT count(*) FROM insta_ids.moves"), 0);
}

/// No map makes that of this server one that cannot change any more.
#[test]
fn versions_of_maps_are_bounded() {
    let pair = Pair::start("bounded");
    let (mut a, mut b) = (pair.a.connect(), pair.b.connect());
    let map = shard_map(&mut a);
    let version = "SELECT version FROM insta_ids_internal.map";
    let before = count(&mut b, version);
    for path in ["{version}", "{nodes,0,version}", "{ranges,0,3}"] {
        for number in ["9223372036854775807", "9223372036854775806", "-1", "1e18"] {
            let applied = format!("SELECT insta_ids.apply_map(jsonb_set('{map}', '{path}', '{number}'))");
            let error = refused(&mut b, &applied);
            assert_eq!(error.code().code(), "22003", "{path} {number}: {error:?}");
            assert!(error.message().ends_with(" of the map is out of range"), "{error:?}");
        }
    }
    assert_eq!(count(&mut b, version), before);
    // Versions of many years are no obstacle.
    b.batch_execute(&format!("SELECT insta_ids.apply_map(jsonb_set('{map}', '{{version}}', '900000000'))"))
        .unwrap();
    b.batch_execute("SELECT insta_ids.assign(60, 63, 'b')").unwrap();
}

//! What others plant is never run with the rights of whoever administers: not by any function of the extension, whose
//! list is read from the catalog.

mod acting;
mod answering;
mod entries;
mod forging;
mod overloading;
mod owning;
pub(crate) mod planting;
mod queueing;
mod reaching;
mod resolving;
mod working;

use postgres::Client;
use std::collections::BTreeSet;
use support::Cluster;

/// What of the planted was run, as this one.
pub(crate) fn ran(cluster: &Cluster, who: &str) -> BTreeSet<String> {
    let mark = format!(" RAN AS {who}");
    let log = cluster.log();
    let lines = log.lines().filter_map(|line| line.strip_suffix(&mark));
    lines.filter_map(|line| line.split_once("LOG:  ")).map(|(_, planted)| planted.to_owned()).collect()
}

/// Calls of all functions and procedures of the extension, with each of these relations where one is asked for.
pub(crate) fn calls_of(client: &mut Client, relations: &[String]) -> Vec<String> {
    let functions = "
        SELECT p.prokind = 'p', p.oid::regproc::text, ARRAY(
            SELECT coalesce(p.proargnames[n], '') FROM generate_subscripts(p.proargtypes, 1) i, LATERAL (SELECT i + 1) s (n) ORDER BY n),
            p.proargtypes::regtype[]::text[]
        FROM pg_depend d JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
        WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
            AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'insta_ids')
            AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
            AND 'internal'::regtype <> ALL (p.proargtypes)
        ORDER BY p.oid";
    let mut calls = Vec::new();
    for function in client.query(functions, &[]).unwrap() {
        let (is_procedure, name): (bool, String) = (function.get(0), function.get(1));
        let (names, types): (Vec<String>, Vec<String>) = (function.get(2), function.get(3));
        let takes_relation = types.iter().any(|kind| kind == "regclass" || kind == "oid");
        for relation in if takes_relation { relations } else { &relations[..1] } {
            let values = names.iter().zip(&types).map(|(name, kind)| value(name, kind, relation));
            let call = format!("{name}({})", values.collect::<Vec<_>>().join(", "));
            calls.push(if is_procedure { format!("CALL {call}") } else { format!("SELECT * FROM {call}") });
        }
    }
    calls
}

/// An argument with which a function finds the guest's shard.
#[expect(clippy::match_same_arms, reason = "the first that fits counts")]
fn value(name: &str, kind: &str, relation: &str) -> String {
    let literal = match (name, kind) {
        ("last_values" | "sequences", "oid[]") => "ARRAY['insta2.mine'::regclass::oid]".into(),
        ("schema", "regnamespace") => "'insta3'".into(),
        ("schema", "oid") => "'insta2'::regnamespace".into(),
        ("schema", "name") => "'insta2'".into(),
        ("schema", _) | ("shards", "bigint") => "2".into(),
        ("shards", "integer") => "10".into(),
        ("shards" | "firsts" | "lasts", "integer[]") => "'{2}'".into(),
        ("count" | "batch" | "servers", _) => "2".into(),
        ("column", _) => "'id'".into(),
        ("every", "interval") => "'1 day'".into(),
        ("every_row" | "force" | "written_out" | "new" | "dry_run", _) => "true".into(),
        ("verify", "text") => "'none'".into(),
        ("verify", _) => "true".into(),
        ("path", _) => "'insta2'".into(),
        ("lock_timeout", _) => "'1s'".into(),
        ("move", "name" | "text") => "'insta_ids_2_2'".into(),
        ("role", _) => "'guest'".into(),
        ("query", _) => "'SELECT ARRAY[s.shard::text] FROM unnest($1) s (shard)'".into(),
        ("command", _) => format!("'SELECT count(*) FROM ' || {relation}"),
        ("mode", _) => "'ACCESS EXCLUSIVE'".into(),
        ("part", _) => "'ids'".into(),
        (_, "integer") => "2".into(),
        (_, "bigint") => "387141979217152906".into(),
        (_, "regclass") => relation.into(),
        (_, "oid") => format!("{relation}::regclass"),
        (_, "timestamp with time zone") => "now()".into(),
        (_, "jsonb") => "'{}'".into(),
        (_, "boolean") => "true".into(),
        (_, "id_layout") => "'instagram'".into(),
        (_, "uuid") => "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'".into(),
        (_, kind) if kind.ends_with("[]") => "'{}'".into(),
        (_, "name" | "text") => "'a'".into(),
        _ => "NULL".to_owned(),
    };
    format!("{literal}::{kind}")
}

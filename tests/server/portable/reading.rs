//! Ids are read as the extension reads them.

use std::path::Path;

use postgres::Client;
use postgres::error::SqlState;

use support::{Cluster, checkout, pg_config, refused};

use super::install;

/// A server with the extension in `public`, and those functions in the schema `plain`.
fn both(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::start(name);
    let mut client = cluster.connect();
    client.batch_execute("CREATE SCHEMA plain").unwrap();
    install(&cluster, "postgres", "plain,public");
    (cluster, client)
}

/// A hundred thousand over the whole range of `bigint`, and the edges of all its bits.
const IDS: &str = "
    SELECT ('x' || substr(md5(n::text), 1, 16))::bit(64)::bigint AS id FROM generate_series(1, 100000) n
    UNION ALL
    SELECT sign * (1::bigint << bit) + step
    FROM generate_series(0, 62) bit, unnest('{1, -1}'::int[]) sign, unnest('{-1, 0, 1}'::int[]) step
    UNION ALL
    VALUES (0), (9223372036854775807), (-9223372036854775808)";

/// A hundred thousand over all times that ids hold, to the microsecond, and the edges of these.
const TIMES: &str = "
    SELECT '2011-08-24 21:07:01.721+00'::timestamptz
           + (('x' || substr(md5(n::text), 1, 15))::bit(60)::bigint % 1099511627776000) * interval '1 us' AS at
    FROM generate_series(1, 100000) n
    UNION ALL
    SELECT unnest('{2011-08-24 21:07:01.721+00, 2011-08-24 21:07:01.721999+00, 2011-08-24 21:07:01.722+00,
                    2026-03-29 01:59:59.999999+01, 2026-03-29 03:00:00+02, 2046-06-27 17:00:49.496+00,
                    2046-06-27 17:00:49.496999+00}'::timestamptz[])";

/// How many rows of a query there are, and in how many of them not all columns are true.
fn wrong(client: &mut Client, of: &str, columns: &[&str]) -> (i64, i64) {
    let query = format!("SELECT count(*), count(*) FILTER (WHERE NOT ({})) FROM {of}", columns.join(" AND "));
    let row = client.query_one(&query, &[]).unwrap();
    (row.get(0), row.get(1))
}

/// The same results for the same ids, times and codes.
#[test]
fn readers_read_what_the_extension_reads() {
    let (_cluster, mut client) = both("readers");
    let (ids, times) = (format!("({IDS}) i"), format!("({TIMES}) t"));
    let between = format!(
        "(SELECT id, row_number() OVER () AS n FROM ({IDS}) i) i
         JOIN (SELECT at AS lo, lag(at, 1, at) OVER () AS hi, row_number() OVER () AS n FROM ({TIMES}) t) t USING (n)"
    );
    // Whatever the session's zone and format are.
    for (zone, style) in [("UTC", "ISO"), ("America/New_York", "SQL, DMY"), ("Asia/Kathmandu", "German")] {
        client.batch_execute(&format!("SET timezone = '{zone}'; SET datestyle = '{style}'")).unwrap();
        let same = ["id_time", "id_shard", "id_seq", "id_parts"]
            .map(|function| format!("plain.{function}(id) IS NOT DISTINCT FROM public.{function}(id)"));
        let same: Vec<&str> = same.iter().map(String::as_str).collect();
        assert_eq!(wrong(&mut client, &ids, &same), (100_381, 0), "{zone}");
        let same = ["plain.id_min(at) = public.id_min(at)", "plain.id_max(at) = public.id_max(at)"];
        assert_eq!(wrong(&mut client, &times, &same), (100_007, 0), "{zone}");
        let same = ["plain.id_between(id, lo, hi) = public.id_between(id, lo, hi)"];
        assert_eq!(wrong(&mut client, &between, &same), (100_007, 0), "{zone}");
    }
    let same = [
        "plain.id_shortcode(id) = public.id_shortcode(id)",
        "plain.shortcode_id(public.id_shortcode(id)) = id",
        "plain.shortcode_id(public.id_shortcode(id) || 'x-_9x-_9x-_9x-_9x-_9x-_9x-_9') = id",
    ];
    assert_eq!(wrong(&mut client, &ids, &same), (100_381, 0));
}

/// A text that is no short code is an error for them too.
#[test]
fn readers_refuse_what_is_no_short_code() {
    let (_cluster, mut client) = both("codes");
    let private = format!("BQ0eAlwhDrw{}", "x-_9".repeat(7));
    for (code, id) in [
        ("A", 0),
        ("B", 1),
        ("_", 63),
        ("P__________", -1),
        ("IAAAAAAAAAA", i64::MIN),
        (&private, 1_455_920_561_485_265_648),
    ] {
        let row = client.query_one("SELECT plain.shortcode_id($1), shortcode_id($1)", &[&code]).unwrap();
        assert_eq!((row.get(0), row.get(1)), (id, id));
    }
    let (shorter, longer) = (private.get(1..28).unwrap(), format!("{private}A"));
    for code in ["", "Q__________", "AAAAAAAAAAAA", "A\n", " A", "a+b", "a/b", "a=", "ä", shorter, &longer] {
        for schema in ["plain", "public"] {
            let error = client.query(&format!("SELECT {schema}.shortcode_id($1)"), &[&code]).unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::INVALID_TEXT_REPRESENTATION), "{code:?}: {error}");
        }
    }
    for (at, code) in [("2046-06-27 17:00:49.497+00", "22003"), ("infinity", "0A000"), ("-infinity", "0A000")]
    {
        assert_eq!(refused(&mut client, &format!("SELECT plain.id_min('{at}')")).code().code(), code, "{at}");
    }
}

/// They are declared as the extension's are, and the planner sees through all of them but one: then their bodies are
/// as immutable as they say.
#[test]
fn readers_are_inlined() {
    let (_cluster, mut client) = both("inlined");
    let differently_declared = "
        SELECT count(*), count(*) FILTER (WHERE
            (p.provolatile, p.proisstrict OR p.proname = 'shortcode_id', p.proparallel, p.prorettype, p.proargnames)
            IS DISTINCT FROM
            (n.provolatile, n.proisstrict, n.proparallel, n.prorettype, n.proargnames))
        FROM pg_proc p JOIN pg_proc n USING (proname, proargtypes)
        WHERE p.pronamespace = 'plain'::regnamespace AND n.pronamespace = 'public'::regnamespace";
    let row = client.query_one(differently_declared, &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (10, 0));
    client
        .batch_execute(
            "SET search_path = plain; CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz, code text)",
        )
        .unwrap();
    for call in [
        "id_time(id)",
        "id_shard(id)",
        "id_seq(id)",
        "id_min(at)",
        "id_max(at)",
        "id_between(id, at, at)",
        "id_shortcode(id)",
        "shortcode_id(code)",
    ] {
        let plan = explain(&mut client, &format!("SELECT {call} FROM t"));
        assert!(!plan.contains(call.split('(').next().unwrap()), "{plan}");
        client.batch_execute(&format!("CREATE INDEX ON t (({call}))")).unwrap();
    }
    let range = "SELECT * FROM t WHERE id_between(id, '2026-02-01', '2026-02-02')";
    let plan = explain(&mut client, range);
    assert!(plan.contains("Index Cond: ((t.id >= ") && plan.contains(" AND (t.id < "), "{plan}");
}

fn explain(client: &mut Client, query: &str) -> String {
    let rows = client.query(&format!("EXPLAIN (VERBOSE, COSTS OFF) {query}"), &[]).unwrap();
    rows.iter().map(|row| row.get::<_, &str>(0).to_owned() + "\n").collect()
}

/// They are for servers without the extension, so they are no part of it, and replace nothing that is there.
#[test]
fn they_are_no_part_of_the_extension() {
    let installed = format!("{}/extension/portable.sql", pg_config("--sharedir"));
    assert!(!Path::new(&installed).exists());
    let cluster = Cluster::start("portable_beside");
    let mut client = cluster.connect();
    let sql = std::fs::read_to_string(checkout().join("sql/portable.sql")).unwrap();
    let error = client.batch_execute(&sql).unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DUPLICATE_FUNCTION));
}

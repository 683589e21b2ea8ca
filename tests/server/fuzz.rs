//! Promise: nothing that is passed to a function ends a session or shows an internal error.

use std::thread;

use support::Chance;
use support::Cluster;

/// All the functions, with arguments to be drawn.
const FUNCTIONS: [&str; 51] = [
    "next_id({int}, {sequence})",
    "count(*) FROM next_ids({int}, {sequence}, {count})",
    "make_id({time}, {int}, {bigint})",
    "id_time({bigint})",
    "id_shard({bigint})",
    "id_seq({bigint})",
    "id_parts({bigint})",
    "id_min({time})",
    "id_max({time})",
    "id_between({bigint}, {time}, {time})",
    "id_json({bigint})",
    "id_shortcode({bigint})",
    "shortcode_id({text})",
    "id_mask({bigint}, sha256(convert_to({name}, 'UTF8'))), id_unmask({text}, sha256(convert_to({name}, 'UTF8')), {int} = 0)",
    "id_mask({bigint}, convert_to({text}, 'UTF8')), id_unmask({text}, convert_to({text}, 'UTF8'), true)",
    "{text}::id_layout",
    "next_id({int}, {sequence}, {layout})",
    "count(*) FROM next_ids({int}, {sequence}, {count}, {layout})",
    "make_id({time}, {int}, {bigint}, {layout})",
    "id_time({bigint}, {layout})",
    "id_shard({bigint}, {layout})",
    "id_seq({bigint}, {layout})",
    "id_parts({bigint}, {layout})",
    "id_json({bigint}, {layout})",
    "id_min({time}, {layout})",
    "id_max({time}, {layout})",
    "id_between({bigint}, {time}, {time}, {layout})",
    "{layout} = {layout}, id_layout_hash({layout}), id_layout_hash_extended({layout}, {bigint}), id_layout_send({layout})",
    "insta_ids.create_ticket_server({name}, {int}, {int}, {int})",
    "insta_ids.next_ticket({name})",
    "insta_ids.clock()",
    "insta_ids.advance_clock({time})",
    "insta_ids_internal.stat_get_ids()",
    "insta_ids.stat_reset()",
    "insta_ids.create_partitions({relation}, {interval}, {time}, {time}, {zone}, {layout})",
    "insta_ids.drop_partitions({relation}, {time})",
    "insta_ids.partitions({relation})",
    "insta_ids.shard_of({bigint}, {int})",
    "insta_ids.shard_of_text({text}, {int})",
    "insta_ids.shard_of({bigint}), insta_ids.shard_of_text({text})",
    "insta_ids.schema_of({int})",
    "insta_ids_internal.minting_columns(ARRAY[{int}], '3')",
    "insta_ids_internal.minting_columns(ARRAY[{int}]), insta_ids_internal.objects_of(ARRAY[{int}], true)",
    "insta_ids_internal.normalized_expression({text}, ARRAY[{int}]::oid[], ARRAY[{text}, {name}], ARRAY[{int}]::oid[], {int}), insta_ids_internal.minted_shards({text}, ARRAY[{int}]::oid[]), insta_ids_internal.layout_argument({layout})",
    "(SELECT count(*) FROM insta_ids_internal.read_published({text}, ARRAY[{text}, {name}], {text}, {layout})), (SELECT count(*) FROM insta_ids_internal.read_published({text}, NULL, NULL, {layout}))",
    "insta_ids_internal.read_call({text}, ARRAY[{text}, {name}], {layout}), insta_ids_internal.read_call({name}, NULL, {layout})",
    "insta_ids_internal.call_function({int}::oid, {int}::oid, ARRAY[{text}, NULL]), insta_ids_internal.function_class({text}, {name}::text::regnamespace, {int})",
    "insta_ids_internal.write_function({layout}, {text}, {name})",
    "insta_ids.adopt({name}::text::regnamespace, {int}), insta_ids.unadopt({name}::text::regnamespace)",
    "insta_ids_internal.require_range({int}, {int}, {int}), insta_ids_internal.require_locks({int})",
    "insta_ids_internal.transactions_committed(), insta_ids_internal.path_of({name}, {name}), insta_ids_internal.migration_by_script({name})",
];

const LAYOUTS: [&str; 9] = [
    "NULL",
    "'twitter'",
    "'sonyflake'",
    "'mastodon'",
    "'js53'",
    "'time:64 epoch:0'",
    "'time:64 epoch:0 unit:1s'",
    "'time:1 seq:31 shard:31 epoch:0 unit:1s'",
    "'time:2 shard:31 seq:31 epoch:1314220021721'",
];

/// Pieces of DDL, and what texts of it can be made hard to read with.
const DDL: [&str; 42] = [
    "CREATE ",
    "ALTER ",
    "DROP ",
    "REINDEX ",
    "INDEX ",
    "TABLE ",
    "FUNCTION ",
    "TYPE ",
    "TRIGGER ",
    "VIEW ",
    "CONCURRENTLY ",
    "concurrently ",
    "ON ",
    "t ",
    "s.t ",
    "(a int)",
    "(a)",
    "(",
    ")",
    "f() ",
    "RETURNS int ",
    "LANGUAGE sql ",
    "BEGIN ATOMIC ",
    "SELECT 1",
    "RETURN 1",
    "END",
    ";",
    ";",
    "BEGIN",
    "COMMIT",
    "DETACH PARTITION p ",
    "AS ENUM ",
    "'",
    "\"",
    "$a$",
    "/*",
    "*/",
    "--",
    "\n",
    "E'\\",
    "U&\"\\",
    "\u{e9}",
];

const EXTREMES: [&str; 11] = ["NULL", "0", "1", "-1", "32", "64", "8191", "8192", "1023", "1024", "86399999"];
const TIMES: [&str; 9] = [
    "NULL",
    "'infinity'",
    "'-infinity'",
    "'4714-11-24 BC'",
    "'294276-12-31 23:59:59.999999'",
    "'2011-08-24 21:07:01.721+00'",
    "'2046-06-27 17:00:49.496999+00'",
    "now()",
    "clock_timestamp() + interval '59 min'",
];
const NAMES: [&str; 9] =
    ["NULL", "''", "'t'", "'s'", "'a.b'", "'\"%s\"'", "'ß'", "repeat('ß', 28)", "repeat('x', 100000)"];
const SEQUENCES: [&str; 9] = [
    "NULL",
    "'s'",
    "'cycle'",
    "'negative'",
    "'short'",
    "'t'",
    "0::oid",
    "4294967295::oid",
    "'insta_ids_internal.lease'",
];

const RELATIONS: [&str; 7] =
    ["NULL", "'s'", "'t'", "'partitioned'", "'partitioned'", "0::oid", "'pg_class_oid_index'"];
/// None that makes many partitions of the time that ids hold.
const INTERVALS: [&str; 10] = [
    "NULL",
    "'0'",
    "'-1 day'",
    "'1 us'",
    "'1 month 1 day'",
    "'10 years'",
    "'100 years'",
    "'4000 days'",
    "'2147483647 days'",
    "'178956970 years'",
];
const ZONES: [&str; 6] = ["NULL", "''", "'UTC'", "'Europe/Berlin'", "'Europe/Atlantis'", "'<x>-15'"];

/// Draws expressions, always the same ones from a seed.
struct Draw(Chance);

impl Draw {
    /// A value of any size: as many bits as are drawn, too.
    fn number(&mut self, bits: u64) -> String {
        if self.0.next().is_multiple_of(3) {
            return self.0.of(&EXTREMES).to_owned();
        }
        let bits = self.0.next() % bits;
        let value = i128::from(self.0.next() >> (63 - bits));
        // In brackets, as the smallest number has no positive one.
        if self.0.next().is_multiple_of(2) { format!("({value})") } else { format!("(-{value})") }
    }

    fn time(&mut self) -> String {
        if self.0.next().is_multiple_of(2) {
            return format!("timestamptz {}", self.0.of(&TIMES))
                .replace("timestamptz now", "now")
                .replace("timestamptz clock", "clock")
                .replace("timestamptz NULL", "NULL");
        }
        // From 4713 BC to 294276, in microseconds.
        let us = self.0.next() % 9_400_000_000_000_000_000;
        format!("timestamptz '4713-01-01 BC' + interval '1 us' * {us}")
    }

    /// Some that are layouts, some that are not.
    fn layout(&mut self) -> String {
        if self.0.next().is_multiple_of(4) {
            return self.0.of(&LAYOUTS).to_owned();
        }
        let mut below = |name: &str, most: u64, from: u64| match self.0.next() % (most + 1) {
            0 => String::new(),
            bits => format!("{name}:{} ", bits + from),
        };
        let (time, shard, seq) = (below("time", 64, 0), below("shard", 24, 0), below("seq", 24, 0));
        let unit = self.0.next() % 1010;
        let [first, second] = if unit.is_multiple_of(2) { [shard, seq] } else { [seq, shard] };
        let epoch = self.0.next() % 2_000_000_000_000;
        format!("'{time}{first}{second}epoch:{epoch} unit:{unit}ms'")
    }

    fn text(&mut self) -> String {
        let characters = ['A', 'z', '0', '-', '_', ' ', ':', 't', 'i', 'm', 'e', '\u{e9}', '%', '\\'];
        let length = self.0.next() % 45;
        let text: String = (0..length).map(|_| self.0.of(&characters)).collect();
        format!("'{text}'")
    }

    fn call(&mut self) -> String {
        let mut call = self.0.of(&FUNCTIONS).to_owned();
        while let Some(at) = call.find('{') {
            let end = call.find('}').unwrap();
            let argument = match &call[at + 1..end] {
                "int" => format!("{}::int", self.number(31)),
                "bigint" => format!("{}::bigint", self.number(63)),
                "count" => {
                    if self.0.next().is_multiple_of(2) {
                        "3".into()
                    } else {
                        format!("least({}::int, 5)", self.number(31))
                    }
                }
                "layout" => format!("{}::id_layout", self.layout()),
                "text" => self.text(),
                "name" => self.0.of(&NAMES).to_owned(),
                "sequence" => format!("{}::regclass", self.0.of(&SEQUENCES)),
                "relation" => format!("{}::regclass", self.0.of(&RELATIONS)),
                "interval" => format!("{}::interval", self.0.of(&INTERVALS)),
                "zone" => format!("{}::text", self.0.of(&ZONES)),
                _ => self.time(),
            };
            call.replace_range(at..=end, &argument);
        }
        call
    }
}

/// No call ends the backend or reports an internal error.
#[test]
fn a_million_random_calls_end_in_values_or_errors_for_users() {
    const SESSIONS: u64 = 4;
    const ROUNDS: u64 = 250;
    const CALLS: u64 = 1000;
    let cluster = Cluster::start("fuzz");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE SEQUENCE s; CREATE SEQUENCE cycle MAXVALUE 3 CYCLE; CREATE SEQUENCE short MAXVALUE 9;
             CREATE SEQUENCE negative INCREMENT -1; CREATE TABLE t ();
             CREATE FUNCTION try(call text) RETURNS text LANGUAGE plpgsql AS $$
             BEGIN
                 EXECUTE 'SELECT ' || call;
                 RETURN '00000';
             EXCEPTION WHEN OTHERS THEN
                 RETURN SQLSTATE;
             END $$",
        )
        .unwrap();
    let states: Vec<(String, u64)> = thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|session| {
                let mut client = cluster.connect();
                // Of its own, as what makes partitions locks out others who do.
                client
                    .batch_execute("CREATE TEMPORARY TABLE partitioned (id bigint) PARTITION BY RANGE (id)")
                    .unwrap();
                scope.spawn(move || {
                    let mut draw = Draw(Chance::from_seed(session));
                    let mut states = std::collections::BTreeMap::<String, u64>::new();
                    for _ in 0..ROUNDS {
                        let calls: Vec<String> = (0..CALLS).map(|_| draw.call()).collect();
                        let rows = client
                            .query("SELECT call, try(call) FROM unnest($1::text[]) call", &[&calls])
                            .unwrap();
                        for row in rows {
                            let (call, state): (&str, &str) = (row.get(0), row.get(1));
                            assert!(!state.starts_with("XX"), "{call}: {state}");
                            *states.entry(state.to_owned()).or_default() += 1;
                        }
                    }
                    states
                })
            })
            .collect();
        sessions.into_iter().flat_map(|session| session.join().unwrap()).collect()
    });
    let mut by_state = std::collections::BTreeMap::<&str, u64>::new();
    for (state, calls) in &states {
        *by_state.entry(state).or_default() += calls;
    }
    println!("{by_state:?}");
    assert_eq!(by_state.values().sum::<u64>(), SESSIONS * ROUNDS * CALLS);
    // All that was drawn was understood: no call failed by its syntax, or by its arguments' types.
    let meant = [
        "00000", "2200H", "22003", "22007", "22008", "22023", "22P02", "3F000", "42602", "42704", "42710",
        "42809", "42883", "0A000", "42P01", "42P17", "55000",
    ];
    assert!(by_state.keys().all(|state| meant.contains(state)), "{by_state:?}");
    assert!(by_state["00000"] > SESSIONS * ROUNDS * CALLS / 4);
    assert!(!cluster.log().contains("terminated by signal"));
    client.query_one("SELECT insta_ids.reset_clock(), next_id(5, 's')", &[]).unwrap();
}

/// Any text given as DDL is cut into its statements, of which none is lost, or is a syntax error.
#[test]
fn any_text_given_as_ddl_is_statements_or_an_error() {
    const TEXTS: usize = 100_000;
    let cluster = Cluster::start("any_ddl");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE FUNCTION try(ddl text) RETURNS text LANGUAGE plpgsql AS $$
             BEGIN
                 RETURN (SELECT coalesce(string_agg(statement, ''), '') FROM insta_ids_internal.statements(ddl));
             EXCEPTION WHEN syntax_error OR invalid_escape_sequence OR nonstandard_use_of_escape_character
                 OR feature_not_supported OR statement_too_complex THEN
                 RETURN NULL;
             END $$",
        )
        .unwrap();
    let mut chance = Chance::from_seed(1);
    let mut read = 0;
    for _ in 0..TEXTS / 1000 {
        let texts: Vec<String> = (0..1000)
            .map(|_| (0..chance.next() % 12).map(|_| chance.of(&DDL)).collect::<Vec<_>>().concat())
            .collect();
        let rows = client.query("SELECT ddl, try(ddl) FROM unnest($1::text[]) ddl", &[&texts]).unwrap();
        for row in rows {
            let (ddl, statements): (&str, Option<&str>) = (row.get(0), row.get(1));
            let Some(statements) = statements else { continue };
            read += usize::from(!statements.is_empty());
            // But for what stands between them, and comments there.
            if !ddl.contains("--") && !ddl.contains("/*") {
                let kept = |text: &str| text.replace([';', ' ', '\n'], "");
                assert_eq!(kept(statements), kept(ddl));
            }
        }
    }
    assert!(read > TEXTS / 100, "{read}");
}

//! What clients send and receive: the binary format, and parameters without a type.

use std::error::Error;
use std::fs;
use std::process::Command;

use bytes::BytesMut;
use postgres::error::SqlState;
use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use support::Chance;
use support::blocks;
use support::pair::Pair;
use support::{Cluster, checkout, refused, texts};

/// Every public function takes parameters without a type as its own, for each number of arguments: none chooses another overload.
#[test]
fn parameters_without_a_type_are_those_of_the_function() {
    let cluster = Cluster::start("untyped");
    let mut client = cluster.connect();
    let functions = client
        .query(
            "SELECT p.oid::regprocedure::text, p.pronamespace::regnamespace || '.' || quote_ident(p.proname), p.prokind = 'p',
                    p.proargtypes::oid[], (p.pronargs - p.pronargdefaults)::integer
             FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
             JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'insta_ids'
             WHERE p.pronamespace <> 'insta_ids_internal'::regnamespace AND p.prorettype <> 'event_trigger'::regtype
                -- Functions of a type take its bytes.
                AND NOT 'internal'::regtype = ANY (p.proargtypes) AND NOT 'cstring'::regtype = ANY (p.proargtypes)",
            &[],
        )
        .unwrap();
    assert!(functions.len() > 60, "{}", functions.len());
    for row in functions {
        let (signature, name, is_procedure): (String, String, bool) = (row.get(0), row.get(1), row.get(2));
        let (types, required): (Vec<u32>, i32) = (row.get(3), row.get(4));
        for given in usize::try_from(required).unwrap()..=types.len() {
            let parameters: Vec<_> = (1..=given).map(|n| format!("${n}")).collect();
            let verb = if is_procedure { "CALL" } else { "SELECT" };
            let call = format!("{verb} {name}({})", parameters.join(", "));
            let prepared =
                client.prepare(&call).unwrap_or_else(|error| panic!("{signature}: {call}: {error:?}"));
            let chosen: Vec<_> = prepared.params().iter().map(Type::oid).collect();
            assert_eq!(chosen, types[..given], "{signature}: {call}");
        }
    }
}

/// A key without a type is a bigint or an error, by every function of keys.
#[test]
fn a_key_without_a_type_is_a_bigint() {
    let cluster = Cluster::start("untyped_keys");
    let mut client = cluster.connect();
    client.batch_execute("SELECT insta_ids.init(2000)").unwrap();
    assert_eq!(
        texts(&mut client, "SELECT (insta_ids.shard_of('31341'), insta_ids.shard_of(31341))::text"),
        ["(1341,1341)"]
    );
    let error = refused(&mut client, "SELECT insta_ids.shard_of('kevin')");
    assert_eq!(error.code(), &SqlState::INVALID_TEXT_REPRESENTATION);
    let error = refused(&mut client, "SELECT insta_ids.shard_of('kevin'::text)");
    assert_eq!(error.code(), &SqlState::UNDEFINED_FUNCTION);
    let error = refused(&mut client, "SELECT insta_ids.shard_of_uuid('kevin')");
    assert_eq!(error.code(), &SqlState::INVALID_TEXT_REPRESENTATION);
    // A number that is stored as a text is not the number.
    let texts = texts(
        &mut client,
        "SELECT (insta_ids.shard_of_text('31341'), insta_ids.shard_of_text('31341', 2000))::text",
    );
    assert_eq!(texts, ["(1298,1298)"]);
}

/// A layout as its bytes, whether it is one or not.
#[derive(Debug, PartialEq)]
struct Bytes(Vec<u8>);

impl<'a> FromSql<'a> for Bytes {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.to_vec()))
    }

    fn accepts(ty: &Type) -> bool {
        ty.name() == "id_layout"
    }
}

impl ToSql for Bytes {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        ty.name() == "id_layout"
    }

    to_sql_checked!();
}

/// A layout that a client sends in binary is the one that was sent. Other bytes are an error for users.
#[test]
fn layouts_pass_in_the_binary_format() {
    let cluster = Cluster::start("binary");
    let mut client = cluster.connect();
    for name in ["instagram", "twitter", "discord", "pgedge", "pgdog", "mastodon", "sonyflake", "js53"] {
        let row = client.query_one("SELECT $1::text::id_layout", &[&name]).unwrap();
        let bytes: Bytes = row.get(0);
        assert_eq!(bytes.0.len(), 16);
        let row =
            client.query_one("SELECT $1::id_layout, $1 = $2::text::id_layout", &[&bytes, &name]).unwrap();
        assert_eq!((row.get::<_, Bytes>(0), row.get(1)), (bytes, true), "{name}");
    }
    // What is no layout is an error for users, whatever it is.
    let mut chance = Chance::from_seed(1);
    let mut layouts = 0;
    for _ in 0..20_000 {
        let length = if chance.below(10) == 0 { chance.below(40) } else { 16 };
        let byte = |n| {
            // Often within its range: an epoch in six bytes, small numbers elsewhere.
            let most = [1, 1, 2, 256, 256, 256, 256, 256, 1, 1, 2, 256, 70, 33, 33, 3];
            let most = if chance.below(20) == 0 { 256 } else { *most.get(n).unwrap_or(&256) };
            u8::try_from(chance.below(most)).unwrap()
        };
        let bytes = Bytes((0..usize::try_from(length).unwrap()).map(byte).collect());
        match client.query_one("SELECT $1::id_layout::text::id_layout = $1, $1", &[&bytes]) {
            Ok(row) => {
                assert!(row.get::<_, bool>(0), "{bytes:?}");
                layouts += 1;
            }
            Err(error) => {
                let codes = [SqlState::INVALID_BINARY_REPRESENTATION, SqlState::PROTOCOL_VIOLATION];
                assert!(codes.contains(error.code().unwrap()), "{bytes:?}: {error}");
            }
        }
    }
    assert!(layouts > 1000, "only {layouts} were layouts");
}

/// psycopg sends and receives ids and layouts in the binary format.
#[test]
fn ids_and_layouts_pass_through_psycopg_in_binary() {
    let cluster = Cluster::start("psycopg");
    // Debian's own Python, for which scripts/test installs psycopg 3.
    let run = Command::new("/usr/bin/python3")
        .arg(checkout().join("tests/clients/binary.py"))
        .arg(&cluster.socket)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Texts of a database whose encoding is not UTF-8 are not UTF-8.
#[test]
fn layouts_are_read_in_other_encodings() {
    let cluster = Cluster::start("encodings");
    for (encoding, text) in [("LATIN1", "é"), ("EUC_JP", "日本"), ("SQL_ASCII", "é")] {
        let database = encoding.to_lowercase();
        let make = format!("CREATE DATABASE {database} ENCODING {encoding} LOCALE 'C' TEMPLATE template0");
        cluster.connect().batch_execute(&make).unwrap();
        let mut client = cluster.connect_to(&database);
        client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
        for query in [format!("SELECT '{text}'::id_layout"), format!("SELECT shortcode_id('B{text}')")] {
            let error = client.simple_query(&query).unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::INVALID_TEXT_REPRESENTATION), "{encoding}: {error}");
        }
        client.batch_execute("SELECT 'twitter'::id_layout, shortcode_id('BQ0eAlwhDrw')").unwrap();
    }
}

/// The client that docs/clients.md shows goes on when servers refuse, change or end.
#[test]
fn the_documented_client_routes_through_moves_and_failures() {
    let pair = Pair::start("routes");
    let dsn = format!("host={} user=postgres dbname=postgres", pair.a.socket.display());
    let client = fs::read_to_string(checkout().join("demo/client.py")).unwrap();
    let shown = &blocks("docs/clients.md", "python")[0];
    assert!(
        shown.lines().all(|line| client.contains(&format!("    {line}\n"))),
        "not in demo/client.py: {shown}"
    );
    let run = Command::new("/usr/bin/python3")
        .arg(checkout().join("tests/clients/fleet.py"))
        .arg(dsn)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// The tour of many servers, short: a move and a failover under clients.
#[test]
fn the_tour_of_many_servers_runs() {
    let run = Command::new("scripts/demo-servers")
        .current_dir(checkout())
        .envs([("DURATION", "6"), ("SEED", "1"), ("INSTALLED", "1")])
        .output()
        .unwrap();
    let [told, said] = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    println!("{told}");
    assert!(run.status.success(), "{told}{said}");
}

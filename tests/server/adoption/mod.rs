//! Promise: adopt and unadopt keep a schema's functions, defaults, rows and sequences. A refusal changes nothing. Sessions that
//! write meanwhile see no error.

mod asking;
mod portable;
mod refused;
mod returning;
mod rights;
mod unlike;
mod writers;

use postgres::Client;
use postgres::error::DbError;

use support::{Cluster, count, ids, refused, texts};

/// The function as Instagram published it.
const ARTICLE: &str = "
CREATE OR REPLACE FUNCTION insta5.next_id(OUT result bigint) AS $$
DECLARE
    our_epoch bigint := 1314220021721;
    seq_id bigint;
    now_millis bigint;
    shard_id int := 5;
BEGIN
    SELECT nextval('insta5.table_id_seq') % 1024 INTO seq_id;

    SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
    result := (now_millis - our_epoch) << 23;
    result := result | (shard_id << 10);
    result := result | (seq_id);
END;
$$ LANGUAGE PLPGSQL;";

/// A known variant, which uses the time of the transaction.
const BY_NOW: &str = "
CREATE OR REPLACE FUNCTION
  insta5.next_id(OUT result bigint) AS $$
DECLARE
    epoch bigint := 1314220021721;
    seq_id bigint;
    now_ms bigint;
    shard_id bigint := 5;
BEGIN
    SELECT nextval('insta5.photos_id_seq') % 1024 INTO seq_id;
    now_ms := extract(epoch from now()) * 1000;
    result := (now_ms - epoch) << 23;
    result := result | (shard_id << 10);
    result := result | seq_id;
END;
$$ LANGUAGE plpgsql;";

const INSTAGRAM: &str = "instagram";
const SLOW: &str = "time:41 shard:13 seq:10 epoch:1314220021721 unit:500ms";
const OWN_EPOCH: &str = "time:41 shard:13 seq:10 epoch:1420070400000";

/// A schema to adopt: its functions, and the default and the sequence of each table.
struct Variant {
    name: &'static str,
    layout: &'static str,
    functions: String,
    photos: (&'static str, &'static str),
    likes: (&'static str, &'static str),
}

impl Variant {
    /// One function without arguments fills both tables from one sequence.
    fn new(name: &'static str, functions: impl Into<String>) -> Self {
        let by_one = ("insta5.next_id()", "table_id_seq");
        Self { name, layout: INSTAGRAM, functions: functions.into(), photos: by_one, likes: by_one }
    }

    fn sql(&self) -> String {
        format!(
            "CREATE SCHEMA insta5;
             CREATE SEQUENCE insta5.table_id_seq; CREATE SEQUENCE insta5.photos_id_seq; CREATE SEQUENCE insta5.likes_id_seq START 900;
             {}
             CREATE TABLE insta5.photos (id bigint PRIMARY KEY DEFAULT {}, caption text);
             CREATE TABLE insta5.likes (id bigint PRIMARY KEY DEFAULT {}, photo bigint REFERENCES insta5.photos);
             INSERT INTO insta5.photos (caption) SELECT n FROM generate_series(1, 50) n;
             INSERT INTO insta5.likes (photo) SELECT id FROM insta5.photos;",
            self.functions, self.photos.0, self.likes.0
        )
    }

    fn all() -> Vec<Self> {
        let declared = ARTICLE
            .replace("(OUT result bigint)", "() RETURNS bigint")
            .replace("    shard_id int := 5;", "    shard_id int := 5;\n    result bigint;")
            .replace("END;", "    RETURN result;\nEND;");
        let of_argument = |argument: &str, from: &str, to: &str| {
            ARTICLE.replace("(OUT", &format!("({argument}, OUT")).replace(from, to)
        };
        let by_table = |default| Self {
            photos: (default, "photos_id_seq"),
            likes: (
                if default.contains("text") {
                    "insta5.next_id('insta5.likes_id_seq'::text)"
                } else {
                    "insta5.next_id('insta5.likes_id_seq')"
                },
                "likes_id_seq",
            ),
            ..Self::new("", "")
        };
        let named = "nextval('insta5.table_id_seq')";
        let photos = ("insta5.next_id()", "photos_id_seq");
        vec![
            Self::new("article", ARTICLE),
            Self { photos, likes: photos, ..Self::new("by_now", BY_NOW) },
            Self { layout: OWN_EPOCH, ..Self::new("own_epoch", ARTICLE.replace("1314220021721", "1420070400000")) },
            Self {
                photos: ("insta5.make_id()", "table_id_seq"),
                likes: ("insta5.make_id()", "table_id_seq"),
                ..Self::new("own_name", ARTICLE.replace("next_id", "make_id"))
            },
            Self {
                photos: ("insta5.photo_id()", "photos_id_seq"),
                likes: ("insta5.like_id()", "likes_id_seq"),
                ..Self::new(
                    "by_table",
                    [("photo_id", "photos_id_seq"), ("like_id", "likes_id_seq")]
                        .map(|(name, sequence)| ARTICLE.replace("next_id", name).replace("table_id_seq", sequence))
                        .concat(),
                )
            },
            Self {
                photos: ("insta5.next_id(5)", "table_id_seq"),
                likes: ("insta5.next_id(5)", "table_id_seq"),
                ..Self::new("shard_argument", of_argument("shard int", ":= 5", ":= shard"))
            },
            Self {
                name: "text_argument",
                functions: of_argument("seq_name text", named, "nextval(seq_name)"),
                ..by_table("insta5.next_id('insta5.photos_id_seq'::text)")
            },
            Self {
                name: "text_by_path",
                functions: of_argument("seq_name text", named, "nextval(seq_name)")
                    .replace("PLPGSQL", "PLPGSQL SET search_path = insta5, pg_temp"),
                photos: ("insta5.next_id('photos_id_seq'::text)", "photos_id_seq"),
                likes: ("insta5.next_id('likes_id_seq'::text)", "likes_id_seq"),
                ..Self::new("", "")
            },
            Self {
                name: "regclass_argument",
                functions: of_argument("seq_name regclass", named, "nextval(seq_name)"),
                ..by_table("insta5.next_id('insta5.photos_id_seq')")
            },
            Self::new("definer", ARTICLE.replace("PLPGSQL", "PLPGSQL SECURITY DEFINER")),
            Self::new(
                "own_path",
                ARTICLE.replace("insta5.table_id_seq", "table_id_seq").replace("PLPGSQL", "PLPGSQL SET search_path TO insta5"),
            ),
            Self::new("declared", declared),
            // At this value the residues wrap around during the test, perhaps within one half second.
            Self {
                layout: SLOW,
                ..Self::new(
                    "slow",
                    ARTICLE.replace("our_epoch) <<", "our_epoch) / 500 <<")
                        + "ALTER SEQUENCE insta5.table_id_seq RESTART 924;",
                )
            },
            Self::new("other_out", ARTICLE.replace("result", "new_id")),
            Self::new(
                "sql",
                "CREATE FUNCTION insta5.next_id() RETURNS bigint LANGUAGE sql AS $$
                     SELECT (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1314220021721) << 23
                         | (5 << 10) | nextval('insta5.table_id_seq') % 1024 $$;",
            ),
            Self::new(
                "sql_body",
                "CREATE FUNCTION insta5.next_id() RETURNS bigint LANGUAGE sql RETURN
                     (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1314220021721) << 23
                     | (5 << 10) | nextval('insta5.table_id_seq') % 1024;",
            ),
        ]
    }
}

/// Selects what adopt and unadopt keep: functions, defaults and rows.
const KEPT: &str = "
    SELECT 'function ' || oid || ' ' || proname || pronargs || coalesce(proacl::text, '')
    FROM pg_proc WHERE oid < (SELECT oid FROM pg_class WHERE relname = 'photos' AND relnamespace = 'insta5'::regnamespace)
        AND pronamespace = 'insta5'::regnamespace
    UNION ALL SELECT 'default ' || d.oid || ' ' || d.adbin::text FROM pg_attrdef d
    WHERE d.adrelid IN ('insta5.photos'::regclass, 'insta5.likes'::regclass)
    UNION ALL SELECT 'photo ' || p FROM insta5.photos p WHERE p.caption IS NOT NULL
    UNION ALL SELECT 'like ' || l FROM insta5.likes l WHERE l.photo IS NOT NULL ORDER BY 1";

/// Selects all that a refusal must not change in the schemas of shards and in the extension's tables.
const STATE: &str = "
    SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^insta\\d'
    UNION ALL SELECT format('%s %s', oid, relname) FROM pg_class WHERE relnamespace::regnamespace::text ~ '^insta\\d'
    UNION ALL SELECT format('%s %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace::regnamespace::text ~ '^insta\\d'
    UNION ALL SELECT format('%s %s', d.oid, d.adbin) FROM pg_attrdef d JOIN pg_class c ON c.oid = d.adrelid WHERE c.relnamespace::regnamespace::text ~ '^insta\\d'
    UNION ALL SELECT 'shard ' || s FROM insta_ids_internal.shard s
    UNION ALL SELECT 'migration ' || m FROM insta_ids_internal.shard_migration m
    ORDER BY 1";

const ADOPT: &str = "SELECT insta_ids.adopt('insta5', 5)";
const UNADOPT: &str = "SELECT insta_ids.unadopt('insta5')";
const FINDINGS: &str = "SELECT concat_ws(' ', code, object, detail) FROM insta_ids.check()";
const CHECKS: &str = "
    SELECT conrelid::regclass || ' ' || convalidated FROM pg_constraint
    WHERE connamespace = 'insta5'::regnamespace AND contype = 'c' ORDER BY 1";

/// Creates a database with this layout, and connects to it.
fn database(cluster: &Cluster, name: &str, layout: &str) -> Client {
    cluster.connect().batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
    let mut client = cluster.connect_to(name);
    client
        .batch_execute(&format!(
            "CREATE EXTENSION insta_ids; SELECT insta_ids.init(2000, layout => '{layout}')"
        ))
        .unwrap();
    client
}

/// Inserts rows, and asserts that their ids have shard 5, the current time and the table's sequence, and are the greatest.
fn goes_on(client: &mut Client, variant: &Variant) {
    for (table, (_, sequence)) in [("photos", variant.photos), ("likes", variant.likes)] {
        let newest = count(client, &format!("SELECT max(id) FROM insta5.{table}"));
        let used = count(client, &format!("SELECT last_value FROM insta5.{sequence}"));
        client
            .batch_execute(&format!("INSERT INTO insta5.{table} SELECT FROM generate_series(1, 20)"))
            .unwrap();
        let new = ids(client, &format!("SELECT id FROM insta5.{table} WHERE id > {newest} ORDER BY id"));
        assert_eq!(new.len(), 20, "{}: not all ids of {table} are greater than those before", variant.name);
        let now_used = count(client, &format!("SELECT last_value FROM insta5.{sequence}"));
        assert_eq!(now_used, used + 20, "{}: {sequence}", variant.name);
        let (unit, epoch) = match variant.layout {
            OWN_EPOCH => (1, 1_420_070_400_000),
            SLOW => (500, 1_314_220_021_721),
            _ => (1, 1_314_220_021_721),
        };
        let now = now_ms(client);
        // Within a millisecond, the published function's ids are ordered by residue.
        let sorted = |mut residues: Vec<i64>| {
            residues.sort_unstable();
            residues
        };
        let residues = sorted(new.iter().map(|id| id & 1023).collect());
        let expected = sorted((used + 1..=used + 20).map(|value| value % 1024).collect());
        assert_eq!(residues, expected, "{}: {table}", variant.name);
        for id in new {
            assert_eq!(id >> 10 & 0x1fff, 5, "{}: {table}", variant.name);
            assert!((now - (id >> 23) * unit - epoch).abs() < 10_000, "{}: the time of {id}", variant.name);
        }
    }
}

fn now_ms(client: &mut Client) -> i64 {
    count(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
}

fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error}: {:?}", error.as_db_error()));
}

/// Makes a call that is refused, asserts that it changed nothing, and returns its error.
fn unchanged(client: &mut Client, call: &str) -> DbError {
    let before = texts(client, STATE);
    let rows = texts(client, "SELECT p::text FROM insta5.photos p ORDER BY 1");
    let error = refused(client, call);
    assert_eq!(texts(client, STATE), before, "{call}");
    assert_eq!(texts(client, "SELECT p::text FROM insta5.photos p ORDER BY 1"), rows, "{call}");
    error
}

fn said(error: &DbError) -> [&str; 4] {
    assert_ne!(error.hint(), Some(""), "{error:?}");
    [
        error.code().code(),
        error.message(),
        error.detail().unwrap_or_default(),
        error.hint().unwrap_or_default(),
    ]
}

const CANNOT: &str = "schema insta5 cannot be adopted as shard 5";

/// Creates the article's schema again, and runs this SQL in it.
fn anew(client: &mut Client, change: &str) {
    run(
        client,
        "SET client_min_messages = warning; DROP SCHEMA IF EXISTS insta5 CASCADE; DELETE FROM insta_ids_internal.shard; DELETE FROM insta_ids_internal.shard_migration",
    );
    run(client, &Variant::new("article", ARTICLE).sql());
    run(client, change);
}

/// Gives the schema and its objects to this role.
fn owned_by(client: &mut Client, role: &str) {
    run(
        client,
        &format!(
            "ALTER SCHEMA insta5 OWNER TO {role}; ALTER TABLE insta5.photos OWNER TO {role}; ALTER TABLE insta5.likes OWNER TO {role};
             ALTER SEQUENCE insta5.table_id_seq OWNER TO {role}; ALTER SEQUENCE insta5.photos_id_seq OWNER TO {role};
             ALTER SEQUENCE insta5.likes_id_seq OWNER TO {role}; ALTER FUNCTION insta5.next_id() OWNER TO {role}"
        ),
    );
}

/// Returns a call of adopt that confirms all unknown texts of the schema.
fn confirming(client: &mut Client) -> String {
    let dry_run = "SELECT insta_ids.adopt('insta5', 5, dry_run => true)";
    let digests = match client.batch_execute(dry_run) {
        Ok(()) => Vec::new(),
        Err(error) => digests(error.as_db_error().unwrap()),
    };
    format!("SELECT insta_ids.adopt('insta5', 5, confirm => '{{{}}}')", digests.join(","))
}

/// Returns the digests that an error asks the operator to confirm.
fn digests(error: &DbError) -> Vec<String> {
    let detail = error.detail().unwrap_or_default();
    detail.split("It has digest ").skip(1).map(|rest| rest[..64].to_owned()).collect()
}

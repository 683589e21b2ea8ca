//! Each finding by itself: what is done, what is found, and what mends it.

use super::{ALL_KINDS, check_clean, follow_hints, found, with_shards};

/// A statement in each of the shards, whose schema is `%1$I` in it.
macro_rules! everywhere {
    ($statement:literal) => {
        concat!(
            "DO $do$ DECLARE schema name; BEGIN FOR schema IN SELECT s.schema FROM insta_ids.shards s LOOP ",
            "EXECUTE format($each$",
            $statement,
            "$each$, schema); END LOOP; END $do$"
        )
    };
}

/// What is done, what is then found (`insta*` stands for each of the shards), and what mends it where that is not by the
/// hints.
const CASES: &[(&str, &[&str], Option<&str>)] = &[
    ("CREATE SCHEMA insta007", &["unmanaged_schema insta007"], None),
    ("CREATE SCHEMA insta5_old", &["unmanaged_schema insta5_old"], None),
    ("CREATE SCHEMA insta9999", &["unmanaged_schema insta9999"], None),
    ("CREATE SCHEMA insta8", &["unmanaged_schema insta8"], None),
    ("SELECT insta_ids.add_migration('0002', 'SELECT 1')", &["pending_migration 0002"], None),
    (
        "DROP TABLE insta3.likes",
        &["missing_object insta3.likes"],
        Some(
            r#"CREATE TABLE insta3.likes (id bigint PRIMARY KEY DEFAULT insta3.next_id('insta3.likes_id_seq') CHECK (id_shard(id) = 3), photo bigint REFERENCES insta3.photos, "Order" insta3.place, UNIQUE (photo, id)); CREATE RULE keep AS ON DELETE TO insta3.likes DO INSTEAD NOTHING"#,
        ),
    ),
    ("CREATE TABLE insta3.more (id int PRIMARY KEY)", &["extra_object insta3.more"], None),
    (
        "ALTER TABLE insta3.likes SET UNLOGGED",
        &["different_object insta3.likes"],
        Some("ALTER TABLE insta3.likes SET LOGGED"),
    ),
    (
        "ALTER TABLE insta3.photos ENABLE ROW LEVEL SECURITY",
        &["different_object insta3.photos"],
        Some("ALTER TABLE insta3.photos DISABLE ROW LEVEL SECURITY"),
    ),
    (
        "ALTER TABLE insta3.photos REPLICA IDENTITY FULL",
        &["different_object insta3.photos"],
        Some("ALTER TABLE insta3.photos REPLICA IDENTITY DEFAULT"),
    ),
    (r#"ALTER TABLE insta3.likes DROP COLUMN "Order""#, &[r#"missing_object insta3.likes."Order""#], None),
    ("ALTER TABLE insta3.photos DROP COLUMN number", &["missing_object insta3.photos.number"], None),
    ("ALTER TABLE insta3.photos DROP COLUMN length", &["missing_object insta3.photos.length"], None),
    ("ALTER TABLE insta3.photos DROP COLUMN size", &["missing_object insta3.photos.size"], None),
    ("ALTER TABLE insta3.photos DROP COLUMN at", &["missing_object insta3.photos.at"], None),
    (
        "ALTER TABLE insta3.photos DROP COLUMN caption CASCADE",
        &[
            "missing_object insta3.photos.caption",
            "missing_object insta3.photos.length",
            "missing_object insta3.photos.captions",
            "missing_object insta3.related",
            "missing_object insta3.happy",
        ],
        None,
    ),
    (r#"ALTER TABLE insta3.photos ADD "More" text"#, &[r#"extra_object insta3.photos."More""#], None),
    (
        "ALTER TABLE insta3.photos ALTER number TYPE bigint",
        &["different_object insta3.photos.number", "different_object insta3.photos.number"],
        None,
    ),
    (
        "ALTER TABLE insta3.photos ALTER caption DROP NOT NULL",
        &["missing_object insta3.photos.caption"],
        None,
    ),
    ("ALTER TABLE insta3.photos ALTER likes SET NOT NULL", &["extra_object insta3.photos.likes"], None),
    ("ALTER TABLE insta3.photos ALTER caption DROP DEFAULT", &["missing_object insta3.photos.caption"], None),
    ("ALTER TABLE insta3.photos ALTER id DROP DEFAULT", &["missing_object insta3.photos.id"], None),
    (
        "ALTER TABLE insta3.photos ALTER caption SET DEFAULT 'nothing'",
        &["different_object insta3.photos.caption"],
        None,
    ),
    (
        "ALTER TABLE insta3.photos ALTER mood SET DEFAULT 'happy'",
        &["different_object insta3.photos.mood"],
        None,
    ),
    ("ALTER TABLE insta3.photos ALTER likes SET DEFAULT 0", &["extra_object insta3.photos.likes"], None),
    ("DROP INDEX insta3.captions", &["missing_object insta3.photos.captions"], None),
    ("DROP INDEX insta3.events_what_idx", &["missing_object insta3.events.events_what_idx"], None),
    ("CREATE INDEX more ON insta3.photos (number)", &["extra_object insta3.photos.more"], None),
    (
        "CREATE INDEX more ON ONLY insta3.events (what)",
        &["extra_object insta3.events.more", "invalid_index insta3.more"],
        None,
    ),
    (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'insta3.captions'::regclass",
        &["invalid_index insta3.captions"],
        None,
    ),
    (
        "DROP INDEX insta3.captions; CREATE INDEX captions ON insta3.photos (upper(caption))",
        &["different_object insta3.photos.captions"],
        Some(
            "DROP INDEX insta3.captions; CREATE INDEX captions ON insta3.photos (lower(caption)) WHERE likes > 0",
        ),
    ),
    (
        "ALTER TABLE insta3.photos DROP CONSTRAINT photos_likes_check",
        &["missing_object insta3.photos.photos_likes_check"],
        None,
    ),
    (
        "ALTER TABLE insta3.likes DROP CONSTRAINT likes_photo_fkey",
        &["missing_object insta3.likes.likes_photo_fkey"],
        None,
    ),
    (
        "ALTER TABLE insta3.likes DROP CONSTRAINT likes_photo_id_key",
        &["missing_object insta3.likes.likes_photo_id_key"],
        None,
    ),
    (
        "ALTER TABLE insta3.likes DROP CONSTRAINT likes_pkey",
        &["missing_object insta3.likes.likes_pkey", "no_replica_identity insta3.likes"],
        Some("ALTER TABLE insta3.likes ADD PRIMARY KEY (id)"),
    ),
    (
        "ALTER TABLE insta3.photos ADD CONSTRAINT more CHECK (likes < 100)",
        &["extra_object insta3.photos.more"],
        None,
    ),
    (
        "ALTER TABLE insta3.photos DROP CONSTRAINT photos_likes_check, ADD CONSTRAINT photos_likes_check CHECK (likes > 0)",
        &["different_object insta3.photos.photos_likes_check"],
        None,
    ),
    ("CREATE SEQUENCE insta3.more", &["extra_object insta3.more"], None),
    ("ALTER SEQUENCE insta3.likes_id_seq INCREMENT BY 2", &["different_object insta3.likes_id_seq"], None),
    (
        "ALTER TABLE insta3.likes ALTER id SET DEFAULT next_id(3, 'insta3.table_id_seq'); DROP SEQUENCE insta3.likes_id_seq",
        &["missing_object insta3.likes_id_seq", "different_object insta3.likes.id"],
        None,
    ),
    ("DROP FUNCTION insta3.twice", &["missing_object insta3.twice(integer)"], None),
    ("DROP PROCEDURE insta3.rest", &["missing_object insta3.rest()"], None),
    ("DROP FUNCTION insta3.left_of", &["missing_object insta3.left_of(insta3.place)"], None),
    (
        "CREATE FUNCTION insta3.thrice(n integer, OUT m integer) LANGUAGE sql RETURN 3 * n",
        &["extra_object insta3.thrice(integer)"],
        None,
    ),
    (
        "CREATE OR REPLACE FUNCTION insta3.twice(n integer) RETURNS integer LANGUAGE sql RETURN n + n",
        &["different_object insta3.twice(integer)"],
        None,
    ),
    (
        "CREATE OR REPLACE FUNCTION insta3.touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
        &["different_object insta3.touch()"],
        None,
    ),
    (
        "ALTER FUNCTION insta3.touch() SECURITY DEFINER SET search_path = pg_catalog",
        &["different_object insta3.touch()"],
        None,
    ),
    ("DROP TRIGGER touch ON insta3.photos", &["missing_object insta3.photos.touch"], None),
    (
        "CREATE TRIGGER more AFTER UPDATE ON insta3.photos FOR EACH ROW EXECUTE FUNCTION insta3.touch()",
        &["extra_object insta3.photos.more"],
        None,
    ),
    (
        "ALTER TABLE insta3.photos DISABLE TRIGGER touch",
        &["different_object insta3.photos.touch"],
        Some("ALTER TABLE insta3.photos ENABLE TRIGGER touch"),
    ),
    ("DROP VIEW insta3.happy", &["missing_object insta3.happy"], None),
    ("CREATE VIEW insta3.sad AS SELECT 1", &["extra_object insta3.sad"], None),
    (
        "CREATE OR REPLACE VIEW insta3.happy AS SELECT id, caption FROM insta3.photos",
        &["different_object insta3.happy"],
        None,
    ),
    ("DROP MATERIALIZED VIEW insta3.counted", &["missing_object insta3.counted"], None),
    ("CREATE MATERIALIZED VIEW insta3.more AS SELECT 1", &["extra_object insta3.more"], None),
    (
        "DROP POLICY mine ON insta3.photos",
        &["missing_object insta3.photos.mine"],
        Some("CREATE POLICY mine ON insta3.photos USING (likes > 0)"),
    ),
    ("CREATE POLICY more ON insta3.photos USING (true)", &["extra_object insta3.photos.more"], None),
    (
        "ALTER POLICY mine ON insta3.photos USING (likes > 1)",
        &["different_object insta3.photos.mine"],
        Some("ALTER POLICY mine ON insta3.photos USING (likes > 0)"),
    ),
    ("DROP RULE keep ON insta3.likes", &["missing_object insta3.likes.keep"], None),
    (
        "CREATE RULE more AS ON INSERT TO insta3.likes DO INSTEAD NOTHING",
        &["extra_object insta3.likes.more"],
        None,
    ),
    (
        "CREATE OR REPLACE RULE keep AS ON DELETE TO insta3.likes DO ALSO NOTHING",
        &["different_object insta3.likes.keep"],
        Some("CREATE OR REPLACE RULE keep AS ON DELETE TO insta3.likes DO INSTEAD NOTHING"),
    ),
    ("CREATE TYPE insta3.more AS ENUM ('a')", &["extra_object insta3.more"], None),
    ("CREATE DOMAIN insta3.more AS text", &["extra_object insta3.more"], None),
    ("CREATE TYPE insta3.more AS (a int)", &["extra_object insta3.more"], None),
    (
        "ALTER TYPE insta3.mood ADD VALUE 'angry'",
        &["different_object insta3.mood"],
        Some("DELETE FROM pg_enum WHERE enumlabel = 'angry'"),
    ),
    ("ALTER TYPE insta3.place ADD ATTRIBUTE z integer", &["extra_object insta3.place.z"], None),
    ("ALTER TYPE insta3.place DROP ATTRIBUTE y", &["missing_object insta3.place.y"], None),
    (
        "DROP TYPE insta3.span",
        &["missing_object insta3.span"],
        Some("CREATE TYPE insta3.span AS RANGE (subtype = time)"),
    ),
    (
        "ALTER DOMAIN insta3.positive SET NOT NULL",
        &["different_object insta3.positive"],
        Some("ALTER DOMAIN insta3.positive DROP NOT NULL"),
    ),
    ("DROP STATISTICS insta3.related", &["missing_object insta3.related"], None),
    ("CREATE STATISTICS insta3.more ON mood, size FROM insta3.photos", &["extra_object insta3.more"], None),
    ("ALTER TABLE insta3.photos DROP CONSTRAINT photos_id_check", &["missing_check insta3.photos.id"], None),
    ("ALTER TABLE insta3.events DROP CONSTRAINT events_id_check", &["missing_check insta3.events.id"], None),
    (
        "ALTER TABLE insta3.photos ALTER id SET DEFAULT insta4.next_id()",
        &["different_object insta3.photos.id", "foreign_default insta3.photos.id"],
        None,
    ),
    (
        "ALTER TABLE insta3.likes ALTER id SET DEFAULT insta4.next_id('insta3.likes_id_seq')",
        &["different_object insta3.likes.id", "foreign_default insta3.likes.id"],
        None,
    ),
    (
        "ALTER TABLE insta3.likes ALTER id SET DEFAULT next_id(3, 'insta4.likes_id_seq')",
        &[
            "different_object insta3.likes.id",
            "foreign_default insta3.likes.id",
            "shared_sequence insta4.likes_id_seq",
        ],
        None,
    ),
    (
        "ALTER TABLE insta3.likes ALTER id SET DEFAULT next_id(4, 'insta3.likes_id_seq')",
        &["different_object insta3.likes.id", "foreign_default insta3.likes.id"],
        None,
    ),
    (
        "CREATE SEQUENCE public.common; ALTER TABLE insta3.likes ALTER id SET DEFAULT next_id(3, 'public.common')",
        &["different_object insta3.likes.id", "foreign_default insta3.likes.id"],
        Some(
            "ALTER TABLE insta3.likes ALTER id SET DEFAULT next_id(3, 'insta3.likes_id_seq'); DROP SEQUENCE public.common",
        ),
    ),
    (
        "CREATE OR REPLACE FUNCTION insta3.next_photo() RETURNS bigint LANGUAGE sql RETURN insta4.next_id()",
        &["different_object insta3.next_photo()", "foreign_function insta3.next_photo()"],
        None,
    ),
    (
        "CREATE OR REPLACE FUNCTION insta3.next_photo() RETURNS bigint LANGUAGE sql RETURN next_id(4, 'insta3.table_id_seq')",
        &["different_object insta3.next_photo()", "foreign_function insta3.next_photo()"],
        None,
    ),
    (
        "CREATE OR REPLACE FUNCTION insta3.next_id() RETURNS bigint LANGUAGE sql RETURN next_id(4, 'insta3.table_id_seq')",
        &["different_object insta3.next_id()", "foreign_function insta3.next_id()"],
        None,
    ),
    (
        "CREATE OR REPLACE FUNCTION insta3.next_id() RETURNS bigint LANGUAGE sql RETURN next_id(3, 'insta4.table_id_seq')",
        &[
            "different_object insta3.next_id()",
            "foreign_function insta3.next_id()",
            "shared_sequence insta4.table_id_seq",
        ],
        None,
    ),
    (
        "CREATE OR REPLACE FUNCTION insta3.next_id(seq_name regclass) RETURNS bigint LANGUAGE sql RETURN next_id(4, seq_name)",
        &["different_object insta3.next_id(regclass)", "foreign_function insta3.next_id(regclass)"],
        None,
    ),
    (
        "CREATE FUNCTION public.other() RETURNS bigint LANGUAGE sql AS 'SELECT nextval(''insta3.table_id_seq'') << 10'; ALTER TABLE insta3.photos ALTER id SET DEFAULT public.other()",
        &["different_object insta3.photos.id", "foreign_default insta3.photos.id"],
        Some("ALTER TABLE insta3.photos ALTER id SET DEFAULT insta3.next_id(); DROP FUNCTION public.other"),
    ),
    (
        "DROP TABLE insta3.likes; CREATE TABLE insta3.likes (LIKE insta4.likes INCLUDING ALL)",
        &[
            "missing_check insta3.likes.id",
            r#"different_object insta3.likes."Order""#,
            "extra_object insta3.likes.likes_id_check",
            "missing_object insta3.likes.likes_photo_fkey",
            "different_object insta3.likes.id",
            "missing_object insta3.likes.keep",
            "foreign_default insta3.likes.id",
            "shared_sequence insta4.likes_id_seq",
        ],
        None,
    ),
    (
        "CREATE TABLE insta3.logs (what text)",
        &["extra_object insta3.logs", "no_replica_identity insta3.logs"],
        None,
    ),
    (
        "ALTER TABLE insta3.photos ADD CONSTRAINT more CHECK (size < 100) NOT VALID",
        &["extra_object insta3.photos.more", "unvalidated_constraint insta3.photos.more"],
        None,
    ),
    (
        "ALTER SEQUENCE insta3.table_id_seq AS integer",
        &["different_object insta3.table_id_seq", "sequence_type insta3.table_id_seq"],
        None,
    ),
    (
        "ALTER SEQUENCE insta3.table_id_seq CYCLE",
        &["different_object insta3.table_id_seq", "sequence_cycle insta3.table_id_seq"],
        None,
    ),
    ("ALTER SEQUENCE insta3.table_id_seq SET UNLOGGED", &["sequence_unlogged insta3.table_id_seq"], None),
    (
        "SELECT setval('insta3.table_id_seq', 9223372036854775800)",
        &["end_of_sequence insta3.table_id_seq"],
        None,
    ),
    (
        "INSERT INTO insta3.photos (id, at) VALUES (-9223372036854775808 + (3 << 10), now())",
        &["negative_ids insta3.photos.id"],
        None,
    ),
    (
        "INSERT INTO insta3.photos (id, at) VALUES (make_id(now() + '10 s', 3, 5), now())",
        &["future_ids insta3.photos.id"],
        None,
    ),
    (
        "INSERT INTO insta3.photos (id, at) VALUES (make_id(now() + '1 day', 3, 5), now())",
        &["future_ids insta3.photos.id"],
        None,
    ),
    (
        "ALTER TABLE insta3.photos DROP CONSTRAINT photos_id_check; INSERT INTO insta3.photos (id, at) VALUES (insta4.next_id(), now()); ALTER TABLE insta3.photos ADD CHECK (id_shard(id) = 3) NOT VALID",
        &["unvalidated_constraint insta3.photos.photos_id_check", "foreign_ids insta3.photos.id"],
        None,
    ),
    (
        everywhere!("ALTER TABLE %1$I.likes DROP CONSTRAINT likes_pkey"),
        &["no_replica_identity insta*.likes"],
        None,
    ),
    (everywhere!("ALTER TABLE %1$I.likes REPLICA IDENTITY DEFAULT, ADD PRIMARY KEY (id)"), &[], None),
    (
        everywhere!("ALTER TABLE %1$I.photos ADD CONSTRAINT small CHECK (size < 100) NOT VALID"),
        &["unvalidated_constraint insta*.photos.small"],
        None,
    ),
    (
        everywhere!("ALTER SEQUENCE %1$I.table_id_seq AS integer"),
        &["sequence_type insta*.table_id_seq"],
        None,
    ),
    (everywhere!("ALTER SEQUENCE %1$I.table_id_seq CYCLE"), &["sequence_cycle insta*.table_id_seq"], None),
    (
        everywhere!("ALTER TABLE %1$I.events DROP CONSTRAINT events_id_check"),
        &["missing_check insta*.events.id"],
        None,
    ),
    (
        "DO $do$ BEGIN FOR n IN 0..5 LOOP EXECUTE format('CREATE FUNCTION insta%1$s.many() RETURNS SETOF bigint LANGUAGE sql RETURN next_ids(%1$s, ''insta%1$s.table_id_seq'', 5)', n); END LOOP; END $do$; ALTER TABLE insta3.likes ADD more integer",
        &["extra_object insta3.likes.more"],
        None,
    ),
    (
        "CREATE OR REPLACE FUNCTION insta3.many() RETURNS SETOF bigint LANGUAGE sql RETURN next_ids(4, 'insta3.table_id_seq', 5)",
        &["different_object insta3.many()", "foreign_function insta3.many()"],
        None,
    ),
    ("ALTER VIEW insta3.happy SET (security_barrier)", &["different_object insta3.happy"], None),
    (
        everywhere!(
            "CREATE VIEW %1$I.barred WITH (security_barrier, security_invoker) AS SELECT id FROM %1$I.photos"
        ),
        &[],
        None,
    ),
    (
        "CREATE OR REPLACE VIEW insta3.barred WITH (security_barrier, security_invoker) AS SELECT id FROM insta3.photos WHERE likes > 0",
        &["different_object insta3.barred"],
        None,
    ),
    ("DROP VIEW insta3.barred", &["missing_object insta3.barred"], None),
    // The same words in another order.
    (
        everywhere!(
            "CREATE FUNCTION %1$I.up(n integer) RETURNS integer LANGUAGE sql RETURN n + 1; CREATE FUNCTION %1$I.down(n integer) RETURNS integer LANGUAGE sql RETURN n - 1"
        ),
        &[],
        None,
    ),
    (everywhere!("ALTER TABLE %1$I.photos ALTER likes SET DEFAULT %1$I.up(%1$I.down(1))"), &[], None),
    (
        "ALTER TABLE insta3.photos ALTER likes SET DEFAULT insta3.down(insta3.up(1))",
        &["different_object insta3.photos.likes"],
        None,
    ),
    (
        everywhere!(
            "ALTER TABLE %1$I.likes ALTER id SET DEFAULT CASE WHEN random() < 2 THEN %1$I.next_id('%1$I.likes_id_seq') ELSE %1$I.next_id('%1$I.table_id_seq') END"
        ),
        &[],
        None,
    ),
    (
        "ALTER TABLE insta3.likes ALTER id SET DEFAULT CASE WHEN random() < 2 THEN insta3.next_id('insta3.table_id_seq') ELSE insta3.next_id('insta3.likes_id_seq') END",
        &["different_object insta3.likes.id"],
        None,
    ),
    (everywhere!("ALTER TABLE %1$I.likes ALTER id SET DEFAULT %1$I.next_id('%1$I.likes_id_seq')"), &[], None),
    (
        everywhere!(
            "CREATE TABLE %1$I.derived (id integer PRIMARY KEY, a text, b text, c text GENERATED ALWAYS AS (upper(a)) STORED)"
        ),
        &[],
        None,
    ),
    (
        "DROP TABLE insta3.derived; CREATE TABLE insta3.derived (id integer PRIMARY KEY, b text, a text, c text GENERATED ALWAYS AS (upper(b)) STORED)",
        &["different_object insta3.derived.c"],
        Some(
            "ALTER TABLE insta3.derived DROP COLUMN c; ALTER TABLE insta3.derived ADD c text GENERATED ALWAYS AS (upper(a)) STORED",
        ),
    ),
    // The number of a shard outside of next_id is as good as any other.
    (
        "CREATE OR REPLACE FUNCTION insta3.next_photo() RETURNS bigint LANGUAGE sql RETURN insta3.next_id() + 3; CREATE OR REPLACE FUNCTION insta4.next_photo() RETURNS bigint LANGUAGE sql RETURN insta4.next_id() + 4",
        &["different_object insta3.next_photo()", "different_object insta4.next_photo()"],
        None,
    ),
    // What all share, and what most have.
    (
        "CREATE FUNCTION public.ticks() RETURNS bigint LANGUAGE sql AS 'SELECT extract(epoch FROM clock_timestamp())::bigint'",
        &[],
        None,
    ),
    (everywhere!("ALTER TABLE %1$I.photos ADD ticks bigint DEFAULT public.ticks()"), &[], None),
    (
        everywhere!(
            "ALTER TABLE %1$I.photos ALTER id SET DEFAULT CASE WHEN 5 > random() THEN %1$I.next_id() END"
        ),
        &[],
        None,
    ),
    (everywhere!("ALTER TABLE %1$I.photos ALTER id SET DEFAULT %1$I.next_id()"), &[], None),
    (everywhere!("CREATE AGGREGATE %1$I.total(integer) (sfunc = int4pl, stype = integer)"), &[], None),
    (
        "DROP AGGREGATE insta3.total(integer)",
        &["missing_object insta3.total(integer)"],
        Some("CREATE AGGREGATE insta3.total(integer) (sfunc = int4pl, stype = integer)"),
    ),
    (
        everywhere!(
            "CREATE FUNCTION %1$I.pinned() RETURNS name LANGUAGE plpgsql SET search_path = %1$I, public AS 'BEGIN RETURN current_schema; END'"
        ),
        &[],
        None,
    ),
    ("DROP FUNCTION insta3.pinned", &["missing_object insta3.pinned()"], None),
    ("ALTER FUNCTION insta3.pinned() SET search_path = insta4", &["different_object insta3.pinned()"], None),
    (
        "DO $do$ BEGIN FOR n IN 0..5 LOOP CONTINUE WHEN n = 3; EXECUTE format('ALTER FUNCTION insta%s.pinned() SET search_path = insta4', n); END LOOP; END $do$",
        &["different_object insta3.pinned()", "different_object insta4.pinned()"],
        Some(everywhere!("ALTER FUNCTION %1$I.pinned() SET search_path = %1$I, public")),
    ),
    ("ALTER FUNCTION insta3.twice(integer) STRICT", &["different_object insta3.twice(integer)"], None),
    ("ALTER FUNCTION insta3.next_id() SECURITY DEFINER", &["different_object insta3.next_id()"], None),
    (
        everywhere!(
            "CREATE FUNCTION %1$I.same(a text, b text) RETURNS boolean LANGUAGE sql RETURN length(a) = length(b)"
        ),
        &[],
        None,
    ),
    (
        everywhere!("CREATE OPERATOR %1$I.=== (FUNCTION = %1$I.same, LEFTARG = text, RIGHTARG = text)"),
        &[],
        None,
    ),
    (everywhere!("ALTER TABLE %1$I.photos ADD alike boolean DEFAULT 'a' OPERATOR(%1$I.===) 'b'"), &[], None),
    (
        "CREATE OPERATOR insta3.==== (FUNCTION = insta3.same, LEFTARG = text, RIGHTARG = text); ALTER TABLE insta3.photos ALTER alike SET DEFAULT 'a' OPERATOR(insta3.====) 'b'",
        &["different_object insta3.photos.alike"],
        None,
    ),
    (
        "ALTER TABLE insta3.photos REPLICA IDENTITY USING INDEX photos_pkey; ALTER TABLE insta3.likes DROP CONSTRAINT likes_photo_fkey; ALTER TABLE insta3.photos DROP CONSTRAINT photos_pkey",
        &[
            "different_object insta3.photos",
            "missing_object insta3.likes.likes_photo_fkey",
            "missing_object insta3.photos.photos_pkey",
            "no_replica_identity insta3.photos",
        ],
        Some("ALTER TABLE insta3.photos ADD PRIMARY KEY (id), REPLICA IDENTITY DEFAULT"),
    ),
    ("CREATE TABLE insta3.events_2 PARTITION OF insta3.events FOR VALUES FROM (0) TO (1)", &[], None),
    (everywhere!("ALTER TABLE %1$I.likes ADD event bigint REFERENCES %1$I.events"), &[], None),
    ("CREATE TABLE insta3.events_3 PARTITION OF insta3.events FOR VALUES FROM (1) TO (2)", &[], None),
    (
        "ALTER TABLE insta3.likes DROP CONSTRAINT likes_event_fkey",
        &["missing_object insta3.likes.likes_event_fkey"],
        None,
    ),
    (
        "CREATE SEQUENCE public.tiny MAXVALUE 2 START 2; CREATE SEQUENCE public.down INCREMENT -9223372036854775808",
        &[],
        None,
    ),
    (
        everywhere!(
            "CREATE FUNCTION %1$I.by_more() RETURNS bigint LANGUAGE sql RETURN next_id(7, 'public.tiny') + next_id(8, 'public.down')"
        ),
        &["foreign_function insta*.by_more()", "shared_sequence public.down", "shared_sequence public.tiny"],
        Some(everywhere!("DROP FUNCTION %1$I.by_more")),
    ),
    (
        "ALTER TABLE insta3.photos DROP COLUMN at; INSERT INTO insta3.photos DEFAULT VALUES; ALTER TABLE insta3.photos ADD at timestamptz NOT NULL DEFAULT now(); ALTER TABLE insta3.photos ALTER at DROP DEFAULT",
        &[],
        None,
    ),
];

fn of_each_shard(object: &str) -> Vec<String> {
    let shards = if object.contains('*') { 0..6 } else { 0..1 };
    shards.map(|shard| object.replace('*', &shard.to_string())).collect()
}

/// Each case of [`CASES`] is found, and nothing else is. Following the hints mends it.
#[test]
fn each_finding_is_found_and_mended() {
    let (_cluster, mut client) = with_shards("check_each", ALL_KINDS, 5);
    check_clean(&mut client);
    for &(done, expected, mended) in CASES {
        client.batch_execute(done).unwrap_or_else(|error| panic!("{done}: {error:?}"));
        let mut expected: Vec<String> = expected.iter().flat_map(|object| of_each_shard(object)).collect();
        expected.sort();
        assert_eq!(found(&mut client), expected, "{done}");
        if let Some(mended) = mended {
            client.batch_execute(mended).unwrap_or_else(|error| panic!("{mended}: {error:?}"));
        }
        follow_hints(&mut client, done);
    }
}

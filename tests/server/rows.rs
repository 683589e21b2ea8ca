//! Rows that are read without the planner: as a query would read them, and nothing of the owner's is run.

use support::{Cluster, count, texts};

/// Tables with what a scan could take wrongly: dropped and added columns, NULLs, dead rows, long values, children, and
/// indexes of each kind.
const TABLES: &str = "
    CREATE FUNCTION id_of(n bigint) RETURNS bigint IMMUTABLE LANGUAGE sql RETURN
        CASE n % 7 WHEN 0 THEN -n WHEN 1 THEN NULL ELSE make_id(now() - n * '1 s'::interval, (n % 3)::integer, n % 1024) END;
    CREATE DOMAIN key AS bigint;
    CREATE TABLE plain (gone text, id bigint);
    ALTER TABLE plain DROP COLUMN gone, ADD COLUMN added text DEFAULT 'x', ADD COLUMN long text;
    INSERT INTO plain (id, long) SELECT id_of(n), repeat(n::text, 1000) FROM generate_series(1, 300) n;
    DELETE FROM plain WHERE id % 5 = 0;
    CREATE TABLE backwards AS SELECT id::key FROM plain;
    CREATE INDEX ON backwards (id DESC NULLS FIRST);
    CREATE TABLE forwards AS SELECT id, long FROM plain;
    CREATE UNIQUE INDEX ON forwards (id) INCLUDE (long);
    CREATE TABLE partial AS SELECT id FROM plain;
    CREATE INDEX ON partial (id) WHERE id > 0;
    CREATE INDEX ON partial USING hash (id);
    CREATE INDEX ON partial ((id + 1), id);
    CREATE TABLE parent (LIKE plain INCLUDING ALL);
    CREATE TABLE child () INHERITS (parent);
    INSERT INTO parent SELECT * FROM plain LIMIT 20;
    INSERT INTO child SELECT * FROM plain OFFSET 20;
    CREATE TABLE split (id bigint) PARTITION BY RANGE (id);
    CREATE TABLE negative PARTITION OF split FOR VALUES FROM (MINVALUE) TO (0);
    CREATE TABLE positive PARTITION OF split DEFAULT PARTITION BY RANGE (id);
    CREATE TABLE rest PARTITION OF positive DEFAULT;
    CREATE INDEX ON split (id);
    INSERT INTO split SELECT id FROM plain;
    CREATE TABLE empty (id bigint PRIMARY KEY);";

/// What is found of ids is what SQL finds: in all rows, and at the ends of what there is in order.
#[test]
fn surveys_count_ids_as_a_query_does() {
    let cluster = Cluster::start("rows");
    let mut client = cluster.connect();
    client.batch_execute(TABLES).unwrap();
    let beyond = "id_min(now() - '100 s'::interval)";
    for (table, is_indexed) in [
        ("plain", false),
        ("backwards", true),
        ("forwards", true),
        ("partial", false),
        ("parent", false),
        ("child", false),
        ("split", true),
        ("empty", true),
    ] {
        for (every_row, since) in [(true, "0"), (true, "id_min(now() - '150 s'::interval)"), (false, "0")] {
            let only = if every_row || table == "split" { "" } else { "ONLY" };
            let ids = if every_row {
                format!("SELECT id::bigint FROM {only} {table} WHERE id IS NOT NULL")
            } else if !is_indexed {
                "SELECT 1::bigint WHERE false".to_owned()
            } else {
                // Each leaf has its ends.
                format!(
                    "SELECT unnest(ARRAY[min(id), max(id)])::bigint FROM {table} WHERE id IS NOT NULL
                     GROUP BY tableoid HAVING count(*) > 0"
                )
            };
            let expected = format!(
                "SELECT ROW(count(*), min(id) FILTER (WHERE id >= {since}), max(id) FILTER (WHERE id >= {since} OR id >= 0 AND id_shard(id) = 2),
                     count(*) FILTER (WHERE id < 0 AND {since} = 0), max(id) FILTER (WHERE id < 0 AND {since} = 0),
                     count(*) FILTER (WHERE id >= {since} AND id_shard(id) <> 2), min(id) FILTER (WHERE id >= {since} AND id_shard(id) <> 2),
                     count(*) FILTER (WHERE id >= {beyond} AND id_shard(id) = 2),
                     max(id) FILTER (WHERE id >= {beyond} AND id_shard(id) = 2))::text
                 FROM ({ids}) i (id)"
            );
            let found = format!(
                "SELECT ROW(coalesce(ids, 0), oldest, newest, coalesce(negative, 0), a_negative, coalesce(foreign_ids, 0),
                     a_foreign_id, coalesce(future, 0), newest_future)::text
                 FROM insta_ids_internal.survey_column('{table}'::regclass, 'id', 2, 'instagram', {since}, {beyond}, {every_row})"
            );
            // The time is that of the transaction.
            client.batch_execute("BEGIN").unwrap();
            assert_eq!(
                texts(&mut client, &found),
                texts(&mut client, &expected),
                "{table}, every row: {every_row}"
            );
            client.batch_execute("COMMIT").unwrap();
        }
    }
    // A child that only its own session can read is left out.
    let mut other = cluster.connect();
    other
        .batch_execute("CREATE TEMP TABLE theirs () INHERITS (parent); INSERT INTO theirs (id) VALUES (5)")
        .unwrap();
    let ids = "SELECT ids FROM insta_ids_internal.survey_column('parent'::regclass, 'id', 2, 'instagram', 0, 1, true)";
    assert_eq!(count(&mut other, ids), count(&mut client, ids) + 1);
    // What is not there has none.
    for (table, column) in [
        ("0", "id"),
        ("'plain'::regclass", "nothing"),
        ("'plain'::regclass", "ctid"),
        ("'plain'::regclass", "long"),
    ] {
        let found = format!(
            "SELECT coalesce(ids, 0) FROM insta_ids_internal.survey_column({table}, '{column}', 2, 'instagram', 0, 1, true)"
        );
        assert_eq!(count(&mut client, &found), 0, "{table} {column}");
    }
}

/// Tables with the same rows have the same hash, whatever the order of rows and columns and the session's settings; with
/// others, another one.
#[test]
fn tables_with_the_same_rows_have_the_same_hash() {
    let cluster = Cluster::start("hashes");
    let mut client = cluster.connect();
    client.batch_execute(TABLES).unwrap();
    client
        .batch_execute(
            "CREATE TABLE one (id bigint, a text, b text, t timestamptz, f float8, j jsonb, r int4range, p plain);
             INSERT INTO one SELECT n, NULLIF(n % 3, 0), repeat('y', (n * 50)::integer), to_timestamp(n), n / 7.0, jsonb_build_object('n', n),
                 int4range(n::integer, n::integer + 5), (SELECT p FROM plain p LIMIT 1) FROM generate_series(1, 100) n;
             CREATE TABLE other (p plain, gone text, r int4range, j jsonb, f float8, b text, a text, t timestamptz, id bigint);
             ALTER TABLE other DROP COLUMN gone;
             INSERT INTO other (id, a, b, t, f, j, r, p) SELECT * FROM one ORDER BY id DESC",
        )
        .unwrap();
    let hash = |client: &mut postgres::Client, table: &str| {
        texts(
            client,
            &format!("SELECT ROW(s.*)::text FROM insta_ids_internal.survey_rows('{table}'::regclass) s"),
        )
    };
    let same = hash(&mut client, "one");
    assert_eq!(hash(&mut client, "other"), same);
    client
        .batch_execute("SET timezone = 'Asia/Tokyo'; SET datestyle = 'SQL, DMY'; SET extra_float_digits = -5")
        .unwrap();
    assert_eq!(hash(&mut client, "other"), same);
    // Whatever the owner may and sees.
    client
        .batch_execute(
            "CREATE ROLE owner; ALTER TABLE other OWNER TO owner; REVOKE USAGE ON SCHEMA public FROM PUBLIC;
             ALTER TABLE other ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        )
        .unwrap();
    assert_eq!(hash(&mut client, "other"), same);
    let rows = "SELECT count(*) FROM (SELECT insta_ids_internal.row_hashes('one'::regclass)
        EXCEPT ALL SELECT insta_ids_internal.row_hashes('other'::regclass)) d";
    assert_eq!(count(&mut client, rows), 0);
    // However many rows there are, memory is bounded.
    client
        .batch_execute(
            "CREATE TABLE many AS SELECT generate_series(1, 100000) AS id; SET work_mem = '64kB'; SET log_temp_files = 0;
             SELECT count(*) FROM (SELECT insta_ids_internal.row_hashes('many'::regclass)) h;
             RESET work_mem; RESET log_temp_files",
        )
        .unwrap();
    cluster.await_log("temporary file: path");
    for change in [
        "DELETE FROM other WHERE id = 7",
        "INSERT INTO other SELECT * FROM other WHERE id = 7",
        "UPDATE other SET a = b, b = a WHERE id = 7",
        "UPDATE other SET a = '' WHERE id = 3",
        "UPDATE other SET a = b, b = NULL WHERE id = 3",
        "UPDATE other SET f = f + 1e-12 WHERE id = 50",
        "UPDATE other SET j = '{}' WHERE id = 50",
        "UPDATE other SET t = t + interval '1 microsecond' WHERE id = 50",
    ] {
        client.batch_execute(&format!("BEGIN; {change}")).unwrap();
        assert_ne!(hash(&mut client, "other"), same, "{change}");
        client.batch_execute("ROLLBACK").unwrap();
    }
}

//! Tables whose rows are not in their own heaps: nothing is decided by their empty heaps.

use postgres::Client;
use postgres::error::DbError;
use support::pair::settings;
use support::{Cluster, count, refused, texts};

use crate::engines::CATALOGS_OF_CITUS;

/// The table `odd` of a schema, in which another table than `odd` itself can be the one without a heap.
struct Kind {
    made_by: &'static str,
    without_heap: &'static str,
    is: &'static str,
    /// Triggers stop those who write to it.
    can_be_fenced: bool,
}

const COLUMNS: &str = "(id bigint DEFAULT next_id(5, '{schema}.table_id_seq'), n bigint)";

const KINDS: [Kind; 6] = [
    // Its rows are in a table like odd_102008, which Citus hides.
    Kind {
        made_by: "CREATE TABLE {schema}.odd {columns};
            INSERT INTO pg_catalog.pg_dist_partition VALUES ('{schema}.odd', 'n', 's')",
        without_heap: "odd",
        is: "Citus table",
        can_be_fenced: false,
    },
    Kind {
        made_by: "CREATE TABLE {schema}.odd {columns} PARTITION BY RANGE (id);
            CREATE TABLE {schema}.odd_1 PARTITION OF {schema}.odd DEFAULT;
            INSERT INTO pg_catalog.pg_dist_partition VALUES ('{schema}.odd', 'h', 's')",
        without_heap: "odd",
        is: "Citus table",
        can_be_fenced: false,
    },
    Kind {
        made_by: "CREATE TABLE {schema}.odd {columns} PARTITION BY RANGE (id);
            CREATE TABLE {schema}.odd_1 PARTITION OF {schema}.odd DEFAULT;
            INSERT INTO pg_catalog.pg_dist_partition VALUES ('{schema}.odd_1', 'h', 's')",
        without_heap: "odd_1",
        is: "Citus table",
        can_be_fenced: false,
    },
    Kind {
        made_by: "CREATE TABLE {schema}.odd {columns} USING other",
        without_heap: "odd",
        is: "table with another access method than heap",
        can_be_fenced: false,
    },
    Kind {
        made_by: "CREATE FOREIGN TABLE {schema}.odd {columns} SERVER nowhere",
        without_heap: "odd",
        is: "foreign table",
        can_be_fenced: true,
    },
    Kind {
        made_by: "CREATE TABLE {schema}.odd {columns} PARTITION BY RANGE (id);
            CREATE FOREIGN TABLE {schema}.odd_1 PARTITION OF {schema}.odd DEFAULT SERVER nowhere",
        without_heap: "odd_1",
        is: "foreign table",
        can_be_fenced: true,
    },
];

impl Kind {
    fn made_in(&self, schema: &str) -> String {
        self.made_by.replace("{columns}", COLUMNS).replace("{schema}", schema)
    }
}

/// What `call` raises where the table is in `schema`. Nothing of it stays.
fn refusal(client: &mut Client, kind: &Kind, schema: &str, call: &str) -> DbError {
    client.batch_execute(&format!("BEGIN; {}", kind.made_in(schema))).unwrap();
    let error = refused(client, call);
    client.batch_execute("ROLLBACK").unwrap();
    error
}

/// Shard 5 of node `a`, and what the kinds of tables need.
fn server(name: &str) -> (Cluster, Client) {
    let cluster = Cluster::with(name, &settings("a"));
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE EXTENSION insta_ids; SELECT insta_ids.init(8);
             SELECT insta_ids.add_node('a', 'host=a'), insta_ids.add_node('b', 'host=b'), insta_ids.assign(0, 7, 'a');
             SELECT insta_ids.create_shard(5);
             CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
             CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
             CREATE SEQUENCE public.table_id_seq; CREATE SCHEMA restored; CREATE SEQUENCE restored.table_id_seq;
             CREATE SCHEMA insta7; CREATE SEQUENCE insta7.table_id_seq",
        )
        .unwrap();
    client.batch_execute(CATALOGS_OF_CITUS).unwrap();
    (cluster, client)
}

#[test]
fn shards_with_rows_elsewhere_are_refused() {
    let (_cluster, mut client) = server("heaps");
    for kind in &KINDS {
        // What only has to be fenced can have foreign tables.
        for (schema, call, is_fence) in [
            ("insta5", "SELECT insta_ids.drop_shard(5)", false),
            ("insta5", "SELECT insta_ids.clone_shard(5, 6)", false),
            ("insta5", "SELECT insta_ids.fence(5)", true),
            ("insta5", "SELECT insta_ids.replace_shard(5, 'restored')", true),
            ("restored", "SELECT insta_ids.replace_shard(5, 'restored')", true),
            ("insta5", "SELECT insta_ids.unadopt('insta5')", true),
            ("insta7", "SELECT insta_ids.adopt('insta7', 7)", true),
            ("insta7", "SELECT insta_ids.adopt('insta7', 7, dry_run => true)", true),
            ("insta5", "SELECT insta_ids_internal.move_offer(5, 5, 'b')", true),
        ] {
            if is_fence && kind.can_be_fenced {
                continue;
            }
            let error = refusal(&mut client, kind, schema, call);
            // The restored schema has the other one's name already.
            let named = if schema == "restored" { "insta5" } else { schema };
            assert_eq!(
                error.message(),
                format!("rows of table {named}.{} are not in its heap", kind.without_heap),
                "{call}"
            );
            assert_eq!(
                error.detail(),
                Some(&*format!("It is a {}. Its rows cannot be read or locked here.", kind.is)),
                "{call}"
            );
        }
        if kind.can_be_fenced {
            client.batch_execute(&format!("BEGIN; {}", kind.made_in("insta5"))).unwrap();
            client.batch_execute("SELECT insta_ids.fence(5); ROLLBACK").unwrap();
            // What a fence can stop cannot be moved nevertheless.
            let error =
                refusal(&mut client, kind, "insta5", "SELECT insta_ids_internal.move_offer(5, 5, 'b')");
            assert_eq!(error.message(), "shard 5 cannot be moved");
        }
        client.batch_execute(&format!("BEGIN; {}", kind.made_in("insta5"))).unwrap();
        client.batch_execute("SELECT insta_ids.drop_shard(5, force => true); ROLLBACK").unwrap();
    }
}

/// Every function that reads rows of a heap asks first.
#[test]
fn the_readers_of_heaps_refuse_other_tables() {
    let (_cluster, mut client) = server("heap_readers");
    let readers = texts(
        &mut client,
        "SELECT p.proname::text FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
         WHERE p.pronamespace = 'insta_ids_internal'::regnamespace AND l.lanname = 'c' AND p.proargnames[1] = 'table' ORDER BY 1",
    );
    // Each reader with the rest of its arguments.
    let expected = [
        ("has_rows", ""),
        ("hashes_in_table", ", '{id}'"),
        ("keys_in_table", ", '{id}', '{1}'"),
        ("row_hashes", ""),
        ("rows_of_hashes", ", '{id}', '{1}'"),
        ("survey_ids", ", 'id', 5, 'instagram', 0, 0, true"),
        ("survey_rows", ""),
    ];
    assert_eq!(readers, expected.map(|(reader, _)| reader));
    for kind in &KINDS {
        for (reader, rest) in expected {
            let table = kind.without_heap;
            let call = format!("SELECT insta_ids_internal.{reader}('insta5.{table}'::regclass{rest})");
            let error = refusal(&mut client, kind, "insta5", &call);
            assert_eq!(error.message(), format!("rows of table {table} are not in its heap"), "{call}");
            assert_eq!(error.detail(), Some(&*format!("It is a {}.", kind.is)), "{call}");
        }
    }
}

#[test]
fn checks_say_which_tables_they_could_not_read() {
    const FOUND: &str = "SELECT concat_ws(' ', severity, code, object, detail) FROM insta_ids.check()
        WHERE code IN ('not_read', 'citus_with_map') ORDER BY code";
    let (_cluster, mut client) = server("heap_checks");
    client
        .batch_execute(
            "CREATE TABLE insta5.photos (id bigint DEFAULT insta5.next_id()); INSERT INTO insta5.photos DEFAULT VALUES;
             ANALYZE insta5.photos",
        )
        .unwrap();
    let rows = "SELECT coalesce(rows, -1) FROM insta_ids.shards WHERE shard = 5";
    assert_eq!((count(&mut client, rows), texts(&mut client, FOUND)), (1, vec![]));
    client.batch_execute("CALL insta_ids.check_rows()").unwrap();
    for kind in &KINDS {
        client.batch_execute(&kind.made_in("insta5")).unwrap();
        let mut expected = vec![format!(
            "notice not_read insta5.{} Tables whose rows could not be read: 1. The first with: It is a {}.",
            kind.without_heap, kind.is
        )];
        if kind.is == "Citus table" {
            let detail =
                "The map has shard 5 on node \"a\", and Citus has rows of this table, on nodes of its own.";
            expected.insert(0, format!("error citus_with_map insta5.{} {detail}", kind.without_heap));
        }
        assert_eq!(texts(&mut client, FOUND), expected);
        assert_eq!(count(&mut client, rows), if kind.is == "Citus table" { -1 } else { 1 });
        // A foreign table of its own gets no ids from a default here.
        if (kind.without_heap, kind.is) == ("odd", "foreign table") {
            client.batch_execute("CALL insta_ids.check_rows()").unwrap();
        } else {
            let error = refused(&mut client, "CALL insta_ids.check_rows()");
            assert_eq!(
                error.message(),
                "1 of 1 shards have ids that should not be there, or could not be read"
            );
        }
        let drop =
            if kind.made_by.starts_with("CREATE FOREIGN") { "DROP FOREIGN TABLE" } else { "DROP TABLE" };
        client
            .batch_execute(&format!("DELETE FROM pg_catalog.pg_dist_partition; {drop} insta5.odd CASCADE"))
            .unwrap();
    }
}

#[test]
fn rows_elsewhere_are_not_distributed() {
    let (_cluster, mut client) = server("heap_sources");
    client
        .batch_execute(
            "DROP SCHEMA insta7 CASCADE; CREATE TABLE users (id bigint PRIMARY KEY, n bigint NOT NULL);
             SELECT insta_ids.add_migration('0001', 'CREATE TABLE users (id bigint PRIMARY KEY, n bigint NOT NULL)')",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 7)").unwrap();
    for kind in &KINDS {
        let error =
            refusal(&mut client, kind, "public", "SELECT insta_ids.distribute_table('odd', 'n', 'users')");
        let reason = format!("It, or a partition of it, is a {}.", kind.is);
        assert!(error.detail().unwrap().contains(&reason), "{error:?}");
    }
    let of_citus = "INSERT INTO pg_catalog.pg_dist_partition VALUES";
    client.batch_execute(&format!("BEGIN; {of_citus} ('insta3.users', 'n', 's')")).unwrap();
    let error = refused(&mut client, "SELECT insta_ids.distribute_table('users', 'n')");
    assert_eq!(error.detail(), Some("Table insta3.users, or a partition of it, is a Citus table."));
    // All shards must be fenced where clients have to go back.
    client
        .batch_execute(&format!(
            "ROLLBACK; SELECT insta_ids.distribute_table('users', 'n');
             CREATE TABLE insta6.odd (); {of_citus} ('insta6.odd', 'n', 's')"
        ))
        .unwrap();
    let error = refused(&mut client, "CALL insta_ids.distribute()");
    assert_eq!(error.message(), "rows of table insta6.odd are not in its heap");
}

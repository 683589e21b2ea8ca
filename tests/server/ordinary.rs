//! Promise: whatever else a database does with tables of ids, it does as with any others: no id comes twice, and what
//! hangs on ids stays right.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use postgres::error::SqlState;

use crate::cluster::{
    Cluster, PRELOAD, clock_ahead, count, disorders, duplicates, has, ids, refused, texts, within,
};
use crate::docs;
use crate::shards::add;

/// A table of ids, with all that can hang on them.
const PHOTOS: &str = "
    CREATE SEQUENCE s;
    CREATE TABLE photos (
        id bigint PRIMARY KEY DEFAULT next_id(5, 's'),
        n int,
        shard int GENERATED ALWAYS AS (id_shard(id)) STORED,
        CHECK (id_shard(id) = 5)
    );
    CREATE INDEX photos_time ON photos (id_time(id));
    CREATE INDEX photos_seq ON photos (id_seq(id), n);
    CREATE STATISTICS photos_parts ON (id_time(id)), (id_shard(id)) FROM photos";

const MORE: &str = "INSERT INTO photos (n) SELECT n FROM generate_series(1, 1000) n";
const MINT: &str = "SELECT next_id(5, 's') FROM generate_series(1, 1000)";
const FINDINGS: &str = "SELECT concat_ws('|', severity, code, object, detail, hint) FROM insta_ids.check()";

const MIGRATION: &str =
    "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int); CREATE INDEX ON photos (n)";

/// Four shards with rows, and a map that has them here.
fn make_shards(client: &mut Client) {
    client.batch_execute("SELECT insta_ids.init(10)").unwrap();
    add(client, "0001", MIGRATION);
    client.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    client
        .batch_execute(
            "INSERT INTO insta1.photos (n) SELECT n FROM generate_series(1, 100) n;
             SELECT insta_ids.add_node('a', 'host=/nowhere'), insta_ids.add_node('b', 'host=/elsewhere'),
                    insta_ids.assign(0, 8, 'a'), insta_ids.assign(9, 9, 'b')",
        )
        .unwrap();
}

/// That each index of `photos` leads to the rows that are there, and what hangs on the ids is right. Returns them.
fn sound(client: &mut Client) -> Vec<i64> {
    let minted = ids(client, "SELECT id FROM photos ORDER BY id");
    let wrong = "SELECT count(*) FROM photos WHERE shard IS DISTINCT FROM id_shard(id) OR id_shard(id) <> 5";
    assert_eq!((duplicates([&minted]), count(client, wrong)), (0, 0));
    client
        .batch_execute(
            "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
        )
        .unwrap();
    for (index, condition) in [
        ("photos_pkey", "id > 0"),
        ("photos_time", "id_time(id) > '2011-08-24'"),
        ("photos_seq", "id_seq(id) >= 0"),
    ] {
        let found = format!("SELECT id FROM photos WHERE {condition}");
        let plan = texts(client, &format!("EXPLAIN (COSTS OFF) {found}"));
        assert!(plan[0].contains(index), "{plan:?}");
        let mut found = ids(client, &found);
        found.sort_unstable();
        assert!(found == minted, "{index} leads to {} of {} rows", found.len(), minted.len());
    }
    client
        .batch_execute("RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_indexonlyscan")
        .unwrap();
    let broken = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT (indisvalid AND indisready)
                  UNION ALL SELECT conname::text FROM pg_constraint WHERE NOT convalidated";
    assert_eq!(texts(client, broken), [""; 0]);
    minted
}

/// Sessions that mint and insert until the other thing is done. Returns the ids of each.
fn minting_meanwhile(
    cluster: &Cluster,
    inserts: &[&str],
    other: impl FnOnce(&mut Client) + Send,
) -> Vec<Vec<i64>> {
    let done = AtomicBool::new(false);
    let mint = |insert: &str| {
        let mut client = cluster.connect();
        let mut minted = Vec::new();
        while !done.load(Ordering::Relaxed) {
            minted.extend(ids(&mut client, MINT));
            match client.query(&format!("{insert} RETURNING id"), &[]) {
                Ok(rows) => minted.extend(rows.iter().map(|row| row.get::<_, i64>(0))),
                // Of catalogs that are rewritten.
                Err(error) => assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{error}"),
            }
        }
        minted
    };
    thread::scope(|scope| {
        let minters: Vec<_> = inserts.iter().map(|insert| scope.spawn(|| mint(insert))).collect();
        // Also where it panics, they stop.
        let other = scope.spawn(|| other(&mut cluster.connect())).join();
        done.store(true, Ordering::Relaxed);
        other.unwrap();
        minters.into_iter().map(|minter| minter.join().unwrap()).collect()
    })
}

/// All is rebuilt and rewritten, also the extension's own tables and the catalog, while sessions mint.
#[test]
fn rebuilt_under_minters() {
    let cluster = Cluster::start("rebuilt");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    make_shards(&mut client);
    client.batch_execute(MORE).unwrap();
    let before = texts(&mut client, FINDINGS);
    let minted = minting_meanwhile(&cluster, &[MORE, &MORE.replace("photos", "insta1.photos")], |client| {
        for command in [
            "REINDEX TABLE photos",
            "REINDEX TABLE CONCURRENTLY photos",
            "REINDEX INDEX photos_time",
            "VACUUM FULL photos",
            "CLUSTER photos USING photos_time",
            "VACUUM (FREEZE, ANALYZE) photos",
            "REINDEX SCHEMA insta1",
            "REINDEX SCHEMA insta_ids",
            "REINDEX SCHEMA CONCURRENTLY insta_ids",
            "CLUSTER insta_ids_internal.shard USING shard_pkey",
            "VACUUM FULL insta_ids.config, insta_ids_internal.map, insta_ids_internal.fence, insta_ids_internal.lease",
            "REINDEX DATABASE postgres",
            "REINDEX DATABASE CONCURRENTLY postgres",
            "REINDEX SYSTEM postgres",
            "VACUUM FULL",
            "SET default_transaction_isolation = serializable",
            "REINDEX TABLE CONCURRENTLY photos",
            "ANALYZE",
        ] {
            while let Err(error) = client.batch_execute(command) {
                assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{command}: {error}");
            }
        }
    });
    assert!(minted.iter().all(|session| session.len() > 10_000), "{:?}", minted.iter().map(Vec::len));
    assert_eq!((duplicates(&minted), disorders(&minted[0])), (0, 0));
    let rows = sound(&mut client);
    assert_eq!(minted[0].iter().filter(|id| rows.binary_search(id).is_ok()).count() + 1000, rows.len());
    // By the statistics of the expressions, all are of one shard.
    let estimated = "SELECT n_distinct::text FROM pg_stats_ext_exprs
                     WHERE statistics_name = 'photos_parts' AND expr = 'id_shard(id)'";
    assert_eq!(texts(&mut client, estimated), ["1"]);
    assert_eq!(texts(&mut client, FINDINGS), before);
    let shards =
        "SELECT concat_ws(' ', schema, node, state, applied, tables) FROM insta_ids.shards ORDER BY shard";
    assert_eq!(texts(&mut client, shards), [0, 1, 2, 3].map(|shard| format!("insta{shard} a active 1 1")));
    client.batch_execute("CALL insta_ids.check_rows()").unwrap();
    if has("amcheck") {
        client
            .batch_execute(
                "CREATE EXTENSION amcheck;
                 SELECT bt_index_check(indexrelid, heapallindexed => true) FROM pg_index
                 JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
                 WHERE amname = 'btree' AND relpersistence = 'p'",
            )
            .unwrap();
    }
}

/// A server with logical replication, whose clock is behind by so many seconds.
fn replicating(name: &str, behind: i32) -> Cluster {
    let settings = [
        "make",
        PRELOAD,
        "wal_level = logical",
        // So that tables that cannot be copied keep none waiting that can.
        "max_worker_processes = 40",
        "max_logical_replication_workers = 30",
        "max_sync_workers_per_subscription = 8",
    ];
    let mut cluster = Cluster::made(name, &settings);
    if behind > 0 {
        cluster.environment = clock_ahead(-behind);
    }
    cluster.up();
    cluster
}

fn subscribe(
    client: &mut Client,
    publisher: &Cluster,
    subscription: &str,
    publication: &str,
) -> Result<(), postgres::Error> {
    client.batch_execute(&format!(
        "CREATE SUBSCRIPTION {subscription} CONNECTION 'host={} user=postgres dbname=postgres' PUBLICATION {publication}",
        publisher.socket.display()
    ))
}

/// Rows of a subscription come with their ids, to tables with the default and without. When writers go over to where
/// they came, no id comes again, though the clock there is behind.
#[test]
fn rows_of_a_subscription() {
    let publisher = replicating("publisher", 0);
    let subscriber = replicating("subscriber", 600);
    let mut source = publisher.connect();
    source.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    source.batch_execute(PHOTOS).unwrap();
    source.batch_execute(MORE).unwrap();
    source.batch_execute("CREATE PUBLICATION photos FOR TABLE photos").unwrap();
    subscriber.connect().batch_execute("CREATE DATABASE bare").unwrap();
    let (mut alike, mut bare) = (subscriber.connect(), subscriber.connect_to("bare"));
    alike.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    alike.batch_execute(PHOTOS).unwrap();
    bare.batch_execute("CREATE TABLE photos (id bigint PRIMARY KEY, n int)").unwrap();
    subscribe(&mut alike, &publisher, "alike", "photos").unwrap();
    subscribe(&mut bare, &publisher, "bare", "photos").unwrap();
    source.batch_execute(MORE).unwrap();
    source
        .batch_execute(
            "UPDATE photos SET n = -n WHERE n % 10 = 0; DELETE FROM photos WHERE n % 10 = 1;
             UPDATE photos SET id = DEFAULT WHERE n % 10 = 2",
        )
        .unwrap();
    let rows = "SELECT concat_ws(' ', id, n) FROM photos ORDER BY id";
    let expected = texts(&mut source, rows);
    for client in [&mut alike, &mut bare] {
        within(Duration::from_mins(1), || texts(client, rows) == expected);
    }
    // The default was not called for them.
    assert_eq!(count(&mut alike, "SELECT count(*) FROM s WHERE is_called"), 0);
    let arrived = sound(&mut alike);
    // The time that the rows have reached did not come with them.
    assert!(ids(&mut alike, MINT)[999] < arrived[0]);

    alike.batch_execute("DROP SUBSCRIPTION alike").unwrap();
    bare.batch_execute("DROP SUBSCRIPTION bare").unwrap();
    for client in [&mut alike, &mut bare] {
        client.batch_execute("CREATE EXTENSION IF NOT EXISTS insta_ids").unwrap();
        client.batch_execute(&docs::blocks("docs/operations.md", "sql")[0]).unwrap();
    }
    bare.batch_execute("CREATE SEQUENCE s; ALTER TABLE photos ALTER id SET DEFAULT next_id(5, 's')").unwrap();
    let insert = format!("{MORE} RETURNING id");
    let minted = |client: &mut Client| {
        client.query(&insert, &[]).unwrap().iter().map(|row| row.get(0)).collect::<Vec<i64>>()
    };
    let before = [minted(&mut alike), minted(&mut bare)];
    subscriber.stop_immediately();
    subscriber.up();
    for (database, before) in ["postgres", "bare"].iter().zip(before) {
        let after = minted(&mut subscriber.connect_to(database));
        assert_eq!(duplicates([&arrived, &before, &after]), 0, "{database}");
        assert!(arrived.last() < before.first() && before.last() < after.first(), "{database}");
    }
    sound(&mut subscriber.connect());
}

/// Publications of all tables have the extension's, too: the map and all else can be changed as ever, and who
/// subscribes gets shards and fences; of schemas, they have what is asked for.
#[test]
fn publications_of_all_tables() {
    let publisher = replicating("publisher", 0);
    let subscriber = replicating("subscriber", 0);
    let mut source = publisher.connect();
    source.batch_execute("CREATE EXTENSION insta_ids; CREATE PUBLICATION everything FOR ALL TABLES").unwrap();
    make_shards(&mut source);
    source.batch_execute("CREATE PUBLICATION one FOR TABLES IN SCHEMA insta1").unwrap();
    let schemas = |client: &mut Client, publication: &str| {
        texts(
            client,
            &format!(
                "SELECT DISTINCT schemaname::text FROM pg_publication_tables WHERE pubname = '{publication}' ORDER BY 1"
            ),
        )
    };
    assert_eq!(
        schemas(&mut source, "everything"),
        ["insta0", "insta1", "insta2", "insta3", "insta_ids", "insta_ids_internal"]
    );
    assert_eq!(schemas(&mut source, "one"), ["insta1"]);
    for database in ["bare", "all_of_it", "own"] {
        subscriber.connect().batch_execute(&format!("CREATE DATABASE {database}")).unwrap();
    }
    let [mut bare, mut all, mut own] =
        ["bare", "all_of_it", "own"].map(|database| subscriber.connect_to(database));
    // Where the extension is not, neither are its tables.
    bare.batch_execute("CREATE SCHEMA insta1; CREATE TABLE insta1.photos (id bigint PRIMARY KEY, n int)")
        .unwrap();
    let error = subscribe(&mut bare, &publisher, "everything", "everything").unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::INVALID_SCHEMA_NAME));
    subscribe(&mut bare, &publisher, "one", "one").unwrap();
    within(Duration::from_mins(1), || count(&mut bare, "SELECT count(*) FROM insta1.photos") == 100);
    // Where it is, and nothing is set up, shards arrive; and fences, as soon as somebody connects.
    let dump = publisher
        .program("pg_dump", "postgres")
        .args(["--schema-only", "--no-publications", "postgres"])
        .output()
        .unwrap();
    let file = subscriber.socket.join("schema.sql");
    std::fs::write(&file, dump.stdout).unwrap();
    let made = subscriber
        .program("psql", "postgres")
        .args(["-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-d", "all_of_it", "-f"])
        .arg(&file)
        .status();
    assert!(made.unwrap().success());
    subscribe(&mut all, &publisher, "all_of_it", "everything").unwrap();
    let state = "SELECT concat_ws(' ', s.schema, s.node, s.state, s.applied, m.version)
                 FROM insta_ids.shards s, insta_ids_internal.map m ORDER BY s.shard";
    source.batch_execute("SELECT insta_ids.fence(1), insta_ids.assign(8, 8, 'b')").unwrap();
    let expected = texts(&mut source, state);
    assert!(expected[1].starts_with("insta1 a fenced 1"), "{expected:?}");
    within(Duration::from_mins(1), || texts(&mut all, state) == expected);
    let mut all = subscriber.connect_to("all_of_it");
    assert_eq!(
        refused(&mut all, "INSERT INTO insta1.photos DEFAULT VALUES").code(),
        &SqlState::READ_ONLY_SQL_TRANSACTION
    );
    all.batch_execute("INSERT INTO insta2.photos DEFAULT VALUES").unwrap();
    // Where shards are set up, their configuration is in the way of what would arrive. A column of the subscriber's
    // own is filled by its own default.
    own.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    own.batch_execute("SELECT insta_ids.init(10)").unwrap();
    add(&mut own, "0001", "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int)");
    own.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    own.batch_execute(
        "CREATE SEQUENCE own; ALTER TABLE insta1.photos ADD own bigint DEFAULT next_id(6, 'own')",
    )
    .unwrap();
    subscribe(&mut own, &publisher, "own", "everything").unwrap();
    subscriber.await_log("duplicate key value violates unique constraint \"config_once\"");
    let filled = "SELECT count(DISTINCT own) FROM insta1.photos WHERE id_shard(own) = 6 AND id_shard(id) = 1";
    within(Duration::from_mins(1), || count(&mut own, filled) == 100);
    for (client, subscription) in [(&mut bare, "one"), (&mut all, "all_of_it"), (&mut own, "own")] {
        client.batch_execute(&format!("DROP SUBSCRIPTION {subscription}")).unwrap();
    }
}

/// Event triggers of the user, which write down what they see, and raise an error at what is in `stopped`.
const EVENT_TRIGGERS: &str = "
    CREATE TABLE seen (event text, tag text, object text);
    CREATE TABLE stopped (event text, tag text, object text);
    CREATE FUNCTION see() RETURNS event_trigger LANGUAGE plpgsql AS $$
    DECLARE
        objects text[] := CASE TG_EVENT
            WHEN 'ddl_command_start' THEN ARRAY['']
            WHEN 'table_rewrite' THEN ARRAY[
                (pg_identify_object('pg_class'::regclass, pg_event_trigger_table_rewrite_oid(), 0)).identity] END;
    BEGIN
        IF TG_EVENT = 'ddl_command_end' THEN
            objects := ARRAY(SELECT object_identity FROM pg_event_trigger_ddl_commands());
        ELSIF TG_EVENT = 'sql_drop' THEN
            objects := ARRAY(SELECT object_identity FROM pg_event_trigger_dropped_objects());
        END IF;
        INSERT INTO public.seen SELECT TG_EVENT, TG_TAG, unnest(objects);
        IF EXISTS (
            SELECT FROM public.stopped s WHERE s.event = TG_EVENT AND s.tag = TG_TAG AND s.object = ANY (objects))
        THEN
            RAISE 'stopped';
        END IF;
    END
    $$;
    CREATE EVENT TRIGGER a ON ddl_command_start EXECUTE FUNCTION see();
    CREATE EVENT TRIGGER b ON ddl_command_end EXECUTE FUNCTION see();
    CREATE EVENT TRIGGER c ON sql_drop EXECUTE FUNCTION see();
    CREATE EVENT TRIGGER d ON table_rewrite EXECUTE FUNCTION see()";

/// What the catalog has, and the extension of shards.
fn catalog(client: &mut Client) -> Vec<String> {
    let catalog = "
        SELECT format('%s %s', 'pg_depend', count(*)) FROM pg_depend
        UNION ALL SELECT format('%s %s %s', 'pg_class', count(*), sum(hashtext(concat(relname, relkind)))) FROM pg_class
        UNION ALL SELECT format('%s %s %s', 'pg_proc', count(*), sum(hashtext(prosrc))) FROM pg_proc
        UNION ALL SELECT format('%s %s', 'pg_namespace', count(*)) FROM pg_namespace
        UNION ALL SELECT format('%s %s', 'pg_trigger', count(*)) FROM pg_trigger
        UNION ALL SELECT format('%s %s', 'pg_event_trigger', count(*)) FROM pg_event_trigger
        UNION ALL SELECT format('%s %s', 'pg_constraint', count(*)) FROM pg_constraint
        UNION ALL SELECT extname || extversion FROM pg_extension";
    let mut lines = texts(client, catalog);
    if lines.iter().any(|line| line.starts_with("insta_ids")) {
        lines.extend(texts(client, "SELECT s::text FROM insta_ids_internal.shard s ORDER BY shard"));
        lines.extend(texts(client, "SELECT f::text FROM insta_ids_internal.fence f ORDER BY shard"));
    }
    lines
}

/// What the extension does, event triggers of the user see, and can stop; then nothing of it is done.
#[test]
fn event_triggers() {
    let cluster = Cluster::bare("events", &[PRELOAD]);
    let mut client = cluster.connect();
    client.batch_execute(EVENT_TRIGGERS).unwrap();
    // Stops it, then lets it.
    let both = |client: &mut Client, command: &str, stops: &[[&str; 3]]| {
        let before = catalog(client);
        for [event, tag, object] in stops {
            client.execute("INSERT INTO stopped VALUES ($1, $2, $3)", &[event, tag, object]).unwrap();
            let error = refused(client, command);
            assert_eq!((error.code(), error.message()), (&SqlState::RAISE_EXCEPTION, "stopped"), "{command}");
            client.batch_execute("DELETE FROM stopped").unwrap();
            assert_eq!(catalog(client), before, "{command}, which {event} stopped");
        }
        client.batch_execute(command).unwrap();
        for stop in stops {
            let seen = "SELECT count(*) FROM seen WHERE (event, tag, object) = ($1, $2, $3)";
            let seen: i64 = client.query_one(seen, &[&stop[0], &stop[1], &stop[2]]).unwrap().get(0);
            assert!(seen > 0, "{stop:?}");
        }
        client.batch_execute("TRUNCATE seen").unwrap();
    };
    both(
        &mut client,
        "CREATE EXTENSION insta_ids",
        &[
            ["ddl_command_start", "CREATE SEQUENCE", ""],
            ["ddl_command_end", "CREATE TABLE", "insta_ids_internal.fence"],
            ["ddl_command_end", "CREATE EXTENSION", "insta_ids"],
        ],
    );
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let mut minted = vec![ids(&mut client, MINT)];
    client.batch_execute("SELECT insta_ids.init(10)").unwrap();
    add(&mut client, "0001", "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int)");
    both(
        &mut client,
        "CALL insta_ids.create_shards(0, 3)",
        &[
            ["ddl_command_end", "CREATE SCHEMA", "insta0"],
            ["ddl_command_end", "CREATE TABLE", "insta2.photos"],
            ["ddl_command_end", "ALTER TABLE", "insta3.photos"],
        ],
    );
    both(
        &mut client,
        "SELECT insta_ids.fence(2)",
        &[["ddl_command_end", "CREATE TRIGGER", "insta_ids_fence on insta2.photos"]],
    );
    both(&mut client, "SELECT insta_ids.unfence(2)", &[["ddl_command_end", "ALTER TABLE", "insta2.photos"]]);
    // One of the shards cannot be migrated; the others are.
    client
        .batch_execute("INSERT INTO stopped VALUES ('table_rewrite', 'ALTER TABLE', 'insta1.photos')")
        .unwrap();
    add(&mut client, "0002", "ALTER TABLE photos ADD half int; ALTER TABLE photos ALTER n TYPE bigint");
    assert_eq!(
        refused(&mut client, "CALL insta_ids.migrate()").message(),
        "1 of 4 shards could not be migrated"
    );
    let state = "SELECT concat_ws(' ', m.shard, m.state, m.statement, m.message, (
                     SELECT string_agg(format('%s %s', attname, atttypid::regtype), ' ' ORDER BY attnum) FROM pg_attribute
                     WHERE attrelid = format('insta%s.photos', m.shard)::regclass AND attnum > 0
                 )) FROM insta_ids.migration_status m WHERE name = '0002' ORDER BY shard";
    let mut expected = [0, 1, 2, 3].map(|shard| format!("{shard} applied id bigint n bigint half integer"));
    let applied = expected[1].clone();
    expected[1] = "1 failed 2 stopped id bigint n integer".into();
    assert_eq!(texts(&mut client, state), expected);
    client.batch_execute("DELETE FROM stopped").unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    expected[1] = applied;
    assert_eq!(texts(&mut client, state), expected);
    assert_eq!(texts(&mut client, FINDINGS), [""; 0]);
    both(
        &mut client,
        "SELECT insta_ids.drop_shard(3)",
        &[["ddl_command_start", "DROP SCHEMA", ""], ["sql_drop", "DROP SCHEMA", "insta3.photos"]],
    );
    minted.push(ids(&mut client, MINT));
    both(
        &mut client,
        "DROP EXTENSION insta_ids CASCADE",
        &[
            ["sql_drop", "DROP EXTENSION", "insta_ids_internal.lease"],
            ["sql_drop", "DROP EXTENSION", "for public.photos.id"],
        ],
    );
    both(&mut client, "CREATE EXTENSION insta_ids", &[["ddl_command_end", "CREATE EXTENSION", "insta_ids"]]);
    minted.push(ids(&mut client, MINT));
    minted.push(ids(&mut client, "SELECT id FROM photos ORDER BY id"));
    assert_eq!(duplicates(&minted), 0);
    assert!(minted[..3].iter().all(|minted| disorders(minted) == 0));
}

/// What depends on the extension keeps it from being dropped, in whole or in part, and nothing is lost.
#[test]
fn what_depends_on_it_keeps_it() {
    let cluster = Cluster::start("kept");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    client.batch_execute("CREATE VIEW times AS SELECT id_time(id) AS at FROM photos").unwrap();
    make_shards(&mut client);
    client.batch_execute("SELECT insta_ids.fence(3), insta_ids.create_ticket_server('t', 1, 1)").unwrap();
    let before = (catalog(&mut client), sound(&mut client), texts(&mut client, FINDINGS));
    let error = refused(&mut client, "DROP EXTENSION insta_ids");
    assert_eq!(error.code(), &SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
    for dependent in [
        "default value for column id of table photos depends on function next_id(integer,regclass)",
        "column shard of table photos depends on function id_shard(bigint)",
        "constraint photos_id_check on table photos depends on function id_shard(bigint)",
        "index photos_time depends on function id_time(bigint)",
        "statistics object photos_parts depends on function id_time(bigint)",
        "view times depends on function id_time(bigint)",
        "function insta1.next_id() depends on function next_id(integer,regclass)",
        "default value for column id of table insta1.photos depends on function insta1.next_id()",
        "constraint photos_id_check on table insta1.photos depends on function id_shard(bigint)",
        "trigger insta_ids_fence on table insta3.photos depends on function insta_ids_internal.refuse_write()",
        "sequence insta_ids.ticket_t depends on schema insta_ids",
    ] {
        assert!(error.detail().unwrap().contains(dependent), "{dependent}: {:?}", error.detail());
    }
    // Nor does any part of it go, or go elsewhere.
    for (command, sqlstate) in [
        ("ALTER EXTENSION insta_ids SET SCHEMA pg_temp", SqlState::FEATURE_NOT_SUPPORTED),
        ("DROP SCHEMA insta_ids", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP SCHEMA insta_ids CASCADE", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("ALTER SCHEMA insta_ids RENAME TO other", SqlState::INVALID_SCHEMA_NAME),
        ("ALTER SCHEMA insta_ids_internal RENAME TO other", SqlState::UNDEFINED_TABLE),
        ("DROP SCHEMA public", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP EVENT TRIGGER insta_ids_refuse_ddl", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP SEQUENCE insta_ids_internal.lease", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP SEQUENCE s", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP FUNCTION next_id(integer, regclass) CASCADE", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
    ] {
        assert_eq!(refused(&mut client, command).code(), &sqlstate, "{command}");
    }
    assert_eq!((catalog(&mut client), sound(&mut client), texts(&mut client, FINDINGS)), before);
    // Where its schema gets another name, all goes on.
    client.batch_execute("ALTER SCHEMA public RENAME TO renamed; SET search_path = renamed").unwrap();
    client.batch_execute(MORE).unwrap();
    client.batch_execute("SELECT insta_ids.create_shard(4); SELECT insta4.next_id()").unwrap();
    assert_eq!(texts(&mut client, FINDINGS), before.2);
}

/// By CASCADE, what depends on the extension goes along: defaults, CHECKs, functions. Rows stay, and no id comes
/// twice when they get their defaults again.
#[test]
fn dropped_and_made_again() {
    let mut cluster = Cluster::start("dropped");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    make_shards(&mut client);
    // A session that was there all the time.
    let mut other = cluster.connect();
    other.batch_execute("SET plan_cache_mode = force_generic_plan").unwrap();
    other.batch_execute("PREPARE put AS INSERT INTO photos (n) VALUES (1); EXECUTE put").unwrap();
    let mut minted = sound(&mut client);
    let shard = "SELECT id FROM insta1.photos ORDER BY id";
    let of_shard = ids(&mut client, shard);
    client.batch_execute("DROP EXTENSION insta_ids CASCADE").unwrap();
    let left = "SELECT concat_ws(' ', attrelid::regclass, attname, pg_get_expr(adbin, adrelid)) FROM pg_attribute
                LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
                WHERE attrelid IN ('photos'::regclass, 'insta1.photos'::regclass) AND attnum > 0 AND NOT attisdropped
                UNION ALL SELECT indexrelid::regclass::text FROM pg_index
                WHERE indrelid IN ('photos'::regclass, 'insta1.photos'::regclass)
                UNION ALL SELECT conname FROM pg_constraint
                WHERE conrelid IN ('photos'::regclass, 'insta1.photos'::regclass) AND contype = 'c' ORDER BY 1";
    assert_eq!(
        texts(&mut client, left),
        [
            "insta1.photos id",
            "insta1.photos n",
            "insta1.photos_n_idx",
            "insta1.photos_pkey",
            "photos id",
            "photos n",
            "photos_pkey"
        ]
    );
    assert_eq!(ids(&mut client, "SELECT id FROM photos ORDER BY id"), minted);
    assert_eq!(ids(&mut client, shard), of_shard);
    for (client, insert) in [(&mut client, MORE), (&mut other, "EXECUTE put")] {
        assert_eq!(refused(client, insert).code(), &SqlState::NOT_NULL_VIOLATION);
    }

    let again = "
        CREATE EXTENSION insta_ids;
        ALTER TABLE photos ALTER id SET DEFAULT next_id(5, 's'), ADD CHECK (id_shard(id) = 5),
            ADD shard int GENERATED ALWAYS AS (id_shard(id)) STORED;
        CREATE INDEX photos_time ON photos (id_time(id)); CREATE INDEX photos_seq ON photos (id_seq(id), n)";
    client.batch_execute(again).unwrap();
    client.batch_execute(MORE).unwrap();
    other.batch_execute("EXECUTE put").unwrap();
    let after = sound(&mut client);
    assert_eq!(
        (after.len(), after.iter().filter(|id| *id > minted.last().unwrap()).count()),
        (minted.len() + 1001, 1001)
    );
    minted = after;
    // That there were shards is forgotten; with their function back, they are taken in.
    client
        .batch_execute(
            "SELECT insta_ids.init(10);
             CREATE FUNCTION insta1.next_id() RETURNS bigint LANGUAGE sql RETURN next_id(1, 'insta1.table_id_seq');
             ALTER TABLE insta1.photos ALTER id SET DEFAULT insta1.next_id();
             SELECT insta_ids.adopt('insta1', 1);
             INSERT INTO insta1.photos (n) SELECT n FROM generate_series(1, 100) n",
        )
        .unwrap();
    let after = ids(&mut client, shard);
    assert_eq!((after.len(), duplicates([&after]), after.starts_with(&of_shard)), (200, 0, true));

    // Without the extension, there is nothing that tells a server which is started what time ids have reached.
    client.batch_execute("DROP EXTENSION insta_ids CASCADE").unwrap();
    drop((client, other));
    cluster.stop();
    cluster.environment = clock_ahead(-300);
    cluster.up();
    let mut client = cluster.connect();
    client.batch_execute(again).unwrap();
    assert!(ids(&mut client, MINT)[999] < minted[0]);
    client.batch_execute(&docs::blocks("docs/operations.md", "sql")[0]).unwrap();
    client.batch_execute(MORE).unwrap();
    let after = sound(&mut client);
    assert_eq!((after.len(), after.starts_with(&minted)), (minted.len() + 1000, true));
}

/// Whoever owns the extension, or provisions shards, can go.
#[test]
fn owners_come_and_go() {
    let cluster = Cluster::bare("owners", &[PRELOAD]);
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE boss SUPERUSER LOGIN; CREATE ROLE first LOGIN; CREATE ROLE next LOGIN; CREATE ROLE plain;
             GRANT CREATE ON DATABASE postgres TO first, next",
        )
        .unwrap();
    let of = |user: &str| cluster.config().user(user).connect(postgres::NoTls).unwrap();
    of("boss")
        .batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.grant_provisioning('first')")
        .unwrap();
    make_shards(&mut of("first"));
    let mint = "INSERT INTO insta1.photos (n) SELECT n FROM generate_series(1, 100) n";
    // Event triggers are superusers'.
    let error = refused(&mut client, "REASSIGN OWNED BY boss TO plain");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    client.batch_execute("REASSIGN OWNED BY boss TO postgres; DROP OWNED BY boss; DROP ROLE boss").unwrap();
    let mut first = of("first");
    first.batch_execute(mint).unwrap();
    first.batch_execute("CALL insta_ids.create_shards(0, 4)").unwrap();
    let findings = texts(&mut client, FINDINGS);

    assert_eq!(refused(&mut client, "DROP ROLE first").code(), &SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
    drop(first);
    client.batch_execute("REASSIGN OWNED BY first TO next; DROP OWNED BY first; DROP ROLE first").unwrap();
    let mut next = of("next");
    next.batch_execute(mint).unwrap();
    // Owning shards is not provisioning.
    assert_eq!(
        refused(&mut next, "CALL insta_ids.create_shards(0, 5)").code(),
        &SqlState::INSUFFICIENT_PRIVILEGE
    );
    client.batch_execute("SELECT insta_ids.grant_provisioning('next')").unwrap();
    // Nor is it answering for what others added.
    let error = refused(&mut next, "CALL insta_ids.create_shards(0, 5)");
    assert_eq!(error.message(), "migration \"0001\" was added by role \"first\"");
    add(&mut next, "0001", MIGRATION);
    next.batch_execute("CALL insta_ids.create_shards(0, 5)").unwrap();
    assert_eq!(texts(&mut client, FINDINGS), findings);
    assert_eq!(
        count(&mut client, "SELECT count(DISTINCT id) FROM insta1.photos WHERE id_shard(id) = 1"),
        300
    );

    // Who is dropped with what they own takes the shards along; they are missed, forgotten and made anew.
    client.batch_execute("DROP OWNED BY next").unwrap();
    let missing = "SELECT count(*) FROM insta_ids.check() WHERE code = 'missing_schema'";
    assert_eq!(count(&mut client, missing), 6);
    client.batch_execute("SELECT insta_ids.drop_shard(shard) FROM insta_ids.shards").unwrap();
    add(&mut client, "0001", MIGRATION);
    client.batch_execute("CALL insta_ids.create_shards(0, 4)").unwrap();
    client.batch_execute(mint).unwrap();
    assert_eq!(texts(&mut client, FINDINGS), findings);
}

/// The ids in the first column of what a statement returns.
fn returned(client: &mut Client, statement: &str) -> Vec<i64> {
    client.query(statement, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// By statements of all kinds. Returns ids that are in no table any more.
fn by_statements(client: &mut Client) -> Vec<i64> {
    let mut gone = Vec::new();
    returned(client, "INSERT INTO photos (n) VALUES (1), (2), (3) RETURNING id");
    returned(client, "INSERT INTO photos (id, n) VALUES (DEFAULT, 4), (DEFAULT, 5) RETURNING id");
    client.batch_execute(MORE).unwrap();
    let mut copied = client.copy_in("COPY photos (n) FROM STDIN").unwrap();
    copied.write_all("7\n".repeat(1000).as_bytes()).unwrap();
    assert_eq!(copied.finish().unwrap(), 1000);
    #[cfg(not(feature = "pg15"))]
    {
        let mut copied = client.copy_in("COPY photos (id, n) FROM STDIN (DEFAULT '-')").unwrap();
        copied.write_all("-\t8\n".repeat(1000).as_bytes()).unwrap();
        assert_eq!(copied.finish().unwrap(), 1000);
    }

    // A row that is there keeps its id; the one that was minted for it is nobody's.
    let visit = "INSERT INTO users (name) VALUES ('a'), ('b')
                 ON CONFLICT (name) DO UPDATE SET visits = users.visits + 1 RETURNING id";
    let came = returned(client, visit);
    assert_eq!(returned(client, visit), came);
    let renewed = returned(client, &visit.replace("visits = users.visits + 1", "id = excluded.id"));
    assert_eq!(duplicates([&came, &renewed]), 0);
    gone.extend(came);
    let merge = "MERGE INTO users USING (VALUES ('b'), ('c')) v (name) ON users.name = v.name
                 WHEN MATCHED THEN UPDATE SET visits = visits + 1
                 WHEN NOT MATCHED THEN INSERT (name) VALUES (v.name)";
    if cfg!(any(feature = "pg15", feature = "pg16")) {
        client.batch_execute(merge).unwrap();
    } else {
        let merged = returned(client, &format!("{merge} RETURNING id"));
        assert_eq!(merged, ids(client, "SELECT id FROM users WHERE name IN ('b', 'c') ORDER BY name"));
    }
    assert_eq!(
        texts(client, "SELECT concat_ws(' ', name, visits, id_shard(id)) FROM users ORDER BY name"),
        ["a 2 5", "b 3 5", "c 1 5"]
    );

    // New ids for rows that are there, which others refer to.
    let photo = returned(client, "SELECT id FROM photos WHERE n <= 5 ORDER BY n");
    client.execute("INSERT INTO likes (photo) SELECT unnest($1::bigint[])", &[&photo]).unwrap();
    let photo_now = returned(client, "UPDATE photos SET id = DEFAULT WHERE n <= 5 RETURNING id");
    assert_eq!(photo_now.len(), photo.len());
    let mut referred = returned(client, "SELECT photo FROM likes");
    referred.sort_unstable();
    assert_eq!(referred, photo_now);
    gone.extend(photo);
    let moved = returned(
        client,
        "WITH gone AS (DELETE FROM photos WHERE n = 6 RETURNING n),
              new AS (INSERT INTO photos (n) SELECT n FROM gone RETURNING id)
         INSERT INTO likes (photo) SELECT id FROM new RETURNING photo",
    );
    assert_eq!(moved, returned(client, "SELECT id FROM photos WHERE n = 6"));
    gone
}

/// Through partitions, views, triggers, rules and domains, into tables of each persistence.
fn through_relations(client: &mut Client) {
    client
        .batch_execute(
            "CREATE TABLE parts (id bigint PRIMARY KEY DEFAULT next_id(5, 's')) PARTITION BY HASH (id);
             CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
             CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
             CREATE VIEW negative AS SELECT id, n FROM photos WHERE n < 0;
             CREATE VIEW named AS SELECT id, name FROM users;
             ALTER VIEW named ALTER id SET DEFAULT next_id(5, 's');
             CREATE FUNCTION named() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO users VALUES (NEW.id, NEW.name); RETURN NEW; END $$;
             CREATE TRIGGER named INSTEAD OF INSERT ON named FOR EACH ROW EXECUTE FUNCTION named();
             CREATE TABLE links (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), link text);
             CREATE FUNCTION link() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN NEW.link := id_shortcode(NEW.id); RETURN NEW; END $$;
             CREATE TRIGGER link BEFORE INSERT ON links FOR EACH ROW EXECUTE FUNCTION link();
             CREATE DOMAIN user_id AS bigint DEFAULT next_id(5, 's');
             CREATE TABLE of_domain (id user_id PRIMARY KEY, n int);
             CREATE UNLOGGED TABLE unlogged (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), n int);
             CREATE TEMPORARY TABLE temporary (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), n int);
             INSERT INTO parts SELECT FROM generate_series(1, 1000);
             INSERT INTO of_domain (n) SELECT generate_series(1, 100);
             INSERT INTO unlogged (n) SELECT generate_series(1, 100);
             INSERT INTO temporary (n) SELECT generate_series(1, 100);
             CREATE TABLE made AS SELECT next_id(5, 's') AS id FROM generate_series(1, 1000)",
        )
        .unwrap();
    assert_eq!(
        returned(client, "INSERT INTO negative (n) VALUES (-1) RETURNING id"),
        returned(client, "SELECT id FROM negative")
    );
    let named = returned(client, "INSERT INTO named (name) VALUES ('d'), ('e') RETURNING id");
    assert_eq!(named, ids(client, "SELECT id FROM users WHERE name IN ('d', 'e') ORDER BY name"));
    let linked = returned(client, "INSERT INTO links SELECT FROM generate_series(1, 10) RETURNING id");
    assert_eq!(linked, returned(client, "SELECT shortcode_id(link) FROM links"));
    // A rule writes the expression out twice, as it does with nextval: it is no way to learn a row's id.
    client
        .batch_execute(
            "CREATE TABLE logged (id bigint);
             CREATE RULE log AS ON INSERT TO links DO ALSO INSERT INTO logged VALUES (NEW.id);
             INSERT INTO links SELECT FROM generate_series(1, 10)",
        )
        .unwrap();
    assert_eq!(count(client, "SELECT count(*) FROM links JOIN logged USING (id)"), 0);
}

/// By those who may no more than that.
fn by_others(client: &mut Client) {
    client
        .batch_execute(
            "CREATE ROLE app;
             CREATE TABLE own (id bigint PRIMARY KEY DEFAULT next_id(5, 's'), owner text DEFAULT current_user);
             GRANT INSERT ON own TO app;
             CREATE SEQUENCE hidden;
             CREATE FUNCTION hidden() RETURNS bigint LANGUAGE sql SECURITY DEFINER RETURN next_id(6, 'hidden');
             SET ROLE app",
        )
        .unwrap();
    let insert = "INSERT INTO own SELECT FROM generate_series(1, 10)";
    assert_eq!(refused(client, insert).code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    client.batch_execute("RESET ROLE; GRANT USAGE ON SEQUENCE s TO app; SET ROLE app").unwrap();
    client.batch_execute(insert).unwrap();
    assert_eq!(refused(client, "SELECT next_id(6, 'hidden')").code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    assert_eq!(count(client, "SELECT count(DISTINCT hidden()) FROM generate_series(1, 1000)"), 1000);
    client
        .batch_execute(
            "RESET ROLE; GRANT SELECT ON own TO app; ALTER TABLE own ENABLE ROW LEVEL SECURITY;
             CREATE POLICY fives ON own USING (owner = current_user) WITH CHECK (id_shard(id) = 5);
             INSERT INTO own SELECT FROM generate_series(1, 10); SET ROLE app",
        )
        .unwrap();
    assert_eq!(returned(client, &format!("{insert} RETURNING id")).len(), 10);
    assert_eq!(count(client, "SELECT count(*) FROM own"), 20);
    let error = refused(client, "INSERT INTO own VALUES (hidden())");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    client.batch_execute("RESET ROLE").unwrap();
}

/// What is derived from the rows, and what is copied, has their ids. Returns ids that were in a view.
fn derived(client: &mut Client) -> Vec<i64> {
    client
        .batch_execute(
            "CREATE MATERIALIZED VIEW times AS SELECT id, id_time(id) AS at FROM photos;
             CREATE UNIQUE INDEX ON times (id);
             INSERT INTO photos (n) VALUES (9); DELETE FROM photos WHERE n = 10;
             REFRESH MATERIALIZED VIEW CONCURRENTLY times;
             CREATE TABLE copy (id bigint DEFAULT next_id(5, 's'), n int)",
        )
        .unwrap();
    let rows = sound(client);
    assert_eq!(returned(client, "SELECT id FROM times WHERE at = id_time(id) ORDER BY id"), rows);
    // A view that mints has new ones each time.
    let mut gone = Vec::new();
    client
        .batch_execute(
            "CREATE MATERIALIZED VIEW minted AS SELECT next_id(5, 's') AS id FROM generate_series(1, 100)",
        )
        .unwrap();
    for _ in 0..2 {
        gone.extend(returned(client, "SELECT id FROM minted"));
        client.batch_execute("REFRESH MATERIALIZED VIEW minted").unwrap();
    }
    for format in ["text", "csv", "binary"] {
        let mut out = Vec::new();
        let copy = format!("COPY photos (id, n) TO STDOUT (FORMAT {format})");
        client.copy_out(&copy).unwrap().read_to_end(&mut out).unwrap();
        let mut copied = client.copy_in(&format!("COPY copy (id, n) FROM STDIN (FORMAT {format})")).unwrap();
        copied.write_all(&out).unwrap();
        assert_eq!(copied.finish().unwrap(), rows.len() as u64);
        assert_eq!(returned(client, "SELECT id FROM copy ORDER BY id"), rows);
        client.batch_execute("TRUNCATE copy").unwrap();
    }
    gone
}

/// However a row gets its id from the default, by whatever statement, of whatever table: no other has it.
#[test]
fn ways_to_a_row() {
    let cluster = Cluster::start("rows");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client
        .batch_execute(
            "CREATE TABLE users (
                 id bigint PRIMARY KEY DEFAULT next_id(5, 's'), name text UNIQUE, visits int DEFAULT 1);
             CREATE TABLE likes (
                 id bigint PRIMARY KEY DEFAULT next_id(5, 's'), photo bigint REFERENCES photos ON UPDATE CASCADE)",
        )
        .unwrap();
    let mut gone = by_statements(&mut client);
    through_relations(&mut client);
    by_others(&mut client);
    gone.extend(derived(&mut client));
    let of_all = [
        "photos",
        "users",
        "likes",
        "parts",
        "links",
        "logged",
        "of_domain",
        "unlogged",
        "temporary",
        "made",
        "own",
        "minted",
    ]
    .map(|table| ids(&mut client, &format!("SELECT id::bigint FROM {table}")));
    let lengths = of_all.each_ref().map(Vec::len);
    assert_eq!(lengths[1..], [5, 11, 1000, 20, 10, 100, 100, 100, 1000, 30, 100]);
    assert_eq!(duplicates(of_all.iter().chain([&gone])), 0);
    assert!(of_all.iter().flatten().all(|id| id >> 10 & 8191 == 5));
}

/// A table is altered, filled, emptied, renamed, copied: ids stay what they are, new ones are new.
#[test]
fn tables_are_altered() {
    let cluster = Cluster::start("altered");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let rows = sound(&mut client);
    let mut all = vec![rows.clone()];
    // Each row of a table that is filled gets its own, in the order of the rows.
    client
        .batch_execute(
            "CREATE TABLE filled AS SELECT n FROM generate_series(1, 10000) n;
             ALTER TABLE filled ADD id bigint NOT NULL DEFAULT next_id(5, 's'), ADD PRIMARY KEY (id)",
        )
        .unwrap();
    let filled = ids(&mut client, "SELECT id FROM filled ORDER BY n");
    assert_eq!((filled.len(), disorders(&filled)), (10_000, 0));
    // To another type and back, with the default.
    client
        .batch_execute(
            "ALTER TABLE filled ALTER id TYPE numeric(20);
             INSERT INTO filled (n) SELECT n FROM generate_series(10001, 10100) n;
             ALTER TABLE filled ALTER id TYPE bigint; ALTER TABLE filled ALTER n TYPE text;
             INSERT INTO filled (n) SELECT n FROM generate_series(10101, 10200) n",
        )
        .unwrap();
    let more = ids(&mut client, "SELECT id FROM filled ORDER BY n::int");
    assert_eq!((more.len(), disorders(&more), more.starts_with(&filled)), (10_200, 0, true));
    all.push(more);
    for rewrite in ["ALTER n TYPE bigint", "ADD at timestamptz DEFAULT clock_timestamp()"] {
        client.batch_execute(&format!("ALTER TABLE photos {rewrite}")).unwrap();
    }
    assert_eq!(sound(&mut client), rows);

    // The default goes, and another comes.
    client.batch_execute("ALTER TABLE photos ALTER id DROP DEFAULT").unwrap();
    assert_eq!(refused(&mut client, MORE).code(), &SqlState::NOT_NULL_VIOLATION);
    client.batch_execute("ALTER TABLE photos ALTER id SET DEFAULT next_id(6, 's')").unwrap();
    assert_eq!(refused(&mut client, MORE).code(), &SqlState::CHECK_VIOLATION);
    // It follows table, column and sequence to other names and schemas.
    client
        .batch_execute(
            "ALTER TABLE photos ALTER id SET DEFAULT next_id(5, 's');
             CREATE SCHEMA other; ALTER SEQUENCE s RENAME TO q; ALTER SEQUENCE q SET SCHEMA other;
             ALTER TABLE photos RENAME id TO key; ALTER TABLE photos RENAME TO pictures;
             ALTER TABLE pictures SET SCHEMA other;
             INSERT INTO other.pictures (n) SELECT generate_series(1, 1000);
             ALTER TABLE other.pictures SET SCHEMA public; ALTER TABLE pictures RENAME TO photos;
             ALTER TABLE photos RENAME key TO id;
             ALTER SEQUENCE other.q SET SCHEMA public; ALTER SEQUENCE q RENAME TO s",
        )
        .unwrap();
    client.batch_execute(MORE).unwrap();
    let more = sound(&mut client);
    assert_eq!((more.len(), more.starts_with(&rows)), (3000, true));

    // A copy of the table has all that hangs on it, and takes its ids from the same sequence.
    client.batch_execute("CREATE TABLE copy (LIKE photos INCLUDING ALL)").unwrap();
    client.batch_execute(&MORE.replace("photos", "copy")).unwrap();
    all.push(ids(&mut client, "SELECT id FROM copy WHERE shard = 5 ORDER BY id_time(id), id"));
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_indexes WHERE tablename = 'copy'"), 3);
    assert_eq!(
        refused(&mut client, "INSERT INTO copy VALUES (next_id(6, 's'))").code(),
        &SqlState::CHECK_VIOLATION
    );

    // The sequence begins anew with the table; the ids do not.
    client.batch_execute("ALTER SEQUENCE s OWNED BY photos.id").unwrap();
    assert_eq!(refused(&mut client, "DROP TABLE photos").code(), &SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
    client
        .batch_execute("BEGIN; TRUNCATE photos RESTART IDENTITY; SELECT next_id(5, 's'); ROLLBACK")
        .unwrap();
    assert_eq!(sound(&mut client), more);
    all.push(more);
    client.batch_execute("TRUNCATE photos RESTART IDENTITY").unwrap();
    client.batch_execute(MORE).unwrap();
    assert_eq!(count(&mut client, "SELECT last_value FROM s"), 1000);
    all.push(sound(&mut client));

    // An unlogged table takes its sequence along. A crash empties the one, and sets the other back.
    let persistence = "SELECT concat(relname, ' ', relpersistence) FROM pg_class WHERE relname IN ('photos', 's') ORDER BY 1";
    client.batch_execute("ALTER TABLE photos SET UNLOGGED").unwrap();
    assert_eq!(texts(&mut client, persistence), ["photos u", "s u"]);
    client.batch_execute("ALTER TABLE photos SET LOGGED").unwrap();
    client.batch_execute(MORE).unwrap();
    assert_eq!(texts(&mut client, persistence), ["photos p", "s p"]);
    client.batch_execute("ALTER TABLE photos SET UNLOGGED").unwrap();
    client.batch_execute(MORE).unwrap();
    *all.last_mut().unwrap() = sound(&mut client);
    let value = "SELECT last_value FROM s";
    let reached = count(&mut client, value);
    drop(client);
    cluster.stop_immediately();
    cluster.up();
    let mut client = cluster.connect();
    assert_eq!(count(&mut client, "SELECT count(*) FROM photos"), 0);
    assert!(count(&mut client, value) < reached);
    client.batch_execute(MORE).unwrap();
    all.push(sound(&mut client));
    assert_eq!(
        (all.iter().map(Vec::len).sum::<usize>(), duplicates(&all[1..])),
        (1000 + 10_200 + 1000 + 3000 + 3000 + 1000, 0)
    );
}

/// However a transaction ends: nothing that was minted in it comes again.
#[test]
fn transactions_end() {
    let mut cluster = Cluster::bare("transactions", &[PRELOAD, "max_prepared_transactions = 4"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let mut minted = vec![sound(&mut client)];
    // Savepoints and exceptions give nothing back.
    client.batch_execute("BEGIN; SAVEPOINT a").unwrap();
    minted.push(returned(&mut client, &format!("{MORE} RETURNING id")));
    client.batch_execute("ROLLBACK TO a").unwrap();
    minted.push(returned(&mut client, &format!("{MORE} RETURNING id")));
    client.batch_execute("RELEASE a; COMMIT").unwrap();
    client
        .batch_execute(
            "CREATE TABLE taken (id bigint, kept boolean); CREATE UNIQUE INDEX ON taken (kept) WHERE kept;
             CREATE FUNCTION try(out id bigint) LANGUAGE plpgsql AS $$
             BEGIN
                 id := next_id(5, 's');
                 BEGIN
                     INSERT INTO taken VALUES (next_id(5, 's'), true);
                 EXCEPTION WHEN unique_violation THEN
                     INSERT INTO taken VALUES (next_id(5, 's'), false);
                 END;
             END $$",
        )
        .unwrap();
    minted.push(ids(&mut client, "SELECT try() FROM generate_series(1, 1000)"));
    minted.push(ids(&mut client, "SELECT id FROM taken"));
    assert_eq!(minted[4].len(), 1000);

    client
        .batch_execute(
            "DO $$ BEGIN
                 FOR i IN 1..100 LOOP
                     INSERT INTO taken VALUES (next_id(5, 's'), NULL);
                     IF i % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF;
                 END LOOP;
             END $$",
        )
        .unwrap();
    minted.push(ids(&mut client, "SELECT id FROM taken WHERE kept IS NULL"));
    assert_eq!(minted[5].len(), 50);
    // At the end of the transaction, by a trigger that was put off till then.
    client
        .batch_execute(
            "CREATE TABLE followed (id bigint DEFAULT next_id(5, 's'), of bigint);
             CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO followed (of) VALUES (NEW.id); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER follow AFTER INSERT ON photos DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW WHEN (NEW.n = -1) EXECUTE FUNCTION follow();
             BEGIN; INSERT INTO photos (n) SELECT -1 FROM generate_series(1, 100); COMMIT;
             BEGIN; INSERT INTO photos (n) SELECT -1 FROM generate_series(1, 100); PREPARE TRANSACTION 'q'",
        )
        .unwrap();
    client.batch_execute("COMMIT PREPARED 'q'").unwrap();
    minted.push(ids(&mut client, "SELECT id FROM followed UNION ALL SELECT id FROM photos WHERE n = -1"));
    assert_eq!(minted[6].len(), 400);

    // What is prepared commits after a crash, with the clock behind; who minted meanwhile has other ids.
    client.batch_execute("BEGIN").unwrap();
    let prepared = returned(&mut client, &format!("{MORE} RETURNING id"));
    client.batch_execute("PREPARE TRANSACTION 'p'").unwrap();
    minted.push(returned(&mut client, &format!("{MORE} RETURNING id")));
    drop(client);
    cluster.stop_immediately();
    cluster.environment = clock_ahead(-300);
    cluster.up();
    let mut client = cluster.connect();
    let after = returned(&mut client, &format!("{MORE} RETURNING id"));
    assert!(minted.iter().flatten().max() < after.first(), "time went back");
    minted.push(after);
    client.batch_execute("COMMIT PREPARED 'p'").unwrap();
    minted.push(returned(&mut client, &format!("{MORE} RETURNING id")));
    let rows = sound(&mut client);
    assert!(prepared.iter().all(|id| rows.binary_search(id).is_ok()));
    minted.push(prepared);
    assert_eq!(duplicates(&minted), 0);
}

/// Cursors and plans give what the statement gives.
#[test]
fn cursors_and_plans() {
    let cluster = Cluster::start("plans");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let mut minted = vec![sound(&mut client)];
    // Cursors that are held have each id once, whenever it is read. (One that is scrolled before it is held calls
    // again, as it does with nextval.)
    let mint = "SELECT next_id(5, 's') FROM generate_series(1, 100)";
    client.batch_execute(&format!("BEGIN; DECLARE c NO SCROLL CURSOR WITH HOLD FOR {mint}")).unwrap();
    let mut held = returned(&mut client, "FETCH 50 FROM c");
    client.batch_execute("COMMIT").unwrap();
    held.extend(returned(&mut client, "FETCH ALL FROM c"));
    assert_eq!((held.len(), disorders(&held)), (100, 0));
    minted.push(held);
    client
        .batch_execute(&format!("CLOSE c; BEGIN; DECLARE c SCROLL CURSOR WITH HOLD FOR {mint}; COMMIT"))
        .unwrap();
    let forward = returned(&mut client, "FETCH ALL FROM c");
    let mut backward = returned(&mut client, "FETCH BACKWARD ALL FROM c");
    backward.reverse();
    assert_eq!((forward.len(), &backward), (100, &forward));
    minted.push(forward);

    // Plans follow the default and the sequence.
    client.batch_execute("SET plan_cache_mode = force_generic_plan").unwrap();
    client.batch_execute("PREPARE put AS INSERT INTO photos (n) VALUES ($1) RETURNING id").unwrap();
    let mut executed = Vec::new();
    for change in [
        "SELECT",
        "ALTER SEQUENCE s RENAME TO q",
        "CREATE SEQUENCE r START 7; ALTER TABLE photos ALTER id SET DEFAULT next_id(5, 'r')",
        "ALTER TABLE photos ALTER id SET DEFAULT next_id(5, 'q'); DROP SEQUENCE r; ALTER SEQUENCE q RENAME TO s",
        "DISCARD SEQUENCES",
        "REINDEX TABLE photos",
    ] {
        client.batch_execute(change).unwrap();
        for _ in 0..20 {
            executed.extend(returned(&mut client, "EXECUTE put (1)"));
        }
    }
    assert_eq!(executed.len(), 120);
    client.batch_execute("RESET plan_cache_mode").unwrap();
    // Those of the other sequence could be the same.
    executed.drain(40..60);
    minted.push(executed);
    client.batch_execute("DEALLOCATE ALL").unwrap();
    assert_eq!(duplicates(&minted), 0);
}

/// Readers run in parallel, and in transactions that may only read; minting does not.
#[test]
fn readers() {
    let cluster = Cluster::start("parallel");
    let mut client = cluster.connect();
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let forced = if cfg!(feature = "pg15") { "force_parallel_mode" } else { "debug_parallel_query" };
    client
        .batch_execute(&format!(
            "INSERT INTO photos (n) SELECT generate_series(1, 100000); ANALYZE photos; SET {forced} = on;
             SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0"
        ))
        .unwrap();
    let read = "SELECT count(*) FROM photos
                WHERE id_shard(id) = 5 AND id_parts(id) IS NOT NULL AND length(id_shortcode(id)) = 11
                AND id_between(id, now() - interval '1 hour', now() + interval '1 hour')
                AND id_time(id, 'instagram') = id_time(id)
                AND make_id(id_time(id), id_shard(id), id_seq(id)) = id";
    let plan = texts(&mut client, &format!("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {read}")).join("\n");
    assert!(plan.contains("Workers Launched: ") && !plan.contains("Workers Launched: 0"), "{plan}");
    let rows = count(&mut client, "SELECT count(*) FROM photos");
    assert_eq!(count(&mut client, read), rows);
    for mint in ["SELECT next_id(5, 's') FROM photos", "SELECT id FROM photos WHERE next_id(5, 's') > id"] {
        let plan = texts(&mut client, &format!("EXPLAIN (COSTS OFF) {mint}"));
        assert!(!plan.iter().any(|line| line.contains("Gather")), "{plan:?}");
    }
    client
        .batch_execute(
            "CREATE INDEX in_parallel ON photos (id_time(id)); DROP INDEX photos_time;
             ALTER INDEX in_parallel RENAME TO photos_time; RESET ALL",
        )
        .unwrap();
    sound(&mut client);

    // Nothing is minted in a transaction that may only read.
    client.batch_execute("BEGIN READ ONLY").unwrap();
    assert_eq!(count(&mut client, read), rows);
    assert_eq!(refused(&mut client, MORE).code(), &SqlState::READ_ONLY_SQL_TRANSACTION);
    client.batch_execute("ROLLBACK").unwrap();
}

/// Databases are renamed, copied, moved to other disks and dropped.
#[test]
fn databases_come_and_go() {
    let mut cluster = Cluster::bare("databases", &[PRELOAD, "allow_in_place_tablespaces = on"]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE one").unwrap();
    let mut one = cluster.connect_to("one");
    one.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    one.batch_execute(PHOTOS).unwrap();
    make_shards(&mut one);
    let insert = format!("{MORE} RETURNING id");
    let mut minted = vec![returned(&mut one, &insert)];
    let findings = texts(&mut one, FINDINGS);
    drop(one);
    client.batch_execute("CREATE TABLESPACE disk LOCATION ''").unwrap();
    for (change, database) in [
        ("ALTER DATABASE one RENAME TO two", "two"),
        ("ALTER DATABASE two SET TABLESPACE disk", "two"),
        ("ALTER DATABASE two SET TABLESPACE pg_default", "two"),
    ] {
        // The sessions that were there may be going still.
        within(Duration::from_secs(10), || client.batch_execute(change).is_ok());
        let mut client = cluster.connect_to(database);
        minted.push(returned(&mut client, &insert));
        assert_eq!(texts(&mut client, FINDINGS), findings, "{change}");
    }
    // A copy goes on from where the template was, and so does the template: each by itself never repeats.
    for copy in [
        "CREATE DATABASE wal TEMPLATE two STRATEGY wal_log",
        "CREATE DATABASE file TEMPLATE two STRATEGY file_copy",
    ] {
        within(Duration::from_secs(10), || client.batch_execute(copy).is_ok());
    }
    drop(client);
    cluster.stop_immediately();
    cluster.environment = clock_ahead(-300);
    cluster.up();
    for database in ["two", "wal", "file"] {
        let mut client = cluster.connect_to(database);
        let more = returned(&mut client, &insert);
        assert_eq!(duplicates(minted.iter().chain([&more])), 0, "{database}");
        assert!(minted.iter().flatten().max() < more.first(), "time went back in {database}");
        assert_eq!(sound(&mut client).len(), 5000);
        assert_eq!(texts(&mut client, FINDINGS), findings, "{database}");
        client.batch_execute("INSERT INTO insta1.photos (n) SELECT generate_series(1, 100)").unwrap();
        assert_eq!(count(&mut client, "SELECT count(DISTINCT id) FROM insta1.photos"), 200);
    }
    let mut client = cluster.connect();
    for database in ["two", "file"] {
        within(Duration::from_secs(10), || {
            client.batch_execute(&format!("DROP DATABASE {database}")).is_ok()
        });
    }
    assert_eq!(returned(&mut cluster.connect_to("wal"), &insert).len(), 1000);
}

/// All that a dump of [`kinds_of_dumps`] has.
fn state(client: &mut Client) -> Vec<String> {
    client.batch_execute("SET search_path = public, ids").unwrap();
    let mut state = texts(client, FINDINGS);
    for query in [
        "SELECT insta_ids.shard_map()::text",
        "SELECT concat_ws(' ', schema, node, state, applied, pending, failed, tables) FROM insta_ids.shards
         ORDER BY shard",
        "SELECT m::text FROM insta_ids_internal.migration m",
        "SELECT p::text FROM insta_ids_internal.partitioned_table p",
        "SELECT concat_ws(' ', id, n, shard) FROM photos ORDER BY id",
        "SELECT concat_ws(' ', id, n) FROM insta1.photos ORDER BY id",
        "SELECT concat_ws(' ', id, at) FROM times ORDER BY id",
        "SELECT layout::text FROM layouts",
        "SELECT last_value::text FROM insta_ids.ticket_t",
        "SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
         WHERE connamespace <> 'insta_ids_internal'::regnamespace ORDER BY 1",
        "SELECT concat_ws(' ', adrelid::regclass, pg_get_expr(adbin, adrelid)) FROM pg_attrdef ORDER BY 1",
        "SELECT indexdef FROM pg_indexes WHERE schemaname IN ('public', 'insta1') ORDER BY 1",
        "SELECT pg_get_statisticsobjdef(oid) FROM pg_statistic_ext",
        "SELECT concat_ws(' ', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger
         WHERE NOT tgisinternal ORDER BY 1",
    ] {
        state.extend(texts(client, query));
    }
    state
}

/// In each of its forms, a dump brings back what it was made of, and ids go on.
#[test]
fn kinds_of_dumps() {
    let cluster = Cluster::start("dumps");
    let mut client = cluster.connect();
    client.batch_execute("CREATE DATABASE source").unwrap();
    let mut source = cluster.connect_to("source");
    source
        .batch_execute(
            "CREATE SCHEMA ids; CREATE EXTENSION insta_ids SCHEMA ids; SET search_path = public, ids",
        )
        .unwrap();
    source.batch_execute(PHOTOS).unwrap();
    source.batch_execute(MORE).unwrap();
    make_shards(&mut source);
    source
        .batch_execute(
            "SELECT insta_ids.create_ticket_server('t', 1, 1), insta_ids.next_ticket('t');
             CREATE TABLE likes (id bigint NOT NULL) PARTITION BY RANGE (id);
             SELECT insta_ids.create_partitions('likes', '1 month', now(), now());
             CREATE TABLE layouts (layout ids.id_layout DEFAULT 'twitter'); INSERT INTO layouts DEFAULT VALUES;
             CREATE MATERIALIZED VIEW times AS SELECT id, id_time(id) AS at FROM photos",
        )
        .unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = cluster.program(program, "postgres").args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let file = |name: &str| cluster.socket.join(name).to_str().unwrap().to_owned();
    let psql = |database: &str, name: &str| {
        run("psql", &["-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-d", database, "-f", &file(name)]);
    };
    let dump =
        |name: &str, options: &[&str]| run("pg_dump", &[options, &["-f", &file(name), "source"]].concat());
    // The two halves, before a shard is fenced: no rows come into a table that is. A whole dump has them before that.
    let unfenced = state(&mut source);
    dump("schema", &["--schema-only"]);
    dump("rows", &["--data-only"]);
    source.batch_execute("SELECT insta_ids.fence(1)").unwrap();
    let fenced = state(&mut source);
    source.batch_execute("ANALYZE").unwrap();
    dump("inserts", &["--inserts"]);
    dump("columns", &["--column-inserts", "--quote-all-identifiers", "--no-owner"]);
    dump("clean", &["--clean", "--if-exists"]);
    let statistics: &[&str] = if cfg!(feature = "pg18") { &["--statistics"] } else { &[] };
    dump("directory", &[&["-Fd", "-j", "2"], statistics].concat());
    dump("photos", &["-t", "photos", "-t", "s"]);
    for database in ["parts", "inserts", "columns", "directory", "photos"] {
        client.batch_execute(&format!("CREATE DATABASE {database}")).unwrap();
    }
    psql("parts", "schema");
    let mut parts = cluster.connect_to("parts");
    // No shards, and no lease: it is one of its own.
    assert_eq!(
        refused(&mut parts, "SELECT insta_ids.create_shard(5)").code(),
        &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
    );
    // With the data of the whole database, the lease comes, and all that is recorded.
    let lease = count(&mut source, "SELECT last_value FROM insta_ids_internal.lease");
    psql("parts", "rows");
    parts.batch_execute("SET search_path = public, ids; REFRESH MATERIALIZED VIEW times").unwrap();
    assert_eq!(count(&mut parts, "SELECT last_value FROM insta_ids_internal.lease"), lease);
    assert_eq!(state(&mut parts), unfenced);
    psql("inserts", "inserts");
    psql("columns", "columns");
    run("pg_restore", &["--exit-on-error", "-j", "2", "-d", "directory", &file("directory")]);
    for database in ["inserts", "columns", "directory"] {
        assert_eq!(state(&mut cluster.connect_to(database)), fenced, "{database}");
    }
    // Over what is there.
    run("pg_restore", &["--exit-on-error", "--clean", "--if-exists", "-d", "directory", &file("directory")]);
    psql("inserts", "clean");
    for database in ["inserts", "directory"] {
        assert_eq!(state(&mut cluster.connect_to(database)), fenced, "{database}, over what is there");
    }
    // One table, where the extension is.
    let mut photos = cluster.connect_to("photos");
    photos.batch_execute("CREATE SCHEMA ids; CREATE EXTENSION insta_ids SCHEMA ids").unwrap();
    psql("photos", "photos");
    let rows = sound(&mut source);
    for database in ["parts", "inserts", "columns", "directory", "photos"] {
        let mut client = cluster.connect_to(database);
        client.batch_execute("SET search_path = public, ids").unwrap();
        client.batch_execute(MORE).unwrap();
        let more = sound(&mut client);
        assert_eq!((more.len(), more.starts_with(&rows)), (2000, true), "{database}");
        if database != "photos" {
            assert_eq!(count(&mut client, "SELECT insta_ids.next_ticket('t')"), 2);
            client
                .batch_execute("INSERT INTO insta2.photos DEFAULT VALUES; SELECT insta_ids.create_shard(5)")
                .unwrap();
            let write = client.batch_execute("INSERT INTO insta1.photos DEFAULT VALUES");
            assert_eq!(write.is_ok(), database == "parts", "{database}");
        }
    }
    // The schema that the extension is in takes it along.
    assert_eq!(refused(&mut photos, "DROP SCHEMA ids").code(), &SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
    photos.batch_execute("DROP SCHEMA ids CASCADE").unwrap();
    assert_eq!(texts(&mut photos, "SELECT extname::text FROM pg_extension"), ["plpgsql"]);
    assert_eq!(count(&mut photos, "SELECT count(*) FROM photos"), 2000);
}

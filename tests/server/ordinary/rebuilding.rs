//! Tables, indexes and the catalog are rebuilt and altered.

use super::{FINDINGS, MINT, MORE, PHOTOS, make_shards, sound};
use postgres::Client;
use postgres::error::SqlState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use support::{Cluster, count, disorders, duplicates, has, ids, refused, texts};

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

/// Tables, indexes, the extension's own tables and the catalog are rebuilt and rewritten while sessions mint.
#[test]
fn everything_is_rebuilt_while_sessions_mint() {
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

/// A table is altered, filled, emptied, renamed and copied. Its ids stay what they are, and new ones are new.
#[test]
fn altered_tables_keep_their_ids() {
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

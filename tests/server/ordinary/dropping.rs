//! The extension, its owners, and what depends on them are dropped.

use super::event_triggers::catalog;
use super::{FINDINGS, MIGRATION, MINT, MORE, PHOTOS, add_nodes, make_shards, provision_shards, sound};
use postgres::error::SqlState;
use support::shards::add;
use support::{Cluster, blocks, clock_ahead, count, duplicates, ids, refused, texts};

/// The extension is not dropped in whole or in part while something depends on it, and nothing is lost.
#[test]
fn what_depends_on_the_extension_keeps_it_from_being_dropped() {
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
        "statistics object photos_parts depends on function id_shard(bigint)",
        "view times depends on function id_time(bigint)",
        "function insta1.next_id() depends on function next_id(integer,regclass)",
        "default value for column id of table insta1.photos depends on function insta1.next_id()",
        "constraint photos_id_check on table insta1.photos depends on function id_shard(bigint)",
        "trigger insta_ids_fence on table insta3.photos depends on function insta_ids_internal.guard_write()",
        "sequence insta_ids.ticket_t depends on schema insta_ids",
    ] {
        assert!(error.detail().unwrap().contains(dependent), "{dependent}: {:?}", error.detail());
    }
    // Nor does any part of it go, or go elsewhere.
    for (command, sqlstate) in [
        ("ALTER EXTENSION insta_ids SET SCHEMA pg_temp", SqlState::FEATURE_NOT_SUPPORTED),
        ("DROP SCHEMA insta_ids", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP SCHEMA insta_ids CASCADE", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("ALTER SCHEMA insta_ids RENAME TO other", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("ALTER SCHEMA insta_ids_internal RENAME TO other", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP SCHEMA public", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP EVENT TRIGGER insta_ids_refuse_ddl", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
        ("DROP TABLE insta_ids_internal.lease", SqlState::DEPENDENT_OBJECTS_STILL_EXIST),
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

/// DROP EXTENSION with CASCADE takes defaults, CHECKs and functions along. Rows stay, and no id comes twice when their tables
/// get the defaults again.
#[test]
fn dropping_the_extension_and_making_it_again_repeats_no_id() {
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
    client.batch_execute(&blocks("docs/operations.md", "sql")[0]).unwrap();
    client.batch_execute(MORE).unwrap();
    let after = sound(&mut client);
    assert_eq!((after.len(), after.starts_with(&minted)), (minted.len() + 1000, true));
}

/// A role that owns the extension or provisions shards can be dropped after its objects were reassigned.
#[test]
fn owners_of_the_extension_and_of_shards_can_be_dropped() {
    let cluster = Cluster::bare("owners");
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
    provision_shards(&mut of("first"));
    add_nodes(&mut client);
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

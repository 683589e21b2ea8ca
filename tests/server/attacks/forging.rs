//! Roles that may provision forge rows of the extension's tables.

use support::{Cluster, count, refused, texts};

/// A role that may provision cannot write rows about shards whose schemas it does not own: a superuser's call would act on them.
#[test]
fn a_provisioner_cannot_write_rows_about_shards_of_others() {
    let cluster = Cluster::start("forged");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE forger; GRANT CREATE ON DATABASE postgres TO forger; SELECT insta_ids.grant_provisioning('forger');
             SELECT insta_ids.init(10), insta_ids.create_shard(2); CREATE SCHEMA victim; CREATE SCHEMA insta3;
             SET ROLE forger; SELECT insta_ids.create_shard(5)",
        )
        .unwrap();
    let moving = |shards: &str| {
        format!(
            "INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
             VALUES ('insta_ids_5_6', gen_random_uuid(), 5, 6, '{shards}', 'a', 'b', 0, 'copying')"
        )
    };
    for (forged, schema) in [
        (&*moving("{5,2}"), "insta2"),
        (&*moving("{5,6}"), "insta6"),
        // It would be of whoever makes the schema later.
        ("INSERT INTO insta_ids_internal.shard VALUES (6)", "insta6"),
        ("UPDATE insta_ids_internal.shard SET shard = 6 WHERE shard = 5", "insta6"),
        ("INSERT INTO insta_ids_internal.fence VALUES (6, true)", "insta6"),
        ("INSERT INTO insta_ids_internal.departed_shard VALUES (6, 'insta6__moved', 'b')", "insta6__moved"),
        ("INSERT INTO insta_ids_internal.departed_shard VALUES (4, 'not_yet_there', 'b')", "not_yet_there"),
        ("INSERT INTO insta_ids_internal.departed_shard VALUES (4, 'victim', 'b')", "victim"),
        ("INSERT INTO insta_ids_internal.fence VALUES (2, true)", "insta2"),
        ("INSERT INTO insta_ids_internal.shard VALUES (3)", "insta3"),
        ("UPDATE insta_ids_internal.shard SET shard = 6 WHERE shard = 2", "insta2"),
        ("DELETE FROM insta_ids_internal.shard WHERE shard = 2", "insta2"),
    ] {
        let error = refused(&mut client, forged);
        let expected = ("42501", &*format!("must be owner of schema {schema}"));
        assert_eq!((error.code().code(), error.message()), expected, "{forged}");
    }
    // What a move is called, and its range, are those of its shards.
    client.batch_execute("RESET ROLE; SELECT insta_ids.create_shard(6)").unwrap();
    for (is, wrong) in [
        ("{5}", "{{5,5}}"),
        ("{5}", "{}"),
        ("{5}", "{5,2}"),
        ("5_6", "5_5"),
        ("5_6', gen_random_uuid(), 5", "6_6', gen_random_uuid(), 6"),
    ] {
        let forged = moving("{5}").replace(is, wrong);
        assert_eq!(refused(&mut client, &forged).code().code(), "23514", "{forged}");
    }
    client.batch_execute("SET ROLE forger").unwrap();
    client.batch_execute("SELECT insta_ids.fence(5), insta_ids.unfence(5), insta_ids.drop_shard(5)").unwrap();
}

/// A connection string decides which files libpq reads on the server, and from whom a superuser takes migrations.
#[test]
fn only_superusers_change_the_nodes() {
    let cluster = Cluster::start("nodes_forged");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE forger; GRANT CREATE ON DATABASE postgres TO forger; SELECT insta_ids.grant_provisioning('forger');
             CREATE ROLE writer; GRANT pg_read_all_data, pg_write_all_data TO writer; GRANT USAGE ON SCHEMA insta_ids_internal TO writer;
             SELECT insta_ids.init(10), insta_ids.add_node('a', 'host=a'), insta_ids.add_node('b', 'host=b')",
        )
        .unwrap();
    for role in ["forger", "writer"] {
        client.batch_execute(&format!("SET ROLE {role}")).unwrap();
        for forged in [
            "SELECT insta_ids.add_node('c', 'host=evil')",
            "SELECT insta_ids.add_node('a', 'host=evil')",
            "SELECT insta_ids.drop_node('a')",
            "INSERT INTO insta_ids_internal.node VALUES ('c', 'host=evil', 9)",
            "UPDATE insta_ids_internal.node SET dsn = 'host=evil' WHERE node = 'a'",
            "UPDATE insta_ids_internal.node SET node = 'c' WHERE node = 'a'",
            "DELETE FROM insta_ids_internal.node",
            "SELECT insta_ids.apply_map(insta_ids.shard_map()
                || '{\"version\": 99, \"ranges\": [[0, 9, \"a\", 99]], \"dropped_nodes\": [{\"node\": \"b\", \"version\": 99}]}')",
            "SELECT insta_ids.apply_map(jsonb_set(insta_ids.shard_map() || '{\"version\": 99, \"ranges\": [[0, 9, \"a\", 99]]}', '{nodes,0}', '{\"node\": \"a\", \"dsn\": \"host=evil\", \"ord\": 0, \"weight\": 1, \"version\": 99}'))",
        ] {
            let error = refused(&mut client, forged);
            let expected = ("42501", "must be superuser to change the nodes of the map");
            assert_eq!((error.code().code(), error.message()), expected, "{role}: {forged}");
        }
    }
    client.batch_execute("SET ROLE forger; SELECT insta_ids.assign(0, 9, 'a')").unwrap();
}

/// What a role that may provision writes about its own shards has no effect on the shards of other roles.
#[test]
fn rows_about_ones_own_shards_reach_no_other_shard() {
    let cluster = Cluster::start("forged_own");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE forger; GRANT CREATE ON DATABASE postgres TO forger; SELECT insta_ids.grant_provisioning('forger');
             SELECT insta_ids.init(10), insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint)');
             SELECT insta_ids.create_shard(2), insta_ids.create_shard(6);
             INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
             VALUES ('insta_ids_2_2', gen_random_uuid(), 2, 2, '{2}', 'a', 'b', 0, 'copying');
             SET ROLE forger; SELECT insta_ids.create_shard(5)",
        )
        .unwrap();
    let moving = |name: &str, first: i32, last: i32, step: &str| {
        format!(
            "INSERT INTO insta_ids_internal.move (name, id, first, last, shards, from_node, to_node, bytes, step)
             SELECT '{name}', id, {first}, {last}, '{{5}}', 'a', 'b', 0, '{step}' FROM insta_ids_internal.move LIMIT 1"
        )
    };
    let must_own = |schema: &str| format!("must be owner of schema {schema}");
    for (forged, message) in [
        // A move would be given up, and with it the schema that is called so by then.
        (
            moving("insta_ids_5_5", 5, 5, "prepared"),
            "must be superuser to take over shards from 5 to 5".into(),
        ),
        // Others' shards in the range could be neither fenced nor dropped.
        (moving("insta_ids_0_9", 0, 9, "offered"), must_own("insta2")),
        ("INSERT INTO insta_ids_internal.shard_migration VALUES (6, 1)".into(), must_own("insta6")),
        ("DELETE FROM insta_ids_internal.shard_migration WHERE shard = 6".into(), must_own("insta6")),
        (
            "UPDATE insta_ids_internal.shard_migration SET message = '' WHERE shard = 6".into(),
            must_own("insta6"),
        ),
        (
            "UPDATE insta_ids_internal.shard_migration SET shard = 6 WHERE shard = 5".into(),
            must_own("insta6"),
        ),
    ] {
        let error = refused(&mut client, &forged);
        assert_eq!((error.code().code(), error.message()), ("42501", &*message), "{forged}");
    }
    // The id is not the one that was taken from the move of others, nor does it become that.
    client.batch_execute(&moving("insta_ids_5_5", 5, 5, "offered")).unwrap();
    client
        .batch_execute("UPDATE insta_ids_internal.move m SET id = (SELECT o.id FROM insta_ids_internal.move o WHERE o.first = 2) WHERE m.first = 5")
        .unwrap();
    assert_eq!(count(&mut client, "SELECT count(DISTINCT id) FROM insta_ids_internal.move"), 2);
    // After the last number there is no other.
    client
        .batch_execute(
            "INSERT INTO insta_ids_internal.migration VALUES (2147483647, 'last', 'SELECT 1', true, true);
             UPDATE insta_ids_internal.migration SET number = 2147483647 WHERE name = 'last'; RESET ROLE;
             SELECT insta_ids.add_migration('0003', 'SELECT 1')",
        )
        .unwrap();
    assert_eq!(
        texts(&mut client, "SELECT number::text FROM insta_ids_internal.migration ORDER BY number"),
        ["1", "2", "3"]
    );
    // As where the changes of another server are applied.
    client.batch_execute("SET session_replication_role = replica; SET ROLE forger").unwrap();
    for forged in [
        "INSERT INTO insta_ids_internal.shard_migration VALUES (6, 2)",
        "DELETE FROM insta_ids_internal.shard WHERE shard = 6",
        "DELETE FROM insta_ids_internal.move WHERE first = 2",
        "INSERT INTO insta_ids_internal.fence VALUES (6, true)",
        "INSERT INTO insta_ids_internal.departed_shard VALUES (4, 'victim', 'b')",
        "INSERT INTO insta_ids_internal.move_outcome SELECT id, 'withdrawn', shards FROM insta_ids_internal.move WHERE first = 2",
        "UPDATE insta_ids_internal.migration SET added_by = 'forger'",
    ] {
        assert_eq!(refused(&mut client, forged).code().code(), "42501", "{forged}");
    }
}

/// A trigger that looks at roles also fires in sessions that apply changes of another server, where others do not fire.
#[test]
fn triggers_that_check_roles_always_fire() {
    let cluster = Cluster::start("forging_triggers");
    let others = texts(
        &mut cluster.connect(),
        "SELECT format('%s on %s', tgname, tgrelid::regclass) FROM pg_trigger
         WHERE NOT tgisinternal AND tgenabled <> 'A' AND tgrelid IN (
            SELECT oid FROM pg_class WHERE relnamespace = 'insta_ids_internal'::regnamespace) ORDER BY 1",
    );
    // These two check no role. They would refuse changes that the other server has already allowed.
    assert_eq!(others, ["keep on insta_ids_internal.config", "keep on insta_ids_internal.migration"]);
}

//! What roles may do with shards.

use super::making::PROGRESS;
use postgres::NoTls;
use postgres::error::SqlState;
use support::shards::{PHOTOS, add, check_complete, set_up};
use support::{Cluster, count, refused, texts};

/// A role may do what it was granted, and nothing else.
#[test]
fn a_role_may_do_what_it_was_granted() {
    let cluster = Cluster::bare("provisioning");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE \"Provisioner 1\" LOGIN; CREATE ROLE nobody LOGIN;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO nobody;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO nobody;
             CREATE EXTENSION insta_ids;
             SELECT insta_ids.grant_provisioning('\"Provisioner 1\"')",
        )
        .unwrap();
    let mut provisioner = cluster.config().user("Provisioner 1").connect(NoTls).unwrap();
    let mut nobody = cluster.config().user("nobody").connect(NoTls).unwrap();
    provisioner.batch_execute("SELECT insta_ids.init(100)").unwrap();
    // Schemas are made by who may make them in the database.
    for call in ["SELECT insta_ids.create_shard(5)", "CALL insta_ids.create_shards(0, 9)"] {
        let error = refused(&mut provisioner, call);
        assert_eq!(error.message(), "permission denied for database postgres");
    }
    client.batch_execute("GRANT CREATE ON DATABASE postgres TO \"Provisioner 1\"").unwrap();
    provisioner.batch_execute("SELECT insta_ids.create_shard(5)").unwrap();
    provisioner.batch_execute("CALL insta_ids.create_shards(0, 9)").unwrap();
    add(&mut provisioner, "0001", PHOTOS);
    add(&mut provisioner, "0001", &PHOTOS.replace("caption", "title"));
    provisioner.batch_execute("CALL insta_ids.migrate()").unwrap();
    let script = "SELECT insta_ids.add_migration('0002', 'CREATE INDEX CONCURRENTLY ON photos (title)', transactional => false)";
    provisioner.batch_execute(script).unwrap();
    for line in texts(&mut provisioner, "SELECT insta_ids.migration_script('0002')") {
        provisioner.batch_execute(&line).unwrap();
    }
    provisioner
        .batch_execute("SELECT insta_ids.drop_shard(9); INSERT INTO insta5.photos DEFAULT VALUES")
        .unwrap();
    check_complete(&mut provisioner, 9);
    assert_eq!(texts(&mut provisioner, PROGRESS), [""; 0]);
    let owners = "
        SELECT DISTINCT owner::regrole::text FROM (
            SELECT nspowner FROM pg_namespace WHERE nspname ~ '^insta\\d'
            UNION ALL SELECT relowner FROM pg_class WHERE relnamespace::regnamespace::text ~ '^insta\\d'
            UNION ALL SELECT proowner FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^insta\\d'
        ) o (owner)";
    assert_eq!(texts(&mut provisioner, owners), ["\"Provisioner 1\""]);

    let places = "SELECT insta_ids.schema_of(insta_ids.shard_of(205))::text || insta_ids.shard_of_text('a') || insta_ids.shard_of_uuid(md5('a')::uuid)";
    assert_eq!(texts(&mut nobody, places), texts(&mut client, places));
    for call in [
        "SELECT insta_ids.init(5)",
        "SELECT insta_ids.create_shard(50)",
        "CALL insta_ids.create_shards(50, 51)",
        "SELECT insta_ids.drop_shard(5, force => true)",
        "SELECT insta_ids.add_migration('0003', 'SELECT 1')",
        "CALL insta_ids.migrate()",
        "SELECT insta_ids.migration_script('0002')",
        "SELECT insta_ids_internal.start_migration('0002', 5, '')",
        "SELECT insta_ids_internal.finish_migration('0002', 5, '')",
        "SELECT insta_ids.grant_provisioning('nobody')",
        "SELECT insta_ids.add_node('a', 'host=a dbname=a')",
        "SELECT insta_ids.drop_node('a')",
        "SELECT insta_ids.assign(0, 1, 'a')",
        "SELECT insta_ids.apply_map(insta_ids.shard_map())",
        "SELECT insta_ids.fence(5)",
        "SELECT insta_ids.unfence(5)",
        "SELECT insta_ids.check()",
        "CALL insta_ids.check_rows()",
        "SELECT insta_ids.check_fleet()",
        "SELECT insta_ids.fleet()",
        "SELECT insta_ids.adopt('public', 50)",
        "SELECT insta_ids.unadopt('insta5')",
        "SELECT insta_ids.create_partitions('insta5.photos', '1 day', now(), now())",
        "SELECT insta_ids.drop_partitions('insta5.photos', now())",
        "SELECT insta_ids.release_writer_slot('1/2')",
        "SELECT insta_ids.export_pgdog('a')",
        "SELECT insta_ids_internal.make_shards('{50}', '')",
        "SELECT insta_ids_internal.apply_migrations(5, '', false, NULL)",
        "CALL insta_ids_internal.commit_batch('migrate', 5, 0, 0)",
        "TABLE insta_ids.shards",
        "TABLE insta_ids_internal.shard",
        "TABLE insta_ids.migration_status",
        "TABLE insta_ids_internal.migration",
        "TABLE insta_ids_internal.shard_migration",
        "TABLE insta_ids.progress",
        "TABLE insta_ids_internal.work",
        "INSERT INTO insta_ids_internal.config VALUES (1, 'a', 'instagram')",
        "DELETE FROM insta_ids_internal.config",
    ] {
        assert_eq!(refused(&mut nobody, call).code(), &SqlState::INSUFFICIENT_PRIVILEGE, "{call}");
    }
    let error = refused(&mut provisioner, "SELECT insta_ids.grant_provisioning('nobody')");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
}

/// Nobody else can name what the functions are made of, and a role with `grant_provisioning` may not call those of superusers.
#[test]
fn functions_of_superusers_are_withheld() {
    let cluster = Cluster::bare("withheld");
    cluster
        .connect()
        .batch_execute(
            "CREATE ROLE provisioner LOGIN; CREATE ROLE nobody LOGIN; ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO nobody;
             CREATE EXTENSION insta_ids; SELECT insta_ids.grant_provisioning('provisioner')",
        )
        .unwrap();
    let [mut provisioner, mut nobody] =
        ["provisioner", "nobody"].map(|role| cluster.config().user(role).connect(NoTls).unwrap());
    let internal = "SELECT has_schema_privilege('insta_ids_internal', 'USAGE')::text";
    assert_eq!(texts(&mut nobody, internal), ["false"]);
    let withheld = "SELECT oid::regprocedure::text FROM pg_proc
                    WHERE pronamespace = 'insta_ids'::regnamespace AND NOT has_function_privilege(oid, 'EXECUTE') ORDER BY 1";
    assert_eq!(
        texts(&mut nobody, withheld),
        [
            "insta_ids.acquire_writer_slot(timestamp with time zone)",
            "insta_ids.advance_clock(timestamp with time zone)",
            "insta_ids.check_move(integer,integer,name,boolean)",
            "insta_ids.create_ticket_server(text,integer,integer,integer)",
            "insta_ids.grant_provisioning(regrole)",
            "insta_ids.install_plproxy(text)",
            "insta_ids.move_abort(integer,integer,name,boolean)",
            "insta_ids.move_diff(integer,integer)",
            "insta_ids.move_shards(integer,integer,name,text,interval,bigint,interval,boolean,boolean,boolean)",
            "insta_ids.reset_clock()",
            "insta_ids.stat_reset()",
        ]
    );
    assert_eq!(texts(&mut provisioner, withheld), texts(&mut nobody, withheld));
}

/// A role that may not use a shard's schema makes nothing in the next schema of the path instead.
#[test]
fn a_role_without_usage_of_a_shard_writes_nowhere() {
    let (cluster, mut client) = set_up("of_others", 100);
    client
        .batch_execute(
            "CREATE ROLE provisioner LOGIN; GRANT CREATE ON DATABASE postgres TO provisioner;
             GRANT CREATE ON SCHEMA public TO provisioner; SELECT insta_ids.grant_provisioning('provisioner');
             SELECT insta_ids.create_shard(0), insta_ids.create_shard(1); GRANT USAGE ON SCHEMA insta1 TO provisioner",
        )
        .unwrap();
    let mut provisioner = cluster.config().user("provisioner").connect(NoTls).unwrap();
    provisioner.batch_execute("SELECT insta_ids.create_shard(2)").unwrap();
    add(&mut provisioner, "0001", PHOTOS);
    let error = refused(&mut provisioner, "CALL insta_ids.migrate()");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    assert_eq!(error.message(), "2 of 3 shards could not be migrated");
    let states = "SELECT concat_ws(' ', shard, state, sqlstate, message) FROM insta_ids.migration_status ORDER BY shard";
    let expected = [
        "0 failed 42501 must be owner of schema insta0",
        "1 failed 42501 must be owner of schema insta1",
        "2 applied",
    ];
    assert_eq!(texts(&mut client, states), expected);
    let made = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname IN ('photos', 'likes', 'likes_id_seq')";
    assert_eq!(texts(&mut client, made), ["insta2"; 3]);
    // Nor is what is theirs dropped.
    let error = refused(&mut provisioner, "SELECT insta_ids.drop_shard(0)");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    let error = refused(&mut provisioner, "SELECT insta_ids.drop_shard(0, force => true)");
    assert_eq!(error.code(), &SqlState::INSUFFICIENT_PRIVILEGE);
    // Rows that are hidden from who asks are rows.
    provisioner
        .batch_execute(
            "INSERT INTO insta2.photos DEFAULT VALUES;
             ALTER TABLE insta2.photos ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        )
        .unwrap();
    assert_eq!(count(&mut provisioner, "SELECT count(*) FROM insta2.photos"), 0);
    let error = refused(&mut provisioner, "SELECT insta_ids.drop_shard(2)");
    assert_eq!(error.message(), "shard 2 is not empty");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta2.photos"), 1);
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.shard"), 3);
}

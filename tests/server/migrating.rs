//! Promise: docs/migrating.md says what is so, from the first step to the last, and nobody who writes meanwhile notices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use support::blocks;
use support::{Cluster, count, duplicates, ids, texts};

const DOCUMENT: &str = "docs/migrating.md";

/// Gives a block of the document to psql, which must not fail.
fn psql(cluster: &Cluster, database: &str, block: &str) {
    let psql = cluster.psql(&["-v", "ON_ERROR_STOP=1", "-o", "/dev/null", database], block);
    let output = psql.wait_with_output().unwrap();
    assert!(output.status.success(), "{block}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The steps of docs/migrating.md are followed, there and back, and sessions that write meanwhile notice nothing.
#[test]
fn each_step_of_docs_migrating_works_under_writers() {
    let cluster = Cluster::start("migrating");
    let mut client = cluster.connect();
    client.batch_execute("DROP EXTENSION insta_ids").unwrap();
    let steps = blocks(DOCUMENT, "sql");
    let (before, steps) = steps.split_first().unwrap();
    for shard in [5, 6, 7, 1999] {
        let schema = format!("insta{shard}");
        let number = format!("shard_id int := {shard};");
        client
            .batch_execute(&before.replace("insta5", &schema).replace("shard_id int := 5;", &number))
            .unwrap();
    }

    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = [5, 5, 6, 7]
            .iter()
            .map(|shard| {
                let mut writer = cluster.connect();
                let insert =
                    format!("INSERT INTO insta{shard}.photos (user_id) VALUES ({shard}) RETURNING id");
                scope.spawn({
                    let ended = &ended;
                    move || {
                        let mut written = Vec::new();
                        while !ended.load(Ordering::Relaxed) {
                            written.extend(ids(&mut writer, &insert));
                        }
                        written
                    }
                })
            })
            .collect();

        let mut in_psql = blocks(DOCUMENT, "psql").into_iter();
        for step in steps {
            if step.contains("insta_ids.check()") {
                for block in in_psql.by_ref() {
                    psql(&cluster, "postgres", &block);
                }
                let found = "SELECT code || ' ' || object FROM insta_ids.check()";
                assert_eq!(texts(&mut client, found), [""; 0]);
            }
            client.batch_execute(step).unwrap();
        }
        assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids.shards WHERE applied = 1"), 4);
        assert_eq!(in_psql.next(), None);

        let (all, leaving) = (blocks(DOCUMENT, "psql leaving"), blocks(DOCUMENT, "sql leaving"));
        client.batch_execute(&leaving[0]).unwrap();
        psql(&cluster, "postgres", &all[0]);
        client.batch_execute(&leaving[1]).unwrap();
        ended.store(true, Ordering::Relaxed);
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        assert!(written.iter().all(|ids| !ids.is_empty()));
        assert_eq!(duplicates(&written), 0);
    });
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_extension WHERE extname = 'insta_ids'"), 0);
}

/// The example for ids of Twitter's layout in docs/migrating.md runs.
#[test]
fn ids_of_twitters_layout_can_be_kept() {
    let cluster = Cluster::start("tweets");
    let mut client = cluster.connect();
    client.batch_execute("DROP EXTENSION insta_ids").unwrap();
    client.batch_execute(&blocks(DOCUMENT, "sql twitter")[0]).unwrap();
    let shards = texts(&mut client, "SELECT DISTINCT id_shard(id, 'twitter')::text FROM tweets3.tweets");
    assert_eq!(shards, ["3"]);
    assert_eq!(count(&mut client, "SELECT count(*) FROM tweets3.tweets"), 2);
}

/// Each step from one table to shards runs as it is written, by the owner of the tables, to the end and back, and again.
#[test]
fn each_step_from_one_table_to_shards_works() {
    let steps = blocks(DOCUMENT, "psql table");
    let step_of = |call: &str| steps.iter().position(|step| step.contains(call)).unwrap();
    let (plan, finish) = (step_of("distribute_plan"), step_of("distribute_finish"));
    for goes_back in [false, true] {
        let cluster = Cluster::bare("from_one_table");
        let mut superuser = cluster.connect();
        superuser.batch_execute("CREATE ROLE app LOGIN").unwrap();
        superuser.batch_execute("CREATE DATABASE app OWNER app").unwrap();
        let as_owner = |steps: &[String]| {
            for step in steps {
                psql(&cluster, "dbname=app user=app", step);
            }
        };
        as_owner(&steps[..1]);
        cluster.connect_to("app").batch_execute(&blocks(DOCUMENT, "sql owner")[0]).unwrap();
        as_owner(&steps[1..finish]);
        let mut client = cluster.connect_to("app");
        let found = "SELECT code || ' ' || object FROM insta_ids.check() WHERE severity <> 'notice'";
        if goes_back {
            client.batch_execute("INSERT INTO insta7.users (name) VALUES ('new')").unwrap();
            as_owner(&blocks(DOCUMENT, "psql back"));
            assert_eq!(count(&mut client, "SELECT count(*) FROM users"), 1001);
            client.batch_execute("INSERT INTO users (name) VALUES ('after')").unwrap();

            as_owner(&["DROP TABLE plan".to_owned()]);
            as_owner(&blocks(DOCUMENT, "sql again"));
            as_owner(&steps[plan..plan + 2]);
            as_owner(&["CALL insta_ids.distribute()".to_owned()]);
            as_owner(&["SELECT insta_ids.distribute_switch()".to_owned()]);
            assert_eq!(
                count(&mut client, "SELECT sum(rows_copied)::bigint FROM insta_ids.distributions"),
                21002
            );
        } else {
            as_owner(&steps[finish..]);
            assert_eq!(count(&mut client, "SELECT count(*) FROM insta7.photos"), 160);
            assert_eq!(count(&mut client, "SELECT shard_of_user(71)::bigint"), 7);
            assert_eq!(count(&mut client, "SELECT shard_of_user(insta9.next_id())::bigint"), 9);
            assert_eq!(texts(&mut client, found), [""; 0]);
        }
    }
}

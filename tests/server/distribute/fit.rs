//! Rows that the shards would refuse are found before anything is copied, and `check` finds nothing wrong with a distribution.

use support::{Cluster, count, refused, texts};

const SHARDS: &str = "SELECT insta_ids.init(4);
    SELECT insta_ids.add_migration('1', $$
        CREATE TABLE users (id bigint PRIMARY KEY DEFAULT next_id(), name text NOT NULL);
        CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL);
        CREATE TABLE likes (photo_id bigint, user_id bigint, PRIMARY KEY (photo_id, user_id));
    $$, ids_since => '2011-08-26Z');";

/// One row of each table does not fit. One photo has an ID as the shards make them, which is of its shard.
const TABLES: &str = "
    CREATE TABLE users (id bigint PRIMARY KEY, name text);
    CREATE TABLE photos (id bigint PRIMARY KEY, user_id bigint NOT NULL);
    CREATE TABLE likes (photo_id bigint, user_id bigint, PRIMARY KEY (photo_id, user_id));
    INSERT INTO users SELECT n, 'user ' || n FROM generate_series(-49, 50) n;
    INSERT INTO photos SELECT n, n FROM generate_series(-49, 50) n;
    INSERT INTO photos VALUES (make_id('2026-01-01Z', 3, 5), 7), (3000000000000000000, 1);
    INSERT INTO users VALUES (51);
    INSERT INTO likes VALUES (1, 2), (4711, 2);
    ALTER TABLE likes ADD FOREIGN KEY (photo_id) REFERENCES photos NOT VALID;
    SELECT insta_ids.distribute_table('users', 'id'), insta_ids.distribute_table('photos', 'user_id'),
        insta_ids.distribute_table('likes', 'photo_id')";

#[test]
fn rows_that_do_not_fit_are_found_before_the_copy() {
    let cluster = Cluster::start("distribute_fit");
    let mut client = cluster.connect();
    client.batch_execute(SHARDS).unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    client.batch_execute(TABLES).unwrap();
    let error = refused(&mut client, "CALL insta_ids.distribute()");
    assert_eq!(
        (error.code().code(), error.message()),
        ("55000", "rows of the registered tables do not fit into the shards")
    );
    assert_eq!(
        error.detail(),
        Some(
            "public.photos: Column \"id\" has the value 3000000000000000000, which is no ID of the row's shard. The shards accept other IDs below 811835045445632.\n\
             public.likes: The row with the primary key (4711,2) refers to no row of table public.photos.\n\
             public.users: Column \"name\" is NULL in the row with the primary key (51), and NOT NULL in the shards."
        )
    );
    assert_eq!(
        count(&mut client, "SELECT count(*) FROM insta_ids.distributions WHERE step <> 'registered'"),
        0
    );
    client
        .batch_execute("DELETE FROM users WHERE id > 50; DELETE FROM photos WHERE id = 3000000000000000000; DELETE FROM likes WHERE photo_id > 50")
        .unwrap();
    client.batch_execute("CREATE PUBLICATION p FOR TABLE photos").unwrap();
    let call = cluster.psql(&["-d", "postgres"], "CALL insta_ids.distribute();").wait_with_output().unwrap();
    let published =
        "publication \"p\" publishes table public.photos, whose rows are in the shards from the switch on";
    assert!(String::from_utf8(call.stderr).unwrap().contains(published));

    client.batch_execute("ANALYZE; UPDATE photos SET user_id = 3 WHERE id <= 10").unwrap();
    let waiting = "SELECT concat_ws(' ', source, rows_copied, rows_estimated, time_left, changes_waiting, next) FROM insta_ids.distributions ORDER BY source::text";
    let next = "SELECT insta_ids.distribute_switch()";
    assert_eq!(
        texts(&mut client, waiting),
        [
            format!("likes 1 1 0 {next}"),
            format!("photos 101 101 60 {next}"),
            format!("users 100 100 0 {next}")
        ]
    );

    // Each table was compared in a transaction of its own.
    let compared = "SELECT count(DISTINCT verified_at) FROM insta_ids.distributions";
    assert_eq!(count(&mut client, compared), 3);

    // Nothing is wrong with old IDs below zero, nor with the triggers of the distribution.
    let findings = "SELECT code || ' ' || object FROM insta_ids.check() WHERE severity <> 'notice'";
    assert_eq!(texts(&mut client, findings), [""; 0]);
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    assert_eq!(texts(&mut client, findings), [""; 0]);
    client.batch_execute("CALL insta_ids.check_rows()").unwrap();

    client.batch_execute("CREATE VIEW names AS SELECT name FROM users").unwrap();
    let error = refused(&mut client, "SELECT insta_ids.distribute_finish()");
    assert_eq!(
        (error.code().code(), error.message()),
        ("2BP01", "other objects depend on the registered tables")
    );
    assert_eq!(error.detail(), Some("view public.names depends on table public.users"));
    client.batch_execute("DROP VIEW names").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_finish()").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.change"), 0);
}

/// A CHECK that only the shards have, one that is not validated in the old table, and a foreign key of the shards whose rows go to
/// different shards.
#[test]
fn rows_that_violate_constraints_of_the_shards_are_found_before_the_copy() {
    let cluster = Cluster::start("distribute_constraints");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "SELECT insta_ids.init(4);
             CREATE FUNCTION is_short(t text) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN length(t) < 8;
             SELECT insta_ids.add_migration('1', $$
                 CREATE TABLE users (id bigint PRIMARY KEY, name text CHECK (is_short(name)), age smallint CHECK (age > 0),
                     size integer GENERATED ALWAYS AS (length(name)) STORED CHECK (size < 3));
                 CREATE TABLE photos (id bigint PRIMARY KEY, user_id bigint NOT NULL REFERENCES users, by bigint REFERENCES users);
             $$)",
        )
        .unwrap();
    client.batch_execute("CALL insta_ids.create_shards(0, 3)").unwrap();
    client
        .batch_execute(
            "CREATE TABLE users (id bigint PRIMARY KEY, name text, age smallint);
             CREATE TABLE photos (id bigint PRIMARY KEY, user_id bigint NOT NULL REFERENCES users, by bigint REFERENCES users);
             INSERT INTO users SELECT n, 'user ' || n, n FROM generate_series(1, 50) n;
             INSERT INTO users VALUES (99, 'a long name', NULL), (98, NULL, 0);
             ALTER TABLE users ADD CHECK (age > 0) NOT VALID;
             INSERT INTO photos SELECT n, n, CASE WHEN n <> 7 THEN n END FROM generate_series(1, 50) n;
             INSERT INTO photos VALUES (51, 1, 2);
             SELECT insta_ids.distribute_table('users', 'id'), insta_ids.distribute_table('photos', 'user_id')",
        )
        .unwrap();
    let found = refused(&mut client, "CALL insta_ids.distribute()");
    assert_eq!(
        found.detail(),
        Some(
            "public.users: The row with the primary key (98) violates CHECK \"users_age_check\" of the shards.\n\
             public.users: The row with the primary key (99) violates CHECK \"users_name_check\" of the shards.\n\
             public.photos: The row with the primary key (51) refers to a row of table public.users in another shard, and foreign key \"photos_by_fkey\" of the shards does not allow that."
        )
    );
    client
        .batch_execute(
            "UPDATE users SET name = '', age = NULL WHERE id > 97; DELETE FROM photos WHERE id = 51",
        )
        .unwrap();
    // What the shards compute is not known before, and the copy says so.
    let found = refused(&mut client, "CALL insta_ids.distribute()");
    assert_eq!(found.constraint(), Some("users_size_check"));
}

//! Foreign keys to and from tables that stay hold until the switch, and come back with a way back.

use postgres::Client;
use support::{count, refused, texts};

use super::{REGISTERED, tables};

/// Tables that stay: one to which users refer, and some that refer to the tables that go.
const OTHERS: &str = "
    CREATE TABLE countries (id int PRIMARY KEY, name text);
    INSERT INTO countries SELECT n, 'country ' || n FROM generate_series(1, 50) n;
    ALTER TABLE users ADD country int DEFAULT 1
        CONSTRAINT \"of %I\" REFERENCES countries ON DELETE SET NULL (country) ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED;
    UPDATE users SET country = 1 + id % 50;
    CREATE TABLE albums (id int PRIMARY KEY, photo bigint REFERENCES photos ON DELETE CASCADE, n int);
    INSERT INTO albums SELECT n, n FROM generate_series(1, 100) n;
    CREATE TABLE reports (id int, photo bigint, fan bigint, FOREIGN KEY (photo, fan) REFERENCES likes MATCH FULL DEFERRABLE) PARTITION BY RANGE (id);
    CREATE TABLE reports_1 PARTITION OF reports DEFAULT;
    INSERT INTO reports SELECT 1, photo_id, user_id FROM likes WHERE photo_id > 1000 LIMIT 20;
    CREATE TABLE badges (person bigint);
    ALTER TABLE badges ADD FOREIGN KEY (person) REFERENCES users NOT VALID;";

/// The foreign keys to and from tables that stay, and which of them are validated.
fn keys(client: &mut Client) -> Vec<String> {
    texts(
        client,
        "SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
         WHERE contype = 'f' AND conparentid = 0 AND (conname = 'of %I' OR conrelid::regclass::text IN ('albums', 'reports', 'badges'))
         ORDER BY 1",
    )
}

#[test]
fn foreign_keys_to_tables_that_stay_end_with_the_switch() {
    let cluster = tables("distribute_keys");
    let mut client = cluster.connect();
    client
        .batch_execute("SELECT insta_ids.add_migration('0002', 'ALTER TABLE users ADD country int')")
        .unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    client.batch_execute(OTHERS).unwrap();
    let before = keys(&mut client);
    assert_eq!(before.len(), 4);
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();

    // They hold and act meanwhile, and what they change goes to the shards.
    assert_eq!(keys(&mut client), before);
    assert_eq!(refused(&mut client, "INSERT INTO albums VALUES (999, 999999)").code().code(), "23503");
    client
        .batch_execute("DELETE FROM countries WHERE id = 7; UPDATE countries SET id = 77 WHERE id = 8")
        .unwrap();
    client.batch_execute("DELETE FROM photos WHERE id = 5").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM albums WHERE photo = 5"), 0);
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    assert!(keys(&mut client).is_empty());
    let users = |shards: &str, of: &str| {
        format!("SELECT sum(n)::bigint FROM (SELECT count(*) FROM {shards}.users WHERE {of}) c (n)")
    };
    let mut without = 0;
    let mut moved = 0;
    for shard in 0..8 {
        without += count(&mut client, &users(&format!("insta{shard}"), "country IS NULL"));
        moved += count(&mut client, &users(&format!("insta{shard}"), "country = 77"));
    }
    assert_eq!((without, moved), (10, 10));

    // Rows of the shards are in no old table, so nothing that stays has to fit to these.
    client
        .batch_execute("INSERT INTO albums VALUES (999, 999999); DELETE FROM countries WHERE id = 9")
        .unwrap();
    client.batch_execute("INSERT INTO insta3.users (email, country) VALUES ('new', 4711)").unwrap();

    // The way back restores them. Before PostgreSQL 18, a partitioned table cannot have one that is not validated.
    let call =
        cluster.psql(&["-d", "postgres"], "SELECT insta_ids.distribute_abort();").wait_with_output().unwrap();
    let call = String::from_utf8(call.stderr).unwrap();
    let restored = keys(&mut client);
    let is_18 = count(&mut client, "SELECT current_setting('server_version_num')::bigint") >= 180_000;
    let expected: Vec<String> = before
        .iter()
        .filter(|key| is_18 || !key.starts_with("reports"))
        .map(|key| if key.ends_with("NOT VALID") { key.clone() } else { format!("{key} NOT VALID") })
        .collect();
    assert_eq!(restored, expected);
    assert_eq!(
        call.contains("foreign key \"reports_photo_fan_fkey\" of table public.reports could not be restored"),
        !is_18,
        "{call}"
    );
    assert!(call.contains("ALTER TABLE public.albums VALIDATE CONSTRAINT albums_photo_fkey;"), "{call}");
    assert_eq!(
        refused(&mut client, "ALTER TABLE albums VALIDATE CONSTRAINT albums_photo_fkey").code().code(),
        "23503"
    );
    client
        .batch_execute(
            "DELETE FROM albums WHERE id = 999; ALTER TABLE albums VALIDATE CONSTRAINT albums_photo_fkey",
        )
        .unwrap();
    assert_eq!(refused(&mut client, "INSERT INTO albums VALUES (999, 999999)").code().code(), "23503");
    assert_eq!(count(&mut client, "SELECT count(*) FROM insta_ids_internal.ended_key"), 0);
}

/// The switch drops keys of tables of the caller alone. The finish forgets them.
#[test]
fn foreign_keys_of_other_roles_are_refused() {
    let cluster = tables("distribute_keys_of_others");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE ROLE keeper LOGIN; CREATE TABLE albums (photo bigint REFERENCES photos); ALTER TABLE albums OWNER TO keeper;
             CREATE ROLE app LOGIN; SELECT insta_ids.grant_provisioning('app'); GRANT ALL ON SCHEMA public TO app",
        )
        .unwrap();
    client.batch_execute("GRANT CREATE ON DATABASE postgres TO app").unwrap();
    for table in ["users", "photos", "likes"] {
        client.batch_execute(&format!("ALTER TABLE public.{table} OWNER TO app")).unwrap();
        for shard in 0..8 {
            client
                .batch_execute(&format!(
                    "ALTER TABLE insta{shard}.{table} OWNER TO app; ALTER SCHEMA insta{shard} OWNER TO app; ALTER SEQUENCE insta{shard}.table_id_seq OWNER TO app"
                ))
                .unwrap();
        }
    }
    let mut app = cluster.config().user("app").connect(postgres::NoTls).unwrap();
    app.batch_execute(REGISTERED).unwrap();
    assert_eq!(
        refused(&mut app, "CALL insta_ids.distribute()").detail(),
        Some(
            "Foreign key \"albums_photo_fkey\" of table public.albums ends with the switch, and only the owner of both tables can drop it."
        )
    );
    client.batch_execute("ALTER TABLE albums OWNER TO app").unwrap();
    client
        .batch_execute(
            "CREATE TABLE names (name text PRIMARY KEY); GRANT REFERENCES, SELECT, INSERT ON names TO app",
        )
        .unwrap();
    app.batch_execute(
        "INSERT INTO names SELECT DISTINCT email FROM users; ALTER TABLE users ADD FOREIGN KEY (email) REFERENCES names",
    )
    .unwrap();
    assert_eq!(
        refused(&mut app, "CALL insta_ids.distribute()").detail(),
        Some(
            "Foreign key \"users_email_fkey\" of table public.users ends with the switch, and only the owner of both tables can drop it."
        )
    );
    client.batch_execute("ALTER TABLE names OWNER TO app").unwrap();
    app.batch_execute("CALL insta_ids.distribute()").unwrap();
    app.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();

    // A key that cannot come back keeps nobody from going back.
    client
        .batch_execute("ALTER TABLE albums OWNER TO keeper; REVOKE ALL ON SCHEMA public FROM PUBLIC")
        .unwrap();
    app.batch_execute("ALTER TABLE users RENAME email TO mail; ALTER TABLE users RENAME bio TO email; ALTER TABLE users RENAME mail TO bio").unwrap();
    let abort = cluster
        .program("psql", "app")
        .args(["-c", "SELECT insta_ids.distribute_abort()", "postgres"])
        .output()
        .unwrap();
    let said = String::from_utf8(abort.stderr).unwrap();
    assert!(abort.status.success(), "{said}");
    for warning in [
        "foreign key \"albums_photo_fkey\" of table public.albums could not be restored\nDETAIL:  must be owner of table albums",
        "foreign key \"users_email_fkey\" of table public.users could not be restored\nDETAIL:  its columns have other names or places",
    ] {
        assert!(said.contains(warning), "{said}");
    }
    app.batch_execute("ALTER TABLE users RENAME bio TO mail; ALTER TABLE users RENAME email TO bio; ALTER TABLE users RENAME mail TO email").unwrap();
    app.batch_execute("SELECT insta_ids.unfence(s.shard) FROM insta_ids.shards s").unwrap();
    app.batch_execute(REGISTERED).unwrap();
    app.batch_execute("CALL insta_ids.distribute()").unwrap();
    app.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    app.batch_execute("SELECT insta_ids.distribute_finish()").unwrap();
    // The record is about a table of another role.
    assert_eq!(texts(&mut client, "SELECT relation::text FROM insta_ids_internal.ended_key"), ["albums"]);
}

/// From the switch on, changes of the tables of the shards are recorded. What would change rows without a record is refused.
#[test]
fn tables_of_the_shards_keep_their_rows_until_the_finish() {
    let cluster = tables("distribute_kept");
    let mut client = cluster.connect();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    client.batch_execute("CREATE SCHEMA others").unwrap();
    for ddl in [
        "ALTER TABLE insta0.users ALTER bio TYPE text USING 'rewritten'",
        "ALTER TABLE insta0.users DISABLE TRIGGER ALL",
        "ALTER TABLE insta0.users DISABLE TRIGGER insta_ids_return",
        "ALTER TABLE insta0.users RENAME id TO number",
        "ALTER TABLE insta0.users RENAME TO members",
        "ALTER TABLE insta0.users DROP bio",
        "ALTER TABLE insta0.users SET SCHEMA others",
        "ALTER TABLE insta0.users OWNER TO pg_monitor",
        "ALTER VIEW insta0.users RENAME COLUMN id TO number",
        "TRUNCATE insta0.users CASCADE",
        "DROP TABLE insta0.likes",
    ] {
        assert_eq!(refused(&mut client, ddl).code().code(), "55006", "{ddl}");
    }
    client
        .batch_execute(
            "ALTER TABLE insta0.users ADD n int DEFAULT 1, ADD CHECK (n > 0), ALTER n SET STATISTICS 7; CREATE INDEX ON insta0.users (n);
             COMMENT ON TABLE insta0.users IS 'x'; ALTER TABLE insta0.likes ADD FOREIGN KEY (user_id) REFERENCES insta0.users NOT VALID",
        )
        .unwrap();
    client.batch_execute("SELECT insta_ids.fence(0), insta_ids.unfence(0)").unwrap();
    client.batch_execute("UPDATE insta0.users SET bio = 'new'").unwrap();
    let changed = count(&mut client, "SELECT count(*) FROM insta0.users");
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    assert_eq!(count(&mut client, "SELECT count(*) FROM users WHERE bio = 'new'"), changed);
}

//! The way back: until the old tables are dropped, what is written to the shards comes back to them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use support::{refused, texts};

use super::{REGISTERED, Rows, SHARDS, remains, tables};
use crate::moves::FENCED;

/// What clients write to the shards after the switch: new rows, changes, a row that goes to another shard, and deletes.
const WRITTEN: &str = "
    INSERT INTO insta3.users (email, bio) VALUES ('new@example.org', 'of shard 3');
    INSERT INTO insta3.photos (title, user_id) SELECT 'new', id FROM insta3.users WHERE email LIKE 'new%';
    UPDATE insta4.photos SET title = 'changed' WHERE id IN (SELECT id FROM insta4.photos ORDER BY id LIMIT 3);
    DELETE FROM insta4.likes WHERE photo_id = (SELECT max(id) FROM insta4.photos);
    DELETE FROM insta4.photos WHERE id = (SELECT max(id) FROM insta4.photos);
    CREATE TABLE gone AS SELECT * FROM insta5.photos p WHERE id = (
        SELECT min(id) FROM insta5.photos i WHERE NOT EXISTS (SELECT FROM insta5.likes WHERE photo_id = i.id));
    DELETE FROM insta5.photos WHERE id = (SELECT id FROM gone);
    INSERT INTO insta6.photos SELECT title, id, 6 FROM gone;
    DROP TABLE gone;";

/// With views or without, and after changes were brought back in between or not.
#[test]
fn going_back_loses_nothing() {
    for (switch, is_kept_up) in [("", true), ("views => true", false)] {
        let cluster = tables("distribute_back");
        let mut client = cluster.connect();
        client
            .batch_execute(
                "CREATE TABLE log (entry text);
                 CREATE FUNCTION log_change() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN INSERT INTO public.log VALUES (TG_OP); NEW.bio := ''by trigger''; RETURN NEW; END';
                 CREATE TRIGGER log_change BEFORE INSERT OR UPDATE ON users FOR EACH ROW EXECUTE FUNCTION log_change();
                 ALTER TABLE users ENABLE ALWAYS TRIGGER log_change",
            )
            .unwrap();
        client.batch_execute(REGISTERED).unwrap();
        client.batch_execute("CALL insta_ids.distribute()").unwrap();
        client.batch_execute(&format!("SELECT insta_ids.distribute_switch({switch})")).unwrap();
        client.batch_execute(WRITTEN).unwrap();
        if is_kept_up {
            client.batch_execute("CALL insta_ids.distribute()").unwrap();
            assert_eq!(Rows::of_sources(&mut client), Rows::of_shards(&mut client));
            client.batch_execute("UPDATE insta2.users SET bio = 'again' WHERE id = 2").unwrap();
        } else {
            // The view shows the rows of all shards, and refuses writes.
            assert_eq!(Rows::of_sources(&mut client), Rows::of_shards(&mut client));
            assert_eq!(refused(&mut client, "DELETE FROM users WHERE id = 5").code(), FENCED);
            assert_eq!(refused(&mut client, "DELETE FROM users__distributed WHERE id = 5").code(), FENCED);
        }
        let written = Rows::of_shards(&mut client);
        client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
        assert_eq!(Rows::of_sources(&mut client), written);
        assert_eq!(remains(&mut client), Vec::<String>::new());
        let trigger = "SELECT tgenabled::text FROM pg_trigger WHERE tgname = 'log_change'";
        assert_eq!(texts(&mut client, trigger), ["A"]);
        client
            .batch_execute("DELETE FROM users WHERE id = 5; INSERT INTO users (email) VALUES ('after')")
            .unwrap();
        assert_eq!(refused(&mut client, "INSERT INTO insta1.users (email) VALUES ('late')").code(), FENCED);

        // It can be begun again.
        client.batch_execute("SELECT insta_ids.unfence(shard) FROM insta_ids.shards").unwrap();
        // Ids that a shard has minted are of that shard, and shard_of() would send them to another one.
        client.batch_execute("DELETE FROM users WHERE id > 1000000 OR bio IS NULL").unwrap();
        client.batch_execute(REGISTERED).unwrap();
        client.batch_execute("CALL insta_ids.distribute()").unwrap();
        assert_eq!(Rows::of_shards(&mut client), Rows::of_sources(&mut client));
    }
}

/// What a source would do by itself, and what only the rows of all shards together tell, is not lost on the way back.
#[test]
fn going_back_looks_at_all_shards() {
    let cluster = tables("distribute_back_odd");
    let mut client = cluster.connect();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    // A photo leaves its user, who is deleted: the source would delete the likes of the photo with the user.
    client
        .batch_execute(
            "DELETE FROM insta1.likes WHERE photo_id IN (SELECT id FROM insta1.photos WHERE user_id = 1 ORDER BY id OFFSET 1);
             DELETE FROM insta1.photos WHERE id IN (SELECT id FROM insta1.photos WHERE user_id = 1 ORDER BY id OFFSET 1);
             UPDATE insta1.photos SET user_id = 9 WHERE user_id = 1;
             DELETE FROM insta1.users WHERE id = 1",
        )
        .unwrap();
    // Users of likes in other shards stay, so no like refers to the user who is gone.
    for shard in 0..SHARDS {
        client.batch_execute(&format!("DELETE FROM insta{shard}.likes WHERE user_id = 1")).unwrap();
    }
    // Unique values are swapped, and a key appears in another shard and goes again.
    client
        .batch_execute(
            "UPDATE insta2.users SET email = NULL WHERE id = 2;
             UPDATE insta2.users SET email = '2@example.org' WHERE id = 10;
             UPDATE insta2.users SET email = '10@example.org' WHERE id = 2;
             INSERT INTO insta3.users (id, email) VALUES (12, 'twin'); DELETE FROM insta3.users WHERE id = 12",
        )
        .unwrap();
    let written = Rows::of_shards(&mut client);
    client.batch_execute("INSERT INTO insta3.users (id, email, bio) VALUES (20, 'twin', '')").unwrap();
    let twice = refused(&mut client, "SELECT insta_ids.distribute_abort()");
    assert_eq!(twice.message(), "table public.users cannot have the primary key (20) twice");
    assert_eq!(twice.detail(), Some("Shards 3 and 4 have a row with it."));
    client.batch_execute("DELETE FROM insta3.users WHERE id = 20").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_abort()").unwrap();
    assert_eq!(Rows::of_sources(&mut client), written);
}

/// Under clients that write to the shards until they are refused.
#[test]
fn going_back_waits_for_those_who_write_to_the_shards() {
    let cluster = tables("distribute_back_writers");
    let mut client = cluster.connect();
    client.batch_execute(REGISTERED).unwrap();
    client.batch_execute("CALL insta_ids.distribute()").unwrap();
    client.batch_execute("SELECT insta_ids.distribute_switch()").unwrap();
    let before = Rows::of_sources(&mut client);
    let stop = AtomicBool::new(false);
    let written: usize = thread::scope(|scope| {
        let writers: Vec<_> = (0..SHARDS)
            .map(|shard| {
                let (stop, mut session) = (&stop, cluster.connect());
                scope.spawn(move || {
                    let mut ids = Vec::new();
                    let insert = format!(
                        "INSERT INTO insta{shard}.photos (title, user_id)
                         SELECT 'late', min(id) FROM insta{shard}.users RETURNING id"
                    );
                    while !stop.load(Ordering::Relaxed) {
                        match session.query_one(&insert, &[]) {
                            Ok(row) => ids.push(row.get::<_, i64>(0)),
                            Err(error) => {
                                assert_eq!(error.code(), Some(FENCED), "{error:?}");
                                break;
                            }
                        }
                    }
                    ids.len()
                })
            })
            .collect();
        thread::sleep(std::time::Duration::from_millis(500));
        let back = client.batch_execute("SELECT insta_ids.distribute_abort()");
        stop.store(true, Ordering::Relaxed);
        back.unwrap();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(written > 50, "only {written} rows were written");
    let after = Rows::of_sources(&mut client);
    assert_eq!(after.photos.len(), before.photos.len() + written);
    assert_eq!((after.users, after.likes), (before.users, before.likes));
}

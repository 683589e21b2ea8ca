//! Under clients that insert, update, delete, change keys and roll back.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Transaction};
use support::{Chance, Cluster, refused, texts};

use super::{REGISTERED, Rows, remains, tables};
use crate::moves::FENCED;

/// A client that writes rows of its own, and remembers what it was told is written.
pub(super) struct Writer {
    chance: Chance,
    name: usize,
    serial: usize,
    pub(super) rows: Rows,
    pub(super) written: usize,
    /// The longest that a transaction took.
    pub(super) longest: Duration,
}

impl Writer {
    pub(super) fn new(name: usize) -> Self {
        Self {
            chance: Chance::from_seed(name as u64),
            name,
            serial: 0,
            rows: Rows::default(),
            written: 0,
            longest: Duration::ZERO,
        }
    }

    fn text(&mut self) -> String {
        self.serial += 1;
        format!("{}-{}", self.name, self.serial)
    }

    fn some<T: Clone>(&mut self, of: impl Fn(&Rows) -> Vec<T>) -> Option<T> {
        let all = of(&self.rows);
        (!all.is_empty()).then(|| all[usize::try_from(self.chance.below(all.len() as u64)).unwrap()].clone())
    }

    fn user(&mut self) -> Option<i64> {
        self.some(|rows| rows.users.keys().copied().collect())
    }

    fn photo(&mut self) -> Option<i64> {
        self.some(|rows| rows.photos.keys().copied().collect())
    }

    /// Writes until it is told to stop, or until rows have gone to the shards.
    pub(super) fn write(&mut self, client: &mut Client, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            if !self.once(client) {
                return;
            }
        }
    }

    /// One transaction of one to three changes. Returns false when rows have gone to the shards.
    pub(super) fn once(&mut self, client: &mut Client) -> bool {
        let before = self.rows.clone();
        let began = Instant::now();
        let outcome = self.transaction(client);
        self.longest = self.longest.max(began.elapsed());
        match outcome {
            Ok(true) => self.written += 1,
            Ok(false) => self.rows = before,
            Err(error) => {
                self.rows = before;
                assert_eq!(error.code(), Some(FENCED), "{error:?}");
                return false;
            }
        }
        true
    }

    /// Returns whether it was committed.
    fn transaction(&mut self, client: &mut Client) -> Result<bool, postgres::Error> {
        let mut transaction = client.transaction()?;
        if self.chance.below(3) == 0 {
            transaction.batch_execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")?;
        }
        for _ in 0..=self.chance.below(3) {
            self.change(&mut transaction)?;
        }
        if self.chance.below(8) == 0 {
            transaction.rollback()?;
            return Ok(false);
        }
        transaction.commit()?;
        Ok(true)
    }

    fn change(&mut self, t: &mut Transaction) -> Result<(), postgres::Error> {
        let text = self.text();
        let (user, other, photo) = (self.user(), self.user(), self.photo());
        match (self.chance.below(12), user, other, photo) {
            (0 | 1, ..) | (_, None, ..) => {
                let id = t
                    .query_one("INSERT INTO users (email, bio) VALUES ($1, '') RETURNING id", &[&text])?
                    .get(0);
                self.rows.users.insert(id, (text, String::new()));
            }
            (2..=4, Some(user), ..) => {
                let insert = "INSERT INTO photos (title, user_id) VALUES ($1, $2) RETURNING id";
                let id = t.query_one(insert, &[&text, &user])?.get(0);
                self.rows.photos.insert(id, (user, text));
            }
            (5, Some(user), _, Some(photo)) => {
                t.execute("INSERT INTO likes VALUES ($1, $2) ON CONFLICT DO NOTHING", &[&photo, &user])?;
                self.rows.likes.insert((photo, user));
            }
            (6, Some(user), Some(other), _) if user != other => {
                // A unique value goes from row to row and back.
                let emails = [user, other].map(|id| self.rows.users[&id].0.clone());
                t.execute("UPDATE users SET email = NULL WHERE id = $1", &[&user])?;
                t.execute("UPDATE users SET email = $2 WHERE id = $1", &[&other, &emails[0]])?;
                t.execute("UPDATE users SET email = $2 WHERE id = $1", &[&user, &emails[1]])?;
                self.rows.users.get_mut(&user).unwrap().0.clone_from(&emails[1]);
                self.rows.users.get_mut(&other).unwrap().0.clone_from(&emails[0]);
            }
            (7, Some(user), ..) => {
                t.execute("UPDATE users SET bio = $2 WHERE id = $1", &[&user, &text])?;
                self.rows.users.get_mut(&user).unwrap().1 = text;
            }
            (8, Some(user), _, Some(photo)) => {
                // The photo and its likes go to another shard.
                t.execute(
                    "UPDATE photos SET user_id = $2, title = $3 WHERE id = $1",
                    &[&photo, &user, &text],
                )?;
                self.rows.photos.insert(photo, (user, text));
            }
            (9, Some(user), ..) => {
                let new: i64 = t
                    .query_one(
                        "UPDATE users SET id = nextval('users_id_seq') WHERE id = $1 RETURNING id",
                        &[&user],
                    )?
                    .get(0);
                self.rows.rename(user, new);
            }
            (10, _, _, Some(photo)) => {
                t.execute("DELETE FROM photos WHERE id = $1", &[&photo])?;
                self.rows.drop_photo(photo);
            }
            (11, Some(user), ..) if self.chance.below(3) == 0 => {
                t.execute("DELETE FROM users WHERE id = $1", &[&user])?;
                self.rows.drop_user(user);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Rows {
    fn rename(&mut self, user: i64, new: i64) {
        let row = self.users.remove(&user).unwrap();
        self.users.insert(new, row);
        for photo in self.photos.values_mut().filter(|photo| photo.0 == user) {
            photo.0 = new;
        }
        self.likes =
            self.likes.iter().map(|&(photo, by)| (photo, if by == user { new } else { by })).collect();
    }

    fn drop_photo(&mut self, photo: i64) {
        self.photos.remove(&photo);
        self.likes.retain(|&(liked, _)| liked != photo);
    }

    fn drop_user(&mut self, user: i64) {
        self.users.remove(&user);
        let photos: Vec<i64> =
            self.photos.iter().filter(|(_, photo)| photo.0 == user).map(|(id, _)| *id).collect();
        for photo in photos {
            self.drop_photo(photo);
        }
        self.likes.retain(|&(_, by)| by != user);
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.users.extend(other.users.clone());
        self.photos.extend(other.photos.clone());
        self.likes.extend(other.likes.clone());
    }
}

/// Runs writers until something has happened. Returns them, and the rows that there must be: those of before and theirs.
pub(super) fn under_writers(
    cluster: &Cluster,
    count: usize,
    during: impl FnOnce(&mut Client),
) -> (Vec<Writer>, Rows) {
    let mut client = cluster.connect();
    let mut expected = Rows::of_sources(&mut client);
    let stop = AtomicBool::new(false);
    let writers: Vec<Writer> = thread::scope(|scope| {
        let writers: Vec<_> = (0..count)
            .map(|name| {
                let (stop, mut session) = (&stop, cluster.connect());
                scope.spawn(move || {
                    let mut writer = Writer::new(name);
                    writer.write(&mut session, stop);
                    writer
                })
            })
            .collect();
        // Writers are told to stop even if this panics, else the test would wait for them forever.
        let outcome = catch_unwind(AssertUnwindSafe(|| during(&mut client)));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    for writer in &writers {
        expected.extend(&writer.rows);
    }
    (writers, expected)
}

/// From the first call to the last, with small batches, so that there are many moments at which something can go wrong.
#[test]
fn rows_go_to_the_shards_while_clients_write() {
    let cluster = tables("distribute");
    let (writers, expected) = under_writers(&cluster, 8, |client| {
        client.batch_execute(REGISTERED).unwrap();
        // On a machine that does much else, eight writers leave the locks to nobody for seconds.
        let (copy, switch) =
            ("CALL insta_ids.distribute(300, lock_timeout => '1min'", "SELECT insta_ids.distribute_switch");
        client.batch_execute(&format!("{copy}, pause => '3 ms')")).unwrap();
        client.batch_execute(&format!("{copy})")).unwrap();
        client.batch_execute(&format!("{switch}(lock_timeout => '1min')")).unwrap();
    });
    let written: usize = writers.iter().map(|writer| writer.written).sum();
    assert!(written > 100, "only {written} transactions were committed");
    let mut client = cluster.connect();
    assert_eq!(Rows::of_shards(&mut client), expected);
    assert_eq!(Rows::of_sources(&mut client), expected);
    assert_eq!(refused(&mut client, "DELETE FROM users WHERE id = 5").code(), FENCED);

    // Each row of a shard can be written, and new ids are minted there.
    client
        .batch_execute(
            "INSERT INTO insta3.users (email) SELECT 'new' WHERE insta_ids.shard_of(3) = 3;
             SELECT insta_ids.distribute_finish()",
        )
        .unwrap();
    assert_eq!(remains(&mut client), Vec::<String>::new());
    assert_eq!(
        texts(
            &mut client,
            "SELECT relname::text FROM pg_class WHERE relname = 'users' AND relnamespace = 'public'::regnamespace"
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        texts(&mut client, "SELECT code FROM insta_ids.check() WHERE severity = 'error'"),
        Vec::<String>::new()
    );
}

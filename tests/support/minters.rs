//! Sessions that mint, and write down every id they are given.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, Config, NoTls};

use crate::{Cluster, scratch};

/// As far as ids run ahead of the server's time, in milliseconds.
pub const AHEAD_MS: i64 = 10;

/// What each session does again and again. Ids are given also by what is rolled back.
fn round(next_id: &str) -> [String; 3] {
    let copy = |query| format!("COPY ({query}) TO STDOUT (FORMAT binary)");
    let insert = format!("INSERT INTO ids SELECT {next_id} FROM generate_series(1, 500) RETURNING id");
    [copy(format!("SELECT {next_id} FROM generate_series(1, 20000)")), copy(insert.clone()), copy(insert)]
}

/// Mints so many ids, and a few more.
pub fn mint(cluster: &Cluster, database: &str, sessions: usize, ids: u64) -> Given {
    let minters = Minters::start(cluster, database, sessions);
    minters.await_more(ids);
    minters.stop()
}

/// Stands in a log where a session ended.
const END_OF_SESSION: i64 = 0;

/// Sessions that mint from the sequence `s` until they are told to stop. They come back when the server does.
pub struct Minters {
    stop: Arc<AtomicBool>,
    sessions: Vec<JoinHandle<()>>,
    logs: Vec<PathBuf>,
    given: Vec<Arc<AtomicU64>>,
    longest_gap_ms: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
}

/// All ids that sessions were given, in the order of each.
#[derive(Default)]
pub struct Given {
    pub ids: Vec<i64>,
    pub disorders: usize,
    /// How often an id was in the table already.
    pub refused: u64,
}

impl Minters {
    pub fn start(cluster: &Cluster, database: &str, sessions: usize) -> Self {
        Self::start_by(cluster, database, sessions, "next_id(5, 's')")
    }

    /// The same, by that call.
    pub fn start_by(cluster: &Cluster, database: &str, sessions: usize, next_id: &str) -> Self {
        let mut config = Config::new();
        config.host_path(&cluster.socket).user("postgres").dbname(database);
        let directory = scratch().join(&cluster.name);
        fs::create_dir_all(&directory).unwrap();
        let mut minters = Self {
            stop: Arc::default(),
            sessions: Vec::new(),
            logs: Vec::new(),
            given: Vec::new(),
            longest_gap_ms: Arc::default(),
            refused: Arc::default(),
        };
        for n in 0..sessions {
            let log = directory.join(format!("{database}.{n}"));
            let mut file = BufWriter::new(File::create(&log).unwrap());
            minters.logs.push(log);
            let (config, stop, refused) = (config.clone(), minters.stop.clone(), minters.refused.clone());
            let (given, gap) = (Arc::<AtomicU64>::default(), minters.longest_gap_ms.clone());
            minters.given.push(given.clone());
            let round = round(next_id);
            minters.sessions.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(mut client) = config.connect(NoTls) {
                        mint_in(
                            &mut client,
                            &round,
                            &stop,
                            &mut file,
                            &Counters { given: &given, gap: &gap, refused: &refused },
                        );
                        file.write_all(&END_OF_SESSION.to_ne_bytes()).unwrap();
                    }
                    thread::sleep(Duration::from_millis(5));
                }
                file.flush().unwrap();
            }));
        }
        minters
    }

    /// Waits until so many more ids were given.
    pub fn await_more(&self, ids: u64) {
        let wanted = self.given() + ids;
        let deadline = Instant::now() + Duration::from_mins(1);
        while self.given() < wanted {
            assert!(Instant::now() < deadline, "no {ids} ids within a minute");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn given(&self) -> u64 {
        self.given_to_each().iter().sum()
    }

    /// How many ids each session was given so far.
    pub fn given_to_each(&self) -> Vec<u64> {
        self.given.iter().map(|given| given.load(Ordering::Relaxed)).collect()
    }

    /// The longest time that a session got no id, since this was asked last.
    pub fn longest_gap(&self) -> Duration {
        Duration::from_millis(self.longest_gap_ms.swap(0, Ordering::Relaxed))
    }

    pub fn stop(self) -> Given {
        let all = vec![u64::MAX; self.logs.len()];
        self.stop_and_take(&all)
    }

    /// Stops, and takes so many of the ids that each session was given, the first ones.
    pub fn stop_and_take(self, of_each: &[u64]) -> Given {
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(30);
        for session in self.sessions {
            while !session.is_finished() {
                assert!(Instant::now() < deadline, "a session waits, and does not come back");
                thread::sleep(Duration::from_millis(5));
            }
            session.join().expect("a session found what must not be");
        }
        let mut given = Given { refused: self.refused.load(Ordering::Relaxed), ..Given::default() };
        for (log, &take) in self.logs.iter().zip(of_each) {
            let bytes = fs::read(log).unwrap();
            let (mut last, mut taken) = (END_OF_SESSION, 0);
            for id in bytes.chunks_exact(8).map(|id| i64::from_ne_bytes(id.try_into().unwrap())) {
                if id != END_OF_SESSION && taken < take {
                    taken += 1;
                    given.disorders += usize::from(id <= last);
                    given.ids.push(id);
                }
                last = id;
            }
            fs::remove_file(log).unwrap();
        }
        given
    }
}

/// What a session counts.
struct Counters<'a> {
    given: &'a AtomicU64,
    gap: &'a AtomicU64,
    refused: &'a AtomicU64,
}

/// Mints until the session ends, by what happens to the server.
fn mint_in(
    client: &mut Client,
    round: &[String],
    stop: &AtomicBool,
    log: &mut impl Write,
    counters: &Counters<'_>,
) {
    let mut last = Instant::now();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let rolled_back = n % 4 == 1;
        if rolled_back && client.batch_execute("BEGIN").is_err() {
            return;
        }
        match copy(client, &round[n % round.len()], |id| {
            log.write_all(&id.to_ne_bytes()).unwrap();
            if counters.given.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) {
                counters.gap.fetch_max(u64::try_from(last.elapsed().as_millis()).unwrap(), Ordering::Relaxed);
                last = Instant::now();
            }
        }) {
            Ok(()) => {}
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
                counters.refused.fetch_add(1, Ordering::Relaxed);
            }
            // The clock is too far behind, and later it is not.
            Err(error) if error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
                thread::sleep(Duration::from_millis(20));
            }
            // The server died, or was told to end the session; it is a standby; a call took too long.
            Err(error) => {
                let code = error.code().map_or("", SqlState::code);
                assert!(code.is_empty() || code.starts_with("57") || code == "25006", "{error}");
                return;
            }
        }
        if rolled_back && client.batch_execute("ROLLBACK").is_err() {
            return;
        }
        n += 1;
    }
}

/// Runs a COPY of one bigint column, handing over each as it comes in, also those before an error.
pub fn copy(client: &mut Client, query: &str, mut id: impl FnMut(i64)) -> Result<(), postgres::Error> {
    // In the binary format, a row of one bigint is 2 bytes of count, 4 of length and 8 of value.
    const HEADER: usize = 19;
    const ROW: usize = 14;
    let mut reader = client.copy_out(query)?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    let mut from = HEADER;
    loop {
        match reader.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(error) => return Err(*error.into_inner().unwrap().downcast().unwrap()),
        }
        while bytes.len() >= from + ROW {
            id(i64::from_be_bytes(bytes[from + 6..from + ROW].try_into().unwrap()));
            from += ROW;
        }
    }
}

impl Given {
    pub fn and(mut self, other: Self) -> Self {
        self.ids.extend(other.ids);
        self.disorders += other.disorders;
        self.refused += other.refused;
        self
    }

    pub fn time_of(id: i64) -> i64 {
        (id >> 23) + 1_314_220_021_721
    }

    pub fn oldest_ms(&self) -> i64 {
        Self::time_of(*self.ids.iter().min().unwrap())
    }

    pub fn newest_ms(&self) -> i64 {
        Self::time_of(*self.ids.iter().max().unwrap())
    }

    pub fn duplicates(&self) -> usize {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.windows(2).filter(|pair| pair[0] == pair[1]).count()
    }

    /// After a fault, `after` was minted: time did not go back, and nothing came again.
    pub fn check_going_on(self, after: Self) {
        assert!(after.oldest_ms() >= self.newest_ms() - AHEAD_MS, "time went back");
        self.and(after).check(1);
    }

    /// No id came twice, and each session's strictly increase.
    pub fn check(&self, faults: u64) {
        let (ids, duplicates) = (self.ids.len(), self.duplicates());
        println!("{ids} ids, {faults} faults, {duplicates} duplicates, {} out of order", self.disorders);
        let found = (duplicates, self.refused, self.disorders);
        assert_eq!(
            found,
            (0, 0, 0),
            "duplicates, also in the table, and disorder in {ids} ids after {faults} faults"
        );
    }
}

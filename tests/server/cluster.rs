//! Throw-away servers for the tests, and what the tests do with them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, Config, NoTls};

/// A server of one's own, removed when dropped. The extension is installed in it, and preloaded where
/// PostgreSQL needs that.
pub struct Cluster {
    name: &'static str,
    pub socket: PathBuf,
}

impl Cluster {
    /// A server with the extension in its database `postgres`.
    pub fn start(name: &'static str) -> Self {
        let preload = if preload_needed() { "shared_preload_libraries = 'insta_ids'" } else { "" };
        let cluster = Self::bare(name, &[preload]);
        cluster.connect().batch_execute("CREATE EXTENSION insta_ids").unwrap();
        cluster
    }

    /// A server with these lines in its postgresql.conf, and nothing in it.
    pub fn bare(name: &'static str, settings: &[&str]) -> Self {
        script(&["remove", name]);
        let socket = script(&[&["make", name], settings].concat());
        script(&["start", name]);
        Self { name, socket: socket.into() }
    }

    /// A streaming standby of this server.
    pub fn standby(&self, name: &'static str) -> Self {
        script(&["remove", name]);
        let socket = script(&["standby", name, self.name]);
        script(&["start", name]);
        Self { name, socket: socket.into() }
    }

    pub fn connect(&self) -> Client {
        self.connect_to("postgres")
    }

    pub fn connect_to(&self, database: &str) -> Client {
        self.config().dbname(database).connect(NoTls).unwrap()
    }

    /// A session on a server that is coming back from a crash.
    pub fn reconnect(&self) -> Client {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            match self.config().dbname("postgres").connect(NoTls) {
                Ok(client) => return client,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::new();
        config.host_path(&self.socket).user("postgres").dbname("postgres");
        config
    }

    /// Waits until the server has written this to its log.
    pub fn await_log(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "the log does not say {text:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.socket.join("log")).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the log of {} ends:", self.name);
            for line in self.log().lines().rev().take(20).collect::<Vec<_>>().iter().rev() {
                eprintln!("{line}");
            }
        }
        script(&["remove", self.name]);
    }
}

/// The directory of the checkout.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What `pg_config` says.
pub fn pg_config(option: &str) -> String {
    let program = std::env::var("PG_CONFIG").expect("PG_CONFIG is set; `make test` does");
    let output = Command::new(program).arg(option).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Whether this PostgreSQL gives out shared memory at server start only.
pub fn preload_needed() -> bool {
    cfg!(any(feature = "pg15", feature = "pg16"))
}

/// Runs scripts/cluster, and returns the last line it printed.
fn script(arguments: &[&str]) -> String {
    let output = Command::new(checkout().join("scripts/cluster")).args(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "cluster {arguments:?}: {printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    printed.lines().last().unwrap_or_default().to_owned()
}

/// The ids that a query returns, in their order.
pub fn ids(client: &mut Client, query: &str) -> Vec<i64> {
    // In the binary format, a row of one bigint is 2 bytes of count, 4 of length and 8 of value.
    const HEADER: usize = 19;
    const ROW: usize = 14;
    let mut bytes = Vec::new();
    let copy = format!("COPY ({query}) TO STDOUT (FORMAT binary)");
    client.copy_out(&copy).unwrap().read_to_end(&mut bytes).unwrap();
    bytes[HEADER..].chunks_exact(ROW).map(|row| i64::from_be_bytes(row[6..].try_into().unwrap())).collect()
}

/// How many of the ids are repetitions.
pub fn duplicates<'a>(sessions: impl IntoIterator<Item = &'a Vec<i64>>) -> usize {
    let mut all: Vec<i64> = sessions.into_iter().flatten().copied().collect();
    let minted = all.len();
    all.sort_unstable();
    all.dedup();
    minted - all.len()
}

/// How often an id is not greater than the one before it.
pub fn disorders(ids: &[i64]) -> usize {
    ids.windows(2).filter(|pair| pair[0] >= pair[1]).count()
}

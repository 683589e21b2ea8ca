//! Throw-away servers for the tests, and what the tests do with them.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{POISONED, POISONED_PATH, becomes, poison};
use postgres::{Client, Config, NoTls};

/// A server of one's own, removed when dropped. The extension is installed in it, and preloaded where
/// PostgreSQL needs that.
pub struct Cluster {
    pub name: String,
    /// The directory of the cluster, which is also that of its socket.
    pub socket: PathBuf,
    /// What is in its environment when it starts.
    pub environment: Vec<String>,
    /// The server's programs, by their `pg_config`.
    pub pg_config: String,
}

/// The names of the servers that there are.
static NAMES: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// This name, with a number where tests that run at once have servers of one name.
fn own_name(name: &str) -> String {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let numbered = (2..).map(|n| format!("{name}_{n}"));
    let own = iter::once(name.to_owned()).chain(numbered).find(|own| !names.contains(own)).unwrap();
    names.insert(own.clone());
    own
}

/// The setting of a server that does not load the library at its start. Otherwise scripts/cluster has those load it that
/// need to.
pub const NOT_PRELOADED: &str = "shared_preload_libraries = ''";

/// Whether servers have a search path on which each name that is not qualified is an error (`make planted`). Sessions of the
/// tests have the usual path by PGOPTIONS.
fn is_planted() -> bool {
    std::env::var_os("PLANTED").is_some()
}

impl Cluster {
    /// A server with the extension in its database `postgres`.
    pub fn start(name: &str) -> Self {
        let cluster = Self::bare(name);
        cluster.connect().batch_execute("CREATE EXTENSION insta_ids").unwrap();
        cluster
    }

    /// A server with nothing in its databases.
    pub fn bare(name: &str) -> Self {
        Self::with(name, &[""; 0])
    }

    /// A server with these lines in its postgresql.conf, and nothing in its databases.
    pub fn with(name: &str, settings: &[impl AsRef<str>]) -> Self {
        let cluster = Self::stopped(name, settings);
        cluster.up();
        if is_planted() {
            cluster.plant();
        }
        cluster
    }

    /// Gives that search path to all databases, and to those that are created later.
    fn plant(&self) {
        for database in ["template1", "postgres"] {
            poison(&mut self.connect_to(database));
        }
        let path = format!("ALTER ROLE ALL SET search_path = {POISONED_PATH}, \"$user\", public");
        self.connect().batch_execute(&path).unwrap();
    }

    /// What sessions have found by that search path. An error that a function catches is not in the log, but the test goes wrong.
    fn found(&self) -> Vec<String> {
        let log = self.log();
        log.lines()
            .filter(|line| POISONED.iter().any(|text| line.contains(text)))
            .map(str::to_owned)
            .collect()
    }

    /// The same, not started yet.
    pub fn stopped(name: &str, settings: &[impl AsRef<str>]) -> Self {
        let settings = settings.iter().map(AsRef::as_ref);
        Self::made(name, &iter::once("make").chain(settings).collect::<Vec<_>>())
    }

    /// A streaming standby of this server.
    pub fn standby(&self, name: &str) -> Self {
        let standby = Self::made(name, &["standby", &self.name]);
        standby.up();
        standby
    }

    /// Waits until a standby has all that was committed on this server, also by those who do not wait for the disk, as
    /// workers of subscriptions.
    pub fn replayed_by(&self, standby: &Self) {
        let mut client = self.connect();
        client.batch_execute("SELECT pg_logical_emit_message(true, '', '')").unwrap();
        let flushed = crate::texts(&mut client, "SELECT pg_current_wal_flush_lsn()::text").remove(0);
        let replayed = format!("SELECT count(*) FROM pg_last_wal_replay_lsn() l WHERE l >= '{flushed}'");
        crate::within(Duration::from_secs(20), || crate::count(&mut standby.connect(), &replayed) == 1);
    }

    /// A cluster that is not started yet: made by an action of scripts/cluster.
    pub fn made(name: &str, action: &[&str]) -> Self {
        Self::made_by(&std::env::var("PG_CONFIG").expect("PG_CONFIG is set; `make test` does"), name, action)
    }

    /// The same, of another version of PostgreSQL.
    pub fn made_by(pg_config: &str, name: &str, action: &[&str]) -> Self {
        let mut cluster = Self {
            name: own_name(name),
            socket: PathBuf::new(),
            environment: Vec::new(),
            pg_config: pg_config.into(),
        };
        cluster.script("remove", &[]);
        cluster.socket = cluster.script(action[0], &action[1..]).into();
        cluster
    }

    pub fn up(&self) {
        let environment = self.environment.iter().map(String::as_str);
        self.script("start", &environment.collect::<Vec<_>>());
    }

    /// Whether it could be started.
    pub fn try_up(&self) -> bool {
        let environment = self.environment.iter().map(String::as_str);
        self.run("start", &environment.collect::<Vec<_>>()).status.success()
    }

    /// Starts again, as soon as all processes of a server that died have ended.
    pub fn up_again(&self) {
        assert!(becomes(Duration::from_mins(1), || self.try_up()), "the server does not come back");
    }

    pub fn stop(&self) {
        self.script("stop", &[]);
    }

    pub fn stop_immediately(&self) {
        self.script("stop", &["immediate"]);
    }

    pub fn promote(&self) {
        self.script("promote", &[]);
    }

    /// Sends a signal to all the processes of the server.
    pub fn signal(&self, signal: &str) {
        self.script("signal", &[signal]);
    }

    /// Runs an action of scripts/cluster, and returns the last line it printed.
    pub fn script(&self, action: &str, arguments: &[&str]) -> String {
        let output = self.run(action, arguments);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "cluster {action} {} {arguments:?}: {printed}{}",
            self.name,
            String::from_utf8_lossy(&output.stderr)
        );
        printed.lines().last().unwrap_or_default().to_owned()
    }

    fn run(&self, action: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(checkout().join("scripts/cluster"));
        command.args([action, &self.name]).args(arguments).env("PG_CONFIG", &self.pg_config);
        // A server's own connections to other servers are no sessions of tests.
        command.env_remove("PGOPTIONS").output().unwrap()
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

    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config.host_path(&self.socket).user("postgres").dbname("postgres");
        // Only libpq reads this itself.
        if let Ok(options) = std::env::var("PGOPTIONS") {
            config.options(&options);
        }
        config
    }

    /// One of the server's programs that are clients, to be called as this user.
    pub fn program(&self, name: &str, user: &str) -> Command {
        let mut command = Command::new(format!("{}/{name}", pg_config("--bindir")));
        command.arg("-h").arg(&self.socket).args(["-U", user]);
        command
    }

    /// Starts psql as the superuser, with options, and gives it a script.
    pub fn psql(&self, options: &[&str], script: &str) -> Child {
        let mut psql = self.program("psql", "postgres");
        let mut psql = psql
            .args(["-X", "-q"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        psql.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        psql
    }

    /// Restores the dump of a database, made by this user, into another one.
    pub fn restore(&self, user: &str, database: &str, other: &str) {
        let mut dump = self.program("pg_dump", user).arg(database).stdout(Stdio::piped()).spawn().unwrap();
        let restored = self
            .program("psql", "postgres")
            .args(["-q", "-v", "ON_ERROR_STOP=1", other])
            .stdin(dump.stdout.take().unwrap())
            .status();
        assert!(dump.wait().unwrap().success() && restored.unwrap().success());
    }

    /// Waits until the server has written this to its log.
    pub fn await_log(&self, text: &str) {
        assert!(
            becomes(Duration::from_mins(1), || self.log().contains(text)),
            "the log does not say {text:?}"
        );
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.socket.join("log")).unwrap_or_default()
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
        let found = if is_planted() { self.found() } else { Vec::new() };
        self.script("remove", &[]);
        NAMES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
        if !thread::panicking() {
            assert!(found.is_empty(), "the search path of {} decides: {found:#?}", self.name);
        }
    }
}

/// The library by which a server has a clock of its own.
pub fn libfaketime() -> PathBuf {
    let found = fs::read_dir("/usr/lib").unwrap().filter_map(Result::ok).find_map(|directory| {
        let path = directory.path().join("faketime/libfaketime.so.1");
        path.exists().then_some(path)
    });
    found.expect("libfaketime is installed; `make test` does that on Debian")
}

/// The environment of a server whose clock is ahead by so many seconds.
pub fn clock_ahead(seconds: i32) -> Vec<String> {
    vec![format!("LD_PRELOAD={}", libfaketime().display()), format!("FAKETIME={seconds:+}")]
}

/// The directory of the checkout.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The version of the extension.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let manifest = fs::read_to_string(checkout().join("Cargo.toml")).unwrap();
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")).unwrap();
    version.trim_end_matches('"').to_owned()
});

/// Where tests keep files of their own, under the directory of the build.
pub fn scratch() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(3).unwrap().join("tmp")
}

/// What `pg_config` says.
pub fn pg_config(option: &str) -> String {
    let program = std::env::var("PG_CONFIG").expect("PG_CONFIG is set; `make test` does");
    let output = Command::new(program).arg(option).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Whether this PostgreSQL has the extension; says so if it has not.
pub fn has(extension: &str) -> bool {
    let here = Path::new(&pg_config("--sharedir")).join(format!("extension/{extension}.control")).exists();
    if !here {
        lacks(extension, &format!("this PostgreSQL has no {extension}"));
    }
    here
}

/// Reports that a test is skipped because this machine or server lacks something. Fails the test if `MAY_LACK` is set
/// and does not list it, as in CI: otherwise a broken installation would only make tests disappear.
pub fn lacks(what: &str, why: &str) {
    if let Ok(listed) = std::env::var("MAY_LACK") {
        assert!(
            listed.split(' ').any(|one| one == what),
            "{why}, and MAY_LACK='{listed}' does not list {what}"
        );
    }
    skipped(why);
}

/// Reports a skipped test. Where `SKIPPED` names a file, adds it to that.
fn skipped(why: &str) {
    let line = format!("SKIPPED {}: {why}\n", thread::current().name().unwrap_or_default());
    // Not by eprintln, which is shown only when a test fails.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    if let Some(list) = std::env::var_os("SKIPPED") {
        fs::File::options().create(true).append(true).open(list).unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// The major version of this PostgreSQL.
pub fn major() -> u32 {
    static MAJOR: LazyLock<u32> = LazyLock::new(|| {
        // "PostgreSQL 15.20 (Debian ...)", or "PostgreSQL 19rc1 (Debian ...)".
        let version = pg_config("--version");
        let number = version.split(' ').nth(1).unwrap();
        number.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    });
    *MAJOR
}

/// Whether this PostgreSQL is of this major version or a newer one; says so if it is not.
pub fn since(version: u32) -> bool {
    let here = major() >= version;
    if !here {
        skipped(&format!("PostgreSQL {version} is the first to have this"));
    }
    here
}

/// Whether this PostgreSQL gives out shared memory at server start only.
pub fn preload_needed() -> bool {
    major() < 17
}

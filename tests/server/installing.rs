//! Libraries are installed while the server runs: no id comes twice meanwhile, and the extension is made only by a library
//! that has what its functions call.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use postgres::error::SqlState;
use postgres::{Client, Error};

use support::{Cluster, VERSION, checkout, count, pg_config, preload_needed, refused, scratch, texts};

/// A table that refuses the same id twice.
pub const TABLE: &str = "CREATE SEQUENCE s; CREATE TABLE t (id bigint PRIMARY KEY DEFAULT next_id(5, 's'))";

const LIBRARY_VERSION: &str = "SELECT insta_ids_internal.library_version()";

/// The findings of `check` about the versions of library and extension.
const OLD: &str = "SELECT code FROM insta_ids.check() WHERE code LIKE 'old%'";

/// A session that inserts rows until it is told to end.
pub struct Minting {
    is_over: Arc<AtomicBool>,
    session: JoinHandle<Result<(), Error>>,
}

impl Minting {
    pub fn start(mut client: Client) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        // The session loads the library that is installed now.
        insert(&mut client, 1).unwrap();
        let told = Arc::clone(&is_over);
        let session = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                insert(&mut client, 100)?;
            }
            Ok(())
        });
        Self { is_over, session }
    }

    pub fn end(self) -> Result<(), Error> {
        self.is_over.store(true, Ordering::Relaxed);
        self.session.join().unwrap()
    }
}

pub fn insert(client: &mut Client, rows: u32) -> Result<(), Error> {
    client.batch_execute(&format!("INSERT INTO t SELECT FROM generate_series(1, {rows})"))
}

/// A server that takes the library from a directory of its own, where it can be exchanged.
struct Exchange {
    cluster: Cluster,
}

impl Exchange {
    /// The server is not started, and has no library yet.
    fn new(name: &str) -> Self {
        let cluster = Cluster::stopped(name, &[""; 0]);
        let this = Self { cluster };
        fs::create_dir(this.directory()).unwrap();
        let configuration = this.cluster.socket.join("data/postgresql.conf");
        let mut configuration = OpenOptions::new().append(true).open(configuration).unwrap();
        writeln!(configuration, "dynamic_library_path = '{}:$libdir'", this.directory()).unwrap();
        this
    }

    fn directory(&self) -> String {
        format!("{}/library", self.cluster.socket.display())
    }

    /// Installs the library under another version number of the same length, in place of the one that is there.
    fn install(&self, version: &str) {
        let mut library = fs::read(format!("{}/insta_ids.so", pg_config("--pkglibdir"))).unwrap();
        assert_eq!(version.len(), VERSION.len());
        for at in 0..library.len() - version.len() {
            if library[at..].starts_with(VERSION.as_bytes()) {
                library[at..at + version.len()].copy_from_slice(version.as_bytes());
            }
        }
        let installed = format!("{}/insta_ids.so", self.directory());
        fs::write(format!("{installed}.new"), library).unwrap();
        fs::rename(format!("{installed}.new"), installed).unwrap();
    }
}

/// This version with each digit replaced by this one.
fn version_of(digit: &str) -> String {
    VERSION.split('.').map(|part| digit.repeat(part.len())).collect::<Vec<_>>().join(".")
}

/// `make install` replaces the files of a running server. Sessions that have the library, and new ones, always find it.
#[test]
fn sessions_find_the_library_during_an_installation() {
    let cluster = Cluster::start("installed");
    let mut client = cluster.connect();
    client.batch_execute(TABLE).unwrap();
    let staged = scratch().join("staged");
    let [libraries, extensions] =
        [pg_config("--pkglibdir"), format!("{}/extension", pg_config("--sharedir"))];
    let files = [
        format!("{libraries}/insta_ids.so"),
        format!("{extensions}/insta_ids.control"),
        format!("{extensions}/insta_ids--{}.sql", *VERSION),
    ];
    // Files that an earlier version of the checkout has left there would be installed, too.
    let _ = fs::remove_dir_all(&staged);
    for file in &files {
        let copy = staged.join(&file[1..]);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(file, copy).unwrap();
    }
    let before = Minting::start(client);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                let placed = Command::new(checkout().join("scripts/place")).arg(&staged).status();
                assert!(placed.unwrap().success());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mut sessions = 0;
        while !is_over.load(Ordering::Relaxed) && !before.session.is_finished() {
            insert(&mut cluster.connect(), 1).unwrap();
            sessions += 1;
        }
        assert!(sessions > 20, "only {sessions} sessions");
    });
    before.end().unwrap();
}

/// A directory for a server that only its `pg_config` knows.
struct Imagined(PathBuf);

impl Imagined {
    fn new(name: &str, version: &str) -> Self {
        let this = Self(scratch().join(name));
        let _ = fs::remove_dir_all(&this.0);
        for directory in ["lib", "share/extension", "include"] {
            fs::create_dir_all(this.0.join(directory)).unwrap();
        }
        let answers = format!(
            "#!/bin/sh\ncase $1 in\n--version) echo 'PostgreSQL {version}' ;;\n--pkglibdir) echo {home}/lib ;;\n\
             --sharedir) echo {home}/share ;;\n*) echo {home}/include ;;\nesac\n",
            home = this.0.display()
        );
        fs::write(this.pg_config(), answers).unwrap();
        fs::set_permissions(this.pg_config(), Permissions::from_mode(0o755)).unwrap();
        this
    }

    fn pg_config(&self) -> PathBuf {
        self.0.join("pg_config")
    }

    /// What a script says that must fail.
    fn failing(&self, script: &str) -> String {
        let run = Command::new("bash")
            .args(["-c", script])
            .current_dir(checkout())
            .env("PG_CONFIG", self.pg_config())
            .output()
            .unwrap();
        assert!(!run.status.success(), "{script}");
        String::from_utf8(run.stderr).unwrap()
    }
}

#[test]
fn a_server_that_cannot_be_built_for_is_told_in_a_line() {
    let old = Imagined::new("too_old", "14.9 (Debian 14.9-1)");
    assert_eq!(
        old.failing("scripts/build"),
        "error: PostgreSQL 14 is not supported: choose one of 15 16 17 18 19\n"
    );
    let bare = Imagined::new("no_headers", "17.2");
    assert_eq!(
        bare.failing("scripts/build"),
        format!(
            "error: the server of {} has no headers: on Debian, install postgresql-server-dev-17\n",
            bare.pg_config().display()
        )
    );
}

/// A file that cannot be written as a whole leaves the one that is installed.
#[test]
fn a_full_disk_keeps_what_is_installed() {
    let server = Imagined::new("full_disk", "15.1");
    let installed =
        [("lib/insta_ids.so", "the old library"), ("share/extension/insta_ids.control", "the old version")];
    let staged = server.0.join("staged").join(&server.0.to_str().unwrap()[1..]);
    fs::create_dir_all(staged.join("lib")).unwrap();
    fs::create_dir_all(staged.join("share/extension")).unwrap();
    for (file, text) in installed {
        fs::write(server.0.join(file), text).unwrap();
        fs::write(staged.join(file), "x".repeat(4000)).unwrap();
    }
    fs::write(staged.join("share/extension/insta_ids--9.9.9.sql"), "SELECT 1").unwrap();
    // A limit on the size of files ends a program that writes more, as a full disk does.
    let said = server.failing("ulimit -f 1; scripts/place $(dirname $PG_CONFIG)/staged");
    let library = server.0.join("lib/insta_ids.so");
    assert!(
        said.ends_with(&format!(
            "error: {} could not be written; the version that was installed stays\n",
            library.display()
        )),
        "{said}"
    );
    for (file, text) in installed {
        assert_eq!(fs::read_to_string(server.0.join(file)).unwrap(), text);
    }
    assert_eq!(fs::read_dir(server.0.join("lib")).unwrap().count(), 1);
}

/// Packages exchange the library while the server runs. Sessions with the old library and sessions with the new one mint
/// under one guard. After the restart `check` finds that the database is not updated.
#[test]
fn sessions_with_the_old_and_the_new_library_share_one_guard() {
    let server = Exchange::new("exchanged");
    let newer = version_of("9");
    server.install(&VERSION);
    server.cluster.up();
    let mut client = server.cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(10)").unwrap();
    client.batch_execute(TABLE).unwrap();
    let before = Minting::start(client);

    server.install(&newer);
    let mut client = server.cluster.connect();
    // A preloaded library stays until the restart.
    let expected = if preload_needed() { VERSION.as_str() } else { &newer };
    assert_eq!(texts(&mut client, LIBRARY_VERSION), [expected]);
    insert(&mut client, 100_000).unwrap();
    before.end().unwrap();
    drop(client);

    server.cluster.stop();
    server.cluster.up();
    let mut client = server.cluster.connect();
    assert_eq!(texts(&mut client, LIBRARY_VERSION), [newer]);
    insert(&mut client, 1000).unwrap();
    assert_eq!(texts(&mut client, OLD), ["old_extension"]);
}

/// A server that still runs an older library does not create the extension: that library may lack functions that it calls.
#[test]
fn a_server_with_an_older_library_refuses_the_extension() {
    let server = Exchange::new("older");
    let older = version_of("0");
    server.install(&older);
    server.cluster.up();
    let mut client = server.cluster.connect();
    let error = refused(&mut client, "CREATE EXTENSION insta_ids");
    assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert_eq!(error.message(), "the server still runs an older library of insta_ids");
    assert_eq!(error.hint(), Some("Restart the server."));
    assert_eq!(count(&mut client, "SELECT count(*) FROM pg_namespace WHERE nspname = 'insta_ids'"), 0);
    drop(client);

    server.install(&VERSION);
    server.cluster.stop();
    server.cluster.up();
    let mut client = server.cluster.connect();
    client.batch_execute("CREATE EXTENSION insta_ids; SELECT insta_ids.init(10)").unwrap();
    client.batch_execute(TABLE).unwrap();
    insert(&mut client, 1000).unwrap();
    assert_eq!(texts(&mut client, OLD), [""; 0]);
}

/// Without the lease a restart could repeat ids.
#[test]
fn no_id_is_minted_without_the_lease() {
    let cluster = Cluster::start("no_lease");
    let mut client = cluster.connect();
    client.batch_execute(TABLE).unwrap();
    insert(&mut client, 1).unwrap();
    client
        .batch_execute(
            "ALTER EXTENSION insta_ids DROP TABLE insta_ids_internal.lease; DROP TABLE insta_ids_internal.lease",
        )
        .unwrap();
    // The second session has not seen the table.
    for client in [&mut client, &mut cluster.connect()] {
        let error = refused(client, "INSERT INTO t SELECT FROM generate_series(1, 10000000)");
        assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        assert_eq!(error.message(), "insta_ids has no lease in this database");
    }
}

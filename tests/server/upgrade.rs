//! From every version that was released, an update gives what a fresh install gives; ids come once before, during and after
//! it, whichever libraries the server's sessions run meanwhile.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use postgres::error::SqlState;
use postgres::{Client, Error};

use crate::cluster::{Cluster, PRELOAD, checkout, pg_config, preload_needed, refused, skipped, texts};
use crate::shards::{PHOTOS, add, check_complete};

/// All that belongs to the extension, as the catalog has it.
const SURFACE: &str = "
    SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
        SELECT concat_ws(' | ', pg_describe_object(d.classid, d.objid, 0), d.deptype,
                         coalesce(obj_description(d.objid, c.relname), 'no comment'), i.privileges::text,
                         coalesce(pg_get_functiondef(p.oid), pg_get_viewdef(v.oid), s.seqstart::text,
                                  concat_ws(' ', t.typlen, t.typalign, t.typstorage, t.typinput, t.typoutput,
                                            t.typreceive, t.typsend))) AS line
        FROM pg_depend d
        JOIN pg_extension e ON d.refobjid = e.oid AND d.refclassid = 'pg_extension'::regclass
        JOIN pg_class c ON c.oid = d.classid
        LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
        LEFT JOIN pg_class v ON d.classid = 'pg_class'::regclass AND v.oid = d.objid AND v.relkind = 'v'
        LEFT JOIN pg_sequence s ON d.classid = 'pg_class'::regclass AND s.seqrelid = d.objid
        LEFT JOIN pg_namespace n ON d.classid = 'pg_namespace'::regclass AND n.oid = d.objid
        LEFT JOIN pg_class r ON d.classid = 'pg_class'::regclass AND r.oid = d.objid
        LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
        CROSS JOIN LATERAL (SELECT coalesce(p.proacl, n.nspacl, r.relacl) AS privileges) i
        WHERE e.extname = 'insta_ids' AND d.deptype = 'e' AND coalesce(t.typtype, 'b') <> 'c' AND coalesce(t.typcategory, '') <> 'A'
        UNION ALL
        SELECT concat_ws(' | ', attrelid::regclass, attname, attnum, format_type(atttypid, atttypmod), attnotnull,
                         pg_get_expr(adbin, adrelid))
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = 'insta_ids'::regnamespace AND relkind IN ('r', 'v') AND attnum > 0
        UNION ALL
        SELECT concat_ws(' | ', relname, relpersistence, relreplident, reloptions) FROM pg_class
        WHERE relnamespace = 'insta_ids'::regnamespace
        UNION ALL
        SELECT concat_ws(' | ', pg_get_triggerdef(pg_trigger.oid), tgenabled) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = 'insta_ids'::regnamespace AND NOT tgisinternal
        UNION ALL
        SELECT concat_ws(' | ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
        WHERE connamespace = 'insta_ids'::regnamespace
        UNION ALL
        SELECT indexdef FROM pg_indexes WHERE schemaname = 'insta_ids'
        UNION ALL
        SELECT concat_ws(' | ', 'event trigger', evtname, evtevent, evtenabled, evttags, evtfoid::regprocedure) FROM pg_event_trigger
        UNION ALL
        SELECT concat_ws(' | ', 'operator', oid::regoperator, oprcode, oprrest, oprjoin, oprcom::regoperator, oprnegate::regoperator)
        FROM pg_operator WHERE 'id_layout'::regtype IN (oprleft, oprright)
        UNION ALL
        SELECT concat_ws(' | ', 'cast', castsource::regtype, casttarget::regtype, castfunc::regprocedure, castcontext, castmethod)
        FROM pg_cast WHERE 'id_layout'::regtype IN (castsource, casttarget)
        UNION ALL
        SELECT concat_ws(' | ', 'initial privileges', pg_describe_object(classoid, objoid, objsubid), initprivs::text)
        FROM pg_init_privs WHERE privtype = 'e' AND pg_describe_object(classoid, objoid, objsubid) LIKE '%insta_ids%'
        UNION ALL
        SELECT concat_ws(' | ', 'configuration', unnest(extconfig)::regclass, unnest(extcondition))
        FROM pg_extension WHERE extname = 'insta_ids'
    ) lines";

/// What a user has, whatever the version.
const TABLE: &str = "CREATE SEQUENCE s; CREATE TABLE t (id bigint PRIMARY KEY DEFAULT next_id(5, 's'))";

/// An install script of a version that was released.
pub struct Release {
    number: [u32; 3],
    script: PathBuf,
}

impl Release {
    /// All of them, the oldest first.
    fn all() -> Vec<Self> {
        let files = fs::read_dir(checkout().join("tests/upgrade")).unwrap();
        let mut releases: Vec<_> = files
            .filter_map(|file| {
                let script = file.unwrap().path();
                let number =
                    script.file_name()?.to_str()?.strip_prefix("insta_ids--")?.strip_suffix(".sql")?;
                let number: Vec<u32> = number.split('.').map(|part| part.parse().unwrap()).collect();
                Some(Self { number: number.try_into().unwrap(), script })
            })
            .collect();
        releases.sort_by_key(|release| release.number);
        releases
    }

    /// Those of the versions before this one.
    fn earlier() -> impl Iterator<Item = Self> {
        Self::all().into_iter().filter(|release| release.name() != env!("CARGO_PKG_VERSION"))
    }

    fn name(&self) -> String {
        self.number.map(|part| part.to_string()).join(".")
    }

    /// Whether it can have shards.
    fn provisions(&self) -> bool {
        self.number >= [0, 4, 0]
    }

    /// Its library, where the history of this checkout reached back to it.
    fn library(&self) -> Option<PathBuf> {
        let major = pg_config("--version").split(['.', ' ']).nth(1).unwrap().to_owned();
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let library = target.join(format!("released/{}/insta_ids-{major}.so", self.name()));
        library.exists().then_some(library)
    }

    pub fn of(name: &str) -> Self {
        Self::all().into_iter().find(|release| release.name() == name).unwrap()
    }

    /// Makes the extension as it was, under this name.
    fn create(&self, client: &mut Client, name: &str) {
        let _offered = self.offer(name);
        client.batch_execute(&format!("CREATE EXTENSION insta_ids VERSION '{name}'")).unwrap();
    }

    /// Lets servers find it under this name.
    pub fn offer(&self, name: &str) -> Offered {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let script = Path::new(&pg_config("--sharedir")).join(format!("extension/insta_ids--{name}.sql"));
        fs::copy(&self.script, &script).unwrap();
        Offered { script, _turn: turn }
    }
}

/// An install script among those that all servers have, as long as this is there.
pub struct Offered {
    script: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Offered {
    fn drop(&mut self) {
        fs::remove_file(&self.script).unwrap();
    }
}

/// The surface that this version's own install script makes.
fn fresh_surface(cluster: &Cluster) -> String {
    cluster.connect().batch_execute("CREATE DATABASE fresh").unwrap();
    let mut client = cluster.connect_to("fresh");
    client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
    surface(&mut client)
}

fn surface(client: &mut Client) -> String {
    client.query_one(SURFACE, &[]).unwrap().get(0)
}

/// That both surfaces are the same; says what differs.
fn assert_same(one: &str, other: &str, what: &str) {
    let lacks = |other: &str, line: &&str| !other.lines().any(|known| known == *line);
    let left: Vec<_> = one.lines().filter(|line| lacks(other, line)).collect();
    let right: Vec<_> = other.lines().filter(|line| lacks(one, line)).collect();
    assert!(one == other, "{what}: {left:#?} for {right:#?}");
}

/// A session that mints, into a table that refuses the same id twice.
struct Minting {
    is_over: Arc<AtomicBool>,
    session: JoinHandle<Result<(), Error>>,
}

impl Minting {
    fn start(mut client: Client) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        // With the library that is there now.
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

    fn end(self) -> Result<(), Error> {
        self.is_over.store(true, Ordering::Relaxed);
        self.session.join().unwrap()
    }
}

fn insert(client: &mut Client, rows: u32) -> Result<(), Error> {
    client.batch_execute(&format!("INSERT INTO t SELECT FROM generate_series(1, {rows})"))
}

#[test]
fn an_update_gives_what_a_fresh_install_gives() {
    let cluster = Cluster::bare("upgrade", &[PRELOAD]);
    let fresh = fresh_surface(&cluster);
    for release in Release::earlier() {
        let database = release.name();
        cluster.connect().batch_execute(&format!("CREATE DATABASE \"{database}\"")).unwrap();
        let mut client = cluster.connect_to(&database);
        release.create(&mut client, &database);
        client.batch_execute(TABLE).unwrap();
        if release.number < [0, 2, 0] {
            // Not by half: what is promised now cannot be kept without the lease.
            let error = refused(&mut client, "INSERT INTO t DEFAULT VALUES");
            assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
            assert!(error.hint().unwrap().contains("ALTER EXTENSION insta_ids UPDATE"));
            client.batch_execute("ALTER EXTENSION insta_ids UPDATE").unwrap();
        }
        if release.provisions() {
            client.batch_execute("SELECT insta_ids.init(10)").unwrap();
            add(&mut client, "0001", PHOTOS);
            client.batch_execute("CALL insta_ids.create_shards(0, 4)").unwrap();
            client.batch_execute("INSERT INTO insta2.photos SELECT FROM generate_series(1, 1000)").unwrap();
        }
        let minting = Minting::start(cluster.connect_to(&database));
        client.batch_execute("ALTER EXTENSION insta_ids UPDATE").unwrap();
        insert(&mut client, 1000).unwrap();
        minting.end().unwrap();
        assert_same(&surface(&mut client), &fresh, &format!("updated from {database}"));

        // What that version has made is as if this one had.
        if release.provisions() {
            client.batch_execute("CALL insta_ids.create_shards(5, 9)").unwrap();
            add(&mut client, "0002", "ALTER TABLE photos ADD COLUMN size integer");
            client.batch_execute("CALL insta_ids.migrate()").unwrap();
            check_complete(&mut client, 10);
            client.batch_execute("INSERT INTO insta2.photos SELECT FROM generate_series(1, 1000)").unwrap();
            assert_eq!(texts(&mut client, "SELECT f::text FROM insta_ids.check() f"), [""; 0]);
        }
    }
}

/// What `make install` does to a running server: the library is never missing, neither for sessions that have it nor for
/// new ones.
#[test]
fn installed_while_sessions_come() {
    let cluster = Cluster::start("installed");
    let mut client = cluster.connect();
    client.batch_execute(TABLE).unwrap();
    let staged = Path::new(env!("CARGO_TARGET_TMPDIR")).join("staged");
    let [libraries, extensions] =
        [pg_config("--pkglibdir"), format!("{}/extension", pg_config("--sharedir"))];
    let files = [
        format!("{libraries}/insta_ids.so"),
        format!("{extensions}/insta_ids.control"),
        format!("{extensions}/insta_ids--{}.sql", env!("CARGO_PKG_VERSION")),
    ];
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

/// While somebody reads what it alters, it keeps nobody waiting for long, and changes nothing.
#[test]
fn an_update_gives_way() {
    let cluster = Cluster::bare("gives_way", &[PRELOAD]);
    let mut client = cluster.connect();
    let release = Release::of("0.8.0");
    release.create(&mut client, &release.name());
    let mut reader = cluster.connect();
    reader.batch_execute("BEGIN; TABLE insta_ids.map").unwrap();
    let error = refused(&mut client, "ALTER EXTENSION insta_ids UPDATE");
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE);
    assert_eq!(
        texts(&mut client, "SELECT extversion FROM pg_extension WHERE extname = 'insta_ids'"),
        ["0.8.0"]
    );
    reader.batch_execute("COMMIT").unwrap();
    client.batch_execute("ALTER EXTENSION insta_ids UPDATE").unwrap();
    assert_eq!(texts(&mut client, "SELECT current_setting('lock_timeout')"), ["0"]);
}

/// What somebody's event trigger lacks is not taken for what the library lacks.
#[test]
fn errors_of_others_are_theirs() {
    let cluster = Cluster::bare("others", &[PRELOAD]);
    let mut client = cluster.connect();
    let trigger = "
        CREATE FUNCTION audit() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM missing(); END';
        CREATE EVENT TRIGGER audit ON ddl_command_end WHEN TAG IN ('CREATE FUNCTION') EXECUTE FUNCTION audit()";
    client.batch_execute(trigger).unwrap();
    let error = refused(&mut client, "CREATE EXTENSION insta_ids");
    assert_eq!(
        (error.code(), error.message()),
        (&SqlState::UNDEFINED_FUNCTION, "function missing() does not exist")
    );
}

/// A version that was released stays what it is: to change what a user has is to make another one.
#[test]
fn a_released_version_is_not_changed() {
    let cluster = Cluster::bare("released", &[PRELOAD]);
    let fresh = fresh_surface(&cluster);
    for release in Release::all().iter().filter(|release| release.name() == env!("CARGO_PKG_VERSION")) {
        let mut client = cluster.connect();
        release.create(&mut client, "frozen");
        assert_same(&fresh, &surface(&mut client), &format!("now and {}", release.script.display()));
    }
}

/// The library is exchanged while the server runs, as packages do it.
#[test]
fn the_older_library_beside_this_one() {
    // In 0.1.0 nothing was shared that another library could find; others than the last are not built for every server.
    let newest = Release::earlier().last().unwrap();
    if newest.library().is_none() {
        skipped(&format!("the library of {} was not built", newest.name()));
    }
    for release in Release::earlier().skip(1) {
        let name = release.name();
        let Some(older) = release.library() else { continue };
        let cluster = Cluster::made("exchanged", &["make", PRELOAD]);
        let directory = cluster.socket.join("library");
        fs::create_dir(&directory).unwrap();
        let install = |library: &Path| {
            let installed = directory.join("insta_ids.so");
            let _ = fs::remove_file(&installed);
            fs::copy(library, installed).unwrap();
        };
        install(&older);
        let setting = format!("dynamic_library_path = '{}:$libdir'\n", directory.display());
        let mut settings =
            OpenOptions::new().append(true).open(cluster.socket.join("data/postgresql.conf")).unwrap();
        settings.write_all(setting.as_bytes()).unwrap();
        cluster.up();
        let mut client = cluster.connect();
        release.create(&mut client, &name);
        client.batch_execute(TABLE).unwrap();
        let before = Minting::start(client);

        install(&Path::new(&pg_config("--pkglibdir")).join("insta_ids.so"));
        let mut client = cluster.connect();
        if preload_needed() {
            // Every session has the library that the server was started with.
            insert(&mut client, 1000).unwrap();
            let error = refused(&mut client, "ALTER EXTENSION insta_ids UPDATE");
            let message = match release.number {
                [0, ..8, _] => "could not find function",
                _ => "the server still runs an older library of insta_ids",
            };
            assert!(error.message().starts_with(message), "{name}: {error}");
            insert(&mut client, 1000).unwrap();
        } else if release.number < [0, 8, 0] {
            // Its guard is not what this version knows.
            let error = insert(&mut client, 1000).unwrap_err();
            let error = error.as_db_error().unwrap();
            assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
            assert_eq!(error.message(), "another version of insta_ids is in use by this server");
            assert_eq!(error.hint(), Some("Restart the server."));
        } else {
            // Both mint with one guard.
            insert(&mut client, 100_000).unwrap();
            client.batch_execute("ALTER EXTENSION insta_ids UPDATE").unwrap();
            insert(&mut client, 1000).unwrap();
        }
        before.end().unwrap();
        drop(client);
        cluster.stop();
        cluster.up();
        let mut client = cluster.connect();
        client.batch_execute("ALTER EXTENSION insta_ids UPDATE").unwrap();
        insert(&mut client, 1000).unwrap();
        assert_same(
            &surface(&mut client),
            &fresh_surface(&cluster),
            &format!("updated from {}", release.name()),
        );
    }
}

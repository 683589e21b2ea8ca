//! Promise: an update gives what a fresh install gives. The script of an update is a hand-written step for the state, and
//! then the definitions of sql/ as they are (scripts/update).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use postgres::Client;
use postgres::error::SqlState;

use crate::installing::{Minting, TABLE, insert};
use support::shards::{PHOTOS, add, check_complete};
use support::{Cluster, VERSION, checkout, pg_config, refused, scratch, texts};

/// Everything that belongs to the extension, as the catalog has it.
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
        WHERE relnamespace IN ('insta_ids'::regnamespace, 'insta_ids_internal'::regnamespace) AND relkind IN ('r', 'v') AND attnum > 0
        UNION ALL
        SELECT concat_ws(' | ', relname, relpersistence, relreplident, reloptions) FROM pg_class
        WHERE relnamespace IN ('insta_ids'::regnamespace, 'insta_ids_internal'::regnamespace)
        UNION ALL
        SELECT concat_ws(' | ', pg_get_triggerdef(pg_trigger.oid), tgenabled) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace IN ('insta_ids'::regnamespace, 'insta_ids_internal'::regnamespace) AND NOT tgisinternal
        UNION ALL
        SELECT concat_ws(' | ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
        WHERE connamespace IN ('insta_ids'::regnamespace, 'insta_ids_internal'::regnamespace)
        UNION ALL
        SELECT indexdef FROM pg_indexes WHERE schemaname IN ('insta_ids', 'insta_ids_internal')
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

/// A version that exists for this test alone. It differs from this one in a function, a comment, a table
/// and a privilege.
struct NextVersion(Vec<PathBuf>);

impl NextVersion {
    const NAME: &str = "next";
    /// The hand-written step of its update.
    const STEP: &str = "ALTER TABLE insta_ids_internal.shard ADD COLUMN note text;\
        REVOKE EXECUTE ON FUNCTION insta_ids.schema_of FROM PUBLIC;";

    /// Lets all servers find its install script, and the script of the update to it.
    fn offer() -> Self {
        let this = VERSION.as_str();
        let step = scratch().join("step.sql");
        fs::create_dir_all(scratch()).unwrap();
        fs::write(&step, Self::STEP).unwrap();
        let update = Command::new(checkout().join("scripts/update")).arg(this).arg(step).output().unwrap();
        assert!(update.status.success(), "{}", String::from_utf8_lossy(&update.stderr));
        let extensions = Path::new(&pg_config("--sharedir")).join("extension");
        let install = fs::read_to_string(extensions.join(format!("insta_ids--{this}.sql"))).unwrap();
        let table = "is_pinned boolean NOT NULL DEFAULT false\n);";
        let withheld = "REVOKE EXECUTE ON FUNCTION insta_ids.advance_clock";
        assert!(install.contains(table) && install.contains(withheld));
        let install = install.replacen(table, &table.replace('\n', ",\n    note text\n"), 1).replacen(
            withheld,
            &format!("{withheld}, insta_ids.schema_of"),
            1,
        );
        let scripts = [
            (format!("insta_ids--{}.sql", Self::NAME), Self::changed(&install)),
            (
                format!("insta_ids--{this}--{}.sql", Self::NAME),
                Self::changed(&String::from_utf8(update.stdout).unwrap()),
            ),
        ];
        Self(
            scripts
                .into_iter()
                .map(|(name, script)| {
                    fs::write(extensions.join(&name), script).unwrap();
                    extensions.join(name)
                })
                .collect(),
        )
    }

    /// The definitions of the next version.
    fn changed(definitions: &str) -> String {
        [
            ("'shards are not set up'", "'no shards are set up'"),
            ("'schema of a shard'", "'the schema of a shard'"),
        ]
        .into_iter()
        .fold(definitions.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        })
    }
}

impl Drop for NextVersion {
    fn drop(&mut self) {
        self.0.iter().for_each(|script| fs::remove_file(script).unwrap());
    }
}

fn surface(client: &mut Client) -> String {
    client.query_one(SURFACE, &[]).unwrap().get(0)
}

/// Fails with the lines in which the two differ.
fn assert_same(one: &str, other: &str, what: &str) {
    let lacks = |other: &str, line: &&str| !other.lines().any(|known| known == *line);
    let left: Vec<_> = one.lines().filter(|line| lacks(other, line)).collect();
    let right: Vec<_> = other.lines().filter(|line| lacks(one, line)).collect();
    assert!(one == other, "{what}: {left:#?} for {right:#?}");
}

/// While a session mints, with shards that the older version made.
#[test]
fn an_update_gives_what_a_fresh_install_gives() {
    let next = NextVersion::offer();
    let cluster = Cluster::bare("update");
    cluster.connect().batch_execute("CREATE DATABASE fresh").unwrap();
    let mut fresh = cluster.connect_to("fresh");
    fresh.batch_execute("CREATE EXTENSION insta_ids VERSION 'next'").unwrap();

    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE EXTENSION insta_ids; CREATE ROLE provisioner; SELECT insta_ids.grant_provisioning('provisioner'); SELECT insta_ids.init(10)",
        )
        .unwrap();
    client.batch_execute(TABLE).unwrap();
    let held = "SELECT count(*)::text FROM pg_class c, aclexplode(c.relacl) a WHERE a.grantee = 'provisioner'::regrole";
    let granted = texts(&mut client, held);
    add(&mut client, "0001", PHOTOS);
    client.batch_execute("CALL insta_ids.create_shards(0, 4)").unwrap();
    let minting = Minting::start(cluster.connect());

    // What somebody reads is not replaced under them; the update gives way, and changes nothing.
    let mut reader = cluster.connect();
    reader.batch_execute("BEGIN; TABLE insta_ids.map").unwrap();
    let error = refused(&mut client, "ALTER EXTENSION insta_ids UPDATE TO 'next'");
    assert_eq!(error.code(), &SqlState::LOCK_NOT_AVAILABLE);
    reader.batch_execute("COMMIT").unwrap();
    client.batch_execute("ALTER EXTENSION insta_ids UPDATE TO 'next'").unwrap();
    insert(&mut client, 1000).unwrap();
    minting.end().unwrap();
    drop(next);

    // Privileges that administrators granted are kept, and are not taken for the extension's: dumps have them.
    assert_eq!(texts(&mut client, held), granted);
    fresh.batch_execute("SELECT insta_ids.grant_provisioning('provisioner')").unwrap();
    for client in [&mut client, &mut fresh] {
        client.batch_execute("DROP OWNED BY provisioner").unwrap();
    }
    assert_same(&surface(&mut client), &surface(&mut fresh), "updated and fresh");
    client.batch_execute("CALL insta_ids.create_shards(5, 9)").unwrap();
    check_complete(&mut client, 10);
}

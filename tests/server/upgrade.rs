//! From every version that was released, an update gives what a fresh install gives.

use std::fs;
use std::process::Command;

use postgres::error::SqlState;

use crate::cluster::{Cluster, checkout, disorders, ids, pg_config};

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
        SELECT concat_ws(' | ', relname, relpersistence, reloptions) FROM pg_class
        WHERE relnamespace = 'insta_ids'::regnamespace
        UNION ALL
        SELECT pg_get_triggerdef(pg_trigger.oid) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = 'insta_ids'::regnamespace AND NOT tgisinternal
        UNION ALL
        SELECT concat_ws(' | ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
        WHERE connamespace = 'insta_ids'::regnamespace
        UNION ALL
        SELECT indexdef FROM pg_indexes WHERE schemaname = 'insta_ids'
        UNION ALL
        SELECT concat_ws(' | ', 'configuration', unnest(extconfig)::regclass, unnest(extcondition))
        FROM pg_extension WHERE extname = 'insta_ids'
    ) lines";

/// The install scripts of the versions before this one.
fn released() -> Vec<String> {
    let scripts = fs::read_dir(checkout().join("tests/upgrade")).unwrap();
    scripts.map(|script| script.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn an_update_gives_what_a_fresh_install_gives() {
    let cluster = Cluster::start("upgrade");
    let mut client = cluster.connect();
    let fresh: String = client.query_one(SURFACE, &[]).unwrap().get(0);
    for script in released() {
        let version = script.strip_prefix("insta_ids--").unwrap().strip_suffix(".sql").unwrap();
        let directory = format!("{}/extension", pg_config("--sharedir"));
        let install = checkout().join("tests/upgrade").join(&script);
        let copied = Command::new("cp").arg(install).arg(&directory).status().unwrap();
        assert!(copied.success());
        client
            .batch_execute(&format!(
                "DROP EXTENSION insta_ids CASCADE; DROP SEQUENCE IF EXISTS s;
                 CREATE EXTENSION insta_ids VERSION '{version}'; CREATE SEQUENCE s"
            ))
            .unwrap();
        let minted = client.query("SELECT next_id(5, 's')", &[]);
        if version == "0.1.0" {
            // Not by half: what is promised now cannot be kept without the lease.
            let error = minted.unwrap_err();
            let error = error.as_db_error().unwrap();
            assert_eq!(error.code(), &SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
            assert!(error.hint().unwrap().contains("ALTER EXTENSION insta_ids UPDATE"));
        } else {
            minted.unwrap();
        }
        client.batch_execute("ALTER EXTENSION insta_ids UPDATE").unwrap();
        let updated: String = client.query_one(SURFACE, &[]).unwrap().get(0);
        assert_eq!(updated, fresh, "updated from {version}");
        assert_eq!(disorders(&ids(&mut client, "SELECT next_id(5, 's') FROM generate_series(1, 1000)")), 0);
        fs::remove_file(format!("{directory}/{script}")).unwrap();
    }
}

//! The documents say what is so.

use std::fs;
use std::path::{Path, PathBuf};

use postgres::SimpleQueryMessage;

use support::{Cluster, checkout};

/// Each example succeeds, or fails where the document says so.
#[test]
fn every_example_in_the_documents_runs() {
    for document in [
        "README.md",
        "docs/start.md",
        "docs/reference.md",
        "docs/installing.md",
        "docs/monitoring.md",
        "docs/operations.md",
        "docs/reading-by-time.md",
        "docs/partitions.md",
        "docs/recipes.md",
        "docs/masking.md",
        "docs/modelling.md",
        "docs/choosing.md",
        "docs/shards.md",
        "docs/servers.md",
        "docs/clients.md",
    ] {
        let cluster = Cluster::start("docs");
        let mut client = cluster.connect();
        let text = fs::read_to_string(checkout().join(document)).unwrap();
        if text.contains("CREATE EXTENSION insta_ids SCHEMA ids;") {
            client.batch_execute("DROP EXTENSION insta_ids").unwrap();
        }
        // Those that another word stands behind are for other tests, but for those that fail.
        let examples: Vec<_> = text
            .split("```sql")
            .skip(1)
            .filter_map(|rest| {
                let (kind, rest) = rest.split_once('\n')?;
                ["", " fails"].contains(&kind).then(|| (kind.is_empty(), rest.split("```").next().unwrap()))
            })
            .collect();
        assert!(!examples.is_empty(), "{document} has no example");
        for (succeeds, example) in examples {
            let results = client.simple_query(example);
            assert_eq!(results.is_ok(), succeeds, "{document}: {example}{:?}", results.err());
        }
    }
}

/// A recipe is copied from a project that scripts/clients tries.
#[test]
fn each_recipe_is_part_of_a_project_that_is_tried() {
    let text = fs::read_to_string(checkout().join("docs/clients.md")).unwrap();
    let mut recipes = 0;
    for block in text.split("```").skip(1).step_by(2) {
        let (kind, code) = block.split_once('\n').unwrap();
        if let Some((_, path)) = kind.split_once(' ') {
            let file = fs::read_to_string(checkout().join(path)).unwrap();
            assert!(format!("\n{file}").contains(&format!("\n{code}")), "not in {path}: {code}");
            recipes += 1;
        }
    }
    assert!(recipes > 0);
}

/// The reference has the words that \df+ shows.
#[test]
fn the_reference_describes_functions_in_the_words_of_their_comments() {
    let reference = fs::read_to_string(checkout().join("docs/reference.md")).unwrap();
    let cluster = Cluster::start("comments");
    let comments = cluster
        .connect()
        .simple_query(
            "SELECT p.proname, obj_description(p.oid, 'pg_proc')
             FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid AND e.extname = 'insta_ids'
             JOIN pg_proc p ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
             WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
                 AND p.pronamespace <> 'insta_ids_internal'::regnamespace",
        )
        .unwrap();
    let mut functions = 0;
    for row in comments {
        if let SimpleQueryMessage::Row(row) = row {
            let (function, comment) = (row.get(0).unwrap(), row.get(1).expect("each function has a comment"));
            let line = reference.lines().find(|line| line.contains(comment));
            let named = |line: &str| {
                ["", "insta_ids."].iter().any(|schema| line.contains(&format!("`{schema}{function}(")))
            };
            assert!(line.is_some_and(named), "{function}: {comment}");
            functions += 1;
        }
    }
    assert_eq!(functions, 99);
}

/// The reference lists each code that `check` can report, and no other. Some codes are put together of two words.
#[test]
fn every_finding_is_in_the_reference() {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let reference = read(checkout().join("docs/reference.md"));
    let sql: String =
        fs::read_dir(checkout().join("sql/check")).unwrap().map(|file| read(file.unwrap().path())).collect();
    let (_, table) = reference.split_once("| code | severity | for example |\n").unwrap();
    let told: Vec<_> =
        table.lines().skip(1).map_while(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    for code in &told {
        let (first, last) = code.split_once('_').unwrap();
        let parts = [format!("'{first}_'"), format!("'_{last}'")];
        let is_found = sql.contains(&format!("'{code}'")) || parts.iter().any(|part| sql.contains(part));
        assert!(is_found, "{code} is not in sql/check/");
    }
    let mut found = 0;
    for severity in ["error", "warning", "notice"] {
        for rest in sql.split(&format!("'{severity}', '")).skip(1) {
            let (code, after) = rest.split_once('\'').unwrap();
            assert!(after.starts_with(" ||") || told.contains(&code), "{code} is not in the reference");
            found += 1;
        }
    }
    assert!(told.len() > 30 && found > 15, "{} told, {found} found", told.len());
}

/// The files and headings that documents link to exist.
#[test]
fn every_link_leads_somewhere() {
    let top = fs::read_dir(checkout()).unwrap().map(|file| file.unwrap().path());
    let book = fs::read_dir(checkout().join("docs")).unwrap().map(|file| file.unwrap().path());
    let mut links = 0;
    for document in top.chain(book).filter(|path| path.extension().is_some_and(|kind| kind == "md")) {
        let text = fs::read_to_string(&document).unwrap();
        let targets = text.split("](").skip(1).chain(text.split("src=\"").skip(1));
        for target in targets.map(|rest| rest.split([')', '"']).next().unwrap()) {
            if target.contains("://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(file.exists(), "{}: {target}", document.display());
            assert!(
                heading.is_empty() || headings(&file).contains(&heading.to_owned()),
                "{}: {target}",
                document.display()
            );
            links += 1;
        }
    }
    assert!(links > 100, "only {links} links");
}

/// The names by which links find the headings of a document.
fn headings(document: &Path) -> Vec<String> {
    let named = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .collect::<String>()
            .replace(' ', "-")
    };
    fs::read_to_string(document).unwrap().lines().filter(|line| line.starts_with('#')).map(named).collect()
}

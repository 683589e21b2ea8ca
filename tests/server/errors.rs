//! The page of errors has every message that the code can raise, and no other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use support::{Cluster, checkout, texts};

/// What a message is before its values are in it, and the name of its condition. The name is empty where it is the one of
/// another error.
type Messages = BTreeMap<String, String>;

/// The files of a directory and of those in it.
fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![fs::read_to_string(&path).unwrap()] })
        .collect()
}

/// The literals at the beginning of an expression, up to the comma or the end of what holds the first one.
fn literals(expression: &str, quote: char) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find([quote, ',', ';']) {
        if !rest[at..].starts_with(quote) {
            break;
        }
        let mut literal = String::new();
        let mut ends = rest.len();
        let mut chars = rest.char_indices().skip_while(|&(i, _)| i <= at).peekable();
        while let Some((i, c)) = chars.next() {
            match c {
                '\\' if quote == '"' => literal.extend(chars.next().map(|(_, c)| c)),
                _ if c == quote && chars.next_if(|&(_, next)| quote == '\'' && next == quote).is_some() => {
                    literal.push(c);
                }
                _ if c == quote => {
                    ends = i + 1;
                    break;
                }
                _ => literal.push(c),
            }
        }
        // A date that decides between two messages is none.
        if !literal.starts_with(|c: char| c.is_ascii_digit()) {
            found.push(literal);
        }
        rest = &rest[ends..];
    }
    found
}

/// With `…` for each value.
fn with_gaps(message: &str) -> String {
    let mut text = message.to_owned();
    for value in ["%s.%I", "%I.%I", "%s", "%I", "%L"] {
        text = text.replace(value, "…");
    }
    // Of Rust's values, names and expressions are in braces.
    while let Some((before, (_, after))) =
        text.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        text = format!("{before}…{after}");
    }
    text
}

/// The word that follows the last of these marks.
fn last_word<'a>(text: &'a str, marks: &[&str]) -> Option<&'a str> {
    let after = marks.iter().filter_map(|mark| text.rfind(mark).map(|at| at + mark.len())).max()?;
    text[after..].split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn messages_of_sql() -> Messages {
    let mut messages = Messages::new();
    for file in files(&checkout().join("sql")) {
        for (at, mark) in file.match_indices("MESSAGE = ") {
            let raise = &file[file[..at].rfind("RAISE ").unwrap()..at];
            // Neither what only warns, nor a reason that another error has as its DETAIL.
            if ["RAISE NOTICE", "RAISE WARNING"].iter().any(|level| raise.starts_with(level)) {
                continue;
            }
            let condition = last_word(raise, &["ERRCODE = '", "RAISE "]).unwrap();
            let condition = if condition == "EXCEPTION" { "" } else { condition };
            for literal in literals(&file[at + mark.len()..], '\'') {
                if !literal.starts_with("it ") {
                    messages.insert(with_gaps(&literal), condition.into());
                }
            }
        }
    }
    messages
}

fn messages_of_rust() -> Messages {
    let mut messages = Messages::new();
    let file: String = fs::read_dir(checkout().join("src/report"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    for (at, mark) in file.match_indices("report(").chain(file.match_indices("let message = ")) {
        let arguments = &file[at + mark.len()..];
        let (code, message) = match mark {
            "report(" => arguments.split_once(',').unwrap(),
            _ => arguments
                .split_once("report(")
                .unwrap()
                .1
                .split_once(',')
                .map(|(code, _)| (code, arguments))
                .unwrap(),
        };
        // A code has its own name, or that of a variable before.
        let defined = format!("let {} = PgSqlErrorCode::ERRCODE_", code.trim());
        let Some(condition) = code
            .split_once("ERRCODE_")
            .map(|(_, name)| name.trim())
            .or_else(|| last_word(&file[..at], &[&defined]))
            .filter(|name| *name != "WARNING")
        else {
            continue;
        };
        // pgrx spells the class of some conditions, such as E_R_I_E.
        let words = condition.split('_').skip_while(|word| word.len() == 1).collect::<Vec<_>>();
        let message = message.trim_start();
        let is_literal = ["\"", "format!", "if "].iter().any(|start| message.starts_with(start));
        let found =
            if is_literal { literals(&message.replace(['{', ';'], "\u{1}"), '"') } else { Vec::new() };
        let wanted = if mark == "report(" { 1 } else { 2 };
        for literal in found.into_iter().take(wanted) {
            messages.insert(with_gaps(&literal.replace('\u{1}', "{")), words.join("_").to_lowercase());
        }
    }
    messages
}

/// In C, the condition comes before the message, in one statement. Messages of the server's own are left out.
fn messages_of_c() -> Messages {
    let mut messages = Messages::new();
    let files_in =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    for path in files_in(checkout().join("src/pg")).flat_map(files_in) {
        if path.extension().is_none_or(|kind| kind != "c") {
            continue;
        }
        let file = fs::read_to_string(path).unwrap();
        for statement in file.split(';') {
            let Some((before, condition)) =
                statement.rsplit_once("ERRCODE_").filter(|(before, _)| before.ends_with(['(', ' ']))
            else {
                continue;
            };
            let is_raised = before.contains("ereport(ERROR") || before.contains("insta_ids_fail_remote(");
            let Some((condition, rest)) = condition.split_once([')', ',']) else { continue };
            if let Some(literal) = literals(rest.trim_start_matches([',', ')', ' ', '\n', '\t']), '"').first()
                && is_raised
                && !["out of memory", "%s"].contains(&literal.as_str())
            {
                messages.insert(with_gaps(literal), condition.trim_start_matches("E_R_I_E_").to_lowercase());
            }
        }
    }
    messages
}

#[test]
fn the_page_of_errors_has_every_message() {
    let mut raised = messages_of_sql();
    raised.extend(messages_of_rust());
    raised.extend(messages_of_c());
    let page = fs::read_to_string(checkout().join("docs/errors.md")).unwrap();
    let rows: BTreeMap<_, _> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(message, rest)| (message.to_owned(), rest.split(" |").next().unwrap()))
        .collect();
    let missing: Vec<_> = raised.keys().filter(|message| !rows.contains_key(*message)).collect();
    let unknown: Vec<_> = rows.keys().filter(|message| !raised.contains_key(*message)).collect();
    assert_eq!((missing, unknown), (vec![], vec![]), "not on the page; on the page alone");

    let cluster = Cluster::start("errors");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE FUNCTION sqlstate_of(condition text) RETURNS text LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE EXCEPTION USING ERRCODE = condition;
             EXCEPTION WHEN query_canceled OR OTHERS THEN
                 RETURN SQLSTATE;
             END $$",
        )
        .unwrap();
    for (message, condition) in raised.iter().filter(|(_, condition)| !condition.is_empty()) {
        let sqlstate = texts(&mut client, &format!("SELECT sqlstate_of('{condition}')")).remove(0);
        assert_eq!(rows[message], sqlstate, "{message}");
    }
    assert!(raised.len() > 240, "only {} messages were found", raised.len());
}

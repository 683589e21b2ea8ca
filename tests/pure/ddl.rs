//! DDL without CONCURRENTLY.

use insta_ids::shard::ddl::without_concurrently;
use proptest::prelude::*;

fn without(statement: &str) -> String {
    String::from_utf8(without_concurrently(statement.as_bytes())).unwrap()
}

#[test]
fn the_first_word_goes() {
    for (statement, expected) in [
        ("CREATE INDEX CONCURRENTLY ON t (a)", "CREATE INDEX ON t (a)"),
        ("create index concurrently i on t (a)", "create index i on t (a)"),
        ("DROP INDEX ConCurrently\n\tIF EXISTS i", "DROP INDEX IF EXISTS i"),
        ("ALTER TABLE t DETACH PARTITION u CONCURRENTLY", "ALTER TABLE t DETACH PARTITION u "),
        ("CREATE INDEX CONCURRENTLY/* a */i ON t (a)", "CREATE INDEX /* a */i ON t (a)"),
        ("CREATE INDEX/**/CONCURRENTLY\"i\" ON t (a)", "CREATE INDEX/**/\"i\" ON t (a)"),
        // Once.
        ("CREATE INDEX CONCURRENTLY concurrently", "CREATE INDEX concurrently"),
        ("CONCURRENTLY", ""),
        // A carriage return ends a comment, too.
        ("CREATE INDEX -- a\rCONCURRENTLY ON t (a)", "CREATE INDEX -- a\rON t (a)"),
        ("CREATE INDEX -- a\nCONCURRENTLY ON t (a)", "CREATE INDEX -- a\nON t (a)"),
    ] {
        assert_eq!(without(statement), expected);
    }
}

#[test]
fn quotes_and_comments_stay() {
    for (statement, expected) in [
        ("CREATE INDEX \"CONCURRENTLY\" ON t (a)", None),
        ("CREATE INDEX \"a \"\" CONCURRENTLY \" ON t (a)", None),
        ("SELECT 'CONCURRENTLY', 'it''s CONCURRENTLY '", None),
        ("SELECT 1 -- CONCURRENTLY", None),
        ("SELECT 1 /* CONCURRENTLY", None),
        ("SELECT 1 /* /* */ CONCURRENTLY */", None),
        ("SELECT 1 /* '*/ + 1 /*' CONCURRENTLY */", None),
        ("CREATE INDEX concurrently_made ON t (a)", None),
        ("CREATE INDEX my$concurrently ON t (a)", None),
        ("CREATE INDEX éCONCURRENTLY ON t (a)", None),
        ("CREATE INDEX CONCURRENTLYé ON t (a)", None),
        ("", None),
        ("-- CONCURRENTLY\nDROP INDEX CONCURRENTLY i", Some("-- CONCURRENTLY\nDROP INDEX i")),
        (
            "DROP INDEX /* a /* b */ CONCURRENTLY */ CONCURRENTLY i",
            Some("DROP INDEX /* a /* b */ CONCURRENTLY */ i"),
        ),
        ("DROP INDEX /***/CONCURRENTLY i /* */", Some("DROP INDEX /***/i /* */")),
        ("DROP INDEX /*/*/CONCURRENTLY*/*/ CONCURRENTLY i", Some("DROP INDEX /*/*/CONCURRENTLY*/*/ i")),
        (
            "CREATE INDEX CONCURRENTLY \"concurrently\" ON t ((a || ' CONCURRENTLY'))",
            Some("CREATE INDEX \"concurrently\" ON t ((a || ' CONCURRENTLY'))"),
        ),
    ] {
        assert_eq!(without(statement), expected.unwrap_or(statement));
    }
}

/// Pieces of a statement in which the word is nothing of its own. None of them ends within another.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zé_0-9][a-zé_$0-9]{0,2}",
        "\\$(CONCURRENTLY|[a-zé_0-9]{0,3})",
        "\\$\\$([^$]|CONCURRENTLY){0,4}\\$\\$",
        "\\$é\\$(\\$|\\$\\$|CONCURRENTLY|[a-z]){0,4}\\$é\\$",
        "[ \n\t(),;=<>|.*]{1,3}",
        "\"([^\"]|\"\"|CONCURRENTLY){0,4}\"",
        "'([^']|''|CONCURRENTLY){0,4}'",
        "-- ?(CONCURRENTLY|[^\n\r]{0,5})[\n\r]",
        // Not within each other, whose ends the grammar here cannot match.
        "/\\* ?(CONCURRENTLY|[^*/]{0,5}) ?\\*/",
        "/\\* /\\* CONCURRENTLY \\*/ CONCURRENTLY \\*/",
        "(CONCURRENTLY|concurrently)[a-z0-9_$é]",
        "[a-zé_](CONCURRENTLY|concurrently)",
    ]
}

fn word() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<bool>(), 12).prop_map(|capitals| {
        let cased = "concurrently".chars().zip(capitals);
        cased.map(|(c, capital)| if capital { c.to_ascii_uppercase() } else { c }).collect()
    })
}

fn statement() -> impl Strategy<Value = String> {
    // With blanks between them, so that two pieces do not make a third.
    prop::collection::vec(piece(), 0..8).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100_000))]

    #[test]
    fn only_the_word_goes(before in statement(), word in word(), blanks in "[ \n\t]{1,3}", after in statement()) {
        let written = format!("{before} {word}{blanks}{after}");
        prop_assert_eq!(without(&written), format!("{before} {}", after.trim_ascii_start()));
        // Where there is none, nothing happens.
        prop_assert_eq!(without(&before), before);
    }

    /// Also what is no text: there is no word in it.
    #[test]
    fn other_bytes_stay(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        prop_assert_eq!(without_concurrently(&bytes), bytes);
    }
}

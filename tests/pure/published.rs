//! The published function: its text, known and written, and the call that stands in its place.

use insta_ids::id::{Fields, Layout};
use insta_ids::published::{Call, Function, Operand, read_call, read_published, write};
use proptest::prelude::*;

use crate::properties::layout;

const ARTICLE: &str = "
DECLARE
    our_epoch bigint := 1314220021721;
    seq_id bigint;
    now_millis bigint;
    shard_id int := 5;
BEGIN
    SELECT nextval('insta5.table_id_seq') % 1024 INTO seq_id;

    SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
    result := (now_millis - our_epoch) << 23;
    result := result | (shard_id << 10);
    result := result | (seq_id);
END;
";

const BY_NOW: &str = "
DECLARE
    epoch bigint := 1314220021721;
    seq_id bigint;
    now_ms bigint;
    shard_id bigint := 5;
BEGIN
    SELECT nextval('insta5.photos_id_seq') % 1024 INTO seq_id;
    now_ms := extract(epoch from now()) * 1000;
    result := (now_ms - epoch) << 23;
    result := result | (shard_id << 10);
    result := result | seq_id;
END;
";

/// Whether this text is known, of a function with the arguments `shard` and `seq_name`.
fn is_known(text: &str, result: Option<&str>, layout: Layout) -> bool {
    let arguments = [b"shard".to_vec(), b"Seq".to_vec()];
    let function =
        Function { source: text.as_bytes(), arguments: &arguments, result: result.map(str::as_bytes) };
    read_published(&function, layout).is_some()
}

fn article(piece: &str, instead: &str) -> String {
    assert!(ARTICLE.contains(piece), "{piece}");
    ARTICLE.replace(piece, instead)
}

#[test]
fn the_articles_function_is_written() {
    let written = write(Layout::INSTAGRAM, b"5", b"'insta5.table_id_seq'");
    assert_eq!(String::from_utf8(written).unwrap(), ARTICLE);
    let sonyflake = Layout::PRESETS[6].1;
    let written = String::from_utf8(write(sonyflake, b"$1", b"seq_id")).unwrap();
    assert!(written.contains("shard_id int := $1;"), "{written}");
    assert!(written.contains("SELECT nextval(seq_id) % 256 INTO seq_id_;"), "{written}");
    assert!(written.contains("result := ((now_millis - our_epoch) / 10) << 24;"), "{written}");
    assert!(written.ends_with("| (seq_id_ << 16);\n    result := result | (shard_id);\nEND;\n"), "{written}");
    let mastodon = String::from_utf8(write(Layout::PRESETS[5].1, b"0", b"'s'")).unwrap();
    assert!(!mastodon.contains("shard"), "{mastodon}");
}

#[test]
fn the_published_functions_are_known() {
    let declared =
        article("int := 5;", "int := 5;\n    result bigint;").replace("END;", "    RETURN result;\nEND");
    assert!(is_known(&declared, None, Layout::INSTAGRAM));
    assert!(!is_known(&declared, Some("result"), Layout::INSTAGRAM));
    for text in [
        ARTICLE.to_owned(),
        BY_NOW.to_owned(),
        ARTICLE.to_ascii_uppercase(),
        ARTICLE.split_ascii_whitespace().collect::<Vec<_>>().join(" "),
        article("int := 5;", "int := 77; -- the id of this /* DB */ shard"),
        article("1314220021721", "1420070400000"),
        article("'insta5.table_id_seq'", "$2"),
        article("'insta5.table_id_seq'", "\"Seq\""),
        article("int := 5", "int := Shard"),
        BY_NOW.replace("bigint := 5", "bigint := $1"),
    ] {
        assert!(is_known(&text, Some("result"), Layout::INSTAGRAM), "{text}");
        assert!(!is_known(&text, None, Layout::INSTAGRAM), "{text}");
        assert!(!is_known(&text, Some("result"), Layout::PRESETS[1].1), "{text}");
    }
    assert!(is_known(&ARTICLE.replace("result", "new_id"), Some("new_id"), Layout::INSTAGRAM));
    assert!(!is_known(&ARTICLE.replacen("result", "new_id", 1), Some("new_id"), Layout::INSTAGRAM));
}

#[test]
fn what_a_published_function_mints_is_read() {
    let arguments = [b"shard".to_vec(), b"Seq".to_vec(), b"seq_id".to_vec()];
    let read = |text: &str| {
        let function = Function { source: text.as_bytes(), arguments: &arguments, result: Some(b"result") };
        read_published(&function, Layout::INSTAGRAM)
    };
    let name = |name: &str| Operand::Constant(name.as_bytes().to_vec());
    for (text, shard, sequence, epoch) in [
        (ARTICLE.to_owned(), Operand::Constant(5), name("insta5.table_id_seq"), 1_314_220_021_721),
        (BY_NOW.to_owned(), Operand::Constant(5), name("insta5.photos_id_seq"), 1_314_220_021_721),
        (article("1314220021721", "7"), Operand::Constant(5), name("insta5.table_id_seq"), 7),
        (
            article("int := 5", "int := $1").replace("'insta5.table_id_seq'", "\"Seq\""),
            Operand::Argument(1),
            Operand::Argument(2),
            1_314_220_021_721,
        ),
    ] {
        let published = read(&text).unwrap();
        assert_eq!((published.call, published.epoch), (Call { shard, sequence }, epoch), "{text}");
    }
    // Its own variable, not the argument.
    assert_eq!(read(&article("'insta5.table_id_seq'", "seq_id")), None);
}

#[test]
fn nothing_else_is_known() {
    for (piece, instead) in [
        ("BEGIN", "BEGIN PERFORM evil();"),
        ("% 1024", "% 1000"),
        ("<< 23", "<< 22"),
        ("int := 5", "int := evil()"),
        ("int := 5", "int := evil"),
        ("int := 5", "int := current_user"),
        ("int := 5", "int := -5"),
        ("int := 5", "int := '5'"),
        ("int := 5", "int := 5.0"),
        ("int := 5", "int := 99999999999"),
        ("1314220021721", "1314220021.721"),
        ("'insta5.table_id_seq'", "evil()"),
        ("'insta5.table_id_seq'", "seq"),
        ("'insta5.table_id_seq'", "'a' || evil() || 'b'"),
        // What looks like a comment or a literal, and is none.
        ("'insta5.table_id_seq'", "'insta5.s --' || evil() || '\n'"),
        ("'insta5.table_id_seq'", "E'\\' || evil() || '"),
        ("'insta5.table_id_seq'", "'\\' || evil() || '"),
        ("'insta5.table_id_seq'", "$$a$$"),
        ("'insta5.table_id_seq'", "U&'a'"),
        ("nextval", "evil.nextval"),
        ("nextval", "\"Nextval\""),
        ("clock_timestamp()", "evil_timestamp()"),
        (" | (seq_id)", " # (seq_id)"),
        (" | (seq_id)", " |/**/| (seq_id)"),
        ("END;", "END; SELECT evil()"),
        ("END;", ""),
        ("END;", "'"),
    ] {
        let text = article(piece, instead);
        assert!(!is_known(&text, Some("result"), Layout::INSTAGRAM), "{text}");
    }
    for text in ["", ";", "DECLARE", "'", "/*", "the_shard"] {
        assert!(!is_known(text, None, Layout::INSTAGRAM), "{text}");
    }
}

#[test]
fn calls_of_next_id_are_read() {
    let arguments = [b"shard".to_vec(), b"seq_name".to_vec()];
    let read = |text: &str, layout| read_call(text.as_bytes(), &arguments, layout);
    let name = || Operand::Constant(b"insta5.table_id_seq".to_vec());
    for (text, shard, sequence) in [
        ("RETURN public.next_id(5, 'insta5.table_id_seq'::regclass)", Operand::Constant(5), name()),
        ("RETURN \"In\"\"s.\".next_id(shard, $2)", Operand::Argument(1), Operand::Argument(2)),
        (
            "next_id((shard)::integer, (seq_name)::pg_catalog.regclass)",
            Operand::Argument(1),
            Operand::Argument(2),
        ),
        ("next_id(5, 'insta5.table_id_seq', 'instagram'::public.id_layout)", Operand::Constant(5), name()),
    ] {
        assert_eq!(read(text, Layout::INSTAGRAM), Some(Call { shard, sequence }), "{text}");
    }
    let twitter = Layout::PRESETS[1].1;
    assert!(read("RETURN next_id(5, 's', 'twitter')", twitter).is_some());
    for text in [
        "next_id(5, 's', 'twitter')",
        "next_id(8192, 's')",
        "next_id(-1, 's')",
        "next_id(5, 's') + 0",
        "abs(next_id(5, 's'))",
        "next_id(5, 'a' || 'b')",
        "next_id(5, 's', 'none')",
        "next_id(5, 's', seq_name)",
        "next_id(shard + 1, 's')",
        "next_id(other, 's')",
        "next_id(5)",
        "next_id(5, 's'",
        "next_ids(5, 's', 3)",
        "next_id.evil(5, 's')",
        "BEGIN ATOMIC RETURN next_id(5, 's'); END",
        "",
    ] {
        assert_eq!(read(text, Layout::INSTAGRAM), None, "{text}");
    }
    assert_eq!(read("next_id(5, 's')", twitter), None);
}

proptest! {
    #[test]
    fn what_is_written_is_known(layout in layout(), shard in 0..8192_i32, by_argument: bool) {
        let shard = if by_argument { "$1".to_owned() } else { shard.to_string() };
        let text = write(layout, shard.as_bytes(), b"'a.b'");
        let function = Function { source: &text, arguments: &[], result: Some(b"result") };
        prop_assert!(read_published(&function, layout).is_some());
        let Fields { seq_bits, shard_bits, .. } = layout.fields();
        let other = Layout::new(Fields { seq_bits: shard_bits, shard_bits: seq_bits, ..layout.fields() }).unwrap();
        prop_assert_eq!(read_published(&function, other).is_some(), other == layout);
    }

    #[test]
    fn no_text_is_too_odd(text: Vec<u8>, argument: Vec<u8>, result: Option<Vec<u8>>, layout in layout()) {
        let arguments = [argument];
        let function = Function { source: &text, arguments: &arguments, result: result.as_deref() };
        prop_assert!(read_published(&function, layout).is_none());
        let _ = read_call(&text, &arguments, layout);
    }
}

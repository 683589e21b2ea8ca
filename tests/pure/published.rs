//! The published function: what is read as it, what is not, and what is written.

use insta_ids::id::{Fields, Layout};
use insta_ids::published::{Function, Language, Minting, Operand, Unreadable, read, write};
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

const OF_NOW: &str = "
DECLARE
    epoch bigint := 1314220021721;
    seq_id bigint;
    now_ms bigint;
    shard_id bigint := 5;
BEGIN
    SELECT nextval('insta5.table_id_seq') % 1024 INTO seq_id;
    now_ms := extract(epoch from now()) * 1000;
    result := (now_ms - epoch) << 23;
    result := result | (shard_id << 10);
    result := result | seq_id;
END;
";

/// The function in one expression.
const INLINE: &str = "(floor(extract(epoch from clock_timestamp()) * 1000)::bigint - 1314220021721) << 23 \
    | (5 << 10) | (nextval('insta5.table_id_seq') % 1024)";

fn of(text: &str, language: Language, result: Option<&str>, layout: Layout) -> Result<Minting, Unreadable> {
    let arguments = [b"shard".to_vec(), b"".to_vec(), b"seq_name".to_vec()];
    let result = result.map(str::as_bytes);
    read(&Function { language, source: text.as_bytes(), arguments: &arguments, result }, layout)
}

/// A body in PL/pgSQL with the OUT argument `result`.
fn body(text: &str) -> Result<Minting, Unreadable> {
    of(text, Language::PlPgSql, Some("result"), Layout::INSTAGRAM)
}

/// A body in PL/pgSQL that returns what it mints.
fn returning(text: &str) -> Result<Minting, Unreadable> {
    of(text, Language::PlPgSql, None, Layout::INSTAGRAM)
}

/// An expression in SQL.
fn sql(text: &str) -> Result<Minting, Unreadable> {
    of(text, Language::Sql, None, Layout::INSTAGRAM)
}

fn expression(text: &str) -> Result<Minting, Unreadable> {
    sql(&format!("SELECT {text}"))
}

#[expect(clippy::needless_pass_by_value, reason = "it is shorter to call")]
fn minting(shard: Operand<i32>, sequence: Operand<&str>) -> Minting {
    let sequence = match sequence {
        Operand::Constant(name) => Operand::Constant(name.as_bytes().to_vec()),
        Operand::Argument(number) => Operand::Argument(number),
    };
    Minting { shard, sequence, native: false }
}

fn five() -> Minting {
    minting(Operand::Constant(5), Operand::Constant("insta5.table_id_seq"))
}

/// The article's function with something else in it.
fn article(piece: &str, instead: &str) -> String {
    assert!(ARTICLE.contains(piece), "{piece}");
    ARTICLE.replace(piece, instead)
}

fn reason<T: std::fmt::Debug>(read: Result<T, Unreadable>) -> String {
    read.unwrap_err().to_string()
}

#[test]
fn the_published_functions_are_read() {
    assert_eq!(body(ARTICLE), Ok(five()));
    assert_eq!(body(OF_NOW), Ok(five()));
    assert_eq!(sql(&format!("SELECT {INLINE} AS id;")), Ok(five()));
    assert_eq!(sql(&format!("RETURN {INLINE}")), Ok(five()));
    assert_eq!(sql(&format!("BEGIN ATOMIC\n SELECT {INLINE};\nEND")), Ok(five()));
    assert_eq!(returning(&format!("BEGIN RETURN {INLINE}; END")), Ok(five()));
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
fn its_variants_are_read() {
    for (piece, instead) in [
        ("\nDECLARE", "<<minting>>\nDECLARE -- variables\r\n DECLARE /* of /* the */ function */"),
        ("int := 5", "CONSTANT integer NOT NULL DEFAULT 5"),
        ("int := 5", "smallint = '5'"),
        ("int := 5;", "insta5.number := 5; other text := 'a''b'; unused record;"),
        ("shard_id int := 5", "\"Shard id\" insta5.t.shard%TYPE := 2 + 3; shard_id ALIAS FOR \"Shard id\""),
        ("our_epoch bigint := 1314220021721", "e numeric(20, 0) := 1.314220021721e12; our_epoch int8 := e"),
        (
            "our_epoch bigint := 1314220021721",
            "e double precision := bigint '1314220021721'; our_epoch int8 := e",
        ),
        ("1314220021721;", "CAST('1314220021721' AS pg_catalog.int8);"),
        (
            "SELECT nextval('insta5.table_id_seq') % 1024 INTO seq_id",
            "seq_id := nextval('insta5.table_id_seq') % 1024",
        ),
        ("'insta5.table_id_seq'", "'insta5.table_id_seq'::regclass"),
        ("'insta5.table_id_seq'", "('insta5.table_id_seq'::text)::pg_catalog.regclass"),
        ("'insta5.table_id_seq'", "regclass 'insta5.table_id_seq'"),
        ("nextval('insta5.table_id_seq') % 1024", "pg_catalog.mod(NEXTVAL('insta5.table_id_seq'), 1 << 10)"),
        ("nextval('insta5.table_id_seq') % 1024", "(SELECT nextval('insta5.table_id_seq') AS n) & 1023"),
        ("nextval('insta5.table_id_seq') % 1024", "1023 & nextval('insta5.table_id_seq')"),
        ("INTO seq_id", "AS n INTO STRICT seq_id"),
        ("clock_timestamp()", "now()"),
        ("clock_timestamp()", "pg_catalog.transaction_timestamp()"),
        ("clock_timestamp()", "statement_timestamp()"),
        ("clock_timestamp()", "CURRENT_TIMESTAMP"),
        ("clock_timestamp()", "clock_timestamp() AT TIME ZONE 'UTC'"),
        ("EXTRACT(EPOCH FROM clock_timestamp())", "date_part('epoch', now())"),
        ("EXTRACT(EPOCH FROM clock_timestamp())", "extract('epoch' from current_timestamp)"),
        ("* 1000", "* 1000.0"),
        (
            "EXTRACT(EPOCH FROM clock_timestamp()) * 1000",
            "1000 * EXTRACT(EPOCH FROM clock_timestamp())::numeric",
        ),
        ("FLOOR(", "trunc("),
        ("FLOOR(", "pg_catalog.round("),
        ("FLOOR(EXTRACT", "(EXTRACT"),
        ("(now_millis - our_epoch)", "(-our_epoch + now_millis)"),
        ("(now_millis - our_epoch)", "-(our_epoch - now_millis)"),
        ("(now_millis - our_epoch) << 23", "now_millis - our_epoch << 64 - 41"),
        ("(now_millis - our_epoch) << 23", "(now_millis - our_epoch) * 8388608"),
        ("shard_id << 10", "shard_id << 64 - 41 - 13"),
        ("shard_id << 10", "shard_id * 1024"),
        ("result | (shard_id << 10)", "next_id.result + (shard_id << 10)"),
        ("result | (shard_id << 10)", "(shard_id << 10) | result"),
        ("    result := result | (seq_id);", "NULL; result = result + seq_id::insta5.x; RETURN;"),
        ("END;", "END next_id"),
        (
            "nextval('insta5.table_id_seq') % 1024 INTO seq_id",
            "INTO STRICT seq_id nextval('insta5.table_id_seq') % 1024",
        ),
        ("result := result | (seq_id)", "\"result\" := result | \"seq_id\"::bigint"),
    ] {
        let text = article(piece, instead);
        assert_eq!(body(&text), Ok(five()), "{text}");
    }
    let labelled = article("shard_id <<", "minting.shard_id <<");
    assert_eq!(body(&format!("<<minting>>{labelled}")), Ok(five()));
    let kept = article("int := 5", "int := 5; at CONSTANT timestamptz NOT NULL := clock_timestamp()");
    assert_eq!(body(&kept.replace("FROM clock_timestamp()", "FROM at")), Ok(five()));
    let upper = ARTICLE.to_ascii_uppercase().replace("INSTA5.TABLE_ID_SEQ", "insta5.table_id_seq");
    assert_eq!(body(&upper), Ok(five()));
    assert_eq!(
        body(
            "DECLARE s bigint; t numeric;
             BEGIN
                 SELECT nextval('insta5.table_id_seq'), extract(epoch from now()) INTO s, t;
                 t := t - 1314220021.721;
                 result := ((t * 1000)::bigint << 23) + 5120 + s % 1024;
             END"
        ),
        Ok(five())
    );
    // A result of one's own.
    let own = article("shard_id int", "result bigint; shard_id int").replace("END;", "RETURN result; END;");
    assert_eq!(returning(&own), Ok(five()));
    // As the server prints it.
    assert_eq!(
        sql("RETURN (((((floor((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric)))::bigint - \
             '1314220021721'::bigint) << 23) | ((5 << 10))::bigint) | (nextval('insta5.table_id_seq'::regclass) \
             % (1024)::bigint))"),
        Ok(five())
    );
}

#[test]
fn arguments_are_read() {
    let sequence = || Operand::Constant("insta5.table_id_seq");
    for shard in ["shard", "\"shard\"", "$1", "$1::int", "next_id.shard", "+shard"] {
        let read = minting(Operand::Argument(1), sequence());
        assert_eq!(body(&article(":= 5", &format!(":= {shard}"))), Ok(read.clone()), "{shard}");
        assert_eq!(expression(&INLINE.replace("5 <<", &format!("{shard} <<"))), Ok(read), "{shard}");
    }
    for name in ["seq_name", "seq_name::regclass", "$3", "CAST(Seq_Name AS text)"] {
        let read = minting(Operand::Constant(5), Operand::Argument(3));
        assert_eq!(body(&article("'insta5.table_id_seq'", name)), Ok(read.clone()), "{name}");
        assert_eq!(expression(&INLINE.replace("'insta5.table_id_seq'", name)), Ok(read), "{name}");
    }
    // What is declared hides them, but not in its own default.
    let hidden = article("shard_id int := 5", "shard int := shard").replace("shard_id", "shard");
    assert_eq!(body(&hidden), Ok(minting(Operand::Argument(1), sequence())));
    let assigned = article("BEGIN", "BEGIN shard := 5;").replace("shard_id <<", "shard <<");
    assert_eq!(body(&assigned), Ok(five()));
    assert_eq!(
        reason(body(&article("our_epoch bigint", "result bigint; our_epoch bigint"))),
        "It does not assign its result."
    );
}

#[test]
fn native_functions_are_read() {
    let native = |shard, sequence| Ok(Minting { native: true, ..minting(shard, sequence) });
    let name = || Operand::Constant("insta5.table_id_seq");
    for (text, expected) in [
        ("public.next_id(5, 'insta5.table_id_seq'::regclass)", native(Operand::Constant(5), name())),
        ("next_id(shard, $3)", native(Operand::Argument(1), Operand::Argument(3))),
        (
            "next_id(5, 'insta5.table_id_seq', 'instagram'::public.id_layout)",
            native(Operand::Constant(5), name()),
        ),
        ("(x.next_id(5, seq_name))::bigint", native(Operand::Constant(5), Operand::Argument(3))),
    ] {
        assert_eq!(sql(&format!("RETURN {text}")), expected, "{text}");
        assert_eq!(returning(&format!("BEGIN RETURN {text}; END")), expected, "{text}");
    }
    let twitter = Layout::PRESETS[1].1;
    assert_eq!(sql("RETURN next_id(5, 's', 'twitter')"), Err(Unreadable::Layout(twitter)));
    assert_eq!(
        of("RETURN next_id(5, 's')", Language::Sql, None, twitter),
        Err(Unreadable::Layout(Layout::INSTAGRAM))
    );
    for (text, expected) in [
        ("next_id(8192, 's')", "Its shard is 8192, and shards are numbered from 0 to 8191."),
        ("next_id(5, 's') + 0", "It computes what is no part of an id: \"next_id(5, 's') + 0\"."),
        ("next_id(5, 'a' || 'b')", "It computes what is no part of an id: \"'a' || 'b'\"."),
        ("next_id(5, 's', 'none')", "It computes what is no part of an id: \"next_id(5, 's', 'none')\"."),
        ("next_id(shard + 1, 's')", "It computes what is no part of an id: \"next_id(shard + 1, 's')\"."),
        ("next_id(5)", "It calls a function that no id is made with: \"next_id\"."),
        ("a.nextval('s')", "It calls a function that no id is made with: \"a.nextval\"."),
    ] {
        assert_eq!(reason(expression(text)), expected);
    }
}

/// A piece of the article's function, what stands in its place, and why that is refused.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "    result := (now",
        "    INSERT INTO log\n VALUES (1);\n result := (now",
        "It does more than mint: \"INSERT INTO log\".",
    ),
    ("BEGIN", "BEGIN PERFORM nextval('s');", "It does more than mint: \"PERFORM nextval('s')\"."),
    ("BEGIN", "BEGIN RAISE NOTICE 'x';", "It does more than mint: \"RAISE NOTICE 'x'\"."),
    ("BEGIN", "BEGIN IF true THEN NULL; END IF;", "It does more than mint: \"IF true THEN NULL\"."),
    ("BEGIN", "BEGIN LOOP EXIT; END LOOP;", "It does more than mint: \"LOOP EXIT\"."),
    ("BEGIN", "BEGIN EXECUTE 'x';", "It does more than mint: \"EXECUTE 'x'\"."),
    (
        "BEGIN",
        "BEGIN SELECT 1 INTO seq_id FROM t;",
        "It does more than mint: \"SELECT 1 INTO seq_id FROM t\".",
    ),
    (
        "END;",
        "EXCEPTION WHEN others THEN NULL; END;",
        "It does more than mint: \"EXCEPTION WHEN others THEN NULL\".",
    ),
    ("END;", "RETURN; NULL; END;", "It does more than mint: \"NULL\"."),
    ("END;", "END; SELECT 1", "It does more than mint: \"SELECT 1\"."),
    ("END;", "", "It ends before it is complete."),
    ("END;", "RETURN 5; END;", "It is not understood from here on: \"5; END;\"."),
    ("BEGIN", "BEGIN seq_id := nextval('s');", "It calls nextval twice."),
    ("nextval('insta5.table_id_seq')", "5", "It does not call nextval."),
    (
        "nextval('insta5.table_id_seq')",
        "random()",
        "It calls a function that no id is made with: \"random\".",
    ),
    (
        "nextval('insta5.table_id_seq')",
        "evil.nextval('s')",
        "It calls a function that no id is made with: \"evil.nextval\".",
    ),
    (
        "nextval('insta5.table_id_seq')",
        "nextval('insta' || shard)",
        "It computes what is no part of an id: \"'insta' || shard\".",
    ),
    (
        "nextval('insta5.table_id_seq')",
        "nextval(format('%s', 1))",
        "It calls a function that no id is made with: \"format\".",
    ),
    (
        "nextval('insta5.table_id_seq')",
        "nextval(5)",
        "It computes the name of the sequence, or the shard: \"nextval(5)\".",
    ),
    (
        "'insta5.table_id_seq'",
        "E'insta5.table_id_seq'",
        "It is not understood from here on: \"E'insta5.table_id_seq') % 1024 INTO seq_id;\".",
    ),
    (
        "'insta5.table_id_seq'",
        "'a\\b'",
        "It is not understood from here on: \"'a\\b') % 1024 INTO seq_id;\".",
    ),
    ("'insta5.table_id_seq'", "$$a$$", "It is not understood from here on: \"$$a$$) % 1024 INTO seq_id;\"."),
    (
        "'insta5.table_id_seq'",
        "'insta5' \n'.s'",
        "It is not understood from here on: \"'.s') % 1024 INTO seq_id;\".",
    ),
    (
        " % 1024",
        " %% 1024",
        "It computes what is no part of an id: \"nextval('insta5.table_id_seq') %% 1024\".",
    ),
    (" % 1024", " % 1000", "It takes nextval modulo 1000, which is no power of two."),
    (" % 1024", "", "It takes the whole value of nextval, and no remainder of it."),
    (
        " % 1024",
        " & 1022",
        "It computes what is no part of an id: \"nextval('insta5.table_id_seq') & 1022\".",
    ),
    (" % 1024", " + 1", "It takes the whole value of nextval, and no remainder of it."),
    (" % 1024", " % 4096", "It joins what can have bits in common: \"result | (seq_id)\"."),
    (" := 5", " := 8192", "It joins what can have bits in common: \"result | (shard_id << 10)\"."),
    (" := 5", " := 9000", "It joins what can have bits in common: \"result | (shard_id << 10)\"."),
    (" := 5", " := -5", "It joins what can have bits in common: \"result | (shard_id << 10)\"."),
    ("int := 5", "smallint := 32", "It computes what is no part of an id: \"shard_id << 10\"."),
    ("int := 5", "smallint := $1", "It computes with the shard in a type that is too small for shard 8191."),
    (" := 5", "", "It reads a variable that is NULL: \"shard_id\"."),
    (
        "(shard_id << 10)",
        "(shard << 12)",
        "It multiplies the shard by 4096, where its other fields ask for 1024.",
    ),
    ("(shard_id << 10)", "((shard % 8192) << 10)", "It computes what is no part of an id: \"shard % 8192\"."),
    ("(shard_id << 10)", "(shard_id << 9)", "It joins what can have bits in common: \"result | (seq_id)\"."),
    (
        "(shard_id << 10)",
        "shard_id << 10",
        "It mints in layout \"time:31 shard:23 seq:10 epoch:1314220021721\".",
    ),
    (
        "result | (seq_id)",
        "result | (seq_id) | 1",
        "It joins what can have bits in common: \"result | (seq_id) | 1\".",
    ),
    ("result | (seq_id)", "result # seq_id", "It computes what is no part of an id: \"result # seq_id\"."),
    ("result | (seq_id)", "seq_id", "Its result has no time."),
    ("result | (seq_id)", "result", "Its result has nothing of the sequence."),
    (
        "result | (seq_id)",
        "'a'",
        "It assigns to what is no variable, or no variable for that: \"result := 'a'\".",
    ),
    (
        "result := result | (seq_id)",
        "seq := 1",
        "It assigns to what is no variable, or no variable for that: \"seq := 1\".",
    ),
    ("result := result | (seq_id)", "result := NULL", "It does not assign its result."),
    (
        "now_millis - our_epoch",
        "now_millis - epoch",
        "It reads what is neither a variable nor an argument: \"epoch\".",
    ),
    ("now_millis - our_epoch", "now_millis + our_epoch", "Its epoch is no whole millisecond from 1970 on."),
    ("* 1000)", ") * 1000", "It computes what is no part of an id: \"(now_millis - our_epoch) << 23\"."),
    (
        "now_millis bigint",
        "now_millis int",
        "It assigns to what is no variable, or no variable for that: \"SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) I...\".",
    ),
    (
        "now_millis bigint",
        "now_millis numeric",
        "It computes what is no part of an id: \"(now_millis - our_epoch) << 23\".",
    ),
    (
        "EPOCH FROM",
        "milliseconds FROM",
        "It computes what is no part of an id: \"EXTRACT(milliseconds FROM clock_timestamp())\".",
    ),
    (
        "FROM clock_timestamp()",
        "FROM clock_timestamp() AT TIME ZONE 'CET'",
        "It computes what is no part of an id: \"clock_timestamp() AT TIME ZONE 'CET'\".",
    ),
    ("FLOOR(", "ceil(", "It calls a function that no id is made with: \"ceil\"."),
    (
        "INTO now_millis",
        "INTO now_millis, seq_id",
        "It assigns to what is no variable, or no variable for that: \"SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) I...\".",
    ),
];

/// What is no id of Instagram's: `t` is the time, `e` the epoch, `@` the sequence's value; and why.
const NO_ID: &[(&str, &str)] = &[
    ("t - e << 23 | 5 << 10 | @", "It takes the whole value of nextval, and no remainder of it."),
    (
        "((t - e) << 23) + (8191 << 10) + @ % 4096",
        "It adds 8387584, which is no shard where its other fields leave room for it.",
    ),
    (
        "((t - e) << 23) + (9000 << 10) + @ % 1024",
        "Its shard is 9000, and shards are numbered from 0 to 8191.",
    ),
    ("((t - e) << 23) - 1024 + @ % 1024", "Its shard is -1, and shards are numbered from 0 to 8191."),
    (
        "((t - e) << 23) + 5000 + @ % 1024",
        "It adds 5000, which is no shard where its other fields leave room for it.",
    ),
    ("((t - e) * 1000) | @ % 4", "It multiplies the time by 1000, and no shift by a number of bits does."),
    (
        "(t - e << 23) + (@ % 1024 << 12)",
        "It shifts the time by 23 bits and the sequence by 12, and takes nextval modulo 1024, as no layout does.",
    ),
    ("(t - e << 23) + (@ % 1024 << 12) + (@ % 2)", "It calls nextval twice."),
    ("(t - e << 10) + (shard << 10) + (@ % 1024)", "Its other fields leave no room for the shard."),
    (
        "((t - e) / 2000 << 10) + (@ % 1024)",
        "It counts its time in a unit that is not 1 to 1000 whole milliseconds.",
    ),
    (
        "((t - e) * 2 << 23) + (@ % 1024)",
        "It mints in layout \"time:40 shard:14 seq:10 epoch:1314220021721\".",
    ),
    (
        "((t - e - 1314220021721) << 23) + (@ % 1024)",
        "It mints in layout \"time:41 shard:13 seq:10 epoch:2628440043442\".",
    ),
];

#[test]
fn what_is_something_else_is_refused() {
    for &(piece, instead, expected) in REFUSED {
        let text = article(piece, instead);
        let why = reason(body(&text));
        assert_eq!(why, expected, "{text}");
    }
    for &(text, expected) in NO_ID {
        let text = text
            .replace("t ", "floor(extract(epoch from now()) * 1000)::bigint ")
            .replace("- e", "- 1314220021721")
            .replace('@', "nextval('s')");
        assert_eq!(reason(expression(&text)), expected, "{text}");
    }
    assert_eq!(reason(body("BEGIN END")), "It does not assign its result.");
    assert_eq!(reason(returning("BEGIN END")), "It does not assign its result.");
    assert_eq!(reason(returning("BEGIN RETURN; END")), "It does not assign its result.");
    assert_eq!(reason(expression("now()")), "Its result is no number.");
    assert_eq!(reason(sql("")), "It ends before it is complete.");
    assert_eq!(
        reason(sql("INSERT INTO t VALUES (1)")),
        "It does more than mint: \"INSERT INTO t VALUES (1)\"."
    );
    let then = format!("SELECT {INLINE}; DELETE FROM t;");
    assert_eq!(reason(sql(&then)), "It does more than mint: \"DELETE FROM t\".");
}

#[test]
fn other_layouts_are_named() {
    let twitter = Layout::PRESETS[1].1;
    for (function, wanted) in [
        (ARTICLE.to_owned(), twitter),
        (article("1314220021721", "1387263000000"), Layout::INSTAGRAM),
        (
            article("<< 10", "<< 12").replace("1024", "4096").replace("int :=", "int := 4 +"),
            Layout::INSTAGRAM,
        ),
        (article("our_epoch) <<", "our_epoch) / 10 <<"), Layout::INSTAGRAM),
        (article("now_millis - our_epoch", "now_millis / 5"), Layout::INSTAGRAM),
        (article("(seq_id)", "(seq_id << 13)").replace("shard_id << 10", "shard_id"), Layout::INSTAGRAM),
    ] {
        let Err(Unreadable::Layout(fits)) = of(&function, Language::PlPgSql, Some("result"), wanted) else {
            unreachable!("{function}")
        };
        assert_ne!(fits, wanted);
        let minting = of(&function, Language::PlPgSql, Some("result"), fits).unwrap();
        assert_eq!(minting.sequence, five().sequence);
        assert_eq!(Unreadable::Layout(fits).to_string(), format!("It mints in layout \"{fits}\"."));
    }
    // The width of the time makes no difference.
    let narrow = Layout::new(Fields { time_bits: 30, ..Layout::INSTAGRAM.fields() }).unwrap();
    assert_eq!(of(ARTICLE, Language::PlPgSql, Some("result"), narrow), Ok(five()));
    // Without a sequence field, nothing can be computed.
    let bare = Layout::new(Fields { seq_bits: 0, ..Layout::INSTAGRAM.fields() }).unwrap();
    assert_eq!(of(ARTICLE, Language::PlPgSql, Some("result"), bare), Err(Unreadable::NoSeqField));
    let native = format!("RETURN next_id(5, 's', '{bare}')");
    assert_eq!(of(&native, Language::Sql, None, bare).map(|minting| minting.native), Ok(true));
}

/// In a thread whose stack is small.
#[test]
fn no_text_exhausts_the_stack() {
    let texts = ["(", "- ", "+-", "((SELECT ", "floor(", "CAST(", "extract(epoch from ", "/*", "x."];
    let read = move || {
        for text in texts {
            for times in [60, 64, 65, 20_000, 1 << 20] {
                let nested = text.repeat(times);
                assert!(expression(&nested).is_err());
                assert!(body(&format!("DECLARE x int := {nested}")).is_err());
            }
        }
        let nested = format!("SELECT {}{INLINE}{}", "(".repeat(60), ")".repeat(60));
        assert_eq!(sql(&nested), Ok(five()));
        let nested = format!("SELECT {}{INLINE}{}", "(".repeat(70), ")".repeat(70));
        assert_eq!(sql(&nested), Err(Unreadable::TooDeep));
        assert!(matches!(expression(&"(".repeat(1 << 20)), Err(Unreadable::TooLong(1_048_583))));
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(read).unwrap().join().unwrap();
}

/// The pieces of a text between which there can be blanks and comments.
fn spaced(pieces: &[String], blanks: &[String]) -> String {
    let blanks = blanks.iter().cycle();
    pieces.iter().zip(blanks).flat_map(|(piece, blank)| [&piece[..], &blank[..]]).collect()
}

fn blank() -> impl Strategy<Value = String> {
    prop_oneof!["[ \t\r\n]{1,3}", Just("/* ' /* \" */ ; */".to_owned()), Just(" -- ' */ ;\n".to_owned())]
}

/// A number in some way to write it.
fn written(number: i64) -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just(number.to_string()),
        1 => Just(format!("({number})::bigint")),
        1 => Just(format!("'{number}'::pg_catalog.int8")),
        1 => (0..=number.min(1000)).prop_map(move |part| format!("({}::bigint + {part})", number - part)),
        1 => (1..1000_i64).prop_map(move |factor| format!("({number}::bigint * {factor} / {factor})")),
    ]
}

/// A shift, or the multiplication that it is.
fn shifted(of: String, bits: u32) -> impl Strategy<Value = String> {
    let factor = 1_u64 << bits;
    prop_oneof![
        3 => Just(format!("({of} << {bits})")),
        1 => Just(format!("({of} * {factor})")),
        1 => (0..=bits).prop_map(move |first| format!("({of} << {first} << {bits} - {first})")),
    ]
}

fn clock() -> impl Strategy<Value = String> {
    let now = prop::sample::select(vec![
        "clock_timestamp ( )",
        "now()",
        "pg_catalog.transaction_timestamp()",
        "statement_timestamp()",
        "current_timestamp",
    ]);
    let rounding = prop::sample::select(vec!["floor", "trunc", "pg_catalog.round", ""]);
    (now, rounding, any::<[bool; 2]>()).prop_map(|(now, rounding, [part, first])| {
        let seconds =
            if part { format!("date_part('epoch', {now})") } else { format!("extract(epoch from {now})") };
        let product = if first { format!("1000 * {seconds}") } else { format!("{seconds} * 1000.0") };
        format!("{rounding}({product})::bigint")
    })
}

fn with_seq() -> impl Strategy<Value = Layout> {
    layout().prop_filter("it has a sequence field", |layout| layout.fields().seq_bits > 0)
}

/// A layout, and an expression of an id in it with the fields in any order.
fn generated() -> impl Strategy<Value = (Layout, i32, Vec<String>)> {
    (with_seq(), any::<u32>(), clock(), any::<bool>(), any::<[bool; 2]>()).prop_flat_map(
        |(layout, shard, clock, masked, plus)| {
            let Fields { epoch, unit_ms, shard_bits, seq_bits, seq_above_shard, .. } = layout.fields();
            let shard = i32::try_from(shard % (layout.last_shard() + 1)).unwrap();
            let seq_shift = if seq_above_shard { shard_bits } else { 0 };
            let shard_shift = if seq_above_shard { 0 } else { seq_bits };
            let since = written(epoch.get()).prop_map(move |epoch| match unit_ms {
                1 => format!("({clock} - {epoch})"),
                unit => format!("(({clock} - {epoch}) / {unit})"),
            });
            let time = since.prop_flat_map(move |since| shifted(since, shard_bits + seq_bits));
            let shard_field = written(shard.into())
                .prop_flat_map(move |shard| shifted(format!("{shard}::bigint"), shard_shift));
            let seq = written(layout.residues().into()).prop_map(move |residues| {
                let next = "nextval('insta5.table_id_seq')";
                if masked { format!("({next} & {residues} - 1)") } else { format!("({next} % {residues})") }
            });
            let seq = seq.prop_flat_map(move |seq| shifted(seq, seq_shift));
            (time, shard_field, seq).prop_flat_map(move |(time, shard_field, seq)| {
                let fields = if shard_bits == 0 { vec![time, seq] } else { vec![time, shard_field, seq] };
                Just(fields).prop_shuffle().prop_map(move |fields| (layout, shard, joined(&fields, plus)))
            })
        },
    )
}

/// The fields in one expression.
fn joined(fields: &[String], plus: [bool; 2]) -> Vec<String> {
    let mut pieces = vec!["SELECT".to_owned()];
    for (field, plus) in fields.iter().zip([true].into_iter().chain(plus)) {
        if pieces.len() > 1 {
            // Below arithmetic, and from left to right.
            pieces.insert(1, "(".into());
            pieces.push(")".into());
            pieces.push(if plus { "+" } else { "|" }.into());
        }
        pieces.push(field.clone());
    }
    pieces
}

fn cased(text: &str, capitals: u64) -> String {
    // What stands in quotes is as it is.
    let mut quoted = false;
    let case = |(place, c): (usize, char)| {
        quoted ^= c == '\'';
        if quoted || capitals >> (place % 64) & 1 == 0 { c } else { c.to_ascii_uppercase() }
    };
    text.chars().enumerate().map(case).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { max_local_rejects: 1 << 20, max_global_rejects: 1 << 20, ..ProptestConfig::with_cases(50_000) })]

    #[test]
    fn what_is_written_is_read(layout in with_seq(), shard: u32, name in "[a-z'. \u{e9}]{1,20}") {
        let shard = i32::try_from(shard % (layout.last_shard() + 1)).unwrap();
        let quoted = format!("'{}'", name.replace('\'', "''"));
        let read_back = |shard: &str, sequence: &str| {
            let written = String::from_utf8(write(layout, shard.as_bytes(), sequence.as_bytes())).unwrap();
            of(&written, Language::PlPgSql, Some("result"), layout)
        };
        let expected = minting(Operand::Constant(shard), Operand::Constant(&name));
        prop_assert_eq!(read_back(&shard.to_string(), &quoted), Ok(expected));
        if layout.fields().shard_bits > 0 {
            let expected = minting(Operand::Argument(1), Operand::Argument(3));
            prop_assert_eq!(read_back("shard", "seq_name"), Ok(expected.clone()));
            prop_assert_eq!(read_back("$1", "$3"), Ok(expected));
        }
    }

    #[test]
    fn what_is_generated_is_read(
        (layout, shard, pieces) in generated(),
        blanks in prop::collection::vec(blank(), 1..9),
        capitals: u64,
    ) {
        let text = cased(&pieces.join(" "), capitals);
        let expected = minting(Operand::Constant(shard), Operand::Constant("insta5.table_id_seq"));
        prop_assert_eq!(of(&text, Language::Sql, None, layout), Ok(expected.clone()), "{}", text);
        let text = spaced(&pieces, &blanks);
        prop_assert_eq!(of(&text, Language::Sql, None, layout), Ok(expected), "{}", text);
    }

    /// Whatever is asked for, what the text says is what is read, or the layout that would fit.
    #[test]
    fn of_another_layout_nothing_is_read((layout, shard, pieces) in generated(), other in with_seq()) {
        let any_time = |layout: Layout| Fields { time_bits: 1, ..layout.fields() };
        prop_assume!(any_time(layout) != any_time(other));
        let refused = of(&pieces.join(" "), Language::Sql, None, other);
        let Err(Unreadable::Layout(fits)) = refused else { return Err(TestCaseError::fail(format!("{refused:?}"))) };
        prop_assert_eq!(any_time(fits), any_time(layout));
        prop_assert!((0..=i32::try_from(layout.last_shard()).unwrap()).contains(&shard));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), plpgsql: bool) {
        let language = if plpgsql { Language::PlPgSql } else { Language::Sql };
        let function = Function { language, source: &bytes, arguments: &[], result: None };
        prop_assert!(read(&function, Layout::INSTAGRAM).is_err());
    }

    /// A text in which pieces are left out, doubled or exchanged is refused with a sentence, or still minting.
    #[test]
    fn any_mutation_is_read_or_refused(
        inline: bool,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..5_u8, any::<u8>()), 1..4),
    ) {
        let original = if inline { format!("SELECT {INLINE}") } else { ARTICLE.to_owned() };
        let mut text = original.into_bytes();
        for (from, to, change, byte) in changes {
            let (from, to) = (from.index(text.len()), to.index(text.len()));
            let (from, to) = (from.min(to), from.max(to));
            match change {
                0 => text.swap(from, to),
                1 => text[from] = byte,
                2 => text[from] = b"0123456789()<>|+-*/%;:=,.'\"$&"[usize::from(byte) % 29],
                3 => drop(text.drain(from..to.min(from + 9))),
                _ => {
                    let doubled = text[from..to.min(from + 30)].to_vec();
                    text.splice(from..from, doubled);
                }
            }
            if text.is_empty() {
                break;
            }
        }
        let language = if inline { Language::Sql } else { Language::PlPgSql };
        let result = (!inline).then_some(&b"result"[..]);
        match read(&Function { language, source: &text, arguments: &[], result }, Layout::INSTAGRAM) {
            Ok(minting) => prop_assert!(matches!(minting.shard, Operand::Constant(0..=8191)) && !minting.native),
            Err(reason) => {
                let reason = reason.to_string();
                prop_assert!(reason.ends_with('.') && reason.len() < 400, "{}", reason);
            }
        }
    }
}

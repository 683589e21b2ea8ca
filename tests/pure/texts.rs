//! Texts that are refused, and why.

use insta_ids::id::{Id, Layout, Millis, instant, shortcode};

const NOW: Millis = Millis::new(1_800_000_000_000);

fn refused(text: &str) -> String {
    Layout::parse(text.as_bytes(), NOW).expect_err(text).to_string()
}

#[test]
fn layouts() {
    for (text, why) in [
        ("", "\"time\" is missing."),
        ("Instagram", "\"Instagram\" is neither a field nor the name of a layout."),
        ("twitter epoch:0", "\"twitter\" is neither a field nor the name of a layout."),
        ("time:41 shard:13 seq:10", "\"epoch\" is missing."),
        (
            "shard:13 seq:10 epoch:0",
            "\"time\" is the most significant field, so it comes before \"shard\" and \"seq\".",
        ),
        (
            "seq:10 time:41 epoch:0",
            "\"time\" is the most significant field, so it comes before \"shard\" and \"seq\".",
        ),
        ("epoch:0", "\"time\" is missing."),
        ("time:41 shard:13 seq:12 epoch:0", "The fields have 66 bits together, and an id has 64."),
        ("time:65 epoch:0", "The time has 65 bits; it can have 1 to 64."),
        (
            "time:10 shard:32 epoch:0",
            "A field has 32 bits; \"shard\" and \"seq\" can have 1 to 31, or be absent.",
        ),
        (
            "time:10 seq:99999999999999 epoch:0",
            "A field has 4294967295 bits; \"shard\" and \"seq\" can have 1 to 31, or be absent.",
        ),
        ("time:41 seq:5 time:41 epoch:0", "\"time\" is there twice."),
        ("time:41 seq:5 seq:6 epoch:0", "\"seq\" is there twice."),
        ("time:41 epoch:0 epoch:0", "\"epoch\" is there twice."),
        ("time:0 epoch:0", "\"time\" needs a number of bits, 1 or more."),
        ("time:41 shard:0 epoch:0", "\"shard\" needs a number of bits, 1 or more."),
        ("time:-1 epoch:0", "\"time\" needs a number of bits, 1 or more."),
        ("time:+41 epoch:0", "\"time\" needs a number of bits, 1 or more."),
        ("time:41 epoch:0 unit:0ms", "The unit is 0 ms; it can be 1 to 1000 ms."),
        ("time:41 epoch:0 unit:2s", "The unit is 2000 ms; it can be 1 to 1000 ms."),
        ("time:41 epoch:0 unit:10", "\"unit\" needs milliseconds or seconds, like 10ms or 1s."),
        (
            "time:41 epoch:-1",
            "\"epoch\" needs Unix milliseconds, or an instant like 2011-08-24T21:07:01.721Z.",
        ),
        (
            "time:41 epoch:2011-02-29",
            "\"epoch\" needs Unix milliseconds, or an instant like 2011-08-24T21:07:01.721Z.",
        ),
        ("time:41 epoch:281474976710656", "The epoch is before 1970 or after the year 10888."),
        ("time:41 epoch:1969-12-31", "The epoch is before 1970 or after the year 10888."),
        ("time:41 epoch:2027-01-15T08:00:00.001Z", "The epoch 2027-01-15T08:00:00.001Z is in the future."),
    ] {
        assert_eq!(refused(text), why, "{text}");
    }
    let long = "time:41 ".to_owned() + &"shard".repeat(2000);
    assert_eq!(refused(&long).len(), "\"\" is neither a field nor the name of a layout.".len() + 63);
}

#[test]
fn layouts_that_are_one() {
    let parse = |text: &str| Layout::parse(text.as_bytes(), NOW).unwrap();
    for (name, layout) in Layout::PRESETS {
        assert_eq!((parse(name), parse(&layout.to_string())), (layout, layout));
    }
    assert_eq!(parse("time:41 shard:13 seq:10 epoch:2011-08-24T21:07:01.721Z"), Layout::INSTAGRAM);
    assert_eq!(parse("epoch:1314220021721 unit:1ms time:41 shard:13 seq:10"), Layout::INSTAGRAM);
    assert_eq!(parse("time:64 epoch:0").to_string(), "time:64 epoch:0");
    assert_eq!(
        parse("time:1 seq:31 shard:31 epoch:0 unit:1s").to_string(),
        "time:1 seq:31 shard:31 epoch:0 unit:1000ms"
    );
    assert_eq!(parse("time:41 epoch:2027-01-15T08:00Z").fields().epoch, NOW);
}

#[test]
fn instants() {
    for (text, ms) in [
        ("1970-01-01", Some(0)),
        ("1970-01-01T00:01Z", Some(60_000)),
        ("1970-01-01T00:00:01Z", Some(1000)),
        ("1970-01-01T00:00:00.1Z", Some(100)),
        ("1969-12-31T23:59:59.999Z", Some(-1)),
        ("2000-02-29", Some(951_782_400_000)),
        ("1900-02-29", None),
        ("2001-13-01", None),
        ("2001-00-01", None),
        ("2001-01-32", None),
        ("2001-01-00", None),
        ("2001-1-1", None),
        ("2001-01-01T24:00Z", None),
        ("2001-01-01T00:60Z", None),
        ("2001-01-01T00:00:60Z", None),
        ("2001-01-01T00:00", None),
        ("2001-01-01T00Z", None),
        ("2001-01-01T00:00.5Z", None),
        ("2001-01-01T00:00:00.1234Z", None),
        ("2001-01-01T00:00:00.Z", None),
        ("2001-01-01T00:00:00+01:00", None),
        ("", None),
    ] {
        assert_eq!(instant::parse(text), ms.map(Millis::new), "{text}");
    }
    assert_eq!(instant::format(Millis::new(-62_198_755_200_000)), "-001-01-01T00:00:00.000Z");
    assert_eq!(instant::format(Millis::LAST), "10889-08-02T05:31:50.655Z");
}

#[test]
fn short_codes() {
    for (code, why) in [
        ("", "It has 0 characters; short codes have 1 to 11, or 28 more for private posts."),
        ("BBBBBBBBBBBB", "It has 12 characters; short codes have 1 to 11, or 28 more for private posts."),
        (&"B".repeat(28), "It has 28 characters; short codes have 1 to 11, or 28 more for private posts."),
        (&"B".repeat(40), "It has 40 characters; short codes have 1 to 11, or 28 more for private posts."),
        ("BQ0eAlwhDr+", "Character 11 is not among A-Z, a-z, 0-9, - and _."),
        (" BQ0eAlwhDrw", "Character 1 is not among A-Z, a-z, 0-9, - and _."),
        ("Bé", "Character 2 is not among A-Z, a-z, 0-9, - and _."),
        ("QAAAAAAAAAA", "It has more than 64 bits."),
        ("___________", "It has more than 64 bits."),
    ] {
        assert_eq!(shortcode::decode(code.as_bytes()).expect_err(code).to_string(), why);
    }
    for (code, id) in [
        ("A", 0),
        ("AAAAAAAAAAA", 0),
        ("AB", 1),
        ("_", 63),
        ("BA", 64),
        ("H__________", i64::MAX),
        ("IAAAAAAAAAA", i64::MIN),
        ("P__________", -1),
    ] {
        assert_eq!(shortcode::decode(code.as_bytes()).unwrap().bits(), id);
    }
    assert_eq!(shortcode::encode(Id::from_bits(0)), "A");
}

//! Ids that others published, with the times, shards, sequence fields and short codes they are known to have.

use insta_ids::id::{Error, Id, Layout, Millis, Times, instant, shortcode};

/// Unix milliseconds of an instant like `2013-06-20T17:15:45.376Z`.
fn unix_ms(instant: &str) -> i64 {
    let number = |range: std::ops::Range<usize>| instant[range].parse::<i64>().unwrap();
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    // Days from 1970 in the proleptic Gregorian calendar, years counted from March.
    let year = if month <= 2 { year - 1 } else { year };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * ((month + 9) % 12) + 2) / 5 + day - 719_469;
    (((days * 24 + number(11..13)) * 60 + number(14..16)) * 60 + number(17..19)) * 1000 + number(20..23)
}

fn preset(name: &str) -> Layout {
    Layout::PRESETS.iter().find(|(preset, _)| *preset == name).unwrap().1
}

#[test]
fn published_ids() {
    let mut rows =
        csv::Reader::from_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/known-answers.csv"))
            .unwrap();
    let mut read = 0;
    for row in rows.records() {
        let row = row.unwrap();
        let (layout, id) = (preset(&row[0]), Id::from_bits(row[1].parse().unwrap()));
        let at = Millis::new(unix_ms(&row[3]));
        let (shard, seq) = (row[4].parse().unwrap(), row[5].parse().unwrap());
        assert_eq!((layout.time_of(id), layout.shard_of(id), layout.seq_of(id)), (at, shard, seq), "{row:?}");
        let (shard, seq) = (layout.shard(shard).unwrap(), layout.seq(seq.into()).unwrap());
        assert_eq!(layout.id(at, shard, seq), Ok(id), "{row:?}");
        assert_eq!((instant::format(at).as_str(), instant::parse(&row[3])), (&row[3], Some(at)));
        if !row[2].is_empty() {
            assert_eq!(shortcode::encode(id), &row[2]);
            assert_eq!(shortcode::decode(row[2].as_bytes()), Ok(id));
            assert_eq!(
                shortcode::decode(format!("{}{}", &row[2], "w".repeat(28)).as_bytes()),
                Ok(id),
                "a private post's"
            );
        }
        read += 1;
    }
    assert_eq!(read, 8);
}

/// The worked example of "Sharding & IDs at Instagram": 1387263000 ms after the epoch, user 31341 of 2000
/// logical shards, the sequence's value 5001.
#[test]
fn the_worked_example() {
    let layout = Layout::INSTAGRAM;
    let at = layout.times().first.plus(1_387_263_000);
    let id = layout.id(at, layout.shard(31341 % 2000).unwrap(), layout.seq(5001).unwrap()).unwrap();
    assert_eq!(id.bits(), (1_387_263_000_i64 << 23) | (1341 << 10) | (5001 % 1024));
    // "September 9th, 2011, at 5:00pm": only this epoch puts it there, give or take a time zone.
    assert_eq!(at, Millis::new(unix_ms("2011-09-09T22:28:04.721Z")));
}

#[test]
fn edges() {
    let layout = Layout::INSTAGRAM;
    let times @ Times { first: epoch, last } = layout.times();
    let (zero, top) = (layout.shard(0).unwrap(), layout.shard(8191).unwrap());
    let (low, high) = (layout.seq(0).unwrap(), layout.seq(1023).unwrap());
    assert_eq!(epoch, Millis::new(unix_ms("2011-08-24T21:07:01.721Z")));
    assert_eq!(last, Millis::new(unix_ms("2046-06-27T17:00:49.496Z")));
    assert_eq!(layout.id(epoch, zero, low), Ok(Id::from_bits(0)));
    assert_eq!(layout.id(last, top, high), Ok(Id::from_bits(i64::MAX)));
    for at in [epoch.plus(-1), last.plus(1)] {
        assert_eq!(layout.id(at, zero, low), Err(Error::TimeOutOfRange { at, times }));
    }
    assert_eq!(layout.shard(-1), Err(Error::ShardOutOfRange { shard: -1, last: 8191 }));
    assert_eq!(layout.shard(8192), Err(Error::ShardOutOfRange { shard: 8192, last: 8191 }));
    assert_eq!(layout.seq(1024), layout.seq(0));
    assert_eq!(layout.seq(i64::MAX), layout.seq(1023));
    assert_eq!(layout.seq(-1), Err(Error::NegativeSequence(-1)));
    assert_eq!(layout.time_of(Id::from_bits(-1)), epoch.plus(-1));
    assert_eq!(layout.time_of(Id::from_bits(i64::MIN)), Millis::new(unix_ms("1976-10-21T01:13:13.945Z")));
    // From before there were such ids: the day of the epoch.
    assert_eq!(layout.time_of(Id::from_bits(167_566_273)), epoch.plus(19));
}

/// The last instants of the layouts with a name: 2^40 or 2^41 milliseconds after the epoch, or as said.
#[test]
fn last_instants() {
    for (name, last) in [
        ("instagram", "2046-06-27T17:00:49.496Z"),
        ("twitter", "2080-07-10T17:30:30.208Z"),
        ("discord", "2084-09-06T15:47:35.551Z"),
        ("pgedge", "2092-09-06T15:47:35.551Z"),
        ("pgdog", "2095-08-03T11:00:50.551Z"),
        ("mastodon", "6429-10-17T02:45:55.327Z"),
        // 2^39 units of 10 ms, as its README says: 174 years.
        ("sonyflake", "2188-11-16T03:28:58.879Z"),
        ("js53", "2081-04-30T12:54:37.272Z"),
    ] {
        let layout = preset(name);
        assert_eq!(instant::format(layout.times().last), last, "{name}");
        assert!(layout.max(layout.times().last).unwrap().bits() > 0);
        assert!(layout.max(layout.times().last.plus(1)).is_err());
    }
    assert_eq!(preset("js53").max(preset("js53").times().last).unwrap().bits(), (1 << 53) - 1);
}

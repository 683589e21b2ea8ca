//! Ids that others published, with the times, shards and sequence fields they are known to have.

use insta_ids::id::{EPOCH, Error, Id, LAST, Millis, Seq, Shard};

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

#[test]
fn published_ids() {
    let mut rows =
        csv::Reader::from_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/known-answers.csv"))
            .unwrap();
    let mut read = 0;
    for row in rows.records() {
        let row = row.unwrap();
        if &row[0] != "instagram" {
            continue;
        }
        let id = Id::from_bits(row[1].parse().unwrap());
        let at = Millis::new(unix_ms(&row[3]));
        let shard = Shard::new(row[4].parse().unwrap()).unwrap();
        let seq = Seq::of(row[5].parse().unwrap()).unwrap();
        assert_eq!((id.at(), id.shard(), id.seq()), (at, shard, seq), "{row:?}");
        assert_eq!(Id::new(at, shard, seq), Ok(id), "{row:?}");
        read += 1;
    }
    assert_eq!(read, 5);
}

/// The worked example of "Sharding & IDs at Instagram": 1387263000 ms after the epoch, user 31341 of 2000
/// logical shards, the sequence's value 5001.
#[test]
fn the_worked_example() {
    let at = EPOCH.plus(1_387_263_000);
    let id = Id::new(at, Shard::new(31341 % 2000).unwrap(), Seq::of(5001).unwrap()).unwrap();
    assert_eq!(id.bits(), (1_387_263_000_i64 << 23) | (1341 << 10) | (5001 % 1024));
    // "September 9th, 2011, at 5:00pm": only this epoch puts it there, give or take a time zone.
    assert_eq!(at, Millis::new(unix_ms("2011-09-09T22:28:04.721Z")));
}

#[test]
fn edges() {
    let (zero, top) = (Shard::new(0).unwrap(), Shard::new(8191).unwrap());
    let (first, last) = (Seq::of(0).unwrap(), Seq::of(1023).unwrap());
    assert_eq!(EPOCH, Millis::new(unix_ms("2011-08-24T21:07:01.721Z")));
    assert_eq!(LAST, Millis::new(unix_ms("2046-06-27T17:00:49.496Z")));
    assert_eq!(Id::new(EPOCH, zero, first).map(Id::bits), Ok(0));
    assert_eq!(Id::new(LAST, top, last).map(Id::bits), Ok(i64::MAX));
    assert_eq!(Id::new(EPOCH.plus(-1), zero, first), Err(Error::BeforeEpoch(EPOCH.plus(-1))));
    assert_eq!(Id::new(LAST.plus(1), zero, first), Err(Error::PastLast(LAST.plus(1))));
    assert_eq!(Shard::new(-1), Err(Error::ShardOutOfRange(-1)));
    assert_eq!(Shard::new(8192), Err(Error::ShardOutOfRange(8192)));
    assert_eq!(Seq::of(1024), Seq::of(0));
    assert_eq!(Seq::of(i64::MAX), Seq::of(1023));
    assert_eq!(Seq::of(-1), Err(Error::NegativeSequence(-1)));
    assert_eq!(Id::from_bits(-1).at(), EPOCH.plus(-1));
    assert_eq!(Id::from_bits(i64::MIN).at(), Millis::new(unix_ms("1976-10-21T01:13:13.945Z")));
}

//! What the tests ask of a session, and what they look for in ids.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use postgres::error::DbError;

/// What a query returns, a text a row.
pub fn texts(client: &mut Client, query: &str) -> Vec<String> {
    client.query(query, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

pub fn count(client: &mut Client, query: &str) -> i64 {
    client.query_one(query, &[]).unwrap().get(0)
}

/// The error that a command ends in.
#[track_caller]
pub fn refused(client: &mut Client, command: &str) -> DbError {
    match client.batch_execute(command) {
        Ok(()) => panic!("not refused: {command}"),
        Err(error) => error.as_db_error().unwrap_or_else(|| panic!("{command}: {error}")).clone(),
    }
}

/// Tries again until it is so.
pub fn within(limit: Duration, is_so: impl FnMut() -> bool) {
    assert!(becomes(limit, is_so), "it took more than {limit:?}");
}

/// Tries again until it is so, and returns whether it came to that. For where threads are to be told to stop before a
/// test fails.
pub fn becomes(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The ids that a query returns, in their order.
pub fn ids(client: &mut Client, query: &str) -> Vec<i64> {
    // In the binary format, a row of one bigint is 2 bytes of count, 4 of length and 8 of value.
    const HEADER: usize = 19;
    const ROW: usize = 14;
    let mut bytes = Vec::new();
    let copy = format!("COPY ({query}) TO STDOUT (FORMAT binary)");
    client.copy_out(&copy).unwrap().read_to_end(&mut bytes).unwrap();
    bytes[HEADER..].chunks_exact(ROW).map(|row| i64::from_be_bytes(row[6..].try_into().unwrap())).collect()
}

/// How many of the ids are repetitions.
pub fn duplicates<'a>(sessions: impl IntoIterator<Item = &'a Vec<i64>>) -> usize {
    let mut all: Vec<i64> = sessions.into_iter().flatten().copied().collect();
    let minted = all.len();
    all.sort_unstable();
    all.dedup();
    minted - all.len()
}

/// How often an id is not greater than the one before it.
pub fn disorders(ids: &[i64]) -> usize {
    ids.windows(2).filter(|pair| pair[0] >= pair[1]).count()
}

//! What an application does with ids, by either library.

pub mod with_sqlx;
pub mod with_tokio_postgres;

/// Whether there is PgBouncer before the server.
pub fn pooled() -> bool {
    std::env::var_os("POOLED").is_some_and(|value| value == "1")
}

/// What an id says by itself.
pub fn shard_of(id: i64) -> i32 {
    i32::try_from(id >> 10 & 8191).expect("13 bits")
}

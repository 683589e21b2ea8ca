//! Instagram's sharded 64-bit ids, minted inside PostgreSQL.
//!
//! This file only lists the modules, the files of SQL in the order in which CREATE EXTENSION runs them, and what the server
//! calls when it loads the library. ARCHITECTURE.md says what each module does.

mod api;
pub mod id;
pub mod mint;
mod pg;
pub mod published;
mod report;
pub mod shard;

use pgrx::prelude::*;

::pgrx::pg_module_magic!(name, version);

extension_sql_file!("../sql/before.sql", name = "before", bootstrap);
extension_sql_file!(
    "../sql/layouts.sql",
    name = "layouts",
    requires = ["before"],
    creates = [Type(crate::pg::layout::StoredLayout)]
);
extension_sql_file!(
    "../sql/reading.sql",
    name = "reading",
    requires = [
        api::reading::id_time,
        api::reading::id_time_layout,
        api::reading::id_shard,
        api::reading::id_shard_layout,
        api::reading::id_seq,
        api::reading::id_seq_layout,
        api::reading::id_min,
        api::reading::id_min_layout,
    ]
);
extension_sql_file!("../sql/tickets.sql", name = "tickets");
extension_sql_file!("../sql/internal.sql", name = "internal", requires = ["layouts"]);
extension_sql_file!("../sql/clock.sql", name = "clock");
extension_sql_file!(
    "../sql/setup.sql",
    name = "setup",
    requires = [
        "internal",
        api::minting::next_id,
        api::minting::next_id_layout,
        api::minting::next_ids,
        api::minting::next_ids_layout,
    ]
);
extension_sql_file!("../sql/partitions.sql", name = "partitions", requires = ["setup"]);
extension_sql_file!("../sql/map.sql", name = "map", requires = ["setup"]);
extension_sql_file!("../sql/fences.sql", name = "fences", requires = ["map"]);
extension_sql_file!("../sql/writers.sql", name = "writers", requires = ["clock", "fences"]);
extension_sql_file!("../sql/progress.sql", name = "progress", requires = ["writers"]);
extension_sql_file!(
    "../sql/migrations.sql",
    name = "migrations",
    requires = ["progress", api::reading::id_shard, api::minting::next_id, api::minting::next_id_layout]
);
extension_sql_file!("../sql/shards.sql", name = "shards", requires = ["migrations"]);
extension_sql_file!("../sql/check.sql", name = "check", requires = ["shards", api::reading::id_min_layout]);
extension_sql_file!("../sql/adoption.sql", name = "adoption", requires = ["check"]);
extension_sql_file!("../sql/moves.sql", name = "moves", requires = ["check"]);
extension_sql_file!("../sql/engines.sql", name = "engines", requires = ["moves"]);
// After everything whose privileges it changes.
extension_sql_file!(
    "../sql/privileges.sql",
    name = "privileges",
    requires = ["tickets", "partitions", "clock", "adoption", "engines"]
);
extension_sql_file!("../sql/comments.sql", name = "comments", finalize);

/// The server calls this once, when it loads the library.
#[allow(non_snake_case)]
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::errors::hide_backtraces();
    pg::settings::define();
    pg::shared::prepare();
}

#[cfg(any(test, feature = "pg_test"))]
mod tests;

/// What `cargo pgrx test` expects of an extension.
#[cfg(test)]
pub mod pg_test {
    /// Sets up nothing.
    pub fn setup(_options: Vec<&str>) {}

    /// Lines for the test server's postgresql.conf.
    #[must_use]
    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec!["shared_preload_libraries = 'insta_ids'"]
    }
}

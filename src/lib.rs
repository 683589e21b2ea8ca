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

/// Loads the files of sql/ in this order, each after the one before.
macro_rules! sql_files {
    ($($name:literal $file:literal)*) => { sql_files!(@first $($name $file)*); };
    (@first $name:literal $file:literal $($rest:literal)*) => {
        extension_sql_file!($file, name = $name, bootstrap, creates = [Type(crate::pg::types::layout::StoredLayout)]);
        sql_files!(@after $name $($rest)*);
    };
    (@after $before:literal $name:literal $file:literal $($rest:literal)*) => {
        extension_sql_file!($file, name = $name, requires = [$before]);
        sql_files!(@after $name $($rest)*);
    };
    (@after $last:literal) => {};
}
sql_files! {
    "ids_layouts" "../sql/ids/layouts.sql"
    "state" "../sql/state.sql"
    "types" "../sql/types.sql"
    "version" "../sql/version.sql"
    "ids_minting" "../sql/ids/minting.sql"
    "ids_reading" "../sql/ids/reading.sql"
    "library" "../sql/library.sql"
    "ids_tickets" "../sql/ids/tickets.sql"
    "ids_clock" "../sql/ids/clock.sql"
    "setup" "../sql/setup.sql"
    "partitions" "../sql/partitions.sql"
    "map_nodes" "../sql/map/nodes.sql"
    "map_maps" "../sql/map/maps.sql"
    "map_placement" "../sql/map/placement.sql"
    "fence_fences" "../sql/fence/fences.sql"
    "fence_ddl" "../sql/fence/ddl.sql"
    "writers" "../sql/writers.sql"
    "shard_progress" "../sql/shard/progress.sql"
    "trust" "../sql/trust.sql"
    "migration_migrations" "../sql/migration/migrations.sql"
    "migration_apply" "../sql/migration/apply.sql"
    "migration_migrate" "../sql/migration/migrate.sql"
    "migration_script" "../sql/migration/script.sql"
    "migration_change" "../sql/migration/change.sql"
    "migration_check" "../sql/migration/check.sql"
    "shard_shards" "../sql/shard/shards.sql"
    "shard_drop" "../sql/shard/drop.sql"
    "shard_replace" "../sql/shard/replace.sql"
    "shard_clone" "../sql/shard/clone.sql"
    "check_objects" "../sql/check/objects.sql"
    "check_repair" "../sql/check/repair.sql"
    "check_differences" "../sql/check/differences.sql"
    "check_tables" "../sql/check/tables.sql"
    "check_placement" "../sql/check/placement.sql"
    "check_ids" "../sql/check/ids.sql"
    "check_server" "../sql/check/server.sql"
    "adoption_portable" "../sql/adoption/portable.sql"
    "adoption_minting" "../sql/adoption/minting.sql"
    "adoption_asking" "../sql/adoption/asking.sql"
    "adoption_replacing" "../sql/adoption/replacing.sql"
    "adoption_reasons" "../sql/adoption/reasons.sql"
    "adoption_adopt" "../sql/adoption/adopt.sql"
    "adoption_unadopt" "../sql/adoption/unadopt.sql"
    "move_moves" "../sql/move/moves.sql"
    "move_outside" "../sql/move/outside.sql"
    "move_offer" "../sql/move/offer.sql"
    "move_fence" "../sql/move/fence.sql"
    "move_end" "../sql/move/end.sql"
    "move_prepare" "../sql/move/prepare.sql"
    "move_copy" "../sql/move/copy.sql"
    "move_difference" "../sql/move/difference.sql"
    "move_hand_over" "../sql/move/hand_over.sql"
    "move_verify" "../sql/move/verify.sql"
    "fleet_connections" "../sql/fleet/connections.sql"
    "move_pause" "../sql/move/pause.sql"
    "move_drive" "../sql/move/drive.sql"
    "move_abort" "../sql/move/abort.sql"
    "move_background" "../sql/move/background.sql"
    "move_check" "../sql/move/check.sql"
    "fleet_load" "../sql/fleet/load.sql"
    "fleet_check" "../sql/fleet/check.sql"
    "fleet_plan" "../sql/fleet/plan.sql"
    "fleet_rebalance" "../sql/fleet/rebalance.sql"
    "fleet_migrate" "../sql/fleet/migrate.sql"
    "distribute_tables" "../sql/distribute/tables.sql"
    "distribute_obstacles" "../sql/distribute/obstacles.sql"
    "distribute_keys" "../sql/distribute/keys.sql"
    "distribute_fit" "../sql/distribute/fit.sql"
    "distribute_capture" "../sql/distribute/capture.sql"
    "distribute_apply" "../sql/distribute/apply.sql"
    "distribute_copy" "../sql/distribute/copy.sql"
    "distribute_background" "../sql/distribute/background.sql"
    "distribute_distribute" "../sql/distribute/distribute.sql"
    "distribute_switch" "../sql/distribute/switch.sql"
    "distribute_return" "../sql/distribute/return.sql"
    "distribute_plan_text" "../sql/distribute/plan_text.sql"
    "distribute_plan_findings" "../sql/distribute/plan_findings.sql"
    "distribute_plan" "../sql/distribute/plan.sql"
    "engines" "../sql/engines.sql"
    "provisioning" "../sql/provisioning.sql"
    "created" "../sql/created.sql"
    "privileges" "../sql/privileges.sql"
}

/// The server calls this once, when it loads the library.
#[allow(non_snake_case)]
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::server::errors::hide_backtraces();
    pg::server::settings::define();
    pg::server::shared::prepare();
    pg::minting::succession::watch();
    pg::workers::driver::resume_with_the_server();
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

//! Acting as another user: as the owner of a relation, or as a superuser for what belongs to the extension.

use std::ffi::CStr;

use pgrx::pg_sys;

use super::relation::{NoSuchRelation, open_owned};

/// Why a command was not run.
pub(crate) enum NotRun {
    /// The relation does not exist.
    NoRelation(NoSuchRelation),
    /// The command begins or ends a transaction, or copies from or to the client.
    Refused,
}

/// Runs a command as the role that owns a relation. The user must be a member of that role, so the user gains no rights.
///
/// PostgreSQL runs the command, and all user code that the command triggers, with the rights of the owner alone. That code
/// cannot change the role, and `search_path` is pinned to `pg_catalog, pg_temp`. Core's maintenance commands do the same.
///
/// The command's names are looked up when it runs. So the caller must hold locks that keep those names.
///
/// # Errors
/// [`NotRun`]. Raises PostgreSQL's own error if the user is no such member, or if the command fails.
pub(crate) fn run_as_owner(relation: pg_sys::Oid, command: &CStr) -> Result<(), NotRun> {
    let opened = open_owned(relation).map_err(NotRun::NoRelation)?;
    // SAFETY: the relation is open. Its lock stays until the transaction ends, so its owner stays the same.
    let owner = unsafe {
        let owner = (*(*opened).rd_rel).relowner;
        #[cfg(not(feature = "pg15"))]
        pg_sys::check_can_set_role(pg_sys::GetUserId(), owner);
        pg_sys::relation_close(opened, pg_sys::NoLock.cast_signed());
        owner
    };
    restricted(owner, || execute(command))
}

/// Does something with the rights of a role alone. What runs there cannot change the role, and settings that it changes are
/// restored. `search_path` is pinned to `pg_catalog, pg_temp`.
pub(crate) fn restricted<T>(role: pg_sys::Oid, act: impl FnOnce() -> T) -> T {
    as_user(role, pg_sys::SECURITY_RESTRICTED_OPERATION, || {
        // SAFETY: the level of settings is closed before `as_user` restores the user. After an error, the end of the
        // transaction or subtransaction closes it.
        unsafe {
            let level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                c"pg_catalog, pg_temp".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
            let done = act();
            pg_sys::AtEOXact_GUC(false, level);
            done
        }
    })
}

/// Runs a command through SPI, as the current user.
///
/// # Errors
/// [`NotRun::Refused`]. Raises PostgreSQL's own error if the command fails.
pub(crate) fn execute(command: &CStr) -> Result<(), NotRun> {
    // SAFETY: the string outlives the call. After an error, the end of the transaction or subtransaction finishes SPI.
    unsafe {
        pg_sys::SPI_connect();
        let done = pg_sys::SPI_execute(command.as_ptr(), false, 0);
        pg_sys::SPI_finish();
        if done < 0 { Err(NotRun::Refused) } else { Ok(()) }
    }
}

/// Calls `act` as the server's first superuser. `act` must not run any user's code.
pub(crate) fn as_superuser<T>(act: impl FnOnce() -> T) -> T {
    as_user(pg_sys::BOOTSTRAP_SUPERUSERID.into(), pg_sys::SECURITY_LOCAL_USERID_CHANGE, act)
}

/// Calls `act` as another user, with one more restriction in the security context. No other function of the extension
/// switches users.
fn as_user<T>(user: pg_sys::Oid, restriction: u32, act: impl FnOnce() -> T) -> T {
    let mut before = pg_sys::Oid::INVALID;
    let mut context = 0;
    // SAFETY: the first call writes both variables. If `act` raises an error, the end of the transaction or
    // subtransaction restores the user and the context.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&raw mut before, &raw mut context);
        pg_sys::SetUserIdAndSecContext(user, context | restriction.cast_signed());
        let result = act();
        pg_sys::SetUserIdAndSecContext(before, context);
        result
    }
}

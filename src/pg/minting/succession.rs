//! Which sequences are created and dropped. The hook is in `succession.c`.

use pgrx::{pg_guard, pg_sys};

use super::lease::LeaseTable;
use crate::pg::catalog::relation::{NoSuchRelation, require_owned};
use crate::pg::catalog::sequence::Sequence;
use crate::pg::server::process::database;
use crate::pg::server::shared::{self, Shared};

// SAFETY: declared as in succession.c. It sets pointers and raises no error, so it needs no guard.
unsafe extern "C" {
    fn insta_ids_watch_sequences();
}

/// Watches the sequences that this process creates and drops from now on. Called once, when the library is loaded.
pub(crate) fn watch() {
    // SAFETY: nothing is asked of the caller.
    unsafe { insta_ids_watch_sequences() }
}

#[pg_guard]
#[unsafe(no_mangle)]
extern "C-unwind" fn insta_ids_sequence_created(sequence: pg_sys::Oid) {
    if let Some(server) = server() {
        let succession = &server.succession.0;
        succession.created(succession.of(database(), sequence.to_u32()));
    }
}

#[pg_guard]
#[unsafe(no_mangle)]
extern "C-unwind" fn insta_ids_sequence_dropped(sequence: pg_sys::Oid) {
    if let Some(server) = server() {
        let succession = &server.succession.0;
        succession.dropped(succession.of(database(), sequence.to_u32()));
    }
}

/// Makes later ids of a sequence come after all that another one has given, and all that dropped sequences have. Both can be
/// the same.
///
/// # Errors
/// [`NoSuchRelation`]. Raises PostgreSQL's own error if the user is no member of the role that owns the successor.
pub(crate) fn succeed(
    server: &Shared,
    successor: Sequence,
    predecessor: Sequence,
) -> Result<(), NoSuchRelation> {
    require_owned(successor.oid().into())?;
    let succession = &server.succession.0;
    let [successor, predecessor] =
        [successor, predecessor].map(|sequence| succession.of(database(), sequence.oid()));
    succession.created(successor);
    successor.succeed(predecessor);
    Ok(())
}

/// The server's shared state. `None` in a database without the extension, where no sequence mints ids: there, this must not
/// create that state.
fn server() -> Option<&'static Shared> {
    shared::attached().or_else(|| LeaseTable::find().ok().and_then(|_| shared::attach().ok()))
}

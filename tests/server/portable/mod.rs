//! Promise: sql/portable.sql mints unique ids and reads them, on a server with nothing of ours installed.

mod minting;
mod reading;
mod refusing;

use std::fs;

use postgres::Client;
use support::{Cluster, NOT_PRELOADED, checkout};

/// Installs it in a database, in the first schema of this path.
fn install(cluster: &Cluster, database: &str, path: &str) {
    let sql = fs::read_to_string(checkout().join("sql/portable.sql")).unwrap();
    let mut client = cluster.connect_to(database);
    client.batch_execute(&format!("SET search_path = {path}; {sql}")).unwrap();
}

/// A server without the extension, with a sequence `public.s` that is guarded, and the functions in the schema `ids`.
fn plain(name: &str, sequence: &str) -> (Cluster, Client) {
    let cluster = Cluster::with(name, &[NOT_PRELOADED]);
    let mut client = cluster.connect();
    client.batch_execute("CREATE SCHEMA ids; GRANT USAGE ON SCHEMA ids TO PUBLIC").unwrap();
    install(&cluster, "postgres", "ids");
    client.batch_execute(&format!("CREATE SEQUENCE s {sequence}; SELECT ids.guard_sequence('s')")).unwrap();
    (cluster, client)
}

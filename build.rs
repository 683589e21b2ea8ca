//! Compiles the C files of `src/pg/` for the server, and exports their functions from the library.

use pgrx_pg_config::{PgConfig, Pgrx};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    const FILES: [&str; 11] = [
        "src/pg/catalog/ddl.c",
        "src/pg/catalog/migration.c",
        "src/pg/minting/entry.c",
        "src/pg/minting/lease.c",
        "src/pg/minting/succession.c",
        "src/pg/placement/ask.c",
        "src/pg/placement/change.c",
        "src/pg/placement/remote.c",
        "src/pg/server/process.c",
        "src/pg/workers/driver.c",
        "src/pg/workers/worker.c",
    ];
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/pg/placement/remote.h");
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=PGRX_PG_CONFIG_PATH");
    let server = server()?;
    cc::Build::new()
        .files(FILES)
        .include(server.includedir_server()?)
        .include(directory(&server, "--includedir")?)
        // The server's own headers and macros are not ours to mend.
        .flag("-Wno-unused-parameter")
        .flag("-Wno-sign-compare")
        .cargo_metadata(false)
        .try_compile("insta_ids_c")?;
    println!("cargo::rustc-link-search=native={}", std::env::var("OUT_DIR")?);
    println!("cargo::rustc-link-lib=static:+export-symbols=insta_ids_c");
    println!("cargo::rustc-link-search=native={}", directory(&server, "--libdir")?);
    println!("cargo::rustc-link-lib=pq");
    // The server calls them, and nothing in the library does.
    for function in
        ["insta_ids_watch_ddl", "insta_ids_next_id", "insta_ids_note_change", "insta_ids_rows_from_node"]
    {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--undefined={function}");
    }
    // Calls within the library need no look at the symbols of others.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // The linker keeps what nothing in the library calls: the section from which cargo-pgrx reads the SQL that it writes.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--no-gc-sections");
    Ok(())
}

/// The server that pgrx builds for.
fn server() -> Result<PgConfig, Failure> {
    if PgConfig::is_in_environment() {
        return Ok(PgConfig::from_env()?);
    }
    let version = (15..=19)
        .find(|version| std::env::var_os(format!("CARGO_FEATURE_PG{version}")).is_some())
        .ok_or("choose a version of PostgreSQL by a feature: pg15 to pg19")?;
    Ok(Pgrx::from_config()?.get(&format!("pg{version}"))?)
}

/// What the server's `pg_config` prints for an option: where libpq is, which pgrx does not ask for.
fn directory(server: &PgConfig, option: &str) -> Result<String, Failure> {
    let program = server.path().ok_or("the server has no pg_config")?;
    let printed = std::process::Command::new(program).arg(option).output()?.stdout;
    Ok(String::from_utf8(printed)?.trim().to_owned())
}

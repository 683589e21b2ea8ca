//! Keeps the linker from dropping what nothing in the library calls: the section from which
//! `cargo pgrx` reads the SQL that it writes.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--no-gc-sections");
}

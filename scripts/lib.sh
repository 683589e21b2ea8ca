# What the scripts share: where things are, who runs what, and how to say it. Sourced, not run.
# shellcheck shell=bash disable=SC2034,SC2174
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
cd "$ROOT"

VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
RUST_VERSION=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
PGRX_VERSION=$(sed -n 's/^pgrx = "=\(.*\)"$/\1/p' Cargo.toml)

# Servers do not show our own debugging aids to their users.
unset RUST_BACKTRACE
# The library is linked as build.rs says, so that tests and installation share their dependencies.
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND=1
# A package does not tell where it was built; who has flags of their own says so in RUSTFLAGS. Paths can have spaces.
if [ -z "${RUSTFLAGS+set}${CARGO_ENCODED_RUSTFLAGS+set}" ]; then
    CARGO_ENCODED_RUSTFLAGS=--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo$'\x1f'--remap-path-prefix=$TARGET=/target
    export CARGO_ENCODED_RUSTFLAGS
fi
if [ -z "${CFLAGS+set}" ]; then
    export CC_SHELL_ESCAPED_FLAGS=1 CFLAGS="'-ffile-prefix-map=$TARGET=/target' -ffile-prefix-map=/var/tmp=/target"
fi
export PATH=$TARGET/tools/bin:$PATH

# Options of cargo for a library that only tests use: without optimisation, it builds in a third of the time. It has the
# same dependencies as the library that users get, so they are not built again.
FOR_TESTS=(--config 'profile.release.package.insta_ids.opt-level=0')

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# at_least VERSION OTHER: whether VERSION is OTHER or newer. Of Debian's versions, what follows the first hyphen or plus is not
# compared.
at_least() { printf '%s\n' "$2" "${1%%[-+]*}" | sort --version-sort --check=silent; }

# has_rust CARGO: whether this cargo is as new as Cargo.toml asks.
has_rust() {
    local version
    version=$("$1" --version 2>/dev/null) || return
    version=${version#cargo }
    at_least "${version%% *}" "$RUST_VERSION"
}

# A cargo of the user's own is taken if it is new enough, and else that of Debian, which scripts/setup installs.
choose_rust() {
    if ! has_rust cargo && has_rust /usr/bin/cargo; then
        # Cargo looks into a directory of its own first for programs such as cargo-fmt, unless PATH has that directory.
        PATH=/usr/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    fi
}

# step "what it does" command...: says what is done and how long it took; its output goes to a log that
# is shown when it fails.
step() {
    local what=$1 started log
    shift
    started=$(date +%s)
    log=$TARGET/log/$(tr -cs '[:alnum:]\n' - <<<"$what").log
    mkdir -p "$TARGET/log"
    printf '%s ... ' "$what" >&2
    # In the background, as within a condition bash would go on after a failed command.
    "$@" >"$log" 2>&1 &
    if wait $!; then
        say "$(($(date +%s) - started)) s"
    else
        say "failed"
        tail -n 60 "$log" >&2
        ! grep -qiE 'resolv(e|ing) |connect to |network is unreachable' "$log" ||
            die "$what failed, as there is no network; the whole log is in $log"
        die "$what failed; the whole log is in $log"
    fi
}

# seconds_since TIME: of EPOCHREALTIME.
seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { print to - from }'; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "\"$*\" needs root: run as root, or install sudo"
    fi
}

# Servers refuse to run as root; then Debian's own user for them does.
SERVER_USER=$(id -un)
[ "$(id -u)" != 0 ] || SERVER_USER=postgres

as_server() {
    if [ "$(id -un)" = "$SERVER_USER" ]; then "$@"; else runuser -u "$SERVER_USER" -- env --chdir=/ "$@"; fi
}

# Packages of Debian that are not installed yet are.
packages() {
    local package missing=()
    if ! command -v dpkg-query >/dev/null; then
        say "this is not Debian, so what its packages $* hold must be there already"
        return
    fi
    for package; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] || step "installing ${missing[*]}" apt_install "${missing[@]}"
}

# A network that fails for a moment is tried again. Another installation is waited for: apt-get itself does not wait for the
# lock of the lists of packages, so scripts that run side by side take one of their own.
apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive flock /var/lib/apt/lists \
        apt-get -q -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600 "$@"
}

# What was installed stays: a package that conflicts with it is an error.
apt_install() {
    apt_get update
    apt_get install -y --no-install-recommends --no-remove "$@"
}

# unpacked PROGRAM PACKAGE...: packages of Debian that start services when they are installed are only unpacked, unless the
# program is there already.
unpacked() {
    local program=$1
    shift
    if command -v "$program" >/dev/null; then return; fi
    if ! command -v dpkg-deb >/dev/null; then
        say "this is not Debian, so $program must be there already"
        return
    fi
    step "unpacking $*" unpack "$@"
}

unpack() {
    local directory=$TARGET/unpacked
    rm -rf "$directory"
    mkdir -p "$directory" "$TARGET/tools/bin"
    apt_get update
    (
        cd "$directory"
        apt_get download "$@"
        for package in *.deb; do dpkg-deb -x "$package" .; done
    )
    ln -sf "$directory"/usr/bin/* "$TARGET/tools/bin/"
}

# Installs Debian's Rust if there is none new enough. Stable releases have a newer one beside their own, with which their
# browsers are built. pgrx does not build without rustfmt.
need_rust() {
    local name
    choose_rust
    if has_rust cargo && command -v rustfmt >/dev/null; then return; fi
    command -v dpkg-query >/dev/null || die "Rust $RUST_VERSION or newer with rustfmt is needed: install it, see https://rustup.rs"
    step "reading the lists of packages" apt_get update
    for name in rustc rustc-web; do
        if at_least "$(candidate "$name")" "$RUST_VERSION"; then
            packages "$name" "${name/rustc/cargo}" "${name/rustc/rustfmt}"
            choose_rust
            return
        fi
    done
    die "Rust $RUST_VERSION or newer is needed, and this Debian does not have it: install it, see https://rustup.rs"
}

# The version of a package that apt would install; nothing if there is none.
candidate() { apt-cache policy "$1" | sed -n 's/^  Candidate: \([0-9].*\)/\1/p'; }

# Where each PostgreSQL comes from: a suite of Debian, or a wheel of PyPI. Of a second suite, only the packages of this
# PostgreSQL are taken (scripts/in-debian).
ORIGIN=([15]=bookworm [16]=wheel [17]=trixie [18]=sid [19]="sid experimental")
MAJORS=("${!ORIGIN[@]}")
# The suite of this Debian. scripts/in-debian sets it: sid has the codename of the next release.
SUITE=${DEBIAN_SUITE-$(. /etc/os-release && echo "${VERSION_CODENAME-}")}

# The suite of Debian that a PostgreSQL comes from, or "wheel".
suite_of() { echo "${ORIGIN[$1]%% *}"; }

# The oldest PostgreSQL that this Debian has.
debian_major() {
    local major
    for major in "${MAJORS[@]}"; do
        [ "$(suite_of "$major")" != "$SUITE" ] || { echo "$major"; return; }
    done
}

# The server that was chosen: by PG_CONFIG, by PG, or else the one of this Debian; and, in PRELOAD, the setting that
# it needs to mint (scripts/cluster).
choose_server() {
    if [ -n "${PG_CONFIG-}" ]; then
        PG=$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
    else
        PG=${PG:-$(debian_major)}
        [ -n "$PG" ] || die "this is not Debian 12 or 13; choose a server with PG_CONFIG=/path/to/pg_config"
    fi
    [ -n "${ORIGIN[$PG]-}" ] || die "PostgreSQL $PG is not supported: choose one of ${MAJORS[*]}"
    PRELOAD=()
    [ "$PG" -ge 17 ] || PRELOAD=("shared_preload_libraries = 'insta_ids'")
}

# The server of PG_CONFIG, and no other.
named_server() {
    # Debian's Rust may have been installed a moment ago.
    choose_rust
    [ -n "${PG_CONFIG-}" ] || die "say which server: PG_CONFIG=/path/to/pg_config"
    choose_server
    export PG PG_CONFIG PGRX_PG_CONFIG_PATH=$PG_CONFIG
}

# The chosen server, with what is needed to build and test for it.
set_up_server() {
    PG_CONFIG=$(scripts/setup)
    named_server
}

# The same, but one that PG_CONFIG names is taken as it is.
take_server() {
    [ -n "${PG_CONFIG-}" ] || PG_CONFIG=$(scripts/setup)
    named_server
}

# in_its_debian TARGET: of a PostgreSQL that another Debian has, the target is made there.
in_its_debian() {
    local suite
    [ -z "${PG_CONFIG-}" ] || return 0
    suite=$(suite_of "$PG")
    if [ "$suite" != wheel ] && [ "$suite" != "$SUITE" ]; then
        exec scripts/in-debian "$suite" make "$1" "PG=$PG" "ONLY=${ONLY-}"
    fi
}

# The files of sql/ in the order in which they are loaded.
sql_files() { sed -n 's|^ *"[a-z_]*" "\.\./\(sql/.*\.sql\)"$|\1|p' src/lib.rs; }

# cargo-pgrx, which only lint needs.
need_cargo_pgrx() {
    [ "$(cargo pgrx --version 2>/dev/null)" != "cargo-pgrx $PGRX_VERSION" ] || return 0
    packages pkg-config libssl-dev
    step "building cargo-pgrx $PGRX_VERSION, some minutes" \
        env CARGO_PROFILE_DEV_DEBUG=0 cargo install cargo-pgrx --version "$PGRX_VERSION" --locked --debug --root "$TARGET/tools"
}

# A library that a server has open must not be written over: its processes would run into the new one's bytes.
unlink_library() {
    local library
    library=$("$PG_CONFIG" --pkglibdir)/insta_ids.so
    [ ! -e "$library" ] || rm -f "$library" 2>/dev/null || as_root rm -f "$library"
}

# Also in a checkout of someone else, as in a chroot.
git() { command git -c safe.directory="$ROOT" "$@"; }

# wait_all PID...: fails if one of them did.
wait_all() {
    local pid status=0
    for pid; do wait "$pid" || status=1; done
    return $status
}

# Where servers and clusters of our own are: under target/, unless the user that runs them cannot go there
# (a checkout in /root), or the path is too long for a socket.
choose_home() {
    id "$SERVER_USER" >/dev/null 2>&1 || packages postgresql-common
    HOME_OF_SERVERS=$TARGET
    mkdir -p "$TARGET"
    if [ ${#TARGET} -gt 60 ] || ! as_server test -x "$TARGET"; then
        HOME_OF_SERVERS=/var/tmp/insta_ids-$(id -un)-$(cksum <<<"$TARGET" | cut -d' ' -f1)
        mkdir -p -m 755 "$HOME_OF_SERVERS"
        [ -O "$HOME_OF_SERVERS" ] || die "$HOME_OF_SERVERS belongs to someone else"
    fi
    CLUSTERS=$HOME_OF_SERVERS/clusters
}

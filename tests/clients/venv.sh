# Sourced by the runs in Python: the pinned dependencies of the project in an environment of their own, $venv.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[1]}")"
# Nothing is written here.
export PYTHONDONTWRITEBYTECODE=1
venv=$TARGET_DIR/venv
if ! cmp -s requirements.txt "$venv/installed.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r requirements.txt
    "$venv/bin/pip" check --disable-pip-version-check
    cp requirements.txt "$venv/installed.txt"
fi

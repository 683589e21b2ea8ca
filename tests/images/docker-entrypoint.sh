#!/usr/bin/env bash
# The entrypoint of the base image that scripts/images makes. It does what the official image of PostgreSQL documents, as far as
# packaging/ uses it: POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD, POSTGRES_INITDB_ARGS, POSTGRES_HOST_AUTH_METHOD, and
# the scripts in /docker-entrypoint-initdb.d.
set -euo pipefail

[ "${1-}" = postgres ] || exec "$@"
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -m 700 "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    [ -n "${POSTGRES_PASSWORD-}" ] || [ "${POSTGRES_HOST_AUTH_METHOD-}" = trust ] || { echo "POSTGRES_PASSWORD is not set" >&2; exit 1; }
    user=${POSTGRES_USER:-postgres}
    database=${POSTGRES_DB:-$user}
    # Options in one variable, as they are documented.
    # shellcheck disable=SC2086
    initdb --username="$user" --pwfile=<(printf '%s\n' "${POSTGRES_PASSWORD-}") ${POSTGRES_INITDB_ARGS-}
    echo "host all all all ${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}" >>"$PGDATA/pg_hba.conf"
    arguments=("${@:2}")
    pg_ctl -D "$PGDATA" -o "-c listen_addresses='' ${arguments[*]@Q}" -w start
    [ "$database" = postgres ] || createdb -U "$user" "$database"
    # shellcheck source=/dev/null
    for file in /docker-entrypoint-initdb.d/*; do
        case $file in
        *.sh) . "$file" ;;
        *.sql) psql -v ON_ERROR_STOP=1 --no-psqlrc -U "$user" -d "$database" -f "$file" ;;
        esac
    done
    pg_ctl -D "$PGDATA" -m fast -w stop
fi
exec "$@"

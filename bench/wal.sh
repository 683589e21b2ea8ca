# What is written to WAL.
# shellcheck shell=bash

# wal NAME COMMAND...: what it writes to WAL in about ten seconds.
wal() {
    local name=$1 before
    shift
    sql -c CHECKPOINT
    before=$(sql -A -t -F ' ' -c "SELECT wal_records, wal_bytes, extract(epoch FROM clock_timestamp()) FROM pg_stat_wal")
    "$@" >/dev/null
    sql -c 'SELECT pg_sleep(1)' >/dev/null
    read -r records bytes at <<<"$before"
    sql -v name="$name" -v records="$records" -v bytes="$bytes" -v at="$at" <<'SQL'
INSERT INTO wal SELECT :'name', (wal_records - :records) / s, (wal_bytes - :bytes) / s
FROM pg_stat_wal, (SELECT extract(epoch FROM clock_timestamp()) - 1 - :at AS s) passed;
SQL
}

printf 'What is written to WAL:\n'
sql -c 'CREATE SEQUENCE written' -c 'CREATE TABLE wal (load text, records float, bytes float)'
for call in nextval next_id; do
    case $call in
    nextval) expression="nextval('written')" ;;
    next_id) expression="next_id(5, 'written')" ;;
    esac
    for rate in 1 1000; do
        wal "$call, $rate/s" "$("$PG_CONFIG" --bindir)/pgbench" -n -c 1 -T 10 -R $rate -f <(echo "SELECT $expression")
    done
    wal "$call, 1 M/s" sql -c "SELECT count($expression) FROM generate_series(1, 10000000)"
done
sql -c 'SELECT load, round(records::numeric, 1) AS "records/s", round(bytes::numeric) AS "bytes/s" FROM wal'

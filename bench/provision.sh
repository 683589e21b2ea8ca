# Making shards, by hand and by create_shards. For the parts that do so; none itself.
# shellcheck shell=bash

# paragraphs FIRST LAST: those of bench/shard.sql.
paragraphs() { grep -v '^--' bench/shard.sql | awk -v RS= -v first="$1" -v last="$2" 'NR >= first && NR <= last'; }

# by_hand SHARDS DDL: it for each of them, in transactions of 50.
by_hand() {
    sql -At -v shards="$1" -v ddl="$2" <<'SQL'
SELECT concat(
    CASE WHEN n % 50 = 0 THEN E'BEGIN;\n' END,
    replace(replace(replace(:'ddl',
        '{check}', ' CHECK (public.id_shard(id) = {shard})'), '{schema}', 'insta{shard}.'), '{shard}', n::text),
    CASE WHEN n % 50 = 49 OR n = :shards - 1 THEN E'\nCOMMIT;' END)
FROM generate_series(0, :shards - 1) n;
SQL
}

# seconds DATABASE, and psql's options for what is to be done there.
seconds() {
    local now='SELECT extract(epoch FROM clock_timestamp())'
    PGAPPNAME=measured PGOPTIONS='-c client_min_messages=warning' sql -At -d "$1" -c "$now" "${@:2}" -c "$now" |
        awk 'NR == 1 { from = $1 } END { print $1 - from }'
}

# The KB of its own that the backend has which does what is measured, again and again until it ends.
memory() {
    local pid=
    until [ -n "$pid" ]; do
        pid=$(sql -At -c "SELECT pid FROM pg_stat_activity WHERE application_name = 'measured'")
    done
    while sed -n 's/^RssAnon:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null; do sleep 0.2; done
}

# provision SHARDS TABLES ROUNDS: each time in a database of its own, as raw_2000_1, ours_2000_1, raw_2000_2. They stay
# until the server goes, as the disk is slower for a while where so many files were.
provision() {
    local shards=$1 tables=$2 rounds=$3 ddl way round database run took
    local raw=$CLUSTERS/bench/raw.sql samples=$CLUSTERS/bench/samples
    by_hand "$shards" "$(paragraphs 1 $((tables + 1)))" >"$raw"
    ddl=$(paragraphs 2 $((tables + 1)) | sed 's/{schema}\|{check}//g')
    sql -c 'CREATE TABLE provisioned (way text, seconds float, kb float[])'
    for ((round = 1; round <= rounds; round++)); do
        for way in raw ours; do
            database=${way}_${shards}_$round
            sql -c "CREATE DATABASE $database"
            sql -d $database -c 'CREATE EXTENSION insta_ids'
            case $way in
            raw) run=(-f "$raw") ;;
            ours)
                sql -d $database -o /dev/null -v shards="$shards" -v ddl="$ddl" \
                    <<<"SELECT insta_ids.init(:shards), insta_ids.add_migration('0001', :'ddl')"
                run=(-c "CALL insta_ids.create_shards(0, $shards - 1)")
                ;;
            esac
            sql -c CHECKPOINT
            memory >"$samples" &
            took=$(seconds $database "${run[@]}")
            wait $!
            sql -c "INSERT INTO provisioned VALUES ('$way', $took, '{$(paste -s -d , "$samples")}')"
        done
    done
    sql -v shards="$shards" -f bench/provisioned.sql
}

# looks DATABASE WHAT...: what a SELECT of each takes, the first of a session and later ones, and the KB that the session
# has then.
looks() {
    local what
    sql -c 'CREATE TABLE looks (what text, call int, ms float, kb int)'
    for what in "${@:2}"; do
        for _ in {1..5}; do
            for _ in {1..4}; do
                printf '%s\n' '\timing on' '\o /dev/null' "SELECT * FROM insta_ids.$what;" '\timing off' '\o' \
                    'SELECT sum(total_bytes) / 1024 AS kb FROM pg_backend_memory_contexts \gset' '\echo KB :kb'
            done | sql -d "$1" | awk -v what="$what" '/^Time/ { ms = $2 } /^KB/ { printf "%s\t%d\t%s\t%d\n", what, ++n, ms, $2 }' |
                sql -c 'COPY looks FROM STDIN'
        done
    done
    sql -c '
        SELECT what, round((percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) FILTER (WHERE call = 1))::numeric, 1)
                   AS "ms, first call in a session",
               round((percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) FILTER (WHERE call > 1))::numeric, 1) AS "later ones",
               round(max(kb) FILTER (WHERE call = 1) / 1024.0) AS "MB after the first",
               round(max(kb) FILTER (WHERE call = 4) / 1024.0) AS "after the fourth"
        FROM looks GROUP BY what ORDER BY what DESC' -c 'DROP TABLE looks'
}

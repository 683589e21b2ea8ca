# Eight writers, and a schema that is adopted, released and adopted again beneath them.
# shellcheck shell=bash
printf 'Adopting and releasing under 8 writers:\n'
sql -c 'CREATE DATABASE adoption'
PGOPTIONS='-c client_min_messages=warning' sql -d adoption -o /dev/null \
    -c 'CREATE SCHEMA insta5' -c 'CREATE SEQUENCE insta5.table_id_seq' -f demo/published.sql \
    -c 'CREATE TABLE insta5.photos (id bigint PRIMARY KEY DEFAULT insta5.published_next_id(), user_id bigint NOT NULL)' \
    -c 'CREATE EXTENSION insta_ids' -c 'SELECT insta_ids.init(2000)' \
    -c 'CREATE TABLE switches (call text, began timestamptz, ended timestamptz)'
logs=$CLUSTERS/bench/writers
(
    mkdir -p "$logs" && cd "$logs"
    "$("$PG_CONFIG" --bindir)/pgbench" -n -c 8 -j 2 -T 20 -l -M prepared adoption \
        -f <(echo 'INSERT INTO insta5.photos (user_id) VALUES (31341)') 2>&1 | sed -n '/failed/p'
) &
for call in "adopt('insta5', 5)" "release('insta5')" "adopt('insta5', 5)"; do
    sleep 5
    sql -d adoption -At -o /dev/null <<SQL
SELECT clock_timestamp() AS began \\gset
SELECT insta_ids.$call;
INSERT INTO switches VALUES (split_part(\$\$$call\$\$, '(', 1), :'began', clock_timestamp());
SQL
done
wait $!
cat "$logs"/pgbench_log.* | awk '{ printf "%d\t%d.%06d\n", $3, $5, $6 }' >"$logs/all"
sql -d adoption -c 'CREATE TABLE written (us int, ended float)' -c "\\copy written FROM '$logs/all'"
sql -d adoption -f bench/adoption.sql

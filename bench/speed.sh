# One sequence at full speed, for one session and for eight.
# shellcheck shell=bash
printf 'One sequence at full speed:\n'
sql -c 'CREATE SEQUENCE "full"' \
    -c 'CREATE TABLE full_speed (sessions int, ids bigint, first bigint, last bigint, disorders bigint, ahead interval)'
for sessions in 1 8; do
    sql -o /dev/null -c 'SELECT pg_advisory_lock(1)' -c 'SELECT pg_sleep(1)' &
    running=($!)
    sleep 0.3
    for ((n = 0; n < sessions; n++)); do
        sql -v sessions=$sessions -v ids=$((4000000 / sessions)) -f bench/full-speed.sql &
        running+=($!)
    done
    wait_all "${running[@]}"
done
sql -c "
    SELECT sessions, sum(ids) AS ids, sum(disorders) AS disorders, max(ahead) AS ahead,
           round(100.0 * sum(ids) / (((max(last) >> 23) - (min(first) >> 23) + 1) * 1024), 2) AS \"% of 1024 ids/ms\"
    FROM full_speed GROUP BY sessions ORDER BY sessions"

# 2000 shards of 4 tables: made, looked at, migrated.
# shellcheck shell=bash
. bench/provision.sh
shards=2000
printf 'Making %s shards of 4 tables:\n' $shards
provision $shards 4 "${ROUNDS:-2}"
raw=raw_${shards}_1 ours=ours_${shards}_1

printf 'Looking at them:\n'
looks $ours shards migration_status 'check()'

printf 'Adding a column to one table of each:\n'
script=$CLUSTERS/bench/raw.sql
sql -c 'CREATE TABLE migrated (way text, seconds float)'
for ((round = 1; round <= 5; round++)); do
    for way in 'DDL by hand, by 50' migrate 'DDL by hand, one by one'; do
        case $way in
        'DDL by hand, by 50')
            by_hand $shards "ALTER TABLE {schema}photos ADD a$round integer;" >"$script"
            run=($raw -f "$script")
            ;;
        migrate)
            sql -d $ours -o /dev/null \
                -c "SELECT insta_ids.add_migration('a$round', 'ALTER TABLE photos ADD a$round integer')"
            run=($ours -c 'CALL insta_ids.migrate()')
            ;;
        *)
            by_hand $shards "ALTER TABLE {schema}photos ADD b$round integer;" | grep ^ALTER >"$script"
            run=($raw -f "$script")
            ;;
        esac
        sql -c CHECKPOINT
        took=$(seconds "${run[@]}")
        sql -c "INSERT INTO migrated VALUES ('$way', $took)"
    done
done
sql -c "
    WITH medians AS (
        SELECT way, percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS seconds, max(seconds) - min(seconds) AS spread
        FROM migrated GROUP BY way
    )
    SELECT m.way, round(m.seconds::numeric, 3) AS s, round(m.spread::numeric, 3) AS \"max - min\",
           CASE WHEN m.way <> o.way THEN round((o.seconds / m.seconds)::numeric, 2) END AS \"migrate, ratio\"
    FROM medians m JOIN medians o ON o.way = 'migrate'
    ORDER BY m.way = 'migrate', m.way"

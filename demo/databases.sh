# shellcheck shell=bash
# Functions for servers on which each shard has a database of its own, such as database insta5 for shard 5. docs/databases.md
# shows how to use them. Set PGHOST, PGUSER and perhaps PGPORT, and source this file.

export PGOPTIONS='-c client_min_messages=warning'

sql() { psql -XqAt -v ON_ERROR_STOP=1 "$@"; }

# Creates the database of a shard from insta_template. A repeated call creates what is missing.
make_database() {
    [ -n "$(sql insta_template <<<'SELECT insta_ids.this_node()')" ] || {
        echo "insta_ids.node is not set on $PGHOST" >&2
        return 1
    }
    sql -v shard="$1" -v server="host=$PGHOST ${PGPORT:+port=$PGPORT }user=$PGUSER" postgres >/dev/null <<'SQL'
SELECT format('CREATE DATABASE insta%s TEMPLATE insta_template', :shard)
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'insta' || :shard) \gexec
\connect insta:shard
SELECT insta_ids.add_node(insta_ids.this_node(), format('%s dbname=%s', :'server', current_database()));
SELECT insta_ids.assign(:shard, :shard, insta_ids.this_node());
CALL insta_ids.create_shards(:shard, :shard);
SQL
}

# Prints the databases of shards on this server.
databases() {
    sql postgres <<<"SELECT datname FROM pg_database WHERE datname ~ '^insta[0-9]+$' ORDER BY length(datname), datname"
}

# Runs the script of stdin by psql, with these options, in the database of each shard. If it fails in one, the others still run it,
# and the call fails.
each() {
    local text all database status=0
    text=$(cat)
    all=$(databases) || return
    for database in $all; do
        sql "$@" "$database" <<<"$text" 2>&1 | sed "/^$/d; s/^/$database: /"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
    done
    return $status
}

# Prints the migrations of the template that databases of shards lack.
lacking() {
    local wanted
    wanted=$(sql insta_template <<<"SELECT coalesce(array_agg(name), '{}') FROM insta_ids_internal.migration") || return
    each -v wanted="$wanted" <<'SQL'
SELECT unnest(:'wanted'::text[]) EXCEPT SELECT name FROM insta_ids.migration_status WHERE state = 'applied'
SQL
}

# Prints the findings in all databases of shards, and fails if one is an error.
check() {
    local findings status=0
    findings=$(each <<'SQL'
SELECT severity, code, object, detail FROM insta_ids.check()
UNION ALL
SELECT 'error', 'other_database', schema, 'This shard does not belong here.' FROM insta_ids.shards
WHERE schema NOT IN (current_database(), current_database() || '__moved')
SQL
    ) || status=1
    [ -z "$findings" ] || echo "$findings"
    ! grep -q '^[^:]*: error|' <<<"$findings" && return $status
}

# Prints the objects of the shard of a database, a line each.
objects() { sql "$1" <<<'SELECT jsonb_array_elements(insta_ids_internal.objects_json(shard)) FROM insta_ids_internal.shard'; }

# Prints the databases whose objects differ from those of most databases.
unlike() {
    local database
    for database in $(databases); do
        echo "$database $(objects "$database" | cksum)"
    done | awk '
        { made[$1] = $2; times[$2]++ }
        END {
            for (one in times) if (times[one] > times[most]) most = one
            for (database in made) if (made[database] != most) print database ": not like most"
        }'
}

# Prints the shards that are in more than one database of these servers. Fails if one of them does not answer.
twice() {
    local PGHOST shards='' found
    for PGHOST in "$@"; do
        export PGHOST
        found=$(each <<<"SELECT shard FROM insta_ids.shards WHERE state = 'active'") || return
        shards+=$found$'\n'
    done
    sed -n 's/.*: //p' <<<"$shards" | sort | uniq -d
}

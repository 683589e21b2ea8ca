-- PL/Proxy and PgDog: configurations that route by the map.

-- Returns the parameters of a connection string of libpq, which may be a URI.
CREATE OR REPLACE FUNCTION insta_ids_internal.dsn_parameters(dsn text) RETURNS TABLE (keyword text, value text)
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    uri CONSTANT text[] := regexp_match(dsn, '^postgres(?:ql)?://(?:([^/@]*)@)?([^/?]*)(?:/([^?]*))?(?:[?](.*))?$');
    hosts text[];
    ports text[];
BEGIN
    IF uri IS NULL THEN
        RETURN QUERY
        SELECT p[1], regexp_replace(coalesce(p[2], p[3]), $re$\\(.)$re$, $re$\1$re$, 'g')
        FROM regexp_matches(dsn, $re$([a-z_]+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s\\]|\\.)*))$re$, 'g') p;
        RETURN;
    END IF;
    SELECT array_agg(trim(BOTH '[]' FROM h[1])), array_agg(coalesce(h[2], '')) INTO hosts, ports
    FROM regexp_split_to_table(uri[2], ',') host, regexp_match(host, $re$^(\[[^]]*\]|[^:]*)(?::(\d*))?\Z$re$) h;
    RETURN QUERY
    SELECT p.keyword, insta_ids_internal.percent_decoded(p.value)
    FROM (
        VALUES ('user', uri[1]), ('host', array_to_string(hosts, ',')),
            ('port', CASE WHEN ports <> array_fill(''::text, ARRAY[cardinality(ports)]) THEN array_to_string(ports, ',') END),
            ('dbname', uri[3])
        UNION ALL
        SELECT split_part(parameter, '=', 1), substr(parameter, strpos(parameter, '=') + 1)
        FROM regexp_split_to_table(uri[4], '&') parameter
        UNION ALL
        SELECT 'sslmode', 'require' WHERE uri[4] ~ '(^|&)ssl=true(&|$)'
    ) p (keyword, value)
    WHERE p.value <> '' AND p.keyword <> 'ssl';
END
$$;

-- Returns a part of a URI with its percent-encoding decoded.
CREATE OR REPLACE FUNCTION insta_ids_internal.percent_decoded(encoded text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.convert_from(pg_catalog.decode(pg_catalog.string_agg(
        CASE WHEN p.part[1] IS NULL THEN pg_catalog.encode(pg_catalog.convert_to(p.part[2], 'UTF8'), 'hex') ELSE p.part[1] END,
        '' ORDER BY p.place), 'hex'), 'UTF8')
    FROM pg_catalog.regexp_matches(encoded, '%([0-9A-Fa-f]{2})|(.)', 'g') WITH ORDINALITY p (part, place);
END;

-- PL/Proxy

-- Returns the connection string of each shard, in the shards' order. It contains no user, so PL/Proxy connects as the calling
-- role. A shard without a node gets the first node, which refuses the shard and says why. PL/Proxy adds the role only if the
-- text `user=` is absent, so equals signs in values are escaped.
CREATE OR REPLACE FUNCTION insta_ids_internal.plproxy_partitions() RETURNS SETOF text
    STABLE PARALLEL SAFE LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH target AS (
        SELECT n.node, n.ord, (
            SELECT pg_catalog.string_agg(
                pg_catalog.format('%s=''%s''', p.keyword, pg_catalog.regexp_replace(p.value, $re$(['\\=])$re$, $re$\\\1$re$, 'g')), ' ')
            FROM insta_ids_internal.dsn_parameters(n.dsn) p WHERE p.keyword <> 'user') AS dsn
        FROM insta_ids_internal.node n
    )
    SELECT t.dsn
    FROM pg_catalog.generate_series(0, (SELECT c.shards - 1 FROM insta_ids_internal.config c)) s (shard)
    LEFT JOIN insta_ids_internal.assignment a ON s.shard BETWEEN a.first AND a.last
    JOIN target t ON t.node = coalesce(a.node, (SELECT n.node FROM insta_ids_internal.node n ORDER BY n.ord LIMIT 1))
    ORDER BY s.shard;
END;

CREATE OR REPLACE FUNCTION insta_ids.install_plproxy(cluster text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    made CONSTANT text := 'made by insta_ids.install_plproxy()';
    other record;
BEGIN
    PERFORM insta_ids_internal.require_config();
    IF NOT EXISTS (SELECT FROM pg_language l WHERE l.lanname = 'plproxy') THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'extension "plproxy" is not installed in this database',
            HINT = 'Create it: CREATE EXTENSION plproxy.';
    END IF;
    IF to_regnamespace('plproxy') IS NULL THEN
        CREATE SCHEMA plproxy;
        GRANT USAGE ON SCHEMA plproxy TO PUBLIC;
    END IF;
    SELECT f.* INTO other
    FROM (
        SELECT 'schema plproxy', n.nspowner, made FROM pg_namespace n WHERE n.nspname = 'plproxy'
        UNION ALL
        SELECT 'function ' || p.oid::regprocedure, p.proowner, obj_description(p.oid, 'pg_proc')
        FROM pg_proc p
        WHERE p.pronamespace = to_regnamespace('plproxy')
            AND p.proname IN ('get_cluster_version', 'get_cluster_partitions', 'get_cluster_config')
    ) f (object, owner, description)
    WHERE f.description IS DISTINCT FROM made
        OR NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = f.owner) AND f.owner <> current_user::regrole
    ORDER BY f.description IS DISTINCT FROM made DESC LIMIT 1;
    IF FOUND AND other.description IS DISTINCT FROM made THEN
        RAISE duplicate_function USING MESSAGE = format('%s already exists', other.object),
            DETAIL = 'It says what other clusters are.',
            HINT = 'Let it return the version of insta_ids.map and insta_ids_internal.plproxy_partitions() for this cluster.';
    ELSIF FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s is of role %s', other.object, other.owner::regrole),
            DETAIL = 'That role could have others call what it likes.',
            HINT = 'Make it your own by ALTER ... OWNER TO, or drop it.';
    END IF;
    -- For other clusters, these functions return nothing, and PL/Proxy reports that.
    EXECUTE format($f$
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_version(cluster_name text) RETURNS integer
            STABLE LANGUAGE sql
            RETURN (SELECT coalesce(max(m.version), 0)::integer FROM insta_ids.map m HAVING cluster_name = %1$L);
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_partitions(cluster_name text) RETURNS SETOF text
            STABLE LANGUAGE sql
            BEGIN ATOMIC SELECT p FROM insta_ids_internal.plproxy_partitions() p WHERE cluster_name = %1$L; END;
        CREATE OR REPLACE FUNCTION plproxy.get_cluster_config(cluster_name text, OUT key text, OUT val text) RETURNS SETOF record
            STABLE LANGUAGE sql
            BEGIN ATOMIC SELECT 'modular_mapping', '1' WHERE cluster_name = %1$L; END;
        COMMENT ON FUNCTION plproxy.get_cluster_version(text) IS %2$L;
        COMMENT ON FUNCTION plproxy.get_cluster_partitions(text) IS %2$L;
        COMMENT ON FUNCTION plproxy.get_cluster_config(text) IS %2$L;
    $f$, cluster, made);
END
$$;
COMMENT ON FUNCTION insta_ids.install_plproxy(text) IS 'makes the functions by which PL/Proxy routes a cluster by the map';

-- PgDog

-- The configuration has an entry for each node. Other entries lead to the nodes: one for each schema, or one for each of these
-- columns. Strings of JSON are also strings of TOML.
CREATE OR REPLACE FUNCTION insta_ids.export_pgdog(
    database text, id_columns text[] DEFAULT '{}', key_columns text[] DEFAULT '{}', text_key_columns text[] DEFAULT '{}',
    uuid_key_columns text[] DEFAULT '{}')
    RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config CONSTANT insta_ids_internal.config := insta_ids_internal.require_config();
    nodes CONSTANT name[] := ARRAY(SELECT n.node FROM insta_ids_internal.node n ORDER BY n.ord);
    lookup CONSTANT text :=
        'SELECT m.ord FROM insta_ids.map m WHERE %s BETWEEN m.first AND m.last';
    next record;
    entries text[];
BEGIN
    IF (SELECT count(*) <> max(n.ord) + 1 FROM insta_ids_internal.node n) OR nodes = '{}' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'nodes are not numbered from 0 without a gap',
            DETAIL = 'PgDog numbers its servers like that.',
            HINT = 'Give them other numbers: insta_ids.add_node(node, dsn, ord).';
    END IF;
    entries := ARRAY[format('# Version %s of the map of insta_ids.', (SELECT coalesce(max(m.version), 0) FROM insta_ids_internal.map m))];
    FOR next IN
        SELECT n.node, n.ord, jsonb_object_agg(p.keyword, p.value) FILTER (WHERE p.keyword IS NOT NULL) AS parameters
        FROM insta_ids_internal.node n LEFT JOIN LATERAL insta_ids_internal.dsn_parameters(n.dsn) p ON true
        GROUP BY n.node, n.ord ORDER BY n.ord
    LOOP
        IF coalesce(next.parameters ->> 'host', ',') ~ '[,/]' THEN
            RAISE object_not_in_prerequisite_state USING
                MESSAGE = format('connection string of node "%s" does not name one host', next.node),
                DETAIL = 'PgDog connects to one host by TCP, and reads no service file.';
        END IF;
        entries := entries || concat_ws(E'\n', '[[databases]]',
            format('name = %s', to_json(database)),
            format('host = %s', next.parameters -> 'host'),
            'port = ' || (next.parameters ->> 'port')::integer,
            'database_name = ' || (next.parameters -> 'dbname')::text,
            format('shard = %s', next.ord));
    END LOOP;
    IF id_columns || key_columns || text_key_columns || uuid_key_columns = '{}' THEN
        entries := entries || ARRAY(
            SELECT concat_ws(E'\n', '[[sharded_schemas]]', format('database = %s', to_json(database)),
                format('name = %s', to_json(insta_ids.schema_of(s))), format('shard = %s', n.ord))
            FROM insta_ids_internal.assignment a
            JOIN insta_ids_internal.node n ON n.node = a.node
            CROSS JOIN generate_series(a.first, a.last) s
            ORDER BY s);
    ELSE
        entries := entries || ARRAY(
            SELECT concat_ws(E'\n', '[[sharded_tables]]', format('database = %s', to_json(database)),
                format('column = %s', to_json(c.name)), format('data_type = "%s"', l.data_type),
                format('lookup_query = %s', to_json(format(lookup, l.shard))), 'lookup_result = "shard"')
            -- PgDog sends the key as a text without a type.
            FROM (VALUES
                (1, id_columns, 'bigint', format('%s.id_shard($1::bigint%s)',
                    insta_ids_internal.extension_schema(), insta_ids_internal.layout_argument(config.layout))),
                (2, key_columns, 'bigint', 'insta_ids.shard_of($1::bigint)'),
                (3, text_key_columns, 'varchar', 'insta_ids.shard_of_text($1::text)'),
                (4, uuid_key_columns, 'uuid', 'insta_ids.shard_of_uuid($1::uuid)')
            ) l (place, columns, data_type, shard)
            CROSS JOIN unnest(l.columns) WITH ORDINALITY c (name, place)
            WHERE c.name IS NOT NULL
            ORDER BY l.place, c.place);
    END IF;
    RETURN array_to_string(entries, E'\n\n') || E'\n';
END
$$;
COMMENT ON FUNCTION insta_ids.export_pgdog(text, text[], text[], text[], text[]) IS
    'the part of PgDog''s configuration that follows the map';

-- Nodes of the map, and this server's place among them. The map says where a shard is; a fence stops writers.

CREATE OR REPLACE FUNCTION insta_ids.this_node() RETURNS text
    STABLE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'this_node_wrapper';
COMMENT ON FUNCTION insta_ids.this_node() IS 'name of this server''s node, NULL if it has none';

-- Makes all sessions read the map, the fences and the writer slot again.
CREATE OR REPLACE FUNCTION insta_ids_internal.forget_map() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'forget_map_wrapper';

-- Raises the error for a shard that is fenced here, or on another node.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_shard(shard integer, is_fenced boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'refuse_shard_wrapper';

-- Returns the system identifier and the timeline of this server, and the OID of this database, as 7312345678901234567/1/5, or
-- NULL on a standby. A promotion begins a new timeline, and a dump is restored into another database.
CREATE OR REPLACE FUNCTION insta_ids_internal.timeline() RETURNS text
    STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'timeline_wrapper';

-- Returns the name of this server's node. Raises an error if it has none.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_node() RETURNS name
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    node name := insta_ids.this_node();
BEGIN
    IF node IS NULL THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'this server has no name among the nodes',
            HINT = 'Set insta_ids.node in postgresql.conf, and restart the server.';
    END IF;
    RETURN node;
END
$$;

-- Gives the map a new version when its tables change, and makes all sessions read it again. Raises an error for an unsafe
-- connection string, and unless the role is a superuser: superusers connect to the nodes, and run migrations that come from them.
CREATE OR REPLACE FUNCTION insta_ids_internal.bump_map_version() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.forget_map();
    IF TG_TABLE_NAME <> 'assignment' THEN
        IF NOT insta_ids_internal.is_superuser() THEN
            RAISE insufficient_privilege USING MESSAGE = 'must be superuser to change the nodes of the map',
                DETAIL = 'Superusers connect to the nodes.';
        END IF;
        PERFORM insta_ids_internal.require_safe_dsn(n.dsn) FROM insta_ids_internal.node n;
    END IF;
    -- A statement that only inserts may come from a dump, and the dump contains the version. Other changes also fire the
    -- trigger for UPDATE or DELETE. A node is dropped or comes back by a statement on insta_ids_internal.node, which counts.
    IF TG_OP <> 'INSERT' AND TG_TABLE_NAME <> 'dropped_node' THEN
        INSERT INTO insta_ids_internal.map VALUES (1) ON CONFLICT ((true)) DO UPDATE SET version = map.version + 1;
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.node
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.bump_map_version();
ALTER TABLE insta_ids_internal.node ENABLE ALWAYS TRIGGER changed;
CREATE OR REPLACE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.dropped_node
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.bump_map_version();
ALTER TABLE insta_ids_internal.dropped_node ENABLE ALWAYS TRIGGER changed;
CREATE OR REPLACE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.assignment
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.bump_map_version();
ALTER TABLE insta_ids_internal.assignment ENABLE ALWAYS TRIGGER changed;

-- Notifies listeners of the version that the transaction leaves. Equal notifications of a transaction arrive only once. The
-- function runs with the rights of its owner, because the role may have changed before the commit.
CREATE OR REPLACE FUNCTION insta_ids_internal.notify_map() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.forget_map(), pg_notify('insta_ids_map', m.version::text) FROM insta_ids_internal.map m;
    RETURN NULL;
END
$$;

-- Raises an error if a connection string contains a password or options, or if it says twice where the server is.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_safe_dsn(dsn text) RETURNS void
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- In a URI, a port counts as a host.
    names_host CONSTANT boolean := dsn ~* $re$(^|[^a-z_])host\s*=$re$ OR dsn ~ '^postgres(ql)?://([^/@]*@)?[^/?@]+([/?]|$)';
BEGIN
    -- libpq takes a password from a parameter, also after a quote or in a URI, and from after the user's name in a URI. A
    -- parameter's name could be escaped in a URI, so escapes in names are refused.
    IF dsn ~* $re$(^|[^a-z_])(password|sslpassword|scram_client_key|scram_server_key|oauth_client_secret)\s*=$re$
        OR dsn ~ '^postgres(ql)?://' AND (dsn ~ '^[^:]*://[^/@]*:[^/@]*@' OR dsn ~ '[?&][^=&]*%[^=&]*=')
    THEN
        RAISE invalid_parameter_value USING MESSAGE = 'connection string has a password',
            DETAIL = 'The map is read by everybody.',
            HINT = 'Name a passfile or a service in it, which the servers'' own user can read, or use another way to authenticate.';
    ELSIF dsn ~* $re$(^|[^a-z_])options\s*=$re$ THEN
        RAISE invalid_parameter_value USING MESSAGE = 'connection string has options',
            DETAIL = 'They could set anything for the session, such as the libraries that it loads.',
            HINT = 'Set what is needed there, by ALTER ROLE or ALTER DATABASE.';
    ELSIF dsn ~* $re$(^|[^a-z_])hostaddr\s*=$re$ AND (names_host OR dsn ~* $re$(^|[^a-z_])service\s*=$re$)
        OR dsn ~* $re$(^|[^a-z_])service\s*=$re$ AND (names_host OR dsn ~* $re$(^|[^a-z_])port\s*=$re$)
    THEN
        RAISE invalid_parameter_value USING MESSAGE = 'connection string says twice where the server is',
            DETAIL = 'libpq would send the password that a passfile or the service has for the one to the other.',
            HINT = 'Name a host, a hostaddr or a service, and beside a service no port.';
    END IF;
END
$$;

-- Returns the version that the map gets by the next change.
CREATE OR REPLACE FUNCTION insta_ids_internal.next_map_version() RETURNS bigint
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN 1 + coalesce((SELECT m.version FROM insta_ids_internal.map m), 0);

CREATE OR REPLACE FUNCTION insta_ids.add_node(node name, dsn text, ord integer DEFAULT NULL, weight float8 DEFAULT NULL)
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF coalesce(node, '') = '' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'name of a node is empty';
    ELSIF dsn IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'connection string must be given';
    END IF;
    IF weight NOT BETWEEN 0 AND 1e6 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('weight of a node cannot be %s', weight),
            DETAIL = 'It can be from 0 to 1000000.';
    END IF;
    LOCK TABLE insta_ids_internal.node IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (
        SELECT FROM insta_ids_internal.node n
        WHERE (n.node, n.dsn, n.ord, n.weight)
            = (add_node.node, add_node.dsn, coalesce(add_node.ord, n.ord), coalesce(add_node.weight, n.weight)))
    THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM insta_ids_internal.node n WHERE n.ord = add_node.ord AND n.node <> add_node.node) THEN
        RAISE unique_violation USING MESSAGE = format('another node has the number %s', ord);
    END IF;
    INSERT INTO insta_ids_internal.node AS n
    VALUES (add_node.node, add_node.dsn,
        coalesce(add_node.ord, (SELECT m.ord FROM insta_ids_internal.node m WHERE m.node = add_node.node),
            (SELECT coalesce(max(m.ord) + 1, 0) FROM insta_ids_internal.node m)),
        coalesce(add_node.weight, (SELECT m.weight FROM insta_ids_internal.node m WHERE m.node = add_node.node), 1),
        insta_ids_internal.next_map_version())
    ON CONFLICT ON CONSTRAINT node_pkey
        DO UPDATE SET dsn = excluded.dsn, ord = excluded.ord, weight = excluded.weight, version = excluded.version;
    DELETE FROM insta_ids_internal.dropped_node d WHERE d.node = add_node.node;
END
$$;
COMMENT ON FUNCTION insta_ids.add_node(name, text, integer, float8) IS
    'adds a server to the map, or changes how to connect to it and how much it can take';

CREATE OR REPLACE FUNCTION insta_ids.drop_node(node name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    assigned record;
    version bigint;
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    LOCK TABLE insta_ids_internal.node, insta_ids_internal.assignment IN SHARE ROW EXCLUSIVE MODE;
    version := insta_ids_internal.next_map_version();
    SELECT a.first, a.last INTO assigned FROM insta_ids_internal.assignment a WHERE a.node = drop_node.node ORDER BY a.first LIMIT 1;
    IF FOUND THEN
        RAISE dependent_objects_still_exist USING MESSAGE = format('node "%s" has shards', node),
            DETAIL = format('It has those from %s to %s.', assigned.first, assigned.last),
            HINT = 'Move them first, or assign them to another node if they are there.';
    ELSIF EXISTS (SELECT FROM insta_ids_internal.move m WHERE drop_node.node IN (m.from_node, m.to_node)) THEN
        RAISE object_in_use USING MESSAGE = format('shards move from or to node "%s"', node), HINT = 'See insta_ids.moves.';
    END IF;
    DELETE FROM insta_ids_internal.node n WHERE n.node = drop_node.node;
    IF NOT FOUND THEN
        PERFORM insta_ids_internal.require_node(node);
    END IF;
    INSERT INTO insta_ids_internal.dropped_node VALUES (drop_node.node, version);
END
$$;
COMMENT ON FUNCTION insta_ids.drop_node(name) IS 'takes a server that has no shards from the map';

-- Raises an error unless a node is on the map.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_node(node name) RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM insta_ids_internal.node n WHERE n.node = require_node.node) THEN
        RAISE undefined_object USING MESSAGE = format('node "%s" does not exist', node),
            HINT = 'Add it with insta_ids.add_node().';
    END IF;
END
$$;

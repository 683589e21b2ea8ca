-- Event triggers: the objects of a shard that is fenced or moves cannot be altered, nor a table that is being distributed.

-- Each event trigger calls this. Nearly all statements end here: it calls refuse_ddl() or refuse_ddl_at_start() only if a shard is
-- fenced or moves, if a table is being distributed, or for ALTER SCHEMA.
CREATE OR REPLACE FUNCTION insta_ids_internal.watch_ddl() RETURNS event_trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_watch_ddl';

-- Returns the schemas of shards that are fenced or move, as committed now, whatever the transaction's snapshot is.
CREATE OR REPLACE FUNCTION insta_ids_internal.fenced_schemas() RETURNS TABLE (shard integer, schema text)
    VOLATILE PARALLEL UNSAFE ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'fenced_schemas_wrapper';

-- Returns the schema out of which ALTER ... SET SCHEMA has moved an object, or NULL for another command.
CREATE OR REPLACE FUNCTION insta_ids_internal.left_schema(command pg_ddl_command) RETURNS oid
    STABLE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'insta_ids_left_schema';

-- Returns what to do before an object of a fenced shard can be altered.
CREATE OR REPLACE FUNCTION insta_ids_internal.hint_to_alter(shard integer) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN CASE
        WHEN EXISTS (SELECT FROM insta_ids_internal.fence f WHERE f.shard = hint_to_alter.shard AND f.to_node IS NULL)
            THEN format('Open it first: SELECT insta_ids.unfence(%s).', shard)
        ELSE 'Try again when it has moved: see insta_ids.moves.' END;
END
$$;

-- Returns an object that the statement of an event trigger has altered or dropped, and its shard, if that is one of `shards`.
-- `schemas` has the schemas of `shards`, in the same order.
CREATE OR REPLACE FUNCTION insta_ids_internal.altered_object(event text, shards integer[], schemas text[])
    RETURNS TABLE (shard integer, object text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF event = 'sql_drop' THEN
        RETURN QUERY
        SELECT f.shard, d.object_type || ' ' || d.object_identity
        FROM pg_event_trigger_dropped_objects() d
        JOIN unnest(shards, schemas) f (shard, schema) ON f.schema
            = coalesce(d.schema_name, CASE d.object_type WHEN 'schema' THEN d.object_name ELSE d.address_names[1] END)
        WHERE NOT d.is_temporary AND d.object_type <> 'publication relation' LIMIT 1;
    ELSE
        RETURN QUERY
        SELECT f.shard, c.object_type || ' ' || c.object_identity
        FROM pg_event_trigger_ddl_commands() c
        -- Triggers, rules and policies have no schema of their own.
        LEFT JOIN pg_trigger t ON c.classid = 'pg_trigger'::regclass AND t.oid = c.objid
        LEFT JOIN pg_rewrite r ON c.classid = 'pg_rewrite'::regclass AND r.oid = c.objid
        LEFT JOIN pg_policy p ON c.classid = 'pg_policy'::regclass AND p.oid = c.objid
        LEFT JOIN pg_class o ON o.oid = coalesce(t.tgrelid, r.ev_class, p.polrelid)
        LEFT JOIN pg_namespace n ON n.oid = o.relnamespace
        LEFT JOIN pg_namespace l ON l.oid = insta_ids_internal.left_schema(c.command)
        JOIN unnest(shards, schemas) f (shard, schema) ON f.schema IN (coalesce(c.schema_name, n.nspname), l.nspname)
            OR c.command_tag = 'ALTER SCHEMA' AND to_regnamespace(quote_ident(f.schema)) IS NULL
        WHERE c.command_tag NOT IN ('COMMENT', 'REINDEX', 'REFRESH MATERIALIZED VIEW')
            AND c.object_type <> 'publication relation' LIMIT 1;
    END IF;
END
$$;

-- Returns the publication of a move if the statement of an event trigger has altered or dropped it, and otherwise NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.altered_publication(event text) RETURNS name
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF event = 'sql_drop' THEN
        RETURN (
            SELECT m.name
            FROM pg_event_trigger_dropped_objects() d
            JOIN insta_ids_internal.move m
                ON m.name = CASE d.object_type WHEN 'publication' THEN d.object_name ELSE d.address_args[1] END
            WHERE d.object_type IN ('publication', 'publication relation', 'publication namespace') LIMIT 1);
    END IF;
    RETURN (
        SELECT m.name
        FROM pg_event_trigger_ddl_commands() c
        LEFT JOIN pg_publication_rel r ON c.classid = 'pg_publication_rel'::regclass AND r.oid = c.objid
        LEFT JOIN pg_publication_namespace n ON c.classid = 'pg_publication_namespace'::regclass AND n.oid = c.objid
        JOIN pg_publication p ON p.oid
            = coalesce(r.prpubid, n.pnpubid, CASE c.classid WHEN 'pg_publication'::regclass THEN c.objid END)
        JOIN insta_ids_internal.move m ON m.name = p.pubname
            -- It has another name now.
            OR c.object_type = 'publication' AND m.step IN ('offered', 'fenced', 'released')
                AND NOT EXISTS (SELECT FROM pg_publication s WHERE s.pubname = m.name)
        LIMIT 1);
END
$$;

-- Raises an error if the statement of an event trigger has altered or dropped what cannot be altered now.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_ddl(event text, tag text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Functions name those of the extension with the schema.
    IF tag = 'ALTER SCHEMA' AND to_regnamespace('insta_ids') IS NULL THEN
        RAISE dependent_objects_still_exist USING MESSAGE = 'schema insta_ids cannot be renamed',
            DETAIL = 'Functions of the extension insta_ids look for it by this name.';
    END IF;
    -- A restore by a superuser creates some objects after the rows of fences and of distributions. pg_dump's scripts set
    -- check_function_bodies to off.
    IF current_setting('check_function_bodies') = 'off' AND (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user) THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.refuse_ddl_on_fenced_shards(event, tag);
    IF EXISTS (SELECT FROM insta_ids_internal.distribution d WHERE d.step <> 'registered') THEN
        PERFORM insta_ids_internal.refuse_ddl_on_sources(event, tag), insta_ids_internal.guard_new_partitions(event, tag);
    END IF;
END
$$;

-- Raises an error if a statement has altered an object of a shard that is fenced or moves.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_ddl_on_fenced_shards(event text, tag text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shards integer[];
    schemas text[];
    altered record;
    publication name;
BEGIN
    -- Before PostgreSQL 16, a superuser may have to take over objects of a prepared shard. See require_trusted_owners().
    SELECT array_agg(f.shard), array_agg(f.schema) INTO shards, schemas FROM insta_ids_internal.fenced_schemas() f
    WHERE current_setting('server_version_num')::integer >= 160000
        OR NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE f.shard = ANY (m.shards) AND m.step = 'prepared')
        OR NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user);
    IF shards IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO altered FROM insta_ids_internal.altered_object(event, shards, schemas);
    IF FOUND THEN
        RAISE object_in_use USING MESSAGE = format('shard %s moves or is fenced, and cannot be altered', altered.shard),
            DETAIL = format('%s belongs to the shard.', upper(left(altered.object, 1)) || substr(altered.object, 2)),
            HINT = insta_ids_internal.hint_to_alter(altered.shard);
    END IF;
    -- The publication of a move says which rows reach the target.
    publication := insta_ids_internal.altered_publication(event);
    IF publication IS NOT NULL THEN
        RAISE object_in_use USING MESSAGE = format('publication "%s" is of a move, and cannot be altered', publication),
            DETAIL = 'Rows would not reach the other server.',
            HINT = 'Try again when its shards have moved: see insta_ids.moves.';
    END IF;
    IF tag IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE FOREIGN TABLE') THEN
        PERFORM insta_ids_internal.require_no_outside_children(shards);
    END IF;
END
$$;

-- Raises an error if one of these schemas is of a shard that is fenced or moves.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_not_fenced(schemas text[]) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    altered CONSTANT integer := (
        SELECT min(f.shard) FROM insta_ids_internal.fenced_schemas() f WHERE f.schema = ANY (schemas));
BEGIN
    IF altered IS NOT NULL THEN
        RAISE object_in_use USING MESSAGE = format('shard %s moves or is fenced, and cannot be altered', altered),
            HINT = insta_ids_internal.hint_to_alter(altered);
    END IF;
END
$$;

-- Raises an error before a statement with CONCURRENTLY alters a shard that is fenced or moves. These statements commit before
-- they end, so refuse_ddl() would leave them half done. They run outside of functions and transaction blocks,
-- so current_query() is their text.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_ddl_at_start() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    schemas pg_catalog.text[];
BEGIN
    -- search_path is the client's, so that the statement's relations are found.
    BEGIN
        schemas := ARRAY(
            SELECT coalesce(s.schema, n.nspname::pg_catalog.text)
            FROM insta_ids_internal.statements(pg_catalog.current_query()) s
            CROSS JOIN LATERAL pg_catalog.unnest(s.alters) a (name)
            LEFT JOIN pg_catalog.pg_class c
                ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(pg_catalog.quote_ident(a.name))::pg_catalog.oid
            LEFT JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
            WHERE s.kind OPERATOR(pg_catalog.=) 'concurrent');
    EXCEPTION
        -- Parsing fails if the text has changed how texts are parsed. A statement with CONCURRENTLY is the only one of its
        -- text.
        WHEN OTHERS THEN RETURN;
    END;
    PERFORM insta_ids_internal.require_not_fenced(schemas);
END
$$;

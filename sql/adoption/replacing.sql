-- Adoption: locks a schema against minting, and replaces its functions.

-- Locks the tables of the schema, tables elsewhere that its functions fill, all their partitions and child tables, the sequences
-- of the schema, and `others`, until the transaction ends. It locks tables without ids, too: a statement that calls a function
-- for their rows is then planned either before or after the function is replaced. Raises an error if it does not get all locks
-- within `lock_timeout`, or if locks of a table do not keep writers from its rows.
CREATE OR REPLACE FUNCTION insta_ids_internal.lock_against_minting(schema regnamespace, others regclass[], lock_timeout interval)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tables CONSTANT regclass[] := ARRAY(
        WITH RECURSIVE tree AS (
            SELECT c.relation::oid FROM insta_ids_internal.filled_columns(schema) c
            UNION SELECT c.oid FROM pg_class c WHERE c.relnamespace = schema
            UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.relation
        )
        SELECT c.oid FROM tree t JOIN pg_class c ON c.oid = t.relation AND c.relkind IN ('r', 'p') ORDER BY c.oid);
BEGIN
    PERFORM insta_ids_internal.lock_relations(tables, 'ACCESS EXCLUSIVE',
        ARRAY(SELECT s FROM insta_ids_internal.minting_sequences(schema) s UNION SELECT s FROM unnest(others) s ORDER BY 1),
        format('schema %s', schema), lock_timeout);
    PERFORM insta_ids_internal.require_heaps(ARRAY[schema]::oid[], true);
END
$$;

-- Waits until the clock is at a time whose ids are greater than all ids of `past`. Raises an error if that takes more than 5 s,
-- because other sessions wait for this transaction's locks. It takes that long only if the clock was set back meanwhile.
CREATE OR REPLACE FUNCTION insta_ids_internal.await_clock(past timestamptz) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    until CONSTANT timestamptz := insta_ids_internal.id_time(insta_ids_internal.id_max(past, layout) + 1, layout);
    ahead interval;
BEGIN
    LOOP
        ahead := until - clock_timestamp();
        EXIT WHEN ahead <= interval '0';
        IF ahead > interval '5 s' THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('clock is %s behind the newest id', ahead),
                HINT = 'Call again when the clock has passed the newest id.';
        END IF;
        -- The clock may be set during the wait, so it is read again soon.
        PERFORM insta_ids_internal.wait_ms(least(100, ceil(extract(epoch FROM ahead) * 1000))::integer);
    END LOOP;
END
$$;

-- Returns the names in a setting's value as a list of literals. An unquoted name can have any characters but blanks and commas,
-- because SET ... FROM CURRENT stores a value as it is.
CREATE OR REPLACE FUNCTION insta_ids_internal.quoted_list(value text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN coalesce((
        SELECT pg_catalog.string_agg(
            pg_catalog.quote_literal(coalesce(pg_catalog.replace(n.name[1], '""', '"'), pg_catalog.lower(n.name[2]))), ', '
            ORDER BY n.place)
        FROM pg_catalog.regexp_matches(value, $re$"((?:[^"]|"")*)"|([^\s,]+)$re$, 'g') WITH ORDINALITY n (name, place)), '''''');

-- Gives a function another body. Its name, arguments, owner and privileges stay, and with `has_settings` its settings. Raises an
-- error if another session renames the function meanwhile.
CREATE OR REPLACE FUNCTION insta_ids_internal.rewrite_function(function regprocedure, language text, body text, has_settings boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    old CONSTANT pg_proc := (SELECT p FROM pg_proc p WHERE p.oid = function);
    arguments text := pg_get_function_arguments(function);
    result text;
    settings text;
BEGIN
    -- The body assigns to an argument of this name.
    IF language = 'plpgsql' THEN
        IF 'o' = ANY (old.proargmodes) THEN
            result := old.proargnames[cardinality(old.proargmodes)];
            arguments := left(arguments, - length(concat_ws(' ', 'OUT', quote_ident(nullif(result, '')), 'bigint')));
        ELSIF arguments <> '' THEN
            arguments := arguments || ', ';
        END IF;
        arguments := arguments || 'OUT result bigint';
    END IF;
    IF has_settings THEN
        settings := (
            SELECT string_agg(format(' SET %s = %s', s.name,
                CASE WHEN s.name IN ('search_path', 'temp_tablespaces', 'local_preload_libraries', 'session_preload_libraries')
                    THEN insta_ids_internal.quoted_list(s.value) ELSE quote_literal(s.value) END), '')
            FROM unnest(old.proconfig) c
            CROSS JOIN LATERAL (SELECT split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)) s (name, value));
    END IF;
    -- A SECURITY DEFINER function must not run its caller's functions. A text that names a sequence needs the caller's path.
    IF old.prosecdef AND language = 'plpgsql' AND 'text'::regtype <> ALL (old.proargtypes)
        AND coalesce(settings NOT LIKE '% SET search_path = %', true)
    THEN
        settings := concat(settings, ' SET search_path = pg_catalog, pg_temp');
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION %s.%I(%s) RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE %s%s%s %s',
        old.pronamespace::regnamespace, old.proname, arguments, language,
        CASE WHEN old.prosecdef THEN ' SECURITY DEFINER' END, settings, body);
    -- If its owner has just renamed it, the statement has created a new function of this name instead.
    IF NOT EXISTS (
        SELECT FROM pg_proc p WHERE p.oid = function AND p.pronamespace = old.pronamespace AND p.proname = old.proname)
    THEN
        RAISE serialization_failure USING
            MESSAGE = format('function %s.%I was changed while it was replaced', old.pronamespace::regnamespace, old.proname),
            HINT = 'Call again.';
    END IF;
END
$$;

-- Adoption: the functions, columns and sequences of a schema that mint ids.

-- Returns the shard and the sequence of a PL/pgSQL function whose text is the published one for this layout or a known variant of it,
-- each as a constant or as the number of an argument, and its epoch in Unix milliseconds. Returns no row for any other text.
CREATE OR REPLACE FUNCTION insta_ids_internal.read_published(source text, arguments text[], result text, layout @extschema@.id_layout)
    RETURNS TABLE (shard integer, shard_argument integer, sequence text, sequence_argument integer, epoch bigint)
    IMMUTABLE PARALLEL SAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'read_published_wrapper';

-- Returns the shard and the sequence of the one call of next_id in this layout that a function's body or a default consists of,
-- each as a constant or as the number of an argument. Returns no row for any other expression.
CREATE OR REPLACE FUNCTION insta_ids_internal.read_call(expression text, arguments text[], layout @extschema@.id_layout)
    RETURNS TABLE (shard integer, shard_argument integer, sequence text, sequence_argument integer)
    IMMUTABLE PARALLEL SAFE ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'read_call_wrapper';

-- Returns the published function as a PL/pgSQL body. The function must have the argument OUT result.
CREATE OR REPLACE FUNCTION insta_ids_internal.write_function(layout @extschema@.id_layout, shard text, sequence text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'write_function_wrapper';

-- Calls a function as a role, and returns its result. The function has the rights of that role alone. The caller must roll back
-- what the function does with a subtransaction. Raises an error if the caller cannot become the role, if the role may not call
-- the function, or if the function returns anything but one bigint.
CREATE OR REPLACE FUNCTION insta_ids_internal.call_function(function oid, role oid, arguments text[]) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'call_function_wrapper';

-- Returns the sequence field of an id of this layout.
CREATE OR REPLACE FUNCTION insta_ids_internal.id_seq(id bigint, layout @extschema@.id_layout) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_seq_layout_wrapper';

-- Returns the names of a function's input arguments, '' where an argument has none, and the name of its OUT argument. `is_odd` is
-- true unless the function has IN arguments and at most one OUT argument, at the end. The extension writes only such functions.
CREATE OR REPLACE FUNCTION insta_ids_internal.function_arguments(function oid, OUT names text[], OUT result text, OUT is_odd boolean)
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT coalesce(
               array_agg(coalesce(p.proargnames[i.place], '') ORDER BY i.place)
                   FILTER (WHERE p.proargmodes IS NULL OR p.proargmodes[i.place] <> 'o'), '{}'),
           min(p.proargnames[i.place]) FILTER (WHERE p.proargmodes[i.place] = 'o'),
           bool_or(p.proargmodes[i.place] NOT IN ('i', 'o')
               OR p.proargmodes[i.place] = 'o' AND i.place < cardinality(p.proargmodes))
    INTO names, result, is_odd
    FROM pg_proc p CROSS JOIN generate_series(1, coalesce(cardinality(p.proargmodes), p.pronargs)) i (place)
    WHERE p.oid = function;
END
$$;

-- Returns whether a primary key begins with a bigint column whose default calls this function.
CREATE OR REPLACE FUNCTION insta_ids_internal.fills_key(function oid) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_depend d
        JOIN pg_attrdef x ON d.classid = 'pg_attrdef'::regclass AND x.oid = d.objid
        JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum AND a.atttypid = 'bigint'::regtype
        JOIN pg_constraint c ON c.conrelid = x.adrelid AND c.contype = 'p' AND c.conkey[1] = x.adnum
        WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = function);
END
$$;

-- Returns the sequence that has this name, or NULL if there is none or it is temporary.
CREATE OR REPLACE FUNCTION insta_ids_internal.find_sequence(name text) RETURNS regclass
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT c.oid FROM pg_class c WHERE c.oid = to_regclass(name) AND c.relkind = 'S' AND c.relpersistence <> 't');
EXCEPTION WHEN invalid_name OR syntax_error OR feature_not_supported THEN
    RETURN NULL;
END
$$;

-- Returns the functions of a schema that mint ids, or look as if they did. A function is `native` if it calls next_id, and `known` if
-- its text is the published one: then its shard and its sequence are constants or arguments. If it calls next_id of sql/portable.sql, it
-- is `portable`, too. It is `evident` if its text shows that it mints; other functions are listed because they fill a primary key or
-- have the name next_id. `reason` says why the function cannot be adopted. Locks nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.minting_functions(schema regnamespace)
    RETURNS TABLE (
        function regprocedure, owner oid, text text, native boolean, portable boolean, known boolean, evident boolean,
        shard integer, shard_argument integer, sequence regclass, sequence_argument integer, reason text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- PostgreSQL writes what is stored by these settings, and the digest of a text must not depend on the session.
    SET standard_conforming_strings = on SET quote_all_identifiers = off SET extra_float_digits = 1
    SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO' SET "IntervalStyle" = 'postgres' SET jit = off
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    own_epoch CONSTANT bigint := round(extract(epoch FROM insta_ids_internal.id_time(0, layout)) * 1000);
    without_library CONSTANT oid[] := insta_ids_internal.portable_functions('next_id');
    minting CONSTANT oid[] := insta_ids_internal.id_functions() || without_library;
BEGIN
    RETURN QUERY
    SELECT p.oid::regprocedure, p.proowner, CASE WHEN p.prokind = 'f' THEN pg_get_functiondef(p.oid) END, u.native, u.portable,
           NOT (u.native OR r IS NULL), u.native OR k.is_like, r.shard, r.shard_argument, q.sequence, r.sequence_argument,
           CASE
               WHEN p.prorettype <> 'bigint'::regtype THEN format('It returns %s.', format_type(p.prorettype, NULL))
               WHEN p.proretset OR p.prokind <> 'f' THEN 'It does not return one number.'
               WHEN n.is_odd THEN 'It has a VARIADIC or INOUT argument, or an OUT argument before the last one.'
               WHEN u.native AND r IS NULL THEN 'It is not a single call of next_id in the layout of this database.'
               -- A search_path that does not name pg_catalog begins with it. PostgreSQL calls no functions of pg_temp.
               WHEN c.path ~* $re$,\s*"?pg_catalog"?\s*(,|$)$re$
                   AND c.path !~* $re$^("?pg_temp"?\s*,\s*)?"?pg_catalog"?\s*(,|$)$re$
               THEN 'Its search_path has another schema before pg_catalog, whose functions it may call.'
               WHEN strpos(c.path, '$user') > 0 THEN 'Its search_path depends on who calls it.'
               WHEN r.epoch <> own_epoch THEN format('Its epoch is %s, and that of the layout is %s.', r.epoch, own_epoch)
               WHEN r.sequence IS NOT NULL AND q.sequence IS NULL THEN format('Its sequence "%s" is not found.', r.sequence)
           END
    FROM pg_proc p
    JOIN pg_language l ON l.oid = p.prolang
    CROSS JOIN LATERAL coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) s (source)
    CROSS JOIN LATERAL (
        SELECT count(*) > 0 AS native, coalesce(bool_or(d.refobjid = ANY (without_library)), false) AS portable
        FROM pg_depend d
        WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = ANY (minting)
    ) u
    CROSS JOIN LATERAL (
        SELECT s.source ~* 'nextval' AND s.source ~* '<<|epoch' AS is_like,
               p.prorettype = 'bigint'::regtype AND insta_ids_internal.fills_key(p.oid) AS fills_key,
               -- create_shard_functions leaves a function of this name as it is.
               p.proname = 'next_id' AND (p.pronargs = 0 OR p.pronargs = 1 AND p.proargtypes[0] = 'regclass'::regtype) AS has_shards_name
    ) k
    CROSS JOIN LATERAL insta_ids_internal.function_arguments(p.oid) n
    LEFT JOIN LATERAL (
        SELECT substr(e.entry, length('search_path=') + 1) FROM unnest(p.proconfig) e (entry)
        WHERE starts_with(e.entry, 'search_path=')
    ) c (path) ON true
    LEFT JOIN LATERAL (
        SELECT t.*, NULL::bigint AS epoch FROM insta_ids_internal.read_call(s.source, n.names, layout) t WHERE u.native
        UNION ALL
        SELECT t.* FROM insta_ids_internal.read_published(s.source, n.names, n.result, layout) t
        -- With types of users, its text could mean other functions and operators.
        WHERE NOT u.native AND l.lanname = 'plpgsql' AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) t (type) WHERE t.type >= 16384)
    ) r ON true
    -- As the function finds it: by a qualified name, or in the first schema of its own search_path that has it.
    LEFT JOIN LATERAL (
        SELECT f.sequence
        FROM (
            SELECT r.sequence, 0
            UNION ALL
            SELECT e.schema || '.' || r.sequence, e.place
            FROM string_to_table(c.path, ', ') WITH ORDINALITY e (schema, place) JOIN pg_namespace n ON quote_ident(n.nspname) = e.schema
        ) e (name, place)
        CROSS JOIN LATERAL insta_ids_internal.find_sequence(e.name) f (sequence)
        WHERE f.sequence IS NOT NULL
        ORDER BY e.place LIMIT 1
    ) q (sequence) ON r.sequence_argument IS NULL
    WHERE p.pronamespace = schema AND (u.native OR k.is_like OR k.fills_key OR k.has_shards_name)
    ORDER BY p.oid;
END
$$;

-- Returns the columns of ids: those whose default calls a minting function of this schema, and those of its tables whose default
-- calls next_id, also that of sql/portable.sql. `is_child` is true if the column is inherited from another of them; a child table is read, and gets its CHECK,
-- with its parent. Locks nothing.
CREATE OR REPLACE FUNCTION insta_ids_internal.filled_columns(schema regnamespace)
    RETURNS TABLE (relation regclass, "column" name, shard integer, is_child boolean)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE minting AS (
        SELECT f.function::oid AS oid, p.proargtypes[0] = 'integer'::regtype AS takes_shard
        FROM insta_ids_internal.minting_functions(schema) f JOIN pg_proc p ON p.oid = f.function
        UNION
        SELECT n.oid, true FROM unnest(insta_ids_internal.id_functions() || insta_ids_internal.portable_functions('next_id')) n (oid)
        UNION
        SELECT p.oid, false FROM minting m
        JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_proc'::regclass
        JOIN pg_proc p ON p.oid = d.objid AND p.pronamespace = schema
    ), filled AS (
        SELECT c.oid, a.attname, max(s.shard) AS shard
        FROM minting m
        JOIN pg_proc p ON p.oid = m.oid
        JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = m.oid AND d.classid = 'pg_attrdef'::regclass
        JOIN pg_attrdef x ON x.oid = d.objid
        JOIN pg_class c ON c.oid = x.adrelid AND c.relkind IN ('r', 'p')
        JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
        JOIN pg_type t ON t.oid = a.atttypid AND 'bigint'::regtype IN (t.oid, t.typbasetype)
        LEFT JOIN LATERAL unnest(insta_ids_internal.minted_shards(x.adbin::text, ARRAY[m.oid])) s (shard) ON m.takes_shard
        WHERE schema IN (p.pronamespace, c.relnamespace)
        GROUP BY c.oid, a.attname
    )
    SELECT f.oid::regclass, f.attname, f.shard, EXISTS (
        SELECT FROM pg_inherits i JOIN filled p ON p.oid = i.inhparent AND p.attname = f.attname WHERE i.inhrelid = f.oid)
    FROM filled f
    ORDER BY f.oid, f.attname;
END
$$;

-- Returns the sequences of a schema, and those of other schemas that its functions and defaults use, as far as the catalog shows.
CREATE OR REPLACE FUNCTION insta_ids_internal.minting_sequences(schema regnamespace) RETURNS SETOF regclass
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT f.sequence FROM insta_ids_internal.minting_functions(schema) f WHERE f.sequence IS NOT NULL
    UNION
    SELECT c.oid::pg_catalog.regclass
    FROM insta_ids_internal.filled_columns(schema) f
    JOIN pg_catalog.pg_attribute a ON a.attrelid = f.relation AND a.attname = f."column"
    JOIN pg_catalog.pg_attrdef x ON x.adrelid = a.attrelid AND x.adnum = a.attnum
    JOIN pg_catalog.pg_depend d
        ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = x.oid
        AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    JOIN pg_catalog.pg_class c ON c.oid = d.refobjid AND c.relkind = 'S'
    UNION
    SELECT c.oid::pg_catalog.regclass FROM pg_catalog.pg_class c WHERE c.relnamespace = schema AND c.relkind = 'S';
END;

-- Returns all that adopt decides by, as a text. Two texts differ if another session has changed something.
CREATE OR REPLACE FUNCTION insta_ids_internal.minting_state(schema regnamespace) RETURNS text
    STABLE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.concat(
        (SELECT pg_catalog.array_agg(f ORDER BY f.function) FROM insta_ids_internal.minting_functions(schema) f),
        (SELECT pg_catalog.array_agg(c ORDER BY c.relation, c."column") FROM insta_ids_internal.filled_columns(schema) c));
END;

-- Adoption: schemas whose ids sql/portable.sql mints.

-- Returns the text of the PL/pgSQL function of this name in sql/portable.sql, or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.portable_text(name text) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'portable_text_wrapper';

-- Returns the functions of this name that sql/portable.sql has made, in any schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.portable_functions(name name) RETURNS oid[]
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT p.oid FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'plpgsql'
        WHERE p.proname = portable_functions.name AND p.proconfig = ARRAY['search_path=pg_catalog, pg_temp']
            AND p.prosrc = insta_ids_internal.portable_text(p.proname));
END
$$;

-- Returns the columns of a schema whose default calls one of these functions, with its shard and sequence. `reason` says why the
-- default cannot be replaced.
CREATE OR REPLACE FUNCTION insta_ids_internal.minting_defaults(schema regnamespace, functions oid[])
    RETURNS TABLE (relation regclass, "column" name, shard integer, sequence regclass, reason text)
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- PostgreSQL writes literals by this setting.
    SET standard_conforming_strings = on
AS $$
BEGIN
    RETURN QUERY
    SELECT c.oid::regclass, a.attname, r.shard, to_regclass(r.sequence),
           CASE WHEN to_regclass(r.sequence) IS NULL THEN 'It is not a single call of next_id in the layout of this database.' END
    FROM pg_class c
    JOIN pg_attrdef x ON x.adrelid = c.oid
    JOIN pg_attribute a ON a.attrelid = x.adrelid AND a.attnum = x.adnum
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = x.oid AND d.refclassid = 'pg_proc'::regclass
    LEFT JOIN LATERAL insta_ids_internal.read_call(
        pg_get_expr(x.adbin, x.adrelid), '{}', (insta_ids_internal.require_config()).layout) r ON true
    WHERE c.relnamespace = schema AND d.refobjid = ANY (functions);
END
$$;

-- guard_sequence of sql/portable.sql, with its text. Another role may have made or changed the one of a database, so unadopt calls
-- this one.
DO $$
BEGIN
    EXECUTE pg_catalog.format('CREATE OR REPLACE FUNCTION insta_ids_internal.guard_sequence(seq_name regclass) RETURNS regclass'
        || ' VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS %L',
        insta_ids_internal.portable_text('guard_sequence'));
END
$$;

-- Returns the sequences from which a schema mints by these functions: its own ones, and those of its defaults.
CREATE OR REPLACE FUNCTION insta_ids_internal.minted_sequences(schema regnamespace, functions oid[]) RETURNS SETOF regclass
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT c.oid::regclass FROM pg_class c
    WHERE c.relnamespace = schema AND c.relkind = 'S' AND NOT insta_ids_internal.is_guard(c.oid)
    UNION
    SELECT d.sequence FROM insta_ids_internal.minting_defaults(schema, functions) d;
END
$$;

-- Returns whether a sequence keeps the newest id of another one. guard_sequence has left it a comment.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_guard(sequence regclass) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce(obj_description(sequence, 'pg_class') = 'newest id, kept by next_id of portable.sql', false);
END
$$;

-- Returns the sequence that keeps the newest id of another one, or NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.guard_of(sequence regclass) RETURNS regclass
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT n.oid::regclass
        FROM pg_class s
        JOIN pg_class n ON n.relnamespace = s.relnamespace AND n.relname = s.relname || '_newest' AND n.relkind = 'S'
        WHERE s.oid = sequence AND insta_ids_internal.is_guard(n.oid));
END
$$;

-- Lets all defaults of a schema that call next_id of sql/portable.sql call that of the extension. From then on, the other one refuses
-- the sequences of the schema, because nothing keeps their newest ids. Other schemas may still use sequences that are elsewhere.
CREATE OR REPLACE FUNCTION insta_ids_internal.replace_portable(schema regnamespace) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    portable CONSTANT oid[] := insta_ids_internal.portable_functions('next_id');
    next record;
BEGIN
    IF portable = '{}' THEN
        RETURN;
    END IF;
    FOR next IN SELECT * FROM insta_ids_internal.minting_defaults(schema, portable) LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s.next_id(%s, %L::regclass)',
            next.relation, next."column", insta_ids_internal.extension_schema(), next.shard, next.sequence);
    END LOOP;
    FOR next IN
        SELECT insta_ids_internal.guard_of(c.oid) AS guard FROM pg_class c WHERE c.relnamespace = schema AND c.relkind = 'S'
    LOOP
        CONTINUE WHEN next.guard IS NULL;
        EXECUTE format('DROP SEQUENCE %s', next.guard);
    END LOOP;
END
$$;

-- Raises an error unless a function is next_id of sql/portable.sql.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_portable(function regprocedure) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF function <> ALL (insta_ids_internal.portable_functions('next_id')) THEN
        RAISE invalid_parameter_value USING MESSAGE = format('function %s is not next_id of portable.sql', function),
            HINT = 'Install portable.sql of this version of the extension.';
    END IF;
END
$$;

-- Lets `function`, the next_id of sql/portable.sql, mint from the sequences of a schema again, with ids greater than all of this
-- time. The defaults of the schema call it already.
CREATE OR REPLACE FUNCTION insta_ids_internal.guard_sequences(schema regnamespace, function regprocedure, last_ids timestamptz) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last_id CONSTANT bigint := insta_ids_internal.id_max(last_ids, (insta_ids_internal.require_config()).layout);
    sequence regclass;
    guard regclass;
BEGIN
    FOR sequence IN SELECT s FROM insta_ids_internal.minted_sequences(schema, ARRAY[function::oid]) s ORDER BY s LOOP
        guard := coalesce(insta_ids_internal.guard_of(sequence), insta_ids_internal.guard_sequence(sequence));
        -- A sequence of another schema is guarded still, and its newest id may be greater.
        PERFORM setval(guard, greatest(last_id, pg_sequence_last_value(guard)));
    END LOOP;
END
$$;

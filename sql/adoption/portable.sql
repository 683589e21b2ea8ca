-- Adoption: schemas whose ids sql/portable.sql mints.

-- Returns whether the text of a PL/pgSQL function is that of the function of this name in sql/portable.sql.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_portable(source text, name text) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'is_portable_wrapper';

-- Returns the functions of this name that sql/portable.sql has made, in any schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.portable_functions(name name) RETURNS oid[]
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT p.oid FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'plpgsql'
        WHERE p.proname = portable_functions.name AND p.proconfig = ARRAY['search_path=pg_catalog, pg_temp']
            AND insta_ids_internal.is_portable(p.prosrc, p.proname));
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

-- Returns the sequences of a schema from which sql/portable.sql mints, each with the one that keeps its newest id.
CREATE OR REPLACE FUNCTION insta_ids_internal.guarded_sequences(schema regnamespace) RETURNS TABLE (sequence regclass, newest regclass)
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
    SELECT s.oid::regclass, n.oid::regclass
    FROM pg_class s
    JOIN pg_class n ON n.relnamespace = s.relnamespace AND n.relname = s.relname || '_newest' AND n.relkind = 'S'
    WHERE s.relnamespace = schema AND s.relkind = 'S';
END
$$;

-- Lets all defaults of a schema that call next_id of sql/portable.sql call that of the extension. From then on, the other one refuses
-- the sequences of the schema, because nothing keeps their newest ids.
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
    FOR next IN SELECT * FROM insta_ids_internal.guarded_sequences(schema) LOOP
        EXECUTE format('DROP SEQUENCE %s', next.newest);
    END LOOP;
END
$$;

-- Raises an error unless a function is next_id of sql/portable.sql, with guard_sequence beside it.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_portable(function regprocedure) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF function <> ALL (insta_ids_internal.portable_functions('next_id')) OR NOT EXISTS (
        SELECT FROM pg_proc p JOIN pg_proc g ON g.pronamespace = p.pronamespace
        WHERE p.oid = function AND g.oid = ANY (insta_ids_internal.portable_functions('guard_sequence')))
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('function %s is not next_id of portable.sql', function),
            HINT = 'Install portable.sql of this version of the extension.';
    END IF;
END
$$;

-- Has sql/portable.sql mint from the sequences of a schema again, with ids greater than all of this time.
CREATE OR REPLACE FUNCTION insta_ids_internal.guard_sequences(schema regnamespace, function regprocedure, last_ids timestamptz) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    sequence regclass;
BEGIN
    FOR sequence IN
        SELECT c.oid FROM pg_class c
        WHERE c.relnamespace = schema AND c.relkind = 'S'
            AND NOT EXISTS (SELECT FROM insta_ids_internal.guarded_sequences(schema) g WHERE c.oid IN (g.sequence, g.newest))
        ORDER BY c.oid
    LOOP
        EXECUTE format('SELECT %s.guard_sequence(%L::regclass)',
            (SELECT p.pronamespace::regnamespace FROM pg_proc p WHERE p.oid = function), sequence);
    END LOOP;
    PERFORM setval(g.newest, insta_ids_internal.id_max(last_ids, (insta_ids_internal.require_config()).layout))
    FROM insta_ids_internal.guarded_sequences(schema) g;
END
$$;

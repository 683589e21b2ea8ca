-- The public surface, as the catalog has it: any change of it shows here.
SELECT d.deptype, pg_describe_object(d.classid, d.objid, 0) AS object
FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
WHERE e.extname = 'insta_ids' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
    -- In later versions of PostgreSQL the types of rows and of arrays are among them.
    AND NOT EXISTS (
        SELECT FROM pg_type t
        WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid AND (t.typtype = 'c' OR t.typcategory = 'A'))
    -- What the extension alone calls may change.
    AND NOT EXISTS (
        SELECT FROM pg_proc p
        WHERE d.classid = 'pg_proc'::regclass AND p.oid = d.objid AND p.pronamespace = 'insta_ids_internal'::regnamespace)
ORDER BY 2;

SELECT typname, typlen, typbyval, typalign, typstorage, obj_description(oid, 'pg_type') AS comment
FROM pg_type WHERE typname = 'id_layout';

\x
SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ')' AS function,
       pg_get_function_result(p.oid) AS result,
       CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END AS volatility,
       p.proisstrict AS strict,
       CASE p.proparallel WHEN 's' THEN 'safe' WHEN 'r' THEN 'restricted' ELSE 'unsafe' END AS parallel,
       l.lanname AS language,
       coalesce(p.proacl::text, 'default') AS privileges,
       obj_description(p.oid, 'pg_proc') AS comment
FROM pg_depend d
JOIN pg_extension e ON d.refobjid = e.oid AND d.refclassid = 'pg_extension'::regclass
JOIN pg_proc p ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
JOIN pg_language l ON p.prolang = l.oid
WHERE e.extname = 'insta_ids' AND p.pronamespace <> 'insta_ids_internal'::regnamespace
ORDER BY 1, 8;
\x

-- The functions that run with the rights of their owner, and those of the extension alone that not everybody may execute.
SELECT oid::regprocedure AS function, prosecdef AS security_definer, regexp_replace(proacl::text, 'postgres=[^,}]*,?', '') AS privileges
FROM pg_proc
WHERE pronamespace = 'insta_ids'::regnamespace AND prosecdef
    OR pronamespace = 'insta_ids_internal'::regnamespace AND (prosecdef OR NOT has_function_privilege('public', oid, 'EXECUTE'))
ORDER BY oid::regprocedure::text;
\x

-- The library is loaded by the first call into it, and its settings with it.
SELECT id_shard(0);
SELECT name, unit, context, vartype, min_val, max_val, boot_val, short_desc, extra_desc
FROM pg_settings WHERE name LIKE 'insta\_ids.%' ORDER BY 1;

SELECT extname, extrelocatable FROM pg_extension WHERE extname = 'insta_ids';

-- What lies beside the functions.
-- The owner's own privileges are not the same in all versions of PostgreSQL.
SELECT 'schema' AS kind, nspname AS name, regexp_replace(nspacl::text, 'postgres=[^,]*,', '') AS privileges, obj_description(oid, 'pg_namespace') AS comment
FROM pg_namespace WHERE nspname IN ('insta_ids', 'insta_ids_internal')
UNION ALL
SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'r' THEN 'table' ELSE relkind::text END, relname, regexp_replace(relacl::text, 'postgres=[^,]*,', ''), obj_description(oid, 'pg_class')
FROM pg_class WHERE relnamespace IN ('insta_ids'::regnamespace, 'insta_ids_internal'::regnamespace) AND relkind <> 'i'
ORDER BY 1, 2, 3;
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 'insta_ids.stat_ids'::regclass AND attnum > 0 ORDER BY attnum;
SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'insta_ids_internal.partitioned_table'::regclass;
SELECT unnest(extconfig)::regclass::text AS configuration FROM pg_extension WHERE extname = 'insta_ids' ORDER BY 1;

-- Statements that repair differences between shards.

-- Returns whether a definition of objects_of contains no code of other roles: it names only objects of PostgreSQL, the
-- extension and the shard. PostgreSQL writes out the schema of all other objects. With `may_call_own`, the definition may call
-- functions of the shard, because the statement only stores these calls.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_plain(definition text, may_call_own boolean) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT own.words !~ $re$[\w$"]\s*\.\s*[[:alpha:]_"]$re$
        AND (may_call_own OR own.words !~ E'\x01("[^"]*"|[\\w$]+)\\(')
    FROM insta_ids_internal.extension_schema() e (schema)
    CROSS JOIN LATERAL pg_catalog.regexp_replace(definition, $re$'([^']|'')*'$re$, '', 'g') literals (removed)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN insta_ids_internal.creators(n.nspname) IS NULL
            THEN pg_catalog.replace(pg_catalog.replace(literals.removed, e.schema || '.next_id', 'next_id'),
                e.schema || '.id_', 'id_')
            ELSE literals.removed END
        FROM pg_catalog.pg_namespace n WHERE pg_catalog.quote_ident(n.nspname) = e.schema
    ) own (words);
END;

-- Returns a statement, and unless the owner is a superuser, the role that must run it. The statement may run code of the owner,
-- and this code must not run as the role that reads the finding.
CREATE OR REPLACE FUNCTION insta_ids_internal.for_owner(owner oid, statement text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = owner) THEN statement
        ELSE pg_catalog.format('As role %s: %s', owner::pg_catalog.regrole, statement) END;

-- Returns the statement that gives a shard an object of this definition, or NULL if there is none. A text before it warns if
-- the statement could lose data, or if it blocks other sessions while it reads or rewrites the table. NULL if the statement
-- would bring one shard's code into another.
CREATE OR REPLACE FUNCTION insta_ids_internal.repair_statement(
        difference text, kind text, relation text, name text, definition text, schema name, shard integer)
    RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    while_others_wait CONSTANT text := 'Others wait while all rows are read: ';
    prefix CONSTANT text := left(schema, - length(shard::text));
    own CONSTANT text := insta_ids_internal.in_shard(definition, schema, shard);
    object CONSTANT text := format('%I.', schema) || CASE
        -- These names include the arguments, and are quoted already.
        WHEN kind IN ('function', 'aggregate') THEN insta_ids_internal.in_shard(name, schema, shard)
        ELSE quote_ident(name) END;
    -- NULL for objects that belong to no relation.
    owner CONSTANT text := format('%I.', schema) || quote_ident(relation);
    alter_table CONSTANT text := 'ALTER TABLE ' || owner;
    is_partitioned CONSTANT boolean := EXISTS (
        SELECT FROM pg_class c WHERE c.oid = to_regclass(owner) AND c.relkind = 'p');
BEGIN
    IF difference <> 'extra'
        AND (kind IN ('function', 'aggregate', 'trigger', 'rule', 'view', 'materialized view')
            OR NOT insta_ids_internal.is_plain(definition, kind = 'default' OR starts_with(definition, 'FOREIGN KEY ')))
    THEN
        RETURN NULL;
    -- A definition that names another shard is wrong for this one.
    ELSIF definition ~ ($re$(?<![\w$])$re$ || regexp_replace(prefix, $re$(\W)$re$, $re$\\\1$re$, 'g') || '[0-9]') THEN
        RETURN NULL;
    END IF;
    RETURN CASE difference || ' ' || kind
        WHEN 'missing column' THEN
            CASE
                WHEN own ~ ' NOT NULL$' AND own !~ ' (DEFAULT|GENERATED) ' THEN 'If the table has no rows: '
                -- The type may be a domain of the shard, and then the table may be rewritten.
                WHEN own ~ $re$ (DEFAULT .*\(|GENERATED )$re$ OR starts_with(definition, chr(1))
                    THEN 'Others wait while the table is rewritten: '
            ELSE '' END || format('%s ADD COLUMN %I %s', alter_table, name, own)
        WHEN 'different column' THEN
            format('If no value is lost by it: %s ALTER COLUMN %I TYPE %s USING %2$I%4$s::%3$s', alter_table, name, own,
                -- There is no cast between types of different shards.
                CASE WHEN starts_with(definition, chr(1)) THEN '::text' END)
        WHEN 'missing identity' THEN format('%s ALTER COLUMN %I ADD %s', alter_table, name, own)
        WHEN 'different identity' THEN format('%s ALTER COLUMN %I SET %s', alter_table, name,
            regexp_replace(regexp_replace(own, $re$ AS IDENTITY \(|\)\Z$re$, ' ', 'g'),
                '(INCREMENT|MINVALUE|MAXVALUE|START|CACHE|NO CYCLE|CYCLE)', $re$SET \1$re$, 'g'))
        WHEN 'extra identity' THEN format('If it is not needed: %s ALTER COLUMN %I DROP IDENTITY', alter_table, name)
        WHEN 'extra expression' THEN format('If it is not needed: %s ALTER COLUMN %I DROP EXPRESSION', alter_table, name)
        WHEN 'missing attribute' THEN format('ALTER TYPE %s ADD ATTRIBUTE %I %s', owner, name, own)
        WHEN 'extra attribute' THEN format('If it is not needed: ALTER TYPE %s DROP ATTRIBUTE %I', owner, name)
        WHEN 'missing NOT NULL' THEN while_others_wait || format('%s ALTER COLUMN %I SET NOT NULL', alter_table, name)
        WHEN 'extra NOT NULL' THEN format('%s ALTER COLUMN %I DROP NOT NULL', alter_table, name)
        WHEN 'extra default' THEN format('%s ALTER COLUMN %I DROP DEFAULT', alter_table, name)
        WHEN 'missing index' THEN CASE WHEN is_partitioned
            THEN while_others_wait || replace(own, ' ON ONLY ', ' ON ')
            ELSE regexp_replace(own, ' INDEX ', ' INDEX CONCURRENTLY ') END
        WHEN 'missing constraint' THEN CASE WHEN own ~ '^(CHECK|FOREIGN KEY) ' AND NOT is_partitioned
            THEN format('%s ADD CONSTRAINT %I %s NOT VALID', alter_table, name, own)
            ELSE while_others_wait || format('%s ADD CONSTRAINT %I %s', alter_table, name, own) END
        WHEN 'different constraint' THEN
            while_others_wait || format('%s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I %s', alter_table, name, own)
        WHEN 'extra constraint' THEN format('If it is not needed: %s DROP CONSTRAINT %I', alter_table, name)
        WHEN 'extra column' THEN format('If it is not needed: %s DROP COLUMN %I', alter_table, name)
        WHEN 'missing sequence' THEN format('CREATE SEQUENCE %s %s', object, own)
        WHEN 'different sequence' THEN format('ALTER SEQUENCE %s %s', object, own)
        ELSE CASE
            WHEN kind = 'default' THEN format('%s ALTER COLUMN %I SET DEFAULT %s', alter_table, name, own)
            WHEN difference = 'extra' THEN format('If it is not needed: DROP %s %s',
                CASE WHEN kind IN ('function', 'aggregate') THEN 'ROUTINE' ELSE upper(kind) END,
                CASE WHEN kind IN ('trigger', 'policy', 'rule') THEN format('%I ON %s', name, owner) ELSE object END)
            WHEN difference = 'missing' AND kind = 'statistics' THEN own
        END
    END;
END
$$;

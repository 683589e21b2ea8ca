-- Hints that repair objects of shards.
--
-- A superuser may execute a hint that is a statement with \gexec, and then the session's search_path resolves it. So a statement
-- consists of names, numbers and types of pg_catalog, which are columns of the catalog, and its types, functions and operators
-- are qualified. It contains no expression and no definition, because these are code of the role that wrote them.

-- Returns a statement on a relation as a hint. If the owner is no superuser, the hint names the owner, because the statement may
-- run the owner's code. If a superuser's relation uses code of another role, returns only advice. `relation` may be NULL.
CREATE OR REPLACE FUNCTION insta_ids_internal.for_owner(owner oid, relation oid, statement text) RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other name;
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = owner) THEN
        RETURN format('As role %s: %s', owner::regrole, statement);
    END IF;
    SELECT c.role INTO other FROM insta_ids_internal.code_of_others(ARRAY[relation], as_superuser => true) c;
    RETURN CASE WHEN other IS NULL THEN statement
        ELSE format('A statement on this relation can run code of role %I with your rights. Read that code first.', other) END;
END
$$;

-- Returns the type of a column, as ADD COLUMN and ADD ATTRIBUTE accept it. NULL if the column needs anything else, or if the type
-- is not of pg_catalog.
CREATE OR REPLACE FUNCTION insta_ids_internal.plain_type(relation oid, "column" name) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        -- Types with a modifier are keywords of SQL, which no search_path changes.
        SELECT CASE WHEN a.atttypmod = -1 THEN format('pg_catalog.%I', t.typname) ELSE format_type(t.oid, a.atttypmod) END
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = relation AND a.attname = "column" AND NOT a.attisdropped
            AND t.typnamespace = 'pg_catalog'::regnamespace AND a.attcollation = t.typcollation
            AND NOT a.atthasdef AND NOT a.attnotnull AND a.attidentity = '');

-- Returns the statement that repairs an object of a shard, or NULL if there is none. `other_schema` has the object as it should
-- be. A text before the statement warns if it could lose data, or if it blocks other sessions while it reads the table.
CREATE OR REPLACE FUNCTION insta_ids_internal.repair_statement(
        difference text, kind text, relation text, name text, schema name, shard integer, other_schema name)
    RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    if_not_needed CONSTANT text := 'If it is not needed: ';
    -- NULL for objects that belong to no relation. Extra objects have no other schema.
    owner CONSTANT text := format('%I.', schema) || quote_ident(relation);
    other_owner CONSTANT text := quote_ident(other_schema) || '.' || quote_ident(relation);
    alter_table CONSTANT text := 'ALTER TABLE ' || owner;
    object CONSTANT text := format('%I.%I', schema, name);
    sequence CONSTANT text := (
        SELECT format('%s AS %s %s', object, s.seqtypid::regtype, insta_ids_internal.sequence_options(s))
        FROM pg_sequence s WHERE kind = 'sequence' AND s.seqrelid = to_regclass(quote_ident(other_schema) || '.' || quote_ident(name)));
BEGIN
    RETURN CASE difference || ' ' || kind
        WHEN 'missing column' THEN format('%s ADD COLUMN %I ', alter_table, name)
            || insta_ids_internal.plain_type(to_regclass(other_owner), name::name)
        WHEN 'missing attribute' THEN format('ALTER TYPE %s ADD ATTRIBUTE %I ', owner, name)
            || insta_ids_internal.plain_type(to_regclass(other_owner), name::name)
        WHEN 'missing NOT NULL' THEN
            format('Others wait while all rows are read: %s ALTER COLUMN %I SET NOT NULL', alter_table, name)
        WHEN 'missing sequence' THEN 'CREATE SEQUENCE ' || sequence
        WHEN 'different sequence' THEN 'ALTER SEQUENCE ' || sequence
        WHEN 'extra column' THEN if_not_needed || format('%s DROP COLUMN %I', alter_table, name)
        WHEN 'extra attribute' THEN if_not_needed || format('ALTER TYPE %s DROP ATTRIBUTE %I', owner, name)
        WHEN 'extra NOT NULL' THEN format('%s ALTER COLUMN %I DROP NOT NULL', alter_table, name)
        WHEN 'extra default' THEN format('%s ALTER COLUMN %I DROP DEFAULT', alter_table, name)
        WHEN 'extra identity' THEN if_not_needed || format('%s ALTER COLUMN %I DROP IDENTITY', alter_table, name)
        WHEN 'extra expression' THEN if_not_needed || format('%s ALTER COLUMN %I DROP EXPRESSION', alter_table, name)
        WHEN 'extra constraint' THEN if_not_needed || format('%s DROP CONSTRAINT %I', alter_table, name)
        ELSE CASE WHEN difference = 'extra' THEN if_not_needed || CASE
            WHEN kind IN ('trigger', 'policy', 'rule') THEN format('DROP %s %I ON %s', upper(kind), name, owner)
            WHEN kind IN ('function', 'aggregate') THEN (
                SELECT format('DROP ROUTINE %I.%I(%s)', schema, p.proname, (
                    SELECT string_agg(format('%I.%I', n.nspname, t.typname), ', ' ORDER BY a.place)
                    FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY a (type, place)
                    JOIN pg_type t ON t.oid = a.type JOIN pg_namespace n ON n.oid = t.typnamespace))
                FROM pg_proc p
                WHERE p.oid = to_regprocedure(format('%I.', schema) || insta_ids_internal.in_shard(name, schema, shard)))
            ELSE format('DROP %s %s', upper(kind), object) END
        END
    END;
END
$$;

-- Returns the hint for an object that differs between shards: the statement that repairs it, or advice that names a shard's
-- schema where the object is as it should be.
CREATE OR REPLACE FUNCTION insta_ids_internal.repair_hint(
        difference text, kind text, relation text, name text, schema name, shard integer, other_schema name)
    RETURNS text
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    of_relation CONSTANT oid := CASE WHEN kind NOT IN ('function', 'aggregate', 'statistics')
        THEN to_regclass(format('%I.%I', schema, coalesce(relation, name))) END;
    owner CONSTANT oid := coalesce(
        (SELECT c.relowner FROM pg_class c WHERE c.oid = of_relation),
        (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = schema));
    statement CONSTANT text := insta_ids_internal.repair_statement(difference, kind, relation, name, schema, shard, other_schema);
BEGIN
    RETURN CASE
        WHEN statement IS NOT NULL THEN insta_ids_internal.for_owner(owner, of_relation, statement)
        WHEN difference = 'extra' THEN 'If it is not needed, drop it.'
        WHEN difference = 'missing' THEN format(
            'Add it as in schema %I. pg_dump --schema-only shows the definition there. Read it before you run it.', other_schema)
        ELSE format(
            'Compare it with schema %I, and change the wrong one. pg_dump --schema-only shows both. Read a definition before you'
            || ' run it.', other_schema)
    END;
END
$$;

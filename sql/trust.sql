-- Whose code runs with the caller's rights.

-- Returns each object whose owner can change the code that statements run. pg_shdepend lacks owners such as pg_database_owner. The
-- owner of a shard's schema can drop a table and create another one of that name. A sequence has no code, and an array type belongs to
-- the owner of its elements.
CREATE OR REPLACE FUNCTION insta_ids_internal.code() RETURNS TABLE (class oid, oid oid, owner oid)
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT 'pg_class'::regclass::oid, c.oid, c.relowner FROM pg_catalog.pg_class c WHERE c.relkind <> ALL ('{S,i,I,t}')
    UNION ALL SELECT 'pg_proc'::regclass, p.oid, p.proowner FROM pg_catalog.pg_proc p
    UNION ALL SELECT 'pg_type'::regclass, t.oid, t.typowner FROM pg_catalog.pg_type t
    WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.typarray = t.oid)
    UNION ALL SELECT 'pg_operator'::regclass, o.oid, o.oprowner FROM pg_catalog.pg_operator o
    UNION ALL SELECT 'pg_opclass'::regclass, c.oid, c.opcowner FROM pg_catalog.pg_opclass c
    UNION ALL SELECT 'pg_opfamily'::regclass, f.oid, f.opfowner FROM pg_catalog.pg_opfamily f
    UNION ALL SELECT 'pg_namespace'::regclass, n.oid, n.nspowner
    FROM insta_ids_internal.shard_schema s JOIN pg_catalog.pg_namespace n ON n.oid = s.oid;
END;

-- Returns the objects of other roles that run or change code in statements over these relations or types. Each object's owner lacks
-- rights of the caller, or of a superuser if `as_superuser`. Parts count, such as indexes, triggers and
-- partitions, and so does everything that objects and parts use: functions, operators and types, in any schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.code_of_others(
        objects oid[], class regclass DEFAULT 'pg_class', as_superuser boolean DEFAULT false)
    RETURNS TABLE (object text, type text, identity text, role name)
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    others CONSTANT oid[] := ARRAY(
        WITH owners AS MATERIALIZED (SELECT DISTINCT c.owner FROM insta_ids_internal.code() c)
        SELECT o.owner FROM owners o JOIN pg_roles r ON r.oid = o.owner
        WHERE NOT CASE WHEN as_superuser THEN r.rolsuper ELSE insta_ids_internal.is_trusted(r.rolname) END);
BEGIN
    -- In many databases, no such role has any object.
    IF others = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE used (class, oid) AS (
        (
            SELECT code_of_others.class::oid, o FROM unnest(objects) o
            UNION
            SELECT 'pg_namespace'::regclass, s.oid
            FROM pg_class c JOIN insta_ids_internal.shard_schema s ON s.oid = c.relnamespace
            WHERE code_of_others.class = 'pg_class'::regclass AND c.oid = ANY (objects)
            UNION
            -- Nothing depends on PostgreSQL's own types, so casts and default operator classes of these types are found here.
            SELECT d.classid, d.objid
            FROM pg_depend d LEFT JOIN pg_opclass o ON d.classid = 'pg_opclass'::regclass AND o.oid = d.objid
            WHERE d.classid IN ('pg_cast'::regclass, 'pg_opclass'::regclass) AND o.opcdefault IS NOT FALSE
            GROUP BY d.classid, d.objid HAVING NOT bool_or(d.refclassid = 'pg_type'::regclass)
        )
        UNION
        SELECT n.class, n.oid
        FROM used u
        CROSS JOIN LATERAL (
            -- What the object uses. A foreign key reads the other table with the rights of that table's owner.
            SELECT d.refclassid, d.refobjid FROM pg_depend d
            WHERE d.classid = u.class AND d.objid = u.oid
                AND d.refclassid NOT IN ('pg_namespace'::regclass, 'pg_extension'::regclass)
                AND NOT (d.classid = 'pg_constraint'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'n')
            UNION ALL
            SELECT u.class, i.inhrelid FROM pg_inherits i WHERE u.class = 'pg_class'::regclass AND i.inhparent = u.oid
            UNION ALL
            -- The object's parts, and what belongs to a type. No statement uses a publication, or the row type of a table.
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE u.class IN ('pg_class'::regclass, 'pg_constraint'::regclass, 'pg_type'::regclass, 'pg_opclass'::regclass,
                    'pg_opfamily'::regclass)
                AND d.refclassid = u.class AND d.refobjid = u.oid AND CASE
                WHEN d.deptype IN ('a', 'i', 'P', 'S') THEN CASE u.class
                    WHEN 'pg_class'::regclass THEN d.classid NOT IN ('pg_type'::regclass, 'pg_publication_rel'::regclass)
                    -- These triggers call PostgreSQL's own functions.
                    WHEN 'pg_constraint'::regclass THEN d.classid <> 'pg_trigger'::regclass
                    ELSE true END
                WHEN u.class = 'pg_type'::regclass THEN CASE d.classid
                    WHEN 'pg_opclass'::regclass THEN true
                    -- Each role can create a cast to its own type. Statements use that type only if it is in a table, too.
                    WHEN 'pg_cast'::regclass THEN (
                        SELECT t.typowner <> ALL (others)
                        FROM pg_cast c
                        JOIN pg_type t ON t.oid = CASE u.oid WHEN c.castsource THEN c.casttarget ELSE c.castsource END
                        WHERE c.oid = d.objid)
                    ELSE false END
                -- A foreign key that deletes or changes rows lets triggers of these rows fire with the caller's rights.
                WHEN u.class = 'pg_class'::regclass AND d.classid = 'pg_constraint'::regclass THEN EXISTS (
                    SELECT FROM pg_constraint k WHERE k.oid = d.objid AND k.contype = 'f' AND k.confrelid = u.oid
                        AND (k.confdeltype NOT IN ('a', 'r') OR k.confupdtype NOT IN ('a', 'r')))
                ELSE false END
        ) n (class, oid)
    )
    SELECT pg_describe_object(c.class, c.oid, 0), i.type, i.identity, pg_get_userbyid(c.owner)
    FROM insta_ids_internal.code() c
    JOIN used u ON u.class = c.class AND u.oid = c.oid
    CROSS JOIN LATERAL pg_identify_object(c.class, c.oid, 0) i
    WHERE c.owner = ANY (others) ORDER BY i.type <> 'table', i.type, i.identity;
END
$$;

-- Raises an error if statements over these relations or types run code of a role that lacks rights of the caller.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_code(objects oid[], class regclass DEFAULT 'pg_class') RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other record;
BEGIN
    SELECT * INTO other FROM insta_ids_internal.code_of_others(objects, class);
    IF FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s belongs to role %I', other.object, other.role),
            DETAIL = 'The call would run code of that role with your rights.',
            HINT = format('Log in as role %I. If you trust the code, change its owner: ALTER %s %s OWNER TO CURRENT_USER.',
                other.role, upper(other.type), other.identity);
    END IF;
END
$$;

-- Whose code runs with the caller's rights.

-- Returns the first object of another role that runs or changes code in statements over these relations, or no row. The object's
-- owner lacks rights of the caller. The relations' parts count, such as indexes, triggers and partitions, and so does everything
-- that relations and parts use: functions, operators and types, in any schema.
CREATE OR REPLACE FUNCTION insta_ids_internal.code_of_others(relations oid[])
    RETURNS TABLE (object text, type text, identity text, role name)
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE used (class, oid) AS (
        (
            SELECT 'pg_class'::regclass::oid, r FROM unnest(relations) r
            UNION
            -- The owner of a shard's schema can drop a table and create another one of that name.
            SELECT 'pg_namespace'::regclass, s.oid
            FROM pg_class c JOIN insta_ids_internal.shard_schema s ON s.oid = c.relnamespace WHERE c.oid = ANY (relations)
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
            -- The object's parts. No statement here uses the row type of a table or a publication.
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE d.refclassid = u.class AND d.refobjid = u.oid AND d.deptype IN ('a', 'i', 'P', 'S')
                AND u.class IN ('pg_class'::regclass, 'pg_constraint'::regclass, 'pg_type'::regclass, 'pg_opclass'::regclass,
                    'pg_opfamily'::regclass)
                AND NOT (u.class = 'pg_class'::regclass
                    AND d.classid IN ('pg_type'::regclass, 'pg_publication_rel'::regclass))
            UNION ALL
            SELECT u.class, i.inhrelid FROM pg_inherits i WHERE u.class = 'pg_class'::regclass AND i.inhparent = u.oid
            UNION ALL
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE u.class = 'pg_type'::regclass AND d.refclassid = u.class AND d.refobjid = u.oid AND d.deptype = 'n'
                AND CASE d.classid
                    WHEN 'pg_opclass'::regclass THEN true
                    -- Each role can create a cast to its own type. Statements use that type only if it is in a table, too.
                    WHEN 'pg_cast'::regclass THEN (
                        SELECT insta_ids_internal.is_trusted(pg_get_userbyid(t.typowner))
                        FROM pg_cast c
                        JOIN pg_type t ON t.oid = CASE u.oid WHEN c.castsource THEN c.casttarget ELSE c.castsource END
                        WHERE c.oid = d.objid)
                    ELSE false END
            UNION ALL
            -- Triggers of a table fire with the caller's rights if its rows are deleted or changed by a foreign key.
            SELECT 'pg_class'::regclass, k.conrelid
            FROM pg_depend d JOIN pg_constraint k ON k.oid = d.objid AND k.contype = 'f' AND k.confrelid = u.oid
            WHERE u.class = 'pg_class'::regclass AND d.refclassid = u.class AND d.refobjid = u.oid AND d.deptype = 'n'
                AND d.classid = 'pg_constraint'::regclass
                AND (k.confdeltype NOT IN ('a', 'r') OR k.confupdtype NOT IN ('a', 'r'))
        ) n (class, oid)
    ), owned AS MATERIALIZED (
        SELECT u.class, u.oid, d.refobjid AS owner
        FROM used u
        JOIN pg_shdepend d ON d.classid = u.class AND d.objid = u.oid AND d.deptype = 'o'
            AND d.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
        -- The owner of another object, such as extended statistics, cannot change what it runs.
        WHERE u.class IN ('pg_namespace'::regclass, 'pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass,
            'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_opfamily'::regclass)
    ), others AS MATERIALIZED (
        SELECT r.oid, r.rolname FROM (SELECT DISTINCT o.owner FROM owned o) d JOIN pg_roles r ON r.oid = d.owner
        WHERE NOT insta_ids_internal.is_trusted(r.rolname)
    )
    SELECT pg_describe_object(o.class, o.oid, 0), i.type, i.identity, r.rolname
    FROM owned o
    JOIN others r ON r.oid = o.owner
    CROSS JOIN LATERAL pg_identify_object(o.class, o.oid, 0) i
    -- A sequence has no code.
    WHERE i.type <> 'sequence'
    ORDER BY i.type <> 'table', i.type, i.identity LIMIT 1;
END
$$;

-- Raises an error if statements over these relations run code of a role that lacks rights of the caller.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_code(relations oid[]) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other record;
BEGIN
    SELECT * INTO other FROM insta_ids_internal.code_of_others(relations);
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('%s belongs to role %I', other.object, other.role),
            DETAIL = 'The call would run code of that role with your rights.',
            HINT = format('Log in as role %I. If you trust the code, change its owner: ALTER %s %s OWNER TO CURRENT_USER.',
                other.role, upper(other.type), other.identity);
    END IF;
END
$$;

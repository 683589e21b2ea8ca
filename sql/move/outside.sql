-- Moves: what shards share with the rest of their servers: roles and their privileges, objects that depend on the shards, and rows to
-- which the shards refer.

-- Returns the objects of shards that have an owner or privileges, with the privileges of columns and the default privileges in the
-- schemas. The owner of a part follows that of its table. NULL as `acl` stands for the privileges that PostgreSQL gives by default.
CREATE OR REPLACE FUNCTION insta_ids_internal.owned_objects(shards integer[])
    RETURNS TABLE (kind text, identity text, part text, owner name, is_part boolean, acl aclitem[])
    STABLE STRICT PARALLEL SAFE LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH schemas AS (
        SELECT n.* FROM insta_ids_internal.shard_schema s JOIN pg_namespace n ON n.oid = s.oid WHERE s.shard = ANY (shards)
    ), relations AS (
        SELECT c.* FROM schemas s JOIN pg_class c ON c.relnamespace = s.oid AND c.relkind = ANY ('{r,p,v,m,f,S}')
    )
    SELECT o.kind, o.identity, coalesce(o.part, ''), pg_get_userbyid(o.owner), o.is_part, o.acl
    FROM (
        SELECT 'SCHEMA', s.oid::regnamespace::text, NULL, s.nspowner, false, s.nspacl FROM schemas s
        UNION ALL
        SELECT CASE r.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, r.oid::regclass::text, NULL, r.relowner,
               EXISTS (
                   SELECT FROM pg_depend d
                   WHERE d.classid = 'pg_class'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
                       AND r.relkind = 'S' AND d.deptype IN ('a', 'i')),
               r.relacl
        FROM relations r
        UNION ALL
        SELECT 'COLUMN', r.oid::regclass::text, a.attname::text, r.relowner, true, a.attacl
        FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attacl IS NOT NULL AND NOT a.attisdropped
        UNION ALL
        SELECT 'ROUTINE', p.oid::regprocedure::text, NULL, p.proowner, false, p.proacl
        FROM schemas s JOIN pg_proc p ON p.pronamespace = s.oid
        WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'i')
        UNION ALL
        -- Types of tables, arrays and multiranges follow what they belong to.
        SELECT 'TYPE', t.oid::regtype::text, NULL, t.typowner, false, t.typacl
        FROM schemas s JOIN pg_type t ON t.typnamespace = s.oid
        WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'i')
            OR t.typrelid <> 0 AND t.typrelid IN (SELECT c.oid FROM pg_class c WHERE c.relkind = 'c')
        UNION ALL
        SELECT 'DEFAULT', s.oid::regnamespace::text,
               CASE d.defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'ROUTINES' WHEN 'T' THEN 'TYPES' END,
               d.defaclrole, true, d.defaclacl
        FROM schemas s JOIN pg_default_acl d ON d.defaclnamespace = s.oid
    ) o (kind, identity, part, owner, is_part, acl);
END;

-- Returns the privileges of an object, in words. The grantee of a privilege of PUBLIC is ''.
CREATE OR REPLACE FUNCTION insta_ids_internal.grants(kind text, owner name, acl aclitem[])
    RETURNS TABLE (grantee name, privilege text, is_grantable boolean)
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT CASE a.grantee WHEN 0 THEN '' ELSE pg_get_userbyid(a.grantee) END, a.privilege_type, a.is_grantable
    FROM aclexplode(coalesce(acl, acldefault(
        CASE kind WHEN 'SCHEMA' THEN 'n' WHEN 'TABLE' THEN 'r' WHEN 'SEQUENCE' THEN 's' WHEN 'ROUTINE' THEN 'f' ELSE 'T' END::"char",
        to_regrole(quote_ident(owner))))) a;
END;

-- Returns the owners and privileges of shards, as restore_privileges() takes them.
CREATE OR REPLACE FUNCTION insta_ids_internal.privileges_json(shards integer[]) RETURNS jsonb
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT jsonb_agg(jsonb_build_object('kind', o.kind, 'identity', o.identity, 'part', o.part, 'owner', o.owner, 'grants',
            -- An empty list says that nobody has a privilege, and NULL that PostgreSQL's default applies.
            CASE WHEN o.acl IS NOT NULL
                THEN coalesce((SELECT jsonb_agg(g) FROM insta_ids_internal.grants(o.kind, o.owner, o.acl) g), '[]') END))
        FROM insta_ids_internal.owned_objects(shards) o);

-- Raises an error if a role does not exist here that owns objects of shards on their source, or has privileges on them.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_roles(privileges jsonb, from_node name) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing CONSTANT name[] := ARRAY(
        SELECT r.role
        FROM jsonb_to_recordset(privileges) o (owner name, grants jsonb)
        CROSS JOIN LATERAL (
            SELECT o.owner UNION SELECT g.grantee FROM jsonb_to_recordset(o.grants) g (grantee name) WHERE g.grantee <> ''
        ) r (role)
        WHERE r.role NOT IN (SELECT p.rolname FROM pg_roles p) GROUP BY r.role ORDER BY r.role);
BEGIN
    IF missing <> '{}' THEN
        RAISE undefined_object USING MESSAGE = format('role "%s" does not exist on this node', missing[1]),
            DETAIL = format('On node "%s" it owns objects of the shards, or has privileges on them.', from_node),
            HINT = (SELECT string_agg(format('CREATE ROLE %I;', m), ' ') FROM unnest(missing[:10]) m);
    END IF;
END
$$;

-- Gives the objects of shards the owners and privileges that they have on their source. From there come names only, of roles and
-- columns, and all are quoted. It waits for locks as long as a hand-over should.
CREATE OR REPLACE FUNCTION insta_ids_internal.restore_privileges(shards integer[], privileges jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- The words that this server has for privileges.
    known CONSTANT text[] := ARRAY(
        SELECT DISTINCT a.privilege_type FROM unnest('{n,r,s,f,T}'::"char"[]) k, aclexplode(acldefault(k, 10)) a);
    command text;
    next record;
BEGIN
    PERFORM insta_ids_internal.lock_relations(ARRAY(
        SELECT r.relation
        FROM insta_ids_internal.shard_relation r
        JOIN pg_class c ON c.oid = r.relation
        JOIN jsonb_to_recordset(privileges) t (identity text, owner name)
            ON t.identity = r.relation::text AND t.owner <> pg_get_userbyid(c.relowner)
        WHERE r.shard = ANY (shards) AND r.kind IN ('r', 'p') GROUP BY r.relation ORDER BY r.relation),
        'ACCESS EXCLUSIVE', '{}', 'the shards', '1s');
    FOR next IN
        SELECT o.kind, o.identity, t.owner
        FROM insta_ids_internal.owned_objects(shards) o
        JOIN jsonb_to_recordset(privileges) t (kind text, identity text, owner name)
            ON (t.kind, t.identity) = (o.kind, o.identity) AND t.owner <> o.owner
        -- No superuser becomes the owner of what a migration gave to another role.
        JOIN pg_roles theirs ON theirs.rolname = t.owner
        JOIN pg_roles ours ON ours.rolname = o.owner AND (ours.rolsuper OR NOT theirs.rolsuper)
        WHERE NOT o.is_part
    LOOP
        EXECUTE format('ALTER %s %s OWNER TO %I', next.kind, next.identity, next.owner);
    END LOOP;
    FOREACH command IN ARRAY '{REVOKE,GRANT}'::text[] LOOP
        FOR next IN
            WITH objects AS MATERIALIZED (
                SELECT * FROM insta_ids_internal.owned_objects(shards)
            ), ours AS (
                SELECT o.kind, o.identity, o.part, CASE o.kind WHEN 'DEFAULT' THEN o.owner END AS role, g.*
                FROM objects o CROSS JOIN LATERAL insta_ids_internal.grants(o.kind, o.owner, o.acl) g
                -- A source before PostgreSQL 17 cannot say that the owner has it.
                WHERE (g.privilege, g.grantee) <> ('MAINTAIN', o.owner)
            ), theirs AS (
                SELECT t.kind, t.identity, t.part, CASE t.kind WHEN 'DEFAULT' THEN t.owner END AS role, g.*
                FROM jsonb_to_recordset(privileges) t (kind text, identity text, part text, owner name, grants jsonb)
                CROSS JOIN LATERAL (
                    SELECT * FROM jsonb_to_recordset(t.grants) g (grantee name, privilege text, is_grantable boolean)
                    UNION ALL
                    SELECT * FROM insta_ids_internal.grants(t.kind, t.owner, NULL::aclitem[]) WHERE t.grants IS NULL
                ) g
                JOIN objects o ON o.identity = t.identity
                    AND o.kind = CASE t.kind WHEN 'COLUMN' THEN 'TABLE' WHEN 'DEFAULT' THEN 'SCHEMA' ELSE t.kind END
                WHERE g.privilege = ANY (known)
                    AND (t.kind <> 'DEFAULT' OR t.part IN ('TABLES', 'SEQUENCES', 'ROUTINES', 'TYPES'))
            )
            SELECT * FROM (TABLE ours EXCEPT TABLE theirs) r WHERE command = 'REVOKE'
            UNION ALL
            SELECT * FROM (TABLE theirs EXCEPT TABLE ours) g WHERE command = 'GRANT'
        LOOP
            EXECUTE concat_ws(' ',
                CASE next.kind WHEN 'DEFAULT'
                    THEN format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %s', next.role, next.identity) END,
                command, next.privilege,
                CASE next.kind WHEN 'COLUMN' THEN format('(%I)', next.part) END,
                'ON', CASE next.kind WHEN 'COLUMN' THEN 'TABLE' WHEN 'DEFAULT' THEN next.part ELSE next.kind END,
                CASE WHEN next.kind <> 'DEFAULT' THEN next.identity END,
                CASE command WHEN 'GRANT' THEN 'TO' ELSE 'FROM' END,
                CASE next.grantee WHEN '' THEN 'PUBLIC' ELSE quote_ident(next.grantee) END,
                CASE WHEN command = 'REVOKE' THEN 'CASCADE' WHEN next.is_grantable THEN 'WITH GRANT OPTION' END);
        END LOOP;
    END LOOP;
END
$$;

-- Returns the objects outside of a shard that depend on it, at most five, in one text, or NULL if there are none.
CREATE OR REPLACE FUNCTION insta_ids_internal.named_dependents(schema oid) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (
        SELECT string_agg(d.object, ', ' ORDER BY d.number) FILTER (WHERE d.number <= 5)
            || CASE WHEN count(*) > 5 THEN format(' and %s more', count(*) - 5) ELSE '' END
        FROM (
            SELECT o.object, row_number() OVER (ORDER BY o.object) AS number
            FROM (
                SELECT * FROM insta_ids_internal.dependents_of(schema)
                UNION
                SELECT format('publication %I', p) FROM insta_ids_internal.publications_of(schema) p
            ) o (object)
        ) d);

-- Returns the hashes of the keys in columns of a table and its partitions.
CREATE OR REPLACE FUNCTION insta_ids_internal.hashes_of_keys(relation regclass, columns text[]) RETURNS SETOF bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT h
    FROM (SELECT relation::oid UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(relation) t) p (oid)
    CROSS JOIN LATERAL insta_ids_internal.hashes_in_table(p.oid, columns) h;
END;

-- Returns up to five keys in columns of a table and its partitions that have one of these hashes, in one text.
CREATE OR REPLACE FUNCTION insta_ids_internal.named_keys(relation regclass, columns text[], hashes bigint[]) RETURNS text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT string_agg(DISTINCT pg_catalog.format('(%s)', pg_catalog."left"(k, 100)), ', ')
    FROM (SELECT relation::oid UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(relation) t) p (oid)
    CROSS JOIN LATERAL insta_ids_internal.keys_in_table(p.oid, columns, hashes[:5]) k;
END;

-- Raises an error if rows of shards refer to a row of another schema that is not here, because a subscription does not check foreign
-- keys. The rows of the shards are here, or, before the copy, on the node of `connection`: then at most a million keys of each foreign
-- key are compared. Keys are compared by hashes, so no code of the owners of tables runs. Keys of types without hashes, of enums, of
-- types that are not PostgreSQL's own, and of columns whose types or collations differ are not compared.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_referenced(shards integer[], connection text DEFAULT NULL) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    reference record;
    missing bigint[];
    keys text;
BEGIN
    FOR reference IN
        SELECT k.conname AS name, k.conrelid::regclass AS relation, k.confrelid::regclass AS referenced,
               ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY n (number, place)
                     JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = n.number ORDER BY n.place) AS columns,
               ARRAY(SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY n (number, place)
                     JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = n.number ORDER BY n.place) AS referenced_columns
        FROM insta_ids_internal.shard_relation r
        JOIN pg_constraint k ON k.conrelid = r.relation AND k.contype = 'f' AND k.convalidated AND k.conparentid = 0
        JOIN pg_class o ON o.oid = k.confrelid AND o.relnamespace <> k.connamespace
        WHERE r.shard = ANY (shards) AND NOT EXISTS (
            SELECT FROM unnest(k.conpfeqop, k.conkey, k.confkey) e (operator, number, referenced_number)
            JOIN pg_operator p ON p.oid = e.operator
            JOIN pg_attribute f ON f.attrelid = k.conrelid AND f.attnum = e.number
            JOIN pg_attribute g ON g.attrelid = k.confrelid AND g.attnum = e.referenced_number
            LEFT JOIN pg_type t ON t.oid = p.oprleft AND t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype <> 'p'
            -- Operators of one hash family take values of different types for equal that have equal hashes.
            LEFT JOIN pg_amop h ON h.amopopr = p.oid AND h.amopmethod = (SELECT m.oid FROM pg_am m WHERE m.amname = 'hash')
            -- A value that is cast to be compared has another hash, and so has one of another collation.
            WHERE t.oid IS NULL OR h.oid IS NULL OR f.attcollation <> g.attcollation OR EXISTS (
                SELECT FROM (VALUES (f.atttypid, p.oprright), (g.atttypid, p.oprleft)) c (type, operand)
                WHERE c.type <> c.operand AND NOT EXISTS (
                    SELECT FROM pg_cast b WHERE b.castsource = c.type AND b.casttarget = c.operand AND b.castmethod = 'b')))
        ORDER BY k.conrelid, k.conname
    LOOP
        IF connection IS NULL THEN
            missing := ARRAY(
                SELECT insta_ids_internal.hashes_of_keys(reference.relation, reference.columns)
                EXCEPT
                SELECT insta_ids_internal.hashes_of_keys(reference.referenced, reference.referenced_columns) LIMIT 5);
        ELSE
            PERFORM insta_ids_internal.begin_to_ask_node(
                format('SELECT DISTINCT h FROM insta_ids_internal.hashes_of_keys(%L::regclass, %L::text[]) h LIMIT 1000000',
                    reference.relation, reference.columns), connection);
            missing := ARRAY(
                SELECT r::bigint FROM insta_ids_internal.rows_from_node(connection) r
                EXCEPT
                SELECT insta_ids_internal.hashes_of_keys(reference.referenced, reference.referenced_columns) LIMIT 5);
        END IF;
        CONTINUE WHEN missing = '{}';
        IF connection IS NULL THEN
            keys := insta_ids_internal.named_keys(reference.relation, reference.columns, missing);
        ELSE
            keys := insta_ids_internal.ask_node(format(
                'SELECT to_jsonb(insta_ids_internal.named_keys(%L::regclass, %L::text[], %L::bigint[]))',
                reference.relation, reference.columns, missing), connection) #>> '{}';
        END IF;
        RAISE foreign_key_violation USING
            MESSAGE = format('rows of table %s refer to rows of table %s that are not on this node',
                reference.relation, reference.referenced),
            DETAIL = format('Foreign key "%s" finds no row for (%s) = %s, for example.', reference.name,
                array_to_string(reference.columns, ', '), keys),
            HINT = format('Copy the rows of table %s to this node, and call again.', reference.referenced);
    END LOOP;
END
$$;

-- Warns of rows that were written after prepare_hand_over() had looked, and refer to rows that are not here.
CREATE OR REPLACE FUNCTION insta_ids_internal.warn_of_unreferenced(move name) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    message text;
    detail text;
BEGIN
    PERFORM insta_ids_internal.require_referenced(m.shards) FROM insta_ids_internal.move m WHERE m.name = move;
EXCEPTION
    WHEN foreign_key_violation THEN
        GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
        RAISE WARNING USING MESSAGE = message, DETAIL = detail, HINT = 'Copy the rows to which they refer.';
END
$$;

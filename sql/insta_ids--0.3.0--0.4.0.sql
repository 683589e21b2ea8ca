-- Shards and migrations: sql/setup.sql, sql/progress.sql, sql/migrations.sql and sql/shards.sql as they were released.

-- Setting up: how many shards there are, what their schemas are called, which layout their ids have.

-- One row, from init on.
CREATE TABLE insta_ids.config (
    shards integer NOT NULL,
    prefix name NOT NULL,
    layout @extschema@.id_layout NOT NULL
);
CREATE UNIQUE INDEX config_once ON insta_ids.config ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids.config', '');

CREATE FUNCTION insta_ids.keep_config() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'object_not_in_prerequisite_state',
        MESSAGE = 'number of shards, prefix and layout cannot be changed',
        DETAIL = 'Ids, schemas and what others remember of them were made with these.';
END
$$;
CREATE TRIGGER keep BEFORE UPDATE OR DELETE OR TRUNCATE ON insta_ids.config
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids.keep_config();

-- The shards of this database.
CREATE TABLE insta_ids.shard (
    shard integer PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.shard', '');

CREATE FUNCTION insta_ids.configured() RETURNS insta_ids.config
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config;
BEGIN
    SELECT * INTO config FROM insta_ids.config;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'shards are not set up',
            HINT = 'Call insta_ids.init() with the number of shards.';
    END IF;
    RETURN config;
END
$$;

CREATE FUNCTION insta_ids.init(
        shards integer, prefix name DEFAULT 'insta', layout @extschema@.id_layout DEFAULT 'instagram')
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config;
    -- An id of ones has the last shard.
    last integer := @extschema@.id_shard((-1)::bigint, layout);
    longest integer := current_setting('max_identifier_length');
    taken name;
BEGIN
    IF shards < 1 OR shards - 1 > last THEN
        RAISE EXCEPTION USING
            ERRCODE = 'numeric_value_out_of_range',
            MESSAGE = format('number of shards %s is out of range', shards),
            DETAIL = format('Ids of the layout "%s" have 1 to %s.', layout, last::bigint + 1);
    ELSIF prefix = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'prefix of schemas is empty';
    ELSIF starts_with(prefix, 'pg_') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'reserved_name',
            MESSAGE = format('prefix "%s" is reserved', prefix),
            DETAIL = 'Schemas whose names begin with "pg_" are PostgreSQL''s own.';
    ELSIF octet_length(prefix || (shards - 1)::text) > longest THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('prefix "%s" is too long', prefix),
            DETAIL = format('With the number of the last shard it has %s bytes, and a schema''s name can have %s.',
                octet_length(prefix || (shards - 1)::text), longest);
    END IF;

    SELECT nspname INTO taken
    FROM pg_namespace, substr(nspname, length(prefix) + 1) number
    WHERE starts_with(nspname, prefix)
        AND CASE WHEN number ~ '^(0|[1-9][0-9]{0,8})$' THEN number::integer < shards ELSE false END
    ORDER BY length(nspname), nspname LIMIT 1;
    IF FOUND AND NOT EXISTS (SELECT FROM insta_ids.config) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', taken),
            DETAIL = format('Schemas of shards would be called "%s0" to "%1$s%s".', prefix, shards - 1),
            HINT = 'Choose another prefix, or rename the schema.';
    END IF;

    INSERT INTO insta_ids.config VALUES (shards, prefix, layout);
EXCEPTION
    WHEN unique_violation THEN
        SELECT * INTO config FROM insta_ids.configured();
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'shards are already set up',
            DETAIL = format('There are %s, with the prefix "%s" and the layout "%s".',
                config.shards, config.prefix, config.layout);
END
$$;

CREATE FUNCTION insta_ids.shard_of(key bigint, shards integer) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'shard_of_wrapper';
-- By its bytes, whatever its collation is.
CREATE FUNCTION insta_ids.shard_of(key text, shards integer) RETURNS integer
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN insta_ids.shard_of(pg_catalog.hashtextextended(key COLLATE pg_catalog."C", 0), shards);
CREATE FUNCTION insta_ids.shard_of(key uuid, shards integer) RETURNS integer
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN insta_ids.shard_of(pg_catalog.uuid_hash_extended(key, 0), shards);

CREATE FUNCTION insta_ids.shard_of(key bigint) RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE sql RETURN insta_ids.shard_of(key, (insta_ids.configured()).shards);
CREATE FUNCTION insta_ids.shard_of(key text) RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE sql RETURN insta_ids.shard_of(key, (insta_ids.configured()).shards);
CREATE FUNCTION insta_ids.shard_of(key uuid) RETURNS integer
    STABLE PARALLEL SAFE LANGUAGE sql RETURN insta_ids.shard_of(key, (insta_ids.configured()).shards);

CREATE FUNCTION insta_ids.schema_of(shard integer) RETURNS name
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
BEGIN
    IF shard NOT BETWEEN 0 AND config.shards - 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'numeric_value_out_of_range',
            MESSAGE = format('shard %s is out of range', shard),
            DETAIL = format('Shards are numbered from 0 to %s.', config.shards - 1);
    END IF;
    RETURN config.prefix || shard::text;
END
$$;

-- Long work: procedures that commit batch by batch, and tell how far they are.

-- What runs, and what was ended before it could say so.
CREATE TABLE insta_ids.work (
    pid integer PRIMARY KEY,
    command text NOT NULL,
    total integer NOT NULL,
    done integer NOT NULL,
    failed integer NOT NULL,
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    told_at timestamptz NOT NULL
);

CREATE VIEW insta_ids.progress AS
SELECT w.pid, w.command, w.total, w.done, w.failed, w.total - w.done AS remaining, w.started_at, r.per_second,
       make_interval(secs => (w.total - w.done) / nullif(r.per_second, 0)) AS time_left
FROM insta_ids.work w
JOIN pg_stat_activity a ON a.pid = w.pid
    -- To who may not see what others do, both are NULL; that a transaction of theirs is open is no secret.
    AND coalesce(
        a.query_start = w.started_at AND a.state = 'active',
        EXISTS (SELECT FROM pg_locks l WHERE l.pid = w.pid AND l.locktype = 'virtualxid'))
CROSS JOIN LATERAL (
    SELECT round(w.done / nullif(extract(epoch FROM w.updated_at - w.started_at), 0), 1)::float8 AS per_second
) r;

CREATE FUNCTION insta_ids.limit_catalog_cache() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'limit_catalog_cache_wrapper';

-- Refuses what is no range of shards, or no size of a batch.
CREATE FUNCTION insta_ids.check_range(first integer, last integer, batch integer) RETURNS void
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids.configured(), insta_ids.schema_of(first), insta_ids.schema_of(last);
    IF first > last THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('first shard %s is greater than last shard %s', first, last);
    ELSIF batch IS NULL OR batch < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('batch of %s shards is less than 1', coalesce(batch, 0));
    END IF;
END
$$;

-- Ends a batch of who works through `total` shards, of which so many are done; the first call comes before the first
-- shard. Leaves a new transaction with a safe search_path.
CREATE PROCEDURE insta_ids.commit_batch(command text, total integer, done integer, failed integer)
    LANGUAGE plpgsql
AS $$
DECLARE
    work insta_ids.work;
    seconds numeric;
BEGIN
    UPDATE insta_ids.work w
    SET done = commit_batch.done, failed = commit_batch.failed, updated_at = clock_timestamp(),
        told_at = CASE WHEN clock_timestamp() - w.told_at >= '1 s' THEN clock_timestamp() ELSE w.told_at END
    WHERE w.pid = pg_backend_pid() AND w.started_at = statement_timestamp()
    RETURNING w.* INTO work;
    IF NOT FOUND THEN
        DELETE FROM insta_ids.work w
        WHERE w.pid = pg_backend_pid() OR NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = w.pid);
        INSERT INTO insta_ids.work
        SELECT pg_backend_pid(), command, total, done, failed, statement_timestamp(), now, now
        FROM clock_timestamp() now
        RETURNING * INTO work;
    END IF;
    IF done = total THEN
        DELETE FROM insta_ids.work w WHERE w.pid = pg_backend_pid();
    END IF;

    COMMIT;
    -- What other sessions have done since is to be seen.
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    PERFORM insta_ids.limit_catalog_cache();
    IF done = total THEN
        RAISE NOTICE '%: % of % shards in % s', command, done, total,
            round(extract(epoch FROM clock_timestamp() - statement_timestamp()), 1);
    ELSIF done > 0 AND work.told_at >= work.updated_at THEN
        seconds := extract(epoch FROM work.updated_at - work.started_at);
        RAISE NOTICE '%: % of % shards, % per second, % s left', command, done, total,
            round(done / seconds, 1), ceil((total - done) * seconds / done);
    END IF;
END
$$;

-- Refuses a batch for which the server has too few locks, after the first shard of it.
CREATE FUNCTION insta_ids.check_locks(batch integer) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    room bigint := current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint);
    own bigint;
    others bigint;
BEGIN
    SELECT count(*) FILTER (WHERE pid = pg_backend_pid()), count(*) FILTER (WHERE pid IS DISTINCT FROM pg_backend_pid())
    INTO own, others
    FROM pg_locks WHERE NOT fastpath;
    -- One by itself has just been done.
    IF batch > 1 AND own * batch > room - others THEN
        RAISE EXCEPTION USING
            ERRCODE = 'configuration_limit_exceeded',
            MESSAGE = format('batch of %s shards needs more locks than the server has', batch),
            DETAIL = format('The first took %s; the server has %s, of which others hold %s.', own, room, others),
            HINT = format('Use a batch of at most %s, or raise "max_locks_per_transaction".',
                greatest(1, (room - others) / own));
    END IF;
END
$$;

-- Migrations: DDL that is recorded once, and run in each shard.

-- In the order of their numbers.
CREATE TABLE insta_ids.migration (
    number integer PRIMARY KEY,
    name text NOT NULL UNIQUE,
    ddl text NOT NULL,
    transactional boolean NOT NULL,
    check_ids boolean NOT NULL,
    added_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.migration', '');

-- What was applied to which shard, and what failed there when it was tried last. Without foreign keys, as a restore by
-- several jobs loads the tables in any order.
CREATE TABLE insta_ids.shard_migration (
    shard integer NOT NULL,
    migration integer NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    -- Of a failure.
    statement integer,
    sqlstate text,
    message text,
    PRIMARY KEY (shard, migration),
    CHECK (message IS NOT NULL OR statement IS NULL AND sqlstate IS NULL)
);
SELECT pg_catalog.pg_extension_config_dump('insta_ids.shard_migration', '');

CREATE VIEW insta_ids.migration_status AS
SELECT m.number, m.name, s.shard, ((SELECT c.prefix FROM insta_ids.config c) || s.shard::text)::name AS schema,
       CASE WHEN a.shard IS NULL THEN 'pending' WHEN a.message IS NULL THEN 'applied' ELSE 'failed' END AS state,
       a.at, a.statement, a.sqlstate, a.message
FROM insta_ids.shard s
CROSS JOIN insta_ids.migration m
LEFT JOIN insta_ids.shard_migration a ON a.shard = s.shard AND a.migration = m.number;

CREATE FUNCTION insta_ids.keep_migration() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    applied record;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        -- Who is applying it has locked the row, but what was applied before that ended cannot be seen.
        RAISE EXCEPTION USING
            ERRCODE = 'active_sql_transaction',
            MESSAGE = format('a migration cannot be replaced in a transaction that is %s',
                current_setting('transaction_isolation')),
            HINT = 'Begin it with ISOLATION LEVEL READ COMMITTED.';
    END IF;
    SELECT count(*) AS shards, min(s.shard) AS first INTO applied
    FROM insta_ids.shard_migration s WHERE s.migration = OLD.number AND s.message IS NULL;
    IF applied.shards > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" is already applied', OLD.name),
            DETAIL = format('Shards that have it: %s. The first is shard %s.', applied.shards, applied.first),
            HINT = 'Add another one that changes what this one made.';
    END IF;
    DELETE FROM insta_ids.shard_migration s WHERE s.migration = OLD.number;
    RETURN coalesce(NEW, OLD);
END
$$;
CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON insta_ids.migration
    FOR EACH ROW EXECUTE FUNCTION insta_ids.keep_migration();

-- `kind` is ordinary, transaction control, session setting or concurrent; `at_once` is a concurrent statement as it can
-- run in a transaction, where nobody else is; `schema` one that it names for what it makes or alters; `alters` has the
-- relations, named without a schema, that it alters.
CREATE FUNCTION insta_ids.statements(ddl text)
    RETURNS TABLE (statement text, kind text, at_once text, schema text, alters text[])
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'statements_wrapper';
CREATE FUNCTION insta_ids.note_transactions(failed boolean) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'note_transactions_wrapper';
CREATE FUNCTION insta_ids.transactions_committed() RETURNS boolean
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'transactions_committed_wrapper';

CREATE FUNCTION insta_ids.add_migration(
        name text, ddl text, transactional boolean DEFAULT true, check_ids boolean DEFAULT true)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    config insta_ids.config := insta_ids.configured();
    most CONSTANT integer := 1000000;
    -- A shard's schema before a dot, wherever it stands.
    shard_schema text := format('(?<![\w$])(%s(0|[1-9][0-9]{0,8}))"?\s*\.',
        regexp_replace(replace(config.prefix, '"', '""'), '(\W)', '\\\1', 'g'));
    next record;
    statements integer := 0;
BEGIN
    IF octet_length(name) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'name of a migration is empty or too long',
            DETAIL = format('It has %s bytes, and can have 1 to 255.', octet_length(name));
    ELSIF octet_length(ddl) > most THEN
        RAISE EXCEPTION USING
            ERRCODE = 'program_limit_exceeded',
            MESSAGE = format('migration "%s" is too long', name),
            DETAIL = format('It has %s bytes, and can have %s.', octet_length(ddl), most),
            HINT = 'Add it as several.';
    END IF;

    FOR next IN
        SELECT s.kind, coalesce(s.schema, m.schema) AS schema
        FROM insta_ids.statements(ddl) s
        LEFT JOIN LATERAL (
            SELECT replace(r[1], '""', '"') AS schema
            FROM regexp_matches(s.statement, shard_schema, 'gi') r
            WHERE r[2]::integer < config.shards LIMIT 1
        ) m ON true
    LOOP
        statements := statements + 1;
        IF next.kind = 'transaction control' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('statement %s of migration "%s" begins or ends a transaction', statements, name),
                HINT = 'Leave it out: a migration is applied to a shard entirely or not at all.';
        ELSIF next.kind = 'session setting' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('statement %s of migration "%s" sets something for the session', statements, name),
                HINT = 'Use SET LOCAL, or leave it out: search_path is set for each statement.';
        ELSIF next.kind = 'concurrent' AND transactional THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('statement %s of migration "%s" cannot run in a transaction', statements, name),
                HINT = 'Leave out CONCURRENTLY, or add the statement by itself with transactional => false.';
        ELSIF NOT transactional AND (next.kind <> 'concurrent' OR statements > 1) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('migration "%s" can run in a transaction', name),
                DETAIL = 'With transactional => false, a migration is one statement with CONCURRENTLY.';
        ELSIF next.schema IS NOT NULL THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('statement %s of migration "%s" names schema "%s"', statements, name, next.schema),
                DETAIL = 'It would be run again for each shard.',
                HINT = 'Leave the schema out: search_path begins with the shard''s.';
        END IF;
    END LOOP;
    IF statements = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('migration "%s" has no statement', name);
    END IF;

    LOCK TABLE insta_ids.migration IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM insta_ids.migration m WHERE m.name = add_migration.name) THEN
        INSERT INTO insta_ids.migration
        SELECT coalesce(max(m.number) + 1, 1), add_migration.name, add_migration.ddl,
               add_migration.transactional, add_migration.check_ids
        FROM insta_ids.migration m;
    ELSE
        UPDATE insta_ids.migration m
        SET ddl = add_migration.ddl, transactional = add_migration.transactional,
            check_ids = add_migration.check_ids, added_at = now()
        WHERE m.name = add_migration.name
            AND (m.ddl, m.transactional, m.check_ids)
                <> (add_migration.ddl, add_migration.transactional, add_migration.check_ids);
    END IF;
END
$$;

-- Columns of a shard whose default calls next_id, itself or through other functions, and which no CHECK keeps to the
-- shard: those that this transaction gave that default, not before its (sub)transaction `since`.
CREATE FUNCTION insta_ids.unchecked_columns(shard integer, since xid)
    RETURNS TABLE (relation regclass, "column" name, expression text)
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    -- Planning takes longer than running, so it is kept short: joined as it is written, once for all shards.
    SET join_collapse_limit = 1 SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    layout @extschema@.id_layout := (insta_ids.configured()).layout;
    schema regnamespace := quote_ident(insta_ids.schema_of(shard));
    minting CONSTANT regprocedure[] := ARRAY[
        '@extschema@.next_id(integer, regclass)'::regprocedure,
        '@extschema@.next_id(integer, regclass, @extschema@.id_layout)'::regprocedure];
BEGIN
    RETURN QUERY
    WITH unchecked AS (
        SELECT c.oid AS relation, a.attname, e.expression
        FROM pg_depend m
        JOIN pg_class c ON c.oid = m.objid AND c.relkind IN ('r', 'p', 'f')
        JOIN pg_attrdef d ON d.adrelid = c.oid
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        JOIN pg_type t ON t.oid = a.atttypid AND 'bigint'::regtype IN (t.oid, t.typbasetype)
        -- Aggregates, as the planner cannot begin with them: while shards are made, it knows nothing of how many
        -- columns there are.
        CROSS JOIN LATERAL (
            WITH RECURSIVE used AS (
                SELECT 'pg_attrdef'::regclass::oid AS classid, d.oid AS objid
                UNION
                SELECT f.refclassid, f.refobjid FROM used u
                JOIN pg_depend f ON f.classid = u.classid AND f.objid = u.objid AND f.refclassid = 'pg_proc'::regclass
            )
            SELECT bool_or(u.classid = 'pg_proc'::regclass AND u.objid = ANY (minting)) AS mints FROM used u
        ) f
        CROSS JOIN LATERAL format('(@extschema@.id_shard(%s%s) = %s)',
            format(CASE t.typtype WHEN 'd' THEN '(%I)::bigint' ELSE '%I' END, a.attname),
            CASE WHEN layout OPERATOR(@extschema@.<>) 'instagram' THEN format(', %L::@extschema@.id_layout', layout) END,
            shard) e (expression)
        CROSS JOIN LATERAL (
            SELECT count(*) AS checks FROM pg_constraint k
            WHERE k.conrelid = c.oid AND k.contype = 'c' AND pg_get_expr(k.conbin, k.conrelid) = e.expression
        ) k
        WHERE m.refclassid = 'pg_namespace'::regclass AND m.refobjid = schema AND m.classid = 'pg_class'::regclass
            -- The row is of this transaction if that is in progress and it can be seen nevertheless.
            AND CASE
                WHEN age(d.xmin) <= age(since)
                THEN pg_xact_status((pg_current_xact_id()::text::bigint - age(d.xmin))::text::xid8) = 'in progress'
                ELSE false
            END
            AND f.mints AND k.checks = 0
    )
    SELECT u.relation::regclass, u.attname, u.expression
    FROM unchecked u
    -- Where a parent lacks it, too, it comes from there.
    WHERE NOT EXISTS (
        SELECT FROM pg_inherits h JOIN unchecked p ON p.relation = h.inhparent AND p.attname = u.attname
        WHERE h.inhrelid = u.relation);
END
$$;

-- The search_path of a shard, before who calls' own.
CREATE FUNCTION insta_ids.path_of(schema name, path text) RETURNS text
    IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.concat_ws(', ', pg_catalog.quote_ident(schema), '@extschema@', nullif(path, ''));

-- Refuses to run in a shard what would run elsewhere: where its schema cannot be used, so that search_path passes it
-- over; or where it lacks a relation that the path has further down.
CREATE FUNCTION insta_ids.check_path(schema name, path text, alters text[]) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation text;
    elsewhere record;
BEGIN
    IF NOT has_schema_privilege(schema, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('permission denied for schema %s', schema);
    END IF;
    FOREACH relation IN ARRAY alters LOOP
        CONTINUE WHEN to_regclass(format('%I.%I', schema, relation)) IS NOT NULL;
        PERFORM set_config('search_path', path, true);
        SELECT n.nspname INTO elsewhere
        FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
        WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(pg_catalog.quote_ident(relation))::pg_catalog.oid
            AND c.relpersistence OPERATOR(pg_catalog.<>) 't';
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        IF elsewhere.nspname IS NOT NULL THEN
            RAISE undefined_table USING
                MESSAGE = format('relation "%s" does not exist in schema "%s"', relation, schema),
                DETAIL = format('There is one in schema "%s", which every shard would alter.', elsewhere.nspname);
        END IF;
    END LOOP;
END
$$;

-- Applies to a shard what it lacks, in order, each migration entirely or not at all, until one fails. To a new shard,
-- where there is nobody to wait for, also what says CONCURRENTLY.
CREATE FUNCTION insta_ids.apply_migrations(
        shard integer, path text, new boolean,
        OUT failed integer, OUT name text, OUT statement integer,
        OUT code text, OUT message text, OUT detail text, OUT hint text)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    shard_path text := insta_ids.path_of(schema, path);
    role CONSTANT text := current_setting('role');
    acting text;
    migration insta_ids.migration;
    next record;
    applying xid;
    defaults bigint;
    unchecked record;
BEGIN
    -- Locked, so that what is applied is what is recorded: nobody replaces it meanwhile.
    FOR migration IN
        SELECT * FROM insta_ids.migration m
        WHERE NOT EXISTS (
            SELECT FROM insta_ids.shard_migration s
            WHERE s.shard = apply_migrations.shard AND s.migration = m.number AND s.message IS NULL)
        ORDER BY m.number FOR SHARE OF m
    LOOP
        EXIT WHEN NOT (migration.transactional OR new);
        BEGIN
            INSERT INTO insta_ids.shard_migration (shard, migration) VALUES (apply_migrations.shard, migration.number)
            ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
            SET at = excluded.at, statement = NULL, sqlstate = NULL, message = NULL
            RETURNING xmin INTO applying;
            acting := role;
            defaults := pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass);
            FOR next IN
                SELECT s.number, coalesce(s.at_once, s.statement) AS statement, s.alters
                FROM insta_ids.statements(migration.ddl) WITH ORDINALITY
                    s (statement, kind, at_once, schema, alters, number)
                ORDER BY s.number
            LOOP
                statement := next.number;
                IF next.number = 1 OR cardinality(next.alters) > 0 THEN
                    PERFORM insta_ids.check_path(schema, shard_path, next.alters);
                END IF;
                IF acting <> role THEN
                    PERFORM set_config('role', acting, true);
                END IF;
                -- From here on to the next such line, nothing may be called that is not qualified.
                PERFORM set_config('search_path', shard_path, true);
                EXECUTE next.statement;
                PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
                -- A role that it took on is for its own statements.
                acting := current_setting('role');
                IF acting <> role THEN
                    PERFORM set_config('role', role, true);
                END IF;
            END LOOP;
            statement := NULL;
            -- Where no default was made, there is no new one to look for.
            IF migration.check_ids AND (
                pg_stat_get_xact_tuples_inserted('pg_attrdef'::regclass) > defaults
                OR current_setting('track_counts') = 'off')
            THEN
                FOR unchecked IN SELECT * FROM insta_ids.unchecked_columns(shard, applying) LOOP
                    EXECUTE format('ALTER TABLE %s ADD CHECK (%s)', unchecked.relation, unchecked.expression);
                END LOOP;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            failed := migration.number;
            name := migration.name;
            RETURN;
        END;
    END LOOP;
END
$$;

CREATE PROCEDURE insta_ids.migrate(
        first integer DEFAULT NULL, last integer DEFAULT NULL, batch integer DEFAULT 50, lock_timeout text DEFAULT '2s')
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    outcome pg_catalog.record;
    first_failed integer;
    first_failure pg_catalog.record;
    waiting pg_catalog.record;
    done integer := 0;
    failed integer := 0;
    busy integer := 0;
    -- Shards of the batch so far.
    held integer := 0;
    budget_known boolean := false;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    PERFORM insta_ids.check_range(first, last, batch), set_config('lock_timeout', lock_timeout, true);
    todo := ARRAY(
        SELECT DISTINCT s.shard FROM insta_ids.migration_status s
        WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
        ORDER BY s.shard);
    CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);

    FOREACH number IN ARRAY todo LOOP
        LOOP
            -- What another session migrates is left to it.
            PERFORM FROM insta_ids.shard s WHERE s.shard = number FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                busy := busy + 1;
                EXIT;
            END IF;
            PERFORM set_config('lock_timeout', CASE held WHEN 0 THEN lock_timeout ELSE '10ms' END, true);
            SELECT * INTO outcome FROM insta_ids.apply_migrations(number, path, false);
            IF outcome.failed IS NULL THEN
                held := held + 1;
                EXIT;
            ELSIF outcome.code <> '55P03' OR held = 0 THEN
                failed := failed + 1;
                IF failed = 1 THEN
                    first_failed := number;
                    first_failure := outcome;
                END IF;
                held := held + 1;
                INSERT INTO insta_ids.shard_migration
                VALUES (number, outcome.failed, clock_timestamp(), outcome.statement, outcome.code, outcome.message)
                ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
                SET at = excluded.at, statement = excluded.statement,
                    sqlstate = excluded.sqlstate, message = excluded.message;
                EXIT;
            END IF;
            -- It waits for a lock by itself: those who use the shards of this batch do not wait with it.
            CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
            held := 0;
        END LOOP;
        done := done + 1;
        IF NOT budget_known AND held > 0 THEN
            PERFORM insta_ids.check_locks(least(batch, cardinality(todo)));
            budget_known := true;
        END IF;
        IF held >= batch AND done < cardinality(todo) THEN
            CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
            held := 0;
        END IF;
    END LOOP;
    IF cardinality(todo) > 0 THEN
        CALL insta_ids.commit_batch('migrate', cardinality(todo), done, failed);
    END IF;

    FOR waiting IN
        SELECT m.name, count(*) AS shards
        FROM (
            SELECT s.shard, min(s.number) AS number FROM insta_ids.migration_status s
            WHERE s.state <> 'applied' AND s.shard >= coalesce(first, 0) AND (s.shard <= last OR last IS NULL)
            GROUP BY s.shard
        ) next
        JOIN insta_ids.migration m ON m.number = next.number AND NOT m.transactional
        GROUP BY m.name
    LOOP
        RAISE NOTICE USING
            MESSAGE = format('migration "%s" waits, as it cannot run in a transaction', waiting.name),
            DETAIL = format('Shards for which it is next: %s.', waiting.shards),
            HINT = format('In psql: SELECT * FROM insta_ids.migration_script(%L) \gexec', waiting.name);
    END LOOP;
    IF busy > 0 THEN
        RAISE NOTICE 'shards left to another session: %', busy;
    END IF;
    IF failed > 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = first_failure.code,
            MESSAGE = format('%s of %s shards could not be migrated', failed, cardinality(todo)),
            DETAIL = format('The first is shard %s, at %s of migration "%s": %s', first_failed,
                coalesce('statement ' || first_failure.statement, 'the CHECKs'), first_failure.name,
                first_failure.message),
            HINT = 'The others are migrated. See insta_ids.migration_status, and call again to migrate the rest.';
    END IF;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

CREATE FUNCTION insta_ids.migration_script(name text) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    migration insta_ids.migration;
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    migration := insta_ids.migration_by_script(name);
    RETURN QUERY
    SELECT line
    FROM (
        SELECT s.shard, min(s.number) AS number FROM insta_ids.migration_status s
        WHERE s.state <> 'applied' GROUP BY s.shard
    ) next
    CROSS JOIN LATERAL unnest(ARRAY[
        format('SELECT insta_ids.start_migration(%L, %s, %L)', name, next.shard, path),
        (SELECT t.statement FROM insta_ids.statements(migration.ddl) t),
        format('SELECT insta_ids.finish_migration(%L, %s, %L), pg_catalog.set_config(''search_path'', %L, false)',
            name, next.shard, md5(migration.ddl), path)]) WITH ORDINALITY lines (line, place)
    WHERE next.number = migration.number
    ORDER BY next.shard, lines.place;
    PERFORM set_config('search_path', path, true);
END
$$;

-- The migration of this name, which must be one that cannot run in a transaction.
CREATE FUNCTION insta_ids.migration_by_script(name text) RETURNS insta_ids.migration
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids.migration;
BEGIN
    SELECT * INTO migration FROM insta_ids.migration m WHERE m.name = migration_by_script.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('migration "%s" does not exist', left(name, 255));
    ELSIF migration.transactional THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = format('migration "%s" runs in transactions', name),
            HINT = 'CALL insta_ids.migrate() applies it.';
    END IF;
    RETURN migration;
END
$$;

CREATE FUNCTION insta_ids.start_migration(name text, shard integer, path text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    schema name;
    shard_path text;
    alters text[];
BEGIN
    PERFORM insta_ids.note_transactions(false);
    BEGIN
        schema := insta_ids.schema_of(shard);
        shard_path := insta_ids.path_of(schema, path);
        SELECT s.alters INTO alters FROM insta_ids.statements((insta_ids.migration_by_script(name)).ddl) s;
        PERFORM insta_ids.check_path(schema, shard_path, alters);
        PERFORM set_config('search_path', shard_path, false);
    EXCEPTION WHEN OTHERS THEN
        -- No error, as the statement runs after it all the same: now where it finds nothing.
        RAISE WARNING USING MESSAGE = SQLERRM;
        PERFORM set_config('search_path', 'pg_catalog', false), insta_ids.note_transactions(true);
    END;
END
$$;

CREATE FUNCTION insta_ids.finish_migration(name text, shard integer, ddl_md5 text) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    migration insta_ids.migration := insta_ids.migration_by_script(name);
    committed boolean := insta_ids.transactions_committed();
    invalid text;
    failure text;
BEGIN
    PERFORM FROM insta_ids.shard s WHERE s.shard = finish_migration.shard FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', shard);
    ELSIF committed IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_not_in_prerequisite_state',
            MESSAGE = 'insta_ids.start_migration() was not called in this session';
    END IF;
    -- What is applied is what is recorded, and no other session replaces it now.
    SELECT * INTO migration FROM insta_ids.migration m WHERE m.number = migration.number FOR SHARE;
    SELECT i.indexrelid::regclass INTO invalid
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE NOT i.indisvalid AND c.relnamespace = to_regnamespace(quote_ident(insta_ids.schema_of(shard)))
    LIMIT 1;
    failure := CASE
        WHEN NOT committed THEN 'it failed, or did not run, in the session of its script'
        WHEN md5(migration.ddl) IS DISTINCT FROM ddl_md5 THEN 'it was replaced after its script was made'
        WHEN invalid IS NOT NULL THEN format('index %s is invalid', invalid)
    END;
    INSERT INTO insta_ids.shard_migration AS a (shard, migration, message)
    VALUES (finish_migration.shard, migration.number, failure)
    ON CONFLICT ON CONSTRAINT shard_migration_pkey DO UPDATE
    SET at = excluded.at, statement = NULL, sqlstate = NULL, message = excluded.message
    -- Another session was first.
    WHERE a.message IS NOT NULL;
    IF failure IS NOT NULL THEN
        -- No error: the next shard's turn comes in the same session.
        RAISE WARNING USING
            MESSAGE = format('migration "%s" failed in shard %s', name, shard),
            DETAIL = upper(left(failure, 1)) || substr(failure, 2) || '.',
            HINT = 'Drop an index that was left invalid, then run the script again for what is missing.';
    END IF;
END
$$;

-- Shards: a schema each, with what next_id needs and every migration.

-- Makes a shard, or returns NULL if it is there. `path` is the search_path of who asked for it.
CREATE FUNCTION insta_ids.make_shard(shard integer, path text) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout @extschema@.id_layout := (insta_ids.configured()).layout;
    schema name := insta_ids.schema_of(shard);
    layout_argument text := CASE
        WHEN layout OPERATOR(@extschema@.<>) 'instagram' THEN format(', %L::@extschema@.id_layout', layout)
    END;
    outcome record;
BEGIN
    -- Waits for another session that is making it.
    INSERT INTO insta_ids.shard (shard) VALUES (make_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF to_regnamespace(quote_ident(schema)) IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', schema),
            DETAIL = format('It is not one that insta_ids made for shard %s.', shard),
            HINT = 'Rename or drop it.';
    END IF;
    EXECUTE format('CREATE SCHEMA %I', schema);
    EXECUTE format('CREATE SEQUENCE %I.table_id_seq', schema);
    EXECUTE format('CREATE FUNCTION %1$I.next_id() RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE sql'
        || ' RETURN @extschema@.next_id(%2$s, %3$L%4$s)', schema, shard, format('%I.table_id_seq', schema), layout_argument);
    EXECUTE format('CREATE FUNCTION %1$I.next_id(seq_name regclass) RETURNS bigint VOLATILE PARALLEL UNSAFE LANGUAGE sql'
        || ' RETURN @extschema@.next_id(%2$s, seq_name%3$s)', schema, shard, layout_argument);
    SELECT * INTO outcome FROM insta_ids.apply_migrations(shard, path, true);
    IF outcome.failed IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = outcome.code,
            MESSAGE = outcome.message,
            DETAIL = concat_ws(E'\n', nullif(outcome.detail, ''), nullif(outcome.hint, ''),
                format('It is %s of migration "%s", in shard %s.',
                    coalesce('statement ' || outcome.statement, 'a CHECK'), outcome.name, shard));
    END IF;
    RETURN schema;
END
$$;

CREATE FUNCTION insta_ids.create_shard(shard integer) RETURNS name
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql
AS $$
DECLARE
    schema pg_catalog.name := insta_ids.make_shard(shard, pg_catalog.current_setting('search_path'));
BEGIN
    IF schema IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_object',
            MESSAGE = pg_catalog.format('shard %s already exists', shard),
            HINT = 'If its schema is missing, insta_ids.drop_shard() forgets it.';
    END IF;
    RETURN schema;
END
$$;

CREATE PROCEDURE insta_ids.create_shards(first integer, last integer, batch integer DEFAULT 50)
    LANGUAGE plpgsql
AS $$
DECLARE
    path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path');
    todo integer[];
    number integer;
    taken pg_catalog.record;
    done integer := 0;
BEGIN
    -- The transaction of the call sees no more than what was there when it began, if its session asks for that.
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    IF num_nulls(first, last) > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'first and last shard must be given';
    END IF;
    PERFORM insta_ids.check_range(first, last, batch);
    todo := ARRAY(
        SELECT n FROM generate_series(first, last) n
        WHERE NOT EXISTS (SELECT FROM insta_ids.shard s WHERE s.shard = n)
        ORDER BY n);
    SELECT n AS shard, s.nspname AS schema INTO taken
    FROM insta_ids.config c, unnest(todo) n, pg_namespace s
    WHERE s.nspname = (c.prefix || n::text)::name
        -- Another session may have made it since.
        AND NOT EXISTS (SELECT FROM insta_ids.shard x WHERE x.shard = n)
    ORDER BY n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'duplicate_schema',
            MESSAGE = format('schema "%s" already exists', taken.schema),
            DETAIL = format('It is not one that insta_ids made for shard %s.', taken.shard),
            HINT = 'Rename or drop it.';
    END IF;

    CALL insta_ids.commit_batch('create_shards', cardinality(todo), 0, 0);
    FOREACH number IN ARRAY todo LOOP
        PERFORM insta_ids.make_shard(number, path);
        done := done + 1;
        IF done = 1 THEN
            PERFORM insta_ids.check_locks(least(batch, cardinality(todo)));
        END IF;
        IF done % batch = 0 OR done = cardinality(todo) THEN
            CALL insta_ids.commit_batch('create_shards', cardinality(todo), done, 0);
        END IF;
    END LOOP;
    -- In a transaction that goes on, as that of a procedure which called this one, the path is the caller's again.
    PERFORM set_config('search_path', path, true);
END
$$;

CREATE FUNCTION insta_ids.lock_schema(schema oid) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_schema_wrapper';

CREATE FUNCTION insta_ids.drop_shard(shard integer, force boolean DEFAULT false) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off
AS $$
DECLARE
    schema name := insta_ids.schema_of(shard);
    dropped oid := to_regnamespace(quote_ident(schema));
    relation regclass;
    has_rows boolean;
    outside text;
BEGIN
    DELETE FROM insta_ids.shard s WHERE s.shard = drop_shard.shard;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('shard %s does not exist', shard);
    END IF;
    DELETE FROM insta_ids.shard_migration s WHERE s.shard = drop_shard.shard;
    IF dropped IS NULL THEN
        RETURN;
    END IF;

    IF NOT force THEN
        IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
            -- Its snapshot is older than the locks, and does not show what others wrote.
            RAISE EXCEPTION USING
                ERRCODE = 'active_sql_transaction',
                MESSAGE = format('whether a shard is empty cannot be told in a transaction that is %s',
                    current_setting('transaction_isolation')),
                HINT = 'Begin it with ISOLATION LEVEL READ COMMITTED.';
        END IF;
        -- Nothing is made in it from here on.
        PERFORM insta_ids.lock_schema(dropped);
        FOR relation IN
            SELECT c.oid FROM pg_class c WHERE c.relnamespace = dropped AND c.relkind IN ('r', 'p') ORDER BY c.oid
        LOOP
            EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', relation);
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', relation) INTO has_rows;
            IF has_rows THEN
                RAISE EXCEPTION USING
                    ERRCODE = 'object_not_in_prerequisite_state',
                    MESSAGE = format('shard %s is not empty', shard),
                    DETAIL = format('Table %s has rows.', relation),
                    HINT = 'Use force => true to drop it with all that is in it.';
            END IF;
        END LOOP;
        -- What depends on a part of it, and is none: as DROP ... RESTRICT would tell, if the schema were one object.
        WITH RECURSIVE parts AS (
            SELECT d.classid, d.objid FROM pg_depend d
            WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = dropped
                AND d.classid <> 'pg_extension'::regclass
            UNION
            SELECT d.classid, d.objid
            FROM parts p JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid
            WHERE d.deptype <> 'n'
        )
        SELECT pg_describe_object(d.classid, d.objid, d.objsubid) INTO outside
        FROM (SELECT 'pg_namespace'::regclass, dropped UNION ALL SELECT * FROM parts) p (classid, objid)
        JOIN pg_depend d ON d.refclassid = p.classid AND d.refobjid = p.objid AND d.deptype = 'n'
        WHERE (d.classid, d.objid) NOT IN (SELECT * FROM parts)
        LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING
                ERRCODE = 'dependent_objects_still_exist',
                MESSAGE = format('cannot drop shard %s because other objects depend on it', shard),
                DETAIL = format('One is %s.', outside),
                HINT = 'Drop them first, or use force => true to drop them with it.';
        END IF;
    END IF;
    EXECUTE format('DROP SCHEMA %I CASCADE', schema);
END
$$;

CREATE VIEW insta_ids.shards AS
SELECT s.shard, s.schema, CASE WHEN n.oid IS NULL THEN 'missing' ELSE 'active' END AS state,
       coalesce(m.applied, 0) AS applied, t.migrations - coalesce(m.tried, 0) AS pending,
       coalesce(m.tried - m.applied, 0) AS failed,
       coalesce(r.tables, 0) AS tables, r.rows, coalesce(r.bytes, 0) AS bytes
FROM (
    SELECT s.shard, ((SELECT c.prefix FROM insta_ids.config c) || s.shard::text)::name AS schema
    FROM insta_ids.shard s
) s
CROSS JOIN (SELECT count(*) AS migrations FROM insta_ids.migration) t
LEFT JOIN (
    SELECT a.shard, count(*) AS tried, count(*) FILTER (WHERE a.message IS NULL) AS applied
    FROM insta_ids.shard_migration a GROUP BY a.shard
) m ON m.shard = s.shard
LEFT JOIN pg_namespace n ON n.nspname = s.schema
-- As of the last VACUUM or ANALYZE of each table, as pg_class has it.
LEFT JOIN (
    SELECT c.relnamespace,
           count(*) FILTER (WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition) AS tables,
           sum(c.reltuples) FILTER (WHERE c.relkind IN ('r', 'f') AND c.reltuples >= 0)::bigint AS rows,
           sum((c.relpages + coalesce(o.relpages, 0))::bigint * current_setting('block_size')::bigint)::bigint AS bytes
    FROM pg_class c
    LEFT JOIN pg_class o ON o.oid = c.reltoastrelid
    GROUP BY c.relnamespace
) r ON r.relnamespace = n.oid;

-- Privileges on the database, to make schemas in it, are not among them.
CREATE FUNCTION insta_ids.grant_provisioning(role regrole) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'undefined_object',
            MESSAGE = format('role "%s" does not exist', role);
    END IF;
    EXECUTE format('GRANT SELECT, INSERT ON insta_ids.config TO %s', role);
    EXECUTE format(
        'GRANT SELECT, INSERT, UPDATE, DELETE ON insta_ids.shard, insta_ids.migration, insta_ids.shard_migration, insta_ids.work TO %s',
        role);
    EXECUTE format('GRANT SELECT ON insta_ids.shards, insta_ids.migration_status, insta_ids.progress TO %s', role);
    EXECUTE format('GRANT EXECUTE ON PROCEDURE insta_ids.create_shards, insta_ids.migrate, insta_ids.commit_batch TO %s', role);
    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION insta_ids.init, insta_ids.create_shard, insta_ids.make_shard, insta_ids.drop_shard,'
        || ' insta_ids.lock_schema, insta_ids.add_migration, insta_ids.apply_migrations, insta_ids.path_of,'
        || ' insta_ids.check_path, insta_ids.statements, insta_ids.unchecked_columns, insta_ids.migration_script,'
        || ' insta_ids.migration_by_script, insta_ids.start_migration, insta_ids.finish_migration,'
        || ' insta_ids.note_transactions, insta_ids.transactions_committed, insta_ids.check_range,'
        || ' insta_ids.check_locks, insta_ids.limit_catalog_cache TO %s', role);
END
$$;

-- Nobody may do more with what is new than is said here, whatever ALTER DEFAULT PRIVILEGES gave away.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('REVOKE ALL ON %s FROM %s', object, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
        FROM (
            SELECT oid::regclass::text, relowner, relacl
            FROM pg_class
            WHERE relnamespace = 'insta_ids'::regnamespace AND relname IN (
                'config', 'shard', 'work', 'progress', 'migration', 'shard_migration', 'migration_status', 'shards')
            UNION ALL
            SELECT format('ROUTINE %s', oid::regprocedure), proowner, coalesce(proacl, acldefault('f', proowner))
            FROM pg_proc
            WHERE pronamespace = 'insta_ids'::regnamespace AND proname IN (
                'keep_config', 'configured', 'init', 'shard_of', 'schema_of', 'limit_catalog_cache',
                'check_range', 'commit_batch', 'check_locks', 'keep_migration', 'statements',
                'note_transactions', 'transactions_committed', 'add_migration', 'unchecked_columns', 'path_of',
                'check_path', 'apply_migrations', 'migrate', 'migration_script', 'migration_by_script',
                'start_migration', 'finish_migration', 'make_shard', 'create_shard', 'create_shards',
                'lock_schema', 'drop_shard', 'grant_provisioning')
        ) o (object, owner, acl), aclexplode(acl)
        WHERE grantee <> owner
    LOOP
        EXECUTE command;
    END LOOP;
END
$$;

GRANT EXECUTE ON FUNCTION
    insta_ids.configured(), insta_ids.schema_of(integer),
    insta_ids.shard_of(bigint), insta_ids.shard_of(text), insta_ids.shard_of(uuid),
    insta_ids.shard_of(bigint, integer), insta_ids.shard_of(text, integer), insta_ids.shard_of(uuid, integer)
    TO PUBLIC;
GRANT SELECT ON insta_ids.config TO PUBLIC;
GRANT SELECT ON insta_ids.shard, insta_ids.migration, insta_ids.shard_migration TO pg_database_owner;

-- Shards
COMMENT ON FUNCTION insta_ids.init(integer, name, id_layout) IS
    'sets up shards, once: how many there are, the prefix of their schemas, the layout of their ids';
COMMENT ON FUNCTION insta_ids.configured() IS
    'what init set up';
COMMENT ON FUNCTION insta_ids.shard_of(bigint) IS
    'shard of a key: the key modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(text) IS
    'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(uuid) IS
    'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(bigint, integer) IS
    'shard of a key: the key modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(text, integer) IS
    'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(uuid, integer) IS
    'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.schema_of(integer) IS
    'schema of a shard';
COMMENT ON FUNCTION insta_ids.create_shard(integer) IS
    'creates a shard, with every migration, and returns its schema';
COMMENT ON PROCEDURE insta_ids.create_shards(integer, integer, integer) IS
    'creates the shards of a range that are not there yet';
COMMENT ON FUNCTION insta_ids.make_shard(integer, text) IS
    'the part that create_shard and create_shards share';
COMMENT ON FUNCTION insta_ids.drop_shard(integer, boolean) IS
    'drops a shard that is empty, or by force';
COMMENT ON FUNCTION insta_ids.lock_schema(oid) IS
    'lets nobody make anything in a schema until the transaction ends';
COMMENT ON FUNCTION insta_ids.grant_provisioning(regrole) IS
    'lets a role set up, create, migrate and drop shards';
COMMENT ON FUNCTION insta_ids.keep_config() IS
    'keeps what init set up from being changed';
COMMENT ON TABLE insta_ids.config IS
    'what init set up: one row';
COMMENT ON TABLE insta_ids.shard IS
    'the shards of this database';
COMMENT ON VIEW insta_ids.shards IS
    'the shards of this database: their schemas, migrations and sizes';

-- Migrations
COMMENT ON FUNCTION insta_ids.add_migration(text, text, boolean, boolean) IS
    'records DDL that every shard is to get';
COMMENT ON PROCEDURE insta_ids.migrate(integer, integer, integer, text) IS
    'applies to each shard of a range the migrations that it lacks';
COMMENT ON FUNCTION insta_ids.migration_script(text) IS
    'statements, for psql''s \gexec, that apply a migration which cannot run in a transaction';
COMMENT ON FUNCTION insta_ids.start_migration(text, integer, text) IS
    'sets search_path to a shard''s, and notes from here on, for finish_migration, whether anything fails';
COMMENT ON FUNCTION insta_ids.finish_migration(text, integer, text) IS
    'records that a shard has got a migration, unless something failed since start_migration';
COMMENT ON FUNCTION insta_ids.note_transactions(boolean) IS
    'notes how the transactions of this session end';
COMMENT ON FUNCTION insta_ids.transactions_committed() IS
    'whether a transaction was committed since note_transactions, and none failed';
COMMENT ON FUNCTION insta_ids.migration_by_script(text) IS
    'the migration of this name, if it cannot run in a transaction';
COMMENT ON FUNCTION insta_ids.apply_migrations(integer, text, boolean) IS
    'the part that create_shard and migrate share';
COMMENT ON FUNCTION insta_ids.path_of(name, text) IS
    'search_path of a shard';
COMMENT ON FUNCTION insta_ids.check_path(name, text, text[]) IS
    'refuses to run in a shard what would alter something elsewhere';
COMMENT ON FUNCTION insta_ids.statements(text) IS
    'the statements of a text, as PostgreSQL''s grammar reads it';
COMMENT ON FUNCTION insta_ids.unchecked_columns(integer, xid) IS
    'columns of a shard that next_id fills and no CHECK keeps to the shard';
COMMENT ON FUNCTION insta_ids.keep_migration() IS
    'keeps a migration that was applied from being changed';
COMMENT ON TABLE insta_ids.migration IS
    'the migrations, in the order of their numbers';
COMMENT ON TABLE insta_ids.shard_migration IS
    'which shard has got which migration, or what that failed with';
COMMENT ON VIEW insta_ids.migration_status IS
    'each migration in each shard: applied, pending, or failed and with what';

-- Progress
COMMENT ON VIEW insta_ids.progress IS
    'how far the calls of create_shards and migrate are that run now';
COMMENT ON TABLE insta_ids.work IS
    'what the view progress shows';
COMMENT ON PROCEDURE insta_ids.commit_batch(text, integer, integer, integer) IS
    'ends a batch of create_shards or migrate';
COMMENT ON FUNCTION insta_ids.check_range(integer, integer, integer) IS
    'refuses what is no range of shards or no size of a batch';
COMMENT ON FUNCTION insta_ids.check_locks(integer) IS
    'refuses a batch that needs more locks than there are';
COMMENT ON FUNCTION insta_ids.limit_catalog_cache() IS
    'gives back the memory of what the session has cached of the catalog, if that is much';

-- Adoption: makes a shard of a schema while applications write to it.

-- Records the shard, and as applied to it the migrations up to the one of this name, or all. Locks the assignment of shards and the
-- migrations against changes. Raises an error if the schema has another name, or the shard exists, is elsewhere or moves.
CREATE OR REPLACE FUNCTION insta_ids_internal.register_shard(schema regnamespace, shard integer, migrated_to text) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- A baseline has the number of the last migration that it replaced.
    until CONSTANT integer := CASE WHEN migrated_to IS NOT NULL THEN coalesce(
        (SELECT m.number FROM insta_ids_internal.migration m WHERE m.name = migrated_to),
        (SELECT m.number FROM insta_ids_internal.former_migration f
         JOIN insta_ids_internal.migration m ON m.number = f.number
         WHERE f.name = migrated_to AND f.squashed_into IS NOT NULL ORDER BY f.ended_at DESC LIMIT 1),
        (insta_ids_internal.require_migration_named(migrated_to)).number) END;
BEGIN
    PERFORM insta_ids_internal.require_shard_name(schema, shard), insta_ids_internal.require_heaps(ARRAY[schema]::oid[], true);
    -- No other session assigns or offers shards meanwhile.
    LOCK TABLE insta_ids_internal.assignment IN ROW EXCLUSIVE MODE;
    PERFORM insta_ids_internal.require_placed_here(shard), insta_ids_internal.require_not_moving(shard, shard),
        insta_ids_internal.require_no_remains(shard, shard);
    -- Waits for another session that creates the shard.
    INSERT INTO insta_ids_internal.shard (shard) VALUES (register_shard.shard) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE duplicate_object USING MESSAGE = format('shard %s already exists', shard);
    END IF;
    -- The lock keeps other sessions from replacing a migration that is recorded as applied here.
    INSERT INTO insta_ids_internal.shard_migration (shard, migration)
    SELECT register_shard.shard, m.number FROM insta_ids_internal.migration m
    WHERE m.number <= until OR until IS NULL FOR SHARE;
END
$$;

-- Finds out what the functions with other texts than the published one mint, and returns the state of the schema, these functions'
-- answers, and the oldest and newest id. Raises an error if the schema cannot be adopted, or with `dry_run` if the shard cannot be
-- registered. Keeps no locks but those of nextval, so other sessions go on.
CREATE OR REPLACE FUNCTION insta_ids_internal.examine_schema(
        schema regnamespace, shard integer, confirm text[], dry_run boolean, migrated_to text,
        OUT state text, OUT answers jsonb, OUT oldest bigint, OUT newest bigint)
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    is_done boolean := false;
BEGIN
    IF dry_run THEN
        PERFORM insta_ids_internal.register_shard(schema, shard, migrated_to);
    END IF;
    state := insta_ids_internal.minting_state(schema);
    SELECT * INTO answers, oldest, newest
    FROM insta_ids_internal.require_adoptable(schema, shard, confirm, false, '{}');
    PERFORM insta_ids_internal.must_advance_clock(insta_ids_internal.id_time(newest, layout));
    is_done := true;
    -- The rollback releases the locks of reading.
    RAISE triggered_action_exception;
EXCEPTION
    WHEN triggered_action_exception THEN
        IF NOT is_done THEN
            RAISE;
        END IF;
END
$$;

-- Gives each minting function of the schema a call of next_id as its body. `answers` has what those with other texts than the
-- published one mint. Raises an error if another session changes a function meanwhile.
CREATE OR REPLACE FUNCTION insta_ids_internal.replace_functions(schema regnamespace, shard integer, answers jsonb) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout_argument CONSTANT text := insta_ids_internal.layout_argument((insta_ids_internal.require_config()).layout);
    next record;
BEGIN
    FOR next IN
        SELECT f.function, coalesce('($' || m.shard_argument || ')::integer', replace_functions.shard::text) AS shard,
               coalesce(quote_literal(m.sequence), format('($%s)', m.sequence_argument)) || '::pg_catalog.regclass' AS sequence,
               -- Without settings, PostgreSQL inlines the function, and its calls are as fast as those of next_id.
               p.prosecdef OR p.proargtypes[m.sequence_argument - 1] <> 'regclass'::regtype AS has_settings
        FROM insta_ids_internal.minting_functions(schema) f
        JOIN pg_proc p ON p.oid = f.function
        LEFT JOIN LATERAL jsonb_to_record(answers -> f.function::oid::text)
            a (shard integer, sequence oid, sequence_argument integer) ON true
        CROSS JOIN LATERAL (
            SELECT coalesce(f.shard_argument, a.shard), coalesce(f.sequence, a.sequence::regclass),
                coalesce(f.sequence_argument, a.sequence_argument)
        ) m (shard_argument, sequence, sequence_argument)
        WHERE NOT f.native OR f.portable
    LOOP
        PERFORM insta_ids_internal.rewrite_function(next.function, 'sql',
            format('RETURN %s.next_id(%s, %s%s)', insta_ids_internal.extension_schema(), next.shard, next.sequence,
                layout_argument),
            coalesce(next.has_settings, false));
    END LOOP;
END
$$;

-- Moves the time of ids past all ids that the functions minted until `stopped_at`, and writes it to the WAL by minting one id.
-- Raises an error if the newest id is of the future and the caller may not advance the clock.
CREATE OR REPLACE FUNCTION insta_ids_internal.raise_id_time(shard integer, newest timestamptz, stopped_at timestamptz) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
BEGIN
    IF insta_ids_internal.must_advance_clock(newest) THEN
        PERFORM insta_ids.advance_clock(insta_ids_internal.id_time(insta_ids_internal.id_max(newest, layout) + 1, layout));
    ELSE
        -- A function may have rounded its milliseconds up.
        PERFORM insta_ids_internal.await_clock(greatest(stopped_at + interval '1 ms', newest));
    END IF;
    PERFORM insta_ids_internal.next_id(shard, format('%I.table_id_seq', insta_ids.schema_of(shard))::regclass, layout);
END
$$;

-- Makes a shard of a schema whose functions mint ids. `confirm` has the digests of texts that may be called and replaced.
-- `migrated_to` names the last migration that the schema has. Locks the schema's tables and sequences until the transaction ends;
-- each attempt takes a tenth of a second at most, and `lock_timeout` limits them all. Raises an error with all reasons if the schema
-- cannot be adopted. With `dry_run`, it raises the same errors and changes nothing.
CREATE OR REPLACE FUNCTION insta_ids.adopt(
        schema regnamespace, shard integer, lock_timeout interval DEFAULT '2s', confirm text[] DEFAULT '{}',
        dry_run boolean DEFAULT false, migrated_to text DEFAULT NULL)
    RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = 0
AS $$
DECLARE
    layout CONSTANT insta_ids_internal.config.layout%TYPE := (insta_ids_internal.require_config()).layout;
    examined record;
    ends record;
    stopped_at timestamptz;
    next record;
BEGIN
    IF schema IS NULL OR shard IS NULL OR lock_timeout IS NULL OR confirm IS NULL OR dry_run IS NULL THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.set_lock_timeout(lock_timeout);
    IF NOT dry_run THEN
        PERFORM insta_ids_internal.register_shard(schema, shard, migrated_to);
    END IF;
    examined := insta_ids_internal.examine_schema(schema, shard, confirm, dry_run, migrated_to);
    IF dry_run THEN
        RETURN;
    END IF;

    PERFORM insta_ids_internal.lock_against_minting(schema,
        ARRAY(SELECT (a.value ->> 'sequence')::oid::regclass FROM jsonb_each(examined.answers) a
              WHERE a.value ->> 'sequence' IS NOT NULL),
        lock_timeout);
    stopped_at := clock_timestamp();
    IF insta_ids_internal.minting_state(schema) IS DISTINCT FROM examined.state THEN
        RAISE serialization_failure USING MESSAGE = format('schema %s was changed while adopt examined it', schema),
            HINT = 'Call again.';
    END IF;
    -- Writers may have added rows since, so the quick checks are repeated.
    ends := insta_ids_internal.require_adoptable(schema, shard, confirm, true, examined.answers);

    PERFORM insta_ids_internal.replace_functions(schema, shard, examined.answers), insta_ids_internal.replace_portable(schema);
    UPDATE insta_ids_internal.shard s
    SET created_at = least(now(), insta_ids_internal.id_time(least(examined.oldest, ends.oldest), layout))
    WHERE s.shard = adopt.shard;
    PERFORM insta_ids_internal.create_shard_functions(shard);
    FOR next IN SELECT * FROM insta_ids_internal.minting_columns(ARRAY[shard]) m WHERE m."check" IS NULL LOOP
        EXECUTE format('ALTER TABLE %s ADD CHECK (%s) NOT VALID', next.relation, next.expression);
    END LOOP;
    -- A sequence that was dropped may have given ids of this shard after the schema was restored.
    PERFORM insta_ids_internal.succeed(s, s) FROM insta_ids_internal.minting_sequences(schema) s;
    PERFORM insta_ids_internal.raise_id_time(
        shard, insta_ids_internal.id_time(greatest(examined.newest, ends.newest), layout), stopped_at);
END
$$;
COMMENT ON FUNCTION insta_ids.adopt(regnamespace, integer, interval, text[], boolean, text) IS
    'makes a shard of a schema whose functions mint ids';

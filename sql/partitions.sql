-- Partitions by time.

CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.partitioned_table
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_table_owner('parent');
ALTER TABLE insta_ids_internal.partitioned_table ENABLE ALWAYS TRIGGER require_owner;

-- All roles may call this function, but few may read partitioned_table. So it runs with the rights of its owner.
CREATE OR REPLACE FUNCTION insta_ids.partitions(parent regclass)
    RETURNS TABLE (partition regclass, ids int8range, times tstzrange)
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kind record;
    layout insta_ids_internal.partitioned_table.layout%TYPE := coalesce(
        (SELECT p.layout FROM insta_ids_internal.partitioned_table p WHERE p.parent = partitions.parent), 'instagram');
BEGIN
    SELECT c.relname, p.partrelid IS NOT NULL AS partitioned, pg_get_partkeydef(c.oid) AS key,
           p.partstrat = 'r' AND p.partnatts = 1 AND a.atttypid = 'bigint'::regtype AS by_id
    INTO kind
    FROM pg_class c
    LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
    WHERE c.oid = parent;
    IF NOT FOUND THEN
        RAISE undefined_table USING MESSAGE = format('relation with OID %s does not exist', parent::oid);
    ELSIF NOT kind.partitioned THEN
        RAISE wrong_object_type USING MESSAGE = format('"%s" is not a partitioned table', kind.relname),
            DETAIL = 'Partitions by time are those of a table that is partitioned by range of its ids.';
    ELSIF kind.by_id IS NOT TRUE THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('table "%s" is not partitioned by range of one bigint column', kind.relname),
            DETAIL = format('Its partition key is %s.', kind.key);
    END IF;

    RETURN QUERY
    SELECT c.oid::regclass, b.ids, b.times
    FROM pg_inherits h
    JOIN pg_class c ON c.oid = h.inhrelid
    -- The default partition has no bounds.
    LEFT JOIN LATERAL (
        SELECT int8range(m[1]::bigint, m[2]::bigint) AS ids,
               tstzrange(insta_ids_internal.id_time(m[1]::bigint, layout), insta_ids_internal.id_time(m[2]::bigint, layout)) AS times
        FROM regexp_matches(
            pg_get_expr(c.relpartbound, c.oid),
            $re$FROM \((?:'(-?\d+)'|MINVALUE)\) TO \((?:'(-?\d+)'|MAXVALUE)\)$re$) m
    ) b ON true
    WHERE h.inhparent = parent
    ORDER BY b.ids;
END
$$;
COMMENT ON FUNCTION insta_ids.partitions(regclass) IS 'partitions of a table, with their ids and times';

-- Returns the time zone and the layout of a table's partitions. The first call records them, and a later call with others
-- raises an error. In later calls, the session's TimeZone and a NULL layout stand for the recorded ones.
CREATE OR REPLACE FUNCTION insta_ids_internal.remember_partitioned_table(
        parent regclass, timezone text, layout @extschema@.id_layout)
    RETURNS insta_ids_internal.partitioned_table
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    remembered insta_ids_internal.partitioned_table;
    relname CONSTANT name := (SELECT c.relname FROM pg_class c WHERE c.oid = parent);
BEGIN
    SELECT * INTO remembered FROM insta_ids_internal.partitioned_table p WHERE p.parent = remember_partitioned_table.parent;
    IF NOT FOUND THEN
        IF upper(timezone) NOT IN ('UTC', 'UCT', 'GMT', 'ZULU')
            AND EXISTS (SELECT FROM pg_timezone_abbrevs a WHERE a.abbrev = upper(timezone))
        THEN
            RAISE invalid_parameter_value USING MESSAGE = format('time zone "%s" is an abbreviation', timezone),
                DETAIL = 'As the TimeZone of a session it can be a region, but here it would always be the same offset.',
                HINT = 'Name a region, such as Europe/Berlin.';
        END IF;
        DELETE FROM insta_ids_internal.partitioned_table p WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.parent);
        INSERT INTO insta_ids_internal.partitioned_table VALUES (parent, timezone, coalesce(layout, 'instagram'))
        RETURNING * INTO remembered;
    ELSIF lower(timezone) NOT IN (lower(remembered.timezone), lower(current_setting('TimeZone'))) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('partitions of "%s" are made in time zone "%s", not in "%s"', relname, remembered.timezone, timezone),
            DETAIL = 'The time zone of the first call holds for all later ones.',
            HINT = 'Leave the time zone out.';
    ELSIF layout::text <> remembered.layout::text THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('ids of "%s" have the layout "%s", not "%s"', relname, remembered.layout, layout),
            DETAIL = 'The layout of the first call holds for all later ones.',
            HINT = 'Leave the layout out.';
    END IF;
    RETURN remembered;
END
$$;

-- Returns the partitions of length `every` from the one that contains `first` on, as far as they begin before `last`. `suffix`
-- is the end of a partition's name. Months and days follow local time, and shorter lengths are elapsed time.
CREATE OR REPLACE FUNCTION insta_ids_internal.partition_bounds(
        every interval, first timestamptz, last timestamptz, timezone text, layout @extschema@.id_layout)
    RETURNS TABLE (suffix text, lo timestamptz, hi timestamptz, ids int8range)
    STABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- From PostgreSQL 17 on, intervals can be infinite, and these have no parts.
    finite CONSTANT interval := CASE WHEN isfinite(every) THEN every END;
    months CONSTANT integer := extract(year FROM finite) * 12 + extract(month FROM finite);
    days CONSTANT integer := extract(day FROM finite);
    ms CONSTANT numeric := extract(epoch FROM finite - make_interval(months => months, days => days)) * 1000;
    epoch CONSTANT timestamptz := insta_ids_internal.id_time(0::bigint, layout);
    zone CONSTANT text := CASE WHEN ms > 0 THEN 'UTC' ELSE timezone END;
    origin CONSTANT timestamp := CASE
        WHEN ms > 0 THEN timestamp '2001-01-01' AT TIME ZONE timezone AT TIME ZONE zone ELSE '2001-01-01' END;
    -- More than a transaction has locks for.
    most CONSTANT integer := 100000;
    passed integer;
    local timestamp := first AT TIME ZONE zone;
BEGIN
    IF (CASE
            WHEN months > 0 THEN days = 0 AND ms = 0
            WHEN days > 0 THEN months = 0 AND ms = 0
            ELSE months = 0 AND days = 0 AND ms > 0 AND ms < 86400000 AND ms = trunc(ms)
        END) IS NOT TRUE
    THEN
        RAISE invalid_parameter_value USING MESSAGE = format('interval "%s" is not a length of partitions', every),
            DETAIL = 'Partitions are whole months long, or whole days, or less than a day and whole milliseconds.';
    ELSIF ms > 0 AND insta_ids_internal.id_min(epoch + every, layout) = 0 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('interval "%s" is shorter than the unit of layout "%s"', every, layout);
    END IF;
    IF extract(epoch FROM last - first) / extract(epoch FROM every) > most THEN
        RAISE program_limit_exceeded USING MESSAGE = format('partitions of "%s" from %s to %s are too many', every, first, last),
            DETAIL = format('One call creates at most %s.', most),
            HINT = 'Call it for a shorter time.';
    END IF;
    IF months > 0 THEN
        passed := (extract(year FROM local) - 2001) * 12 + extract(month FROM local) - 1;
        local := origin + make_interval(months => passed - passed % months);
    ELSE
        local := date_bin(every, local, origin);
    END IF;
    -- The loop begins one partition early: where clocks show a midnight twice, the day begins at the second one.
    local := local - every;
    LOOP
        lo := greatest(local AT TIME ZONE zone, epoch);
        EXIT WHEN lo >= last;
        suffix := to_char(local, CASE
            WHEN months > 0 THEN '_YYYY_MM'
            WHEN days > 0 THEN '_YYYY_MM_DD'
            WHEN ms % 60000 = 0 THEN '_YYYY_MM_DD_HH24MI"z"'
            ELSE '_YYYY_MM_DD_HH24MISSMS"z"'
        END);
        local := local + every;
        hi := local AT TIME ZONE zone;
        CONTINUE WHEN hi <= first;
        ids := int8range(insta_ids_internal.id_min(lo, layout), insta_ids_internal.id_min(hi, layout));
        -- A day that a zone skipped at the date line is empty. So is a time within one unit of the layout.
        CONTINUE WHEN isempty(ids);
        RETURN NEXT;
    END LOOP;
END
$$;

-- Creates the partition for `ids`, attaches it with the rights of the parent's owner, and returns it. The caller has locked the
-- parent. Raises an error if the default partition has rows for it.
CREATE OR REPLACE FUNCTION insta_ids_internal.add_partition(parent regclass, name text, ids int8range) RETURNS regclass
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    facts record;
    partition text;
BEGIN
    SELECT n.nspname, t.spcname, m.amname, k.attname AS key, d.relname AS default_partition, pg_get_userbyid(c.relowner) AS owner
    INTO facts
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_partitioned_table p ON p.partrelid = c.oid
    JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = p.partattrs[0]
    LEFT JOIN pg_class d ON d.oid = p.partdefid
    LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
    LEFT JOIN pg_am m ON m.oid = c.relam
    WHERE c.oid = parent;
    partition := format('%I.%I', facts.nspname, name);
    -- CREATE TABLE ... PARTITION OF would lock readers and writers of the parent out. ATTACH PARTITION adds the identity and
    -- the indexes.
    EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED', partition, parent)
        || ' INCLUDING STORAGE INCLUDING COMPRESSION)'
        || coalesce(' USING ' || quote_ident(facts.amname), '')
        || coalesce(' TABLESPACE ' || quote_ident(facts.spcname), '');
    IF facts.owner <> current_user THEN
        EXECUTE format('ALTER TABLE %s OWNER TO %I', partition, facts.owner);
    END IF;
    BEGIN
        PERFORM insta_ids_internal.as_owner(parent, format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)',
            parent, partition, lower(ids), upper(ids)));
    EXCEPTION WHEN check_violation THEN
        IF facts.default_partition IS NULL THEN
            RAISE;
        END IF;
        RAISE check_violation USING
            MESSAGE = format('default partition "%s" has rows of the new partition "%s"', facts.default_partition, name),
            DETAIL = format('They are those with %1$I >= %2$s AND %1$I < %3$s.', facts.key, lower(ids), upper(ids)),
            HINT = 'Move them out of it, create the partition, and insert them anew.';
    END;
    RETURN partition::regclass;
END
$$;

CREATE OR REPLACE FUNCTION insta_ids.create_partitions(
        parent regclass, every interval, first timestamptz, last timestamptz,
        timezone text DEFAULT current_setting('TimeZone'), layout @extschema@.id_layout DEFAULT NULL)
    RETURNS SETOF regclass
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    remembered insta_ids_internal.partitioned_table;
    present int8range[];
    pending record;
    wanted record;
    name text;
    other record;
BEGIN
    -- The function is not STRICT, because the layout may be NULL.
    IF num_nulls(parent, every, first, last, timezone) > 0 THEN
        RETURN;
    END IF;
    PERFORM insta_ids_internal.require_read_committed();
    IF first > last THEN
        RAISE invalid_parameter_value USING MESSAGE = 'first is later than last',
            DETAIL = format('They are %s and %s.', first, last);
    END IF;
    -- Raises an error unless the table is partitioned by ids.
    PERFORM insta_ids.partitions(parent);
    -- ATTACH PARTITION takes the same lock. Readers and writers go on. Other calls wait, and then find the new partitions.
    PERFORM insta_ids_internal.lock_relation(parent, 'SHARE UPDATE EXCLUSIVE');
    PERFORM insta_ids_internal.hold_schema_of(parent);
    remembered := insta_ids_internal.remember_partitioned_table(parent, timezone, layout);
    -- Raises an error for times that ids cannot have, before anything is created.
    PERFORM insta_ids_internal.id_min(first, remembered.layout), insta_ids_internal.id_min(last, remembered.layout);
    present := ARRAY(SELECT p.ids FROM insta_ids.partitions(parent) p);
    -- PostgreSQL allows at most one.
    SELECT c.relname, p.ids INTO pending
    FROM insta_ids.partitions(parent) p
    JOIN pg_inherits h ON h.inhrelid = p.partition AND h.inhdetachpending
    JOIN pg_class c ON c.oid = p.partition;

    FOR wanted IN
        SELECT * FROM insta_ids_internal.partition_bounds(every, first, last, remembered.timezone, remembered.layout)
    LOOP
        IF wanted.ids && pending.ids THEN
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('partition "%s" is being detached', pending.relname),
                HINT = 'Use ALTER TABLE ... DETACH PARTITION ... FINALIZE to complete the pending detach operation.';
        END IF;
        CONTINUE WHEN wanted.ids = ANY (present);
        -- A cast to name does not cut characters in two.
        name := (SELECT substr((wanted.suffix || c.relname)::name, length(wanted.suffix) + 1) || wanted.suffix
            FROM pg_class c WHERE c.oid = parent);
        IF wanted.ids && ANY (present) THEN
            SELECT c.relname, p.times INTO other
            FROM insta_ids.partitions(parent) p JOIN pg_class c ON c.oid = p.partition
            WHERE p.ids && wanted.ids ORDER BY p.ids LIMIT 1;
            RAISE invalid_object_definition USING
                MESSAGE = format('partition "%s" would overlap partition "%s"', name, other.relname),
                DETAIL = format('The new one is from %s to %s, the other from %s to %s.', wanted.lo, wanted.hi,
                    coalesce(lower(other.times)::text, 'MINVALUE'), coalesce(upper(other.times)::text, 'MAXVALUE')),
                HINT = 'Give the length that the partitions there have, or begin where they end.';
        END IF;
        RETURN NEXT insta_ids_internal.add_partition(parent, name, wanted.ids);
    END LOOP;
END
$$;
COMMENT ON FUNCTION insta_ids.create_partitions(regclass, interval, timestamptz, timestamptz, text, @extschema@.id_layout) IS
    'creates the partitions that begin before last, from the one that holds first on, and returns those it made';

CREATE OR REPLACE FUNCTION insta_ids.drop_partitions(parent regclass, before timestamptz) RETURNS SETOF text
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout insta_ids_internal.partitioned_table.layout%TYPE;
    bound bigint;
    referred boolean;
    dropped record;
BEGIN
    PERFORM insta_ids_internal.require_read_committed();
    -- Raises an error unless the table is partitioned by ids.
    PERFORM insta_ids.partitions(parent);
    PERFORM insta_ids_internal.lock_relation(parent, 'SHARE UPDATE EXCLUSIVE');
    PERFORM insta_ids_internal.hold_schema_of(parent);
    SELECT p.layout INTO layout FROM insta_ids_internal.partitioned_table p WHERE p.parent = drop_partitions.parent;
    IF NOT FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format(
                'time zone and layout of "%s" are not known', (SELECT c.relname FROM pg_class c WHERE c.oid = parent)),
            HINT = 'Call insta_ids.create_partitions first, with the layout of its ids.';
    END IF;
    -- There is nothing to drop before the time of the first id.
    bound := insta_ids_internal.id_min(greatest(before, insta_ids_internal.id_time(0::bigint, layout)), layout);
    referred := EXISTS (SELECT FROM pg_constraint k WHERE k.contype = 'f' AND k.confrelid = parent);
    FOR dropped IN
        SELECT p.partition::text AS name, c.relname, c.relkind, h.inhdetachpending AS pending
        FROM insta_ids.partitions(parent) p
        JOIN pg_class c ON c.oid = p.partition
        JOIN pg_inherits h ON h.inhrelid = p.partition
        WHERE NOT lower_inf(p.ids) AND upper(p.ids) <= bound
        ORDER BY p.ids
    LOOP
        IF dropped.pending THEN
            -- The role that detaches the partition may want to keep it.
            RAISE object_not_in_prerequisite_state USING MESSAGE = format('partition "%s" is being detached', dropped.relname),
                HINT = 'Use ALTER TABLE ... DETACH PARTITION ... FINALIZE to complete the pending detach operation.';
        END IF;
        IF referred THEN
            -- Foreign keys to the parent depend on each partition. DETACH checks that no row refers to this one.
            PERFORM insta_ids_internal.as_owner(parent, format('ALTER TABLE %s DETACH PARTITION %s', parent, dropped.name));
        END IF;
        EXECUTE format('DROP %s %s', CASE dropped.relkind WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END, dropped.name);
        RETURN NEXT dropped.name;
    END LOOP;
END
$$;
COMMENT ON FUNCTION insta_ids.drop_partitions(regclass, timestamptz) IS
    'drops the partitions whose ids are all older than before, and returns their names';

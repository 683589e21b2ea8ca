-- Moves bring shards to another server. Logical replication copies them, with one subscription for all shards of a move.
--
-- The shards leave the source and go to the target. Each step is a function on one of the two servers, and can be repeated: it
-- skips what is already done. A step records in insta_ids_internal.move what it creates, in the same transaction or before.

-- Raises an error if a role that is not a superuser writes a step of the target. This role cannot choose the id of a move.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_source() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT insta_ids_internal.is_superuser() THEN
        IF NEW.step NOT IN ('offered', 'fenced', 'released') THEN
            RAISE insufficient_privilege USING
                MESSAGE = format('must be superuser to take over shards from %s to %s', NEW.first, NEW.last);
        END IF;
        NEW.id := CASE TG_OP WHEN 'UPDATE' THEN OLD.id ELSE gen_random_uuid() END;
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER require_source BEFORE INSERT OR UPDATE ON insta_ids_internal.move
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_source();
ALTER TABLE insta_ids_internal.move ENABLE ALWAYS TRIGGER require_source;

-- Raises an error unless the move of an outcome is open here, or the role is a superuser. Only a superuser may name slots,
-- because only the target names slots and only superusers run a move there.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_open_move() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT insta_ids_internal.is_superuser()
        AND (NEW.table_slots IS NOT NULL
            OR NOT EXISTS (SELECT FROM insta_ids_internal.move m WHERE (m.id, m.shards) = (NEW.id, NEW.shards)))
    THEN
        RAISE insufficient_privilege USING MESSAGE = format('must be superuser to write down how move %s has ended', NEW.id),
            DETAIL = 'No move with this id and these shards is open here, or the row names replication slots.';
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER require_open_move BEFORE INSERT ON insta_ids_internal.move_outcome
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_open_move();
ALTER TABLE insta_ids_internal.move_outcome ENABLE ALWAYS TRIGGER require_open_move;

-- Raises an error if the range of an open move overlaps this range of shards.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_not_moving(first integer, last integer) RETURNS void
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other insta_ids_internal.move;
BEGIN
    SELECT * INTO other FROM insta_ids_internal.move m WHERE m.first <= require_not_moving.last AND m.last >= require_not_moving.first LIMIT 1;
    IF FOUND THEN
        RAISE object_in_use USING MESSAGE = format('shards from %s to %s are moving', other.first, other.last),
            DETAIL = format('They go from node "%s" to node "%s": %s.', other.from_node, other.to_node, other.step),
            HINT = CASE other.step
                WHEN 'handed over'
                    THEN format('Finish the move: CALL insta_ids.move_shards(%s, %s, %L).', other.first, other.last, other.from_node)
                ELSE format('Wait until they have moved, or on node "%s": CALL insta_ids.move_abort(%s, %s, %L).',
                    other.to_node, other.first, other.last, other.from_node) END;
    END IF;
END
$$;

-- Returns how a move has ended here, or NULL if it has not.
CREATE OR REPLACE FUNCTION insta_ids_internal.outcome_of_move(id uuid) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (SELECT e.outcome FROM insta_ids_internal.move_outcome e WHERE e.id = outcome_of_move.id);

-- The subscriptions of moves. Roles that read this view may not read connection strings.
CREATE OR REPLACE VIEW insta_ids_internal.subscription AS
SELECT s.oid, s.subname AS name, s.subenabled AS is_enabled
FROM insta_ids_internal.move m
JOIN pg_subscription s ON s.subname = m.name
JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database();

-- Raises an error unless this server is one of the two nodes of a move. The name of its node may have changed.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_own_move(moving insta_ids_internal.move) RETURNS void
    STABLE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here CONSTANT text := insta_ids.this_node();
BEGIN
    IF here IS NULL OR here NOT IN (moving.from_node, moving.to_node) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('this server is neither of the nodes of move "%s"', moving.name),
            DETAIL = format('The move is from node "%s" to node "%s"; this is %s.', moving.from_node, moving.to_node,
                coalesce('node "' || here || '"', 'no node')),
            HINT = 'Set insta_ids.node to the name of before in postgresql.conf, and restart the server.';
    END IF;
END
$$;

-- Returns the name of a move's replication slot on the source. It follows from the row, so a row cannot name another slot. It
-- contains the id, so the target of a withdrawn move cannot take the slot of the next move.
CREATE OR REPLACE FUNCTION insta_ids_internal.slot_of(moving insta_ids_internal.move) RETURNS name
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format('insta_ids_%s_%s_%s', moving.first, moving.last,
        pg_catalog."left"(pg_catalog.replace(moving.id::text, '-', ''), 16))::name;

-- Returns the hint to abort a move and begin it again.
CREATE OR REPLACE FUNCTION insta_ids_internal.hint_to_abort(moving insta_ids_internal.move) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN pg_catalog.format('End the move, and begin it again: CALL insta_ids.move_abort(%s, %s, %L) on node "%s".',
        moving.first, moving.last, moving.from_node, moving.to_node);

-- Locks and returns the move of this name, and makes the commit durable. Raises an error unless the move is open here.
CREATE OR REPLACE FUNCTION insta_ids_internal.open_move(move name) RETURNS insta_ids_internal.move
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_move insta_ids_internal.move;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.commit_durably();
    SELECT * INTO found_move FROM insta_ids_internal.move m WHERE m.name = move FOR UPDATE;
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = format('move "%s" does not exist', move),
            HINT = 'It has ended, or was never begun here: see insta_ids.moves.';
    END IF;
    PERFORM insta_ids_internal.require_own_move(found_move);
    RETURN found_move;
END
$$;

-- Assigns the shards of a move to the target, if the map has them on the source, in exactly this version: on the source it must
-- be one that the target knows, or a later move from the target could take a lower one. The range of a move can contain shards of
-- other nodes.
CREATE OR REPLACE FUNCTION insta_ids_internal.assign_moved(moving insta_ids_internal.move, version bigint) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM insta_ids_internal.require_map_version(version);
    IF EXISTS (
        SELECT FROM insta_ids_internal.assignment a
        WHERE a.node = moving.from_node AND a.first <= moving.last AND a.last >= moving.first)
    THEN
        PERFORM insta_ids_internal.set_assignments(jsonb_agg(jsonb_build_array(p.first, p.last, p.node, p.version)))
        FROM insta_ids_internal.assignment a
        CROSS JOIN LATERAL (SELECT a.node = moving.from_node) m (is_moved)
        CROSS JOIN LATERAL (VALUES
            (a.first, least(a.last, moving.first - 1), a.node, a.version),
            (greatest(a.first, moving.first), least(a.last, moving.last), CASE WHEN m.is_moved THEN moving.to_node ELSE a.node END,
                CASE WHEN m.is_moved THEN assign_moved.version ELSE a.version END),
            (greatest(a.first, moving.last + 1), a.last, a.node, a.version)
        ) p (first, last, node, version)
        WHERE p.first <= p.last;
    END IF;
    UPDATE insta_ids_internal.map m SET version = assign_moved.version WHERE m.version < assign_moved.version;
END
$$;

-- Returns whether this server was promoted since it offered these shards. It may then have lost their fence, and the target may
-- have taken them over.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_in_doubt(shards integer[]) RETURNS boolean
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN EXISTS (
        SELECT FROM insta_ids_internal.fence f
        WHERE f.shard = ANY (shards) AND NOT f.is_closed AND f.timeline <> insta_ids_internal.timeline());

-- Returns what another node must know of a move: its row here, and how the move with this id has ended.
CREATE OR REPLACE FUNCTION insta_ids_internal.move_state(move name, id uuid) RETURNS jsonb
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT pg_catalog.jsonb_build_object('outcome', insta_ids_internal.outcome_of_move(move_state.id))
        || coalesce((
            SELECT pg_catalog.jsonb_build_object('id', m.id, 'to_node', m.to_node, 'step', m.step, 'fences', m.fences,
                'lsn', m.fenced_lsn, 'shards', m.shards, 'was_promoted', m.was_promoted OR insta_ids_internal.is_in_doubt(m.shards))
            FROM insta_ids_internal.move m WHERE m.name = move), '{}');
END;

CREATE OR REPLACE VIEW insta_ids_internal.moves AS
SELECT m.name, m.first, m.last, m.from_node, m.to_node, m.step, m.started_at, m.step_at,
       t.tables, t.copied AS tables_copied, m.tables_compared, r.rows, r.bytes, m.bytes AS bytes_total,
       CASE WHEN m.step = 'copying' AND r.bytes BETWEEN 1 AND m.bytes
           THEN date_trunc('second', (now() - m.step_at) * ((m.bytes - r.bytes)::float8 / r.bytes)) END AS remaining,
       pg_wal_lsn_diff(CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END, s.confirmed_flush_lsn)::bigint AS lag,
       m.driver IS NOT NULL AS is_in_background, m.failed_attempts, m.last_error,
       CASE
           WHEN m.driver IS NOT NULL THEN 'wait'
           WHEN m.step IN ('offered', 'fenced', 'released') THEN format('On node %s: CALL insta_ids.move_shards(%s, %s, %L)',
               quote_ident(m.to_node), m.first, m.last, m.from_node)
           ELSE format('CALL insta_ids.move_shards(%s, %s, %L)', m.first, m.last, m.from_node)
       END || CASE WHEN m.step = 'handed over' THEN ''
           ELSE format('; to end it instead, CALL insta_ids.move_abort(%s, %s, %L)', m.first, m.last, m.from_node) END
       || CASE WHEN m.step = 'released' THEN format('; if node %s is lost for good, here SELECT'
               || ' insta_ids_internal.move_withdraw(name, to_jsonb(m)) FROM insta_ids_internal.move m WHERE name = %L',
               quote_ident(m.to_node), m.name) ELSE '' END AS next
FROM insta_ids_internal.move m
LEFT JOIN pg_replication_slots s ON s.slot_name = insta_ids_internal.slot_of(m) AND m.step IN ('offered', 'fenced', 'released')
LEFT JOIN LATERAL (
    SELECT count(*) AS tables, count(*) FILTER (WHERE r.srsubstate = 'r') AS copied
    FROM insta_ids_internal.subscription u
    JOIN pg_subscription_rel r ON r.srsubid = u.oid
    WHERE u.name = m.name
) t ON m.step IN ('prepared', 'copying')
-- Rows and bytes of the tables here. A table that is being copied counts the rows that have arrived.
CROSS JOIN LATERAL (
    SELECT coalesce(sum(pg_table_size(h.relation)), 0)::bigint AS bytes,
           coalesce(sum(pg_stat_get_tuples_inserted(h.relation) + coalesce(p.tuples_processed, 0)), 0)::bigint AS rows
    FROM insta_ids_internal.shard_relation h
    LEFT JOIN pg_stat_progress_copy p ON p.relid = h.relation AND p.type = 'CALLBACK'
    WHERE h.shard = ANY (m.shards) AND h.kind = 'r'
) r;
CREATE OR REPLACE VIEW insta_ids.moves AS SELECT * FROM insta_ids_internal.moves;
COMMENT ON VIEW insta_ids.moves IS 'the moves of this server: how far each is, and what to do next';

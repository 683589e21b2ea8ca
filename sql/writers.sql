-- Writer slots: several servers mint for the same shard, each the ids of its slot.

-- Returns the slot that the setting had when the server started.
CREATE OR REPLACE FUNCTION insta_ids.writer_slot() RETURNS text
    STABLE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'writer_slot_wrapper';
COMMENT ON FUNCTION insta_ids.writer_slot() IS
    'writer slot of this server: which ids are its, where several servers mint for one shard';

-- Refuses changes of the writer slot by other roles than superusers, who call acquire_writer_slot() and restore dumps.
CREATE OR REPLACE FUNCTION insta_ids_internal.refuse_writer_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT insta_ids_internal.is_superuser() THEN
        RAISE insufficient_privilege USING MESSAGE = 'must be superuser to change the writer slot of a database';
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER keep BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON insta_ids_internal.writer
    FOR EACH STATEMENT EXECUTE FUNCTION insta_ids_internal.refuse_writer_change();
ALTER TABLE insta_ids_internal.writer ENABLE ALWAYS TRIGGER keep;

-- Returns the writer slot that this database has taken, or 0/1, the only slot, if it has taken none.
CREATE OR REPLACE FUNCTION insta_ids_internal.acquired_slot() RETURNS text
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN coalesce((SELECT pg_catalog.format('%s/%s', w.slot, w.slots) FROM insta_ids_internal.writer w), '0/1');

-- Returns whether the ids of a writer slot are all ids of another slot, too. Raises an error if a text is no slot.
CREATE OR REPLACE FUNCTION insta_ids_internal.is_part_of_slot(slot text, other text) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'is_part_of_slot_wrapper';

-- Returns whether two slots can mint the same id.
CREATE OR REPLACE FUNCTION insta_ids_internal.slots_overlap(one text, other text) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN insta_ids_internal.is_part_of_slot(one, other) OR insta_ids_internal.is_part_of_slot(other, one);

-- Raises an error unless this database has taken the server's writer slot. Until then, no id can be minted here.
CREATE OR REPLACE FUNCTION insta_ids_internal.require_writer_slot() RETURNS void
    STABLE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF insta_ids.writer_slot() <> insta_ids_internal.acquired_slot() THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('writer slot %s has not been taken in this database', insta_ids.writer_slot()),
            DETAIL = format('The server has it by "insta_ids.writer_slot"; the database has %s.', insta_ids_internal.acquired_slot()),
            HINT = 'If no server has minted its ids yet: SELECT insta_ids.acquire_writer_slot(''-infinity'').';
    END IF;
END
$$;

-- The time may be left out for a part of a slot that this database has taken: only this server minted ids of that part.
CREATE OR REPLACE FUNCTION insta_ids.acquire_writer_slot(until timestamptz DEFAULT NULL) RETURNS text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot CONSTANT text := insta_ids.writer_slot();
    taken text;
BEGIN
    PERFORM insta_ids_internal.require_read_committed(), insta_ids_internal.commit_durably();
    LOCK TABLE insta_ids_internal.writer IN SHARE ROW EXCLUSIVE MODE;
    taken := insta_ids_internal.acquired_slot();
    IF until IS NULL AND slot <> taken
        AND (NOT EXISTS (SELECT FROM insta_ids_internal.writer) OR NOT insta_ids_internal.is_part_of_slot(slot, taken))
    THEN
        RAISE null_value_not_allowed USING
            MESSAGE = format('time until which ids of writer slot %s were minted must be given', slot),
            DETAIL = format('This database has slot %s, so other servers may have minted them.', taken),
            HINT = format('On each that did, when it has another slot: SELECT insta_ids.release_writer_slot(%L). Where it will not'
                || ' mint again: SELECT lease + ''1 ms'' FROM insta_ids.clock(). Give the greatest; if none did, ''-infinity''.', slot);
    END IF;
    -- A slot that was taken before also needs this, because this may be a copy of a database that went on elsewhere.
    PERFORM insta_ids.advance_clock(until) WHERE until > '-infinity';
    IF slot <> taken THEN
        DELETE FROM insta_ids_internal.writer;
        INSERT INTO insta_ids_internal.writer VALUES (split_part(slot, '/', 1)::integer, split_part(slot, '/', 2)::integer);
    END IF;
    RETURN slot;
END
$$;
COMMENT ON FUNCTION insta_ids.acquire_writer_slot(timestamptz) IS
    'lets this database mint by the writer slot of its server, after a time up to which another server did';

CREATE OR REPLACE FUNCTION insta_ids.release_writer_slot(slot text) RETURNS timestamptz
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own CONSTANT text := insta_ids.writer_slot();
    taken CONSTANT text := insta_ids_internal.acquired_slot();
BEGIN
    IF insta_ids_internal.slots_overlap(slot, own) OR insta_ids_internal.slots_overlap(slot, taken)
        -- The transaction that has taken a slot may still be rolled back.
        OR EXISTS (SELECT FROM insta_ids_internal.writer w WHERE w.taken_by = pg_current_xact_id_if_assigned())
    THEN
        RAISE object_in_use USING MESSAGE = format('ids of writer slot %s are minted here', slot),
            DETAIL = format('This server has slot %s, and this database has taken %s.', own, taken),
            HINT = 'Set another insta_ids.writer_slot in postgresql.conf, restart the server, and take that, in a transaction'
                || ' before: SELECT insta_ids.acquire_writer_slot().';
    END IF;
    -- The lease covers the time of every id of this database.
    RETURN coalesce((SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c), '-infinity');
END
$$;
COMMENT ON FUNCTION insta_ids.release_writer_slot(text) IS
    'time that ids of another writer slot, minted here before, have not reached';

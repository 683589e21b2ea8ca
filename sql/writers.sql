-- Writer slots: several servers mint for one shard, each the ids of its slot.

-- In force on this server: it is the setting's, from when the server started.
CREATE FUNCTION insta_ids.writer_slot() RETURNS text
    STABLE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'writer_slot_wrapper';

-- What this database has taken, one row; without it, slot 0 of 1. Sessions read it with the map.
CREATE TABLE insta_ids.writer (
    slot integer NOT NULL CHECK (slot >= 0),
    slots integer NOT NULL CHECK (slots > slot)
);
CREATE UNIQUE INDEX writer_once ON insta_ids.writer ((true));
SELECT pg_catalog.pg_extension_config_dump('insta_ids.writer', '');

CREATE FUNCTION insta_ids.slot_of(writer_slot text) RETURNS insta_ids.writer
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    writer insta_ids.writer;
BEGIN
    IF writer_slot ~ '^\d{1,9}/\d{1,9}$' THEN
        writer := (split_part(writer_slot, '/', 1)::integer, split_part(writer_slot, '/', 2)::integer);
        IF writer.slot < writer.slots AND writer.slots & writer.slots - 1 = 0 THEN
            RETURN writer;
        END IF;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'invalid_parameter_value',
        MESSAGE = format('"%s" is not a writer slot', writer_slot),
        DETAIL = 'It must be like 0/2: a number from 0, and a power of two that is greater.';
END
$$;

-- Whether an id can be of both.
CREATE FUNCTION insta_ids.slots_meet(one insta_ids.writer, other insta_ids.writer) RETURNS boolean
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (one).slot % LEAST((one).slots, (other).slots) = (other).slot % LEAST((one).slots, (other).slots);

CREATE FUNCTION insta_ids.taken_slot() RETURNS insta_ids.writer
    STABLE PARALLEL SAFE LANGUAGE sql
    RETURN coalesce((SELECT w FROM insta_ids.writer w), ROW(0, 1)::insta_ids.writer);

-- A part of what the database has taken already needs no time: it is the server's own ids that were minted of it.
CREATE FUNCTION insta_ids.take_writer_slot(until timestamptz DEFAULT NULL) RETURNS text
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    slot CONSTANT insta_ids.writer := insta_ids.slot_of(insta_ids.writer_slot());
    taken insta_ids.writer;
BEGIN
    PERFORM insta_ids.check_isolation('a writer slot cannot be taken');
    LOCK TABLE insta_ids.writer IN SHARE ROW EXCLUSIVE MODE;
    taken := insta_ids.taken_slot();
    IF slot <> taken THEN
        IF until IS NULL
            AND (NOT EXISTS (SELECT FROM insta_ids.writer) OR slot.slots < taken.slots OR NOT insta_ids.slots_meet(slot, taken))
        THEN
            RAISE EXCEPTION USING
                ERRCODE = 'null_value_not_allowed',
                MESSAGE = format('until when ids of writer slot %s were minted must be given', insta_ids.writer_slot()),
                DETAIL = format('This database has slot %s/%s, so another server may have minted them.', taken.slot, taken.slots),
                HINT = format('On the server that did, when it has another slot: SELECT insta_ids.left_writer_slot(%L).'
                    || ' If none did: ''-infinity''.', insta_ids.writer_slot());
        END IF;
        PERFORM insta_ids.advance_clock(until) WHERE until > '-infinity';
        DELETE FROM insta_ids.writer;
        INSERT INTO insta_ids.writer SELECT (slot).*;
        PERFORM insta_ids.forget_map();
    END IF;
    RETURN insta_ids.writer_slot();
END
$$;

CREATE FUNCTION insta_ids.left_writer_slot(slot text) RETURNS timestamptz
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own CONSTANT text := insta_ids.writer_slot();
BEGIN
    IF insta_ids.slots_meet(insta_ids.slot_of(slot), insta_ids.slot_of(own))
        OR insta_ids.slots_meet(insta_ids.slot_of(slot), insta_ids.taken_slot())
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'object_in_use',
            MESSAGE = format('ids of writer slot %s are minted here', slot),
            DETAIL = (SELECT format('This server has slot %s, and this database has taken %s/%s.', own, t.slot, t.slots)
                      FROM insta_ids.taken_slot() t),
            HINT = 'Set another insta_ids.writer_slot in postgresql.conf, restart the server, and take that:'
                || ' SELECT insta_ids.take_writer_slot().';
    END IF;
    -- Every id of this database is of a time that its lease covers.
    RETURN coalesce((SELECT c.lease + interval '1 ms' FROM insta_ids.clock() c), '-infinity');
END
$$;

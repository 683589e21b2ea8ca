-- next_id and the readers of ids in PL/pgSQL and plain SQL, for servers on which no library can be installed: PostgreSQL 14 and
-- later. Instagram's layout: 41 bits of milliseconds since 2011-08-24T21:07:01.721Z, 13 of shard, 10 of sequence.
--
--     psql -v ON_ERROR_STOP=1 -f portable.sql
--
-- makes them in the schema that is first in the search path. Where the extension is to come later, choose a schema of
-- their own, as its functions have the same names.

BEGIN;

-- Creates the sequence that keeps the newest id of a sequence, and returns its name. It has the same owner. Who may take values of the
-- sequence may read and set it. It begins with the greatest id of this millisecond, which no function has passed that
-- minted by the clock until now.
CREATE FUNCTION guard_sequence(seq_name regclass) RETURNS regclass
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    newest CONSTANT text := CASE right(seq_name::text, 1) WHEN '"' THEN left(seq_name::text, -1) || '_newest"' ELSE seq_name || '_newest' END;
    taker record;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = seq_name AND c.relkind = 'S') THEN
        RAISE wrong_object_type USING MESSAGE = format('"%s" is not a sequence', seq_name);
    ELSIF (SELECT c.relpersistence = 't' FROM pg_class c WHERE c.oid = seq_name) THEN
        RAISE wrong_object_type USING MESSAGE = format('sequence %s is temporary', seq_name);
    ELSIF (SELECT octet_length(c.relname) > 56 FROM pg_class c WHERE c.oid = seq_name) THEN
        RAISE name_too_long USING MESSAGE = format('name of sequence %s is too long', seq_name),
            DETAIL = 'The sequence that keeps its newest id has the same name with _newest behind it, and names have at most 63 bytes.',
            HINT = 'Give it a name of at most 56 bytes: ALTER SEQUENCE ... RENAME TO ...';
    END IF;
    EXECUTE format('CREATE SEQUENCE %s', newest);
    -- By this, insta_ids.adopt() knows it.
    EXECUTE format('COMMENT ON SEQUENCE %s IS %L', newest, 'newest id, kept by next_id of portable.sql');
    FOR taker IN
        SELECT DISTINCT a.grantee
        FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
        WHERE c.oid = seq_name AND a.privilege_type IN ('USAGE', 'UPDATE') AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE %s TO %s', newest,
            CASE taker.grantee WHEN 0 THEN 'PUBLIC' ELSE taker.grantee::regrole::text END);
    END LOOP;
    PERFORM setval(newest::regclass,
        (floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1314220021721) << 23 | 8388607);
    EXECUTE format('ALTER SEQUENCE %s OWNER TO %s', newest, (SELECT c.relowner::regrole FROM pg_class c WHERE c.oid = seq_name));
    RETURN newest;
END
$$;

-- Mints an id: the next one of the sequence, greater than all before. <sequence>_newest keeps the newest one: what setval writes is
-- in the WAL, and no rollback takes it back. If the clock has not passed the newest id, because it was set back or because the
-- remainder of nextval has come round, the function waits for that.
CREATE FUNCTION next_id(shard integer, seq_name regclass) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    newest CONSTANT regclass := to_regclass(
        CASE right(seq_name::text, 1) WHEN '"' THEN left(seq_name::text, -1) || '_newest"' ELSE seq_name || '_newest' END);
    polls integer := 0;
    value bigint;
    id bigint;
    last bigint;
    behind interval;
BEGIN
    IF shard NOT BETWEEN 0 AND 8191 THEN
        RAISE numeric_value_out_of_range USING MESSAGE = format('shard %s is out of range', shard),
            DETAIL = 'Shards are numbered from 0 to 8191.';
    ELSIF newest IS NULL OR newest = seq_name THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('sequence %s is not guarded', seq_name),
            HINT = CASE WHEN EXISTS (SELECT FROM pg_extension x WHERE x.extname = 'insta_ids')
                THEN 'If insta_ids.adopt() has taken its schema over, call next_id of the extension. If not, call guard_sequence.'
                ELSE format('Call guard_sequence(%L).', seq_name) END;
    END IF;
    -- An error ends this block, whatever happens. So its subtransaction is rolled back, which releases the lock.
    BEGIN
        -- In the queue of a lock, each id would cost a change of process. Only who has no luck queues.
        WHILE NOT pg_try_advisory_xact_lock(1768190720, seq_name::oid::integer) LOOP
            polls := polls + 1;
            PERFORM CASE WHEN polls < 100 THEN pg_sleep(0.001) ELSE pg_advisory_xact_lock(1768190720, seq_name::oid::integer) END;
        END LOOP;
        value := nextval(seq_name);
        LOOP
            id := ((floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1314220021721) << 23) | (shard << 10) | (value % 1024);
            last := pg_sequence_last_value(newest);
            EXIT WHEN id > last;
            behind := ((last >> 23) - (id >> 23)) * interval '1 ms';
            IF value < 0 THEN
                RAISE numeric_value_out_of_range USING MESSAGE = format('sequence value %s is negative', value),
                    DETAIL = 'An id holds a remainder of the value, which is negative for a negative value.',
                    HINT = 'Give the sequence a MINVALUE of 0 or more, and restart it there.';
            ELSIF last IS NULL THEN
                RAISE object_not_in_prerequisite_state USING MESSAGE = format('sequence %s does not have the newest id', newest),
                    DETAIL = 'It has no value, or you may not read it.',
                    HINT = format('If no row has a greater id than %2$s, let its owner set it: SELECT setval(%1$L, %2$s).', newest, id);
            ELSIF id < 0 THEN
                RAISE datetime_field_overflow USING
                    MESSAGE = format(CASE WHEN clock_timestamp() < timestamptz '2012-01-01 00:00+00' THEN 'time %s is before the first id'
                        ELSE 'time %s is past the last id' END, clock_timestamp());
            ELSIF behind > interval '10 s' THEN
                RAISE object_not_in_prerequisite_state USING
                    MESSAGE = format('clock is %s behind the newest id of sequence %s', behind, seq_name),
                    HINT = format('If that was minted when the clock was wrong, and no row has a greater id than %2$s, set it: SELECT setval(%1$L, %2$s).', newest, id);
            END IF;
            -- The next millisecond begins too soon for a sleep.
            PERFORM pg_sleep(0.001) WHERE behind > interval '0';
        END LOOP;
        id := setval(newest, id);
        RAISE SQLSTATE 'IDGOT';
    EXCEPTION
        WHEN SQLSTATE 'IDGOT' THEN
            RETURN id;
    END;
END
$$;

CREATE FUNCTION id_time(id bigint) RETURNS timestamptz
    IMMUTABLE STRICT PARALLEL SAFE
    RETURN (timestamp '2011-08-24 21:07:01.721' + (id >> 23) * interval '1 millisecond') AT TIME ZONE 'UTC';

CREATE FUNCTION id_shard(id bigint) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE
    RETURN (id >> 10 & 8191)::integer;

CREATE FUNCTION id_seq(id bigint) RETURNS integer
    IMMUTABLE STRICT PARALLEL SAFE
    RETURN (id & 1023)::integer;

CREATE FUNCTION id_parts(id bigint, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT id_time(id), id_shard(id), id_seq(id);
    END;

-- By multiplication, not by a shift: where the format ends, it overflows.
CREATE FUNCTION id_min(at timestamptz) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE
    RETURN (floor(extract(epoch FROM at AT TIME ZONE 'UTC') * 1000)::bigint - 1314220021721) * 8388608;

CREATE FUNCTION id_max(at timestamptz) RETURNS bigint
    IMMUTABLE STRICT PARALLEL SAFE
    RETURN id_min(at) + 8388607;

CREATE FUNCTION id_between(id bigint, lo timestamptz, hi timestamptz) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= id_min(lo) AND id < id_min(hi);

-- A byte of zeroes before the 8 of the id makes 12 digits of 6 bits.
CREATE FUNCTION id_shortcode(id bigint) RETURNS text
    IMMUTABLE STRICT PARALLEL SAFE
    RETURN regexp_replace(translate(encode(decode('00', 'hex') || int8send(id), 'base64'), '+/', '-_'), '^A{1,11}', '');

-- A text that is no code fails with 22P02, as one that is no number.
CREATE FUNCTION shortcode_id(code text) RETURNS bigint
    IMMUTABLE PARALLEL SAFE
    RETURN coalesce(
        ('x' || right(encode(decode(translate(lpad(
            substring(code COLLATE "C" FROM '^([A-P][A-Za-z0-9_-]{10}|[A-Za-z0-9_-]{1,10})([A-Za-z0-9_-]{28})?$'),
            12, 'A'), '-_', '+/'), 'base64'), 'hex'), 16))::bit(64)::bigint,
        ('not a short code: ' || code)::bigint);

COMMENT ON FUNCTION next_id(integer, regclass) IS 'mints an id';
COMMENT ON FUNCTION guard_sequence(regclass) IS 'creates the sequence that keeps the newest id of a sequence';
COMMENT ON FUNCTION id_time(bigint) IS 'time of an id, to the millisecond';
COMMENT ON FUNCTION id_shard(bigint) IS 'shard of an id, 0 to 8191';
COMMENT ON FUNCTION id_seq(bigint) IS 'sequence value of an id modulo 1024';
COMMENT ON FUNCTION id_parts(bigint) IS 'time, shard and sequence value of an id';
COMMENT ON FUNCTION id_min(timestamptz) IS 'smallest id of a millisecond';
COMMENT ON FUNCTION id_max(timestamptz) IS 'greatest id of a millisecond';
COMMENT ON FUNCTION id_between(bigint, timestamptz, timestamptz) IS
    'whether an id is from lo (inclusive) to hi (exclusive)';
COMMENT ON FUNCTION id_shortcode(bigint) IS 'short code of an id, as in Instagram''s URLs';
COMMENT ON FUNCTION shortcode_id(text) IS 'id of a short code';

COMMIT;

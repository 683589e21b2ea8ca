-- Readers of ids in plain SQL, for servers on which nothing can be installed: PostgreSQL 14 and later, with no
-- extension. Instagram's layout: 41 bits of milliseconds since 2011-08-24T21:07:01.721Z, 13 of shard, 10 of sequence.
--
--     psql -v ON_ERROR_STOP=1 -f decoders.sql
--
-- makes them in the schema that is first in the search path. Where the extension is to come later, choose a schema of
-- their own, as its functions have the same names.
--
-- They give what the extension's functions give, but for times that no id holds: one past the last is an error here,
-- too, with SQLSTATE 22003, and 0A000 for an infinity; one before the first gives a negative number, which is less than
-- any id.
--
-- All are inlined, so that the planner sees through them, but for id_parts, which returns a row. Those that are not
-- STRICT would not be if they were.

BEGIN;

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

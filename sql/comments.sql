-- What each function is, in the words of docs/reference.md.

-- Minting
COMMENT ON FUNCTION next_id(integer, regclass) IS
    'next id of a shard, from the sequence and the clock';
COMMENT ON FUNCTION next_ids(integer, regclass, integer) IS
    'next ids of a shard, count of them';
COMMENT ON FUNCTION make_id(timestamptz, integer, bigint) IS
    'id of an instant, a shard and a sequence value; not a new one';

-- Reading
COMMENT ON FUNCTION id_time(bigint) IS
    'time of an id, to the millisecond';
COMMENT ON FUNCTION id_shard(bigint) IS
    'shard of an id, 0 to 8191';
COMMENT ON FUNCTION id_seq(bigint) IS
    'sequence value of an id modulo 1024';
COMMENT ON FUNCTION id_parts(bigint) IS
    'time, shard and sequence value of an id';
COMMENT ON FUNCTION id_min(timestamptz) IS
    'smallest id of a millisecond';
COMMENT ON FUNCTION id_max(timestamptz) IS
    'greatest id of a millisecond';
COMMENT ON FUNCTION id_between(bigint, timestamptz, timestamptz) IS
    'whether an id is from lo (inclusive) to hi (exclusive)';

-- Clock and figures
COMMENT ON FUNCTION insta_ids.clock() IS
    'the clock, the time of ids, how far that is ahead, and the lease';
COMMENT ON FUNCTION insta_ids.advance_clock(timestamptz) IS
    'lets no later id of the server be older than until';
COMMENT ON FUNCTION insta_ids.reset_clock() IS
    'sets the time of ids back to the clock, after that had run ahead';
COMMENT ON FUNCTION insta_ids.stat_get_ids() IS
    'figures behind the view stat_ids';
COMMENT ON FUNCTION insta_ids.stat_reset() IS
    'begins the figures of stat_ids anew';
COMMENT ON VIEW insta_ids.stat_ids IS
    'what the server counted about its ids';
COMMENT ON SEQUENCE insta_ids.lease IS
    'a time that ids of this database have not reached, in Unix milliseconds; written by the extension alone';
COMMENT ON SCHEMA insta_ids IS
    'administration of insta_ids';

-- Readers that the planner must see through, or that return a row: plain SQL over the native ones.
-- Their bodies are parsed here, so they hold to the functions themselves, whatever the search path.

CREATE FUNCTION id_parts(id bigint, OUT at timestamptz, OUT shard integer, OUT seq integer)
    IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
        SELECT id_time(id), id_shard(id), id_seq(id);
    END;

-- Not STRICT: a strict function does not inline, and then its index is not used.
CREATE FUNCTION id_between(id bigint, lo timestamptz, hi timestamptz) RETURNS boolean
    IMMUTABLE PARALLEL SAFE
    RETURN id >= id_min(lo) AND id < id_min(hi);

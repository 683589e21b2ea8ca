-- Moves: what shards share with the rest of their servers: roles and their privileges, objects that depend on the shards, and rows to
-- which the shards refer.

-- Returns the objects outside of a shard that depend on it, at most five, in one text, or NULL if there are none.
CREATE OR REPLACE FUNCTION insta_ids_internal.named_dependents(schema oid) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT string_agg(d.object, ', ' ORDER BY d.number) FILTER (WHERE d.number <= 5)
            || CASE WHEN count(*) > 5 THEN format(' and %s more', count(*) - 5) ELSE '' END
        FROM (
            SELECT o.object, row_number() OVER (ORDER BY o.object) AS number
            FROM (
                SELECT * FROM insta_ids_internal.dependents_of(schema)
                UNION
                SELECT format('publication %I', p) FROM insta_ids_internal.publications_of(schema) p
            ) o (object)
        ) d);
END
$$;


-- What the bench measures by, inside the server, so that no round trip is measured.

-- What was minted since it was last looked at.
CREATE UNLOGGED TABLE minted (began timestamptz, ended timestamptz, made bigint[]);
ALTER TABLE minted ALTER made SET STORAGE EXTERNAL;

-- Runs a query that returns an array of ids, and keeps them: an array, so that the loop around what is measured costs
-- the same for all, and all ids can be looked at for duplicates. Sessions that wait for the lock all begin at once.
CREATE FUNCTION mint(query text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz;
    made bigint[];
BEGIN
    PERFORM pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);
    began := clock_timestamp();
    EXECUTE query INTO made;
    INSERT INTO minted VALUES (began, clock_timestamp(), made);
END
$$;

-- Runs a query, so many times, and returns how long that took in seconds.
CREATE FUNCTION took(query text, times int DEFAULT 1) RETURNS float LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
BEGIN
    FOR n IN 1 .. times LOOP
        EXECUTE query;
    END LOOP;
    RETURN extract(epoch FROM clock_timestamp() - began);
END
$$;

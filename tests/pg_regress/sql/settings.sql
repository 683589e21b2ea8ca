-- Settings are the server's: no session can set them.
\set VERBOSITY default
SELECT id_shard(0);
SHOW insta_ids.max_ahead;
SHOW insta_ids.clock_tolerance;
SET insta_ids.max_ahead = 5;
SET insta_ids.clock_tolerance = '1 day';
\set VERBOSITY sqlstate
ALTER SYSTEM SET insta_ids.max_ahead = 1001;
ALTER SYSTEM SET insta_ids.max_ahead = -1;
ALTER SYSTEM SET insta_ids.clock_tolerance = '9s';
ALTER SYSTEM SET insta_ids.clock_tolerance = '367d';
\set VERBOSITY default

-- The prefix is reserved.
SET insta_ids.max_aheads = 5;

-- Settings are the server's: no session can set them.
\set VERBOSITY default
SELECT id_shard(0);
SHOW insta_ids.max_ahead_ms;
SET insta_ids.max_ahead_ms = 5;
\set VERBOSITY sqlstate
ALTER SYSTEM SET insta_ids.max_ahead_ms = 1001;
ALTER SYSTEM SET insta_ids.max_ahead_ms = -1;
\set VERBOSITY default

-- The prefix is reserved.
SET insta_ids.max_ahead = 5;

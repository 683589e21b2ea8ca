-- Before anything is made: tells what the server still needs.
DO $$
BEGIN
    IF pg_catalog.current_setting('server_version_num')::pg_catalog.int4 < 170000
        AND 'insta_ids' <> ALL (
            pg_catalog.regexp_split_to_array(pg_catalog.current_setting('shared_preload_libraries'), '[\s,"/]+'))
    THEN
        RAISE WARNING USING
            MESSAGE = 'insta_ids is not loaded by the server yet, so next_id will fail',
            DETAIL = 'Before PostgreSQL 17, shared memory is given out at server start only.',
            HINT = 'Set shared_preload_libraries = ''insta_ids'' in postgresql.conf, beside what is listed there, and restart the server.';
    END IF;
END
$$;

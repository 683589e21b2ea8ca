-- Layouts: the type, and each function in other layouts than Instagram's.
SET timezone = 'UTC';
SET datestyle = 'ISO';
\set VERBOSITY default

-- The presets, in full.
SELECT name, name::id_layout AS layout
FROM unnest('{instagram,twitter,discord,pgedge,pgdog,mastodon,sonyflake,js53}'::text[]) name;

-- One layout, however it is written.
SELECT 'sonyflake'::id_layout = '  unit:10ms time:39 seq:8   shard:16 epoch:2014-09-01T00:00Z' AS equal,
       'twitter'::id_layout <> 'pgdog' AS not_equal;
SELECT layout, count(*)
FROM (VALUES ('js53'::id_layout), ('twitter'), ('time:41 shard:10 seq:12 epoch:1288834974657')) v(layout)
GROUP BY layout ORDER BY layout::text;

-- Stored, hashed, joined, dumped and read in binary.
CREATE TABLE feeds (name text, layout id_layout NOT NULL DEFAULT 'mastodon') PARTITION BY HASH (layout);
CREATE TABLE feeds_0 PARTITION OF feeds FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE feeds_1 PARTITION OF feeds FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO feeds VALUES ('a', DEFAULT), ('b', 'twitter'), ('c', 'discord'), ('d', 'twitter');
SELECT tableoid::regclass AS partition, name FROM feeds ORDER BY name;
CREATE INDEX ON feeds USING hash (layout);
SET enable_seqscan = off;
SELECT name FROM feeds WHERE layout = 'twitter' ORDER BY name;
RESET enable_seqscan;
SELECT string_agg(a.name || b.name, ' ' ORDER BY a.name, b.name) FROM feeds a JOIN feeds b USING (layout);
SELECT encode(id_layout_send('sonyflake'), 'hex');
DROP TABLE feeds;

-- A layout is a constant to the planner.
EXPLAIN (VERBOSE, COSTS OFF) SELECT id_time(1233161576649121792, 'twitter'), next_id(1, 'pg_class'::regclass, 'js53');

-- Ids of others.
SELECT v.layout, id, p.*
FROM (VALUES (1233161576649121792, 'twitter'), (175928847299117063, 'discord'), (47839699276046336, 'pgdog'), (3610360906330268046, 'instagram')) v(id, layout),
     id_parts(id, v.layout::id_layout) p;
SELECT id_time(175928847299117063, 'discord'), id_shard(175928847299117063, 'discord'), id_seq(175928847299117063, 'discord');

-- And made of their parts.
SELECT make_id('2020-02-27 22:46:45.564', 334, 0, 'twitter'), make_id('2016-04-30 11:18:25.796', 32, 7, 'discord'),
       make_id('2026-04-07 19:31:08.126', 42, 0, 'pgdog');

-- Units of 10 ms: finer instants fall to theirs.
SELECT id_parts(make_id('2026-01-01 00:00:00.019', 7, 300, 'sonyflake'), 'sonyflake');
SELECT id_parts(id_min('2026-01-01 00:00:00.019', 'sonyflake'), 'sonyflake'), id_parts(id_max('2026-01-01 00:00:00.019', 'sonyflake'), 'sonyflake');
SELECT id_max('2026-01-01', 'sonyflake') + 1 = id_min('2026-01-01 00:00:00.010', 'sonyflake') AS adjacent;
SELECT id_between(id_min('2026-01-01', 'twitter'), '2026-01-01', '2026-01-02', 'twitter') AS from_lo,
       id_between(id_min('2026-01-02', 'twitter'), '2026-01-01', '2026-01-02', 'twitter') AS to_hi;

-- Minting: each part is within its field, ids increase, and js53's are JavaScript's integers.
CREATE SEQUENCE s;
CREATE TABLE minted (n serial, layout id_layout, id bigint);
INSERT INTO minted (layout, id)
SELECT v.layout::id_layout, next_id(v.shard, 's', v.layout::id_layout)
FROM (VALUES ('twitter', 1023), ('discord', 1), ('pgedge', 7), ('pgdog', 9), ('mastodon', 0), ('sonyflake', 65535), ('js53', 63)) v(layout, shard);
SELECT layout, id_shard(id, layout) AS shard, id_seq(id, layout) = n AS sequence,
       id_time(id, layout) BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp() + interval '10 ms' AS now, id < 2::numeric ^ 53 AS js
FROM minted;
SELECT count(*), count(DISTINCT id) AS distinct, bool_and(id_shard(id, 'twitter') = 5) AS shard FROM next_ids(5, 's', 5000, 'twitter') id;
DROP TABLE minted;

-- Times that PostgreSQL does not have.
SELECT id_time(-9223372036854775808, 'time:64 epoch:0 unit:1s'), id_time(9223372036854775807, 'time:64 epoch:0 unit:1s');

-- JSON, the id as text, the time in UTC whatever the session's zone.
SET timezone = 'Asia/Tokyo';
SELECT id_json(3610360906330268046), id_json(175928847299117063, 'discord');
SELECT id_json(-9223372036854775808, 'mastodon'), id_json(9223372036854775807, 'time:64 epoch:0 unit:1s');
SET timezone = 'UTC';

-- Short codes.
SELECT id, id_shortcode(id), shortcode_id(id_shortcode(id)) = id AS back
FROM (VALUES (482584233761418119), (1455920561485265648), (3610360906330268046), (0), (63), (64), (9223372036854775807), (-1)) v(id);
SELECT shortcode_id('BQ0eAlwhDrwAAAAAAAAAAAAAAAAAAAAAAAAAAAA') AS of_a_private_post;

-- Masked ids. Known answers and the texts that are refused are in tests/pure/mask.rs.
SELECT id, id_mask(id, key), id_unmask(id_mask(id, key), key) = id AS back, id_unmask(id_mask(id, key), sha256(key)) = id AS by_another_key
FROM (VALUES (0), (1455920561485265648), (-1)) v(id),
    decode('2B7E151628AED2A6ABF7158809CF4F3CEF4359D8D580AA4F7F036D6F04FC6A94', 'hex') key;
SELECT id_mask(NULL, sha256('')), id_mask(1, NULL), id_unmask(NULL, sha256('')), id_unmask('2-fUtt7ikJA', NULL);
SELECT id_unmask('?', sha256(''), null_if_invalid => true), id_unmask('2-fUtt7ikJB', sha256(''), true);

-- NULL in, NULL out.
SELECT next_id(NULL, 's', 'twitter'), make_id(now(), 1, NULL, 'twitter'), id_time(1, NULL), id_shard(NULL, 'twitter'), id_json(NULL), id_shortcode(NULL), shortcode_id(NULL);

-- What cannot be a layout. The texts that are refused are in tests/pure/texts.rs.
SELECT 'time:41 shard:13 seq:12 epoch:0'::id_layout;
SELECT 'time:41 shard:13 shard:10 epoch:0'::id_layout;
SELECT 'shard:13 seq:10 epoch:0'::id_layout;
SELECT 'time:41 shard:13 seq:10 epoch:0 unit:0ms'::id_layout;
SELECT 'time:41 shard:13 seq:10 epoch:9999-12-31'::id_layout;
SELECT 'time:41 shard:13 seq:10 epoch:yesterday'::id_layout;
SELECT ''::id_layout;
SELECT repeat('time ', 2000)::id_layout;

-- Parts that a layout has no room for.
SELECT next_id(1024, 's', 'twitter');
SELECT next_id(1, 's', 'mastodon');
SELECT make_id(now(), 64, 1, 'js53');
SELECT make_id(now(), 1, -1, 'js53');
SELECT make_id('2080-07-10 17:30:30.209', 1, 1, 'twitter');
SELECT id_min('2014-08-31 23:59:59.999', 'sonyflake');
SELECT next_ids(1, 's', -1, 'twitter');

-- No short codes.
SELECT shortcode_id('BQ0eAlwhDr+');
SELECT shortcode_id('');
SELECT shortcode_id(repeat('B', 12));
SELECT shortcode_id('QAAAAAAAAAA');
SELECT shortcode_id(repeat('?', 10000));
-- No masked ids, and no keys.
SELECT id_unmask('?', sha256(''));
SELECT id_unmask('2-fUtt7ikJB', sha256(''), false);
SELECT id_unmask('?', 'secret', true);
SELECT id_mask(1, '\x2B7E151628AED2A6ABF7158809CF4F');
\set VERBOSITY sqlstate
SELECT id_unmask('?', sha256(''));
SELECT id_mask(1, '');
SELECT 'x'::id_layout;
SELECT next_id(1024, 's', 'twitter');
SELECT make_id('2081-01-01', 1, 1, 'twitter');
SELECT shortcode_id('');
-- The clock is past the last instant, or before the first.
SELECT next_id(0, 's', 'time:30 epoch:0');
SELECT next_ids(0, 's', 2, 'time:30 epoch:0');
SELECT next_id(0, 's') > 0 AS others_go_on;
DROP SEQUENCE s;

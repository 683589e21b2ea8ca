//! Promise: ids are the published function's, bit for bit. The oracle is the published body itself, with
//! the instant and the sequence's value as arguments.

use support::Cluster;

/// From "Sharding & IDs at Instagram". `%%` is single, as in the function that the page's template made.
const PUBLISHED: &str = "
CREATE FUNCTION published(at timestamptz, shard int, seq bigint, OUT result bigint) AS $$
DECLARE
    our_epoch bigint := 1314220021721;
    seq_id bigint;
    now_millis bigint;
    shard_id int := shard;
BEGIN
    SELECT seq % 1024 INTO seq_id;

    SELECT FLOOR(EXTRACT(EPOCH FROM at) * 1000) INTO now_millis;
    result := (now_millis - our_epoch) << 23;
    result := result | (shard_id << 10);
    result := result | (seq_id);
END;
$$ LANGUAGE PLPGSQL";

#[test]
fn make_id_is_the_published_function() {
    let cluster = Cluster::start("oracle");
    let mut client = cluster.connect();
    client.batch_execute(PUBLISHED).unwrap();
    client.batch_execute("SELECT setseed(0.42)").unwrap();
    let row = client
        .query_one(
            "WITH parts AS (
                 SELECT '2011-08-24 21:07:01.721+00'::timestamptz + random() * interval '1099511627775 ms' AS at,
                        floor(random() * 8192)::int AS shard,
                        floor(random() * 9223372036854775807)::bigint AS seq
                 FROM generate_series(1, 200000)
                 UNION ALL
                 SELECT at, shard, seq
                 FROM unnest('{2011-08-24 21:07:01.721+00, 2011-08-24 21:07:01.721999+00, 2011-08-24 21:07:01.722+00,
                               2015-07-01 00:00:00+00, 2026-03-29 02:30:00+01, 2046-06-27 17:00:49.496+00,
                               2046-06-27 17:00:49.496999+00}'::timestamptz[]) at,
                      unnest('{0, 1, 4095, 4096, 8190, 8191}'::int[]) shard,
                      unnest('{0, 1, 1023, 1024, 1025, 2147483648, 9223372036854775807}'::bigint[]) seq
             )
             SELECT count(*), count(*) FILTER (WHERE made IS DISTINCT FROM published(at, shard, seq)),
                    count(*) FILTER (WHERE (id_time(made), id_shard(made), id_seq(made))
                        IS DISTINCT FROM (date_trunc('milliseconds', at), shard, (seq % 1024)::int))
             FROM (SELECT *, make_id(at, shard, seq) AS made FROM parts) p",
            &[],
        )
        .unwrap();
    let (tried, wrong, misread): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((tried, wrong, misread), (200_294, 0, 0));
}

#[test]
fn next_id_is_nextval_and_the_clock() {
    let cluster = Cluster::start("live");
    let mut client = cluster.connect();
    client
        .batch_execute(
            "CREATE SEQUENCE s START 1000000000000;
             DO $$
             DECLARE
                 before timestamptz;
                 id bigint;
                 after timestamptz;
                 parts record;
             BEGIN
                 FOR shard IN 0..8191 LOOP
                     before := date_trunc('milliseconds', clock_timestamp());
                     id := next_id(shard, 's');
                     after := clock_timestamp();
                     parts := id_parts(id);
                     ASSERT parts.shard = shard;
                     ASSERT parts.seq = currval('s') % 1024;
                     ASSERT parts.at BETWEEN before AND after + interval '10 ms';
                     ASSERT id = make_id(parts.at, shard, currval('s'));
                 END LOOP;
             END
             $$",
        )
        .unwrap();
}

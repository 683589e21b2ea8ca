//! Event triggers of the user.

use super::{FINDINGS, MINT, MORE, PHOTOS};
use postgres::Client;
use postgres::error::SqlState;
use support::shards::add;
use support::{Cluster, disorders, duplicates, ids, refused, texts};

/// Event triggers of the user, which write down what they see, and raise an error at what is in `stopped`.
const EVENT_TRIGGERS: &str = "
    CREATE TABLE seen (event text, tag text, object text);
    CREATE TABLE stopped (event text, tag text, object text);
    CREATE FUNCTION see() RETURNS event_trigger LANGUAGE plpgsql AS $$
    DECLARE
        objects text[] := CASE TG_EVENT
            WHEN 'ddl_command_start' THEN ARRAY['']
            WHEN 'table_rewrite' THEN ARRAY[
                (pg_identify_object('pg_class'::regclass, pg_event_trigger_table_rewrite_oid(), 0)).identity] END;
    BEGIN
        IF TG_EVENT = 'ddl_command_end' THEN
            objects := ARRAY(SELECT object_identity FROM pg_event_trigger_ddl_commands());
        ELSIF TG_EVENT = 'sql_drop' THEN
            objects := ARRAY(SELECT object_identity FROM pg_event_trigger_dropped_objects());
        END IF;
        INSERT INTO public.seen SELECT TG_EVENT, TG_TAG, unnest(objects);
        IF EXISTS (
            SELECT FROM public.stopped s WHERE s.event = TG_EVENT AND s.tag = TG_TAG AND s.object = ANY (objects))
        THEN
            RAISE 'stopped';
        END IF;
    END
    $$;
    CREATE EVENT TRIGGER a ON ddl_command_start EXECUTE FUNCTION see();
    CREATE EVENT TRIGGER b ON ddl_command_end EXECUTE FUNCTION see();
    CREATE EVENT TRIGGER c ON sql_drop EXECUTE FUNCTION see();
    CREATE EVENT TRIGGER d ON table_rewrite EXECUTE FUNCTION see()";

/// What the catalog has, and the extension of shards.
pub(crate) fn catalog(client: &mut Client) -> Vec<String> {
    let catalog = "
        SELECT format('%s %s', 'pg_depend', count(*)) FROM pg_depend
        UNION ALL SELECT format('%s %s %s', 'pg_class', count(*), sum(hashtext(concat(relname, relkind)))) FROM pg_class
        UNION ALL SELECT format('%s %s %s', 'pg_proc', count(*), sum(hashtext(prosrc))) FROM pg_proc
        UNION ALL SELECT format('%s %s', 'pg_namespace', count(*)) FROM pg_namespace
        UNION ALL SELECT format('%s %s', 'pg_trigger', count(*)) FROM pg_trigger
        UNION ALL SELECT format('%s %s', 'pg_event_trigger', count(*)) FROM pg_event_trigger
        UNION ALL SELECT format('%s %s', 'pg_constraint', count(*)) FROM pg_constraint
        UNION ALL SELECT extname || extversion FROM pg_extension";
    let mut lines = texts(client, catalog);
    if lines.iter().any(|line| line.starts_with("insta_ids")) {
        lines.extend(texts(client, "SELECT s::text FROM insta_ids_internal.shard s ORDER BY shard"));
        lines.extend(texts(client, "SELECT f::text FROM insta_ids_internal.fence f ORDER BY shard"));
    }
    lines
}

/// Event triggers of the user see what the extension does, and can stop it. Nothing of it is then done.
#[test]
fn event_triggers_see_and_stop_what_the_extension_does() {
    let cluster = Cluster::bare("events");
    let mut client = cluster.connect();
    client.batch_execute(EVENT_TRIGGERS).unwrap();
    // Stops it, then lets it.
    let both = |client: &mut Client, command: &str, stops: &[[&str; 3]]| {
        let before = catalog(client);
        for [event, tag, object] in stops {
            client.execute("INSERT INTO stopped VALUES ($1, $2, $3)", &[event, tag, object]).unwrap();
            let error = refused(client, command);
            assert_eq!((error.code(), error.message()), (&SqlState::RAISE_EXCEPTION, "stopped"), "{command}");
            client.batch_execute("DELETE FROM stopped").unwrap();
            assert_eq!(catalog(client), before, "{command}, which {event} stopped");
        }
        client.batch_execute(command).unwrap();
        for stop in stops {
            let seen = "SELECT count(*) FROM seen WHERE (event, tag, object) = ($1, $2, $3)";
            let seen: i64 = client.query_one(seen, &[&stop[0], &stop[1], &stop[2]]).unwrap().get(0);
            assert!(seen > 0, "{stop:?}");
        }
        client.batch_execute("TRUNCATE seen").unwrap();
    };
    both(
        &mut client,
        "CREATE EXTENSION insta_ids",
        &[
            ["ddl_command_start", "CREATE DOMAIN", ""],
            ["ddl_command_end", "CREATE TABLE", "insta_ids_internal.fence"],
            ["ddl_command_end", "CREATE EXTENSION", "insta_ids"],
        ],
    );
    client.batch_execute(PHOTOS).unwrap();
    client.batch_execute(MORE).unwrap();
    let mut minted = vec![ids(&mut client, MINT)];
    client.batch_execute("SELECT insta_ids.init(10)").unwrap();
    add(&mut client, "0001", "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), n int)");
    both(
        &mut client,
        "CALL insta_ids.create_shards(0, 3)",
        &[
            ["ddl_command_end", "CREATE SCHEMA", "insta0"],
            ["ddl_command_end", "CREATE TABLE", "insta2.photos"],
            ["ddl_command_end", "ALTER TABLE", "insta3.photos"],
        ],
    );
    both(
        &mut client,
        "SELECT insta_ids.fence(2)",
        &[["ddl_command_end", "CREATE TRIGGER", "insta_ids_fence on insta2.photos"]],
    );
    both(&mut client, "SELECT insta_ids.unfence(2)", &[]);
    // One of the shards cannot be migrated; the others are.
    client
        .batch_execute("INSERT INTO stopped VALUES ('table_rewrite', 'ALTER TABLE', 'insta1.photos')")
        .unwrap();
    add(&mut client, "0002", "ALTER TABLE photos ADD half int; ALTER TABLE photos ALTER n TYPE bigint");
    assert_eq!(
        refused(&mut client, "CALL insta_ids.migrate()").message(),
        "1 of 4 shards could not be migrated"
    );
    let state = "SELECT concat_ws(' ', m.shard, m.state, m.statement, m.message, (
                     SELECT string_agg(format('%s %s', attname, atttypid::regtype), ' ' ORDER BY attnum) FROM pg_attribute
                     WHERE attrelid = format('insta%s.photos', m.shard)::regclass AND attnum > 0
                 )) FROM insta_ids.migration_status m WHERE name = '0002' ORDER BY shard";
    let mut expected = [0, 1, 2, 3].map(|shard| format!("{shard} applied id bigint n bigint half integer"));
    let applied = expected[1].clone();
    expected[1] = "1 failed 2 stopped id bigint n integer".into();
    assert_eq!(texts(&mut client, state), expected);
    client.batch_execute("DELETE FROM stopped").unwrap();
    client.batch_execute("CALL insta_ids.migrate()").unwrap();
    expected[1] = applied;
    assert_eq!(texts(&mut client, state), expected);
    assert_eq!(texts(&mut client, FINDINGS), [""; 0]);
    both(
        &mut client,
        "SELECT insta_ids.drop_shard(3)",
        &[["ddl_command_start", "DROP SCHEMA", ""], ["sql_drop", "DROP SCHEMA", "insta3.photos"]],
    );
    minted.push(ids(&mut client, MINT));
    both(
        &mut client,
        "DROP EXTENSION insta_ids CASCADE",
        &[
            ["sql_drop", "DROP EXTENSION", "insta_ids_internal.lease"],
            ["sql_drop", "DROP EXTENSION", "for public.photos.id"],
        ],
    );
    both(&mut client, "CREATE EXTENSION insta_ids", &[["ddl_command_end", "CREATE EXTENSION", "insta_ids"]]);
    minted.push(ids(&mut client, MINT));
    minted.push(ids(&mut client, "SELECT id FROM photos ORDER BY id"));
    assert_eq!(duplicates(&minted), 0);
    assert!(minted[..3].iter().all(|minted| disorders(minted) == 0));
}

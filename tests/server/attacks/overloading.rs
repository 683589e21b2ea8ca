//! Functions and operators with the names of those that the extension calls.

use super::{calls_of, ran};
use std::collections::BTreeSet;
use support::shards::published_function;
use support::{Cluster, texts};

/// A role that may create in the extension's schema has, before the extension comes, a function of each name that the
/// extension's SQL calls, for texts and whatever else a literal could be taken for, and operators likewise.
const OVERLOADS: &str = r"
    CREATE FUNCTION public.canary(planted text) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN
        RAISE LOG '% RAN AS %', planted,
            (SELECT CASE WHEN rolsuper THEN 'SUPERUSER' ELSE 'guest' END FROM pg_catalog.pg_roles WHERE rolname = current_user);
        RETURN 'evil';
    END $$;
    DO $$
    DECLARE
        name text;
        arguments text;
    BEGIN
        -- They would be taken here, too.
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog', true);
        FOR name IN
            SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'pg_catalog'::regnamespace
                AND p.proname = ANY ('{format,concat_ws,concat,replace,quote_ident,quote_literal,current_setting,set_config,upper,
                    lower,left,right,substr,length,coalesce,string_agg,array_agg,count,min,max,regexp_replace,regexp_matches,
                    regexp_split_to_array,to_regclass,to_regnamespace,has_function_privilege,pg_notify,now,strpos,starts_with,
                    unnest,octet_length,cardinality,greatest,least,to_json,to_jsonb,md5,floor,abs,round}'::name[])
            UNION SELECT unnest('{next_id,next_ids,id_time,id_shard,id_seq,id_min,id_max,id_json,make_id}'::text[])
        LOOP
            FOREACH arguments IN ARRAY ARRAY['text', 'text, text', 'text, text, text', 'text, integer', 'integer, text', 'bigint, text',
                'text, bigint', 'text, name', 'name, text', 'text, regclass', 'text, text, integer', 'integer, text, text', 'bigint, name',
                'text, text, text, text']
            LOOP
                EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE sql AS %L',
                    name, arguments, format('SELECT public.canary(%L)', name || '(' || arguments || ')'));
            END LOOP;
        END LOOP;
        FOR name IN SELECT unnest('{||,=,<>,~,!~,->,->>,-,+,>=,<=}'::text[]) LOOP
            FOREACH arguments IN ARRAY ARRAY['name, text', 'text, name', 'name, name', 'name, integer', 'integer, name'] LOOP
                EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS boolean LANGUAGE sql AS %L', 'operator ' || name, arguments,
                    format('SELECT public.canary(%L) = ''''', name || ' of ' || arguments));
                EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.%I, LEFTARG = %s, RIGHTARG = %s)', name,
                    'operator ' || name, split_part(arguments, ', ', 1), split_part(arguments, ', ', 2));
            END LOOP;
        END LOOP;
    END $$";

/// The extension calls none of the planted functions, whether they were there before it was created or came afterwards.
#[test]
fn functions_planted_in_the_extensions_schema_are_not_called() {
    for is_before in [true, false] {
        let cluster = Cluster::bare("overloads");
        let mut client = cluster.connect();
        client.batch_execute("CREATE ROLE guest; GRANT CREATE ON SCHEMA public TO guest").unwrap();
        let plant = format!("SET ROLE guest; {OVERLOADS}; RESET ROLE");
        if is_before {
            client.batch_execute(&plant).unwrap();
        }
        client.batch_execute("CREATE EXTENSION insta_ids").unwrap();
        cluster.await_log("roles that are no superusers may create objects in schema public of insta_ids");
        if !is_before {
            client.batch_execute(&plant).unwrap();
        }
        // The statements of the test are its own, and say what they mean.
        client.batch_execute("SET search_path = pg_catalog").unwrap();
        for statement in [
            "SELECT insta_ids.init(10)",
            "SELECT insta_ids.add_migration('0001', 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), at bigint)')",
            "SELECT insta_ids.create_shard(2)",
            "CALL insta_ids.create_shards(3, 4)",
            "SELECT insta_ids.add_migration('0002', 'CREATE TABLE likes (id bigint PRIMARY KEY DEFAULT next_id(''table_id_seq''))')",
            "CALL insta_ids.migrate()",
            "INSERT INTO insta2.photos DEFAULT VALUES; INSERT INTO insta2.likes DEFAULT VALUES",
            "CALL insta_ids.check_rows()",
            "SELECT insta_ids.fence(3), insta_ids.unfence(3)",
            "CREATE TABLE insta4.parts (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
             SELECT insta_ids.create_partitions('insta4.parts', '1 day', now(), now() + '1 day'),
                 insta_ids.drop_partitions('insta4.parts', now())",
            "CREATE SCHEMA insta5; CREATE SEQUENCE insta5.table_id_seq",
            &published_function("insta5", "", "insta5.table_id_seq", 5),
            "SELECT insta_ids.adopt('insta5', 5)",
            "SELECT insta5.next_id()",
            "SELECT insta_ids.unadopt('insta5')",
            "SELECT insta_ids.add_node('a', 'host=a dbname=a'), insta_ids.assign(0, 9, 'a'), insta_ids.shard_map()",
            "SELECT insta_ids.export_pgdog('app', '{id}')",
            "SELECT insta_ids.drop_shard(3)",
        ] {
            client.batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        // What the shards' own functions call is bound, for whatever path.
        client
            .batch_execute(
                "RESET search_path; SELECT insta2.next_id(), insta2.next_id('insta2.table_id_seq')",
            )
            .unwrap();
        let open = "SELECT code || ' ' || object FROM insta_ids.check() WHERE code = 'open_schema'";
        assert_eq!(texts(&mut client, open), ["open_schema public"]);
        let calls = calls_of(&mut client, &["'insta2.photos'".into()]);
        for call in calls.iter().filter(|call| call.starts_with("SELECT")) {
            client.batch_execute("BEGIN; SET LOCAL statement_timeout = '20s'").unwrap();
            let _ = client.batch_execute(call);
            client.batch_execute("ROLLBACK").unwrap();
        }
        assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new());

        // Nor where the extension's schema was renamed, and another one has its name, its functions and its type.
        client
            .batch_execute(&format!(
                "ALTER SCHEMA public RENAME TO renamed; CREATE SCHEMA public AUTHORIZATION guest; {plant}; SET ROLE guest;
                 CREATE FUNCTION public.evil_layout(text) RETURNS boolean LANGUAGE sql AS $$SELECT public.canary('a domain') = 'evil'$$;
                 CREATE DOMAIN public.id_layout AS text CHECK (public.evil_layout(VALUE)); RESET ROLE"
            ))
            .unwrap();
        client
            .batch_execute(
                "SET search_path = pg_catalog; SELECT insta_ids.create_shard(6); SELECT insta6.next_id()",
            )
            .unwrap();
        for call in calls.iter().filter(|call| call.starts_with("SELECT")) {
            client.batch_execute("BEGIN; SET LOCAL statement_timeout = '20s'").unwrap();
            let _ = client.batch_execute(call);
            client.batch_execute("ROLLBACK").unwrap();
        }
        assert_eq!(ran(&cluster, "SUPERUSER"), BTreeSet::new());
    }
}

//! Functions that are a little unlike the published one are adopted as they are, or refused with the reason.

use support::{Cluster, count, major};

use super::{ADOPT, ARTICLE, CANNOT, anew, confirming, digests, owned_by, run, said, unchanged};

/// The article's function, with another text in each of these places.
fn changed(changes: &[(&str, &str)]) -> String {
    changes.iter().fold(ARTICLE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

/// `next_id` is strict, so a function that mints for a NULL cannot become a call of it.
#[test]
fn a_function_that_mints_for_null_is_refused() {
    let cluster = Cluster::start("mints_for_null");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    let named = "nextval('insta5.table_id_seq')";
    for (arguments, place, taken) in [
        ("make_id(seq regclass DEFAULT NULL, OUT", named, "nextval(coalesce(seq, 'insta5.table_id_seq'))"),
        ("make_id(shard int DEFAULT NULL, OUT", ":= 5", ":= coalesce(shard, 5)"),
    ] {
        let function = changed(&[("next_id(OUT", arguments), (place, taken)]);
        anew(&mut client, &function);
        let call = confirming(&mut client);
        let error = unchanged(&mut client, &call);
        let argument = if arguments.contains("regclass") { "regclass" } else { "integer" };
        let detail = format!(
            "Function insta5.make_id({argument}): It mints an id for a NULL, where next_id returns NULL."
        );
        assert_eq!(said(&error), ["55000", CANNOT, &detail, ""]);
    }
    // With defaults that name a shard and a sequence, it is one.
    let told = changed(&[
        ("next_id(OUT", "make_id(shard int DEFAULT 5, seq regclass DEFAULT 'insta5.table_id_seq', OUT"),
        (":= 5", ":= shard"),
        (named, "nextval(seq)"),
    ]);
    anew(&mut client, &told);
    run(&mut client, ADOPT);
    run(&mut client, "INSERT INTO insta5.photos VALUES (insta5.make_id())");
}

#[test]
fn the_owners_name_needs_quotes() {
    let cluster = Cluster::start("quoted_owner");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000); CREATE ROLE \"My \"\"own\"\" Role\"");
    anew(
        &mut client,
        &changed(&[
            ("next_id(OUT", "next_id(seq regclass, OUT"),
            ("nextval('insta5.table_id_seq')", "nextval(seq)"),
        ]),
    );
    owned_by(&mut client, "\"My \"\"own\"\" Role\"");
    run(&mut client, "ALTER FUNCTION insta5.next_id(regclass) OWNER TO \"My \"\"own\"\" Role\"");
    run(&mut client, ADOPT);
    run(&mut client, "INSERT INTO insta5.photos VALUES (insta5.next_id('insta5.photos_id_seq'))");
}

#[test]
fn the_reason_says_what_is_unlike() {
    let cluster = Cluster::start("unlike");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000); CREATE ROLE minter");
    let arguments = "It has a VARIADIC or INOUT argument, or an OUT argument before the last one.";
    for (function, reason) in [
        (changed(&[("next_id(OUT", "make_id(VARIADIC of text[], OUT")]), arguments),
        (changed(&[("next_id(OUT result", "make_id(INOUT result")]), arguments),
        (
            changed(&[
                ("BEGIN", "BEGIN CREATE SEQUENCE IF NOT EXISTS insta5.lazy_seq;"),
                ("insta5.table_id_seq", "insta5.lazy_seq"),
            ]),
            "It takes values of a sequence that it creates, or of a temporary one.",
        ),
    ] {
        anew(&mut client, &function);
        owned_by(&mut client, "minter");
        let call = confirming(&mut client);
        let error = unchanged(&mut client, &call);
        let [code, message, detail, _] = said(&error);
        assert_eq!([code, message], ["55000", CANNOT], "{function}");
        assert!(detail.contains(&format!("): {reason}")), "{detail}");
    }
}

/// A digest does not depend on the settings of the session that reads it.
#[test]
fn a_digest_is_the_same_in_all_sessions() {
    let cluster = Cluster::start("digests");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000)");
    anew(
        &mut client,
        "CREATE OR REPLACE FUNCTION insta5.next_id(OUT result bigint) LANGUAGE sql RETURN
             (extract(epoch FROM clock_timestamp() - timestamptz '2011-08-24 21:07:01.721+00') * 1000)::bigint << 23
             | (5 << 10) | nextval('insta5.table_id_seq') % 1024 + 0 * length((interval '1 day 2 hours')::text)",
    );
    let digest = digests(&unchanged(&mut client, ADOPT));
    assert_eq!(digest.len(), 1);
    for setting in [
        "quote_all_identifiers = on",
        "TimeZone = 'Asia/Tokyo'",
        "DateStyle = 'German'",
        "IntervalStyle = 'iso_8601'",
        "extra_float_digits = -3",
        // It cannot be off from PostgreSQL 19 on.
        if major() >= 19 { "DateStyle = 'SQL'" } else { "standard_conforming_strings = off" },
    ] {
        run(&mut client, &format!("SET {setting}"));
        assert_eq!(digests(&unchanged(&mut client, ADOPT)), digest, "{setting}");
        run(&mut client, "RESET ALL");
    }
}

/// A function whose text calls another one, elsewhere, is seen by its name or by the key that it fills.
#[test]
fn a_function_that_mints_through_another_schema_is_seen() {
    let cluster = Cluster::start("minted_elsewhere");
    let mut client = cluster.connect();
    run(&mut client, "SELECT insta_ids.init(2000); CREATE SCHEMA lib; GRANT USAGE ON SCHEMA lib TO PUBLIC");
    run(&mut client, &changed(&[("insta5.next_id", "lib.make")]));
    let calls = |name: &str| {
        format!(
            "CREATE FUNCTION insta5.{name}() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN lib.make(); END'"
        )
    };
    let minting = "SELECT count(*) FROM insta_ids_internal.minting_functions('insta5') f WHERE NOT f.native";
    for change in [
        format!("ALTER FUNCTION insta5.next_id() RENAME TO other_id; {};", calls("next_id")),
        format!(
            "{}; CREATE TABLE insta5.parted (id bigint DEFAULT insta5.make_id(), at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
            calls("make_id")
        ),
    ] {
        anew(&mut client, &change);
        assert_eq!(count(&mut client, minting), 2);
        let call = confirming(&mut client);
        run(&mut client, &call);
        assert_eq!(count(&mut client, minting), 0, "{change}");
    }
}

/// A function that is renamed while it is replaced is not left minting beside the new one.
#[test]
fn a_function_that_is_renamed_meanwhile() {
    let cluster = Cluster::start("renamed_meanwhile");
    let mut client = cluster.connect();
    run(
        &mut client,
        "SELECT insta_ids.init(2000); CREATE TABLE public.renames (name text);
         CREATE FUNCTION rename_first() RETURNS event_trigger LANGUAGE plpgsql AS $$ DECLARE name text; BEGIN
             DELETE FROM public.renames r RETURNING r.name INTO name;
             IF FOUND THEN EXECUTE format('ALTER FUNCTION insta5.next_id() RENAME TO %I', name); END IF;
         END $$",
    );
    anew(&mut client, "");
    // It stands for another session that renames it in the last moment.
    run(
        &mut client,
        "INSERT INTO public.renames VALUES ('gone'); CREATE EVENT TRIGGER rename_first ON ddl_command_start WHEN TAG IN ('CREATE FUNCTION')
             EXECUTE FUNCTION rename_first()",
    );
    let error = unchanged(&mut client, ADOPT);
    let message = "function insta5.next_id was changed while it was replaced";
    assert_eq!(said(&error), ["40001", message, "", "Call again."]);
    run(&mut client, "DROP EVENT TRIGGER rename_first");
    run(&mut client, ADOPT);
}

//! Tests that run inside a server, by pgrx: what the boundary does with PostgreSQL's own values.
#![allow(clippy::unwrap_used)]

use pgrx::prelude::*;

#[pg_schema]
mod tests {
    use pgrx::prelude::*;

    #[pg_test]
    fn instants_keep_their_millisecond() {
        for at in
            ["2011-08-24 21:07:01.721+00", "2026-11-20 12:00:00.123999+00", "2046-06-27 17:00:49.496999+00"]
        {
            let kept = Spi::get_one_with_args::<bool>(
                "SELECT id_time(id_min($1::timestamptz)) = date_trunc('milliseconds', $1::timestamptz)
                    AND id_time(id_max($1::timestamptz)) = id_time(id_min($1::timestamptz))",
                &[at.into()],
            );
            assert_eq!(kept, Ok(Some(true)), "{at}");
        }
    }

    #[pg_test]
    fn ids_are_rolled_back_with_nothing() {
        Spi::run("CREATE SEQUENCE s").unwrap();
        let mint = || Spi::get_one::<i64>("SELECT next_id(5, 's')").unwrap().unwrap();
        let first = mint();
        let failed = Spi::run(
            "DO $$ BEGIN PERFORM next_id(5, 's'); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END $$",
        );
        assert!(failed.is_ok());
        assert_eq!(mint() & 1023, (first & 1023) + 2);
    }

    #[pg_test]
    fn an_error_in_nextval_leaves_the_session_usable() {
        Spi::run(
            "CREATE SEQUENCE s MAXVALUE 2;
             DO $$
             BEGIN
                 FOR i IN 1..1000 LOOP
                     BEGIN
                         PERFORM next_id(5, 's');
                     EXCEPTION WHEN sequence_generator_limit_exceeded OR undefined_table THEN
                         BEGIN
                             PERFORM next_id(5, 1::oid);
                         EXCEPTION WHEN undefined_table THEN NULL;
                         END;
                     END;
                 END LOOP;
             END
             $$",
        )
        .unwrap();
    }
}

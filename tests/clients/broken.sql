-- Makes ids wrong in each table that comes to have a default of next_id. With broken=default the default is a constant;
-- with broken=returning, what is stored is two minutes older than what RETURNING returns.
CREATE SCHEMA broken;

CREATE FUNCTION broken.how() RETURNS text RETURN :'broken';

CREATE FUNCTION broken.store_another() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('UPDATE %s SET %2$I = %2$I - (1::bigint << 40) WHERE %2$I = ($1).%2$I',
        TG_RELID::regclass, TG_ARGV[0]) USING NEW;
    RETURN NULL;
END $$;

CREATE FUNCTION broken.break() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE
    "table" regclass;
    "column" name;
BEGIN
    FOR "table", "column" IN SELECT c.objid, a.attname
        FROM pg_event_trigger_ddl_commands() c
        JOIN pg_attrdef d ON c.objid = d.adrelid AND c.classid = 'pg_class'::regclass
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE pg_get_expr(d.adbin, d.adrelid) ~ '\mnext_id\('
    LOOP
        IF broken.how() = 'default' THEN
            EXECUTE format('ALTER TABLE %s ALTER %I SET DEFAULT 1', "table", "column");
        ELSE
            EXECUTE format('CREATE OR REPLACE TRIGGER store_another AFTER INSERT ON %s
                FOR EACH ROW EXECUTE FUNCTION broken.store_another(%L)', "table", "column");
        END IF;
    END LOOP;
END $$;

CREATE EVENT TRIGGER broken ON ddl_command_end WHEN tag IN ('CREATE TABLE', 'ALTER TABLE')
    EXECUTE FUNCTION broken.break();

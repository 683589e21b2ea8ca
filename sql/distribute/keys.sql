-- From one table to many shards: what ends with the switch. Foreign keys between the sources and other tables hold until then.

CREATE OR REPLACE TRIGGER require_owner BEFORE INSERT OR UPDATE OR DELETE ON insta_ids_internal.ended_key
    FOR EACH ROW EXECUTE FUNCTION insta_ids_internal.require_table_owner('relation');
ALTER TABLE insta_ids_internal.ended_key ENABLE ALWAYS TRIGGER require_owner;

-- Returns what is recorded of a foreign key.
CREATE OR REPLACE FUNCTION insta_ids_internal.key_of("constraint" oid) RETURNS insta_ids_internal.ended_key
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT c.conrelid::regclass, c.conname, insta_ids_internal.names_of_columns(c.conrelid, c.conkey), c.confrelid::regclass,
           insta_ids_internal.names_of_columns(c.confrelid, c.confkey), c.conkey, c.confkey, c.confmatchtype, c.confupdtype, c.confdeltype,
           insta_ids_internal.names_of_columns(c.conrelid, c.confdelsetcols), c.condeferrable, c.condeferred, c.convalidated
    FROM pg_catalog.pg_constraint c WHERE c.oid = "constraint";
END;

-- Returns the foreign keys between a source and a table that is neither a source nor in a shard. They end with the switch: rows that
-- they are about are in the shards then.
CREATE OR REPLACE FUNCTION insta_ids_internal.ending_keys() RETURNS SETOF insta_ids_internal.ended_key
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT k.*
    FROM insta_ids_internal.references_of_distribution() r
    JOIN pg_catalog.pg_constraint c ON c.conrelid = r.referring AND c.conname = r.name AND c.contype = 'f'
    CROSS JOIN LATERAL insta_ids_internal.key_of(c.oid) k
    WHERE r.ends
    ORDER BY c.conrelid::regclass::text, c.conname;
END;

-- Returns the definition of a foreign key, as ALTER TABLE ... ADD CONSTRAINT has it. `referred` is the name of the table to which it refers.
CREATE OR REPLACE FUNCTION insta_ids_internal.definition_of_key(ended insta_ids_internal.ended_key, referred text) RETURNS text
    STABLE STRICT PARALLEL SAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    actions CONSTANT jsonb := '{"r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}';
BEGIN
    RETURN concat_ws(' ',
        format('FOREIGN KEY (%s) REFERENCES %s (%s)', insta_ids_internal.column_list(ended.columns), referred,
            insta_ids_internal.column_list(ended.referred_columns)),
        CASE ended.matching WHEN 'f' THEN 'MATCH FULL' END,
        'ON UPDATE ' || (actions ->> ended.on_update::text),
        'ON DELETE ' || (actions ->> ended.on_delete::text)
            || CASE WHEN ended.set_columns <> '{}' THEN format(' (%s)', insta_ids_internal.column_list(ended.set_columns)) ELSE '' END,
        CASE WHEN ended.is_deferred THEN 'DEFERRABLE INITIALLY DEFERRED' WHEN ended.is_deferrable THEN 'DEFERRABLE' END);
END
$$;

-- Returns the publications that publish a source or a partition of it.
CREATE OR REPLACE FUNCTION insta_ids_internal.publications_of(source regclass) RETURNS SETOF name
    STABLE STRICT PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT DISTINCT t.pubname
    FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE c.oid = ANY (insta_ids_internal.with_partitions(source)::oid[]) ORDER BY t.pubname;
END;

-- Reports the foreign keys of a source that the switch will drop, and publications that will lack its rows.
CREATE OR REPLACE FUNCTION insta_ids_internal.report_what_ends(going insta_ids_internal.distribution) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ending insta_ids_internal.ended_key;
    publication name;
BEGIN
    FOR publication IN SELECT p FROM insta_ids_internal.publications_of(going.source) p LOOP
        RAISE NOTICE USING
            MESSAGE = format('distribute: publication "%s" publishes table %s, whose rows are in the shards from the switch on',
                publication, going.source),
            HINT = format('Let it publish table "%s" of the shards, too.', going.target);
    END LOOP;
    FOR ending IN
        SELECT k.* FROM insta_ids_internal.ending_keys() k WHERE going.source IN (k.relation, k.referred)
    LOOP
        RAISE NOTICE USING MESSAGE = format('distribute: the switch will drop foreign key "%s" of table %s', ending.name, ending.relation),
            DETAIL = format('It is %s.', insta_ids_internal.definition_of_key(ending, ending.referred::text));
    END LOOP;
END
$$;

-- Drops the foreign keys that end with the switch, and records them. The caller has locked their tables.
CREATE OR REPLACE FUNCTION insta_ids_internal.end_keys() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ending insta_ids_internal.ended_key;
BEGIN
    FOR ending IN SELECT * FROM insta_ids_internal.ending_keys() LOOP
        DELETE FROM insta_ids_internal.ended_key k WHERE (k.relation, k.name) = (ending.relation, ending.name);
        INSERT INTO insta_ids_internal.ended_key SELECT ending.*;
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', ending.relation, ending.name);
    END LOOP;
END
$$;

-- Deletes the record of a foreign key. If its table belongs to another role meanwhile, the record stays.
CREATE OR REPLACE FUNCTION insta_ids_internal.forget_key(ended insta_ids_internal.ended_key) RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM insta_ids_internal.ended_key k WHERE (k.relation, k.name) = (ended.relation, ended.name);
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$;

-- Restores the foreign keys that the switch has dropped, as NOT VALID: rows of the shards may not fit to them. A key that cannot be
-- restored does not keep the caller from going back. The caller has locked the tables that are the caller's.
CREATE OR REPLACE FUNCTION insta_ids_internal.restore_keys() RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ended insta_ids_internal.ended_key;
    statement text;
BEGIN
    FOR ended IN SELECT * FROM insta_ids_internal.ended_key LOOP
        PERFORM insta_ids_internal.forget_key(ended);
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = ended.relation);
        statement := NULL;
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = ended.referred) THEN
                RAISE undefined_table USING MESSAGE = 'the table to which it refers was dropped';
            END IF;
            statement := format('ALTER TABLE %s ADD CONSTRAINT %I %s', ended.relation, ended.name, insta_ids_internal.definition_of_key(ended, ended.referred::text));
            IF ended.columns <> insta_ids_internal.names_of_columns(ended.relation, ended.numbers)
                OR ended.referred_columns <> insta_ids_internal.names_of_columns(ended.referred, ended.referred_numbers)
            THEN
                RAISE undefined_column USING MESSAGE = 'its columns have other names or places';
            END IF;
            EXECUTE statement || ' NOT VALID';
            IF ended.is_validated THEN
                RAISE NOTICE USING MESSAGE = format('foreign key "%s" of table %s is restored, and not validated', ended.name, ended.relation),
                    HINT = format('ALTER TABLE %s VALIDATE CONSTRAINT %I;', ended.relation, ended.name);
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING USING MESSAGE = format('foreign key "%s" of table %s could not be restored', ended.name, ended.relation),
                DETAIL = SQLERRM, HINT = coalesce('If it is right: ' || statement || ';', 'Without it, nothing checks these rows.');
        END;
    END LOOP;
END
$$;

-- Returns the tables of the caller that are not sources and have a foreign key that ends, or that has ended.
CREATE OR REPLACE FUNCTION insta_ids_internal.tables_of_keys() RETURNS SETOF regclass
    STABLE PARALLEL SAFE LANGUAGE sql
BEGIN ATOMIC
    SELECT DISTINCT p.relation
    FROM (SELECT * FROM insta_ids_internal.ending_keys() UNION ALL SELECT * FROM insta_ids_internal.ended_key) k
    CROSS JOIN LATERAL (VALUES (k.relation), (k.referred)) t (relation)
    CROSS JOIN LATERAL pg_catalog.unnest(insta_ids_internal.with_partitions(t.relation)) p (relation)
    WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = p.relation AND pg_catalog.pg_has_role(c.relowner, 'USAGE'));
END;

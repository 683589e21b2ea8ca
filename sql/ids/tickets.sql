-- Tickets: small numbers that several servers give out.

CREATE OR REPLACE FUNCTION insta_ids.create_ticket_server(name text, server integer, servers integer, bits integer DEFAULT 64)
    RETURNS void
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sequence text := 'ticket_' || name;
    longest integer := current_setting('max_identifier_length');
BEGIN
    IF name = '' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'name of a ticket server is empty';
    END IF;
    IF octet_length(sequence) > longest THEN
        RAISE invalid_parameter_value USING MESSAGE = format('name of ticket server "%s" is too long', name),
            DETAIL = format('It has %s bytes, and can have %s.', octet_length(name), longest - length('ticket_'));
    END IF;
    IF servers < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('number of ticket servers %s is less than 1', servers);
    END IF;
    IF server NOT BETWEEN 1 AND servers THEN
        RAISE invalid_parameter_value USING MESSAGE = format('ticket server number %s is out of range', server),
            DETAIL = format('Ticket servers are numbered from 1 to %s.', servers);
    END IF;
    IF bits NOT IN (32, 64) THEN
        RAISE invalid_parameter_value USING MESSAGE = format('tickets cannot have %s bits', bits),
            DETAIL = 'Tickets have 32 or 64 bits.';
    END IF;
    EXECUTE format(
        'CREATE SEQUENCE insta_ids.%I AS %s START %s MINVALUE %3$s INCREMENT %s NO CYCLE CACHE 1',
        sequence, CASE bits WHEN 32 THEN 'integer' ELSE 'bigint' END, server, servers);
EXCEPTION
    -- The second error occurs if two sessions create the same ticket server at once.
    WHEN duplicate_table OR unique_violation THEN
        RAISE duplicate_object USING MESSAGE = format('ticket server "%s" already exists', name);
END
$$;
COMMENT ON FUNCTION insta_ids.create_ticket_server(text, integer, integer, integer) IS
    'makes this server one of several that give out tickets';

CREATE OR REPLACE FUNCTION insta_ids.next_ticket(name text) RETURNS bigint
    VOLATILE STRICT PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'next_ticket_wrapper';
COMMENT ON FUNCTION insta_ids.next_ticket(text) IS 'next ticket of a ticket server';

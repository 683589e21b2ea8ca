-- Tickets.
\set VERBOSITY default

-- Server 1 of 2 has the odd ones, server 2 the even ones.
SELECT insta_ids.create_ticket_server('odd', 1, 2), insta_ids.create_ticket_server('even', 2, 2, 32);
SELECT insta_ids.next_ticket('odd'), insta_ids.next_ticket('even') FROM generate_series(1, 3);
SELECT insta_ids.create_ticket_server('only', 1, 1);
SELECT insta_ids.next_ticket('only') FROM generate_series(1, 2);

-- Each is a sequence, and no part of the extension.
SELECT sequencename, data_type, start_value, min_value, max_value, increment_by, cycle, cache_size
FROM pg_sequences WHERE schemaname = 'insta_ids' ORDER BY 1;
SELECT count(*) FROM pg_depend WHERE objid = 'insta_ids.ticket_odd'::regclass AND deptype = 'e';
SELECT insta_ids.next_ticket('odd') = currval('insta_ids.ticket_odd') AS same;

-- A rollback gives nothing back.
BEGIN;
SELECT insta_ids.next_ticket('odd');
ROLLBACK;
SELECT insta_ids.next_ticket('odd');

-- It ends with an error, again and again, and never begins anew.
SELECT setval('insta_ids.ticket_even', 2147483644);
SELECT insta_ids.next_ticket('even');
SELECT insta_ids.next_ticket('even');
SELECT insta_ids.next_ticket('even');
SELECT setval('insta_ids.ticket_odd', 9223372036854775807);
SELECT insta_ids.next_ticket('odd');

-- NULL in, NULL out.
SELECT insta_ids.next_ticket(NULL);
SELECT insta_ids.create_ticket_server('no', NULL, 2);

-- Names: any that has room behind its prefix.
SELECT insta_ids.create_ticket_server(E'Größe "1"; \\', 1, 1);
SELECT insta_ids.next_ticket(E'Größe "1"; \\');
SELECT insta_ids.create_ticket_server(repeat('x', 56), 1, 1);
SELECT insta_ids.next_ticket(repeat('x', 56));
SELECT insta_ids.next_ticket(repeat('x', 57));
SELECT insta_ids.create_ticket_server(repeat('x', 57), 1, 1);
SELECT insta_ids.create_ticket_server(repeat('x', 55) || 'ß', 1, 1);
SELECT insta_ids.create_ticket_server('', 1, 1);
SELECT insta_ids.create_ticket_server('only', 1, 1);
SELECT insta_ids.next_ticket('nowhere');
SELECT insta_ids.next_ticket('');

-- Servers and bits.
SELECT insta_ids.create_ticket_server('no', 0, 2);
SELECT insta_ids.create_ticket_server('no', 3, 2);
SELECT insta_ids.create_ticket_server('no', 1, 0);
SELECT insta_ids.create_ticket_server('no', 1, 2, 16);
\set VERBOSITY sqlstate
SELECT insta_ids.create_ticket_server(repeat('x', 57), 1, 1);
SELECT insta_ids.create_ticket_server('', 1, 1);
SELECT insta_ids.create_ticket_server('only', 1, 1);
SELECT insta_ids.create_ticket_server('no', 3, 2);
SELECT insta_ids.create_ticket_server('no', 1, 0);
SELECT insta_ids.create_ticket_server('no', 1, 2, 16);
SELECT insta_ids.next_ticket('nowhere');
SELECT insta_ids.next_ticket('even');
\set VERBOSITY default

-- Who may: anybody who may use the sequence.
CREATE ROLE regress_app;
SET ROLE regress_app;
SELECT insta_ids.next_ticket('only');
SELECT insta_ids.create_ticket_server('no', 1, 1);
RESET ROLE;
GRANT USAGE ON SEQUENCE insta_ids.ticket_only TO regress_app;
SET ROLE regress_app;
SELECT insta_ids.next_ticket('only');
RESET ROLE;
DROP OWNED BY regress_app;
DROP ROLE regress_app;

-- Nothing is written in a read-only transaction.
BEGIN READ ONLY;
SELECT insta_ids.next_ticket('only');
ROLLBACK;

-- The extension does not take them with it unasked.
DROP EXTENSION insta_ids;
SELECT format('DROP SEQUENCE insta_ids.%I', sequencename) FROM pg_sequences WHERE sequencename LIKE 'ticket\_%'
\gexec

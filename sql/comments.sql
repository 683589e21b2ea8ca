-- What each function is, in the words of docs/reference.md.

-- Minting
COMMENT ON FUNCTION next_id(integer, regclass) IS
    'next id of a shard, from the sequence and the clock';
COMMENT ON FUNCTION next_id(integer, regclass, id_layout) IS
    'next id of a shard, from the sequence and the clock';
COMMENT ON FUNCTION next_ids(integer, regclass, integer) IS
    'next ids of a shard, count of them';
COMMENT ON FUNCTION next_ids(integer, regclass, integer, id_layout) IS
    'next ids of a shard, count of them';
COMMENT ON FUNCTION make_id(timestamptz, integer, bigint) IS
    'id of an instant, a shard and a sequence value; not a new one';
COMMENT ON FUNCTION make_id(timestamptz, integer, bigint, id_layout) IS
    'id of an instant, a shard and a sequence value; not a new one';

-- Reading
COMMENT ON FUNCTION id_time(bigint) IS
    'time of an id, to the unit of its layout';
COMMENT ON FUNCTION id_time(bigint, id_layout) IS
    'time of an id, to the unit of its layout';
COMMENT ON FUNCTION id_shard(bigint) IS
    'shard of an id';
COMMENT ON FUNCTION id_shard(bigint, id_layout) IS
    'shard of an id';
COMMENT ON FUNCTION id_seq(bigint) IS
    'sequence value of an id, modulo what its field holds';
COMMENT ON FUNCTION id_seq(bigint, id_layout) IS
    'sequence value of an id, modulo what its field holds';
COMMENT ON FUNCTION id_parts(bigint) IS
    'time, shard and sequence value of an id';
COMMENT ON FUNCTION id_parts(bigint, id_layout) IS
    'time, shard and sequence value of an id';
COMMENT ON FUNCTION id_json(bigint) IS
    'parts of an id as JSON, the id itself as a string';
COMMENT ON FUNCTION id_json(bigint, id_layout) IS
    'parts of an id as JSON, the id itself as a string';
COMMENT ON FUNCTION id_min(timestamptz) IS
    'smallest id of the unit of time that an instant is in';
COMMENT ON FUNCTION id_min(timestamptz, id_layout) IS
    'smallest id of the unit of time that an instant is in';
COMMENT ON FUNCTION id_max(timestamptz) IS
    'greatest id of the unit of time that an instant is in';
COMMENT ON FUNCTION id_max(timestamptz, id_layout) IS
    'greatest id of the unit of time that an instant is in';
COMMENT ON FUNCTION id_between(bigint, timestamptz, timestamptz) IS
    'whether an id is from lo (inclusive) to hi (exclusive)';
COMMENT ON FUNCTION id_between(bigint, timestamptz, timestamptz, id_layout) IS
    'whether an id is from lo (inclusive) to hi (exclusive)';
COMMENT ON FUNCTION id_shortcode(bigint) IS
    'short code of an id, as in Instagram''s URLs';
COMMENT ON FUNCTION shortcode_id(text) IS
    'id of a short code';

-- Layouts
COMMENT ON TYPE id_layout IS
    'what an id is made of: the widths of its fields, its epoch, its unit of time';
COMMENT ON FUNCTION id_layout_in(cstring) IS
    'I/O of layouts';
COMMENT ON FUNCTION id_layout_out(id_layout) IS
    'I/O of layouts';
COMMENT ON FUNCTION id_layout_recv(internal) IS
    'I/O of layouts';
COMMENT ON FUNCTION id_layout_send(id_layout) IS
    'I/O of layouts';
COMMENT ON FUNCTION id_layout_eq(id_layout, id_layout) IS
    'comparison of layouts';
COMMENT ON FUNCTION id_layout_ne(id_layout, id_layout) IS
    'comparison of layouts';
COMMENT ON FUNCTION id_layout_hash(id_layout) IS
    'hash of a layout';
COMMENT ON FUNCTION id_layout_hash_extended(id_layout, bigint) IS
    'hash of a layout';
COMMENT ON OPERATOR =(id_layout, id_layout) IS
    'equal';
COMMENT ON OPERATOR <>(id_layout, id_layout) IS
    'not equal';

-- Tickets
COMMENT ON FUNCTION insta_ids.create_ticket_server(text, integer, integer, integer) IS
    'makes this server one of several that give out tickets';
COMMENT ON FUNCTION insta_ids.next_ticket(text) IS
    'next ticket of a ticket server';

-- Clock and figures
COMMENT ON FUNCTION insta_ids.library_version() IS
    'version of the library that this session runs';
COMMENT ON FUNCTION insta_ids.clock() IS
    'the clock, the time of ids, how far that is ahead, and the lease';
COMMENT ON FUNCTION insta_ids.advance_clock(timestamptz) IS
    'lets no later id of the server be older than until';
COMMENT ON FUNCTION insta_ids.reset_clock() IS
    'sets the time of ids back to the clock, after that had run ahead';
COMMENT ON FUNCTION insta_ids_internal.wait_ms(integer) IS
    'waits by a clock that nobody sets';
COMMENT ON FUNCTION insta_ids_internal.steady_ms() IS
    'milliseconds of a clock that nobody sets';
COMMENT ON FUNCTION insta_ids_internal.limit_statement(integer) IS
    'cancels the statement that runs after so many milliseconds';
COMMENT ON FUNCTION insta_ids.stat_get_ids() IS
    'figures behind the view stat_ids';
COMMENT ON FUNCTION insta_ids.stat_reset() IS
    'begins the figures of stat_ids anew';
COMMENT ON VIEW insta_ids.stat_ids IS
    'what the server counted about its ids';
COMMENT ON SEQUENCE insta_ids_internal.lease IS
    'a time that ids of this database have not reached, in Unix milliseconds; written by the extension alone';
COMMENT ON SCHEMA insta_ids IS
    'administration of insta_ids';
COMMENT ON SCHEMA insta_ids_internal IS
    'the tables of insta_ids, written by its functions';

-- Partitions by time
COMMENT ON FUNCTION insta_ids.create_partitions(regclass, interval, timestamptz, timestamptz, text, id_layout) IS
    'creates the partitions that begin before last, from the one that holds first on, and returns those it made';
COMMENT ON FUNCTION insta_ids.drop_partitions(regclass, timestamptz) IS
    'drops the partitions whose ids are all older than before, and returns their names';
COMMENT ON FUNCTION insta_ids.partitions(regclass) IS
    'partitions of a table, with their ids and times';
COMMENT ON FUNCTION insta_ids.check_partitioned_owner() IS
    'lets what is remembered of a table be changed by its owner alone';
COMMENT ON TABLE insta_ids.partitioned IS
    'tables with partitions by time, the time zone of these, and the layout of the ids';

-- Shards
COMMENT ON FUNCTION insta_ids.init(integer, name, id_layout) IS
    'sets up shards, once: how many there are, the prefix of their schemas, the layout of their ids';
COMMENT ON FUNCTION insta_ids.configured() IS
    'what init set up';
COMMENT ON FUNCTION insta_ids.shard_of(bigint) IS
    'shard of a key: the key modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(text) IS
    'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(uuid) IS
    'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(bigint, integer) IS
    'shard of a key: the key modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(text, integer) IS
    'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.shard_of(uuid, integer) IS
    'shard of a key: its hash modulo the number of shards';
COMMENT ON FUNCTION insta_ids.schema_of(integer) IS
    'schema of a shard';
COMMENT ON FUNCTION insta_ids.create_shard(integer) IS
    'creates a shard, with every migration, and returns its schema';
COMMENT ON PROCEDURE insta_ids.create_shards(integer, integer, integer) IS
    'creates the shards of a range that are not there yet';
COMMENT ON FUNCTION insta_ids.make_shard(integer, text) IS
    'the part that create_shard and create_shards share';
COMMENT ON FUNCTION insta_ids.drop_shard(integer, boolean) IS
    'drops a shard that is empty, or by force';
COMMENT ON FUNCTION insta_ids.lock_schema(oid) IS
    'lets nobody make anything in a schema until the transaction ends; of who may make something in it';
COMMENT ON FUNCTION insta_ids.grant_provisioning(regrole) IS
    'lets a role do all that has to do with shards: set up, create, migrate, check, adopt, map, fence and drop them, and let them be moved away';
COMMENT ON FUNCTION insta_ids.keep_config() IS
    'keeps what init set up from being changed';
COMMENT ON TABLE insta_ids_internal.config IS
    'what init set up: one row';
COMMENT ON VIEW insta_ids.config IS
    'what init set up: number of shards, prefix of their schemas, layout of their ids';
COMMENT ON VIEW insta_ids.map IS
    'the map: which node has which shards, and how to connect to it';
COMMENT ON TABLE insta_ids_internal.shard IS
    'the shards of this database';
COMMENT ON FUNCTION insta_ids.check_dependents(integer, oid) IS
    'refuses to drop a shard that something outside depends on';
COMMENT ON VIEW insta_ids.shards IS
    'the shards of this database: their schemas, migrations and sizes';

-- Migrations
COMMENT ON FUNCTION insta_ids.add_migration(text, text, boolean, boolean) IS
    'records DDL that every shard is to get';
COMMENT ON PROCEDURE insta_ids.migrate(integer, integer, integer, text) IS
    'applies to each shard of a range the migrations that it lacks';
COMMENT ON FUNCTION insta_ids.migration_script(text) IS
    $$statements, for psql's \gexec, that apply a migration which cannot run in a transaction$$;
COMMENT ON FUNCTION insta_ids.start_migration(text, integer, text) IS
    'sets search_path to a shard''s, and notes from here on, for finish_migration, whether anything fails';
COMMENT ON FUNCTION insta_ids.finish_migration(text, integer, text) IS
    'records that a shard has got a migration, unless something failed since start_migration';
COMMENT ON FUNCTION insta_ids.note_transactions(boolean) IS
    'notes how the transactions of this session end';
COMMENT ON FUNCTION insta_ids.transactions_committed() IS
    'whether a transaction was committed since note_transactions, and none failed; NULL if it was not called';
COMMENT ON FUNCTION insta_ids.migration_by_script(text) IS
    'the migration of this name, if it cannot run in a transaction';
COMMENT ON FUNCTION insta_ids.apply_migrations(integer, text, boolean) IS
    'the part that create_shard and migrate share';
COMMENT ON FUNCTION insta_ids.path_of(name, text) IS
    'search_path of a shard';
COMMENT ON FUNCTION insta_ids.check_path(name, text, text[]) IS
    'refuses to run in a shard what would alter something elsewhere';
COMMENT ON FUNCTION insta_ids.statements(text) IS
    'the statements of a text, as PostgreSQL''s grammar reads it';
COMMENT ON FUNCTION insta_ids.minting_columns(integer[], xid) IS
    'columns of shards that next_id fills, and the CHECKs that keep them to the shard';
COMMENT ON FUNCTION insta_ids.keep_migration() IS
    'keeps a migration that was applied from being changed';
COMMENT ON TABLE insta_ids_internal.migration IS
    'the migrations, in the order of their numbers';
COMMENT ON TABLE insta_ids_internal.shard_migration IS
    'which shard has got which migration, or what that failed with';
COMMENT ON VIEW insta_ids.migration_status IS
    'each migration in each shard: applied, pending, or failed and with what';

-- Progress
COMMENT ON VIEW insta_ids.progress IS
    'how far the calls of create_shards, migrate and check_rows are that run now';
COMMENT ON TABLE insta_ids_internal.work IS
    'what the view progress shows';
COMMENT ON PROCEDURE insta_ids.commit_batch(text, integer, integer, integer) IS
    'ends a batch of create_shards or migrate';
COMMENT ON PROCEDURE insta_ids.new_transaction() IS
    'commits, and begins a transaction that sees what others have done since';
COMMENT ON FUNCTION insta_ids.check_range(integer, integer, integer) IS
    'refuses what is no range of shards or no size of a batch';
COMMENT ON FUNCTION insta_ids.lock_capacity() IS
    'how many locks the server has for sure, by its settings';
COMMENT ON FUNCTION insta_ids.check_locks(integer) IS
    'refuses a batch that needs more locks than there are';
COMMENT ON FUNCTION insta_ids.limit_catalog_cache() IS
    'gives back the memory of what the session has cached of the catalog, if that is much';

-- Checking
COMMENT ON FUNCTION insta_ids.check_isolation(text) IS
    'refuses a transaction that does not see what others wrote before it took a lock';
COMMENT ON FUNCTION insta_ids.layout_argument(id_layout) IS
    'last argument of next_id, where it is not the default';
COMMENT ON FUNCTION insta_ids.make_surface(integer) IS
    'makes what every shard has besides its migrations';
COMMENT ON FUNCTION insta_ids.check() IS
    'what is wrong with the shards of this database, or will be';
COMMENT ON PROCEDURE insta_ids.check_rows(integer, integer, integer) IS
    'reads every id of a range of shards, and warns of those that should not be there';
COMMENT ON FUNCTION insta_ids.budget() IS
    'what there is a limit to: how much of it is used, and when it runs out';
COMMENT ON FUNCTION insta_ids.server_budget() IS
    'the part of budget about the server and the layout';
COMMENT ON FUNCTION insta_ids.sequence_budget() IS
    'the part of budget about sequences';
COMMENT ON FUNCTION insta_ids.is_older(text, text) IS
    'whether a version comes before another one; NULL if one is no number';
COMMENT ON FUNCTION insta_ids.check_server() IS
    'the part of check about the server and the layout';
COMMENT ON FUNCTION insta_ids.check_map() IS
    'the part of check about the map, fences and moves';
COMMENT ON FUNCTION insta_ids.check_schemas() IS
    'the part of check about schemas that are missing, or look like shards';
COMMENT ON FUNCTION insta_ids.check_migrations() IS
    'the part of check about migrations that shards lack';
COMMENT ON FUNCTION insta_ids.check_objects() IS
    'the part of check about what differs between shards, and what check_references finds';
COMMENT ON FUNCTION insta_ids.check_differences(integer[], bigint[]) IS
    'the part of check_objects about what differs between shards';
COMMENT ON FUNCTION insta_ids.check_references(integer[]) IS
    'the part of check_objects about what is of another schema, and CHECKs that are missing';
COMMENT ON FUNCTION insta_ids.read_parts(integer[], text) IS
    'what a query finds in shards, part by part, so that a lock in one of them is in nobody''s way';
COMMENT ON FUNCTION insta_ids.unidentified_tables(integer[]) IS
    'tables of shards whose rows logical replication cannot tell apart';
COMMENT ON FUNCTION insta_ids.check_tables() IS
    'the part of check about replica identities that are missing, and what is not valid';
COMMENT ON FUNCTION insta_ids.check_sequences() IS
    'the part of check about sequences';
COMMENT ON FUNCTION insta_ids.check_ids() IS
    'the part of check about ids, of 200 columns by chance';
COMMENT ON FUNCTION insta_ids.check_ids_of(regclass, name, integer, timestamptz, boolean) IS
    'the part that check_ids and check_rows share';
COMMENT ON FUNCTION insta_ids.objects_of(integer[], boolean) IS
    'what is in shards, in words that are the same in each of them';
COMMENT ON FUNCTION insta_ids.in_shard(text, name, integer) IS
    'words of objects_of as they are in a shard';
COMMENT ON FUNCTION insta_ids.repair_statement(text, text, text, text, text, name, integer) IS
    'statement that makes an object of a shard like those of others';
COMMENT ON FUNCTION insta_ids.essence(text, oid[], text[], oid[], integer) IS
    'a stored expression without what differs from shard to shard';
COMMENT ON FUNCTION insta_ids.literal_of(name) IS
    'name as a literal';
COMMENT ON FUNCTION insta_ids.minted_shards(text, oid[]) IS
    'shards that a stored expression mints for';
COMMENT ON FUNCTION insta_ids.not_read(text, text[]) IS
    'finding that something could not be read';
COMMENT ON FUNCTION insta_ids.id_functions() IS
    'functions that all ids come from';
COMMENT ON FUNCTION insta_ids.id_sequences() IS
    'sequences that ids of shards are minted from';
COMMENT ON FUNCTION insta_ids.last_values(oid[]) IS
    'last values of sequences';
COMMENT ON FUNCTION insta_ids.time_not_reached() IS
    'a time that ids of this server have not reached';
COMMENT ON TYPE insta_ids.finding IS
    'what check returns';
COMMENT ON VIEW insta_ids_internal.shard_relation IS
    'tables and sequences of the shards of this database';
COMMENT ON VIEW insta_ids_internal.shard_schema IS
    'the shards of this database, and their schemas';

-- Coming from elsewhere, and leaving
COMMENT ON FUNCTION insta_ids.adopt(regnamespace, integer, text, text[], id_layout, boolean) IS
    'makes a shard of a schema whose functions mint ids';
COMMENT ON FUNCTION insta_ids.release(regnamespace, text) IS
    'gives a shard''s schema the published function again, and forgets it';
COMMENT ON FUNCTION insta_ids.minting_functions(regnamespace) IS
    'functions of a schema that mint ids, or look as if they did';
COMMENT ON FUNCTION insta_ids.filled_columns(regnamespace) IS
    'columns whose default calls what mints in a schema';
COMMENT ON FUNCTION insta_ids.native_defaults(regnamespace) IS
    'columns whose default calls next_id itself';
COMMENT ON FUNCTION insta_ids.minting_sequences(regnamespace) IS
    'sequences that what mints in a schema takes values of';
COMMENT ON FUNCTION insta_ids.minting_state(regnamespace) IS
    'all that mints in a schema, to be compared with what it is later';
COMMENT ON FUNCTION insta_ids.is_published(text, text[], text, id_layout) IS
    'whether a text is that of the published function';
COMMENT ON FUNCTION insta_ids.read_call(text, text[], id_layout) IS
    'shard and sequence of the call of next_id that an expression consists of';
COMMENT ON FUNCTION insta_ids.call_function(oid, oid, text[]) IS
    'what a function returns when a role calls it';
COMMENT ON FUNCTION insta_ids_internal.id_seq(bigint, id_layout) IS
    'sequence field of an id';
COMMENT ON FUNCTION insta_ids.function_class(text, regnamespace, integer) IS
    'text of a function without what differs between shards';
COMMENT ON FUNCTION insta_ids.calling_role(regprocedure, regnamespace, boolean) IS
    'role that a function is called as, to see what it mints';
COMMENT ON FUNCTION insta_ids.taken_values() IS
    'last values that sequences gave this session, of those its transaction has used';
COMMENT ON FUNCTION insta_ids.ask(oid, oid, text[]) IS
    'id that a function returns, and what its sequences gave for it';
COMMENT ON FUNCTION insta_ids.call_arguments(regprocedure, integer, text) IS
    'arguments that tell a function a shard and a sequence';
COMMENT ON FUNCTION insta_ids.measure_clock(oid, oid, text[], regclass) IS
    'how the ids of a function fit the clock, a sequence and the layout of this database';
COMMENT ON FUNCTION insta_ids.layout_of(bigint, timestamptz, text) IS
    'layout in which an id is of this instant';
COMMENT ON FUNCTION insta_ids.ask_function(regprocedure, regnamespace, integer, boolean, boolean) IS
    'what a function mints, or why it is not adopted';
COMMENT ON FUNCTION insta_ids.probe_sequence(regnamespace, oid) IS
    'makes a sequence that functions are told';
COMMENT ON FUNCTION insta_ids.try_function(regprocedure, regnamespace, integer, regclass) IS
    'why a function is not adopted, by a call with its sequence far ahead';
COMMENT ON FUNCTION insta_ids.require_adoptable(regnamespace, integer, text[], boolean, boolean, jsonb) IS
    'refuses what cannot be adopted; what its functions answer, the oldest and newest id';
COMMENT ON FUNCTION insta_ids.write_function(id_layout, text, text) IS
    'source of the published function';
COMMENT ON FUNCTION insta_ids.quoted_list(text) IS
    'names in the value of a setting that is a list, as literals';
COMMENT ON FUNCTION insta_ids.rewrite_function(regprocedure, text, text, boolean) IS
    'gives a function another body, and leaves what else is known of it';
COMMENT ON FUNCTION insta_ids.stop_minting(regnamespace, regclass[], text) IS
    'locks tables and sequences of a schema when nobody is using them';
COMMENT ON FUNCTION insta_ids.await_clock(timestamptz) IS
    'waits until the clock is past where ids of an instant are';
COMMENT ON FUNCTION insta_ids.await_ids(integer) IS
    'waits until the clock is where ids are, if that is soon';
COMMENT ON FUNCTION insta_ids.adoption_reasons(regnamespace, integer) IS
    'what is against a schema''s adoption, apart from its rows';
COMMENT ON FUNCTION insta_ids.check_schema_name(regnamespace, integer) IS
    'refuses a schema that is not called like a shard';
COMMENT ON FUNCTION insta_ids.check_future(timestamptz) IS
    'whether the time of ids is to be raised to ids of the future';
COMMENT ON FUNCTION insta_ids.check_release(regnamespace, integer) IS
    'refuses what cannot be released';
COMMENT ON FUNCTION insta_ids.claim_shard(regnamespace, integer) IS
    'makes a schema known as a shard that has all migrations';
COMMENT ON FUNCTION insta_ids.tell_of_dependents(regnamespace) IS
    'tells of what in a shard''s schema still depends on the extension, and of what elsewhere mints for the shard';

-- Map
COMMENT ON FUNCTION insta_ids.add_node(name, text, integer) IS
    'adds a server to the map, or changes how to connect to it';
COMMENT ON FUNCTION insta_ids.drop_node(name) IS
    'takes a server that has no shards from the map';
COMMENT ON FUNCTION insta_ids.assign(integer, integer, name) IS
    'says which node has a range of shards';
COMMENT ON FUNCTION insta_ids.shard_map() IS
    'the map as JSON, with known answers for clients in other languages';
COMMENT ON FUNCTION insta_ids.apply_map(jsonb) IS
    'takes a newer map of another server over';
COMMENT ON FUNCTION insta_ids.this_node() IS
    'name of this server''s node, NULL if it has none';
COMMENT ON FUNCTION insta_ids_internal.timeline() IS
    'timeline that this server writes';
COMMENT ON FUNCTION insta_ids.own_node() IS
    'name of this server''s node, which it must have';
COMMENT ON FUNCTION insta_ids.check_node(name) IS
    'refuses a node that is not on the map';
COMMENT ON FUNCTION insta_ids_internal.setting(text) IS
    'value of a setting of the extension, also in a session that has not loaded the library';
COMMENT ON FUNCTION insta_ids_internal.hold_name(oid) IS
    'keeps others from renaming, moving or dropping a relation until the transaction ends';
COMMENT ON FUNCTION insta_ids_internal.keep_fenced_from_start() IS
    'refuses statements with CONCURRENTLY in a shard that moves or is fenced';
COMMENT ON FUNCTION insta_ids_internal.check_distributed(integer[], text) IS
    'refuses migrations that create tables in schemas which Citus distributes';
COMMENT ON FUNCTION insta_ids_internal.citus() IS
    'what Citus knows of its nodes: the group of this one, and the number of workers that take writes';
COMMENT ON FUNCTION insta_ids.check_dsn(text) IS
    'refuses a connection string with a password, or that says twice where the server is';
COMMENT ON FUNCTION insta_ids.check_left(integer, integer) IS
    'refuses shards that have moved away, and of which something is still here';
COMMENT ON FUNCTION insta_ids.is_placed_here(integer) IS
    'whether the map has a shard on this node';
COMMENT ON FUNCTION insta_ids.check_placement(integer) IS
    'refuses to have a shard here that the map has elsewhere';
COMMENT ON FUNCTION insta_ids.set_assignments(integer[], integer[], name[]) IS
    'the part that assign and apply_map share';
COMMENT ON FUNCTION insta_ids.map_changed() IS
    'gives the map a new version when its tables change';
COMMENT ON FUNCTION insta_ids.tell_of_map() IS
    'notifies of a new version of the map';
COMMENT ON FUNCTION insta_ids.forget_map() IS
    'has all sessions read the map and the fences again';
COMMENT ON TABLE insta_ids_internal.node IS
    'the servers that shards are on';
COMMENT ON TABLE insta_ids_internal.assignment IS
    'which node has which shards';
COMMENT ON TABLE insta_ids_internal.map IS
    'version of the map';

-- Fences
COMMENT ON FUNCTION insta_ids.fence(integer, text) IS
    'closes a shard to all who write, when those who do have ended';
COMMENT ON FUNCTION insta_ids.unfence(integer) IS
    'opens a shard again';
COMMENT ON FUNCTION insta_ids.close_shards(integer[], name, text) IS
    'the part that fence and moves share';
COMMENT ON FUNCTION insta_ids.open_shards(integer[]) IS
    'the part that unfence and moves share';
COMMENT ON FUNCTION insta_ids.claim(integer[]) IS
    'locks shards that are here, so that nobody else alters or moves them';
COMMENT ON FUNCTION insta_ids.lock_all(regclass[], text, regclass[], text, text) IS
    'locks tables and sequences when nobody is using them';
COMMENT ON FUNCTION insta_ids.check_inheritance(integer[]) IS
    'refuses shards that share rows with another schema';
COMMENT ON FUNCTION insta_ids.refuse(integer) IS
    'raises the error of a shard that is not written to here';
COMMENT ON FUNCTION insta_ids.refuse_write() IS
    'the trigger that a fence is made of';
COMMENT ON FUNCTION insta_ids.fenced_schemas() IS
    'schemas of shards that move or are fenced, as they are now';
COMMENT ON FUNCTION insta_ids.keep_fenced() IS
    'refuses who alters what moves or is fenced';
COMMENT ON FUNCTION insta_ids.fence_changed() IS
    'has all sessions read the fences again';
COMMENT ON EVENT TRIGGER insta_ids_keep_fenced IS
    'refuses who alters what moves or is fenced';
COMMENT ON EVENT TRIGGER insta_ids_keep_fenced_from_start IS
    'refuses statements with CONCURRENTLY in a shard that moves or is fenced';
COMMENT ON EVENT TRIGGER insta_ids_keep_fenced_from_drop IS
    'refuses who drops what moves or is fenced';
COMMENT ON TABLE insta_ids_internal.fence IS
    'shards that nothing is written to here, or that nobody alters';

-- Moves
COMMENT ON PROCEDURE insta_ids.move_shards(integer, integer, name, text, text, bigint, interval, boolean) IS
    'brings a range of shards here from another node, or goes on with that';
COMMENT ON PROCEDURE insta_ids.move_abort(integer, integer, name) IS
    'ends a move to this node whose shards have not been handed over';
COMMENT ON FUNCTION insta_ids.move_offer(integer, integer, name) IS
    'source: publishes a range of shards, which nobody alters from here on';
COMMENT ON FUNCTION insta_ids.move_prepare(jsonb) IS
    'target: makes the shards of an offer, empty and closed';
COMMENT ON FUNCTION insta_ids.move_slot(name) IS
    'source: makes the replication slot of a move';
COMMENT ON FUNCTION insta_ids_internal.check_owners(integer[]) IS
    'refuses shards whose code PostgreSQL 15 would run with the rights of the subscription''s owner';
COMMENT ON FUNCTION insta_ids.move_subscribe(name) IS
    'target: begins to copy, or goes on after an error';
COMMENT ON FUNCTION insta_ids.move_copied(name) IS
    'target: whether all tables are copied, and follow the source';
COMMENT ON FUNCTION insta_ids.move_lag(name) IS
    'source: bytes of WAL that the target has not confirmed yet';
COMMENT ON FUNCTION insta_ids.move_fence(name, text) IS
    'source: closes the shards of a move to all who write';
COMMENT ON FUNCTION insta_ids.move_mark(name, interval) IS
    'source: what the target goes on from, once the fence is committed and standbys have it';
COMMENT ON FUNCTION insta_ids.move_table_slots(name, "char"[]) IS
    'target: the slots that tables are copied by which have not caught up';
COMMENT ON FUNCTION insta_ids.move_slots_lost(name[]) IS
    'source: whether one of these slots is not there';
COMMENT ON FUNCTION insta_ids.move_recopy(name) IS
    'target: begins to copy again, when the slot of a table is lost';
COMMENT ON FUNCTION insta_ids.move_drained(name, jsonb) IS
    'target: whether all that was written before the mark is here';
COMMENT ON FUNCTION insta_ids.move_hashes(name, text) IS
    'both: number and hash of the rows of each table';
COMMENT ON FUNCTION insta_ids.move_hand_over(name, jsonb, jsonb, jsonb) IS
    'target: takes the shards over if all rows are here; what move_finish must see';
COMMENT ON FUNCTION insta_ids.move_finish(name, jsonb) IS
    'source, then target: ends a move whose shards were handed over';
COMMENT ON FUNCTION insta_ids.move_cancel(name, uuid) IS
    'target: forgets what was made for a move whose shards were not handed over';
COMMENT ON FUNCTION insta_ids.move_withdraw(name, jsonb) IS
    'source: takes an offer back that the target has cancelled, and opens the shards';
COMMENT ON FUNCTION insta_ids.prepare_shards(jsonb, text) IS
    'the part that move_prepare and move_shards share';
COMMENT ON FUNCTION insta_ids.take_migrations(jsonb, name) IS
    'adds the migrations of another node that are not here';
COMMENT ON FUNCTION insta_ids.make_partitions(integer, jsonb) IS
    'gives the tables of a shard the partitions that they have on another node';
COMMENT ON FUNCTION insta_ids.check_moves(integer, integer) IS
    'refuses shards that are moving';
COMMENT ON FUNCTION insta_ids.check_movable(integer[]) IS
    'refuses shards that could not be moved whole';
COMMENT ON FUNCTION insta_ids.check_absent(integer, integer) IS
    'refuses shards of which something is here';
COMMENT ON FUNCTION insta_ids.move_outcome(uuid) IS
    'how a move has ended here';
COMMENT ON FUNCTION insta_ids.commit_durably() IS
    'has the transaction on disk when it is committed';
COMMENT ON FUNCTION insta_ids.open_move(name) IS
    'the move of a name, locked';
COMMENT ON FUNCTION insta_ids.assign_moved(insta_ids_internal.move, bigint) IS
    'gives the map the shards of a move';
COMMENT ON FUNCTION insta_ids.objects_json(integer) IS
    'what is in a shard, as JSON';
COMMENT ON FUNCTION insta_ids_internal.partition_key(oid) IS
    'strategy and columns of a partition key of columns and PostgreSQL''s own types; NULL for another one';
COMMENT ON FUNCTION insta_ids.partitions_json(integer) IS
    'the partitions of a shard, as JSON';
COMMENT ON FUNCTION insta_ids.relations_of(integer[]) IS
    'what rows and values of shards are in';
COMMENT ON FUNCTION insta_ids.published_tables(integer[]) IS
    'the tables of shards, as a publication names them';
COMMENT ON FUNCTION insta_ids_internal.check_own_move(insta_ids_internal.move) IS
    'refuses a move that is of other nodes than this server';
COMMENT ON FUNCTION insta_ids_internal.slot_of(insta_ids_internal.move) IS
    'name of the replication slot of a move';
COMMENT ON FUNCTION insta_ids_internal.hint_to_abort(insta_ids_internal.move) IS
    'what ends a move, for its errors';
COMMENT ON FUNCTION insta_ids_internal.check_publication(insta_ids_internal.move) IS
    'refuses a move whose publication was dropped';
COMMENT ON FUNCTION insta_ids_internal.drop_slots(insta_ids_internal.move, jsonb) IS
    'drops the replication slots of a move when they are free';
COMMENT ON FUNCTION insta_ids_internal.fence_offer(integer[], name) IS
    'lets nobody alter shards that are offered';
COMMENT ON FUNCTION insta_ids_internal.move_state(name, uuid) IS
    'what another node must know of a move';
COMMENT ON FUNCTION insta_ids_internal.connected_standbys() IS
    'standbys that are connected to this server';
COMMENT ON FUNCTION insta_ids_internal.standby_behind(bigint, text[]) IS
    'the standby of this server that is farthest behind';
COMMENT ON FUNCTION insta_ids_internal.is_in_doubt(integer[]) IS
    'whether this server was promoted since it offered shards';
COMMENT ON FUNCTION insta_ids_internal.open_fence(name, jsonb) IS
    'source: opens the shards of a move again, which goes on';
COMMENT ON FUNCTION insta_ids_internal.give_up_fence(name, integer) IS
    'target: refuses hand-overs by a fence';
COMMENT ON FUNCTION insta_ids_internal.has_applied(name, pg_lsn) IS
    'target: whether the subscription of a move runs and has come to a position';
COMMENT ON FUNCTION insta_ids_internal.check_not_left(insta_ids_internal.move, jsonb) IS
    'refuses to give up a copy that was handed over';
COMMENT ON FUNCTION insta_ids_internal.check_left_behind(name, name, integer[]) IS
    'refuses rows of the source that are not here';
COMMENT ON PROCEDURE insta_ids_internal.open_again(name, name) IS
    'opens the shards of a move on its source again';
COMMENT ON PROCEDURE insta_ids_internal.finish_move(name, name, jsonb, text, text) IS
    'ends a move that was handed over, on both servers';
COMMENT ON FUNCTION insta_ids.drop_subscription(name) IS
    'drops the subscription of a move, without its slot';
COMMENT ON FUNCTION insta_ids.connect_node(name) IS
    'connects this session to another node, by dblink';
COMMENT ON FUNCTION insta_ids.disconnect_node() IS
    'ends the connection to another node';
COMMENT ON FUNCTION insta_ids.dblink_schema() IS
    'schema of the extension dblink';
COMMENT ON FUNCTION insta_ids.ask_node(text) IS
    'answer of the node that this session is connected to';
COMMENT ON FUNCTION insta_ids.begin_to_ask_node(text) IS
    'asks the node that this session is connected to, without waiting for the answer';
COMMENT ON FUNCTION insta_ids.await_node() IS
    'answer to what begin_to_ask_node asked';
COMMENT ON VIEW insta_ids_internal.subscription IS
    'the subscriptions of this database';
COMMENT ON VIEW insta_ids.moves IS
    'the moves of this server: how far each is, and what to do next';
COMMENT ON TABLE insta_ids_internal.move IS
    'what the view moves shows';
COMMENT ON TABLE insta_ids_internal.ended_move IS
    'how moves have ended here';
COMMENT ON FUNCTION insta_ids_internal.require_source() IS
    'trigger: shards are taken over by superusers only';
COMMENT ON FUNCTION insta_ids_internal.require_open_move() IS
    'trigger: how a move has ended is written down by who ends it, or by a superuser';
COMMENT ON TABLE insta_ids_internal.moved IS
    'shards that have left, and the schemas that are left of them';

-- Writer slots and engines
COMMENT ON TABLE insta_ids_internal.writer IS
    'the writer slot that this database has taken';
COMMENT ON FUNCTION insta_ids.writer_slot() IS
    'writer slot of this server: which ids are its, where several servers mint for one shard';
COMMENT ON FUNCTION insta_ids.take_writer_slot(timestamptz) IS
    'lets this database mint by the writer slot of its server, after a time up to which another server did';
COMMENT ON FUNCTION insta_ids.left_writer_slot(text) IS
    'time that ids of another writer slot, minted here before, have not reached';
COMMENT ON FUNCTION insta_ids.slot_of(text) IS
    'a writer slot from its text';
COMMENT ON FUNCTION insta_ids.check_writer() IS
    'refuses a server whose writer slot this database has not taken';
COMMENT ON FUNCTION insta_ids.slots_meet(text, text) IS
    'whether an id can be of both writer slots';
COMMENT ON FUNCTION insta_ids.taken_slot() IS
    'the writer slot that this database has taken, or the only one there is';
COMMENT ON FUNCTION insta_ids.check_nodes() IS
    'asks all nodes of the map, by dblink, whether they agree: on their names, the map and writer slots';
COMMENT ON FUNCTION insta_ids.dsn_parameters(text) IS
    'the parameters of a connection string of libpq';
COMMENT ON FUNCTION insta_ids.percent_decoded(text) IS
    'a part of a URI, decoded';
COMMENT ON FUNCTION insta_ids.plproxy_partitions() IS
    'how PL/Proxy connects to the server of each shard, in their order';
COMMENT ON FUNCTION insta_ids.install_plproxy(text) IS
    'makes the functions by which PL/Proxy routes a cluster by the map';
COMMENT ON FUNCTION insta_ids.export_pgdog(text, text[], text[]) IS
    'the part of PgDog''s configuration that follows the map';

-- What the extension's own SQL calls
COMMENT ON FUNCTION insta_ids_internal.id_time(bigint, @extschema@.id_layout) IS
    'id_time, for the extension''s own SQL';
COMMENT ON FUNCTION insta_ids_internal.id_shard(bigint, @extschema@.id_layout) IS
    'id_shard, for the extension''s own SQL';
COMMENT ON FUNCTION insta_ids_internal.id_min(timestamptz, @extschema@.id_layout) IS
    'id_min, for the extension''s own SQL';
COMMENT ON FUNCTION insta_ids_internal.id_max(timestamptz, @extschema@.id_layout) IS
    'id_max, for the extension''s own SQL';
COMMENT ON FUNCTION insta_ids_internal.next_id(integer, regclass, @extschema@.id_layout) IS
    'next_id, for the extension''s own SQL';
COMMENT ON FUNCTION insta_ids_internal.layout(text) IS
    'a layout from its text';
COMMENT ON FUNCTION insta_ids_internal.extension_schema() IS
    'the schema that next_id is in';
COMMENT ON FUNCTION insta_ids_internal.creators(name) IS
    'the roles that may create objects in a schema though they are no superusers';
COMMENT ON FUNCTION insta_ids_internal.lock_relation(oid, text) IS
    'locks a table, foreign table or sequence until the transaction ends';
COMMENT ON FUNCTION insta_ids_internal.has_rows(oid) IS
    'whether a table has rows of its own';
COMMENT ON FUNCTION insta_ids_internal.last_value(oid) IS
    'the last value that a sequence gave out, or its first';
COMMENT ON FUNCTION insta_ids_internal.survey_ids(oid, text, integer, @extschema@.id_layout, bigint, boolean) IS
    'how many ids of a table are not of its shard, or not of its time';
COMMENT ON FUNCTION insta_ids_internal.survey_column(oid, name, integer, @extschema@.id_layout, bigint, boolean) IS
    'how many ids of a table and its children are not of its shard, or not of its time';
COMMENT ON FUNCTION insta_ids_internal.survey_rows(oid, boolean) IS
    'how many rows a table has, and the sum of their hashes';
COMMENT ON FUNCTION insta_ids_internal.row_hashes(oid) IS
    'the hash of each row of a table';
COMMENT ON FUNCTION insta_ids_internal.hold_schema_of(oid) IS
    'keeps others from renaming the schema of a relation until the transaction ends';
COMMENT ON FUNCTION insta_ids_internal.as_owner(oid, text) IS
    'runs a command with the rights of the role that owns a relation';
COMMENT ON FUNCTION insta_ids_internal.is_plain(text, boolean) IS
    'whether a definition carries no code of others';
COMMENT ON FUNCTION insta_ids_internal.for_owner(oid, text) IS
    'a statement for the owner of what it changes';
COMMENT ON FUNCTION insta_ids_internal.require_shard_owner() IS
    'keeps what is written down of shards to who owns their schemas';
COMMENT ON FUNCTION insta_ids_internal.require_author() IS
    'keeps a migration to the role that added it';
COMMENT ON FUNCTION insta_ids_internal.is_trusted(name) IS
    'whether a role''s migrations may run with the caller''s rights';
COMMENT ON FUNCTION insta_ids_internal.check_author(insta_ids_internal.migration) IS
    'refuses a migration of a role that lacks the caller''s rights';

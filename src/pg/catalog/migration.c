/*
 * Migrations: settings and deferred triggers that end with a migration, and shards that are being created.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/catcache.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(insta_ids_begin_migration);
PG_FUNCTION_INFO_V1(insta_ids_end_migration);
PG_FUNCTION_INFO_V1(insta_ids_tables_with_events);

bool		insta_ids_is_being_created(int32 shard);

/* The migration that the session applies. */
static struct
{
	TransactionId transaction;
	SubTransactionId subtransaction;
	/* Of the settings that last for the migration.  0 if none is applied. */
	int			level;
	/* The shard, if this transaction creates it, or -1. */
	int32		created_shard;
}			applying = {.created_shard = -1};

/*
 * Whether the session applies a migration to a shard that this transaction creates.  The shard can issue IDs for rows that the
 * migration inserts, even if the map assigns it to another node: a move creates its shards before it takes them over, and
 * empties them.
 */
bool
insta_ids_is_being_created(int32 shard)
{
	return shard == applying.created_shard && applying.transaction == GetTopTransactionIdIfAny() &&
		SubTransactionIsActive(applying.subtransaction);
}

/*
 * Maintenance commands keep code of a table's owner from changing what lasts longer than the command.
 */
static void
require_unrestricted(void)
{
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("migrations cannot be applied within a security-restricted operation")));
}

/*
 * begin_migration(shard integer, is_new boolean): begins to apply a migration in this subtransaction.  Settings of the migration last
 * until end_migration() or the end of the subtransaction.
 */
Datum
insta_ids_begin_migration(PG_FUNCTION_ARGS)
{
	require_unrestricted();
	applying.transaction = GetTopTransactionId();
	applying.subtransaction = GetCurrentSubTransactionId();
	applying.level = NewGUCNestLevel();
	applying.created_shard = PG_GETARG_BOOL(1) ? PG_GETARG_INT32(0) : -1;
	PG_RETURN_VOID();
}

#if PG_VERSION_NUM < 170000
/*
 * Whether this transaction has created the type of an enum value: all values of the type are its own.
 */
static bool
is_of_new_type(Oid value)
{
	HeapTuple	tuple = SearchSysCache1(ENUMOID, ObjectIdGetDatum(value));
	CatCList   *values;
	Oid			type;
	bool		is_new = true;

	if (!HeapTupleIsValid(tuple))
		return false;
	type = ((Form_pg_enum) GETSTRUCT(tuple))->enumtypid;
	ReleaseSysCache(tuple);
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		return false;
	is_new = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
	ReleaseSysCache(tuple);
	values = SearchSysCacheList1(ENUMTYPOIDNAME, ObjectIdGetDatum(type));
	for (int i = 0; i < values->n_members && is_new; i++)
		is_new = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(values->members[i]->tuple.t_data));
	ReleaseCatCacheList(values);
	return is_new;
}

/*
 * Lets this transaction use the values that it has added to enums that it has created.
 *
 * A new value is unsafe because it can be rolled back while an index keeps it.  A type that was created in the same transaction is
 * rolled back with all its indexes, so PostgreSQL allows this from version 17 on.  The list of unsafe values is private to the
 * server, but parallel workers receive a copy: this writes the list out, clears it, and reads back what stays.
 */
static void
accept_enum_values(void)
{
	Size		size = EstimateUncommittedEnumsSpace();
	Oid		   *values = palloc(size);
	Oid		   *kept = values;

	SerializeUncommittedEnums(values, size);
	for (Oid *value = values; OidIsValid(*value); value++)
	{
		if (!is_of_new_type(*value))
			*kept++ = *value;
	}
	*kept = InvalidOid;
	AtEOXact_Enum();
	RestoreUncommittedEnums(values);
	pfree(values);
}
#endif

/*
 * end_migration(): sets all settings back to what they were at begin_migration().  If this transaction has created the shard, the next
 * migration can use enum values that this one has added to the shard's types.
 */
Datum
insta_ids_end_migration(PG_FUNCTION_ARGS)
{
	int			level = NewGUCNestLevel() - 1;

	AtEOXact_GUC(false, level + 1);
	require_unrestricted();
	if (applying.transaction != GetTopTransactionIdIfAny() || applying.subtransaction != GetCurrentSubTransactionId() ||
		applying.level != level)
		elog(ERROR, "no migration has begun here");
	AtEOXact_GUC(false, level);
#if PG_VERSION_NUM < 170000
	if (applying.created_shard >= 0)
		accept_enum_values();
#endif
	applying.level = 0;
	applying.created_shard = -1;
	PG_RETURN_VOID();
}

/*
 * tables_with_events(schema oid): the tables of a schema whose deferred triggers are still to be fired.
 */
Datum
insta_ids_tables_with_events(PG_FUNCTION_ARGS)
{
	ArrayBuildState *tables = initArrayResult(OIDOID, CurrentMemoryContext, false);
	Relation	catalog = table_open(DependRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(NamespaceRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ, PG_GETARG_DATUM(0));
	scan = systable_beginscan(catalog, DependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend member = (Form_pg_depend) GETSTRUCT(tuple);

		if (member->classid == RelationRelationId && AfterTriggerPendingOnRel(member->objid))
			tables = accumArrayResult(tables, ObjectIdGetDatum(member->objid), false, OIDOID, CurrentMemoryContext);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	PG_RETURN_DATUM(makeArrayResult(tables, CurrentMemoryContext));
}

/*
 * Migrations: settings that last for one migration, and shards that are being created.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(insta_ids_begin_migration);
PG_FUNCTION_INFO_V1(insta_ids_end_migration);

bool		insta_ids_is_being_created(int32 shard);

#if PG_VERSION_NUM < 170000
#define LOCAL_TRANSACTION (MyProc->lxid)
#else
#define LOCAL_TRANSACTION (MyProc->vxid.lxid)
#endif

/* The shard that a subtransaction creates. */
static int32 created_shard = -1;
static LocalTransactionId creating_transaction;
static SubTransactionId creating_subtransaction;

/*
 * Whether the session applies a migration to a shard that this transaction creates.  The shard can issue IDs for rows that the
 * migration inserts, even if the map assigns it to another node: a move creates its shards before it takes them over, and
 * empties them.
 */
bool
insta_ids_is_being_created(int32 shard)
{
	return shard == created_shard && creating_transaction == LOCAL_TRANSACTION && SubTransactionIsActive(creating_subtransaction);
}

/*
 * begin_migration(shard integer, is_new boolean): begins to apply a migration in this subtransaction.  Returns a level for
 * end_migration().
 */
Datum
insta_ids_begin_migration(PG_FUNCTION_ARGS)
{
	created_shard = PG_GETARG_BOOL(1) ? PG_GETARG_INT32(0) : -1;
	creating_transaction = LOCAL_TRANSACTION;
	creating_subtransaction = GetCurrentSubTransactionId();
	PG_RETURN_INT32(NewGUCNestLevel());
}

#if PG_VERSION_NUM < 170000
/*
 * Whether an enum value belongs to a type of a schema.
 */
static bool
is_value_of_schema(Oid value, Oid schema)
{
	HeapTuple	label = SearchSysCache1(ENUMOID, ObjectIdGetDatum(value));
	HeapTuple	type;
	bool		found;

	if (!HeapTupleIsValid(label))
		return false;
	type = SearchSysCache1(TYPEOID, ObjectIdGetDatum(((Form_pg_enum) GETSTRUCT(label))->enumtypid));
	ReleaseSysCache(label);
	if (!HeapTupleIsValid(type))
		return false;
	found = ((Form_pg_type) GETSTRUCT(type))->typnamespace == schema;
	ReleaseSysCache(type);
	return found;
}

/*
 * Lets this transaction use the values that it has added to enums of a schema that it has created.
 *
 * A new value is unsafe because it can be rolled back while an index keeps it.  A type that was created in the same transaction is
 * rolled back with all its indexes, so PostgreSQL allows this from version 17 on.  The list of unsafe values is private to the
 * server, but parallel workers receive a copy: this writes the list out, clears it, and reads back what stays.
 */
static void
accept_enum_values(Oid schema)
{
	Size		size = EstimateUncommittedEnumsSpace();
	Oid		   *values = palloc(size);
	Oid		   *kept = values;

	SerializeUncommittedEnums(values, size);
	for (Oid *value = values; OidIsValid(*value); value++)
	{
		if (!is_value_of_schema(*value, schema))
			*kept++ = *value;
	}
	*kept = InvalidOid;
	AtEOXact_Enum();
	RestoreUncommittedEnums(values);
	pfree(values);
}
#endif

/*
 * end_migration(level integer, new_schema oid): sets all settings back to what they were at begin_migration().  If this transaction
 * has created the schema, enum values that the migration added there can be used; NULL if it has not.
 */
Datum
insta_ids_end_migration(PG_FUNCTION_ARGS)
{
	int			next = NewGUCNestLevel();

	AtEOXact_GUC(false, next);
	if (PG_ARGISNULL(0) || PG_GETARG_INT32(0) < 2 || PG_GETARG_INT32(0) >= next)
		elog(ERROR, "no migration has begun at this level");
	AtEOXact_GUC(false, PG_GETARG_INT32(0));
#if PG_VERSION_NUM < 170000
	if (!PG_ARGISNULL(1))
		accept_enum_values(PG_GETARG_OID(1));
#endif
	PG_RETURN_VOID();
}

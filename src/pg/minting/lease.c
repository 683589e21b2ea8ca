/*
 * The lease in its table: how it is read, and written in place.
 *
 * A lease must be on disk before the ids that it covers, whatever becomes of their transaction.  So it is written into the row that
 * is there, as PostgreSQL writes some of its own catalogs, and not as a new version of the row.  The WAL record is a generic one.
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

/* lease.rs */
extern int64 insta_ids_read_lease(Oid oid);
extern void insta_ids_write_lease(Oid oid, int64 until);

/*
 * Opens the table, on which the caller has a lock.  Raises an error unless it is still the one that CREATE EXTENSION made.
 */
static Relation
open_lease(Oid oid)
{
	Relation	table = table_open(oid, AccessShareLock);
	TupleDesc	columns = RelationGetDescr(table);

	if (columns->natts != 1 || TupleDescAttr(columns, 0)->atttypid != INT8OID || !TupleDescAttr(columns, 0)->attnotnull)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table insta_ids_internal.%s is not as the extension made it", "lease"),
				 errhint("Create the extension again.")));
	return table;
}

/*
 * Returns the lease, or 0 if none was written.  A restored dump has added a row to the one of CREATE EXTENSION; the later lease
 * counts.
 */
int64
insta_ids_read_lease(Oid oid)
{
	Relation	table = open_lease(oid);
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	row;
	int64		lease = 0;

	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		bool		is_null;

		lease = Max(lease, DatumGetInt64(heap_getattr(row, 1, RelationGetDescr(table), &is_null)));
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return lease;
}

/*
 * Writes the lease into all rows.  The caller holds the lock by which only one session writes, and flushes the WAL.
 */
void
insta_ids_write_lease(Oid oid, int64 until)
{
	Relation	table = open_lease(oid);
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	row = systable_getnext(scan);

	if (!HeapTupleIsValid(row))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table insta_ids_internal.%s is not as the extension made it", "lease"),
				 errdetail("It has no row."),
				 errhint("Create the extension again.")));
	for (; HeapTupleIsValid(row); row = systable_getnext(scan))
	{
		Buffer		buffer = ReadBuffer(table, ItemPointerGetBlockNumber(&row->t_self));
		GenericXLogState *record;
		Page		page;
		HeapTupleHeader stored;

		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		record = GenericXLogStart(table);
		page = GenericXLogRegisterBuffer(record, buffer, 0);
		/* The row is still here: nobody may update or delete it, and the scan's snapshot keeps it from VACUUM. */
		stored = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, ItemPointerGetOffsetNumber(&row->t_self)));
		memcpy((char *) stored + stored->t_hoff, &until, sizeof(until));
		GenericXLogFinish(record);
		UnlockReleaseBuffer(buffer);
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
}

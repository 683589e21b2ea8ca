/*
 * Sequences that are created and dropped, by whatever statement, as the server's hook reports them.
 *
 * The hook is C because the next hook in the chain may leave it by longjmp().  What is to be done is in succession.rs.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

/* succession.rs */
extern void insta_ids_sequence_created(Oid sequence);
extern void insta_ids_sequence_dropped(Oid sequence);

void		insta_ids_watch_sequences(void);

static object_access_hook_type next_hook;

/* The kind of a relation that was just created.  Only its own command sees its row. */
static char
kind_of_new(Oid relation)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	char		kind = '\0';
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relation));
	scan = systable_beginscan(catalog, ClassOidIndexId, true, SnapshotSelf, 1, &key);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
		kind = ((Form_pg_class) GETSTRUCT(row))->relkind;
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return kind;
}

static void
watch(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (next_hook)
		next_hook(access, class_id, object_id, sub_id, arg);
	if (class_id != RelationRelationId || sub_id != 0 || !IsUnderPostmaster)
		return;
	if (access == OAT_POST_CREATE && kind_of_new(object_id) == RELKIND_SEQUENCE)
		insta_ids_sequence_created(object_id);
	else if (access == OAT_DROP && get_rel_relkind(object_id) == RELKIND_SEQUENCE)
		insta_ids_sequence_dropped(object_id);
}

/* Called once, when the library is loaded. */
void
insta_ids_watch_sequences(void)
{
	next_hook = object_access_hook;
	object_access_hook = watch;
}

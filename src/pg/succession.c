/*
 * Sequences that are created and dropped, by whatever statement, as the server's hook reports them.
 *
 * The hook is C because the next hook in the chain may leave it by longjmp().  What is to be done is in succession.rs.
 */
#include "postgres.h"

#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"

/* succession.rs */
extern void insta_ids_relation_created(Oid relation);
extern void insta_ids_sequence_dropped(Oid sequence);

void		insta_ids_watch_sequences(void);

static object_access_hook_type next_hook;

static void
watch(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (next_hook)
		next_hook(access, class_id, object_id, sub_id, arg);
	if (class_id != RelationRelationId || sub_id != 0 || !IsUnderPostmaster)
		return;
	/* The kind of a relation that was just created is not visible yet. */
	if (access == OAT_POST_CREATE)
		insta_ids_relation_created(object_id);
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

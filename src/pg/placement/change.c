/*
 * The trigger by which a distribution notes rows that change.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(insta_ids_note_change);
PG_FUNCTION_INFO_V1(insta_ids_write_changes);

typedef struct Column
{
	AttrNumber	number;
	FmgrInfo	output;
} Column;

/* What stays the same for all rows of a statement. */
typedef struct Noted
{
	Oid			changes;
	/* The first column says the shard; its number is 0 if none does.  The others are the primary key. */
	int			count;
	Column		columns[FLEXIBLE_ARRAY_MEMBER];
} Noted;

static Noted *
prepare(Trigger *trigger, TupleDesc columns, MemoryContext context)
{
	Noted	   *noted = MemoryContextAllocZero(context, offsetof(Noted, columns) + trigger->tgnargs * sizeof(Column));

	noted->changes = get_relname_relid("change", get_namespace_oid("insta_ids_internal", false));
	noted->count = trigger->tgnargs;
	for (int i = 0; i < trigger->tgnargs; i++)
	{
		Column	   *column = &noted->columns[i];
		Oid			output;
		bool		is_varlena;

		if (i == 0 && trigger->tgargs[i][0] == '\0')
			continue;
		column->number = SPI_fnumber(columns, trigger->tgargs[i]);
		if (column->number <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" does not exist", trigger->tgargs[i])));
		getTypeOutputInfo(TupleDescAttr(columns, column->number - 1)->atttypid, &output, &is_varlena);
		fmgr_info_cxt(output, &column->output, context);
	}
	return noted;
}

/*
 * What goes into one row of insta_ids_internal.change.  A row has many changes, because a bulk statement would otherwise spend most
 * of its time on writing them.
 */
#define MOST_CHANGES 64
/* With more, PostgreSQL would compress the row. */
#define MOST_BYTES 1500

typedef struct Batch
{
	Oid			changes;
	/* All changes are of one table, and name as many columns of the primary key.  Triggers that users make can name others. */
	Oid			relation;
	int			width;
	int			count;
	Size		bytes;
	/* Texts: the primary keys one after another, and the values that said the shard. */
	Datum		keys[MOST_CHANGES * INDEX_MAX_KEYS];
	Datum		placed_by[MOST_CHANGES];
	bool		is_new[MOST_CHANGES];
} Batch;

/*
 * Changes of this transaction that are not written yet.  They are written before the transaction commits or prepares, and before a
 * function of this session reads the table.  A change that is written without need, such as one of a subtransaction that fails,
 * does no harm: who applies it looks at the row itself.
 */
static Batch kept;
static MemoryContext kept_in = NULL;

/* The subtransaction with which they are lost, and whether the transaction is past the point where they are written. */
static SubTransactionId kept_by;
static bool is_ending = false;

static void
forget_kept(void)
{
	kept.count = 0;
	kept.bytes = 0;
	MemoryContextReset(kept_in);
}

/*
 * Writes a row.  The table has no index, and no trigger for INSERT.  Those who write to the sources need no privilege on it.
 */
static void
write_batch(Batch *batch)
{
	/* It is gone if the extension was dropped. */
	Relation	changes = try_relation_open(batch->changes, RowExclusiveLock);
	int			keys = batch->count * batch->width;
	int			first = 1;
	Datum		values[3];
	bool		nulls[] = {false, false, false};

	if (changes == NULL)
		return;
	values[0] = ObjectIdGetDatum(batch->relation);
	values[1] = PointerGetDatum(construct_md_array(batch->keys, NULL, 1, &keys, &first, TEXTOID, -1, false, TYPALIGN_INT));
	values[2] = PointerGetDatum(construct_md_array(batch->placed_by, batch->is_new, 1, &batch->count, &first, TEXTOID, -1, false,
												   TYPALIGN_INT));
	PushActiveSnapshot(GetTransactionSnapshot());
	simple_heap_insert(changes, heap_form_tuple(RelationGetDescr(changes), values, nulls));
	PopActiveSnapshot();
	relation_close(changes, NoLock);
}

static void
write_kept(void)
{
	MemoryContext outer;

	if (kept.count == 0)
		return;
	outer = MemoryContextSwitchTo(kept_in);
	write_batch(&kept);
	MemoryContextSwitchTo(outer);
	/* Those of an outer subtransaction are written again, because this one can fail. */
	if (kept_by == GetCurrentSubTransactionId())
		forget_kept();
}

static void
end_kept(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			write_kept();
			is_ending = true;
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			forget_kept();
			is_ending = false;
			break;
		default:
			break;
	}
}

static void
end_kept_of_subtransaction(SubXactEvent event, SubTransactionId ended, SubTransactionId parent, void *arg)
{
	if (kept.count == 0 || kept_by != ended)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		kept_by = parent;
	else if (event == SUBXACT_EVENT_ABORT_SUB)
		forget_kept();
}

/*
 * The batch for a change.  It is not the one that is kept if this has changes of an outer subtransaction: they cannot be written
 * now, because they would be lost with this one.
 */
static Batch *
batch_for(Noted *noted, Oid relation)
{
	Batch	   *batch = &kept;

	if (kept_in == NULL)
	{
		kept_in = AllocSetContextCreate(TopMemoryContext, "insta_ids changes", ALLOCSET_DEFAULT_SIZES);
		RegisterXactCallback(end_kept, NULL);
		RegisterSubXactCallback(end_kept_of_subtransaction, NULL);
	}
	if (is_ending || (kept.count > 0 && kept_by != GetCurrentSubTransactionId()))
		batch = palloc0(sizeof(Batch));
	else if (kept.count == MOST_CHANGES || kept.bytes > MOST_BYTES
			 || (kept.count > 0 && (kept.relation != relation || kept.changes != noted->changes || kept.width != noted->count - 1)))
		write_kept();
	if (batch->count == 0)
	{
		if (batch == &kept)
			kept_by = GetCurrentSubTransactionId();
		batch->changes = noted->changes;
		batch->relation = relation;
		batch->width = noted->count - 1;
	}
	return batch;
}

/*
 * A value as text, or NULL.
 */
static Datum
text_of(Column *column, HeapTuple row, TupleDesc columns, bool *is_null)
{
	Datum		value = heap_getattr(row, column->number, columns, is_null);

	return *is_null ? (Datum) 0 : CStringGetTextDatum(OutputFunctionCall(&column->output, value));
}

/*
 * Notes the primary key of a row and, unless it is new, the value that says its shard.
 */
static void
note(Noted *noted, Relation relation, HeapTuple row, bool is_new)
{
	TupleDesc	columns = RelationGetDescr(relation);
	Batch	   *batch = batch_for(noted, RelationGetRelid(relation));
	MemoryContext outer = MemoryContextSwitchTo(batch == &kept ? kept_in : CurrentMemoryContext);
	Datum	   *keys = batch->keys + batch->count * batch->width;
	Datum		placed_by = (Datum) 0;

	for (int i = 0; i < batch->width; i++)
	{
		bool		is_null;

		keys[i] = text_of(&noted->columns[i + 1], row, columns, &is_null);
		/* A trigger that a user made can name any columns. */
		if (is_null)
			keys[i] = CStringGetTextDatum("");
		batch->bytes += VARSIZE(DatumGetPointer(keys[i]));
	}
	if (noted->columns[0].number == 0)
		is_new = true;
	if (!is_new)
		placed_by = text_of(&noted->columns[0], row, columns, &is_new);
	if (!is_new)
		batch->bytes += VARSIZE(DatumGetPointer(placed_by));
	batch->placed_by[batch->count] = placed_by;
	batch->is_new[batch->count] = is_new;
	batch->count++;
	MemoryContextSwitchTo(outer);
	if (batch != &kept)
		write_batch(batch);
}

static bool
has_another_key(Noted *noted, TriggerData *fired, TupleDesc columns)
{
	for (int i = 1; i < noted->count; i++)
	{
		Form_pg_attribute column = TupleDescAttr(columns, noted->columns[i].number - 1);
		bool		was_null;
		bool		is_null;
		Datum		before = heap_getattr(fired->tg_trigtuple, column->attnum, columns, &was_null);
		Datum		after = heap_getattr(fired->tg_newtuple, column->attnum, columns, &is_null);

		if (was_null != is_null || (!is_null && !datum_image_eq(before, after, column->attbyval, column->attlen)))
			return true;
	}
	return false;
}

/*
 * Settings under which every session prints a value in the same way.  Returns what AtEOXact_GUC() needs to end them.
 */
static int
pin_settings(void)
{
	int			level = NewGUCNestLevel();

	if (DateStyle != USE_ISO_DATES)
		set_config_option("datestyle", "ISO", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (IntervalStyle != INTSTYLE_POSTGRES)
		set_config_option("intervalstyle", "postgres", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	if (extra_float_digits < 1)
		set_config_option("extra_float_digits", "1", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return level;
}

/*
 * note_change(): notes the primary key of a row that has changed, and the value that says its shard as it was before.  If the
 * primary key has changed, the new one is noted, too.  A row that is new has no value before.
 */
Datum
insta_ids_note_change(PG_FUNCTION_ARGS)
{
	TriggerData *fired = (TriggerData *) fcinfo->context;
	Noted	   *noted;
	int			level;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(fired->tg_event) || !TRIGGER_FIRED_FOR_ROW(fired->tg_event)
		|| fired->tg_trigger->tgnargs < 2 || fired->tg_trigger->tgnargs > INDEX_MAX_KEYS + 1)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("only the triggers of a distribution can call this function")));
	noted = fcinfo->flinfo->fn_extra;
	if (noted == NULL)
		fcinfo->flinfo->fn_extra = noted = prepare(fired->tg_trigger, RelationGetDescr(fired->tg_relation), fcinfo->flinfo->fn_mcxt);

	level = pin_settings();
	note(noted, fired->tg_relation, fired->tg_trigtuple, TRIGGER_FIRED_BY_INSERT(fired->tg_event));
	if (TRIGGER_FIRED_BY_UPDATE(fired->tg_event) && has_another_key(noted, fired, RelationGetDescr(fired->tg_relation)))
		note(noted, fired->tg_relation, fired->tg_newtuple, true);
	AtEOXact_GUC(true, level);
	return PointerGetDatum(NULL);
}

/*
 * write_noted_changes(): writes what note_change() has noted in this transaction.
 */
Datum
insta_ids_write_changes(PG_FUNCTION_ARGS)
{
	write_kept();
	PG_RETURN_VOID();
}

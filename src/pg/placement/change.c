/*
 * The trigger by which a distribution notes rows that change.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(insta_ids_note_change);

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
 * A value as text, or NULL.
 */
static Datum
text_of(Column *column, HeapTuple row, TupleDesc columns, bool *is_null)
{
	Datum		value = heap_getattr(row, column->number, columns, is_null);

	return *is_null ? (Datum) 0 : CStringGetTextDatum(OutputFunctionCall(&column->output, value));
}

static ArrayType *
key_of(Noted *noted, HeapTuple row, TupleDesc columns)
{
	Datum		texts[INDEX_MAX_KEYS];
	bool		is_null;

	for (int i = 1; i < noted->count; i++)
	{
		texts[i - 1] = text_of(&noted->columns[i], row, columns, &is_null);
		/* A trigger that a user made can name any columns. */
		if (is_null)
			texts[i - 1] = CStringGetTextDatum("");
	}
	return construct_array(texts, noted->count - 1, TEXTOID, -1, false, TYPALIGN_INT);
}

/*
 * Writes a row of insta_ids_internal.change, which has no index and no trigger for INSERT.  Those who write to the table need no
 * privilege on it.
 */
static void
note(Noted *noted, Oid relation, ArrayType *key, Datum placed_by, bool is_new)
{
	Relation	changes = table_open(noted->changes, RowExclusiveLock);
	Datum		values[] = {ObjectIdGetDatum(relation), PointerGetDatum(key), placed_by};
	bool		nulls[] = {false, false, is_new};

	simple_heap_insert(changes, heap_form_tuple(RelationGetDescr(changes), values, nulls));
	table_close(changes, NoLock);
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
	TupleDesc	columns;
	Noted	   *noted;
	ArrayType  *key;
	Datum		placed_by = (Datum) 0;
	bool		is_new = true;
	int			level;
	Oid			relation;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(fired->tg_event) || !TRIGGER_FIRED_FOR_ROW(fired->tg_event)
		|| fired->tg_trigger->tgnargs < 2 || fired->tg_trigger->tgnargs > INDEX_MAX_KEYS + 1)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("only the triggers of a distribution can call this function")));
	relation = RelationGetRelid(fired->tg_relation);
	columns = RelationGetDescr(fired->tg_relation);
	noted = fcinfo->flinfo->fn_extra;
	if (noted == NULL)
		fcinfo->flinfo->fn_extra = noted = prepare(fired->tg_trigger, columns, fcinfo->flinfo->fn_mcxt);

	level = pin_settings();
	key = key_of(noted, fired->tg_trigtuple, columns);
	if (!TRIGGER_FIRED_BY_INSERT(fired->tg_event) && noted->columns[0].number != 0)
		placed_by = text_of(&noted->columns[0], fired->tg_trigtuple, columns, &is_new);
	note(noted, relation, key, placed_by, is_new);
	if (TRIGGER_FIRED_BY_UPDATE(fired->tg_event))
	{
		ArrayType  *after = key_of(noted, fired->tg_newtuple, columns);

		if (VARSIZE(after) != VARSIZE(key) || memcmp(after, key, VARSIZE(key)) != 0)
			note(noted, relation, after, (Datum) 0, true);
	}
	AtEOXact_GUC(true, level);
	return PointerGetDatum(NULL);
}

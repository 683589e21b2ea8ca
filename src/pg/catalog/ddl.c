/*
 * DDL: what event triggers call, and what PostgreSQL shows of a statement to C functions only.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/event_trigger.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "tcop/deparse_utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(insta_ids_watch_ddl);
PG_FUNCTION_INFO_V1(insta_ids_left_schema);
PG_FUNCTION_INFO_V1(insta_ids_keeps_rows);

/*
 * left_schema(command pg_ddl_command): the schema out of which ALTER ... SET SCHEMA has moved an object, or NULL.
 */
Datum
insta_ids_left_schema(PG_FUNCTION_ARGS)
{
	CollectedCommand *command = (CollectedCommand *) PG_GETARG_POINTER(0);

	if (command->type != SCT_Simple || command->d.simple.secondaryObject.classId != NamespaceRelationId)
		PG_RETURN_NULL();
	PG_RETURN_OID(command->d.simple.secondaryObject.objectId);
}

/*
 * keeps_rows(command pg_ddl_command): whether the statement is an ALTER TABLE that keeps the names and types of columns, the rows and
 * a distribution's triggers of its table.  The list is of what is known to, so a new subcommand of ALTER TABLE is not among them.
 */
Datum
insta_ids_keeps_rows(PG_FUNCTION_ARGS)
{
	CollectedCommand *command = (CollectedCommand *) PG_GETARG_POINTER(0);
	ListCell   *cell;

	if (command->type != SCT_AlterTable)
		PG_RETURN_BOOL(false);
	foreach(cell, command->d.alterTable.subcmds)
	{
		CollectedATSubcmd *subcommand = lfirst(cell);
		AlterTableCmd *altered = castNode(AlterTableCmd, subcommand->parsetree);

		switch (altered->subtype)
		{
			case AT_DisableTrig:
			case AT_EnableReplicaTrig:
			case AT_EnableTrig:
				/* The triggers of a fence are not of a distribution. */
				if (strncmp(altered->name, "insta_ids_", 10) == 0 && strncmp(altered->name, "insta_ids_fence", 15) != 0)
					PG_RETURN_BOOL(false);
				break;
			case AT_AddColumn:
			case AT_AddConstraint:
			case AT_AddIndex:
			case AT_AddIndexConstraint:
			case AT_AttachPartition:
			case AT_ColumnDefault:
			case AT_EnableAlwaysTrig:
			case AT_SetNotNull:
			case AT_SetOptions:
			case AT_SetRelOptions:
			case AT_SetStatistics:
			case AT_ValidateConstraint:
#if PG_VERSION_NUM < 160000
			case AT_AddColumnRecurse:
			case AT_AddConstraintRecurse:
			case AT_ValidateConstraintRecurse:
#endif
				break;
			default:
				PG_RETURN_BOOL(false);
		}
	}
	PG_RETURN_BOOL(true);
}

/*
 * Whether a table of the extension has a row, as committed now.  Without the table there is none.
 */
static bool
has_rows(Oid schema, const char *table)
{
	Oid			oid = get_relname_relid(table, schema);
	Relation	opened;
	SysScanDesc scan;
	bool		found;

	if (!OidIsValid(oid))
		return false;
	opened = table_open(oid, AccessShareLock);
	scan = systable_beginscan(opened, InvalidOid, false, NULL, 0, NULL);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(opened, AccessShareLock);
	return found;
}

/*
 * The OID of a function of the extension with so many arguments of type text.
 */
static Oid
function_of_texts(Oid schema, const char *name, int count)
{
	Oid			types[] = {TEXTOID, TEXTOID};

	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
						   PointerGetDatum(buildoidvector(types, count)), ObjectIdGetDatum(schema));
}

/*
 * watch_ddl(): the function of each event trigger.  It is C because DDL of those who only want ids should not pay for it.
 */
Datum
insta_ids_watch_ddl(PG_FUNCTION_ARGS)
{
	EventTriggerData *trigger = (EventTriggerData *) fcinfo->context;
	Oid			schema = get_namespace_oid("insta_ids_internal", true);

	if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("only an event trigger can call this function")));
	if (!OidIsValid(schema))
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("schema insta_ids_internal cannot be renamed"),
				 errdetail("Functions of the extension insta_ids look for it by this name.")));
	if (trigger->tag != CMDTAG_ALTER_SCHEMA && !has_rows(schema, "fence") && !has_rows(schema, "distribution"))
		PG_RETURN_NULL();
	if (strcmp(trigger->event, "ddl_command_start") == 0)
		OidFunctionCall0(function_of_texts(schema, "refuse_ddl_at_start", 0));
	else
		OidFunctionCall2(function_of_texts(schema, "refuse_ddl", 2),
						 CStringGetTextDatum(trigger->event), CStringGetTextDatum(GetCommandTagName(trigger->tag)));
	PG_RETURN_NULL();
}

/*
 * What PostgreSQL knows of a statement of DDL and shows to C functions only.
 */
#include "postgres.h"

#include "catalog/pg_namespace.h"
#include "fmgr.h"
#include "tcop/deparse_utility.h"

PG_FUNCTION_INFO_V1(insta_ids_left_schema);

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

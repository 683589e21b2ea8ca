/*
 * Questions to other nodes, and their answers.  See remote.c for who may ask.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "remote.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

PG_FUNCTION_INFO_V1(insta_ids_begin_to_ask_node);
PG_FUNCTION_INFO_V1(insta_ids_rows_from_node);

/*
 * begin_to_ask_node(question text, connection text): sends statements, without waiting for what they return.
 */
Datum
insta_ids_begin_to_ask_node(PG_FUNCTION_ARGS)
{
	char	   *question = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Remote	   *remote = insta_ids_remote(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	int			left;

	insta_ids_finish_connecting(remote);
	if (PQsetnonblocking(remote->conn, 1) != 0 || PQsendQuery(remote->conn, question) != 1
		|| PQsetSingleRowMode(remote->conn) != 1)
		insta_ids_fail_remote(remote, ERRCODE_CONNECTION_FAILURE, "lost the connection to node \"%s\"");
	while ((left = PQflush(remote->conn)) > 0)
	{
		insta_ids_await_remote(remote, WL_SOCKET_READABLE | WL_SOCKET_WRITEABLE, NO_LIMIT);
		insta_ids_read_remote(remote);
	}
	if (left < 0)
		insta_ids_fail_remote(remote, ERRCODE_CONNECTION_FAILURE, "lost the connection to node \"%s\"");
	PG_RETURN_VOID();
}

/* An error of the other node, copied from its result. */
typedef struct RemoteError
{
	int			code;
	char	   *message;
	char	   *detail;
	char	   *hint;
} RemoteError;

/*
 * Handlers of errors do not catch a canceled statement or a failed assertion, and a server that shuts down is not this one.  Here,
 * these are failures of the node.
 */
static int
code_here(const char *code)
{
	int			sqlstate = strlen(code) == 5 ? MAKE_SQLSTATE(code[0], code[1], code[2], code[3], code[4]) : 0;

	if (ERRCODE_TO_CATEGORY(sqlstate) == 0 || sqlstate == ERRCODE_ASSERT_FAILURE
		|| ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_OPERATOR_INTERVENTION)
		return ERRCODE_CONNECTION_EXCEPTION;
	return sqlstate;
}

static void
raise_as_here(const Remote *remote, const RemoteError *error)
{
	ereport(ERROR,
			(errcode(error->code),
			 errmsg_internal("%s", error->message != NULL ? error->message : "unknown error"),
			 error->detail != NULL ? errdetail_internal("%s", error->detail) : 0,
			 error->hint != NULL ? errhint("%s", error->hint) : 0,
			 errcontext("statement on node \"%s\"", remote->node)));
}

/*
 * rows_from_node(connection text, timeout_ms integer): the first column of all rows that the statements return.  Waits for them, at
 * most so long after this call, or without a limit if that is 0.  Raises the statements' error.
 */
Datum
insta_ids_rows_from_node(PG_FUNCTION_ARGS)
{
	Remote	   *remote = insta_ids_remote(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	int32		timeout_ms = PG_GETARG_INT32(1);
	int64		until = timeout_ms > 0 ? insta_ids_steady_ms() + timeout_ms : NO_LIMIT;
	ReturnSetInfo *rows = (ReturnSetInfo *) fcinfo->resultinfo;
	RemoteError *error = NULL;
	PGresult   *result;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	for (;;)
	{
		Datum		value = (Datum) 0;
		bool		is_null = true;
		ExecStatusType status;

		while (PQisBusy(remote->conn))
		{
			insta_ids_await_remote(remote, WL_SOCKET_READABLE, until);
			insta_ids_read_remote(remote);
		}
		result = PQgetResult(remote->conn);
		if (result == NULL)
			break;
		status = PQresultStatus(result);
		if (status == PGRES_SINGLE_TUPLE && PQnfields(result) > 0 && !PQgetisnull(result, 0, 0))
		{
			value = PointerGetDatum(cstring_to_text_with_len(PQgetvalue(result, 0, 0), PQgetlength(result, 0, 0)));
			is_null = false;
		}
		else if (status == PGRES_FATAL_ERROR && error == NULL && PQresultErrorField(result, PG_DIAG_SQLSTATE) != NULL)
		{
			error = palloc(sizeof(RemoteError));
			error->code = code_here(PQresultErrorField(result, PG_DIAG_SQLSTATE));
			error->message = insta_ids_valid_text(PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
			error->detail = insta_ids_valid_text(PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL));
			error->hint = insta_ids_valid_text(PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
		}
		PQclear(result);
		if (status == PGRES_SINGLE_TUPLE)
		{
			if (!is_null)
				(void) pg_verifymbstr(VARDATA_ANY(DatumGetPointer(value)), VARSIZE_ANY_EXHDR(DatumGetPointer(value)), false);
			tuplestore_putvalues(rows->setResult, rows->setDesc, &value, &is_null);
		}
		else if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH)
			insta_ids_fail_remote(remote, ERRCODE_PROTOCOL_VIOLATION, "unexpected answer of node \"%s\"");
	}
	if (error != NULL && PQstatus(remote->conn) == CONNECTION_OK)
		raise_as_here(remote, error);
	if (PQstatus(remote->conn) != CONNECTION_OK)
		insta_ids_fail_remote(remote, ERRCODE_CONNECTION_FAILURE, "lost the connection to node \"%s\"");
	return (Datum) 0;
}

/*
 * Connections to other nodes.
 *
 * SQL reaches a connection only by the functions below.  They serve the superuser who has opened it, and not while PostgreSQL runs
 * code of other roles, for example of an index or in ANALYZE.  dblink would serve every role of the session.
 *
 * A connection is open until it is closed, until it fails, or until a transaction of its session ends with an error.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/ilist.h"
#include "libpq-fe.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"
#include "utils/wait_event.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#define NO_LIMIT INT64_MAX

/* clock.rs */
extern int64 insta_ids_steady_ms(void);

typedef struct Remote
{
	dlist_node	list;
	char	   *name;
	char	   *node;			/* for messages */
	Oid			user;			/* who may use it */
	PGconn	   *conn;
	PostgresPollingStatusType polling;
	int64		connect_until;	/* by the steady clock, in ms, or NO_LIMIT */
} Remote;

static dlist_head remotes = DLIST_STATIC_INIT(remotes);

PG_FUNCTION_INFO_V1(insta_ids_begin_to_connect);
PG_FUNCTION_INFO_V1(insta_ids_begin_to_ask_node);
PG_FUNCTION_INFO_V1(insta_ids_rows_from_node);
PG_FUNCTION_INFO_V1(insta_ids_disconnect_node);

static void
forget(Remote *remote)
{
	dlist_delete(&remote->list);
	PQfinish(remote->conn);
	ReleaseExternalFD();
	pfree(remote->name);
	pfree(remote->node);
	pfree(remote);
}

static void
forget_all_on_error(XactEvent event, void *arg)
{
	dlist_mutable_iter place;

	if (event == XACT_EVENT_ABORT)
		dlist_foreach_modify(place, &remotes)
			forget(dlist_container(Remote, list, place.cur));
}

/*
 * Returns the connection of this name, or NULL.  Raises an error unless the user may use it.
 */
static Remote *
find(const char *name)
{
	dlist_iter	place;

	dlist_foreach(place, &remotes)
	{
		Remote	   *remote = dlist_container(Remote, list, place.cur);

		if (strcmp(remote->name, name) != 0)
			continue;
		if (remote->user != GetUserId() || InSecurityRestrictedOperation())
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for the connection to node \"%s\"", remote->node)));
		return remote;
	}
	return NULL;
}

static Remote *
find_open(const char *name)
{
	Remote	   *remote = find(name);

	if (remote == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_DOES_NOT_EXIST),
				 errmsg("connection \"%s\" is not open", name)));
	return remote;
}

/*
 * Returns a copy of a text of the other node, in this database's encoding, or NULL.
 */
static char *
valid_text(const char *text)
{
	if (text == NULL)
		return NULL;
	return pg_verifymbstr(text, strlen(text), true) ? pchomp(text) : pstrdup("The text is not valid in this database's encoding.");
}

/*
 * Closes a connection that has failed, and raises the error.  The message has a place for the node.
 */
static void
fail(Remote *remote, int code, const char *message)
{
	char	   *node = pstrdup(remote->node);
	char	   *why = valid_text(PQerrorMessage(remote->conn));

	forget(remote);
	ereport(ERROR,
			(errcode(code),
			 errmsg_internal(message, node),
			 why[0] != '\0' ? errdetail_internal("%s", why) : 0));
}

static void
fail_late(Remote *remote)
{
	char	   *node = pstrdup(remote->node);

	forget(remote);
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("node \"%s\" did not answer in time", node)));
}

/*
 * Waits until the connection can be read from or written to, or another process interrupts.  Fails if that is not so in time.
 */
static void
await(Remote *remote, int events, int64 until)
{
	int64		left = until == NO_LIMIT ? -1 : until - insta_ids_steady_ms();

	if (until != NO_LIMIT && left <= 0)
		fail_late(remote);
	if (until != NO_LIMIT)
		events |= WL_TIMEOUT;
	if (WaitLatchOrSocket(MyLatch, events | WL_LATCH_SET | WL_EXIT_ON_PM_DEATH, PQsocket(remote->conn), (long) left,
						  PG_WAIT_EXTENSION) & WL_LATCH_SET)
	{
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Reads what has arrived.  Notifications are not asked for, and libpq would keep them.
 */
static void
read_input(Remote *remote)
{
	PGnotify   *notification;

	if (PQconsumeInput(remote->conn) != 1)
		fail(remote, ERRCODE_CONNECTION_FAILURE, "lost the connection to node \"%s\"");
	while ((notification = PQnotifies(remote->conn)) != NULL)
		PQfreemem(notification);
}

static void
finish_connecting(Remote *remote)
{
	while (remote->polling != PGRES_POLLING_OK)
	{
		await(remote, remote->polling == PGRES_POLLING_READING ? WL_SOCKET_READABLE : WL_SOCKET_WRITEABLE,
			  remote->connect_until);
		remote->polling = PQconnectPoll(remote->conn);
		if (remote->polling == PGRES_POLLING_FAILED)
			fail(remote, ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, "could not connect to node \"%s\"");
	}
}

/*
 * When the attempt to connect ends: the connection string may say so by connect_timeout, in seconds.
 */
static int64
connect_until(PGconn *conn)
{
	PQconninfoOption *options = PQconninfo(conn);
	int64		until = NO_LIMIT;

	for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++)
		if (strcmp(option->keyword, "connect_timeout") == 0 && option->val != NULL && atoi(option->val) > 0)
			until = insta_ids_steady_ms() + (int64) atoi(option->val) * 1000;
	PQconninfoFree(options);
	return until;
}

static void
ignore_notice(void *arg, const PGresult *notice)
{
}

/*
 * begin_to_connect(connection text, node text, dsn text): begins to open a connection, in place of another one of this name.
 */
Datum
insta_ids_begin_to_connect(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *node = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *dsn = text_to_cstring(PG_GETARG_TEXT_PP(2));
	/* What comes before dbname is for what the connection string leaves open, and what comes after it counts. */
	const char *const keywords[] = {"fallback_application_name", "connect_timeout", "keepalives_idle", "keepalives_interval",
	"keepalives_count", "tcp_user_timeout", "dbname", "client_encoding", NULL};
	const char *const values[] = {"insta_ids", "10", "10", "5", "3", "25000", dsn, GetDatabaseEncodingName(), NULL};
	static bool is_watching = false;
	Remote	   *remote = find(name);
	PGconn	   *conn;

	if (!superuser() || InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser to connect to node \"%s\"", node)));
	if (remote != NULL)
		forget(remote);
	if (!is_watching)
		RegisterXactCallback(forget_all_on_error, NULL);
	is_watching = true;

	remote = MemoryContextAllocZero(TopMemoryContext, sizeof(Remote));
	remote->name = MemoryContextStrdup(TopMemoryContext, name);
	remote->node = MemoryContextStrdup(TopMemoryContext, node);
	remote->user = GetUserId();
	remote->polling = PGRES_POLLING_WRITING;
	if (!AcquireExternalFD())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not connect to node \"%s\"", node),
				 errdetail("This server has too many open files.")));
	conn = PQconnectStartParams(keywords, values, true);
	if (conn == NULL)
	{
		ReleaseExternalFD();
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	}
	remote->conn = conn;
	dlist_push_tail(&remotes, &remote->list);
	if (PQstatus(conn) == CONNECTION_BAD)
		fail(remote, ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, "could not connect to node \"%s\"");
	PQsetNoticeReceiver(conn, ignore_notice, NULL);
	remote->connect_until = connect_until(conn);
	PG_RETURN_VOID();
}

/*
 * begin_to_ask_node(question text, connection text): sends statements, without waiting for what they return.
 */
Datum
insta_ids_begin_to_ask_node(PG_FUNCTION_ARGS)
{
	char	   *question = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Remote	   *remote = find_open(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	int			left;

	finish_connecting(remote);
	if (PQsetnonblocking(remote->conn, 1) != 0 || PQsendQuery(remote->conn, question) != 1
		|| PQsetSingleRowMode(remote->conn) != 1)
		fail(remote, ERRCODE_CONNECTION_FAILURE, "lost the connection to node \"%s\"");
	while ((left = PQflush(remote->conn)) > 0)
	{
		await(remote, WL_SOCKET_READABLE | WL_SOCKET_WRITEABLE, NO_LIMIT);
		read_input(remote);
	}
	if (left < 0)
		fail(remote, ERRCODE_CONNECTION_FAILURE, "lost the connection to node \"%s\"");
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
	Remote	   *remote = find_open(text_to_cstring(PG_GETARG_TEXT_PP(0)));
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
			await(remote, WL_SOCKET_READABLE, until);
			read_input(remote);
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
			error->message = valid_text(PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
			error->detail = valid_text(PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL));
			error->hint = valid_text(PQresultErrorField(result, PG_DIAG_MESSAGE_HINT));
		}
		PQclear(result);
		if (status == PGRES_SINGLE_TUPLE)
		{
			if (!is_null)
				(void) pg_verifymbstr(VARDATA_ANY(DatumGetPointer(value)), VARSIZE_ANY_EXHDR(DatumGetPointer(value)), false);
			tuplestore_putvalues(rows->setResult, rows->setDesc, &value, &is_null);
		}
		else if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT || status == PGRES_COPY_BOTH)
			fail(remote, ERRCODE_PROTOCOL_VIOLATION, "unexpected answer of node \"%s\"");
	}
	if (error != NULL && PQstatus(remote->conn) == CONNECTION_OK)
		raise_as_here(remote, error);
	if (PQstatus(remote->conn) != CONNECTION_OK)
		fail(remote, ERRCODE_CONNECTION_FAILURE, "lost the connection to node \"%s\"");
	return (Datum) 0;
}

/*
 * disconnect_node(connection text): closes a connection, if it is open.
 */
Datum
insta_ids_disconnect_node(PG_FUNCTION_ARGS)
{
	Remote	   *remote = find(text_to_cstring(PG_GETARG_TEXT_PP(0)));

	if (remote != NULL)
		forget(remote);
	PG_RETURN_VOID();
}

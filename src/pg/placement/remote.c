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
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "remote.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

static dlist_head remotes = DLIST_STATIC_INIT(remotes);

PG_FUNCTION_INFO_V1(insta_ids_begin_to_connect);
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

Remote *
insta_ids_remote(const char *name)
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
char *
insta_ids_valid_text(const char *text)
{
	if (text == NULL)
		return NULL;
	return pg_verifymbstr(text, strlen(text), true) ? pchomp(text) : pstrdup("The text is not valid in this database's encoding.");
}

/*
 * Closes a connection that has failed, and raises the error.  The message has a place for the node.
 */
void
insta_ids_fail_remote(Remote *remote, int code, const char *message)
{
	char	   *node = pstrdup(remote->node);
	char	   *why = insta_ids_valid_text(PQerrorMessage(remote->conn));

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
void
insta_ids_await_remote(Remote *remote, int events, int64 until)
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
void
insta_ids_read_remote(Remote *remote)
{
	PGnotify   *notification;

	if (PQconsumeInput(remote->conn) != 1)
		insta_ids_fail_remote(remote, ERRCODE_CONNECTION_FAILURE, "lost the connection to node \"%s\"");
	while ((notification = PQnotifies(remote->conn)) != NULL)
		PQfreemem(notification);
}

void
insta_ids_finish_connecting(Remote *remote)
{
	while (remote->polling != PGRES_POLLING_OK)
	{
		insta_ids_await_remote(remote, remote->polling == PGRES_POLLING_READING ? WL_SOCKET_READABLE : WL_SOCKET_WRITEABLE,
			  remote->connect_until);
		remote->polling = PQconnectPoll(remote->conn);
		if (remote->polling == PGRES_POLLING_FAILED)
			insta_ids_fail_remote(remote, ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, "could not connect to node \"%s\"");
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
		insta_ids_fail_remote(remote, ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION, "could not connect to node \"%s\"");
	PQsetNoticeReceiver(conn, ignore_notice, NULL);
	remote->connect_until = connect_until(conn);
	PG_RETURN_VOID();
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

/*
 * The worker that drives a move: how a session starts it and waits for it, and how it calls a procedure that commits.
 *
 * A session that waits shares a queue with its worker, as the leader of a parallel query does: the worker's messages go to the queue,
 * and the session raises them.  If the session stops waiting, the worker continues.
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "libpq/pqformat.h"
#include "libpq/pqmq.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "tcop/pquery.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#define QUEUE_SIZE 65536

PG_FUNCTION_INFO_V1(insta_ids_start_driver);
PG_FUNCTION_INFO_V1(insta_ids_await_driver);
PG_FUNCTION_INFO_V1(insta_ids_start_distributor);

/* driver.rs */
extern bool insta_ids_register_driver(Oid database, int32 first, int32 last, bool is_awaited);
extern void insta_ids_report_to(dsm_handle handle);
extern ErrorData *insta_ids_call(const char *statement, bool *is_awaited);

/* In a session that waits, and in its worker.  NULL in others. */
static dsm_segment *segment;
static shm_mq_handle *queue;

/* In a session that waits. */
static BackgroundWorkerHandle *driver;
static bool has_failed;

static void
leave_queue(void)
{
	shm_mq_detach(queue);
	dsm_detach(segment);
	segment = NULL;
}

static void
leave_on_error(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT && segment != NULL)
	{
		leave_queue();
		if (!has_failed)
			ereport(NOTICE, (errmsg("move_shards: goes on in the background; see insta_ids.moves")));
	}
}

/*
 * Has the server start the worker for the open move of this range in a database.  Returns false if the server has no worker left.
 */
bool
insta_ids_register_driver(Oid database, int32 first, int32 last, bool is_awaited)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = 10,	/* seconds after it has died */
		.bgw_library_name = "insta_ids",
		.bgw_function_name = "insta_ids_drive_move",
		.bgw_notify_pid = is_awaited ? MyProcPid : 0,
	};
	MemoryContext context = MemoryContextSwitchTo(TopMemoryContext);
	dsm_handle	handle = DSM_HANDLE_INVALID;
	bool		is_registered;

	if (is_awaited)
	{
		if (segment != NULL)
			leave_queue();
		has_failed = false;
		segment = dsm_create(QUEUE_SIZE, 0);
		dsm_pin_mapping(segment);
		shm_mq_set_receiver(shm_mq_create(dsm_segment_address(segment), QUEUE_SIZE), MyProc);
		queue = shm_mq_attach(dsm_segment_address(segment), segment, NULL);
		handle = dsm_segment_handle(segment);
	}
	snprintf(worker.bgw_name, BGW_MAXLEN, "insta_ids: insta_ids_%d_%d", first, last);
	strlcpy(worker.bgw_type, worker.bgw_name, BGW_MAXLEN);
	snprintf(worker.bgw_extra, BGW_EXTRALEN, "%d_%d", first, last);
	worker.bgw_main_arg = UInt64GetDatum((uint64) handle << 32 | database);
	is_registered = RegisterDynamicBackgroundWorker(&worker, &driver);
	MemoryContextSwitchTo(context);
	if (is_awaited && is_registered)
		shm_mq_set_handle(queue, driver);
	else if (is_awaited)
		leave_queue();
	else if (!is_registered)
		ereport(LOG, (errmsg("no background worker is free for \"%s\"", worker.bgw_name)));
	return is_registered;
}

/*
 * start_driver(first integer, last integer, is_awaited boolean): the same in this database.
 */
Datum
insta_ids_start_driver(PG_FUNCTION_ARGS)
{
	static bool is_prepared = false;

	if (!is_prepared)
		RegisterXactCallback(leave_on_error, NULL);
	is_prepared = true;
	PG_RETURN_BOOL(insta_ids_register_driver(MyDatabaseId, PG_GETARG_INT32(0), PG_GETARG_INT32(1), PG_GETARG_BOOL(2)));
}

/*
 * await_driver(): raises the messages that have come from the worker that this session has started.  Returns whether it still runs.
 * An error is raised when the worker has ended, because it records the error before.
 */
Datum
insta_ids_await_driver(PG_FUNCTION_ARGS)
{
	ErrorData	failure = {0};
	Size		length;
	void	   *data;

	if (segment == NULL)
		PG_RETURN_BOOL(false);
	for (;;)
	{
		shm_mq_result result = shm_mq_receive(queue, &length, &data, !has_failed);
		StringInfoData message;
		ErrorData	told;

		if (result == SHM_MQ_WOULD_BLOCK)
			PG_RETURN_BOOL(true);
		if (result == SHM_MQ_DETACHED)
			break;
		/* The first byte is the kind of the message. */
		if (*(char *) data != 'E' && *(char *) data != 'N')
			continue;
		initStringInfo(&message);
		appendBinaryStringInfo(&message, (char *) data + 1, (int) length - 1);
		pq_parse_errornotice(&message, &told);
		told.elevel = Min(told.elevel, ERROR);
		if (told.elevel < ERROR)
			ThrowErrorData(&told);
		else if (!has_failed)
			failure = told;
		has_failed = has_failed || told.elevel == ERROR;
	}
	WaitForBackgroundWorkerShutdown(driver);
	leave_queue();
	if (has_failed)
		ThrowErrorData(&failure);
	PG_RETURN_BOOL(false);
}

/*
 * start_distributor(): has the server start the worker that distributes tables of this database, as the current role.  Returns its
 * process ID, or NULL if the server has no worker left.
 */
Datum
insta_ids_start_distributor(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker = {
		.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = BGW_NEVER_RESTART,
		.bgw_library_name = "insta_ids",
		.bgw_function_name = "insta_ids_drive_distribution",
		.bgw_name = "insta_ids: distribute",
		.bgw_type = "insta_ids: distribute",
		.bgw_main_arg = UInt64GetDatum((uint64) GetUserId() << 32 | MyDatabaseId),
		.bgw_notify_pid = MyProcPid,
	};
	BackgroundWorkerHandle *handle;
	pid_t		pid;

	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		PG_RETURN_NULL();
	if (WaitForBackgroundWorkerStartup(handle, &pid) != BGWH_STARTED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the background worker has ended at once"),
				 errhint("See the server's log.")));
	PG_RETURN_INT32(pid);
}

/*
 * Lets the messages of this worker go to the session that waits, if it still does.
 */
void
insta_ids_report_to(dsm_handle handle)
{
	if (handle == DSM_HANDLE_INVALID || (segment = dsm_attach(handle)) == NULL)
		return;
	dsm_pin_mapping(segment);
	shm_mq_set_sender(dsm_segment_address(segment), MyProc);
	pq_redirect_to_shm_mq(segment, shm_mq_attach(dsm_segment_address(segment), segment, NULL));
	/* The server frees its handle when the session is gone.  This one only tells that. */
	queue = shm_mq_attach(dsm_segment_address(segment), NULL, NULL);
	/* The session converts them. */
	SetClientEncoding(GetDatabaseEncoding());
}

/*
 * Runs a CALL in transactions of its own.  Reports its error as a session does, and returns it, or NULL.  Then `is_awaited` is whether
 * a session waits for this worker.
 *
 * A procedure may only commit where a portal is active, which holds its snapshot and its memory.  The server makes one for each
 * statement of a client, and this makes one like it.  As it is active, a COMMIT leaves it alone.
 */
ErrorData *
insta_ids_call(const char *statement, bool *is_awaited)
{
	SPIExecuteOptions options = {.allow_nonatomic = true};
	volatile Portal portal = NULL;
	static ErrorData *error = NULL;

	if (error != NULL)
		FreeErrorData(error);
	error = NULL;
	debug_query_string = statement;
	SetCurrentStatementStartTimestamp();
	PG_TRY();
	{
		StartTransactionCommand();
		/* The portal of a call that has failed goes here. */
		portal = CreatePortal("", true, true);
		portal->visible = false;
		portal->status = PORTAL_ACTIVE;
		ActivePortal = portal;
		PortalContext = portal->portalContext;
		MemoryContextSwitchTo(PortalContext);
		EnsurePortalSnapshotExists();
		SPI_connect_ext(SPI_OPT_NONATOMIC);
		SPI_execute_extended(statement, &options);
		SPI_finish();
		if (portal->portalSnapshot != NULL)
		{
			PopActiveSnapshot();
			portal->portalSnapshot = NULL;
		}
		portal->status = PORTAL_DONE;
		ActivePortal = NULL;
		PortalContext = NULL;
		MemoryContextSwitchTo(TopTransactionContext);
		PortalDrop(portal, false);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		disable_all_timeouts(false);
		QueryCancelPending = false;
		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		EmitErrorReport();
		FlushErrorState();
		/* An active portal would outlive the transaction with all its memory. */
		if (portal != NULL && ActivePortal == portal)
		{
			MarkPortalFailed(portal);
			portal->portalSnapshot = NULL;
		}
		ActivePortal = NULL;
		PortalContext = NULL;
		AbortCurrentTransaction();
	}
	PG_END_TRY();
	debug_query_string = NULL;
	*is_awaited = segment != NULL && shm_mq_wait_for_attach(queue) == SHM_MQ_SUCCESS;
	return error;
}

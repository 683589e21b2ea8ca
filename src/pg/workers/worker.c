/*
 * How a background worker begins.
 *
 * The owner of a database can set nearly everything for its sessions, and most workers are sessions with the rights of a superuser.
 * So these take all settings from the server's own configuration.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"

/* worker.rs */
extern void insta_ids_begin_worker(void);
extern void insta_ids_connect_worker(Oid database);
extern void insta_ids_connect_worker_as(Oid database, Oid role);
extern void insta_ids_reload_settings(void);

/*
 * Sets a setting so that no database and no role can change it.
 */
static void
pin(const char *name, const char *value)
{
	SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * Pins each setting that a database or a role can carry to its present value.  The worker has not connected yet, so this is the
 * value of the server's configuration.
 */
static void
pin_all(void)
{
	struct config_generic **settings;
	int			count;

#if PG_VERSION_NUM >= 160000
	settings = get_guc_variables(&count);
#else
	settings = get_guc_variables();
	count = GetNumConfigOptions();
#endif
	for (int i = 0; i < count; i++)
	{
		const char *name = settings[i]->name;

		/* One has no value that can be set here: session_authorization. */
		if (settings[i]->context == PGC_USERSET || settings[i]->context == PGC_SUSET)
			(void) set_config_option(name, GetConfigOption(name, false, false), PGC_SUSET, PGC_S_OVERRIDE,
									 GUC_ACTION_SET, true, DEBUG2, false);
	}
}

/*
 * Statements of a worker may write, their triggers fire, and no timeout ends them.
 */
static void
pin_conduct(void)
{
	pin("client_min_messages", "notice");
	pin("default_transaction_isolation", "read committed");
	pin("default_transaction_read_only", "off");
	pin("session_replication_role", "origin");
	pin("statement_timeout", "0");
	pin("lock_timeout", "0");
	pin("idle_in_transaction_session_timeout", "0");
#if PG_VERSION_NUM >= 170000
	pin("transaction_timeout", "0");
#endif
}

/*
 * From now on, the worker ends as a session does, at the next safe point.  The server's own handler for workers ends it
 * immediately, also where that makes the whole server restart.
 */
void
insta_ids_begin_worker(void)
{
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
}

/*
 * Connects the worker to a database, also to one that allows no connections, as the superuser who created the cluster.
 */
void
insta_ids_connect_worker(Oid database)
{
	pin_all();
	pin("search_path", "pg_catalog, pg_temp");
	/* Workers of a move find one another in pg_stat_activity. */
	pin("track_activities", "on");
	pin_conduct();
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, BGWORKER_BYPASS_ALLOWCONN);

	StartTransactionCommand();
	pin("session_authorization", GetUserNameFromId(BOOTSTRAP_SUPERUSERID, false));
	CommitTransactionCommand();
}

/*
 * Connects the worker to a database as a session of this role, with its rights and its settings, but for those of pin_conduct().
 */
void
insta_ids_connect_worker_as(Oid database, Oid role)
{
	pin_conduct();
	pin("role", "none");
	BackgroundWorkerInitializeConnectionByOid(database, role, 0);
}

/*
 * Takes up what has changed in the server's configuration since the last call, but for what pin() has pinned.
 */
void
insta_ids_reload_settings(void)
{
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Connections to other nodes, as remote.c has them and ask.c uses them.
 */
#ifndef INSTA_IDS_REMOTE_H
#define INSTA_IDS_REMOTE_H

#include "lib/ilist.h"
#include "libpq-fe.h"

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

extern Remote *insta_ids_remote(const char *name);
extern void insta_ids_finish_connecting(Remote *remote);
extern void insta_ids_await_remote(Remote *remote, int events, int64 until);
extern void insta_ids_read_remote(Remote *remote);
extern void insta_ids_fail_remote(Remote *remote, int code, const char *message);
extern char *insta_ids_valid_text(const char *text);

#endif

/*
 * What pgrx has no binding for, or only one that also looks for errors, which these do not raise.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timeout.h"

Oid			insta_ids_user(void);
void		insta_ids_cancel_after(int ms);

/* process.rs */
Oid
insta_ids_user(void)
{
	return GetUserId();
}

/* clock.rs: has the server cancel the running statement after so many milliseconds, or not at all if the number is negative. */
void
insta_ids_cancel_after(int ms)
{
	disable_timeout(STATEMENT_TIMEOUT, false);
	if (ms >= 0)
		enable_timeout_after(STATEMENT_TIMEOUT, ms);
}

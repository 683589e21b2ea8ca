/*
 * next_id(shard, sequence) and next_ids(shard, sequence, count), without a layout and with one, as the server calls them.
 *
 * They are C because of the errors of nextval(), which leave a function by longjmp().  Rust promises that for no frame of its
 * own; C does for these, which hold nothing.  All else is Rust: what is called here is in entry.rs and in ../api/minting.rs.
 */
#include "postgres.h"

#include "commands/sequence.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/sinval.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"

/* entry.rs */
extern bool insta_ids_may_attempt(int32 shard, Oid sequence);
extern bool insta_ids_may_attempt_layout(int32 shard, Oid sequence, const void *layout);
extern int64 insta_ids_attempt(int32 shard, Oid sequence, int64 value);
extern int64 insta_ids_attempt_layout(int32 shard, Oid sequence, const void *layout, int64 value);

/* ../api/minting.rs */
extern Datum next_id_wrapper(PG_FUNCTION_ARGS);
extern Datum next_id_layout_wrapper(PG_FUNCTION_ARGS);
extern Datum next_id_of_value_wrapper(PG_FUNCTION_ARGS);
extern Datum next_id_of_value_layout_wrapper(PG_FUNCTION_ARGS);
extern Datum next_ids_count_wrapper(PG_FUNCTION_ARGS);
extern Datum next_ids_count_layout_wrapper(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(insta_ids_next_id);
PG_FUNCTION_INFO_V1(insta_ids_next_id_layout);
PG_FUNCTION_INFO_V1(insta_ids_next_ids);

/*
 * nextval() of a sequence that the session holds (held.rs), which need not check privileges.
 *
 * nextval() learns of other sessions' changes only if it has to read the sequence's definition again.  Then it would have
 * checked after that, so this does.
 */
static inline int64
nextval_held(Oid sequence)
{
	uint64		messages = SharedInvalidMessageCounter;
	int64		value = nextval_internal(sequence, false);

	if (unlikely(messages != SharedInvalidMessageCounter) &&
		pg_class_aclcheck(sequence, GetUserId(), ACL_USAGE | ACL_UPDATE) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SEQUENCE, get_rel_name(sequence));
	return value;
}

Datum
insta_ids_next_id(PG_FUNCTION_ARGS)
{
	int32		shard = PG_GETARG_INT32(0);
	Oid			sequence = PG_GETARG_OID(1);
	int64		value;
	int64		id;

	if (!insta_ids_may_attempt(shard, sequence))
		return next_id_wrapper(fcinfo);

	value = nextval_held(sequence);
	id = insta_ids_attempt(shard, sequence, value);
	if (likely(id >= 0))
		PG_RETURN_INT64(id);
	return DirectFunctionCall3(next_id_of_value_wrapper,
							   PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), Int64GetDatum(value));
}

Datum
insta_ids_next_id_layout(PG_FUNCTION_ARGS)
{
	int32		shard = PG_GETARG_INT32(0);
	Oid			sequence = PG_GETARG_OID(1);
	const void *layout = PG_GETARG_POINTER(2);
	int64		value;
	int64		id;

	if (!insta_ids_may_attempt_layout(shard, sequence, layout))
		return next_id_layout_wrapper(fcinfo);

	value = nextval_held(sequence);
	id = insta_ids_attempt_layout(shard, sequence, layout, value);
	if (likely(id >= 0))
		PG_RETURN_INT64(id);
	return DirectFunctionCall4(next_id_of_value_layout_wrapper,
							   PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), PG_GETARG_DATUM(2), Int64GetDatum(value));
}

/* Without a layout and with one. Each id is minted when it is fetched. */
Datum
insta_ids_next_ids(PG_FUNCTION_ARGS)
{
	bool		has_layout = PG_NARGS() == 4;
	FuncCallContext *ids;

	if (SRF_IS_FIRSTCALL())
	{
		Datum		shard = PG_GETARG_DATUM(0);
		Datum		count = PG_GETARG_DATUM(2);

		ids = SRF_FIRSTCALL_INIT();
		ids->max_calls = DatumGetInt32(has_layout ?
									   DirectFunctionCall3(next_ids_count_layout_wrapper, shard, count, PG_GETARG_DATUM(3)) :
									   DirectFunctionCall2(next_ids_count_wrapper, shard, count));
	}
	ids = SRF_PERCALL_SETUP();
	if (ids->call_cntr >= ids->max_calls)
		SRF_RETURN_DONE(ids);
	if (has_layout)
		SRF_RETURN_NEXT(ids, DirectFunctionCall3(insta_ids_next_id_layout,
												 PG_GETARG_DATUM(0), PG_GETARG_DATUM(1), PG_GETARG_DATUM(3)));
	/* The arguments of next_id() are the first ones of this function. */
	SRF_RETURN_NEXT(ids, insta_ids_next_id(fcinfo));
}

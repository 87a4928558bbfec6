/* scripts.h - what the sinks on Redis do at the server, in one piece each.
 *
 * The fence of a job's output is a key of its own, "<attempt>.<nonce>:<entries>", that lives for FENCE_SECONDS after the last entry: an attempt
 * lower than the last one seen is refused with STALE.  The owner, "<attempt>.<nonce>", tells a second start of the same number apart. */
#ifndef MEMORY_SCRIPTS_H
#define MEMORY_SCRIPTS_H

#include "redis/redis.h"

#define FENCE_SECONDS "604800"
#define STAGE_SECONDS "3600"

/* KEYS fence.  ARGV owner.  This attempt begins: whoever had a lower one can write no more.  1, or STALE. */
extern struct redis_script script_begin;

/* KEYS stream, fence.  ARGV owner, seq of the first entry, job, maxlen (0 = none), group ("" = none), max_pending,
 * then for each entry off, head, flags, data.  Entries that are there already are left out.
 * Returns the seq that is next: less than was given where the bound was reached.  Without a bound entries go by redis_transact(). */
extern struct redis_script script_add;

/* KEYS stream, fence.  ARGV owner, seq, job, then pairs of fields: the last entry.  Returns its seq + 1. */
extern struct redis_script script_last;

/* KEYS stage.  ARGV offset, bytes: put there, and the stage's life begins anew.  GONE where what comes before is not there. */
extern struct redis_script script_stage;

/* KEYS stage, target, fence.  ARGV owner, length, field ("" = a plain key).  The stage becomes the target. */
extern struct redis_script script_publish;

#endif

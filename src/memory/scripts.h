/* scripts.h - what the sinks on Redis do at the server, in one piece each.
 *
 * The fence of a job's output is a key of its own, "<attempt>:<entries>", that lives for FENCE_SECONDS after the last entry: an attempt
 * lower than the last one seen is refused with STALE. */
#ifndef MEMORY_SCRIPTS_H
#define MEMORY_SCRIPTS_H

#include "redis/redis.h"

#define FENCE_SECONDS "604800"
#define STAGE_SECONDS "3600"

/* KEYS fence.  ARGV attempt.  This attempt begins: whoever had a lower one can write no more.  1, or STALE. */
extern struct redis_script script_begin;

/* KEYS stream, fence.  ARGV attempt, seq of the first entry, job, maxlen (0 = none), group ("" = none), max_pending (0 = none),
 * then for each entry off, head, flags, data.  Entries that are there already are left out.
 * Returns the seq that is next: less than was given where the bound was reached. */
extern struct redis_script script_add;

/* KEYS stream, fence.  ARGV attempt, seq, job, then pairs of fields: the last entry.  Returns its seq + 1. */
extern struct redis_script script_last;

/* KEYS stream.  ARGV group, max_pending.  Unread entries, counted up to the bound. */
extern struct redis_script script_pending;

/* KEYS stage, target, fence.  ARGV attempt, length, field ("" = a plain key).  The stage becomes the target. */
extern struct redis_script script_publish;

#endif

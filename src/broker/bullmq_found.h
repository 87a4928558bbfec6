/* bullmq_found.h - a job as bullmq_find.lua tells of it, and mandor's record of that.  Pure. */
#ifndef BROKER_BULLMQ_FOUND_H
#define BROKER_BULLMQ_FOUND_H

#include <hiredis/hiredis.h>
#include <jansson.h>

#include "base/macro.h"
#include "job/verdict.h"

/* What mandor wrote beside it; NULL = nothing.  New reference. */
json_t *bullmq_found_record(const redisReply *job);
enum job_state bullmq_found_state(const redisReply *job, const json_t *record);
/* record_json() of it.  New reference or NULL. */
json_t *bullmq_found_json(const redisReply *job, const char *queue);

/* BullMQ's states that are `state` to mandor (-1 = all), newest jobs first; *ret_count of them. */
const char *const *bullmq_states(int state, size_t *ret_count);

#endif

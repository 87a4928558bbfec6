/* record.h - the record of a job as people and programs see it (`mandor show ID --json`).
 *
 * A broker keeps struct record's scalar fields its own way, and what the last attempt left as the text that
 * record_attempt_text() makes; record_json() makes the one public form of both.  Pure.  Any thread.
 *
 * The text is written once for each attempt and seldom read, so it is short: what is null, false or 0 is left out, and said again
 * by record_json().
 */
#ifndef JOB_RECORD_H
#define JOB_RECORD_H

#include <jansson.h>

#include "base/buf.h"
#include "base/macro.h"
#include "job/verdict.h"

struct record {
    const char *id, *queue;
    enum job_state state;
    const char *phase; /* NULL unless active */
    int64_t attempt, attempts_used, attempts, priority;
    int64_t created_ms, started_ms, finished_ms, due_ms; /* wall clock; 0 = none */
    const char *worker;                                  /* NULL unless it was leased once */
    const char *unique;                                  /* or NULL */
    bool cancel_requested;
    /* record_attempt_text() of the last ended attempt, parsed; NULL = none. */
    const json_t *attempt_json;
    /* Array of earlier attempts' {attempt, cause, exit_code, signal, error, finished_at}; NULL = none. */
    const json_t *history;
    const json_t *spec; /* spec_to_text(), parsed */
};

/* Keys: id queue state phase attempt attempts_used attempts priority created_at started_at finished_at due_at worker unique
 * cause exit_code signal error result progress streams usage containment limits_enforced descendants_killed history spec.
 * Absent values are null.  New reference or NULL. */
json_t *record_json(const struct record *record);

/* JSON that a broker keeps as text: what record_attempt_text() made, a spec, a list of queues.  New reference; NULL when text is NULL
 * or no JSON. */
json_t *record_stored(const char *text);
/* An entry of struct record's history.  text: of that attempt's end, as stored; or NULL.  New reference or NULL. */
json_t *record_history_entry(int64_t attempt, int64_t ended_ms, const char *text);

/* One stream's part of an attempt. */
struct record_stream {
    const json_t *sinks; /* where there are several: fan_record(); NULL = one */
    const char *sink;    /* "auto", "file", … */
    const char *path;    /* "ring" or "splice" */
    const char *target;  /* where the bytes are: file path, URL; NULL when inline */
    int64_t bytes, frames, pauses, paused_ms, discarded_bytes;
    bool has_xxh3;
    uint64_t xxh3;
    const void *tail; /* last captured bytes */
    size_t tail_len;
    bool committed;
};

struct record_attempt {
    const struct verdict *verdict;
    const struct record_stream *out, *err; /* NULL when the attempt never had streams */
    const char *containment; /* "cgroup", "pidns", "group", "strict"; NULL = never contained */
    const json_t *limits_enforced;   /* {"memory": true, …} or NULL */
    const json_t *result, *progress; /* from fd 3, borrowed; or NULL */
    const char *error;               /* instead of the verdict's; or NULL */
};

/* Append what settles an attempt, as compact JSON: cause exit_code signal core_dumped forced stage error result progress
 * streams{stdout,stderr} usage{user_ms,system_ms,max_rss,wall_ms} containment limits_enforced descendants_killed.
 * 0 or -ENOMEM (then the text is incomplete). */
MUST_CHECK int record_attempt_text(const struct record_attempt *attempt, struct buf *text);

#endif

/* channel.h - what a job says while it runs: one JSON object a line on its descriptor 3 (MANDOR_FD).
 *
 *     {"progress": 42}   {"log": "half way"}   {"result": {"width": 640}}   {"data": {…}} (BullMQ: what the job's data are from now on)
 *
 * A line that is no such object, is longer than CHANNEL_LINE_MAX, or would take more than CHANNEL_COST_MAX in memory, is skipped and
 * counted; it never ends the job.  Who runs code of ours in the job may listen for other kinds, and take longer lines of a result.
 * Loop thread only.  channel_parse() alone is pure, for the fuzzer.
 */
#ifndef EXEC_CHANNEL_H
#define EXEC_CHANNEL_H

#include <jansson.h>
#include <uv.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/macro.h"

#define CHANNEL_LINE_MAX ((size_t)1 << 20) /* bytes of one line */
/* Values of one line: a number is one, an empty object of two bytes takes 250 in memory. */
#define CHANNEL_COST_MAX ((size_t)1 << 20)
#define CHANNEL_TURN_MAX ((size_t)64 << 10) /* bytes a loop turn */

struct channel_events {
    const char *const *kinds; /* NULL-terminated; NULL = progress, log, result, data, again */
    size_t line_max;          /* bytes of a line that starts as a result; 0 = CHANNEL_LINE_MAX */
    /* kind: "progress", "log", "result", "data" or "again"; value: borrowed for the call. */
    void (*on_value)(void *arg, const char *kind, json_t *value);
    void (*on_activity)(void *arg);
    void (*on_ended)(void *arg); /* end of file, a read error, or channel_finish(); once */
};

/* The pure half: bytes in, values out. */
struct channel_parser {
    struct buf line;
    const char *const *kinds; /* as in struct channel_events */
    size_t line_max;
    bool skipping;   /* inside a line that was too long */
    int64_t skipped; /* lines that meant nothing */
    int64_t refused; /* results among them: too long, too many values */
};
void channel_parse(struct channel_parser *parser, const char *bytes, size_t len,
                   void (*on_value)(void *arg, const char *kind, json_t *value), void *arg);
void channel_parse_end(struct channel_parser *parser,
                       void (*on_value)(void *arg, const char *kind, json_t *value), void *arg);

struct channel;

/* adopt_fd: the read end, consumed whatever the result.  Returns 0, -ENOMEM or what uv says. */
MUST_CHECK int channel_new(uv_loop_t *loop, int adopt_fd, const struct channel_events *events,
                           void *arg, struct channel **ret);
/* The containment is empty: read what is there, then on_ended. */
void channel_finish(struct channel *channel);
int64_t channel_refused(const struct channel *channel);
/* After on_ended, or instead of it.  on_closed may be NULL. */
void channel_close(struct channel *channel, void (*on_closed)(void *arg), void *arg);

#endif

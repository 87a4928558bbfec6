/* sink_list.h - several sinks for one stream, as the job's text has them.  Pure.
 *
 *     "stdout": ["file:/srv/{id}", "drop=4M:redis://…"]      in JSON and YAML; on the command line --stdout twice
 *     "fan:\nfile:/srv/{id}\ndrop=4M:redis://…"              as one text, as struct spec keeps it
 *
 * A member is a URL, or POLICY[=SIZE]:URL.  Each has a buffer of SIZE bytes of its own; what happens when that is full:
 * block: the stream waits, with the job (the default); spill: what is more goes to disk; drop: whole frames are left out and counted. */
#ifndef JOB_SINK_LIST_H
#define JOB_SINK_LIST_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"

#define SINK_LIST_PREFIX "fan:\n"
#define SINK_LIST_MAX    16

enum sink_policy { SINK_BLOCK, SINK_SPILL, SINK_DROP };

struct sink_member {
    enum sink_policy policy;
    int64_t buffer_bytes;
    const char *url; /* in text */
};

/* "drop=4M:redis://…".  0, or -EINVAL with *err. */
MUST_CHECK int sink_member_parse(const char *text, struct sink_member *ret, struct mandor_err *err);
const char *sink_policy_name(enum sink_policy policy);

/* Does text name several sinks? */
bool sink_list_is(const char *text);
/* Call fn with each member's text (of a text that is no list: with it) until it returns other than 0; returns that. */
int sink_list_each(const char *text, int (*fn)(void *arg, const char *member), void *arg);

/* A string, or a list of them, as one text; malloc'ed.  0, -EINVAL with *err, or -ENOMEM. */
MUST_CHECK int sink_list_from_json(const json_t *value, char **ret, size_t *ret_len,
                                   struct mandor_err *err);
/* The reverse: a string, or an array.  New reference or NULL. */
json_t *sink_list_to_json(const char *text, size_t len);

#endif

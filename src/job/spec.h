/* spec.h - one job as it was asked for: the JSON object of `mandor add`, parsed, checked and defaulted.
 *
 * options.def is the one table of keys: type, default, flag, help, where it may stand (job, queue).
 * It drives the JSON parser, the command line's options, `mandor.yaml` queue defaults and the man pages.
 * Pure: no I/O, no clock.  Any thread.
 */
#ifndef JOB_SPEC_H
#define JOB_SPEC_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"

enum spec_kind {
    SPEC_EXEC,
    SPEC_POOL,
    SPEC_PYTHON,
    SPEC_DATA, /* data alone: what is run with them is for the queue to say (job/binding.h) */
};
enum spec_frame {
    FRAME_RAW,
    FRAME_LINES,
    FRAME_U32BE,
    FRAME_U32LE,
    FRAME_VARINT,
    FRAME_NETSTRING,
};
enum spec_checksum { CHECKSUM_XXH3, CHECKSUM_NONE };
enum spec_output_policy { OUTPUT_KILL, OUTPUT_DISCARD };
enum spec_limits_policy { LIMITS_STRICT, LIMITS_BEST_EFFORT };
enum spec_containment {
    CONTAIN_AUTO,
    CONTAIN_CGROUP,
    CONTAIN_PIDNS,
    CONTAIN_GROUP,
    CONTAIN_STRICT
};
enum spec_capture { CAPTURE_NONE = 0, CAPTURE_STDOUT = 1, CAPTURE_STDERR = 2, CAPTURE_BOTH = 3 };
enum spec_commit { COMMIT_DEFAULT, COMMIT_SUCCESS, COMMIT_ALWAYS };
enum spec_backoff { BACKOFF_FIXED, BACKOFF_EXPONENTIAL };

/* Bytes with a length; NUL-terminated as well, never NUL inside (argv, env). */
struct spec_str {
    char *bytes;
    size_t len;
};

struct spec_limits { /* 0 = none */
    int64_t memory_bytes, pids, cpu_time_ms, open_files, file_size_bytes;
    double cpu; /* cores: 0.5 = half a core */
};

struct spec {
    uint32_t magic;
    enum spec_kind kind;
    uint64_t given; /* bit i: row i of options.def was written down, by the job or its queue */
    struct spec_str *argv; /* SPEC_EXEC: argc >= 1 of them */
    size_t argc;
    char *pool;     /* SPEC_POOL */
    json_t *data;   /* SPEC_POOL, may be NULL; SPEC_DATA */
    json_t *python; /* SPEC_PYTHON: the object as given */

    char *queue; /* "default" */
    int64_t priority;
    int64_t delay_ms;
    char *unique; /* NULL = none */
    char *id;     /* chosen by who adds it; NULL = the broker's to choose */
    bool lifo;
    int64_t attempts;
    enum spec_backoff backoff;
    int64_t backoff_delay_ms, backoff_max_ms;
    double backoff_jitter; /* 0..1 */
    int *no_retry_exit_codes;
    size_t no_retry_count;

    struct spec_str *env; /* "NAME=value" */
    size_t env_count;
    struct spec_str cwd; /* bytes NULL = the attempt's fresh directory */
    char *user, *group;  /* NULL = the worker's own */
    /* URLs; stdin bytes NULL = /dev/null; the others may be lists (sink_list.h). */
    struct spec_str stdin_src, stdout_sink, stderr_sink;

    enum spec_frame frame;
    int64_t frame_max_bytes;
    enum spec_checksum checksum;
    enum spec_capture capture;
    enum spec_commit commit;
    int64_t output_max_bytes; /* 0 = none; auto: sinks have 1 GiB then */
    enum spec_output_policy output_policy;

    int64_t timeout_ms, idle_timeout_ms, kill_after_ms, output_drain_ms, sink_timeout_ms;
    struct spec_limits limits;
    enum spec_limits_policy limits_policy;
    enum spec_containment containment;
    bool no_new_privs;
};

/* Parse one job object; `defaults` (a queue's options as JSON object, may be NULL) fill what is missing.
 * ret: owned by the caller, spec_free().  Returns 0, -ENOMEM, or -EINVAL with *err naming the key, what was
 * wrong, what was expected, and the nearest known key for an unknown one. */
MUST_CHECK int spec_from_json(const json_t *job, const json_t *defaults, struct spec **ret,
                              struct mandor_err *err);

/* The canonical JSON of spec as text: what was given (even when it equals the default: a queue's own default must not win over
 * it later), and what differs from the defaults.  malloc'ed or NULL. */
char *spec_to_text(const struct spec *spec);

struct spec *spec_free(struct spec *spec);
DEFINE_CLEANUP(struct spec *, spec_free)

/* Is this key of a job object ("backoff" as well as "backoff.delay") about its place in a queue: when, how often, under which name?
 * Brokers that are another system's have places of their own for that. */
bool spec_is_place(const char *key);

/* "limits.memory" for "memory", "backoff.delay" for "backoff_delay": the key that the command line's --memory sets, where it is in a
 * group; NULL where there is none. */
const char *spec_key_in_group(const char *name);

/* 0, or -EINVAL (FAULT_CALLER) where no job has such a key: *err names the nearest that there is. */
int spec_check_key(const char *key, struct mandor_err *err);

/* Check queue options alone (mandor.yaml): each key known, its value of the right form, allowed on a queue. */
MUST_CHECK int spec_check_defaults(const json_t *defaults, struct mandor_err *err);

/* Check one option's value (key as in options.def: "limits.memory").  Messages do not repeat the key.
 * Returns 0, -ENOENT (no such key), -EINVAL, -ENOMEM. */
MUST_CHECK int spec_check_value(const char *key, const json_t *value, struct mandor_err *err);
/* JSON of what was written as plain text on a command line or in YAML, checked.  text NULL: "true" of an OPT_BOOL.
 * Returns as spec_check_value(); *ret is a new reference. */
MUST_CHECK int spec_value_from_text(const char *key, const char *text, json_t **ret,
                                    struct mandor_err *err);

/* ---- options.def at run time: for --help, the option parser, completion and the man page ---- */

enum opt_type {
    OPT_STRING, /* UTF-8 text */
    OPT_BYTES,  /* text or {"b64"} */
    OPT_INT,
    OPT_REAL,
    OPT_BOOL,
    OPT_DURATION, /* "30s"; a JSON number is milliseconds */
    OPT_SIZE,     /* "64K"; a JSON number is bytes */
    OPT_ENUM,     /* one of `choices`, separated by | */
    OPT_ENV,      /* object NAME → value; on the command line NAME=VALUE, repeated */
    OPT_ARGV,     /* array of strings or {"b64"} */
    OPT_INTS,     /* array of integers */
    OPT_JSON,     /* any value */
    OPT_SINKS,    /* text, or an array of it (sink_list.h); on the command line repeated */
};

struct spec_option {
    const char *key; /* JSON path: "timeout", "backoff.delay", "limits.memory" */
    enum opt_type type;
    const char *choices;  /* OPT_ENUM */
    const char *fallback; /* default as text, for help; "" = none */
    const char *flag;     /* "timeout" for --timeout; NULL = JSON only */
    /* "D", "S", "SINK": the argument's name in help; NULL (OPT_BOOL): none, or =false. */
    const char *arg;
    bool on_queue;    /* may stand on a queue in mandor.yaml */
    const char *help; /* one sentence, no full stop */
};
const struct spec_option *spec_options(size_t *ret_count);

/* Set the option that `flag` names (without dashes) from command line text in a job object.
 * Returns 0, -ENOENT (no such flag), -EINVAL (*err says what was expected). */
MUST_CHECK int spec_set_flag(json_t *job, const char *flag, const char *text,
                             struct mandor_err *err);

/* Fill {id} {queue} {attempt} {stream} in a sink or stdin URL ("{{" is a brace; "inline:" is taken as it is); values
 * percent-encode "/", a leading "." and what would change the URL's meaning ("%?#&", control characters).  Returns malloc'ed text or NULL with *err set (-EINVAL unknown placeholder, -ENOMEM). */
char *spec_expand(const char *template_text, const char *id, const char *queue, int64_t attempt,
                  const char *stream, struct mandor_err *err);

const char *spec_containment_name(enum spec_containment containment);

#endif

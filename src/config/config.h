/* config.h - mandor.yaml, parsed and checked.  params.def is the table of its keys (queue options come from job/options.def).
 * Pure but for reading the file and `{file: PATH}` secrets.  Main thread, before the loop runs, and again at SIGHUP. */
#ifndef CONFIG_CONFIG_H
#define CONFIG_CONFIG_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"
#include "job/binding.h"
#include "pool/pool.h"
#include "python/runtime.h"
#include "sink/settings.h"

struct config_queue {
    char *name;
    int line;            /* where it stands */
    int64_t concurrency; /* 0 = only the worker's own bound */
    int64_t weight;      /* >= 1 */
    json_t *defaults;    /* job options (job/options.def keys), object */
    char *broker;        /* URL, NULL = the configuration's */
    /* What its jobs run, see job/binding.h; NULL = not said. */
    char *executor, **command, *runtime, *code; /* code: the program's text */
    bool allow_exec;
    /* 0 = no bound. */
    int64_t keep_completed_ms, keep_completed_count, keep_failed_ms, keep_failed_count;
};

struct config {
    char *path;                  /* file that was read; NULL = built-in defaults */
    char *broker;                /* URL or NULL */
    int64_t concurrency;         /* default: online CPUs */
    int64_t shutdown_timeout_ms; /* 30 s */
    int64_t buffer_max_bytes;    /* 128 MiB */
    int64_t lease_ms;            /* 30 s */
    char *log_format;            /* "logfmt" or "json" */
    char *containment;           /* "auto" … */
    struct config_queue *queues;
    size_t queue_count; /* 0 = serve what the broker has */
    struct pool_options *pools;
    size_t pool_count;
    struct python_options python;
    struct sink_settings sinks;
    char **env_pass; /* names, NULL-terminated; never NULL */
};

/* Read `path`, or when NULL the first of $MANDOR_CONFIG, $XDG_CONFIG_HOME/mandor/mandor.yaml (~/.config),
 * /etc/mandor/mandor.yaml; none of them: the defaults.  ${NAME} comes from the environment.
 * Errors name "file:line:key: what was wrong, what was expected", with the nearest known key. */
MUST_CHECK int config_load(const char *path, struct config **ret, struct mandor_err *err);
/* The same from memory; name: what messages call it, {file: PATH} is relative to its directory. */
MUST_CHECK int config_parse(const char *name, const char *text, size_t len, struct config **ret,
                            struct mandor_err *err);
struct config *config_free(struct config *config);
DEFINE_CLEANUP(struct config *, config_free)

/* The queue's own settings, or the defaults for a queue that the configuration does not name.  Never NULL. */
const struct config_queue *config_queue(const struct config *config, const char *name);

/* The queue's binding; borrowed from the configuration. */
struct binding config_binding(const struct config *config, const struct config_queue *queue);

#endif

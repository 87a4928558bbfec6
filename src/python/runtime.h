/* runtime.h - what mandor.yaml says of Python: the wheel store, and runtimes by name.
 *
 * A runtime is a set of packages and the way in which they are started; each has a fork server of its own (server.h).
 * The runtime `default` is always there. */
#ifndef PYTHON_RUNTIME_H
#define PYTHON_RUNTIME_H

#include "base/macro.h"

/* One runtime below python.runtimes. */
struct python_runtime {
    char *name;
    char **packages;          /* names in the store, NULL-terminated, or NULL */
    char **preload;           /* modules, NULL-terminated, or NULL */
    char *isolation;          /* "fork", "scope" or "instance" */
    char *sandbox;            /* "strict" or "none" */
    int64_t spare;            /* copies that wait for a job */
    int64_t recycle_jobs;     /* scope: of one instance */
    int64_t max_forks;        /* of one server, 0 = no bound */
    int64_t max_age_ms;       /* of one server, 0 = no bound */
    int64_t max_memory_bytes; /* of one server, 0 = no bound */
    int64_t start_timeout_ms;
    int64_t result_max_bytes;
    char *hash_seed; /* NULL = random for each server, or a number */
    bool named;      /* mandor.yaml has it: its server is started before the first job */
};
/* 0 or -ENOMEM. */
MUST_CHECK int python_runtime_copy(const struct python_runtime *from, struct python_runtime *to);
bool python_runtime_same(const struct python_runtime *a, const struct python_runtime *b);
void python_runtime_done(struct python_runtime *runtime);
/* Does the runtime name this package, extras included ("Pandas" is "pandas", "pandas" is in "pandas[excel]")?  false also where the text is
 * no name. */
bool python_runtime_offers(const struct python_runtime *runtime, const char *package);

struct python_options {
    char *store; /* absolute; NULL = none: runtimes have no packages */
    char *node;  /* program; NULL = the one that was installed with mandor, else `node` in PATH */
    struct python_runtime *runtimes;
    size_t runtime_count; /* `default` is among them */
};
void python_options_done(struct python_options *options);

#endif

/* module.h - back ends with heavy libraries, loaded when they are first asked for.
 *
 * Linking a network client into the program makes every start pay for it, `mandor ls` of a local queue too.  So what needs one
 * is a shared object of its own beside the program.  modules.def says which scheme is in which; a registry that does not know a
 * scheme asks here.
 *
 *     brokers.c ── module_part("broker", "streams") ──▶ dlopen(mandor-redis.so) ──▶ its table of parts ──▶ struct broker_ops
 *
 * A module uses the functions of the program that loads it; program and module must be of one build (MODULE_ABI and version
 * are compared).  What was loaded stays loaded.  Any thread.
 *
 * Where it is looked for: $MANDOR_MODULES when set (nowhere else then), the directory of the program when that is where it was built,
 * and <libdir>/mandor. */
#ifndef BASE_MODULE_H
#define BASE_MODULE_H

#include "base/err.h"
#include "base/macro.h"

#define MODULE_MAGIC 0x6d6d6f64u
#define MODULE_ABI   1 /* one more whenever a struct that modules share with the program changes */

struct module_part {
    const char *kind, *scheme; /* as in modules.def */
    const void *ops;           /* what the kind's registry lists: struct broker_ops, … */
};

/* What a module exports under the name "mandor_module". */
struct module {
    uint32_t magic, abi;
    const char *version; /* MANDOR_VERSION */
    const char *name;
    const char *libraries;           /* what it was built with, for people: "hiredis 1.2.0, TLS" */
    const struct module_part *parts; /* NULL when it has none */
    size_t part_count;
};

/* The part for the scheme of url ("streams://…", "streams+tls://…"): loads its module.
 *
 * Returns its table; or NULL with *err: -ENOENT when no module has such a scheme (the registry then complains in its own words),
 * else why the module cannot be had (FAULT_HOST). */
const void *module_part(const char *kind, const char *url, struct mandor_err *err);

/* Does modules.def have the scheme of url?  Nothing is loaded. */
bool module_has(const char *kind, const char *url);

/* Load the module by its name, for `mandor doctor`.  NULL with *err when it cannot be had. */
const struct module *module_load(const char *name, struct mandor_err *err);
/* The names in modules.def, each once; NULL behind the last. */
const char *module_name(size_t index);

#endif

/* module.c - what mandor-memcached.so has for the registries (base/module.h). */
#include <libmemcached/memcached.h>

#include "base/module.h"
#include "sink/sink_ops.h"
#include "stream/source.h"

extern const struct sink_ops sink_memcached;
extern const struct source_ops source_memcached;

static const struct module_part parts[] = {
    { "sink", "memcached", &sink_memcached },
    { "source", "memcached", &source_memcached },
};

extern const struct module mandor_module;
__attribute__((visibility("default"))) const struct module mandor_module = {
    .magic = MODULE_MAGIC,
    .abi = MODULE_ABI,
    .version = MANDOR_VERSION,
    .name = "memcached",
    .libraries = "libmemcached " LIBMEMCACHED_VERSION_STRING,
    .parts = parts,
    .part_count = ARRAY_LEN(parts),
};

/* module_redis.c - what mandor-redis.so has for the registries (base/module.h). */
#include "base/module.h"
#include "broker/broker_streams.h"
#include "broker/bullmq.h"
#include "memory/parts.h"

#ifdef HAVE_HIREDIS_SSL
#define TLS_TEXT ", TLS"
#else
#define TLS_TEXT ", no TLS"
#endif

static const struct module_part parts[] = {
    { "broker", "streams", &broker_streams },
    { "sink", "redis", &sink_redis },
    { "source", "redis", &source_redis },
    { "broker", "bullmq", &broker_bullmq },
};

extern const struct module mandor_module;
__attribute__((visibility("default"))) const struct module mandor_module = {
    .magic = MODULE_MAGIC,
    .abi = MODULE_ABI,
    .version = MANDOR_VERSION,
    .name = "redis",
    .libraries = "hiredis " HIREDIS_VERSION TLS_TEXT,
    .parts = parts,
    .part_count = ARRAY_LEN(parts),
};

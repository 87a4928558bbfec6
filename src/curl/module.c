/* module.c - what mandor-curl.so offers, see base/modules.def. */
#include "base/module.h"
#include "curl/parts.h"

static const struct module_part parts[] = {
    { "sink", "s3", &sink_s3 },         { "sink", "http", &sink_http },
    { "sink", "https", &sink_https },   { "sweeper", "s3", &sweeper_s3 },
    { "source", "s3", &source_web },    { "source", "http", &source_web },
    { "source", "https", &source_web },
};

extern const struct module mandor_module;
__attribute__((visibility("default"))) const struct module mandor_module = {
    .magic = MODULE_MAGIC,
    .abi = MODULE_ABI,
    .version = MANDOR_VERSION,
    .name = "curl",
    .libraries = "libcurl " LIBCURL_VERSION,
    .parts = parts,
    .part_count = ARRAY_LEN(parts),
};

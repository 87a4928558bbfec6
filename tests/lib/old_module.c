/* old_module.c - a module of a build that never was. */
#include "base/module.h"

extern const struct module mandor_module;
const struct module mandor_module = {
    .magic = MODULE_MAGIC, .abi = 77, .version = "0.0.1", .name = "redis", .libraries = ""
};

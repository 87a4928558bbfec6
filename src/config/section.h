/* section.h - the mappings of mandor.yaml that are more than a table of keys.  For config/ only. */
#ifndef CONFIG_SECTION_H
#define CONFIG_SECTION_H

#include "config/config.h"
#include "config/param.h"

/* What a queue has that says nothing else; no name, no pointers. */
extern const struct config_queue section_queue_default;

/* The runtime `default`, there in any case. */
MUST_CHECK int section_python_default(struct python_options *python, struct mandor_err *err);

param_read_fn section_queues, section_pools; /* into struct config */
param_read_fn section_python;                /* into struct python_options */
param_read_fn section_runtimes;              /* into the runtimes of struct python_options */
param_read_fn section_sinks;                 /* into struct sink_settings */

#endif

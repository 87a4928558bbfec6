/* job_option.h - job options (job/options.def) in mandor.yaml: a queue's defaults, a pool's limits.  For config/ only. */
#ifndef CONFIG_JOB_OPTION_H
#define CONFIG_JOB_OPTION_H

#include <jansson.h>

#include "config/param.h"

/* Check the option that item names on a queue and put it into defaults, an object. */
MUST_CHECK int job_option_read(const struct place *place, const struct tree_item *item,
                               json_t *defaults);

param_read_fn job_option_limits; /* into struct spec_limits */

#endif

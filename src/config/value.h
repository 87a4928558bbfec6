/* value.h - the readers of types.def for values that know nothing of jobs.  For config/ only. */
#ifndef CONFIG_VALUE_H
#define CONFIG_VALUE_H

#include "base/buf.h"
#include "config/param.h"

#define VALUE_FILE_MAX ((size_t)1 << 20) /* bytes of a configuration, of a program */

/* Into char *: text, a name out of choices, a directory that is there, one that need not be, what a file holds.
 * value_scalar is for int64_t as well. */
param_read_fn value_scalar, value_dir, value_path, value_code;
param_read_fn value_bool;              /* into bool */
param_read_fn value_keep, value_count; /* into two int64_t: age and count, least and most */
/* Into char **, NULL-terminated: texts, variables' names, a command, "NAME=value". */
param_read_fn value_list, value_names, value_words, value_vars;

/* The text of value, appended to ret. */
MUST_CHECK int value_text(const struct place *place, const struct tree *value, struct buf *ret);

#endif

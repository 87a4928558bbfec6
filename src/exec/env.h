/* env.h - what a job may see of our own environment: an allow-list (R09). */
#ifndef EXEC_ENV_H
#define EXEC_ENV_H

#include "base/macro.h"

/* PATH HOME USER LANG LC_* TZ and `names` (NULL-terminated, may be NULL), each as "NAME=value" where it is set.
 * ret: NULL-terminated, owned by the caller, words_free().  Returns 0 or -ENOMEM. */
MUST_CHECK int env_passed(char *const *names, char ***ret);

#endif

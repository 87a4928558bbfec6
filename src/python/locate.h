/* locate.h - where the fork server's program, its packages and its Node are.  Blocks; pool threads, or a command's main thread. */
#ifndef PYTHON_LOCATE_H
#define PYTHON_LOCATE_H

#include "base/err.h"
#include "base/macro.h"

/* The harness's directory: $MANDOR_ZYGOTE, beside the program, or where it was installed; node_modules/pyodide is in it.
 * *ret is malloc'ed.  0, -ENOENT with *err, or -ENOMEM. */
MUST_CHECK int locate_harness(char **ret, struct mandor_err *err);
/* Node: configured (NULL = not), the one in the harness's packages, or the first in PATH.  The same. */
MUST_CHECK int locate_node(const char *configured, const char *harness, char **ret,
                           struct mandor_err *err);

#endif

/* err.h - fill, wrap and print `struct mandor_err`.  Any thread; never allocates, never fails. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <mandor/err.h>

#include "base/macro.h"

#define FAULT_CALLER MANDOR_FAULT_CALLER
#define FAULT_JOB    MANDOR_FAULT_JOB
#define FAULT_REMOTE MANDOR_FAULT_REMOTE
#define FAULT_HOST   MANDOR_FAULT_HOST
#define FAULT_BUG    MANDOR_FAULT_BUG

/* Set *err (NULL allowed) and return code, so that `return err_set(err, -errno, FAULT_HOST, …)`.
 * code: -errno, negative.  When FAULT_HOST or FAULT_REMOTE, ": strerror(code)" is appended.
 * A message that does not fit is cut and ends in "...".  */
int err_set(struct mandor_err *err, int code, enum mandor_fault fault, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* The same, but the message is whole as it is: a server's words, or a library's, that leave the system's nothing to add. */
int err_say(struct mandor_err *err, int code, enum mandor_fault fault, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* Put "context: " before the message that is already there; code and fault are kept.
 * Returns code. */
int err_wrap(struct mandor_err *err, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

void err_clear(struct mandor_err *err);

/* The exit code of a command that ends with this error: CALLER 2, JOB 1, others 125; a few codes
 * have a place of their own: -ENOENT with CALLER is 3 (not found), -EBUSY with CALLER is 4 (refused
 * in this state), -ETIMEDOUT is 124. */
int err_exit_code(const struct mandor_err *err);

#endif

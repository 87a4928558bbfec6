/* job.h - from the command line to a job: command, working directory and URLs in the form in which a worker can use them. */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"
#include "job/spec.h"

/* Set job's "exec" from argv (bytes).  0 or -ENOMEM. */
MUST_CHECK int job_set_exec(json_t *job, char *const *argv, size_t count);

/* Text of option `key` (a job's JSON key) with a relative path in it, seen from the current directory: *ret is what it is in full,
 * malloc'ed.  *ret is left alone when the option holds no path or an absolute one.  0, -ENOMEM, or getcwd's -errno. */
MUST_CHECK int job_absolute(const char *key, const char *text, char **ret, struct mandor_err *err);

/* A missing "cwd" becomes the current directory. */
MUST_CHECK int job_default_cwd(json_t *job, struct mandor_err *err);

/* Can this spec be queued: are its URLs known, and its sinks not inherited?  -EINVAL with *err. */
MUST_CHECK int job_check(const struct spec *spec, struct mandor_err *err);
/* The same for `run`: no auto:, but inherit:. */
MUST_CHECK int job_check_run(const struct spec *spec, struct mandor_err *err);

/* Set "python" from a file of code (NULL = nothing to do; "-" is stdin) and the text of its parameters (JSON or NULL).
 * 0, -EINVAL or -ENOMEM with *err. */
MUST_CHECK int job_set_python(json_t *job, const char *file, const char *params, bool bind_params,
                              const char *runtime, struct mandor_err *err);

#endif

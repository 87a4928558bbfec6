/* url.h - the forms of sink URLs that lead elsewhere, checked without loading what serves them.  Pure. */
#ifndef SINK_URL_H
#define SINK_URL_H

#include "base/err.h"
#include "base/macro.h"

/* The whole URL.  As below; -ENOENT when it is of another scheme. */
MUST_CHECK int sink_url_check(const char *url, struct mandor_err *err);
/* The first of a job's sinks or sources (a URL, or a list of them, as spec.h has it; NULL = none) that leads elsewhere; malloc'ed, or NULL. */
char *sink_url_elsewhere(const char *urls);
/* rest: the URL behind "scheme:".  0 or -EINVAL with *err. */
MUST_CHECK int sink_url_check_s3(const char *rest, struct mandor_err *err);
MUST_CHECK int sink_url_check_http(const char *rest, struct mandor_err *err);

MUST_CHECK int sink_url_check_memcached(const char *rest, struct mandor_err *err);

#endif

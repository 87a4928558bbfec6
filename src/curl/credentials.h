/* credentials.h - the key that S3 requests are signed with, read anew for each of them, so that a file may be rotated (R92).
 * Blocking (it reads a small file): pool threads only. */
#ifndef CURL_CREDENTIALS_H
#define CURL_CREDENTIALS_H

#include "base/err.h"
#include "base/macro.h"
#include "sink/settings.h"

struct credentials {
    char *access_key, *secret_key;
    char *token; /* NULL = none */
};

/* In this order: the configuration's own keys, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN), the profile in the
 * credentials file.  0 or -errno with *err. */
MUST_CHECK int credentials_load(const struct s3_settings *settings, struct credentials *ret,
                                struct mandor_err *err);
void credentials_done(struct credentials *credentials);

/* The profile of a credentials file's text.  0, -ENOENT (no such profile, or a key is missing in it) or -ENOMEM. */
MUST_CHECK int credentials_parse(const char *text, const char *profile, struct credentials *ret);

#endif

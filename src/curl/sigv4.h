/* sigv4.h - AWS Signature Version 4 for S3 (docs: "Authenticating Requests: Using the Authorization Header").  Pure, any thread. */
#ifndef CURL_SIGV4_H
#define CURL_SIGV4_H

#include "base/buf.h"
#include "base/macro.h"

#define SIGV4_HEX     65 /* bytes of a SHA-256 in hexadecimal, with its NUL */
#define SIGV4_STAMP   17 /* "20260131T120000Z" */
#define SIGV4_MD5_HEX 33
/* What stands for the hash of an empty body. */
#define SIGV4_EMPTY   "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

struct sigv4 {
    const char *method;
    const char *path;  /* encoded with sigv4_encode(), starts with '/' */
    const char *query; /* "name=value&…", encoded and sorted by name; "" = none */
    const struct sigv4_header {
        const char *name; /* lower case, sorted */
        const char *value;
    } * headers; /* all of them are signed */
    size_t header_count;
    const char *body_sha256; /* hexadecimal */
    const char *access_key, *secret_key, *region;
    const char *service; /* "s3" */
    int64_t when_s;      /* UTC */
};

/* The value of the Authorization header; malloc'ed, NULL when out of memory. */
char *sigv4_authorization(const struct sigv4 *request);

/* RFC 3986: all but A-Z a-z 0-9 - . _ ~ becomes %XX; '/' stays when keep_slash (R90).  0 or -ENOMEM. */
MUST_CHECK int sigv4_encode(struct buf *buf, const char *text, bool keep_slash);
/* The x-amz-date of a time. */
char *sigv4_stamp(int64_t when_s, char stamp[static SIGV4_STAMP]);
/* SHA-256, and MD5, in hexadecimal.  0 or -ENOMEM. */
MUST_CHECK int sigv4_sha256(const void *bytes, size_t len, char hex[static SIGV4_HEX]);
MUST_CHECK int sigv4_md5(const void *bytes, size_t len, char hex[static SIGV4_MD5_HEX]);

#endif

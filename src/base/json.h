/* json.h - what mandor adds to jansson: errors that name the place, duplicate keys refused,
 * bytes that are not UTF-8 as {"b64": "…"}.  Any thread. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/macro.h"

static inline void json_decref_cleanup_(json_t **json)
{
    json_decref(*json);
}
#define SCOPED_JSON __attribute__((cleanup(json_decref_cleanup_), unused)) json_t

/* Parse one JSON value; duplicate keys, trailing bytes, NUL in strings and invalid UTF-8 are errors.
 * Returns 0 (*ret is a new reference) or -EINVAL with line, column and byte offset in *err, or -ENOMEM. */
MUST_CHECK int json_parse(const char *text, size_t len, json_t **ret, struct mandor_err *err);

/* In JSON text, make U+FFFD of each escape that is half a surrogate pair: strings of JavaScript and Python may hold one, UTF-8 cannot.
 * Returns whether there was one. */
bool json_mend_surrogates(char *text, size_t len);

/* Any JSON that another system wrote: numbers too long for 64 bits become reals, what is not Unicode becomes U+FFFD, of a key that is
 * there twice the last one counts.
 * New reference, or NULL and *why. */
json_t *json_load_foreign(const char *text, size_t len, json_error_t *why);

/* Append the compact text of json, members in their order.  0 or -ENOMEM, also for NULL: what a failed json_…() left. */
MUST_CHECK int json_write(struct buf *buf, const json_t *json);
/* Append text, which is UTF-8, as a JSON string.  0 or -ENOMEM. */
MUST_CHECK int json_write_text(struct buf *buf, const char *text);
MUST_CHECK int json_write_int(struct buf *buf, int64_t value);
/* The same as malloc'ed text, compact or for people; NULL when out of memory.  json_dumps() would then lose a key. */
char *json_text(const json_t *json);
char *json_text_indented(const json_t *json);

/* A JSON string when bytes are valid UTF-8 without NUL, else {"b64": "…"}.  New reference or NULL. */
json_t *json_bytes(const void *bytes, size_t len);
/* The reverse: malloc'ed bytes, NUL-terminated, *ret_len without the NUL.
 * Returns 0, -EINVAL (neither string nor {"b64"}, or bad base64; *err names what), -ENOMEM. */
MUST_CHECK int json_bytes_get(const json_t *json, char **ret, size_t *ret_len,
                              struct mandor_err *err);

/* bytes as text: invalid sequences become U+FFFD; *ret_lossy says whether any did.  malloc'ed. */
char *json_utf8_lossy(const void *bytes, size_t len, bool *ret_lossy);
/* Base64 (RFC 4648, padded), malloc'ed or NULL. */
char *json_b64(const void *bytes, size_t len);

#endif

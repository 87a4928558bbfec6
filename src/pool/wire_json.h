/* wire_json.h - just enough JSON for frames: is it valid, where is a member, what number is it; and strings out and in.
 *
 * Pure code on borrowed text, no allocation, no recursion; libc alone, as wire.h.  No tree is built: a member is found by
 * a walk over the text, which for the small payloads of CREDIT, PING and CANCEL is all that is wanted.
 */
#ifndef POOL_WIRE_JSON_H
#define POOL_WIRE_JSON_H

#include <sys/types.h>

#include "base/macro.h"

#define WIRE_JSON_DEPTH 1024 /* arrays and objects within each other */

/* A piece of JSON text: one value, without the space around it.  text is NULL for "there is none". */
struct wire_json {
    const char *text;
    size_t len;
};

/* The one value that fills text: RFC 8259, UTF-8 without lone surrogates, at most WIRE_JSON_DEPTH deep.
 * Returns 0, or -EPROTO with *ret_at (NULL allowed) at the byte that is wrong. */
MUST_CHECK int wire_json_parse(const void *text, size_t len, struct wire_json *ret, size_t *ret_at);

/* 'o' object, 'a' array, 's' string, 'n' number, 'b' true or false, '0' null; 0 for none. */
char wire_json_kind(struct wire_json value);

/* The member of an object; of a repeated key the last one counts.  value: from wire_json_parse or this.
 * none when value is no object or has no such key. */
struct wire_json wire_json_member(struct wire_json value, const char *key);

/* Walk an array: start with *at = 0.  Returns false behind the last element. */
bool wire_json_next(struct wire_json array, size_t *at, struct wire_json *ret);

/* A whole number from 0 to max, written without fraction and exponent.  Returns 0 or -EPROTO. */
MUST_CHECK int wire_json_uint(struct wire_json value, uint64_t max, uint64_t *ret);

/* Decode a string into out, always ended with NUL, cut between two characters when it is longer than size - 1 bytes.
 * out may be NULL with size 0.  Returns the bytes of the whole string, or -EPROTO when value is no string. */
ssize_t wire_json_unquote(struct wire_json value, char *out, size_t size);

/* Write text as a JSON string with its quotes, always ended with NUL, cut (and then no JSON) when size is too small.
 * Bytes that are no UTF-8 become U+FFFD.  Returns the bytes of the whole without NUL: it fits when that is < size. */
size_t wire_json_quote(const char *text, size_t len, char *out, size_t size);

#endif

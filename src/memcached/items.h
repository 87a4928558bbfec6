/* items.h - one value of any length in memcached: contract of the sink and the source `memcached://HOST[:PORT]/KEY`.
 *
 *     up to ITEM_MAX bytes   KEY                                the value itself, flags 0
 *     more                   KEY.<attempt>.<nonce>.0, .1, …     its parts
 *                            KEY                                the manifest, flags ITEM_MANIFEST: JSON {parts, bytes, xxh3, prefix},
 *                                                               written last
 *
 * Everything here blocks, with limits: pool threads only, one at a time for one struct items. */
#ifndef MEMCACHED_ITEMS_H
#define MEMCACHED_ITEMS_H

#include "base/buf.h"
#include "base/err.h"
#include "base/macro.h"

#define ITEM_MAX           ((size_t)1000000) /* bytes; with key and header below the server's 1 MiB */
#define ITEM_MANIFEST      0x6d616e64u
#define ITEM_KEY_MAX       ((size_t)200)
#define ITEM_STAGE_SECONDS 86400 /* parts live so long before the commit */
#define ITEM_WAIT_MS       5000

struct items;

/* rest: the URL behind "memcached:".  0, -EINVAL or -ENOMEM with *err. */
MUST_CHECK int items_new(const char *rest, struct items **ret, struct mandor_err *err);
void items_free(struct items *items); /* NULL allowed */
const char *items_key(const struct items *items);
/* For work_submit(): one server holds up few threads. */
uint64_t items_device(const struct items *items);
/* At most so long for each answer from now on. */
void items_wait_ms(struct items *items, int64_t ms);

/* 0 or -errno with *err.  seconds: until it expires, 0 = never. */
MUST_CHECK int items_set(struct items *items, const char *key, const void *bytes, size_t len,
                         uint32_t flags, unsigned seconds, struct mandor_err *err);
/* Append the value to buf.  -ENOENT when there is none. */
MUST_CHECK int items_get(struct items *items, const char *key, struct buf *buf, uint32_t *ret_flags,
                         struct mandor_err *err);
/* The same, and a token of just this value for items_replace(); 0 with -ENOENT. */
MUST_CHECK int items_gets(struct items *items, const char *key, struct buf *buf,
                          uint32_t *ret_flags, uint64_t *ret_token, struct mandor_err *err);
/* Set, but only in place of the value of that token (0: of none).  -EEXIST: there is another one. */
MUST_CHECK int items_replace(struct items *items, const char *key, const void *bytes, size_t len,
                             uint32_t flags, uint64_t token, struct mandor_err *err);
MUST_CHECK int items_touch(struct items *items, const char *key, unsigned seconds,
                           struct mandor_err *err);
void items_delete(struct items *items, const char *key);

struct manifest {
    int64_t parts, bytes;
    uint64_t xxh3;
    char *prefix; /* of the parts' keys */
};
MUST_CHECK int manifest_parse(const char *text, size_t len, struct manifest *ret);
char *manifest_text(const struct manifest *manifest); /* malloc'ed or NULL */

#endif

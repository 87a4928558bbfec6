/* hash.h - map from u64 or string keys to pointers.  One thread. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include "base/macro.h"

struct hash;

MUST_CHECK int hash_new(struct hash **ret); /* 0 or -ENOMEM */
struct hash *hash_free(struct hash *hash);  /* values are not touched; returns NULL */
DEFINE_CLEANUP(struct hash *, hash_free)

/* Put value (not NULL) under key; -EEXIST when taken, -ENOMEM. */
MUST_CHECK int hash_put(struct hash *hash, uint64_t key, void *value);
void *hash_get(const struct hash *hash, uint64_t key); /* or NULL */
void *hash_take(struct hash *hash, uint64_t key);      /* removed and returned, or NULL */
/* The same with text keys (copied); one hash holds one kind of key only. */
MUST_CHECK int hash_puts(struct hash *hash, const char *key, void *value);
void *hash_gets(const struct hash *hash, const char *key);
void *hash_takes(struct hash *hash, const char *key);

size_t hash_count(const struct hash *hash);
/* Call fn for every value; fn must not change the hash. */
void hash_each(const struct hash *hash, void (*fn)(void *value, void *arg), void *arg);

#endif

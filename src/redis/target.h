/* target.h - what a redis: URL of a sink or source names.
 *
 *     redis://[[user:]password@]host[:port][/db]?stream=KEY[&group=G][&max_pending=N][&maxlen=N]
 *     redis://…?key=KEY                redis://…?hash=KEY&field=F
 *
 * The keys that mandor itself makes lie in the same slot of a cluster as KEY. */
#ifndef REDIS_TARGET_H
#define REDIS_TARGET_H

#include "base/err.h"
#include "base/macro.h"
#include "redis/url.h"

enum target_kind { TARGET_STREAM, TARGET_KEY, TARGET_HASH };

struct target {
    struct redis_url url;
    enum target_kind kind;
    const char *key, *field; /* borrowed from url */
    const char *group;       /* NULL = none */
    int64_t max_pending;     /* 0 = no bound */
    int64_t maxlen;          /* 0 = not trimmed */
    char *tagged;            /* key in braces, unless it has a tag of its own: how our keys begin */
};

/* 0, -EINVAL or -ENOMEM with *err.  ret: ended by target_done(), also after a failure. */
MUST_CHECK int target_parse(const char *url, struct target *ret, struct mandor_err *err);
void target_done(struct target *target);

/* "{KEY}:mandor:<what>:<job>"; malloc'ed or NULL. */
char *target_own_key(const struct target *target, const char *what, const char *job);

#endif

/* place.h - where in mandor.yaml a reader is, so that every message can say "file:line: key: what".  For config/ only. */
#ifndef CONFIG_PLACE_H
#define CONFIG_PLACE_H

#include "base/err.h"
#include "base/macro.h"
#include "config/tree.h"

struct place {
    const char *file, *dir; /* dir: what relative paths stand below */
    int line;
    char key[160]; /* "queues.transcode.timeout" */
    struct mandor_err *err;
};

/* The place of a key below this one. */
struct place place_below(const struct place *place, const char *key, int line);

/* Walk through a mapping or a list, from i = 0: the i-th item, with its place in *ret; NULL behind the last one. */
const struct tree_item *place_item(const struct place *place, const struct tree *value, size_t i,
                                   struct place *ret);

/* Report what is wrong here.  All return the error's code, to be handed on. */
int place_bad(const struct place *place, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The same with what a function said that knows no place. */
int place_failed(const struct place *place, int code, const struct mandor_err *why);
int place_no_memory(const struct place *place);
/* key is none of the `count` known ones; the message names the nearest. */
int place_unknown(const struct place *place, const char *key, const char *const *known,
                  size_t count);

#endif

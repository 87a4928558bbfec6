/* place.c - contract in place.h. */
#include "config/place.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/units.h"

struct place place_below(const struct place *place, const char *key, int line)
{
    struct place inner = *place;

    int n = snprintf(inner.key, sizeof inner.key, "%s%s%.60s", place->key,
                     place->key[0] != '\0' ? "." : "", key);
    if (n >= (int)sizeof inner.key)
        memcpy(inner.key + sizeof inner.key - 4, "...", 4);
    inner.line = line;
    return inner;
}

const struct tree_item *place_item(const struct place *place, const struct tree *value, size_t i,
                                   struct place *ret)
{
    if (i >= value->count)
        return NULL;

    const struct tree_item *item = &value->items[i];
    if (item->key != NULL) {
        *ret = place_below(place, item->key, item->line);
    } else {
        *ret = *place;
        ret->line = item->line;
    }
    return item;
}

int place_bad(const struct place *place, const char *fmt, ...)
{
    char what[sizeof place->err->msg];

    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return err_set(place->err, -EINVAL, FAULT_CALLER, "%s:%d: %s%s%s", place->file, place->line,
                   place->key, place->key[0] != '\0' ? ": " : "", what);
}

int place_failed(const struct place *place, int code, const struct mandor_err *why)
{
    if (code == -ENOMEM) {
        if (place->err != NULL)
            *place->err = *why;
        return code;
    }
    bool goes_on = why->msg[0] == '[' || why->msg[0] == '.'; /* "env" + ".NAME: …" */
    return err_set(place->err, -EINVAL, FAULT_CALLER, "%s:%d: %s%s%s", place->file, place->line,
                   place->key, goes_on || place->key[0] == '\0' ? "" : ": ", why->msg);
}

int place_no_memory(const struct place *place)
{
    return err_set(place->err, -ENOMEM, FAULT_HOST, "read the configuration");
}

int place_unknown(const struct place *place, const char *key, const char *const *known,
                  size_t count)
{
    const char *nearest = units_nearest(key, known, count);

    return nearest != NULL ? place_bad(place, "unknown key, did you mean '%s'?", nearest)
                           : place_bad(place, "unknown key");
}

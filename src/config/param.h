/* param.h - the rows of params.def at work: a section's keys, each read by its type into the field that the row names. */
#ifndef CONFIG_PARAM_H
#define CONFIG_PARAM_H

#include "config/place.h"

enum param_section {
    SECTION_TOP,
    SECTION_QUEUE,
    SECTION_POOL,
    SECTION_PYTHON,
    SECTION_RUNTIME,
    SECTION_S3,
};

enum param_type {
#define TYPE(type, read, name) PARAM_##type,
#include "config/types.def"
#undef TYPE
};

struct param {
    enum param_section section;
    const char *key, *path; /* "weight", "queues.NAME.weight" */
    enum param_type type;
    size_t offset; /* of the field in the section's struct */
    const char *choices, *fallback, *help;
    struct {
        int64_t min, max;
    } range;
};

/* A reader: puts value into the field that param names of object, in place of what was there.
 * Returns 0, or an error with its place in *place->err. */
typedef int param_read_fn(const struct place *place, const struct param *param,
                          const struct tree *value, void *object);

/* Every row, for the manual. */
const struct param *param_rows(size_t *ret_count);
const char *param_type_name(const struct param *param);

/* The row of a section's key; NULL = it has none of that name. */
const struct param *param_find(enum param_section section, const char *key);
/* The names of a section's keys: how many of the `max` were filled in. */
size_t param_keys(enum param_section section, const char **names, size_t max);
/* Room for all keys that may stand in one mapping. */
#define PARAM_KEYS_MAX ((size_t)96)

/* Read value by the row's type into its field of object, the section's struct. */
param_read_fn param_read;
/* Read a whole mapping: every key by its row. */
MUST_CHECK int param_read_all(const struct place *place, enum param_section section,
                              const struct tree *value, void *object);
/* Give object the fallbacks of its section. */
MUST_CHECK int param_set_defaults(enum param_section section, void *object, struct mandor_err *err);

#endif

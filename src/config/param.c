/* param.c - contract in param.h. */
#include "config/param.h"

#include "config/config.h"
#include "config/job_option.h"
#include "config/section.h"
#include "config/value.h"

/* The struct that a section fills, and how the manual calls its keys. */
#define OBJECT_TOP     config
#define OBJECT_QUEUE   config_queue
#define OBJECT_POOL    pool_options
#define OBJECT_PYTHON  python_options
#define OBJECT_RUNTIME python_runtime
#define OBJECT_S3      s3_settings
#define PATH_TOP       ""
#define PATH_QUEUE     "queues.NAME."
#define PATH_POOL      "pools.NAME."
#define PATH_PYTHON    "python."
#define PATH_RUNTIME   "python.runtimes.NAME."
#define PATH_S3        "sinks.s3."

static const struct param rows[] = {
#define PARAM(section_, key_, type_, field_, choices_, fallback_, range_, help_) \
    { .section = SECTION_##section_,                                             \
      .key = key_,                                                               \
      .path = PATH_##section_ key_,                                              \
      .type = PARAM_##type_,                                                     \
      .offset = offsetof(struct OBJECT_##section_, field_),                      \
      .choices = choices_,                                                       \
      .fallback = fallback_,                                                     \
      .help = help_,                                                             \
      .range = range_ },
#include "config/params.def"
#undef PARAM
};

static const struct {
    param_read_fn *read;
    const char *name;
} types[] = {
#define TYPE(type, read_, name_) [PARAM_##type] = { .read = read_, .name = name_ },
#include "config/types.def"
#undef TYPE
};

const struct param *param_rows(size_t *ret_count)
{
    *ret_count = ARRAY_LEN(rows);
    return rows;
}

const char *param_type_name(const struct param *param)
{
    return param->choices != NULL ? param->choices : types[param->type].name;
}

const struct param *param_find(enum param_section section, const char *key)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].section == section && str_eq(rows[i].key, key))
            return &rows[i];
    return NULL;
}

size_t param_keys(enum param_section section, const char **names, size_t max)
{
    size_t count = 0;

    for (size_t i = 0; i < ARRAY_LEN(rows) && count < max; i++)
        if (rows[i].section == section)
            names[count++] = rows[i].key;
    return count;
}

int param_read(const struct place *place, const struct param *param, const struct tree *value,
               void *object)
{
    return types[param->type].read(place, param, value, object);
}

int param_read_all(const struct place *place, enum param_section section, const struct tree *value,
                   void *object)
{
    const char *known[PARAM_KEYS_MAX];
    const struct tree_item *item;
    struct place inner;

    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        const struct param *param = param_find(section, item->key);
        int r = param != NULL ? param_read(&inner, param, item->value, object)
                              : place_unknown(&inner, item->key, known,
                                              param_keys(section, known, ARRAY_LEN(known)));
        if (r < 0)
            return r;
    }
    return 0;
}

int param_set_defaults(enum param_section section, void *object, struct mandor_err *err)
{
    const struct place nowhere = { .err = err };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].section != section || strchr("({", rows[i].fallback[0]) != NULL) /* or "" */
            continue;
        const struct tree value = { .kind = TREE_SCALAR, .text = (char *)rows[i].fallback };
        int r = param_read(&nowhere, &rows[i], &value, object);
        BUG_ON(r < 0 && r != -ENOMEM); /* the table contradicts itself */
        if (r < 0)
            return r;
    }
    return 0;
}

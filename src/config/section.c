/* section.c - contract in section.h. */
#include "config/section.h"

#include "base/json.h"
#include "base/units.h"
#include "config/job_option.h"
#include "job/spec.h"

_Static_assert(offsetof(struct config_queue, keep_completed_count) ==
                       offsetof(struct config_queue, keep_completed_ms) + sizeof(int64_t) &&
                   offsetof(struct config_queue, keep_failed_count) ==
                       offsetof(struct config_queue, keep_failed_ms) + sizeof(int64_t),
               "value_keep: the count stands right behind the age");
_Static_assert(offsetof(struct pool_options, size_max) ==
                   offsetof(struct pool_options, size_min) + sizeof(int64_t),
               "value_count: the most stands right behind the least");

/* ---- queues ---- */

const struct config_queue section_queue_default = {
    .weight = 1,
    .keep_completed_ms = INT64_C(7) * 86400000,
    .keep_completed_count = 10000,
    .keep_failed_ms = INT64_C(30) * 86400000,
};

/* One name of a mapping and its value, into a zeroed row. */
typedef int read_row_fn(const struct place *place, const char *name, const struct tree *value,
                        void *row);

/* A row for each name of the mapping; *ret_count grows with each, so that what was read of a bad one is freed too. */
static int read_rows(const struct place *place, const struct tree *value, const char *what,
                     size_t size, read_row_fn *read, void **ret, size_t *ret_count)
{
    const struct tree_item *item;
    struct place inner;

    if (tree_is_null(value))
        return 0;
    if (value->kind != TREE_MAP)
        return place_bad(place, "expected a mapping of %s names", what);
    char *rows = calloc(value->count + 1, size);
    if (rows == NULL)
        return place_no_memory(place);
    *ret = rows;
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        int r = read(&inner, item->key, item->value, rows + size * (*ret_count)++);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_queue(const struct place *place, const char *name, const struct tree *value,
                      void *row)
{
    struct config_queue *queue = row;
    struct mandor_err why = { 0 };
    const struct tree_item *item;
    struct place inner;

    *queue = section_queue_default;
    queue->line = place->line;
    queue->name = strdup(name);
    queue->defaults = json_object();
    if (queue->name == NULL || queue->defaults == NULL)
        return place_no_memory(place);

    SCOPED_JSON *named = json_string(name);
    if (named == NULL)
        return place_no_memory(place);
    int r = spec_check_value("queue", named, &why);
    if (r < 0)
        return place_failed(place, r, &why);
    if (value->kind != TREE_MAP && !tree_is_null(value))
        return place_bad(place, "expected a mapping of queue keys and job options, or {}");
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        const struct param *param = param_find(SECTION_QUEUE, item->key);
        r = param != NULL ? param_read(&inner, param, item->value, queue)
                          : job_option_read(&inner, item, queue->defaults);
        if (r < 0)
            return r;
    }
    r = spec_check_defaults(queue->defaults, &why); /* what must hold between options */
    return r < 0 ? place_failed(place, r, &why) : 0;
}

int section_queues(const struct place *place, const struct param *param, const struct tree *value,
                   void *object)
{
    struct config *config = object;

    return read_rows(place, value, "queue", sizeof *config->queues, read_queue,
                     (void **)&config->queues, &config->queue_count);
}

/* ---- pools ---- */

static int read_pool(const struct place *place, const char *name, const struct tree *value,
                     void *row)
{
    struct pool_options *pool = row;
    const struct tree here = { .kind = TREE_SCALAR, .text = (char[]){ "." } };

    pool->name = strdup(name);
    if (pool->name == NULL)
        return place_no_memory(place);
    int r = param_set_defaults(SECTION_POOL, pool, place->err);
    if (r < 0)
        return r;
    if (name[0] == '\0')
        return place_bad(place, "a pool needs a name");
    if (value->kind != TREE_MAP)
        return place_bad(place,
                         "expected a mapping such as {command: [python3, worker.py], size: 4}");
    r = param_read_all(place, SECTION_POOL, value, pool);
    if (r < 0)
        return r;
    if (pool->command == NULL)
        return place_bad(place, "no command, expected one such as [python3, worker.py]");
    return pool->cwd != NULL ? 0 : param_read(place, param_find(SECTION_POOL, "cwd"), &here, pool);
}

int section_pools(const struct place *place, const struct param *param, const struct tree *value,
                  void *object)
{
    struct config *config = object;

    return read_rows(place, value, "pool", sizeof *config->pools, read_pool,
                     (void **)&config->pools, &config->pool_count);
}

/* ---- python ---- */

static int set_runtime_defaults(const char *name, struct python_runtime *runtime,
                                struct mandor_err *err)
{
    runtime->name = strdup(name);
    if (runtime->name == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    return param_set_defaults(SECTION_RUNTIME, runtime, err);
}

static int check_runtime(const struct place *place, const struct python_runtime *runtime)
{
    struct mandor_err why = { 0 };
    int64_t seed;

    if (runtime->hash_seed == NULL ||
        units_parse_int(runtime->hash_seed, 0, UINT32_MAX, &seed, &why) == 0)
        return 0;
    struct place inner = place_below(place, "hash_seed", place->line);
    return place_failed(&inner, -EINVAL, &why);
}

static int read_runtime(const struct place *place, const char *name, const struct tree *value,
                        struct python_runtime *runtime)
{
    if (name[0] == '\0' || strchr(name, '/') != NULL)
        return place_bad(place, "'%.60s' is no name of a runtime", name);
    if (value->kind != TREE_MAP && !tree_is_null(value))
        return place_bad(place, "expected a mapping such as {packages: [numpy], preload: [numpy]}");
    int r = set_runtime_defaults(name, runtime, place->err);
    runtime->named = true;
    if (r == 0)
        r = param_read_all(place, SECTION_RUNTIME, value, runtime);
    return r < 0 ? r : check_runtime(place, runtime);
}

/* The first one is `default`, which is there in any case. */
int section_runtimes(const struct place *place, const struct param *param, const struct tree *value,
                     void *object)
{
    struct python_options *python = object;
    const struct tree_item *item;
    struct place inner;

    if (tree_is_null(value))
        return 0;
    if (value->kind != TREE_MAP)
        return place_bad(place, "expected a mapping of runtime names");
    struct python_runtime *grown =
        realloc(python->runtimes, (value->count + 1) * sizeof *python->runtimes);
    if (grown == NULL)
        return place_no_memory(place);
    python->runtimes = grown;
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        struct python_runtime *runtime = python->runtimes;
        if (str_eq(item->key, runtime->name))
            python_runtime_done(runtime);
        else
            runtime = &python->runtimes[python->runtime_count++];
        *runtime = (struct python_runtime){ 0 };
        int r = read_runtime(&inner, item->key, item->value, runtime);
        if (r < 0)
            return r;
    }
    return 0;
}

int section_python(const struct place *place, const struct param *param, const struct tree *value,
                   void *object)
{
    if (value->kind != TREE_MAP && !tree_is_null(value))
        return place_bad(place, "expected a mapping such as {store: /var/lib/mandor/wheels}");
    return param_read_all(place, SECTION_PYTHON, value, (char *)object + param->offset);
}

int section_python_default(struct python_options *python, struct mandor_err *err)
{
    python->runtimes = calloc(1, sizeof *python->runtimes);
    if (python->runtimes == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    python->runtime_count = 1;
    return set_runtime_defaults("default", python->runtimes, err);
}

/* ---- sinks ---- */

int section_sinks(const struct place *place, const struct param *param, const struct tree *value,
                  void *object)
{
    static const char *const known[] = { "s3" };
    struct s3_settings *s3 =
        &((struct sink_settings *)(void *)((char *)object + param->offset))->s3;
    const struct tree_item *item;
    struct place inner;

    if (value->kind != TREE_MAP && !tree_is_null(value))
        return place_bad(place,
                         "expected a mapping such as {s3: {endpoint: \"https://s3.internal\"}}");
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        if (!str_eq(item->key, "s3"))
            return place_unknown(&inner, item->key, known, ARRAY_LEN(known));
        if (item->value->kind != TREE_MAP && !tree_is_null(item->value))
            return place_bad(&inner,
                             "expected a mapping such as {endpoint: \"https://s3.internal\"}");
        int r = param_read_all(&inner, SECTION_S3, item->value, s3);
        if (r < 0)
            return r;
        if ((s3->access_key == NULL) != (s3->secret_key == NULL))
            return place_bad(&inner, "expected access_key and secret_key together");
        if (s3->endpoint != NULL && strncmp(s3->endpoint, "https://", 8) != 0 &&
            strncmp(s3->endpoint, "http://", 7) != 0)
            return place_bad(&inner,
                             "endpoint: '%.60s': expected a URL such as https://s3.internal:9000",
                             s3->endpoint);
    }
    return 0;
}

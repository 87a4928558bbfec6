/* pools.c - all pools of a worker, by name; contract in pool.h. */
#include "pool/pool.h"

#include "base/buf.h"
#include "base/random.h"
#include "base/words.h"
#include "pool/pool_int.h"

/* ---- options ---- */

void pool_options_done(struct pool_options *options)
{
    free(options->name);
    words_free(options->command);
    words_free(options->env);
    free(options->cwd);
    free(options->user);
    free(options->contamination);
    free(options->limits_policy);
    free(options->containment);
    *options = (struct pool_options){ 0 };
}

int pool_options_copy(const struct pool_options *from, struct pool_options *to)
{
    *to = *from; /* and then everything that is not a number, come what may: nothing is shared */
    int r = word_copy(from->name, &to->name);
    r |= words_copy(from->command, &to->command);
    r |= words_copy(from->env, &to->env);
    r |= word_copy(from->cwd, &to->cwd);
    r |= word_copy(from->user, &to->user);
    r |= word_copy(from->contamination, &to->contamination);
    r |= word_copy(from->limits_policy, &to->limits_policy);
    r |= word_copy(from->containment, &to->containment);
    if (r == 0)
        return 0;
    pool_options_done(to);
    return -ENOMEM;
}

static bool same_limits(const struct spec_limits *a, const struct spec_limits *b)
{
    return a->memory_bytes == b->memory_bytes && a->pids == b->pids &&
           a->cpu_time_ms == b->cpu_time_ms && a->open_files == b->open_files &&
           a->file_size_bytes == b->file_size_bytes && !(a->cpu < b->cpu) && !(a->cpu > b->cpu);
}

bool pool_options_same(const struct pool_options *a, const struct pool_options *b)
{
    return word_same(a->name, b->name) && words_same(a->command, b->command) &&
           words_same(a->env, b->env) && word_same(a->cwd, b->cwd) && word_same(a->user, b->user) &&
           word_same(a->contamination, b->contamination) && same_limits(&a->limits, &b->limits) &&
           word_same(a->limits_policy, b->limits_policy) &&
           word_same(a->containment, b->containment) && a->size_min == b->size_min &&
           a->size_max == b->size_max && a->concurrency == b->concurrency &&
           a->max_jobs == b->max_jobs && a->max_memory_bytes == b->max_memory_bytes &&
           a->max_age_ms == b->max_age_ms && a->shrink_after_ms == b->shrink_after_ms &&
           a->hello_timeout_ms == b->hello_timeout_ms &&
           a->ping_interval_ms == b->ping_interval_ms && a->kill_after_ms == b->kill_after_ms;
}

/* ---- the list ---- */

int pools_new(uv_loop_t *loop, struct nursery *nursery, char *const *env_pass, struct pools **ret)
{
    struct pools *pools = calloc(1, sizeof *pools);

    if (pools == NULL)
        return -ENOMEM;
    *pools = (struct pools){
        .loop = loop, .nursery = nursery, .env_pass = env_pass, .random = random_seed()
    };
    list_init(&pools->list);
    *ret = pools;
    return 0;
}

static struct pool *find(const struct pools *pools, const char *name)
{
    LIST_FOREACH(pool, &pools->list, struct pool, node)
        if (!pool->closing && str_eq(pool->options.name, name))
            return pool;
    return NULL;
}

static bool is_named(const struct pool *pool, const struct pool_options *options, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(options[i].name, pool->options.name))
            return true;
    return false;
}

int pools_configure(struct pools *pools, const struct pool_options *options, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct pool *pool = find(pools, options[i].name);
        int r = pool != NULL ? pool_change(pool, &options[i]) : pool_new(pools, &options[i], &pool);
        if (r < 0)
            return r;
    }
    LIST_FOREACH(pool, &pools->list, struct pool, node)
        if (!is_named(pool, options, count) && !pool->closing)
            pool_leave(pool);
    return 0;
}

/* "'a', 'b' and 'c'", as far as it fits. */
static void list_names(const struct pools *pools, struct buf *text)
{
    LIST_FOREACH(pool, &pools->list, struct pool, node)
        if (!pool->leaving && !pool->closing)
            (void)!buf_addf(text, "%s'%s'", text->len > 0 ? ", " : "", pool->options.name);
}

struct pool *pools_find(struct pools *pools, const char *name, struct mandor_err *err)
{
    struct pool *pool = pools != NULL ? find(pools, name) : NULL;
    SCOPED_BUF names = { 0 };

    if (pool != NULL && !pool->leaving)
        return pool;
    if (pools != NULL)
        list_names(pools, &names);
    if (names.len == 0)
        (void)err_set(err, -EOPNOTSUPP, FAULT_CALLER,
                      "no pool '%.60s' here: this worker's configuration has no pools", name);
    else
        (void)err_set(err, -EOPNOTSUPP, FAULT_CALLER, "no pool '%.60s' here, expected one of %s",
                      name, names.data);
    return NULL;
}

json_t *pools_json(const struct pools *pools)
{
    json_t *list = json_array();

    LIST_FOREACH(pool, &pools->list, struct pool, node)
        (void)json_array_append_new(list, pool_json(pool));
    return list;
}

static void try_end(struct pools *pools)
{
    if (!pools->closing || !list_empty(&pools->list))
        return;
    void (*on_closed)(void *arg) = pools->on_closed;
    void *arg = pools->closed_arg;
    free(pools);
    if (on_closed != NULL)
        on_closed(arg);
}

void pools_forget(struct pools *pools, struct pool *pool)
{
    list_remove(&pool->node);
    pool_options_done(&pool->options);
    OBJ_FINI(pool);
    free(pool);
    try_end(pools);
}

void pools_close(struct pools *pools, void (*on_closed)(void *arg), void *arg)
{
    pools->closing = true;
    pools->on_closed = on_closed;
    pools->closed_arg = arg;
    LIST_FOREACH(pool, &pools->list, struct pool, node)
        pool_close(pool);
    try_end(pools);
}

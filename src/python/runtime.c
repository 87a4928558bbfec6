/* runtime.c - contract in runtime.h. */
#include "python/runtime.h"

#include "base/words.h"
#include "python/lockfile.h"

int python_runtime_copy(const struct python_runtime *from, struct python_runtime *to)
{
    *to = *from; /* and then everything that is not a number, come what may: nothing is shared */
    int r = word_copy(from->name, &to->name);
    r |= words_copy(from->packages, &to->packages);
    r |= words_copy(from->preload, &to->preload);
    r |= word_copy(from->isolation, &to->isolation);
    r |= word_copy(from->sandbox, &to->sandbox);
    r |= word_copy(from->hash_seed, &to->hash_seed);
    if (r == 0)
        return 0;
    python_runtime_done(to);
    return -ENOMEM;
}

bool python_runtime_same(const struct python_runtime *a, const struct python_runtime *b)
{
    return word_same(a->name, b->name) && words_same(a->packages, b->packages) &&
           words_same(a->preload, b->preload) && word_same(a->isolation, b->isolation) &&
           word_same(a->sandbox, b->sandbox) && a->spare == b->spare &&
           a->recycle_jobs == b->recycle_jobs && a->max_forks == b->max_forks &&
           a->max_age_ms == b->max_age_ms && a->max_memory_bytes == b->max_memory_bytes &&
           a->start_timeout_ms == b->start_timeout_ms &&
           a->result_max_bytes == b->result_max_bytes && word_same(a->hash_seed, b->hash_seed);
}

void python_runtime_done(struct python_runtime *runtime)
{
    free(runtime->name);
    words_free(runtime->packages);
    words_free(runtime->preload);
    free(runtime->isolation);
    free(runtime->sandbox);
    free(runtime->hash_seed);
    *runtime = (struct python_runtime){ 0 };
}

static bool has_extra(const struct requirement *requirement, const char *extra)
{
    const char *at = requirement->extras;

    while (at[0] != '\0' && !str_eq(at, extra))
        at += strlen(at) + 1;
    return at[0] != '\0';
}

static bool covers(const struct requirement *have, const struct requirement *want)
{
    bool all = str_eq(have->name, want->name);

    for (const char *extra = want->extras; extra[0] != '\0'; extra += strlen(extra) + 1)
        all &= has_extra(have, extra);
    return all;
}

bool python_runtime_offers(const struct python_runtime *runtime, const char *package)
{
    struct requirement want, have;
    bool found = false;

    if (requirement_parse(package, &want, NULL) < 0)
        return false;
    bool plain = want.rest[0] == '\0'; /* the store decides the version */
    for (char *const *at = runtime->packages; plain && at != NULL && *at != NULL && !found; at++)
        if (requirement_parse(*at, &have, NULL) == 0) {
            found = covers(&have, &want);
            requirement_done(&have);
        }
    requirement_done(&want);
    return found;
}

void python_options_done(struct python_options *options)
{
    for (size_t i = 0; i < options->runtime_count; i++)
        python_runtime_done(&options->runtimes[i]);
    free(options->runtimes);
    free(options->store);
    free(options->node);
    *options = (struct python_options){ 0 };
}

/* runtime.c - contract in runtime.h. */
#include "python/runtime.h"

#include "python/lockfile.h"

static void free_words(char **words)
{
    for (size_t i = 0; words != NULL && words[i] != NULL; i++)
        free(words[i]);
    free(words);
}

static bool copy_text(const char *from, char **to)
{
    *to = from != NULL ? strdup(from) : NULL;
    return from == NULL || *to != NULL;
}

static bool copy_list(char *const *from, char ***to)
{
    size_t count = 0;

    *to = NULL;
    if (from == NULL)
        return true;
    while (from[count] != NULL)
        count++;
    char **copy = calloc(count + 1, sizeof *copy);
    for (size_t i = 0; copy != NULL && i < count; i++)
        if ((copy[i] = strdup(from[i])) == NULL) {
            free_words(copy);
            return false;
        }
    *to = copy;
    return copy != NULL;
}

int python_runtime_copy(const struct python_runtime *from, struct python_runtime *to)
{
    *to = *from;
    bool done = copy_text(from->name, &to->name);
    done &= copy_list(from->packages, &to->packages);
    done &= copy_list(from->preload, &to->preload);
    done &= copy_text(from->isolation, &to->isolation);
    done &= copy_text(from->sandbox, &to->sandbox);
    done &= copy_text(from->hash_seed, &to->hash_seed);
    if (done)
        return 0;
    python_runtime_done(to);
    return -ENOMEM;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && str_eq(a, b));
}

static bool same_list(char *const *a, char *const *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    while (*a != NULL && *b != NULL && str_eq(*a, *b))
        a++, b++;
    return *a == NULL && *b == NULL;
}

bool python_runtime_same(const struct python_runtime *a, const struct python_runtime *b)
{
    return same_text(a->name, b->name) && same_list(a->packages, b->packages) &&
           same_list(a->preload, b->preload) && same_text(a->isolation, b->isolation) &&
           same_text(a->sandbox, b->sandbox) && a->spare == b->spare &&
           a->recycle_jobs == b->recycle_jobs && a->max_forks == b->max_forks &&
           a->max_age_ms == b->max_age_ms && a->max_memory_bytes == b->max_memory_bytes &&
           a->start_timeout_ms == b->start_timeout_ms &&
           a->result_max_bytes == b->result_max_bytes && same_text(a->hash_seed, b->hash_seed);
}

void python_runtime_done(struct python_runtime *runtime)
{
    free(runtime->name);
    free_words(runtime->packages);
    free_words(runtime->preload);
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

/* env.c - contract in env.h. */
#include "exec/env.h"

#include "base/words.h"

extern char **environ;

static bool named(const char *entry, const char *name)
{
    size_t len = strlen(name);
    return strncmp(entry, name, len) == 0 && entry[len] == '=';
}

static bool allowed(const char *entry, char *const *names)
{
    static const char *const always[] = { "PATH", "HOME", "USER", "LANG", "TZ" };

    if (strncmp(entry, "LC_", 3) == 0)
        return true;
    for (size_t i = 0; i < ARRAY_LEN(always); i++)
        if (named(entry, always[i]))
            return true;
    for (; names != NULL && *names != NULL; names++)
        if (named(entry, *names))
            return true;
    return false;
}

int env_passed(char *const *names, char ***ret)
{
    size_t count = 0, used = 0;

    while (environ != NULL && environ[count] != NULL)
        count++;
    char **env = calloc(count + 1, sizeof *env);
    if (env == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        if (!allowed(environ[i], names))
            continue;
        if ((env[used] = strdup(environ[i])) == NULL) {
            words_free(env);
            return -ENOMEM;
        }
        used++;
    }
    *ret = env;
    return 0;
}

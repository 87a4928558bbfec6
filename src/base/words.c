/* words.c - contract in words.h. */
#include "base/words.h"

int word_copy(const char *from, char **ret)
{
    *ret = from != NULL ? strdup(from) : NULL;
    return from != NULL && *ret == NULL ? -ENOMEM : 0;
}

int words_copy(char *const *from, char ***ret)
{
    size_t count = 0;

    *ret = NULL;
    if (from == NULL)
        return 0;
    while (from[count] != NULL)
        count++;
    char **copy = calloc(count + 1, sizeof *copy);
    for (size_t i = 0; copy != NULL && i < count; i++)
        if ((copy[i] = strdup(from[i])) == NULL) {
            words_free(copy);
            return -ENOMEM;
        }
    *ret = copy;
    return copy != NULL ? 0 : -ENOMEM;
}

bool word_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && str_eq(a, b));
}

bool words_same(char *const *a, char *const *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    while (*a != NULL && *b != NULL && str_eq(*a, *b))
        a++, b++;
    return *a == NULL && *b == NULL;
}

void words_free(char **words)
{
    for (size_t i = 0; words != NULL && words[i] != NULL; i++)
        free(words[i]);
    free(words);
}

/* words.h - texts, and NULL-terminated lists of texts, all malloc'ed.  NULL is a text or a list, too: none. */
#ifndef BASE_WORDS_H
#define BASE_WORDS_H

#include "base/macro.h"

/* *ret is always set, to NULL on failure.  0 or -ENOMEM. */
MUST_CHECK int word_copy(const char *from, char **ret);
MUST_CHECK int words_copy(char *const *from, char ***ret);
bool word_same(const char *a, const char *b);
bool words_same(char *const *a, char *const *b);
void words_free(char **words);

#endif

/* macro.c - how a broken invariant ends the process. */
#include "base/errout.h"

#include <stdio.h>

void bug_at(const char *file, int line, const char *what)
{
    char text[512];
    int n = snprintf(text, sizeof text, "mandor: bug at %s:%d: %s\n", file, line, what);

    errout_flush(200); /* what led to it */
    if (n > 0)
        (void)!write(STDERR_FILENO, text, MIN((size_t)n, sizeof text - 1));
    abort();
}

/* bench.h - what the baselines share: clocks, CPU time, giving up.  They are programs of one page: an error ends them. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static inline int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double seconds_since(int64_t start_ns)
{
    return (double)(now_ns() - start_ns) / 1e9;
}

_Noreturn static inline void give_up(const char *what)
{
    (void)fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* A decimal number of an argument, at least 1. */
static inline int64_t number(const char *text)
{
    char *end;

    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || n < 1) {
        (void)fprintf(stderr, "bench: '%s' is not a number >= 1\n", text);
        exit(2);
    }
    return n;
}

#endif

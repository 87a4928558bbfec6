/* pattern.h - a mebibyte in which no two blocks are alike; streams of benchmarks repeat it. */
#ifndef BENCH_PATTERN_H
#define BENCH_PATTERN_H

#include <stdint.h>
#include <string.h>

#define PATTERN_SIZE (1 << 20)

static inline void pattern_fill(unsigned char block[PATTERN_SIZE])
{
    uint64_t x = 88172645463325252u; /* xorshift64 */

    for (size_t i = 0; i < PATTERN_SIZE; i += sizeof x) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(block + i, &x, sizeof x);
    }
}

#endif

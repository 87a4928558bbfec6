/* random.c - contract in random.h.  xorshift64*. */
#include "base/random.h"

#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"

uint64_t random_seed(void)
{
    uint64_t seed;

    /* Early in a boot the kernel has none yet: that is not waited for. */
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed =
            (uint64_t)clock_mono_ns() ^ (uint64_t)clock_wall_ms() << 20 ^ (uint64_t)getpid() << 44;
    return seed != 0 ? seed : 1;
}

uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

double random_01(uint64_t *state)
{
    return (double)(random_next(state) >> 11) / 9007199254740992.0; /* 53 bits, as a double has */
}

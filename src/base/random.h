/* random.h - random numbers for jitter and for names that must differ: spread, not secrecy.  Any thread, each with a state of its own. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

/* A state to begin with, never 0. */
uint64_t random_seed(void);
uint64_t random_next(uint64_t *state);
/* Uniform in [0, 1). */
double random_01(uint64_t *state);

#endif

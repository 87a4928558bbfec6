/* places.c - loaded before Node's first instruction (LD_PRELOAD, src/python/server.c), so that its memory lies close together.
 *
 * V8 asks for each of its pages at a random place below 2^46, which gives each of them a mapping and page tables of its own: more work
 * for a fork, and more for the end of a copy, than what is in them.  Where those places are taken, the kernel puts the pages side by
 * side.  Nothing is ever there; what is reserved costs nothing. */
#include <stdint.h>
#include <sys/mman.h>

static __attribute__((constructor)) void take_random_places(void)
{
    const uintptr_t first = (uintptr_t)1 << 36, end = (uintptr_t)1 << 46;

    (void)mmap((void *)first, end - first, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
}

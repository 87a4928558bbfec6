/* probe.h - the parts of contain_probe() that a nursery uses at its own start. */
#ifndef CHILD_PROBE_H
#define CHILD_PROBE_H

#include "child/contain.h"

/* thorough: make a PID namespace to see whether that works, although version 2 cgroups do. */
void probe_host(struct contain_host *ret, bool thorough);

/* Is word in a list separated by blanks? */
bool probe_word(const char *list, const char *word);

/* Can the version 2 cgroup `own` pass its controllers on?  If not, `why` says what is in the way. */
bool probe_can_delegate(const char *own, char *why, size_t size);

#endif

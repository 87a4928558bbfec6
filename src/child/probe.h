/* probe.h - the parts of contain_probe() that a nursery uses at its own start. */
#ifndef CHILD_PROBE_H
#define CHILD_PROBE_H

#include "child/contain.h"

/* name: the first version 2 cgroup that is made is the directory of this name below the own one, and stays when that hierarchy
 * is usable.  NULL: a directory of the probe's own, and everything is tried: each controller, and a PID namespace although
 * version 2 cgroups do. */
void probe_host(struct contain_host *ret, const char *name);

/* Is word in a list separated by blanks? */
bool probe_word(const char *list, const char *word);

#endif

/* contain.h - what holds all processes of one attempt together, so that all of them can be found and killed.
 *
 *   rung     how                                              kills by
 *   cgroup   one cgroup v2 (and v1 ones for limits) a slot    cgroup.kill
 *   pidns    a keeper process, init of a PID namespace        SIGKILL to the keeper
 *   group    session + subreaper                              sweep over children until none is left
 *   strict   cgroup and pidns together
 *
 * Slots are taken from and given back to a yard.  A slot that ended empty by itself serves the next attempt; one in which
 * something was killed is thrown away (Linux 6.18 kills whatever is cloned into a cgroup after cgroup.kill).
 */
#ifndef CHILD_CONTAIN_H
#define CHILD_CONTAIN_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"
#include "job/spec.h"

/* What this host can do, found once at start (`mandor doctor` prints it).
 * memory, pids, cpu: a v1 hierarchy, or the v2 one when the controller is there. */
struct contain_host {
    struct contain_hierarchy {
        bool mounted, usable; /* usable: a child cgroup could be made and removed */
        char base[512];       /* this process's own cgroup directory in that hierarchy */
        char why[200];        /* why not usable */
    } v2, memory, pids, cpu;
    bool memory_is_v2, pids_is_v2, cpu_is_v2;
    bool cgroup_kill;       /* cgroup.kill exists (Linux 5.14) */
    bool clone_into_cgroup; /* clone3 CLONE_INTO_CGROUP works (Linux 5.7) */
    bool pidns;             /* a PID namespace with its own /proc can be made */
    char pidns_why[200];
    enum spec_containment automatic; /* what `auto` means here */
};
/* Blocking.  MANDOR_CONTAINMENT (a hidden environment variable for tests: cgroup, pidns, group, strict) narrows what is found. */
void contain_probe(struct contain_host *ret);

#endif

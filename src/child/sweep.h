/* sweep.h - the weakest rung: find the processes of an attempt when nothing holds them together but their descent.
 *
 * Members are found (a) as descendants of the leader while it lives, and (b) among the processes that were re-parented to us: those
 * whose session is one that a member had, that were seen as members before, or that carry the attempt's TMPDIR in their first
 * environment.  (c) When no other attempt of this rung is alive, all remaining orphans are its own.
 * What this cannot do: a process that leaves its session, wipes its environment and outlives its parents while *another*
 * attempt of this rung is alive is found only when that other one ends.  cgroups and PID namespaces have no such hole.
 */
#ifndef CHILD_SWEEP_H
#define CHILD_SWEEP_H

#include "base/macro.h"
#include "child/kin.h"
#include "os/proc.h"

/* Members that are not reaped, each by a pidfd that was opened before the process was looked at: as long as that one is not reaped its number is
 * nobody else's (R18).  A start time in /proc tells less: it counts hundredths of a second. */
struct sweep_list {
    struct sweep_member {
        pid_t pid;
        int pidfd;
        uint64_t serial; /* grows with each that is found */
        bool dead;       /* a zombie, whose number is its own until it is reaped */
        bool stopped;    /* we sent it SIGSTOP */
    } * member;
    size_t count, cap;
    uint64_t next_serial;
};

struct sweep_target {
    struct kinship *kinship;
    const _Atomic int64_t *attempts; /* alive in this rung, this one among them */
    char *mark;                      /* "TMPDIR=/…/1.2.tmp" */
    /* Orphans come to us; otherwise all of /proc is searched for session and mark. */
    bool subreaper;
    struct sweep_list seen;    /* the leader, and members of earlier walks */
    struct proc_pids sessions; /* theirs */
};

void sweep_done(struct sweep_target *target);
/* The leader has been cloned: its number and (borrowed) pidfd.  0 or -errno. */
MUST_CHECK int sweep_aim(struct sweep_target *target, pid_t leader, int pidfd);

/* How many members are alive (no zombies), or -EAGAIN when none was found but somebody of it died under our eyes, so that its heir may be
 * alive (a process that always forks and leaves is never there when it is looked at), or -errno.  Killer thread. */
int sweep_count(struct sweep_target *target);

/* SIGTERM to each member once; returns how many, or -errno. */
int sweep_terminate(struct sweep_target *target);

/* Stop all members until no new one appears, then SIGKILL them, repeated for a short while; returns how many were found alive
 * at first, 0 when it is certain that there was none, -EAGAIN (nobody seen, not certain) or -errno. */
int sweep_kill(struct sweep_target *target);

/* Kill and reap all children of this process until it has none.  For the guard: blocking, without an end if one cannot die. */
void sweep_own_children(void);

/* Kill every process that was started with an environment variable that begins with `mark`; returns how many there were, or -errno. */
int sweep_marked(const char *mark);

#endif

/* proc.h - what /proc says of processes.  Reads block for a moment: never on the loop thread. */
#ifndef OS_PROC_H
#define OS_PROC_H

#include <sys/types.h>

#include "base/macro.h"

struct proc_stat {
    pid_t pid, ppid, pgid, sid;
    char state; /* of the leading thread: R S D T Z … */
    int threads;
    uint64_t start_ticks; /* since boot; pid and start together name a process for ever */
};

/* Parse the text of /proc/PID/stat.  0 or -EINVAL.  The name in it may hold spaces and parentheses. */
MUST_CHECK int proc_stat_parse(const char *text, struct proc_stat *ret);

/* 0, -ESRCH (gone) or -errno. */
MUST_CHECK int proc_stat_read(pid_t pid, struct proc_stat *ret);

/* Is nothing of it alive any more?  A process whose leading thread has exited shows as Z while other threads run on. */
bool proc_stat_dead(const struct proc_stat *stat);

/* A list of pids that grows; all zero is empty. */
struct proc_pids {
    pid_t *pid;
    size_t count, cap;
};
MUST_CHECK int proc_pids_add(struct proc_pids *pids, pid_t pid); /* 0 or -ENOMEM */
bool proc_pids_has(const struct proc_pids *pids, pid_t pid);
void proc_pids_done(struct proc_pids *pids);

/* Append the children of all threads of pid.  The list may miss one while others exit (proc_pid_children(5)): repeat
 * until it is stable.  0 or -errno; a process that is gone has no children. */
MUST_CHECK int proc_children(pid_t pid, struct proc_pids *pids);

/* Append every process of this PID namespace. */
MUST_CHECK int proc_all(struct proc_pids *pids);

/* Does the environment that pid was started with have a variable that begins with prefix ("TMPDIR=/x/")? */
bool proc_environ_has(pid_t pid, const char *prefix);

/* Does a line of /proc/PID/cgroup contain text? */
bool proc_cgroup_has(pid_t pid, const char *text);

#endif

/* pidfd.h - processes by descriptor: the only safe name of a process that may already be gone.  Any thread. */
#ifndef OS_PIDFD_H
#define OS_PIDFD_H

#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>

#include "base/macro.h"

/* Returns a descriptor (O_CLOEXEC) or -errno (-ESRCH: no such process). */
MUST_CHECK int os_pidfd_open(pid_t pid);

/* 0 (a zombie takes it without effect), -ESRCH when it was reaped, or -errno. */
int os_pidfd_signal(int pidfd, int sig);

/* Wait for the process behind pidfd, a child of ours, and take it out of the process table.
 * ret_usage: its resources and those of the descendants it waited for; may be NULL.
 * Returns 1 (reaped, *ret filled), 0 (still running; with block false only), -ECHILD or -errno. */
int os_pidfd_reap(int pidfd, bool block, siginfo_t *ret, struct rusage *ret_usage);

/* Find any dead child without reaping it.  Returns its pid, 0 (none is dead), or -errno (-ECHILD: no child at all). */
MUST_CHECK pid_t os_find_dead_child(void);

/* Reap a child that nobody keeps a pidfd of (an adopted orphan).  1, 0 (not dead) or -errno. */
int os_reap_pid(pid_t pid);

#endif

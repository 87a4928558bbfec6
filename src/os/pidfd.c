/* pidfd.c - contract in pidfd.h. */
#include "os/pidfd.h"

#include <signal.h>
#include <sys/syscall.h>

int os_pidfd_open(pid_t pid)
{
    long fd = syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : (int)fd;
}

int os_pidfd_signal(int pidfd, int sig)
{
    return syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) < 0 ? -errno : 0;
}

/* The raw call has a fifth argument, rusage, that waitid(3) hides. */
static int wait_raw(int idtype, int id, int options, siginfo_t *info, struct rusage *usage)
{
    info->si_pid = 0;
    long r = RETRY_EINTR(syscall(SYS_waitid, idtype, id, info, options, usage));
    return r < 0 ? -errno : 0;
}

int os_pidfd_reap(int pidfd, bool block, siginfo_t *ret, struct rusage *ret_usage)
{
    siginfo_t info = { 0 };
    struct rusage usage = { 0 };
    int r = wait_raw(P_PIDFD, pidfd, WEXITED | (block ? 0 : WNOHANG), &info, &usage);
    if (r < 0)
        return r;
    if (info.si_pid == 0)
        return 0;

    *ret = info;
    if (ret_usage != NULL)
        *ret_usage = usage;
    return 1;
}

pid_t os_find_dead_child(void)
{
    siginfo_t info = { 0 };
    int r = wait_raw(P_ALL, 0, WEXITED | WNOHANG | WNOWAIT, &info, NULL);
    return r < 0 ? r : info.si_pid;
}

int os_reap_pid(pid_t pid)
{
    siginfo_t info = { 0 };
    int r = wait_raw(P_PID, pid, WEXITED | WNOHANG, &info, NULL);
    return r < 0 ? r : info.si_pid != 0;
}

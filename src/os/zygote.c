/* zygote.c - contract in zygote.h. */
#include "os/zygote.h"

#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/clock.h"

static int ask(int control_fd, const struct zygote_request *request, const int *fds,
               size_t fd_count)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(ZYGOTE_FDS_MAX * sizeof(int))];
    } control = { .space = { 0 } };
    struct iovec iov = { .iov_base = (void *)(uintptr_t)request, .iov_len = sizeof *request };
    struct msghdr message = { .msg_iov = &iov,
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = CMSG_SPACE(fd_count * sizeof(int)) };
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);

    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    memcpy(CMSG_DATA(part), fds, fd_count * sizeof(int));
    return RETRY_EINTR(sendmsg(control_fd, &message, MSG_NOSIGNAL)) < 0 ? -errno : 0;
}

/* One message; its pidfd or -1. */
static int hear(int control_fd, struct zygote_reply *ret, int *ret_pidfd)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = { .iov_base = ret, .iov_len = sizeof *ret };
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };

    *ret_pidfd = -1;
    ssize_t n = RETRY_EINTR(recvmsg(control_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT));
    if (n <= 0)
        return n == 0 || errno == ECONNRESET ? -EPIPE : -errno;
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    if (part != NULL && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
        memcpy(ret_pidfd, CMSG_DATA(part), sizeof *ret_pidfd);
    if ((size_t)n == sizeof *ret && ret->magic == ZYGOTE_MAGIC)
        return 0;
    if (*ret_pidfd >= 0)
        (void)close(*ret_pidfd);
    return -EPROTO;
}

/* fdinfo(5) of a pidfd names the process in our own PID namespace.  The server's number for it may be another one. */
static int pid_behind(int pidfd, pid_t *ret)
{
    char path[40], line[64];
    int pid = 0;

    (void)snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -errno;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Pid: %d", &pid) == 1)
            break;
    (void)fclose(file);
    *ret = (pid_t)MAX(pid, 0);
    return 0;
}

int os_zygote_fork(int control_fd, const struct zygote_request *request, const int *fds,
                   size_t fd_count, int timeout_ms, pid_t *ret_pid, int *ret_pidfd)
{
    int64_t until = clock_mono_ms() + timeout_ms;
    struct zygote_reply reply;
    SCOPED_FD pidfd = -1;
    int r = ask(control_fd, request, fds, fd_count);

    if (r < 0)
        return r == -ECONNRESET ? -EPIPE : r;
    for (;;) { /* an answer that comes too late for its asker is found by the next one */
        struct pollfd wait = { .fd = control_fd, .events = POLLIN };
        int left = (int)MAX(until - clock_mono_ms(), (int64_t)0);
        int n = RETRY_EINTR(poll(&wait, 1, left));
        if (n <= 0)
            return n == 0 ? -ETIMEDOUT : -errno;
        r = hear(control_fd, &reply, &pidfd);
        if (r == -EAGAIN)
            continue;
        if (r < 0)
            return r;
        if (reply.number == request->number)
            break;
        if (pidfd >= 0)
            (void)close(STEAL_FD(pidfd));
    }
    if (reply.error < 0 || pidfd < 0)
        return reply.error < 0 ? reply.error : -EPROTO;
    r = pid_behind(pidfd, ret_pid);
    if (r == 0)
        *ret_pidfd = STEAL_FD(pidfd);
    return r;
}

int os_seccomp_probe(void)
{
    const uint32_t action = SECCOMP_RET_KILL_PROCESS;

    return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) < 0 ? -errno : 0;
}

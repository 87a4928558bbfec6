/* fork.c - contract in fork.h. */
#include "fork.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

/* ---- memory ---- */

/* 1 where a mapping that forks would have missed goes along now, 0 where nothing is to do, or -errno.  Memory that is shared and can be
 * written (the rings of io_uring) is no copy's: tenants would meet in it. */
static int advise(void *start, size_t len, const char *mode, bool left_out)
{
    if (mode[1] == 'w' && mode[3] == 's')
        return left_out || madvise(start, len, MADV_DONTFORK) == 0 ? 0 : -errno;
    if (!left_out)
        return 0;
    return madvise(start, len, MADV_DOFORK) < 0 ? -errno : 1;
}

int fork_prepare(void)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[4096];
    char mode[5] = "";
    unsigned long start = 0, end = 0, from, to;
    int count = 0, r = 0;

    if (file == NULL)
        return -errno;
    while (r >= 0 && fgets(line, sizeof line, file) != NULL) {
        char word[5];
        if (sscanf(line, "%lx-%lx %4s ", &from, &to, word) == 3) {
            start = from;
            end = to;
            memcpy(mode, word, sizeof mode);
        } else if (strncmp(line, "VmFlags:", 8) == 0) {
            r = advise((void *)start, end - start, mode, strstr(line, " dc") != NULL);
            count += r > 0;
        }
    }
    (void)fclose(file);
    return r < 0 ? r : count;
}

int64_t fork_data_bytes(void)
{
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, text, sizeof text - 1);
    (void)close(fd);
    if (n < 0)
        return -EIO;
    text[n] = '\0';
    const char *found = strstr(text, "VmData:");
    return found == NULL ? -ENODATA : strtoll(found + strlen("VmData:"), NULL, 10) * 1024;
}

int fork_list_fds(struct fork_fds *ret)
{
    DIR *dir = opendir("/proc/self/fd");

    if (dir == NULL)
        return -errno;
    ret->count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        int fd = atoi(entry->d_name);
        if (fd <= 3 || fd == dirfd(dir))
            continue;
        if (ret->count == FORK_FDS_MAX) {
            (void)closedir(dir);
            return -EMFILE;
        }
        ret->fd[ret->count++] = fd;
    }
    (void)closedir(dir);
    return 0;
}

/* ---- messages ---- */

static void close_all(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

/* How many descriptors a request should bring. */
static size_t fds_due(const struct zygote_request *request)
{
    return ZYGOTE_STDIO + ((request->flags & ZYGOTE_IN_CGROUP) != 0) + request->join_count;
}

/* 1 (a request), 0 (end), -EPROTO (nonsense: answered with its number) or -errno. */
static int receive(int control_fd, struct fork_copy *ret)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(ZYGOTE_FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = { .iov_base = &ret->request, .iov_len = sizeof ret->request };
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    ssize_t n;
    size_t count = 0;

    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < ZYGOTE_FDS_MAX; i++)
        ret->fds[i] = -1;
    do
        n = recvmsg(control_fd, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n < 0 ? -errno : 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part != NULL;
         part = CMSG_NXTHDR(&message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            size_t more = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(ret->fds + count, CMSG_DATA(part), more * sizeof(int));
            count += more;
        }
    if ((size_t)n != sizeof ret->request || ret->request.magic != ZYGOTE_MAGIC ||
        ret->request.join_count > ZYGOTE_JOINS_MAX || count != fds_due(&ret->request))
        return -EPROTO;
    return 1;
}

static int answer(int control_fd, uint32_t number, int error, int pidfd)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct zygote_reply reply = { .magic = ZYGOTE_MAGIC, .number = number, .error = error };
    struct iovec iov = { .iov_base = &reply, .iov_len = sizeof reply };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

    if (pidfd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(part), &pidfd, sizeof pidfd);
    }
    ssize_t n;
    do
        n = sendmsg(control_fd, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

/* ---- the clone ---- */

struct clone3_args { /* clone3(2); the header's name differs between releases */
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup;
};

/* Where clone3(2) is refused by a filter: clone(2), whose CLONE_PIDFD uses the place of parent_tid; the cgroup is joined later. */
static long clone_old(uint64_t flags, int *ret_pidfd, int *tid)
{
    flags &= ~(uint64_t)CLONE_INTO_CGROUP;
#if defined(__aarch64__)
    return syscall(SYS_clone, flags, 0, ret_pidfd, 0, tid);
#else
    return syscall(SYS_clone, flags, 0, ret_pidfd, tid, 0);
#endif
}

/* A copy of this process and this thread, as a child of our parent: its exit signal is ours.  glibc keeps the thread's number, so
 * the kernel writes the new one to where it writes a thread's end. */
static long clone_copy(struct fork_copy *copy, int *ret_pidfd)
{
    int *tid = NULL;
    int cgroup = (copy->request.flags & ZYGOTE_IN_CGROUP) != 0 ? copy->fds[ZYGOTE_STDIO] : -1;

    (void)prctl(PR_GET_TID_ADDRESS, &tid);
    struct clone3_args args = {
        .flags = CLONE_PARENT | CLONE_PIDFD | (cgroup >= 0 ? CLONE_INTO_CGROUP : 0) |
                 (tid != NULL ? CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID : 0),
        .pidfd = (uint64_t)(uintptr_t)ret_pidfd,
        .child_tid = (uint64_t)(uintptr_t)tid,
        .cgroup = cgroup >= 0 ? (uint64_t)cgroup : 0,
    };
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0 && errno == ENOSYS)
        pid = clone_old(args.flags, ret_pidfd, tid);
    return pid < 0 ? -errno : pid;
}

int fork_serve(int control_fd, struct fork_copy *ret)
{
    for (;;) {
        int pidfd = -1;
        int r = receive(control_fd, ret);
        if (r == 0)
            _exit(0); /* nobody asks any more */
        if (r < 0 && r != -EPROTO)
            return r;

        long pid = r == -EPROTO ? r : clone_copy(ret, &pidfd);
        if (pid == 0)
            return 0;
        close_all(ret->fds, ZYGOTE_FDS_MAX);
        r = answer(control_fd, ret->request.number, pid < 0 ? (int)pid : 0, pidfd);
        if (pidfd >= 0)
            (void)close(pidfd);
        if (r == -EPIPE || r == -ECONNRESET)
            _exit(0);
        if (r < 0)
            return r;
    }
}

/* ---- in a copy ---- */

static int write_text(int fd, const char *text)
{
    ssize_t n = write(fd, text, strlen(text));
    return n < 0 ? -errno : 0;
}

static int join_cgroups(struct fork_copy *copy)
{
    bool in_cgroup = (copy->request.flags & ZYGOTE_IN_CGROUP) != 0;
    const int *joins = copy->fds + ZYGOTE_STDIO + in_cgroup;

    for (uint32_t i = 0; i < copy->request.join_count; i++) {
        int r = write_text(joins[i], "0");
        if (r < 0)
            return r;
    }
    return 0;
}

static int place_stdio(struct fork_copy *copy)
{
    for (int fd = 0; fd < ZYGOTE_STDIO; fd++)
        if (dup3(copy->fds[fd], fd, 0) < 0)
            return -errno;
    close_all(copy->fds, ZYGOTE_FDS_MAX);
    return 0;
}

/* Best effort: raising it never needs a privilege. */
static int offer_to_oom_killer(struct fork_copy *copy)
{
    char text[16];
    int fd;

    if (copy->request.oom_score_adj <= 0 ||
        (fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)) < 0)
        return 0;
    (void)snprintf(text, sizeof text, "%d", (int)copy->request.oom_score_adj);
    (void)write_text(fd, text);
    (void)close(fd);
    return 0;
}

/* No core file of a tenant's memory, and nothing that grows. */
static int set_rlimits(struct fork_copy *copy)
{
    static const struct rlimit none = { 0, 0 };

    (void)copy;
    return setrlimit(RLIMIT_CORE, &none) < 0 || setrlimit(RLIMIT_FSIZE, &none) < 0 ? -errno : 0;
}

static int new_session(struct fork_copy *copy)
{
    (void)copy;
    return setsid() < 0 ? -errno : 0;
}

static int become_user(struct fork_copy *copy)
{
    const struct zygote_request *request = &copy->request;

    if ((request->flags & ZYGOTE_SET_USER) == 0)
        return 0;
    /* Not by the C library: it would tell threads that a copy does not have. */
    if (syscall(SYS_setgroups, 0, NULL) < 0 ||
        syscall(SYS_setresgid, request->gid, request->gid, request->gid) < 0 ||
        syscall(SYS_setresuid, request->uid, request->uid, request->uid) < 0)
        return -errno;
    return 0;
}

/* No right is left, whoever started us with whichever: a page of memory that copies share can be poisoned with one of them. */
static int drop_capabilities(struct fork_copy *copy)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { 0 };

    (void)copy;
    return syscall(SYS_capset, &header, none) < 0 ? -errno : 0;
}

/* After the change of user, which clears it.  The worker may have gone before it was armed. */
static int die_with_parent(struct fork_copy *copy)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return -errno;
    return getppid() == copy->request.parent ? 0 : -ESRCH;
}

int fork_settle(struct fork_copy *copy, const char **ret_step)
{
    static const struct {
        const char *name;
        int (*fn)(struct fork_copy *copy);
    } steps[] = {
        { "join the control groups", join_cgroups },
        { "make a session", new_session },
        { "place standard descriptors", place_stdio },
        { "raise oom_score_adj", offer_to_oom_killer },
        { "set resource limits", set_rlimits },
        { "become another user", become_user },
        { "drop capabilities", drop_capabilities },
        { "die with the worker", die_with_parent },
    };

    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        int r = steps[i].fn(copy);
        if (r < 0) {
            *ret_step = steps[i].name;
            return r;
        }
    }
    return 0;
}

/* keeper.c - contract in keeper.h.
 *
 * The keeper is a fork of a process with threads, so its side of this file makes raw system calls only.
 * Its conversation is one request byte and one int in return: '?' the number of processes, 'T' the result of kill(-1, SIGTERM).
 */
#include "child/keeper.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "os/pidfd.h"
#include "os/spawn.h"

#define ANSWER_WAIT_MS 200
#define BIRTH_WAIT_MS  5000

/* ---- the keeper's side ---- */

struct dirent_raw { /* getdents64(2) */
    uint64_t ino;
    int64_t off;
    unsigned short len;
    unsigned char type;
    char name[];
};

/* Entries of /proc that are numbers, without ourselves. */
CHILD_SIDE static int count_processes(void)
{
    long fd = syscall(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return -errno;

    _Alignas(8) char buffer[4096];
    int count = 0;
    for (long n; (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;)
        for (long at = 0; at < n;) {
            struct dirent_raw *entry = (void *)(buffer + at);
            if (entry->name[0] >= '1' && entry->name[0] <= '9')
                count++;
            at += entry->len;
        }
    (void)syscall(SYS_close, fd);
    /* A listing can miss what forks and leaves all the time; having no child at all is certain (ECHILD). */
    siginfo_t info;
    bool childless =
        syscall(SYS_waitid, P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL, NULL) < 0;
    return count > 1 ? count - 1 : childless ? 0 : 1;
}

extern char **environ;

/* /proc/1/environ of the namespace is the job's to read, and we are a copy of the worker: R09. */
CHILD_SIDE static void forget_environment(void)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        for (volatile char *p = *entry; *p != 0; p++)
            *p = 0;
}

CHILD_SIDE static int set_up(int socket)
{
    int r = 0;
    forget_environment();
    /* Zombies that are re-parented to us vanish by themselves: SIGCHLD is ignored. */
    struct {
        uint64_t handler, flags, restorer, mask;
    } ignore = { .handler = (uint64_t)(uintptr_t)SIG_IGN };
    if (syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 ||
        syscall(SYS_rt_sigaction, SIGCHLD, &ignore, NULL, sizeof(uint64_t)) < 0 ||
        syscall(SYS_setsid) < 0 || syscall(SYS_chdir, "/") < 0)
        r = -errno;
    (void)syscall(SYS_prctl, PR_SET_NAME, "mandor-keeper", 0, 0, 0);
    /* Nor is the rest of our copied memory a job's to read. */
    (void)syscall(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    /* What is mounted outside later appears in here; nothing of ours appears outside. */
    if (r == 0 &&
        (syscall(SYS_mount, "none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
         syscall(SYS_mount, "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0))
        r = -errno;
    /* The liveness lock, pipes, databases: none of them may be held by us. */
    if (r == 0 && (syscall(SYS_dup3, socket, 0, 0) < 0 || syscall(SYS_close_range, 1, ~0U, 0) < 0))
        r = -errno;
    return r;
}

CHILD_SIDE static void keep(void *arg)
{
    int socket = *(int *)arg;
    int answer = set_up(socket);
    bool ready = answer == 0;
    if (ready)
        socket = 0;
    for (;;) {
        if (syscall(SYS_sendto, socket, &answer, sizeof answer, MSG_NOSIGNAL, NULL, 0) < 0 ||
            !ready)
            break;
        char request = 0;
        if (syscall(SYS_recvfrom, socket, &request, 1, 0, NULL, NULL) != 1)
            break; /* whoever made us is gone */
        if (request == 'T')
            answer = syscall(SYS_kill, -1, SIGTERM) < 0 && errno != ESRCH ? -errno : 0;
        else
            answer = count_processes();
    }
    for (;;)
        (void)syscall(SYS_exit_group, 0);
}

/* ---- our side ---- */

static int await_answer(struct keeper *keeper, int wait_ms)
{
    struct pollfd ready = { .fd = keeper->socket, .events = POLLIN };
    int n = RETRY_EINTR(poll(&ready, 1, wait_ms));
    if (n <= 0)
        return n < 0 ? -errno : -ETIMEDOUT;

    int answer = 0;
    ssize_t got = RETRY_EINTR(recv(keeper->socket, &answer, sizeof answer, 0));
    return got == sizeof answer ? answer : got < 0 ? -errno : -EPIPE;
}

static int ask(struct keeper *keeper, char request)
{
    if (atomic_load(&keeper->dead))
        return -EPIPE;
    int stale; /* the answer to a question that timed out */
    while (recv(keeper->socket, &stale, sizeof stale, MSG_DONTWAIT) > 0)
        continue;
    if (RETRY_EINTR(send(keeper->socket, &request, 1, MSG_NOSIGNAL | MSG_DONTWAIT)) != 1)
        return -errno;
    return await_answer(keeper, ANSWER_WAIT_MS);
}

int keeper_new(struct kinship *kinship, struct keeper **ret, struct mandor_err *err)
{
    struct keeper *keeper = calloc(1, sizeof *keeper);
    int pair[2];
    if (keeper == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        int r = keeper == NULL ? -ENOMEM : -errno;
        free(keeper);
        return err_set(err, r, FAULT_HOST, "make a namespace keeper's socket");
    }

    struct spawn_result born;
    kin_expect(kinship);
    int r = spawn_fork(CLONE_NEWPID | CLONE_NEWNS, -1, &kinship->newborn, keep, &pair[1], &born);
    (void)close(pair[1]);
    keeper->kin = (struct kin){ .kind = KIN_KEEPER, .pid = born.pid };
    keeper->pidfd = born.pidfd;
    keeper->socket = pair[0];
    if (r == 0)
        r = kin_register(kinship, &keeper->kin);
    kin_expected_over(kinship);
    if (born.pidfd < 0) {
        (void)close(keeper->socket);
        free(keeper);
        return err_set(err, r, FAULT_HOST, "make a PID namespace");
    }

    int ready = r == 0 ? await_answer(keeper, BIRTH_WAIT_MS) : r;
    if (ready < 0) {
        (void)keeper_free(kinship, keeper);
        return err_set(err, ready, FAULT_HOST, "set up a PID namespace with its own /proc");
    }
    *ret = keeper;
    return 0;
}

int keeper_count(struct keeper *keeper)
{
    return ask(keeper, '?');
}

int keeper_terminate(struct keeper *keeper)
{
    return ask(keeper, 'T');
}

int keeper_kill(struct keeper *keeper)
{
    return atomic_load(&keeper->dead) ? 0 : os_pidfd_signal(keeper->pidfd, SIGKILL);
}

/* The number is free for others as soon as it is reaped, so it leaves the table under the same lock. */
static void keeper_reap_locked(struct kinship *kinship, struct keeper *keeper)
{
    siginfo_t info;
    if (atomic_load(&keeper->dead) || os_pidfd_reap(keeper->pidfd, false, &info, NULL) == 0)
        return;
    (void)hash_take(kinship->pids, (uint64_t)keeper->kin.pid);
    atomic_store(&keeper->dead, true);
}

bool keeper_reap(struct kinship *kinship, struct keeper *keeper, bool block)
{
    struct pollfd dead = { .fd = keeper->pidfd, .events = POLLIN };
    if (block && !atomic_load(&keeper->dead))
        (void)RETRY_EINTR(poll(&dead, 1, -1));
    (void)pthread_mutex_lock(&kinship->lock);
    keeper_reap_locked(kinship, keeper);
    (void)pthread_mutex_unlock(&kinship->lock);
    return atomic_load(&keeper->dead);
}

void *keeper_reap_pid(struct kinship *kinship, pid_t pid)
{
    void *owner = NULL;
    (void)pthread_mutex_lock(&kinship->lock);
    struct kin *kin = hash_get(kinship->pids, (uint64_t)pid);
    if (kin != NULL && kin->kind == KIN_KEEPER) {
        struct keeper *keeper = CONTAINER_OF(kin, struct keeper, kin);
        keeper_reap_locked(kinship, keeper);
        owner = keeper->owner;
    }
    (void)pthread_mutex_unlock(&kinship->lock);
    return owner;
}

struct keeper *keeper_free(struct kinship *kinship, struct keeper *keeper)
{
    if (keeper == NULL)
        return NULL;
    (void)keeper_kill(keeper);
    /* Its lock also waits for a sentinel that is looking at it. */
    (void)keeper_reap(kinship, keeper, true);
    (void)close(keeper->pidfd);
    (void)close(keeper->socket);
    free(keeper);
    return NULL;
}

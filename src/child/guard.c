/* guard.c - contract in guard.h.
 *
 *   guard ──fork──▶ worker        one SOCK_SEQPACKET pair between them
 *
 * Messages: '+' or '-' and a base text.  The worker's end closes when it dies in whatever way, and so does ours.  The worker gets a
 * process group of its own: otherwise a ^C at the terminal would reach it twice, from the terminal and from us.
 */
#include "child/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/errout.h"
#include "base/list.h"
#include "base/log.h"
#include "child/nursery.h"
#include "child/sweep.h"
#include "os/pidfd.h"

#define MESSAGE_MAX  8192
#define SEND_WAIT_MS 2000 /* a guard that does not read for so long is stopped or lost */

struct entry {
    struct list node;
    char text[];
};

struct guard {
    pid_t worker;
    int pidfd, link, signals;
    struct list bases;
    bool reaped;
    siginfo_t end; /* the worker's */
};

static const int relayed[] = {
    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT
};

static sigset_t relayed_set(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(relayed); i++)
        (void)sigaddset(&set, relayed[i]);
    return set;
}

/* ---- the guard's side ---- */

static void take_message(struct guard *guard, const char *text, size_t len)
{
    LIST_FOREACH(entry, &guard->bases, struct entry, node)
        if (strlen(entry->text) == len - 1 && memcmp(entry->text, text + 1, len - 1) == 0) {
            if (text[0] == '-') {
                list_remove(&entry->node);
                free(entry);
            }
            return;
        }
    if (text[0] != '+')
        return;
    struct entry *entry = malloc(sizeof *entry + len);
    if (entry == NULL)
        return; /* the sweep over our own children remains */
    memcpy(entry->text, text + 1, len - 1);
    entry->text[len - 1] = 0;
    list_push_back(&guard->bases, &entry->node);
}

/* Read what the worker registered; false at the end of the link. */
static bool read_link(struct guard *guard)
{
    char text[MESSAGE_MAX];
    for (;;) {
        ssize_t n = RETRY_EINTR(recv(guard->link, text, sizeof text, MSG_DONTWAIT));
        if (n > 0)
            take_message(guard, text, (size_t)n);
        else
            return n < 0 && errno == EAGAIN;
    }
}

static void relay(struct guard *guard)
{
    struct signalfd_siginfo info;
    while (RETRY_EINTR(read(guard->signals, &info, sizeof info)) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        (void)os_pidfd_signal(guard->pidfd, (int)info.ssi_signo);
        /* ^Z means both of us; SIGCONT is relayed when we are back. */
        if (info.ssi_signo == SIGTSTP)
            (void)kill(getpid(), SIGSTOP);
    }
}

/* Orphans come to us when the worker did not adopt them. */
static void reap(struct guard *guard)
{
    for (pid_t pid; (pid = os_find_dead_child()) > 0;) {
        if (pid != guard->worker)
            (void)os_reap_pid(pid);
        else if (os_pidfd_reap(guard->pidfd, false, &guard->end, NULL) == 1)
            guard->reaped = true;
    }
}

static void watch_worker(struct guard *guard)
{
    bool linked = true;
    while (!guard->reaped) {
        struct pollfd fds[] = {
            { .fd = guard->pidfd, .events = POLLIN },
            { .fd = guard->signals, .events = POLLIN },
            { .fd = linked ? guard->link : -1, .events = POLLIN },
        };
        (void)poll(fds, ARRAY_LEN(fds), -1);
        if (fds[1].revents != 0)
            relay(guard);
        if (fds[2].revents != 0)
            linked = read_link(guard);
        reap(guard);
    }
    if (linked)
        (void)read_link(guard); /* what it registered in its last moment */
}

static void empty_bases(struct guard *guard)
{
    LIST_FOREACH(entry, &guard->bases, struct entry, node) {
        struct mandor_err err;
        int r;
        while ((r = nursery_empty_dead(entry->text, &err)) == -EAGAIN)
            continue; /* the liveness lock is ours until it is true that nothing is left */
        if (r < 0) {
            (void)errout_start(); /* whoever does not read it does not hold us up */
            log_error("guard: %s", err.msg);
        }
    }
}

_Noreturn static void guard_main(struct guard *guard)
{
    (void)prctl(PR_SET_NAME, "mandor-guard", 0, 0, 0);
    /* Nobody may read our stderr any more: no reason to leave jobs behind. */
    (void)signal(SIGPIPE, SIG_IGN);
    watch_worker(guard);
    /* Orphans first: they can still write; then the cgroups, whose members may be children of ours now. */
    empty_bases(guard);
    sweep_own_children();
    errout_flush(1000);
    _exit(guard->end.si_code == CLD_EXITED ? guard->end.si_status : 128 + guard->end.si_status);
}

/* ---- both sides ---- */

static int become_worker(void)
{
    sigset_t held = relayed_set();
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return -errno;
    (void)setpgid(0, 0);
    (void)signal(SIGTTOU,
                 SIG_IGN); /* we are not the terminal's foreground group, but may write to it */
    (void)sigprocmask(SIG_SETMASK, &held, NULL);
    return 0;
}

void guard_hold(void)
{
    sigset_t held = relayed_set();
    (void)sigprocmask(SIG_BLOCK, &held, NULL);
}

void guard_listen(void)
{
    sigset_t none;
    (void)sigemptyset(&none); /* whatever our caller had blocked, we must hear of it */
    (void)pthread_sigmask(SIG_SETMASK, &none, NULL);
}

int guard_fork(int *ret_guard_fd, struct mandor_err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return err_set(err, -errno, FAULT_HOST, "make the guard's link");

    sigset_t set = relayed_set(), old;
    (void)sigaddset(&set, SIGCHLD);           /* for us: a stranger of ours has died */
    (void)sigprocmask(SIG_BLOCK, &set, &old); /* nothing is lost between fork and signalfd */
    /* Inherited as ignored it would let the kernel reap before we look. */
    (void)signal(SIGCHLD, SIG_DFL);
    pid_t worker = fork();
    if (worker == 0) {
        (void)close(pair[0]);
        int r = become_worker();
        if (r < 0)
            return err_set(err, r, FAULT_HOST, "become a subreaper");
        *ret_guard_fd = pair[1];
        return 0;
    }

    int r = worker < 0 ? -errno : 0;
    (void)close(pair[1]);
    struct guard guard = { .worker = worker, .link = pair[0] };
    list_init(&guard.bases);
    if (r == 0 && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        r = -errno;
    if (r == 0 && (guard.pidfd = os_pidfd_open(worker)) < 0)
        r = guard.pidfd;
    if (r == 0 && (guard.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        r = -errno;
    if (r == 0) {
        (void)setpgid(worker, worker); /* both sides, so that it is true whoever runs first */
        guard_main(&guard);
    }

    if (worker > 0) {
        (void)kill(worker, SIGKILL);
        (void)waitpid(worker, NULL, 0);
    }
    (void)close(pair[0]);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    return err_set(err, r, FAULT_HOST, "start the guard");
}

static int tell(int guard_fd, char sign, const char *text)
{
    char message[MESSAGE_MAX];
    int len = snprintf(message, sizeof message, "%c%s", sign, text);
    if (len >= (int)sizeof message)
        return -EMSGSIZE;

    for (;;) {
        ssize_t n = RETRY_EINTR(send(guard_fd, message, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT));
        if (n == len)
            return 0;
        if (n < 0 && errno != EAGAIN)
            return errno == ECONNRESET || errno == ENOTCONN ? -EPIPE : -errno;
        struct pollfd writable = { .fd = guard_fd, .events = POLLOUT };
        int ready = RETRY_EINTR(poll(&writable, 1, SEND_WAIT_MS));
        if (ready == 0)
            return -ETIMEDOUT;
    }
}

int guard_register(int guard_fd, const char *text)
{
    return tell(guard_fd, '+', text);
}

int guard_unregister(int guard_fd, const char *text)
{
    return tell(guard_fd, '-', text);
}

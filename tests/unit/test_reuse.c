/* test_reuse.c - a number that was ours is somebody else's now (R18): neither stop, sweep nor sentinel may hit the stranger.
 *
 *   test ── fork ── init of a PID namespace: makes strangers with the numbers that it is asked for (clone3(2), set_tid)
 *                     └─ worker: the nursery with its jobs
 */
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "../lib/family.h"
#include "base/clock.h"
#include "child/sweep.h"
#include "lib/unit.h"
#include "os/pidfd.h"

static const enum spec_containment rungs[] = { CONTAIN_CGROUP, CONTAIN_PIDNS, CONTAIN_GROUP,
                                               CONTAIN_STRICT };
#define RUNGS    ((int)ARRAY_LEN(rungs))
#define SKIPPED  77
#define STRANGER 0 /* its exit code when nobody touched it */

static struct family family;

/* ---- the namespace ---- */

/* Run body in a PID namespace of its own with its own /proc, as its init; the test fails when the body does. */
static void in_a_namespace(int (*body)(int arg), int arg)
{
    if (geteuid() != 0) {
        printf("skipped, numbers of processes can be chosen by root alone\n");
        return;
    }
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0)
            _exit(SKIPPED);
        pid_t init = fork();
        if (init == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
                mount("proc", "/proc", "proc", 0, NULL) != 0)
                _exit(SKIPPED);
            _exit(body(arg));
        }
        (void)waitpid(init, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED)
        printf("skipped, no PID namespace of our own here\n");
    else
        ck_assert_int_eq(WEXITSTATUS(status), 0);
}

/* In the worker: the nursery; it ends with the namespace. */
static void open_worker(bool adopt)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    family_open(&family, "reuse", adopt);
}

static bool can(enum spec_containment rung)
{
    bool cgroup = family.host.v2.usable, pidns = family.host.pidns;
    return rung == CONTAIN_GROUP ||
           ((rung == CONTAIN_PIDNS || cgroup) && (rung == CONTAIN_CGROUP || pidns));
}

/* A process with this number in a session of its own that lives for ms, or -errno. */
static pid_t stranger_born(pid_t number, int ms)
{
    struct clone_args args = { .exit_signal = SIGCHLD,
                               .set_tid = number > 0 ? (uintptr_t)&number : 0,
                               .set_tid_size = number > 0 };
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid != 0)
        return pid < 0 ? -errno : pid;
    (void)setsid();
    (void)poll(NULL, 0, ms);
    _exit(STRANGER);
}

/* ---- one number, taken right after the leader was reaped ---- */

static struct member member;

/* The worker: a leader that has gone and left somebody in a session of his own; then, with the number taken, everything is ended. */
static int end_what_a_leader_left(int talk, enum spec_containment rung, bool adopt)
{
    open_worker(adopt);
    if (!can(rung))
        return SKIPPED;
    member_sh(&member, &family, rung,
              "setsid sleep 600 </dev/null >/dev/null 2>&1 & setsid sleep 600 & sleep 0.1");
    member.keep = true;
    member_start(&member);
    UNTIL(&family, &member.exited);
    pid_t number = member.pid;
    char done;
    if (write(talk, &number, sizeof number) != sizeof number || read(talk, &done, 1) != 1)
        return 4;
    child_stop(member.child, CAUSE_CANCELLED, 50);
    child_empty(member.child);
    UNTIL(&family, &member.empty);
    if (marked_alive(member.mark) != 0)
        return 5;
    member_done(&member);
    family_close(&family);
    return 0;
}

static int take_the_leaders_number(int arg)
{
    enum spec_containment rung = rungs[arg / 2];
    int talk[2], status;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk) != 0)
        return 1;
    pid_t worker = fork();
    if (worker == 0)
        _exit(end_what_a_leader_left(talk[1], rung, arg % 2 == 0));
    (void)close(talk[1]);

    pid_t number, stranger;
    if (read(talk[0], &number, sizeof number) != sizeof number) {
        (void)waitpid(worker, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
    }
    if ((stranger = stranger_born(number, 600000)) != number || write(talk[0], "x", 1) != 1) {
        fprintf(stderr, "number %d: %s\n", number, strerror(-stranger));
        return 3;
    }
    while (waitpid(worker, &status, 0) != worker)
        continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 10 + WEXITSTATUS(status);
    return waitpid(stranger, &status, WNOHANG | WUNTRACED) == 0
               ? 0
               : 20; /* it lives, not even stopped */
}

TEST_EACH(whoever_gets_a_leaders_number_is_left_alone_R18, RUNGS * 2)
{
    in_a_namespace(take_the_leaders_number, _i);
}

/* ---- numbers that come back all the time ---- */

#define LOW       400 /* strangers and jobs share the numbers above */
#define HOT_MS    1200
#define AT_A_TIME 24

static void rewind_numbers(void)
{
    char text[16];
    int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
    int len = snprintf(text, sizeof text, "%d", LOW);
    (void)!write(fd, text, (size_t)len);
    (void)close(fd);
}

/* Make strangers until nobody else is left; returns how many did not end by themselves. */
static int crowd(pid_t worker, int *ret_worker)
{
    pid_t here[AT_A_TIME] = { 0 };
    int hits = 0, made = 0;
    for (unsigned i = 0;; i++) {
        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
            if (pid == worker) {
                *ret_worker = WIFEXITED(status) ? WEXITSTATUS(status) : 98;
                return made < 100 ? 1000 : hits;
            }
            for (int k = 0; k < AT_A_TIME; k++)
                if (here[k] == pid) {
                    hits += !WIFEXITED(status);
                    here[k] = 0;
                }
        }
        rewind_numbers();
        pid_t *slot = &here[i % AT_A_TIME];
        if (*slot == 0) {
            pid_t pid = stranger_born(0, (int)(i % 5));
            *slot = MAX(pid, 0);
            made += pid > 0;
        } else {
            (void)poll(NULL, 0, 1);
        }
    }
}

static const char *const churning[] = {
    "while :; do setsid true & true; done",
    "while :; do (setsid sleep 0.003 &) ; sleep 0.002; done",
    NASTY_PATH " comet; sleep 0.005",
    "true & true & true",
    "exit 0",
};

/* The worker: jobs whose processes come and go, stopped at any moment. */
static int stop_at_any_moment(enum spec_containment rung, bool adopt)
{
    open_worker(adopt);
    if (!can(rung))
        return SKIPPED;
    int64_t end = clock_mono_ms() + HOT_MS;
    for (int i = 0; clock_mono_ms() < end; i++) {
        member_sh(&member, &family, rung, churning[i % (int)ARRAY_LEN(churning)]);
        member.launch.inherit_stderr = false;
        member_start(&member);
        UNTIL(&family, &member.spawned);
        family_pass(&family, i % 7);
        if (!member.empty)
            child_stop(member.child, CAUSE_CANCELLED, i % 2 * 20);
        UNTIL(&family, &member.empty);
        member_done(&member);
    }
    family_close(&family);
    return 0;
}

static int stop_in_a_crowd(int arg)
{
    int result = 0;
    rewind_numbers();
    pid_t worker = fork();
    if (worker == 0)
        _exit(stop_at_any_moment(rungs[arg / 2], arg % 2 == 0));
    int hits = crowd(worker, &result);
    if (result == 0 && hits > 0)
        fprintf(stderr, "%d strangers were hit\n", hits);
    return result != 0 ? result : hits > 0 ? 20 : 0;
}

TEST_EACH(where_numbers_come_back_at_once_only_the_jobs_are_hit_R18, RUNGS * 2)
{
    in_a_namespace(stop_in_a_crowd, _i);
}

/* The worker of a successor: kills all that carries the mark of a dead one, while that comes and goes. */
static int sweep_all_the_time(void)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int killed = 0;
    for (int64_t end = clock_mono_ms() + HOT_MS; clock_mono_ms() < end;) {
        pid_t job = fork();
        if (job == 0) {
            char *argv[] = { (char *)(uintptr_t) "/bin/sh", (char *)(uintptr_t) "-c",
                             (char *)(uintptr_t)churning[1], NULL };
            char *envp[] = { (char *)(uintptr_t) "TMPDIR=/dead/worker/1.1.tmp",
                             (char *)(uintptr_t) "PATH=/usr/bin:/bin", NULL };
            (void)execve(argv[0], argv, envp);
            _exit(9);
        }
        (void)poll(NULL, 0, 5);
        int n;
        do
            killed += n = sweep_marked("TMPDIR=/dead/worker/");
        while (n > 0 || waitpid(job, NULL, WNOHANG) == 0);
    }
    return killed > 30 ? 0 : 6;
}

static int sweep_in_a_crowd(int arg)
{
    (void)arg;
    int result = 0;
    rewind_numbers();
    pid_t worker = fork();
    if (worker == 0)
        _exit(sweep_all_the_time());
    int hits = crowd(worker, &result);
    return result != 0 ? result : hits > 0 ? 20 : 0;
}

TEST(a_sweep_of_the_dead_hits_no_stranger_R18)
{
    in_a_namespace(sweep_in_a_crowd, _i);
}

UNIT_MAIN("reuse", .timeout_s = 300)

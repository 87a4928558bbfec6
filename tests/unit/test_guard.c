/* test_guard.c - the process above the worker: whichever of the two dies, nothing of the jobs is left a second later (I3). */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../lib/family.h"
#include "base/clock.h"
#include "base/json.h"
#include "child/guard.h"
#include "lib/unit.h"
#include "os/tree.h"

static const enum spec_containment rungs[] = { CONTAIN_CGROUP, CONTAIN_PIDNS, CONTAIN_GROUP,
                                               CONTAIN_STRICT };
#define RUNGS ((int)ARRAY_LEN(rungs))

/* What the worker tells the test. */
struct hello {
    pid_t worker;
    char base[2048];
};

struct rig {
    pid_t guard;
    struct hello hello;
    int heard; /* what the worker says afterwards */
    char mark[64], dir[64], lock[128];
};

/* ---- in the worker ---- */

static struct family family;

static void on_guard_lost(void *arg)
{
    (void)arg;
    _exit(125);
}

static void start_nursery(const struct rig *rig, int guard_fd)
{
    (void)uv_loop_init(&family.loop);
    (void)uv_timer_init(&family.loop, &family.deadline);
    char name[32];
    (void)snprintf(name, sizeof name, "guard-%d", getpid());
    struct nursery_options options = { .name = name,
                                       .scratch_dir = rig->dir,
                                       .adopt_orphans = true,
                                       .guard_fd = guard_fd,
                                       .on_guard_lost = on_guard_lost };
    struct mandor_err err = { 0 };
    if (nursery_new(&family.loop, &options, &family.nursery, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        _exit(99);
    }
    family.host = *nursery_host(family.nursery);
}

/* Jobs that cling to life, without an end: each that is over is replaced, so a kill meets every moment of a start. */
static void work(const struct rig *rig, int guard_fd, int say, enum spec_containment rung,
                 bool churn)
{
    static struct member m[8];
    static const char *const scripts[] = {
        "sleep 600 & setsid sleep 600 & wait",
        NASTY_PATH " daemon; sleep 600",
        "trap '' TERM HUP INT; sleep 600; sleep 600",
        NASTY_PATH " helpers 3; sleep 600",
        "sleep 0.02",
        "setsid sleep 600 & sleep 0.01",
        "sleep 600",
        "sleep 600",
    };
    start_nursery(rig, guard_fd);
    for (int i = 0; i < 8; i++) {
        member_sh(&m[i], &family, rung, scripts[i]);
        memcpy(m[i].mark, rig->mark, sizeof rig->mark);
        member_start(&m[i]);
    }
    for (int i = 0; i < 8; i++)
        UNTIL(&family, &m[i].spawned);
    struct hello hello = { .worker = getpid() };
    (void)snprintf(hello.base, sizeof hello.base, "%s", nursery_base_text(family.nursery));
    (void)!write(say, &hello, sizeof hello);
    (void)close(say);
    for (;;) {
        (void)uv_run(&family.loop, UV_RUN_ONCE);
        for (int i = 0; churn && i < 8; i++)
            if (m[i].empty) {
                member_done(&m[i]);
                member_sh(&m[i], &family, rung, scripts[4 + i % 2]);
                memcpy(m[i].mark, rig->mark, sizeof rig->mark);
                member_start(&m[i]);
            }
    }
}

/* ---- in the test ---- */

static int lock_of(const struct rig *rig)
{
    return open(rig->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void rig_start(struct rig *rig, enum spec_containment rung, bool churn,
                      void (*body)(const struct rig *rig, int guard_fd, int say,
                                   enum spec_containment rung, bool churn))
{
    static int count;
    memset(rig, 0, sizeof *rig);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    (void)snprintf(rig->dir, sizeof rig->dir, "/tmp/mandor-guard-%d", getpid());
    (void)mkdir(rig->dir, 0700);
    (void)snprintf(rig->lock, sizeof rig->lock, "%s/lock", rig->dir);
    (void)snprintf(rig->mark, sizeof rig->mark, "GUARD=%d.%d.", getpid(), count++);
    int pair[2];
    ck_assert_int_eq(pipe2(pair, O_CLOEXEC), 0);
    rig->guard = fork();
    if (rig->guard == 0) {
        int lock = lock_of(rig), guard_fd;
        struct mandor_err err;
        (void)flock(lock, LOCK_EX);
        (void)close(pair[0]);
        if (guard_fork(&guard_fd, &err) < 0)
            _exit(98);
        body(rig, guard_fd, pair[1], rung, churn);
        _exit(97);
    }
    (void)close(pair[1]);
    ck_assert_int_eq(read(pair[0], &rig->hello, sizeof rig->hello), sizeof rig->hello);
    rig->heard = pair[0];
}

static int wait_code(pid_t pid)
{
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* No process of the jobs is alive within a second.  On a machine that stands still now and then, or has others to run, that is no
 * matter of its clock: it is counted in looks, 5 ms apart where nothing is in the way. */
static void expect_gone(const struct rig *rig)
{
    for (int looks = 0; marked_alive(rig->mark) > 0; looks++) {
        ck_assert_msg(looks < 200, "%d alive after a second", marked_alive(rig->mark));
        (void)poll(NULL, 0, 5);
    }
}

static bool cgroup_is_gone(const struct rig *rig)
{
    SCOPED_JSON *base = NULL;
    struct stat st;
    ck_assert_int_eq(json_parse(rig->hello.base, strlen(rig->hello.base), &base, NULL), 0);
    const char *path = json_string_value(json_object_get(base, "cgroup"));
    const char *scratch = json_string_value(json_object_get(base, "scratch"));
    return (*path == 0 || stat(path, &st) != 0) && stat(scratch, &st) != 0;
}

static bool can(enum spec_containment rung)
{
    struct contain_host host;
    contain_probe(&host);
    bool ok = rung == CONTAIN_GROUP ||
              ((rung == CONTAIN_PIDNS || host.v2.usable) && (rung == CONTAIN_CGROUP || host.pidns));
    if (!ok)
        printf("skipped, no %s here\n", spec_containment_name(rung));
    return ok;
}

TEST_EACH(a_killed_worker_leaves_nothing_for_longer_than_a_second, RUNGS)
{
    if (!can(rungs[_i]))
        return;
    for (int round = 0; round < 6; round++) {
        struct rig rig;
        rig_start(&rig, rungs[_i], round > 0, work);
        until_alive(rig.mark, 6); /* spawned is not yet forked again */
        (void)poll(NULL, 0, round * 7);
        (void)kill(rig.hello.worker, SIGKILL);
        expect_gone(&rig);
        ck_assert_int_eq(wait_code(rig.guard), 128 + SIGKILL);
        ck_assert(cgroup_is_gone(&rig));
    }
}

TEST_EACH(a_killed_guard_takes_worker_and_jobs_with_it, RUNGS)
{
    if (!can(rungs[_i]))
        return;
    struct rig rig;
    rig_start(&rig, rungs[_i], true, work);
    (void)kill(rig.guard, SIGKILL);
    expect_gone(&rig);
    ck_assert_int_eq(wait_code(rig.guard), -SIGKILL);
    ck_assert_int_eq(wait_code(rig.hello.worker), 125); /* the test is the subreaper above */
    expect_gone(&rig);
    (void)poll(NULL, 0, 100); /* a start that was under way would show itself now */
    ck_assert_int_eq(marked_alive(rig.mark), 0);
    /* Empty directories are the next start's. */
    ck_assert_int_eq(nursery_empty_dead(rig.hello.base, NULL), 0);
    ck_assert(cgroup_is_gone(&rig));
}

TEST_EACH(a_successor_empties_what_both_left, RUNGS)
{
    if (!can(rungs[_i]))
        return;
    struct rig rig;
    rig_start(&rig, rungs[_i], false, work);
    (void)kill(rig.guard, SIGSTOP);
    (void)kill(rig.hello.worker, SIGKILL);
    (void)kill(rig.guard, SIGKILL);
    struct mandor_err err = { 0 };
    int r = -EAGAIN;
    while (r == -EAGAIN) /* the suite's time limit says when that is for ever */
        r = nursery_empty_dead(rig.hello.base, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    ck_assert_int_eq(marked_alive(rig.mark), 0);
    ck_assert(cgroup_is_gone(&rig));
    ck_assert_int_eq(nursery_empty_dead(rig.hello.base, &err), 0); /* idempotent */
    ck_assert_int_eq(wait_code(rig.guard), -SIGKILL);
}

TEST(the_liveness_lock_is_free_only_when_all_is_empty)
{
    struct rig rig;
    rig_start(&rig, CONTAIN_AUTO, false, work);
    int lock = lock_of(&rig);
    ck_assert_int_ne(flock(lock, LOCK_EX | LOCK_NB), 0);
    (void)kill(rig.hello.worker, SIGKILL);
    ck_assert_int_eq(flock(lock, LOCK_EX), 0); /* waits for the guard */
    ck_assert_int_eq(marked_alive(rig.mark), 0);
    (void)close(lock);
    ck_assert_int_eq(wait_code(rig.guard), 128 + SIGKILL);
}

static volatile sig_atomic_t got[65];

static int say_fd;

static void count_signal(int sig)
{
    char byte = (char)sig;
    got[sig]++;
    (void)!write(say_fd, &byte, 1);
}

/* Exits with how often SIGTERM came, plus 10 times SIGUSR1, after SIGHUP. */
static void count_signals(const struct rig *rig, int guard_fd, int say, enum spec_containment rung,
                          bool churn)
{
    (void)rig, (void)guard_fd, (void)rung, (void)churn;
    say_fd = say;
    (void)signal(SIGTERM, count_signal);
    (void)signal(SIGUSR1, count_signal);
    (void)signal(SIGHUP, count_signal);
    guard_listen();
    struct hello hello = { .worker = getpid() };
    (void)!write(say, &hello, sizeof hello);
    while (got[SIGHUP] == 0)
        (void)poll(NULL, 0, 1000);
    _exit(got[SIGTERM] + 10 * got[SIGUSR1]);
}

/* Let the worker take one signal before the next: signals of one number do not queue. */
static void settle(const struct rig *rig, int sig)
{
    char byte = 0;
    (void)kill(rig->guard, sig);
    ck_assert_int_eq(read(rig->heard, &byte, 1), 1);
    ck_assert_int_eq(byte, sig);
}

TEST(signals_reach_the_worker_once_each_and_its_code_comes_back)
{
    struct rig rig;
    rig_start(&rig, CONTAIN_AUTO, false, count_signals);
    settle(&rig, SIGTERM);
    settle(&rig, SIGTERM);
    settle(&rig, SIGUSR1);
    (void)kill(rig.guard, SIGHUP);
    ck_assert_int_eq(wait_code(rig.guard), 12);
}

TEST(a_terminal_stop_holds_both_until_they_are_continued)
{
    struct rig rig;
    rig_start(&rig, CONTAIN_AUTO, false, count_signals);
    int status = 0;
    (void)kill(rig.guard, SIGTSTP);
    ck_assert_int_eq(waitpid(rig.guard, &status, WUNTRACED), rig.guard);
    ck_assert(WIFSTOPPED(status));
    (void)kill(rig.guard, SIGCONT);
    settle(&rig, SIGTERM);
    (void)kill(rig.guard, SIGHUP);
    ck_assert_int_eq(wait_code(rig.guard), 1);
}

TEST(a_text_that_is_not_ours_empties_nothing)
{
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "{\"v\":1,\"boot\":\"x\",\"name\":\"x\",\"cgroup\":\"/sys/fs/cgroup\",\"scratch\":\"/tmp/"
        "x\",\"limits\":[]}",
        "{\"v\":1,\"boot\":\"x\",\"name\":\"x\",\"cgroup\":\"/sys/mandor-a/../b\",\"scratch\":\"/"
        "tmp/"
        "x\",\"limits\":[]}",
        "{\"v\":1,\"boot\":\"x\",\"name\":\"x\",\"cgroup\":\"\",\"scratch\":\"tmp\",\"limits\":[]}",
        "{\"v\":1,\"boot\":\"x\",\"name\":\"x\",\"cgroup\":\"\",\"scratch\":\"/tmp/"
        "y\",\"limits\":[]}",
        "{\"v\":1,\"boot\":\"x\",\"name\":\"x\",\"cgroup\":\"\",\"scratch\":\"/tmp/../"
        "x\",\"limits\":[]}",
        "{\"v\":1,\"boot\":\"x\",\"name\":\"\",\"cgroup\":\"\",\"scratch\":\"/tmp/"
        "\",\"limits\":[]}",
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct mandor_err err = { 0 };
        ck_assert_int_eq(nursery_empty_dead(texts[i], &err), -EINVAL);
        ck_assert_int_ne(err.msg[0], 0);
    }
}

static void clean_up(void)
{
    char dir[64];
    (void)snprintf(dir, sizeof dir, "/tmp/mandor-guard-%d", getpid());
    (void)tree_remove(dir);
}

UNIT_MAIN("guard", .tear_down = clean_up, .timeout_s = 300)

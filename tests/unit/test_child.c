/* test_child.c - spawn, containment, termination and reaping, each in every rung, with real processes. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/fanotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../lib/family.h"
#include "base/clock.h"
#include "base/metrics.h"
#include "child/child_int.h"
#include "os/cgroup.h"
#include "os/proc.h"

static const enum spec_containment rungs[] = { CONTAIN_CGROUP, CONTAIN_PIDNS, CONTAIN_GROUP,
                                               CONTAIN_STRICT };
#define RUNGS ((int)ARRAY_LEN(rungs))

#define LONG_MS 600000 /* a grace that no test outlasts */

static struct family family;

/* Can this rung be had here?  Says why not. */
static bool can(int rung)
{
    bool cgroup = family.host.v2.usable, pidns = family.host.pidns;
    bool yes = rungs[rung] == CONTAIN_GROUP || (rungs[rung] == CONTAIN_CGROUP && cgroup) ||
               (rungs[rung] == CONTAIN_PIDNS && pidns) ||
               (rungs[rung] == CONTAIN_STRICT && cgroup && pidns);
    if (!yes)
        printf("skipped, no %s here: %s\n", spec_containment_name(rungs[rung]),
               !cgroup ? family.host.v2.why : family.host.pidns_why);
    return yes;
}

static void set_up(void)
{
    family_open(&family, "child", true);
}

static void tear_down(void)
{
    family_close(&family);
}

static char *nasty[] = { (char *)(uintptr_t)NASTY_PATH, NULL, NULL, NULL };
static char *const *nasty_args(const char *mode, const char *number)
{
    nasty[1] = (char *)(uintptr_t)mode;
    nasty[2] = (char *)(uintptr_t)number;
    return nasty;
}

#define RUNG_TEST(name)                                  \
    static void name##_body(enum spec_containment rung); \
    START_TEST(name)                                     \
    {                                                    \
        if (can(_i))                                     \
            name##_body(rungs[_i]);                      \
    }                                                    \
    END_TEST                                             \
    static void name##_body(enum spec_containment rung)

/* ---- how a leader ends ---- */

RUNG_TEST(an_exit_code_arrives_as_it_was)
{
    static struct member m;
    member_sh(&m, &family, rung, "echo out; exit 7");
    member_run(&m);
    ck_assert_int_eq(m.verdict.cause, CAUSE_EXIT);
    ck_assert_int_eq(m.verdict.exit_code, 7);
    ck_assert_int_eq(m.verdict.signal, 0);
    ck_assert_str_eq(m.out, "out\n");
    ck_assert_int_eq(child_containment(m.child), rung);
    ck_assert_int_eq(child_descendants_killed(m.child), 0);
    ck_assert_str_eq(m.verdict.error, "exit code 7");
    member_done(&m);
}

RUNG_TEST(a_signal_arrives_as_a_signal)
{
    static struct member m;
    member_sh(&m, &family, rung, "kill -SEGV $$");
    member_run(&m);
    ck_assert_int_eq(m.verdict.cause, CAUSE_SIGNAL);
    ck_assert_int_eq(m.verdict.signal, SIGSEGV);
    ck_assert_int_eq(m.verdict.exit_code, -1);
    member_done(&m);
}

RUNG_TEST(usage_is_first_hand)
{
    static struct member m;
    member_sh(&m, &family, rung, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done");
    member_run(&m);
    ck_assert_int_ge(m.verdict.user_us + m.verdict.system_us,
                     5000); /* a short one may be put down to either as a whole */
    ck_assert_int_ge(m.verdict.wall_ms, 5);
    ck_assert_int_gt(m.verdict.max_rss_bytes, 0);
    member_done(&m);
}

/* R13 */
RUNG_TEST(two_hundred_ends_at_one_instant_are_all_seen)
{
    enum { COUNT = 200 };
    static struct member m[COUNT];
    int gate[2];
    ck_assert_int_eq(pipe2(gate, O_CLOEXEC), 0);
    for (int i = 0; i < COUNT; i++) {
        char script[64];
        static char text[COUNT][64];
        (void)snprintf(script, sizeof script, "read x <&2; exit %d", i);
        memcpy(text[i], script, sizeof script);
        member_sh(&m[i], &family, rung, text[i]);
        m[i].launch.inherit_stderr = false;
        m[i].launch.stderr_fd = gate[0];
        member_start(&m[i]);
    }
    for (int i = 0; i < COUNT; i++)
        UNTIL(&family, &m[i].spawned);
    (void)close(gate[1]);
    for (int i = 0; i < COUNT; i++)
        UNTIL(&family, &m[i].empty);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_int_eq(m[i].verdict.cause, CAUSE_EXIT);
        ck_assert_int_eq(m[i].verdict.exit_code, i);
        member_done(&m[i]);
    }
    (void)close(gate[0]);
    family_until_reaped(&family);
}

/* ---- what a job is born with ---- */

/* R02, R03 */
RUNG_TEST(no_signal_is_ignored_or_blocked_in_a_job)
{
    static struct member m;
    sigset_t some, old;
    (void)sigemptyset(&some);
    (void)sigaddset(&some, SIGTERM);
    (void)sigaddset(&some, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &some, &old);
    member_sh(&m, &family, rung, "grep -E 'Sig(Blk|Ign)|NoNewPrivs' /proc/self/status");
    member_run(&m);
    ck_assert_str_eq(m.out,
                     "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nNoNewPrivs:\t1\n");
    member_done(&m);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
}

/* R04: a descriptor of ours that somebody forgot to mark close-on-exec. */
RUNG_TEST(only_its_own_descriptors_are_open_in_a_job)
{
    static struct member m;
    int forgotten = open("/dev/null", O_RDONLY);
    member_sh(&m, &family, rung, "ls /proc/$$/fd; :");
    m.launch.inherit_stderr = false;
    m.launch.want_channel = true;
    m.launch.want_stdin = true;
    member_run(&m);
    /* No pipeline: its pipe would be among them for a moment. */
    ck_assert_str_eq(m.out, "0\n1\n2\n3\n");
    member_done(&m);
    (void)close(forgotten);
}

RUNG_TEST(the_channel_carries_bytes_and_is_named)
{
    static struct member m;
    member_sh(&m, &family, rung, "echo \"hello $MANDOR_FD\" >&$MANDOR_FD");
    m.launch.want_channel = true;
    member_run(&m);
    char text[32] = "";
    ck_assert_int_eq(read(m.pipes.channel, text, sizeof text - 1), 8);
    ck_assert_str_eq(text, "hello 3\n");
    member_done(&m);
}

/* R06 */
RUNG_TEST(the_first_soft_limit_of_open_files_comes_back)
{
    static struct member m;
    member_sh(&m, &family, rung, "ulimit -Sn");
    member_run(&m);
    char expected[32];
    struct rlimit now;
    (void)getrlimit(RLIMIT_NOFILE, &now);
    rlim_t first = family.nursery->own_nofile ? family.nursery->nofile.rlim_cur : now.rlim_cur;
    (void)snprintf(expected, sizeof expected, "%lu\n", (unsigned long)first);
    ck_assert_str_eq(m.out, expected);
    member_done(&m);
}

/* R10 */
RUNG_TEST(stdin_is_empty_and_there_is_no_terminal)
{
    static struct member m;
    member_sh(&m, &family, rung,
              "read x; echo got=$x; (: </dev/tty) 2>/dev/null || echo no tty; ps -o sid= -p $$ "
              ">/dev/null");
    member_run(&m);
    ck_assert_str_eq(m.out, "got=\nno tty\n");
    member_done(&m);
}

RUNG_TEST(each_attempt_has_fresh_directories_that_are_removed)
{
    static struct member m, n;
    member_sh(&m, &family, rung,
              "pwd; echo $TMPDIR; ls -A . $TMPDIR | wc -l; mkdir -p a/b; touch $TMPDIR/x; chmod 0 "
              "a; ln -s /etc l");
    member_run(&m);
    char pwd[256], tmp[256];
    int files;
    ck_assert_int_eq(sscanf(m.out, "%255s %255s %d", pwd, tmp, &files), 3);
    ck_assert_str_ne(pwd, tmp);
    struct stat st;
    member_sh(&n, &family, rung, "pwd");
    member_run(&n);
    while (stat(pwd, &st) == 0 ||
           stat(tmp, &st) == 0) /* the suite's time limit says when they are not */
        family_pass(&family, 5);
    ck_assert_int_eq(stat("/etc/passwd", &st), 0);
    member_done(&m);
    member_done(&n);
}

RUNG_TEST(a_job_runs_as_the_user_that_was_asked_for)
{
    if (geteuid() != 0)
        return;
    static struct member m;
    member_sh(&m, &family, rung, "id -u; id -g; touch $TMPDIR/mine && echo ok");
    m.launch.user = "65534";
    m.launch.group = "65533";
    (void)chmod(family.dir, 0755);
    (void)chmod(family.nursery->scratch.dir, 0755);
    member_run(&m);
    ck_assert_str_eq(m.out, "65534\n65533\nok\n");
    member_done(&m);
}

/* A number that the kernel takes for "unchanged", or that would be cut to root's, never runs as us. */
RUNG_TEST(a_user_number_out_of_range_is_refused)
{
    static const char *const numbers[] = { "4294967295", "4294967296", "18446744073709551616",
                                           "-0",         " 5",         "+5" };
    static struct member m;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        for (int group = 0; group < 2; group++) {
            member_sh(&m, &family, rung, "id -u");
            *(group ? &m.launch.group : &m.launch.user) = numbers[i];
            member_run(&m);
            ck_assert_int_eq(m.verdict.cause, CAUSE_SPAWN);
            ck_assert_int_eq(m.verdict.stage, STAGE_USER);
            ck_assert(spawn_errno_permanent(m.verdict.spawn_errno, m.verdict.stage));
            member_done(&m);
        }
}

/* ---- what cannot be started (R07) ---- */

struct failing {
    const char *program, *cwd;
    enum spawn_stage stage;
    int error;
    const char *says;
};
static const struct failing failing[] = {
    { "/bin/true", "/does/not/exist", STAGE_CHDIR, ENOENT, "/does/not/exist" },
    { "no-such-program", NULL, STAGE_LOOKUP, ENOENT, "no-such-program" },
    { "/no/such/program", NULL, STAGE_EXEC, ENOENT, "/no/such/program" },
    { "/etc/passwd", NULL, STAGE_EXEC, EACCES, "/etc/passwd" },
    { "/tmp", NULL, STAGE_EXEC, EACCES, "/tmp" },
};

RUNG_TEST(what_cannot_start_says_where_and_why)
{
    for (size_t i = 0; i < ARRAY_LEN(failing); i++) {
        static struct member m;
        char *argv[] = { (char *)(uintptr_t)failing[i].program, NULL };
        member_init(&m, &family, rung, argv);
        m.launch.cwd = failing[i].cwd;
        member_run(&m);
        ck_assert(!m.spawned);
        ck_assert_int_eq(m.verdict.cause, CAUSE_SPAWN);
        ck_assert_int_eq(m.verdict.stage, failing[i].stage);
        ck_assert_int_eq(m.verdict.spawn_errno, failing[i].error);
        ck_assert_int_eq(m.verdict.exit_code, -1);
        ck_assert_msg(strstr(m.verdict.error, failing[i].says) != NULL, "%s", m.verdict.error);
        member_done(&m);
    }
}

static void write_script(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

START_TEST(a_script_without_an_interpreter_is_not_given_to_a_shell)
{
    static struct member m;
    char path[128], *argv[] = { path, NULL };
    (void)snprintf(path, sizeof path, "%s/script", family.dir);
    write_script(path, "exit 0\n");
    member_init(&m, &family, CONTAIN_AUTO, argv);
    member_run(&m);
    ck_assert_int_eq(m.verdict.spawn_errno, ENOEXEC);
    member_done(&m);

    write_script(path, "#!/no/such/interpreter\n");
    member_init(&m, &family, CONTAIN_AUTO, argv);
    member_run(&m);
    ck_assert_int_eq(m.verdict.spawn_errno, ENOENT);
    ck_assert_msg(strstr(m.verdict.error, "interpreter") != NULL, "%s", m.verdict.error);
    member_done(&m);
}
END_TEST

/* R08 */
START_TEST(a_string_that_is_too_long_is_named)
{
    static struct member m;
    char *big = malloc(200001);
    memset(big, 'x', 200000);
    big[200000] = 0;
    char *argv[] = { (char *)(uintptr_t) "/bin/true", (char *)(uintptr_t) "a", big, NULL };
    member_init(&m, &family, CONTAIN_AUTO, argv);
    member_run(&m);
    ck_assert_int_eq(m.verdict.spawn_errno, E2BIG);
    ck_assert_msg(strstr(m.verdict.error, "argument 2") != NULL, "%s", m.verdict.error);
    member_done(&m);
    free(big);
}
END_TEST

START_TEST(programs_are_found_in_the_jobs_own_path)
{
    static struct member m;
    char dir[128], path[160], var[160], *argv[] = { (char *)(uintptr_t) "here", NULL };
    (void)snprintf(dir, sizeof dir, "%s/bin", family.dir);
    (void)mkdir(dir, 0755);
    (void)snprintf(path, sizeof path, "%s/here", dir);
    write_script(path, "#!/bin/sh\nexit 5\n");
    (void)snprintf(var, sizeof var, "PATH=/nowhere:%s:/bin", dir);
    member_init(&m, &family, CONTAIN_AUTO, argv);
    m.envp[0] = var;
    member_run(&m);
    ck_assert_int_eq(m.verdict.exit_code, 5);
    member_done(&m);

    (void)chmod(path, 0644); /* there, but not to be run: not the same as missing */
    member_init(&m, &family, CONTAIN_AUTO, argv);
    m.envp[0] = var;
    member_run(&m);
    ck_assert_int_eq(m.verdict.stage, STAGE_LOOKUP);
    ck_assert_int_eq(m.verdict.spawn_errno, EACCES);
    member_done(&m);
}
END_TEST

/* ---- how a tree is brought down ---- */

RUNG_TEST(a_stop_reaches_grandchildren) /* R24 */
{
    static struct member m;
    member_sh(&m, &family, rung, "sh -c 'sleep 600 & sleep 600'; true");
    member_start(&m);
    UNTIL(&family, &m.spawned);
    family_until_alive(&family, m.mark, "sleep", 2);
    child_stop(m.child, CAUSE_TIMEOUT, LONG_MS);
    UNTIL(&family, &m.empty); /* SIGTERM was enough: long before the grace is over */
    ck_assert_int_eq(m.verdict.cause, CAUSE_TIMEOUT);
    ck_assert(!m.verdict.forced);
    ck_assert_int_eq(marked_alive(m.mark), 0);
    member_done(&m);
}

RUNG_TEST(what_ignores_every_signal_is_killed_after_the_grace) /* R28 */
{
    static struct member m;
    member_init(&m, &family, rung, nasty_args("stubborn", NULL));
    member_start(&m);
    UNTIL(&family, &m.spawned);
    member_until_said(&m); /* before that it does not ignore anything */
    int64_t began = clock_mono_ms();
    child_stop(m.child, CAUSE_TIMEOUT, 300);
    UNTIL(&family, &m.empty);
    ck_assert_int_ge(clock_mono_ms() - began, 290);
    ck_assert_int_eq(m.verdict.cause, CAUSE_TIMEOUT);
    ck_assert_int_eq(m.verdict.signal, SIGKILL);
    ck_assert(m.verdict.forced);
    member_done(&m);
}

RUNG_TEST(the_grace_belongs_to_the_whole_tree) /* R29 */
{
    static struct member m;
    char path[128], script[400];
    (void)snprintf(path, sizeof path, "%s/finished", family.dir);
    (void)snprintf(
        script, sizeof script,
        "sh -c 'trap \"sleep 0.5; echo done >%s; exit\" TERM; sleep 600 & wait; wait'; true", path);
    member_sh(&m, &family, rung, script);
    member_start(&m);
    UNTIL(&family, &m.spawned);
    family_until_alive(&family, m.mark, "sleep", 1); /* then the trap stands too */
    child_stop(m.child, CAUSE_CANCELLED, LONG_MS);
    UNTIL(&family, &m.empty);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(marked_alive(m.mark), 0);
    member_done(&m);
}

RUNG_TEST(what_mandor_did_decides_first) /* R35 */
{
    static struct member m;
    member_sh(&m, &family, rung, "trap 'exit 0' TERM; sleep 600 & wait");
    member_start(&m);
    UNTIL(&family, &m.spawned);
    family_until_alive(&family, m.mark, "sleep", 1); /* then the trap stands too */
    child_stop(m.child, CAUSE_TIMEOUT, LONG_MS);
    child_stop(m.child, CAUSE_CANCELLED, LONG_MS);
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(m.verdict.cause, CAUSE_TIMEOUT);
    ck_assert_int_eq(m.verdict.exit_code, 0);
    member_done(&m);
}

RUNG_TEST(a_stopped_job_is_not_an_ended_one_and_dies_all_the_same) /* R17 */
{
    static struct member m;
    member_sh(&m, &family, rung, "kill -STOP $$; exit 3");
    member_start(&m);
    UNTIL(&family, &m.spawned);
    member_until_state(&m, 'T');
    family_pass(&family, 50); /* news of it, if there were any, would come now */
    ck_assert(!m.exited);
    child_stop(m.child, CAUSE_TIMEOUT, 100);
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(m.verdict.cause, CAUSE_TIMEOUT);
    member_done(&m);
}

RUNG_TEST(a_continued_job_goes_on) /* R17 */
{
    static struct member m;
    member_sh(&m, &family, rung, "kill -STOP $$; exit 3");
    member_start(&m);
    UNTIL(&family, &m.spawned);
    member_until_state(&m, 'T');
    family_pass(&family, 50);
    ck_assert(!m.exited);
    (void)kill(m.pid, SIGCONT);
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(m.verdict.cause, CAUSE_EXIT);
    ck_assert_int_eq(m.verdict.exit_code, 3);
    member_done(&m);
}

RUNG_TEST(a_stop_at_any_moment_of_a_start_works) /* R32 */
{
    for (int i = 0; i < 60; i++) {
        static struct member m;
        member_sh(&m, &family, rung, "sleep 600");
        member_start(&m);
        for (int turn = 0; turn < i % 6; turn++)
            (void)uv_run(&family.loop, UV_RUN_NOWAIT);
        child_stop(m.child, CAUSE_CANCELLED, i % 3 == 0 ? 1000 : 0);
        UNTIL(&family, &m.empty);
        ck_assert_int_eq(m.verdict.cause, CAUSE_CANCELLED);
        member_done(&m);
    }
    family_until_reaped(&family);
}

RUNG_TEST(a_stop_around_the_natural_end_leaves_one_clear_verdict) /* R15 */
{
    for (int i = 0; i < 150; i++) {
        static struct member m;
        member_sh(&m, &family, rung, i % 2 == 0 ? "exit 3" : "sleep 0.002; exit 3");
        member_start(&m);
        UNTIL(&family, &m.spawned);
        for (int turn = 0; turn < i % 5; turn++)
            family_pass(&family, i % 2); /* to a moment around the end */
        if (!m.empty)
            child_stop(m.child, CAUSE_CANCELLED, i % 3 * 100);
        UNTIL(&family, &m.empty);
        bool stopped = m.verdict.cause == CAUSE_CANCELLED;
        ck_assert(stopped || m.verdict.cause == CAUSE_EXIT);
        ck_assert(m.verdict.exit_code == 3 || (stopped && m.verdict.signal > 0));
        member_done(&m);
    }
    family_until_reaped(&family);
}

RUNG_TEST(what_a_leader_leaves_behind_is_killed) /* R20, R22, R25 */
{
    static const char *const scripts[] = {
        "sleep 600 & echo ok; exit 0",
        "setsid sleep 600 & exit 0",
        "setsid sh -c 'setsid sleep 600 & exec sleep 600' >/dev/null 2>&1 & sleep 0.1",
        NASTY_PATH " daemon; sleep 0.1",
        NASTY_PATH " helpers 5",
        NASTY_PATH " headless; sleep 0.1",
    };
    for (size_t i = 0; i < ARRAY_LEN(scripts); i++) {
        static struct member m;
        member_sh(&m, &family, rung, scripts[i]);
        member_run(&m);
        ck_assert_int_eq(m.verdict.cause, CAUSE_EXIT);
        ck_assert_int_ge(child_descendants_killed(m.child), 1);
        member_done(&m);
    }
    family_until_reaped(&family);
}

RUNG_TEST(what_forks_faster_than_it_is_found_loses)
{
    for (int i = 0; i < 3; i++) {
        static struct member m;
        member_init(&m, &family, rung, nasty_args("comet", NULL));
        member_run(&m);
        int64_t reaped = metric_get(METRIC_orphans_reaped);
        family_pass(&family, 100); /* a survivor would leave a zombie with us every moment */
        ck_assert_int_le(metric_get(METRIC_orphans_reaped) - reaped, 2);
        family_until_reaped(&family);
        member_done(&m);
    }
}

RUNG_TEST(a_fork_bomb_in_a_cap_is_cleared_away) /* R27 */
{
    static struct member m, good[5];
    if (!family.host.pids.usable ||
        (family.host.pids_is_v2 && rung != CONTAIN_CGROUP && rung != CONTAIN_STRICT))
        return;
    member_init(&m, &family, rung, nasty_args("bomb", NULL));
    m.launch.limits.pids = 64;
    member_start(&m);
    for (int i = 0; i < 5; i++) {
        member_sh(&good[i], &family, rung, "sleep 0.3; exit 0");
        member_start(&good[i]);
    }
    for (int i = 0; i < 5; i++) {
        UNTIL(&family, &good[i].empty);
        ck_assert_int_eq(good[i].verdict.exit_code, 0);
        member_done(&good[i]);
    }
    child_stop(m.child, CAUSE_TIMEOUT, 200);
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(marked_alive(m.mark), 0);
    json_t *limits = child_limits_enforced(m.child);
    ck_assert(json_is_true(json_object_get(limits, "pids")));
    json_decref(limits);
    member_done(&m);
}

RUNG_TEST(a_lock_that_a_leftover_held_is_free_at_once) /* R40 */
{
    static struct member m, next;
    char script[256];
    (void)snprintf(script, sizeof script, "flock -n %s/lock setsid sleep 600 & sleep 0.3; exit 0",
                   family.dir);
    member_sh(&m, &family, rung, script);
    member_run(&m);
    (void)snprintf(script, sizeof script, "flock -n %s/lock true", family.dir);
    member_sh(&next, &family, rung, script);
    member_run(&next);
    ck_assert_int_eq(next.verdict.exit_code, 0);
    member_done(&m);
    member_done(&next);
}

START_TEST(a_frozen_job_dies) /* R33 */
{
    if (!family.host.v2.usable)
        return;
    static struct member m;
    member_sh(&m, &family, CONTAIN_CGROUP, "sleep 600 & wait");
    member_start(&m);
    UNTIL(&family, &m.spawned);
    ck_assert_int_eq(cgroup_write(m.child->slot->cgroup, "cgroup.freeze", "1"), 0);
    family_pass(&family, 50);
    child_stop(m.child, CAUSE_CANCELLED, 100);
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(marked_alive(m.mark), 0);
    member_done(&m);
}
END_TEST

/* R33.  A process in a frozen version 1 freezer is as unkillable as one in uninterruptible sleep. */
START_TEST(what_cannot_die_is_shown_and_holds_up_nobody)
{
    static struct member m, other;
    char path[CGROUP_PATH_MAX], pid[16];
    struct cgroup_self self;
    ck_assert_int_eq(cgroup_self_read(&self), 0);
    int r = cgroup_own(&self, "freezer", path);
    cgroup_self_done(&self);
    if (r != 0) {
        printf("skipped, no version 1 freezer\n");
        return;
    }
    (void)snprintf(path + strlen(path), 40, "/mandor-test-%d", getpid());
    ck_assert_int_eq(mkdir(path, 0755), 0);
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    member_sh(&m, &family, CONTAIN_AUTO, "sleep 600");
    member_start(&m);
    UNTIL(&family, &m.spawned);
    (void)snprintf(pid, sizeof pid, "%d", m.pid);
    ck_assert_int_eq(cgroup_write(dir, "cgroup.procs", pid), 0);
    ck_assert_int_eq(cgroup_write(dir, "freezer.state", "FROZEN"), 0);

    child_stop(m.child, CAUSE_CANCELLED, 50);
    UNTIL(&family, &m.kill_pending);
    ck_assert(!m.exited);
    member_sh(&other, &family, CONTAIN_AUTO, "sleep 600");
    member_start(&other);
    UNTIL(&family, &other.spawned);
    child_stop(other.child, CAUSE_CANCELLED, 0);
    UNTIL(&family, &other.empty);
    member_done(&other);

    ck_assert_int_eq(cgroup_write(dir, "freezer.state", "THAWED"), 0);
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(m.verdict.cause, CAUSE_CANCELLED);
    member_done(&m);
    (void)close(dir);
    ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

/* As on a dead file server: exec waits for an answer that nobody gives. */
START_TEST(a_start_that_hangs_is_broken_off)
{
    static struct member m, next;
    char path[128], *argv[] = { path, NULL };
    (void)snprintf(path, sizeof path, "%s/hanging", family.dir);
    write_script(path, "#!/bin/sh\nexit 0\n");
    int fan = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY);
    if (fan < 0 || fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, path) != 0) {
        printf("skipped, no fanotify permission events: %s\n", strerror(errno));
        return;
    }
    member_init(&m, &family, CONTAIN_AUTO, argv);
    member_start(&m);
    member_sh(&next, &family, CONTAIN_AUTO, "exit 6");
    member_start(&next);
    family_pass(&family, 300);
    ck_assert(!m.spawned && !next.spawned);
    child_stop(m.child, CAUSE_CANCELLED, 100);
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(m.verdict.cause, CAUSE_CANCELLED);
    UNTIL(&family, &next.empty);
    ck_assert_int_eq(next.verdict.exit_code, 6);
    member_done(&m);
    member_done(&next);
    (void)close(fan);
}
END_TEST

START_TEST(the_owner_decides_when_a_tree_is_emptied)
{
    static struct member m;
    member_sh(&m, &family, CONTAIN_AUTO, "sleep 600 >/dev/null & echo $!");
    m.keep = true;
    member_start(&m);
    UNTIL(&family, &m.exited);
    family_until_alive(&family, m.mark, "sleep", 1);
    family_pass(&family, 200);
    ck_assert(!m.empty);
    ck_assert_int_eq(marked_alive(m.mark), 1);
    child_empty(m.child);
    ck_assert(!m.empty); /* never from inside a call */
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(child_descendants_killed(m.child), 1);
    member_done(&m);
}
END_TEST

/* ---- limits ---- */

RUNG_TEST(one_member_over_the_memory_limit_ends_the_job_as_oom) /* R37 */
{
    if (!family.host.memory.usable ||
        (family.host.memory_is_v2 && rung != CONTAIN_CGROUP && rung != CONTAIN_STRICT))
        return;
    static struct member m;
    member_init(&m, &family, rung, nasty_args("eat", "400"));
    m.launch.limits.memory_bytes = 64 << 20;
    member_run(&m);
    ck_assert_int_eq(m.verdict.cause, CAUSE_OOM);
    json_t *limits = child_limits_enforced(m.child);
    ck_assert(json_is_true(json_object_get(limits, "memory")));
    json_decref(limits);
    member_done(&m);
}

RUNG_TEST(cpu_time_and_file_size_are_limits_of_the_job)
{
    static struct member m;
    member_init(&m, &family, rung, nasty_args("spin", NULL));
    m.launch.limits.cpu_time_ms = 500;
    member_run(&m);
    ck_assert_int_eq(m.verdict.cause, CAUSE_LIMIT);
    member_done(&m);

    member_sh(&m, &family, rung, "exec head -c 100000 /dev/zero >big");
    m.launch.limits.file_size_bytes = 1000;
    member_run(&m);
    ck_assert_int_eq(m.verdict.cause, CAUSE_LIMIT);
    member_done(&m);

    member_sh(&m, &family, rung, "ulimit -n");
    m.launch.limits.open_files = 77;
    member_run(&m);
    ck_assert_str_eq(m.out, "77\n");
    member_done(&m);
}

RUNG_TEST(half_a_core_is_half_a_core)
{
    if (!family.host.cpu.usable ||
        (family.host.cpu_is_v2 && rung != CONTAIN_CGROUP && rung != CONTAIN_STRICT))
        return;
    static struct member m;
    member_init(&m, &family, rung, nasty_args("spin", NULL));
    m.launch.limits.cpu = 0.2;
    int64_t began = clock_mono_ms();
    member_start(&m);
    UNTIL(&family, &m.spawned);
    family_pass(&family, 1000);
    child_stop(m.child, CAUSE_TIMEOUT, 0);
    UNTIL(&family, &m.empty);
    int64_t ran_us = (clock_mono_ms() - began) * 1000; /* longer than asked on a busy machine */
    ck_assert_int_le(m.verdict.user_us + m.verdict.system_us, ran_us / 5 + 250000);
    member_done(&m);
}

START_TEST(a_limit_that_cannot_be_had_fails_the_start_and_is_named)
{
    static struct member m;
    struct contain_hierarchy *pids = &family.nursery->yard.host.pids;
    pids->usable = false;
    (void)snprintf(pids->why, sizeof pids->why, "taken away by a test");
    member_sh(&m, &family, CONTAIN_AUTO, "exit 0");
    m.launch.limits.pids = 5;
    member_run(&m);
    ck_assert_int_eq(m.verdict.cause, CAUSE_SPAWN);
    ck_assert_int_eq(m.verdict.stage, STAGE_PREPARE);
    ck_assert_msg(strstr(m.verdict.error, "'pids'") != NULL, "%s", m.verdict.error);
    ck_assert(spawn_errno_permanent(m.verdict.spawn_errno, m.verdict.stage));
    member_done(&m);

    member_sh(&m, &family, CONTAIN_AUTO, "exit 0");
    m.launch.limits.pids = 5;
    m.launch.limits.open_files = 50;
    m.launch.limits_policy = LIMITS_BEST_EFFORT;
    member_run(&m);
    ck_assert_int_eq(m.verdict.exit_code, 0);
    json_t *limits = child_limits_enforced(m.child);
    ck_assert(json_is_false(json_object_get(limits, "pids")));
    ck_assert(json_is_true(json_object_get(limits, "open_files")));
    json_decref(limits);
    member_done(&m);
}
END_TEST

START_TEST(strict_refuses_where_it_cannot_be_had)
{
    static struct member m;
    family.nursery->yard.host.pidns = false;
    (void)snprintf(family.nursery->yard.host.pidns_why, 100, "taken away by a test");
    member_sh(&m, &family, CONTAIN_STRICT, "exit 0");
    member_run(&m);
    ck_assert_int_eq(m.verdict.cause, CAUSE_SPAWN);
    ck_assert_int_eq(m.verdict.stage, STAGE_PREPARE);
    ck_assert_msg(strstr(m.verdict.error, "taken away") != NULL, "%s", m.verdict.error);
    member_done(&m);
}
END_TEST

/* ---- many, and for long ---- */

RUNG_TEST(two_thousand_jobs_leave_nothing_behind) /* R16, R38 */
{
    enum { AT_ONCE = 8 };
    static struct member m[AT_ONCE];
    int total = rung == CONTAIN_GROUP ? 300 : 2000;
    int before = 0;
    for (int i = 0; i < total + 40; i++) {
        struct member *one = &m[i % AT_ONCE];
        if (i >= AT_ONCE) {
            UNTIL(&family, &one->empty);
            ck_assert_int_eq(one->verdict.exit_code, 0);
            member_done(one);
        }
        if (i == 40)
            before = open_fds();
        if (i % 4 == 0)
            member_sh(one, &family, rung, "(sleep 0.05 &) ; exit 0");
        else
            member_init(one, &family, rung, nasty_args("exit", "0"));
        member_start(one);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        UNTIL(&family, &m[i].empty);
        member_done(&m[i]);
    }
    family_pass(&family, 200);
    ck_assert_int_le(open_fds(), before + AT_ONCE * 6);
    family_until_reaped(&family);
    family_close(&family);
    ck_assert_int_eq(own_cgroups(&family), 0);
    family_open(&family, "child", true);
}

/* ---- left-overs ---- */

static void make_probe(char *path, size_t size, int number, time_t age_s)
{
    struct timespec times[2] = { { .tv_sec = time(NULL) - age_s },
                                 { .tv_sec = time(NULL) - age_s } };
    (void)snprintf(path, size, "%s/mandor-probe-%d-%d", family.host.v2.base, getpid(), number);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

START_TEST(what_died_in_its_probe_is_swept_by_the_next_start)
{
    char old[CGROUP_PATH_MAX + 64], fresh[CGROUP_PATH_MAX + 64];
    struct contain_host host;
    struct stat st;
    if (!family.host.v2.usable)
        return;
    make_probe(old, sizeof old, 900, 3600);
    make_probe(fresh, sizeof fresh, 901, 0);
    contain_probe(&host);
    ck_assert_int_ne(stat(old, &st), 0);
    ck_assert_int_eq(rmdir(fresh), 0);
}
END_TEST

/* ---- threads ---- */

static void *start_from_a_thread(void *arg)
{
    struct member *member = arg;
    family_open(&family, "thread", true);
    member_start(member);
    return NULL;
}

/* PR_SET_PDEATHSIG means the thread that forked, prctl(2): not the one that asked. */
START_TEST(a_job_outlives_the_thread_that_asked_for_it_R12)
{
    static struct member m;
    pthread_t thread;
    family_close(&family);
    member_sh(&m, &family, CONTAIN_GROUP, "sleep 0.3; exit 7");
    ck_assert_int_eq(pthread_create(&thread, NULL, start_from_a_thread, &m), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    UNTIL(&family, &m.empty);
    ck_assert_int_eq(m.verdict.cause, CAUSE_EXIT);
    ck_assert_int_eq(m.verdict.exit_code, 7);
    member_done(&m);
}
END_TEST

static atomic_bool hold_locks;

/* Whatever a library may lock: the allocator, streams, the environment, time zones. */
static void *be_busy(void *arg)
{
    FILE *nowhere = fopen("/dev/null", "we");
    while (atomic_load(&hold_locks)) {
        char *bytes = malloc(1 + (size_t)rand() % 100000);
        time_t now = time(NULL);
        struct tm tm;
        (void)localtime_r(&now, &tm);
        (void)fprintf(nowhere, "%p %d %s\n", (void *)bytes, tm.tm_sec, getenv("PATH"));
        (void)fflush(NULL);
        free(bytes);
    }
    (void)fclose(nowhere);
    return arg;
}

/* shared: the child runs in our memory until exec; else (where a user was asked for) in a copy, in which a lock that another thread held
 * is held for ever. */
static void spawn_beside_busy_threads(bool shared)
{
    enum { AT_ONCE = 8, TOTAL = 800 };
    static struct member m[AT_ONCE];
    pthread_t busy[3];
    atomic_store(&hold_locks, true);
    for (size_t i = 0; i < ARRAY_LEN(busy); i++)
        ck_assert_int_eq(pthread_create(&busy[i], NULL, be_busy, NULL), 0);
    for (int i = 0; i < TOTAL + AT_ONCE; i++) {
        struct member *one = &m[i % AT_ONCE];
        if (i >= AT_ONCE) {
            UNTIL(&family, &one->empty);
            ck_assert_int_eq(one->verdict.exit_code, 0);
            member_done(one);
        }
        if (i < TOTAL) {
            member_init(one, &family, CONTAIN_GROUP, nasty_args("exit", "0"));
            one->launch.user = shared ? NULL : "0";
            member_start(one);
        }
    }
    atomic_store(&hold_locks, false);
    for (size_t i = 0; i < ARRAY_LEN(busy); i++)
        (void)pthread_join(busy[i], NULL);
}

START_TEST(no_start_hangs_on_a_lock_that_another_thread_holds_R05)
{
    if (_i == 0 || geteuid() == 0)
        spawn_beside_busy_threads(_i == 0);
}
END_TEST

/* ---- as a library ---- */

START_TEST(a_library_never_touches_children_of_its_host)
{
    static struct member m;
    family_close(&family);
    family_open(&family, "lib", false);
    pid_t own = fork();
    if (own == 0)
        _exit(42);
    for (int i = 0; i < RUNGS; i++) {
        if (!can(i))
            continue;
        member_sh(&m, &family, rungs[i], "sleep 600 & exit 9");
        member_run(&m);
        ck_assert_int_eq(m.verdict.exit_code, 9);
        member_done(&m);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(own, &status, 0), own);
    ck_assert_int_eq(WEXITSTATUS(status), 42);
}
END_TEST

START_TEST(every_pair_of_state_and_event_is_a_move_or_refused)
{
    int count = 0;
    for (int state = 0; state < CHILD_STATES; state++)
        for (int event = 0; event < CHILD_EVENTS; event++) {
            int next = child_next((enum child_state)state, (enum child_event)event);
            ck_assert(next == -EPROTO || (next > state && next < CHILD_STATES)); /* only forwards */
            count += next >= 0;
        }
    ck_assert_int_eq(count, 9);
}
END_TEST

/* test_child [once|each]: one half, or both; the two run side by side. */
int main(int argc, char **argv)
{
    Suite *suite = suite_create("child");
    TCase *each = tcase_create("each rung"), *once = tcase_create("once"),
          *pure = tcase_create("pure");
    tcase_set_timeout(pure, 120);
    tcase_set_timeout(each, 600);
    tcase_set_timeout(once, 300);
    tcase_add_checked_fixture(each, set_up, tear_down);
    tcase_add_checked_fixture(once, set_up, tear_down);
#define EACH(name) tcase_add_loop_test(each, name, 0, RUNGS)
    EACH(an_exit_code_arrives_as_it_was);
    EACH(a_signal_arrives_as_a_signal);
    EACH(usage_is_first_hand);
    EACH(two_hundred_ends_at_one_instant_are_all_seen);
    EACH(no_signal_is_ignored_or_blocked_in_a_job);
    EACH(only_its_own_descriptors_are_open_in_a_job);
    EACH(the_channel_carries_bytes_and_is_named);
    EACH(the_first_soft_limit_of_open_files_comes_back);
    EACH(stdin_is_empty_and_there_is_no_terminal);
    EACH(each_attempt_has_fresh_directories_that_are_removed);
    EACH(a_job_runs_as_the_user_that_was_asked_for);
    EACH(a_user_number_out_of_range_is_refused);
    EACH(what_cannot_start_says_where_and_why);
    EACH(a_stop_reaches_grandchildren);
    EACH(what_ignores_every_signal_is_killed_after_the_grace);
    EACH(the_grace_belongs_to_the_whole_tree);
    EACH(what_mandor_did_decides_first);
    EACH(a_stopped_job_is_not_an_ended_one_and_dies_all_the_same);
    EACH(a_continued_job_goes_on);
    EACH(a_stop_at_any_moment_of_a_start_works);
    EACH(a_stop_around_the_natural_end_leaves_one_clear_verdict);
    EACH(what_a_leader_leaves_behind_is_killed);
    EACH(what_forks_faster_than_it_is_found_loses);
    EACH(a_fork_bomb_in_a_cap_is_cleared_away);
    EACH(a_lock_that_a_leftover_held_is_free_at_once);
    EACH(one_member_over_the_memory_limit_ends_the_job_as_oom);
    EACH(cpu_time_and_file_size_are_limits_of_the_job);
    EACH(half_a_core_is_half_a_core);
    EACH(two_thousand_jobs_leave_nothing_behind);
    tcase_add_test(once, a_script_without_an_interpreter_is_not_given_to_a_shell);
    tcase_add_test(once, a_string_that_is_too_long_is_named);
    tcase_add_test(once, programs_are_found_in_the_jobs_own_path);
    tcase_add_test(once, a_frozen_job_dies);
    tcase_add_test(once, what_cannot_die_is_shown_and_holds_up_nobody);
    tcase_add_test(once, a_start_that_hangs_is_broken_off);
    tcase_add_test(once, the_owner_decides_when_a_tree_is_emptied);
    tcase_add_test(once, a_limit_that_cannot_be_had_fails_the_start_and_is_named);
    tcase_add_test(once, strict_refuses_where_it_cannot_be_had);
    tcase_add_test(once, what_died_in_its_probe_is_swept_by_the_next_start);
    tcase_add_test(once, a_job_outlives_the_thread_that_asked_for_it_R12);
    tcase_add_loop_test(once, no_start_hangs_on_a_lock_that_another_thread_holds_R05, 0, 2);
    tcase_add_test(once, a_library_never_touches_children_of_its_host);
    tcase_add_test(pure, every_pair_of_state_and_event_is_a_move_or_refused);
    suite_add_tcase(suite, pure);
    suite_add_tcase(suite, once);
    suite_add_tcase(suite, each);
    tcase_set_tags(pure, "once");
    tcase_set_tags(once, "once");
    tcase_set_tags(each, "each");

    SRunner *runner = srunner_create(suite);
    srunner_run_tagged(runner, NULL, NULL, argc > 1 ? argv[1] : NULL, NULL, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

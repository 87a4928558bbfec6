/* launch_copy.c - from request to a running copy of a fork server, on the spawner thread.
 *
 * The copy is our own child: the server clones it with CLONE_PARENT, so the sentinel reaps it as any other.  It is born in the
 * slot, has nothing but its four descriptors, and cannot fork: directories, environment and user are not needed.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>

#include "child/child_int.h"
#include "os/pidfd.h"
#include "os/zygote.h"

#define OOM_SCORE_ADJ 500 /* before the server, from which all others come */
#define ANSWER_MS     5000
#define NOBODY        65534

struct ends {
    int fd[ZYGOTE_STDIO]; /* the copy's */
};

/* The copy reads its job from the channel and answers on it. */
static int make_channel(int *near, int *far)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -errno;
    *near = pair[0];
    *far = pair[1];
    return fcntl(*near, F_SETFL, O_NONBLOCK) != 0 ? -errno : 0;
}

static int make_ends(struct child *child, struct ends *ends)
{
    struct child_pipes *pipes = &child->pipes;
    int r = launch_pipe(&pipes->in, &ends->fd[0], false);

    if (r == 0)
        r = launch_pipe(&pipes->out, &ends->fd[1], true);
    if (r == 0)
        r = launch_pipe(&pipes->err, &ends->fd[2], true);
    if (r == 0)
        r = make_channel(&pipes->channel, &ends->fd[3]);
    return r < 0 ? launch_fail(child, STAGE_PREPARE, r, "make the copy's pipes") : 0;
}

/* A copy cannot enter a PID namespace, and needs none: it cannot fork. */
static int take_slot(struct child *child)
{
    struct yard *yard = &child->nursery->yard;
    struct mandor_err err = { 0 };
    enum spec_containment rung = yard->base[0] != 0 ? CONTAIN_CGROUP : CONTAIN_GROUP;

    child->limits_asked = limits_asked(&child->launch.limits);
    int r = slot_take(yard, rung, &child->launch.limits, child->launch.limits_policy, &child->slot,
                      &child->limits_enforced, &err);
    if (r < 0)
        return launch_note(child, STAGE_PREPARE, &err);
    if (rung != CONTAIN_GROUP)
        return 0;
    struct sweep_target *target = &child->slot->target;
    target->subreaper = child->nursery->adopt_orphans;
    target->kinship = &child->nursery->kinship;
    target->attempts = &yard->group_alive;
    if (asprintf(&target->mark, "MANDOR_COPY=%s", child->label) < 0) {
        target->mark = NULL;
        return launch_fail(child, STAGE_PREPARE, -ENOMEM, "remember the copy's mark");
    }
    return 0;
}

static int ask(struct child *child, const struct ends *ends, pid_t *ret_pid, int *ret_pidfd)
{
    static _Atomic uint32_t next;
    struct spawn_plan plan = { .cgroup = -1 };
    int fds[ZYGOTE_FDS_MAX];
    size_t count = ZYGOTE_STDIO;
    struct zygote_request request = {
        .magic = ZYGOTE_MAGIC,
        .number = atomic_fetch_add(&next, 1),
        .parent = getpid(),
        .oom_score_adj = OOM_SCORE_ADJ,
    };

    slot_plan(child->slot, &child->launch.limits, &plan);
    memcpy(fds, ends->fd, sizeof ends->fd);
    if (child->launch.zygote_urgent)
        request.flags |= ZYGOTE_URGENT;
    if (plan.cgroup >= 0) {
        request.flags |= ZYGOTE_IN_CGROUP;
        fds[count++] = plan.cgroup;
    }
    for (size_t i = 0; i < plan.join_count && i < ZYGOTE_JOINS_MAX; i++)
        fds[count++] = plan.joins[i];
    request.join_count = (uint32_t)MIN(plan.join_count, (size_t)ZYGOTE_JOINS_MAX);
    if (geteuid() == 0) { /* root's rights are of no use to it */
        request.flags |= ZYGOTE_SET_USER;
        request.uid = request.gid = NOBODY;
    }
    return os_zygote_fork(child->given[3], &request, fds, count, ANSWER_MS, ret_pid, ret_pidfd);
}

/* It is unknown to the sentinel: end it here. */
static void end_unknown(int *pidfd)
{
    siginfo_t info;

    (void)os_pidfd_signal(*pidfd, SIGKILL);
    (void)os_pidfd_reap(*pidfd, true, &info, NULL);
    (void)close(STEAL_FD(*pidfd));
}

/* The clone, announced to the sentinel, born in the slot. */
static int clone_copy(struct child *child, const struct ends *ends)
{
    struct nursery *nursery = child->nursery;
    pid_t pid = 0;

    kin_expect(&nursery->kinship);
    int r = ask(child, ends, &pid, &child->pidfd);
    if (r == 0 && pid <= 0)
        r = -ESRCH;
    if (r == 0 && child->slot->rung == CONTAIN_GROUP)
        r = sweep_aim(&child->slot->target, pid, child->pidfd);
    if (r == 0) {
        child->kin = (struct kin){ .kind = KIN_CHILD, .pid = pid };
        r = kin_register(&nursery->kinship, &child->kin);
    }
    if (r < 0 && child->pidfd >= 0) {
        end_unknown(&child->pidfd);
        child->kin.pid = 0;
    }
    kin_expected_over(&nursery->kinship);
    return r < 0 ? launch_fail(child, STAGE_CLONE, r, "ask the fork server for a copy") : 0;
}

int launch_copy(struct child *child)
{
    struct ends ends = { .fd = { -1, -1, -1, -1 } };
    int r = take_slot(child);

    if (r == 0)
        r = make_ends(child, &ends);
    if (r == 0)
        r = clone_copy(child, &ends);
    for (size_t i = 0; i < ZYGOTE_STDIO; i++)
        if (ends.fd[i] >= 0)
            (void)close(ends.fd[i]);
    return r;
}

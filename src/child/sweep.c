/* sweep.c - contract in sweep.h. */
#include "child/sweep.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "os/pidfd.h"

#define STOP_PASSES \
    24 /* a tree that forks faster than it is listed is met again in the next round */
#define KILL_ROUNDS 64

void sweep_done(struct sweep_target *target)
{
    free(target->mark);
    proc_pids_done(&target->seen);
    proc_pids_done(&target->sessions);
    *target = (struct sweep_target){ 0 };
}

static int remember(struct proc_pids *pids, pid_t pid)
{
    return proc_pids_has(pids, pid) ? 0 : proc_pids_add(pids, pid);
}

/* A process that is found now: take it and all below it. */
static int take_tree(struct sweep_target *target, pid_t root, struct proc_pids *members)
{
    size_t at = members->count;
    int r = proc_pids_has(members, root) ? 0 : proc_pids_add(members, root);
    for (; r == 0 && at < members->count; at++) {
        pid_t pid = members->pid[at];
        struct proc_stat stat;
        if (proc_stat_read(pid, &stat) == 0) {
            r = remember(&target->seen, pid);
            if (r == 0 && stat.sid > 0)
                r = remember(&target->sessions, stat.sid);
        }
        struct proc_pids children = { 0 };
        if (r == 0)
            r = proc_children(pid, &children);
        for (size_t i = 0; r == 0 && i < children.count; i++)
            r = remember(members, children.pid[i]);
        proc_pids_done(&children);
    }
    return r;
}

/* Does this orphan belong to the attempt? */
static bool belongs(const struct sweep_target *target, const struct proc_stat *stat, bool alone)
{
    if (stat->sid == target->session || proc_pids_has(&target->sessions, stat->sid) ||
        proc_pids_has(&target->seen, stat->pid) || proc_environ_has(stat->pid, target->mark))
        return true;
    return alone && target->subreaper && !proc_cgroup_has(stat->pid, "/mandor-");
}

/* Drop the dead from the list; returns how many those were. */
static size_t keep_living(struct proc_pids *members)
{
    size_t kept = 0, listed = members->count;
    for (size_t i = 0; i < listed; i++) {
        struct proc_stat stat;
        if (proc_stat_read(members->pid[i], &stat) == 0 && !proc_stat_dead(&stat))
            members->pid[kept++] = members->pid[i];
    }
    members->count = kept;
    return listed - kept;
}

/* Look at one process that was re-parented to us.  Returns 0, -EAGAIN (it died before it could be told whose it was) or -errno. */
static int consider(struct sweep_target *target, struct kinship *kinship, bool alone, pid_t pid,
                    struct proc_pids *members)
{
    struct kin *kin = NULL;
    struct proc_stat stat;
    if (pid == getpid() || proc_pids_has(members, pid) || kin_find(kinship, pid, &kin) != 0 ||
        kin != NULL)
        return 0;
    int r = proc_stat_read(pid, &stat);
    if (target->subreaper && (r == -ESRCH || (r == 0 && proc_stat_dead(&stat))))
        return proc_cgroup_has(pid, "/mandor-") ? 0 : -EAGAIN;
    if (r < 0 || (target->subreaper && stat.ppid != getpid()))
        return 0;
    return belongs(target, &stat, alone) ? take_tree(target, pid, members) : 0;
}

int sweep_members(struct sweep_target *target, struct kinship *kinship, bool alone,
                  struct proc_pids *members)
{
    int r = target->leader > 0 ? take_tree(target, target->leader, members) : 0;

    struct proc_pids candidates = { 0 };
    if (r == 0)
        r = target->subreaper ? proc_children(getpid(), &candidates) : proc_all(&candidates);
    bool vanished = false;
    for (size_t i = 0; r == 0 && i < candidates.count; i++) {
        r = consider(target, kinship, alone, candidates.pid[i], members);
        vanished |= r == -EAGAIN;
        r = r == -EAGAIN ? 0 : r;
    }
    proc_pids_done(&candidates);
    vanished |= keep_living(members) > 0;
    return r == 0 && vanished && members->count == 0 ? -EAGAIN : r;
}

/* Send a signal if the number still means the process that was listed. */
static bool signal_member(pid_t pid, int sig)
{
    struct proc_stat before, after;
    if (proc_stat_read(pid, &before) != 0)
        return false;
    SCOPED_FD fd = os_pidfd_open(pid);
    if (fd < 0 || proc_stat_read(pid, &after) != 0 || after.start_ticks != before.start_ticks)
        return false;
    return os_pidfd_signal(fd, sig) == 0;
}

static int signal_all(const struct proc_pids *members, int sig)
{
    int count = 0;
    for (size_t i = 0; i < members->count; i++)
        count += signal_member(members->pid[i], sig);
    return count;
}

int sweep_terminate(struct sweep_target *target, struct kinship *kinship, bool alone)
{
    struct proc_pids members = { 0 };
    int r = sweep_members(target, kinship, alone, &members);
    r = r == -EAGAIN ? 0 : r;
    int count = r < 0 ? 0 : signal_all(&members, SIGTERM);
    proc_pids_done(&members);
    return r < 0 ? r : count;
}

/* SIGSTOP whatever is found until a listing holds nothing new.  0, -EAGAIN (see sweep_members()) or -errno. */
static int stop_all(struct sweep_target *target, struct kinship *kinship, bool alone,
                    struct proc_pids *stopped)
{
    int r = 0;
    for (int pass = 0; pass < STOP_PASSES; pass++) {
        struct proc_pids members = { 0 };
        r = sweep_members(target, kinship, alone, &members);
        bool grown = r == -EAGAIN; /* try to meet the heir */
        for (size_t i = 0; r == 0 && i < members.count; i++) {
            if (proc_pids_has(stopped, members.pid[i]))
                continue;
            grown |= signal_member(members.pid[i], SIGSTOP);
            r = proc_pids_add(stopped, members.pid[i]);
        }
        proc_pids_done(&members);
        if ((r < 0 && r != -EAGAIN) || !grown)
            return r;
    }
    return stopped->count == 0 ? -EAGAIN : 0;
}

static bool any_new(const struct proc_pids *members, const struct proc_pids *before)
{
    for (size_t i = 0; i < members->count; i++)
        if (!proc_pids_has(before, members->pid[i]))
            return true;
    return false;
}

/* Rounds follow each other at once only while new members appear: what is merely slow to die, or cannot, is the caller's to ask
 * for again later.  The children file may miss an entry, so being empty is believed the second time (proc_pid_children(5)). */
int sweep_kill(struct sweep_target *target, struct kinship *kinship, bool alone)
{
    int first = 0, r = 0;
    bool unsure = false, again = true;
    struct proc_pids before = { 0 };
    for (int round = 0; r == 0 && again && round < KILL_ROUNDS; round++) {
        struct proc_pids members = { 0 };
        r = stop_all(target, kinship, alone, &members);
        if (r == 0)
            (void)signal_all(&members, SIGKILL);
        unsure |= r == -EAGAIN;
        r = r == -EAGAIN ? 0 : r;
        if (first == 0)
            first = (int)members.count;
        again = any_new(&members, &before) || round == 0;
        proc_pids_done(&before);
        before = members;
    }
    proc_pids_done(&before);
    return r < 0 ? r : first == 0 && unsure ? -EAGAIN : first;
}

void sweep_own_children(void)
{
    struct proc_pids children = { 0 };
    for (int wait_ms = 0;; wait_ms = MIN(wait_ms + 1, 50)) {
        children.count = 0;
        if (proc_children(getpid(), &children) == 0)
            for (size_t i = 0; i < children.count; i++)
                (void)kill(children.pid[i],
                           SIGKILL); /* an unreaped child of ours: the number is its own */
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            wait_ms = 0;
        if (pid < 0 && errno == ECHILD)
            break;
        (void)poll(NULL, 0, wait_ms);
    }
    proc_pids_done(&children);
}

int sweep_marked(const char *mark)
{
    struct proc_pids all = { 0 };
    int count = 0;
    int r = proc_all(&all);
    for (size_t i = 0; r == 0 && i < all.count; i++) {
        struct proc_stat stat;
        if (all.pid[i] == getpid() || !proc_environ_has(all.pid[i], mark) ||
            proc_stat_read(all.pid[i], &stat) != 0 || proc_stat_dead(&stat))
            continue;
        count++;
        (void)signal_member(all.pid[i], SIGKILL);
    }
    proc_pids_done(&all);
    return r < 0 ? r : count;
}

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
    free(target->seen.member);
    proc_pids_done(&target->sessions);
    *target = (struct sweep_target){ 0 };
}

/* ---- lists ---- */

static bool list_has(const struct sweep_list *list, const struct sweep_member *member)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->member[i].pid == member->pid &&
            list->member[i].start_ticks == member->start_ticks)
            return true;
    return false;
}

/* 0 or -ENOMEM; nothing happens when it is there. */
static int list_put(struct sweep_list *list, const struct sweep_member *member)
{
    if (list_has(list, member))
        return 0;
    if (list->count == list->cap) {
        size_t cap = list->cap == 0 ? 64 : list->cap * 2;
        struct sweep_member *grown = realloc(list->member, cap * sizeof *grown);
        if (grown == NULL)
            return -ENOMEM;
        list->member = grown;
        list->cap = cap;
    }
    list->member[list->count++] = *member;
    return 0;
}

static void list_done(struct sweep_list *list)
{
    free(list->member);
    *list = (struct sweep_list){ 0 };
}

static struct sweep_member member_of(const struct proc_stat *stat)
{
    return (struct sweep_member){ .pid = stat->pid, .start_ticks = stat->start_ticks };
}

/* ---- one walk ---- */

struct walk {
    struct sweep_target *target;
    struct sweep_list found; /* alive */
    bool vanished;           /* somebody died before it could be told what it left */
};

/* A process of the attempt, which may have died just now. */
static int take(struct walk *walk, const struct proc_stat *stat)
{
    struct sweep_member member = member_of(stat);
    struct proc_pids *sessions = &walk->target->sessions;

    int r = list_put(&walk->target->seen, &member);
    if (r == 0 && stat->sid > 0 && !proc_pids_has(sessions, stat->sid))
        r = proc_pids_add(sessions, stat->sid);
    if (r < 0)
        return r;
    walk->vanished |= proc_stat_dead(stat);
    return proc_stat_dead(stat) ? 0 : list_put(&walk->found, &member);
}

static int take_pid(struct walk *walk, pid_t pid)
{
    struct proc_stat stat;
    if (proc_stat_read(pid, &stat) == 0)
        return take(walk, &stat);
    walk->vanished = true;
    return 0;
}

/* All below those that were found from number `at` on. */
static int take_below(struct walk *walk, size_t at)
{
    int r = 0;
    for (; r == 0 && at < walk->found.count; at++) {
        struct proc_pids children = { 0 };
        r = proc_children(walk->found.member[at].pid, &children);
        for (size_t i = 0; r == 0 && i < children.count; i++)
            r = take_pid(walk, children.pid[i]);
        proc_pids_done(&children);
    }
    return r;
}

/* Does this orphan belong to the attempt?  Whether another one is alive is asked after the orphan was seen: what an attempt leaves
 * behind cannot be older than the attempt. */
static bool belongs(const struct sweep_target *target, const struct proc_stat *stat)
{
    struct sweep_member member = member_of(stat);
    if (stat->sid == target->session || proc_pids_has(&target->sessions, stat->sid) ||
        list_has(&target->seen, &member) || proc_environ_has(stat->pid, target->mark))
        return true;
    return target->subreaper && atomic_load(target->attempts) <= 1 &&
           !proc_cgroup_has(stat->pid, "/mandor-");
}

/* Look at one process that was re-parented to us. */
static int consider(struct walk *walk, pid_t pid)
{
    struct sweep_target *target = walk->target;
    struct proc_stat stat;
    if (pid == getpid() || kin_find(target->kinship, pid, NULL) != KIN_NONE)
        return 0;

    int r = proc_stat_read(pid, &stat);
    bool dead = r == -ESRCH || (r == 0 && proc_stat_dead(&stat));
    if (dead) { /* a zombie in a host's care says nothing: its reaper may never come */
        walk->vanished |= target->subreaper && !proc_cgroup_has(pid, "/mandor-");
        return 0;
    }
    if (r < 0 || (target->subreaper && stat.ppid != getpid()) || !belongs(target, &stat))
        return 0;

    size_t at = walk->found.count;
    r = take(walk, &stat);
    return r < 0 ? r : take_below(walk, at);
}

/* Find the live members.  0, -EAGAIN (none, but not for certain) or -errno; list_done(&walk->found) in any case. */
static int find(struct walk *walk, struct sweep_target *target)
{
    *walk = (struct walk){ .target = target };
    int r = target->leader > 0 ? take_pid(walk, target->leader) : 0;
    if (r == 0)
        r = take_below(walk, 0);

    struct proc_pids candidates = { 0 };
    if (r == 0)
        r = target->subreaper ? proc_children(getpid(), &candidates) : proc_all(&candidates);
    for (size_t i = 0; r == 0 && i < candidates.count; i++)
        r = consider(walk, candidates.pid[i]);
    proc_pids_done(&candidates);
    return r == 0 && walk->vanished && walk->found.count == 0 ? -EAGAIN : r;
}

int sweep_count(struct sweep_target *target)
{
    struct walk walk;
    int r = find(&walk, target);
    int count = (int)walk.found.count;
    list_done(&walk.found);
    return r < 0 ? r : count;
}

/* ---- signals ---- */

/* Send a signal if the number still means the process that was found. */
static bool signal_member(const struct sweep_member *member, int sig)
{
    struct proc_stat stat;
    SCOPED_FD fd = os_pidfd_open(member->pid);
    return fd >= 0 && proc_stat_read(member->pid, &stat) == 0 &&
           stat.start_ticks == member->start_ticks && os_pidfd_signal(fd, sig) == 0;
}

static int signal_all(const struct sweep_list *list, int sig)
{
    int count = 0;
    for (size_t i = 0; i < list->count; i++)
        count += signal_member(&list->member[i], sig);
    return count;
}

int sweep_terminate(struct sweep_target *target)
{
    struct walk walk;
    int r = find(&walk, target);
    int count = r < 0 ? 0 : signal_all(&walk.found, SIGTERM);
    list_done(&walk.found);
    return r < 0 && r != -EAGAIN ? r : count;
}

/* SIGSTOP whatever is found until a walk finds nothing new.  0, -EAGAIN (see find()) or -errno. */
static int stop_all(struct sweep_target *target, struct sweep_list *stopped)
{
    for (int pass = 0; pass < STOP_PASSES; pass++) {
        struct walk walk;
        int r = find(&walk, target);
        bool grown = r == -EAGAIN; /* try to meet the heir */
        int failed = 0;
        for (size_t i = 0; r == 0 && failed == 0 && i < walk.found.count; i++) {
            const struct sweep_member *member = &walk.found.member[i];
            if (list_has(stopped, member))
                continue;
            grown |= signal_member(member, SIGSTOP);
            failed = list_put(stopped, member);
        }
        list_done(&walk.found);
        if (failed < 0 || (r < 0 && r != -EAGAIN) || !grown)
            return failed < 0 ? failed : r;
    }
    return stopped->count == 0 ? -EAGAIN : 0;
}

static bool any_new(const struct sweep_list *members, const struct sweep_list *before)
{
    for (size_t i = 0; i < members->count; i++)
        if (!list_has(before, &members->member[i]))
            return true;
    return false;
}

/* Rounds follow each other at once only while new members appear: what is merely slow to die, or cannot, is the caller's to ask
 * for again later.  The children file may miss an entry, so being empty is believed the second time (proc_pid_children(5)). */
int sweep_kill(struct sweep_target *target)
{
    int first = 0, r = 0;
    bool unsure = false, again = true;
    struct sweep_list before = { 0 };
    for (int round = 0; r == 0 && again && round < KILL_ROUNDS; round++) {
        struct sweep_list members = { 0 };
        r = stop_all(target, &members);
        if (r == 0)
            (void)signal_all(&members, SIGKILL);
        unsure |= r == -EAGAIN;
        r = r == -EAGAIN ? 0 : r;
        if (first == 0)
            first = (int)members.count;
        again = any_new(&members, &before) || round == 0;
        list_done(&before);
        before = members;
    }
    list_done(&before);
    return r < 0 ? r : first == 0 && unsure ? -EAGAIN : first;
}

/* ---- without a target ---- */

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
        if (all.pid[i] == getpid() || proc_stat_read(all.pid[i], &stat) != 0 ||
            proc_stat_dead(&stat) || !proc_environ_has(all.pid[i], mark))
            continue;
        struct sweep_member member = member_of(&stat);
        (void)signal_member(&member, SIGKILL);
        count++;
    }
    proc_pids_done(&all);
    return r < 0 ? r : count;
}

/* sweep.c - contract in sweep.h. */
#include "child/sweep.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "os/pidfd.h"

/* A tree that forks faster than it is listed is met again in the next round. */
#define STOP_PASSES 24
#define KILL_ROUNDS 64
#define MEMBERS_MAX ((size_t)4096)

/* ---- members ---- */

/* A zombie that was not reaped still has its number to itself. */
static bool unreaped(int pidfd)
{
    int r = os_pidfd_signal(pidfd, 0);
    return r == 0 || r == -EPERM;
}

static int alive(const struct sweep_list *list)
{
    int count = 0;
    for (size_t i = 0; i < list->count; i++)
        count += !list->member[i].dead;
    return count;
}

static struct sweep_member *member_find(const struct sweep_list *list, pid_t pid)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->member[i].pid == pid)
            return &list->member[i];
    return NULL;
}

/* Returns 0, or -ENOMEM: then pidfd is closed too. */
static int member_add(struct sweep_list *list, pid_t pid, int adopt_pidfd)
{
    if (list->count == list->cap) {
        size_t cap = list->cap == 0 ? 16 : list->cap * 2;
        struct sweep_member *grown = realloc(list->member, cap * sizeof *grown);
        if (grown == NULL) {
            (void)close(adopt_pidfd);
            return -ENOMEM;
        }
        list->member = grown;
        list->cap = cap;
    }
    list->member[list->count++] =
        (struct sweep_member){ .pid = pid, .pidfd = adopt_pidfd, .serial = ++list->next_serial };
    return 0;
}

static void member_drop(struct sweep_list *list, size_t i)
{
    (void)close(list->member[i].pidfd);
    list->member[i] = list->member[--list->count];
}

static int add_session(struct sweep_target *target, pid_t sid)
{
    return sid <= 0 || proc_pids_has(&target->sessions, sid)
               ? 0
               : proc_pids_add(&target->sessions, sid);
}

int sweep_aim(struct sweep_target *target, pid_t leader, int pidfd)
{
    int own = fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
    int r = own < 0 ? -errno : member_add(&target->seen, leader, own);
    return r < 0 ? r : add_session(target, leader); /* setsid() comes before exec */
}

void sweep_done(struct sweep_target *target)
{
    while (target->seen.count > 0)
        member_drop(&target->seen, target->seen.count - 1);
    free(target->seen.member);
    free(target->mark);
    proc_pids_done(&target->sessions);
    *target = (struct sweep_target){ 0 };
}

/* ---- one walk ---- */

struct walk {
    struct sweep_target *target;
    size_t members_max; /* descriptors are for others too */
    bool vanished;      /* somebody died before it could be told what it left */
};

/* A session that a member had, whose number is not another one's by now: then a process of that number leads it. */
static bool session_is_ours(const struct sweep_target *target, pid_t sid)
{
    struct proc_stat stat;
    return proc_pids_has(&target->sessions, sid) &&
           (member_find(&target->seen, sid) != NULL || proc_stat_read(sid, &stat) == -ESRCH);
}

/* Does this orphan belong to the attempt?  Whether another one is alive is asked after the orphan was seen: what an attempt leaves
 * behind cannot be older than the attempt. */
static bool belongs(const struct sweep_target *target, const struct proc_stat *stat)
{
    if (session_is_ours(target, stat->sid) || proc_environ_has(stat->pid, target->mark))
        return true;
    return target->subreaper && atomic_load(target->attempts) <= 1 &&
           !proc_cgroup_has(stat->pid, "/mandor-");
}

/* Take it when it is what it seems to be while nobody else can have its number.  parent: whose child it must be, 0 = an orphan that belongs
 * to the attempt.  0 or -errno. */
static int take(struct walk *walk, pid_t pid, pid_t parent)
{
    struct sweep_target *target = walk->target;
    struct proc_stat stat;
    if (member_find(&target->seen, pid) != NULL)
        return 0;

    int pidfd = target->seen.count < walk->members_max ? os_pidfd_open(pid) : -EMFILE;
    int r = pidfd < 0 ? pidfd : proc_stat_read(pid, &stat);
    bool ours = r == 0 && (parent > 0 ? stat.ppid == parent : belongs(target, &stat));
    bool certain = r == 0 && unreaped(pidfd);
    walk->vanished |= r == -ESRCH || (r == 0 && (!certain || (ours && proc_stat_dead(&stat))));
    if (ours && certain) {
        r = member_add(&target->seen, pid, pidfd);
        return r < 0 ? r : add_session(target, stat.sid);
    }
    if (pidfd >= 0)
        (void)close(pidfd);
    return r == -ESRCH || r == -EINVAL ? 0 : r; /* EINVAL: its first thread is gone */
}

/* All below those that were found from number `at` on.  A list of children is one of that parent's if it was not reaped meanwhile. */
static int take_below(struct walk *walk, size_t at)
{
    const struct sweep_list *seen = &walk->target->seen;
    int r = 0;
    for (; r == 0 && at < seen->count; at++) {
        pid_t parent = seen->member[at].pid;
        struct proc_pids children = { 0 };
        r = proc_children(parent, &children);
        bool certain = unreaped(seen->member[at].pidfd);
        walk->vanished |= !certain;
        for (size_t i = 0; r == 0 && certain && i < children.count; i++)
            r = take(walk, children.pid[i], parent);
        proc_pids_done(&children);
    }
    return r;
}

/* Look at one process that may have been re-parented to us.  Most are strangers: told by number at first, which is cheap. */
static int consider(struct walk *walk, pid_t pid)
{
    struct sweep_target *target = walk->target;
    struct proc_stat stat;
    if (pid == getpid() || member_find(&target->seen, pid) != NULL ||
        kin_find(target->kinship, pid, NULL) != KIN_NONE)
        return 0;

    int r = proc_stat_read(pid, &stat);
    bool dead = r == -ESRCH || (r == 0 && proc_stat_dead(&stat));
    if (dead) { /* a zombie in a host's care says nothing: its reaper may never come */
        walk->vanished |= target->subreaper && !proc_cgroup_has(pid, "/mandor-");
        return 0;
    }
    if (r < 0 || (target->subreaper && stat.ppid != getpid()) || !belongs(target, &stat))
        return 0;

    size_t at = target->seen.count;
    r = take(walk, pid, 0);
    return r < 0 ? r : take_below(walk, at);
}

/* Forget members that were reaped.  Not those that only died: as long as a zombie leads a session its number is no stranger's. */
static void prune(struct sweep_list *seen)
{
    for (size_t i = seen->count; i-- > 0;) {
        struct proc_stat stat;
        bool dead = proc_stat_read(seen->member[i].pid, &stat) == 0 && proc_stat_dead(&stat);
        if (!unreaped(seen->member[i].pidfd))
            member_drop(seen, i);
        else
            seen->member[i].dead = dead;
    }
}

static size_t members_max(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? MIN((size_t)limit.rlim_cur / 4, MEMBERS_MAX)
                                                 : MEMBERS_MAX;
}

/* Find the live members: alive(&target->seen) then.  0, -EAGAIN (none, but not for certain) or -errno. */
static int find(struct sweep_target *target)
{
    struct walk walk = { .target = target, .members_max = members_max() };
    prune(&target->seen);
    int r = take_below(&walk, 0);

    struct proc_pids candidates = { 0 };
    if (r == 0)
        r = target->subreaper ? proc_children(getpid(), &candidates) : proc_all(&candidates);
    for (size_t i = 0; r == 0 && i < candidates.count; i++)
        r = consider(&walk, candidates.pid[i]);
    proc_pids_done(&candidates);
    prune(&target->seen);
    int count = alive(&target->seen);
    if ((r == -EMFILE || r == -ENFILE) && count > 0)
        return 0; /* so many: when these are gone the others are met */
    return r == 0 && walk.vanished && count == 0 ? -EAGAIN : r;
}

int sweep_count(struct sweep_target *target)
{
    int r = find(target);
    return r < 0 ? r : alive(&target->seen);
}

/* ---- signals ---- */

static int signal_all(const struct sweep_list *list, int sig)
{
    int count = 0;
    for (size_t i = 0; i < list->count; i++)
        count += !list->member[i].dead && os_pidfd_signal(list->member[i].pidfd, sig) == 0;
    return count;
}

int sweep_terminate(struct sweep_target *target)
{
    int r = find(target);
    int count = r < 0 ? 0 : signal_all(&target->seen, SIGTERM);
    return r < 0 && r != -EAGAIN ? r : count;
}

/* SIGSTOP whatever is found until a walk finds nothing new.  0, -EAGAIN (see find()) or -errno. */
static int stop_all(struct sweep_target *target)
{
    struct sweep_list *seen = &target->seen;
    for (int pass = 0; pass < STOP_PASSES; pass++) {
        int r = find(target);
        bool grown = r == -EAGAIN; /* try to meet the heir */
        for (size_t i = 0; r == 0 && i < seen->count; i++) {
            struct sweep_member *member = &seen->member[i];
            if (!member->stopped && !member->dead)
                grown |= os_pidfd_signal(member->pidfd, SIGSTOP) == 0;
            member->stopped = true;
        }
        if ((r < 0 && r != -EAGAIN) || !grown)
            return r;
    }
    return alive(seen) == 0 ? -EAGAIN : 0;
}

/* Rounds follow each other at once only while new members appear: what is merely slow to die, or cannot, is the caller's to ask
 * for again later.  The children file may miss an entry, so being empty is believed the second time (proc_pid_children(5)). */
int sweep_kill(struct sweep_target *target)
{
    struct sweep_list *seen = &target->seen;
    int first = 0, r = 0;
    uint64_t known = seen->next_serial;
    bool unsure = false, again = true;
    for (int round = 0; r == 0 && again && round < KILL_ROUNDS; round++) {
        r = stop_all(target);
        if (r == 0)
            (void)signal_all(seen, SIGKILL);
        unsure |= r == -EAGAIN;
        r = r == -EAGAIN ? 0 : r;
        if (first == 0)
            first = alive(seen);
        again = seen->next_serial != known || round == 0;
        known = seen->next_serial;
    }
    return r < 0 ? r : first == 0 && unsure ? -EAGAIN : first;
}

/* ---- without a target ---- */

void sweep_own_children(void)
{
    struct proc_pids children = { 0 };
    for (int wait_ms = 0;; wait_ms = MIN(wait_ms + 1, 50)) {
        children.count = 0;
        if (proc_children(getpid(), &children) == 0)
            for (size_t i = 0; i < children.count; i++) /* unreaped: the number is its own */
                (void)kill(children.pid[i], SIGKILL);
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
        if (all.pid[i] == getpid() || !proc_environ_has(all.pid[i], mark))
            continue;
        /* Once more with the process in hand: that number may have been somebody else's. */
        SCOPED_FD pidfd = os_pidfd_open(all.pid[i]);
        if (pidfd < 0 || proc_stat_read(all.pid[i], &stat) != 0 || proc_stat_dead(&stat) ||
            !proc_environ_has(all.pid[i], mark) || !unreaped(pidfd))
            continue;
        (void)os_pidfd_signal(pidfd, SIGKILL);
        count++;
    }
    proc_pids_done(&all);
    return r < 0 ? r : count;
}

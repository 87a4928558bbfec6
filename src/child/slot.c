/* slot.c - contract in slot.h. */
#include "child/slot.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include "child/probe.h"

#define CPU_PERIOD_US 100000
#define NAME_TRIES    10000 /* numbers that a dead worker of the same name may have left behind */

static const char *const controller[SLOT_LIMITS] = { "memory", "pids", "cpu" };
const char *const limit_names[6] = {
    "memory", "pids", "cpu", "cpu_time", "open_files", "file_size"
};

unsigned limits_asked(const struct spec_limits *limits)
{
    return (limits->memory_bytes > 0 ? LIMIT_MEMORY : 0u) | (limits->pids > 0 ? LIMIT_PIDS : 0u) |
           (limits->cpu > 0 ? LIMIT_CPU : 0u) | (limits->cpu_time_ms > 0 ? LIMIT_CPU_TIME : 0u) |
           (limits->open_files > 0 ? LIMIT_OPEN_FILES : 0u) |
           (limits->file_size_bytes > 0 ? LIMIT_FILE_SIZE : 0u);
}

static bool has_cgroup(enum spec_containment rung)
{
    return rung == CONTAIN_CGROUP || rung == CONTAIN_STRICT;
}

static bool has_keeper(enum spec_containment rung)
{
    return rung == CONTAIN_PIDNS || rung == CONTAIN_STRICT;
}

static const struct contain_hierarchy *limit_host(const struct contain_host *host, int limit,
                                                  bool *ret_v2)
{
    *ret_v2 = limit == SLOT_MEMORY ? host->memory_is_v2
              : limit == SLOT_PIDS ? host->pids_is_v2
                                   : host->cpu_is_v2;
    return limit == SLOT_MEMORY ? &host->memory : limit == SLOT_PIDS ? &host->pids : &host->cpu;
}

/* ---- the yard ---- */

#define PASS_ON "+memory +pids +cpu"

/* All processes of the cgroup `own` into a leaf of it. */
static void move_into_leaf(const struct yard *yard, int own)
{
    char path[CGROUP_PATH_MAX + 160], pid[16];
    struct proc_pids pids = { 0 };

    (void)snprintf(path, sizeof path, "%s/%s-self", yard->host.v2.base, yard->name);
    (void)mkdir(path, 0755);
    SCOPED_FD leaf = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int listed = cgroup_pids(own, &pids);
    for (size_t i = 0; listed == 0 && i < pids.count; i++) {
        (void)snprintf(pid, sizeof pid, "%d", pids.pid[i]);
        (void)cgroup_write(leaf, "cgroup.procs", pid);
    }
    proc_pids_done(&pids);
}

static void give_limits_up(struct contain_host *host, int error)
{
    struct contain_hierarchy *all[] = { &host->memory, &host->pids, &host->cpu };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        all[i]->usable = false;
        (void)snprintf(all[i]->why, sizeof all[i]->why, "pass the controllers on: %s",
                       strerror(-error));
    }
}

/* In a fresh version 2 cgroup tree processes and passed-on controllers exclude each other: move ourselves into a leaf first. */
static void delegate(struct yard *yard)
{
    struct contain_host *host = &yard->host;
    char passed[512] = "";

    if (!(host->memory_is_v2 && host->memory.usable))
        return;
    SCOPED_FD own = open(host->v2.base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)cgroup_read(own, "cgroup.subtree_control", passed, sizeof passed);
    if (!probe_word(passed, "memory") && cgroup_write(own, "cgroup.subtree_control", PASS_ON) < 0) {
        move_into_leaf(yard, own);
        int r = cgroup_write(own, "cgroup.subtree_control", PASS_ON);
        if (r < 0)
            give_limits_up(host, r);
    }
    SCOPED_FD base = open(yard->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)cgroup_write(base, "cgroup.subtree_control", PASS_ON);
}

int yard_init(struct yard *yard, const char *worker, struct kinship *kinship,
              struct mandor_err *err)
{
    *yard = (struct yard){ .kinship = kinship, .own_pidns = -1 };
    (void)pthread_mutex_init(&yard->lock, NULL);
    list_init(&yard->idle);
    int n = snprintf(yard->name, sizeof yard->name, "mandor-%s", worker);
    if (n >= (int)sizeof yard->name || strchr(worker, '/') != NULL || *worker == 0)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "worker name '%s': expected 1 to 100 characters without '/'", worker);

    probe_host(&yard->host, yard->name); /* which makes the base */
    if (yard->host.v2.usable) {
        (void)snprintf(yard->base, sizeof yard->base, "%.380s/%s", yard->host.v2.base, yard->name);
        delegate(yard);
    }
    for (int i = 0; i < SLOT_LIMITS; i++) { /* version 1 bases are made when a job needs them */
        bool v2;
        const struct contain_hierarchy *where = limit_host(&yard->host, i, &v2);
        if (where->usable && !v2)
            (void)snprintf(yard->limit_base[i], CGROUP_PATH_MAX, "%.380s/%s", where->base,
                           yard->name);
    }
    yard->own_pidns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    return 0;
}

/* Take one idle slot out, to destroy it; NULL when there is none. */
static struct slot *pop(struct yard *yard)
{
    (void)pthread_mutex_lock(&yard->lock);
    struct list *node = list_pop_front(&yard->idle);
    if (node != NULL)
        yard->idle_count--;
    (void)pthread_mutex_unlock(&yard->lock);
    return node == NULL ? NULL : LIST_ENTRY(node, struct slot, node);
}

/* ---- making a slot ---- */

static struct slot *slot_alloc(enum spec_containment rung)
{
    struct slot *slot = calloc(1, sizeof *slot);
    if (slot == NULL)
        return NULL;
    list_init(&slot->node);
    slot->rung = rung;
    slot->kept = true;
    slot->cgroup = slot->events = slot->oom_event = -1;
    for (int i = 0; i < SLOT_LIMITS; i++)
        slot->v1[i].dir = slot->v1[i].procs = -1;
    return slot;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* Where a directory of this slot is. */
static void slot_path(char ret[CGROUP_PATH_MAX], const char *base, const struct slot *slot)
{
    (void)snprintf(ret, CGROUP_PATH_MAX, "%.490s/%s", base, slot->name);
}

int slot_destroy(struct yard *yard, struct slot *slot)
{
    char path[CGROUP_PATH_MAX];
    slot->keeper = keeper_free(yard->kinship, slot->keeper);
    int r = 0;
    if (slot->cgroup >= 0) {
        slot_path(path, yard->base, slot);
        r = cgroup_remove(path);
    }
    for (int i = 0; i < SLOT_LIMITS; i++)
        if (slot->v1[i].dir >= 0) {
            slot_path(path, yard->limit_base[i], slot);
            int one = cgroup_remove(path);
            r = r == 0 ? one : r;
        }
    if (r == -EBUSY || r == -ENOTEMPTY)
        return -EBUSY;
    slot_abandon(slot);
    return 0;
}

/* Destroy it; what cannot be removed now is left to the next start's sweep. */
static void discard(struct yard *yard, struct slot *slot)
{
    if (slot_destroy(yard, slot) != 0)
        slot_abandon(slot);
}

void slot_abandon(struct slot *slot)
{
    close_fd(&slot->cgroup);
    close_fd(&slot->events);
    close_fd(&slot->oom_event);
    for (int i = 0; i < SLOT_LIMITS; i++) {
        close_fd(&slot->v1[i].dir);
        close_fd(&slot->v1[i].procs);
    }
    sweep_done(&slot->target);
    free(slot);
}

/* A keeper that was told to go may need a moment more. */
static void remove_base(const char *path)
{
    for (int tries = 0; cgroup_remove(path) == -EBUSY && tries < 50; tries++)
        (void)poll(NULL, 0, 10);
}

void yard_done(struct yard *yard)
{
    for (struct slot *slot; (slot = pop(yard)) != NULL;)
        discard(yard, slot);
    if (yard->base[0] != 0)
        remove_base(yard->base);
    for (int i = 0; i < SLOT_LIMITS; i++)
        if (yard->limit_base[i][0] != 0)
            remove_base(yard->limit_base[i]);
    if (yard->own_pidns >= 0)
        (void)close(yard->own_pidns);
    (void)pthread_mutex_destroy(&yard->lock);
}

static int open_cgroup(struct slot *slot, const char *path)
{
    slot->cgroup = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (slot->cgroup < 0) {
        int r = -errno;
        (void)rmdir(path);
        return r;
    }
    slot->events = openat(slot->cgroup, "cgroup.events", O_RDONLY | O_CLOEXEC);
    return slot->events < 0 ? -errno : 0;
}

/* A number that is free: a directory that exists was left by somebody dead and may be poisoned by cgroup.kill. */
static int make_cgroup(struct yard *yard, struct slot *slot)
{
    char path[CGROUP_PATH_MAX];
    for (int try = 0; try < NAME_TRIES; try++) {
        (void)snprintf(slot->name, sizeof slot->name, "s%" PRId64,
                       (int64_t)atomic_fetch_add(&yard->next, 1));
        slot_path(path, yard->base, slot);
        if (mkdir(path, 0755) == 0)
            return open_cgroup(slot, path);
        /* An empty base may have been swept away by a successor of the same name. */
        if (errno == ENOENT) {
            (void)mkdir(yard->base, 0755);
            continue;
        }
        if (errno != EEXIST)
            return -errno;
    }
    return -EEXIST;
}

static int slot_make(struct yard *yard, enum spec_containment rung, struct slot **ret,
                     struct mandor_err *err)
{
    struct slot *slot = slot_alloc(rung);
    if (slot == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "make a containment");

    int r = 0;
    if (has_cgroup(rung))
        r = make_cgroup(yard, slot);
    else
        (void)snprintf(slot->name, sizeof slot->name, "%c%" PRId64,
                       rung == CONTAIN_PIDNS ? 'n' : 'g',
                       (int64_t)atomic_fetch_add(&yard->next, 1));
    if (r < 0)
        (void)err_set(err, r, FAULT_HOST, "make a cgroup below '%s'", yard->base);
    else if (has_keeper(rung))
        r = keeper_new(yard->kinship, &slot->keeper, err);
    if (r < 0) {
        discard(yard, slot);
        return r;
    }
    *ret = slot;
    return 0;
}

/* ---- limits ---- */

static int write_number(int dir, const char *file, int64_t number)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRId64, number);
    return cgroup_write(dir, file, text);
}

/* A version 1 memory cgroup tells of an OOM through an eventfd that is registered in cgroup.event_control. */
static int watch_oom(struct slot *slot)
{
    int dir = slot->v1[SLOT_MEMORY].dir;
    SCOPED_FD control = openat(dir, "memory.oom_control", O_RDONLY | O_CLOEXEC);
    slot->oom_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (control < 0 || slot->oom_event < 0)
        return -errno;
    char text[32];
    (void)snprintf(text, sizeof text, "%d %d", slot->oom_event, control);
    return cgroup_write(dir, "cgroup.event_control", text);
}

static int set_memory(struct slot *slot, int dir, bool v2, int64_t bytes)
{
    if (v2) {
        int r = write_number(dir, "memory.max", bytes);
        (void)cgroup_write(dir, "memory.swap.max", "0");
        return r < 0 ? r : cgroup_write(dir, "memory.oom.group", "1");
    }
    int r = write_number(dir, "memory.limit_in_bytes", bytes);
    if (r == 0 && faccessat(dir, "memory.memsw.limit_in_bytes", F_OK, 0) == 0)
        r = write_number(dir, "memory.memsw.limit_in_bytes", bytes);
    return r < 0 ? r : watch_oom(slot);
}

static int set_cpu(int dir, bool v2, double cores)
{
    /* The kernel's least. */
    int64_t quota = MAX((int64_t)llround(cores * CPU_PERIOD_US), (int64_t)1000);
    char text[64];
    if (v2) {
        (void)snprintf(text, sizeof text, "%" PRId64 " %d", quota, CPU_PERIOD_US);
        return cgroup_write(dir, "cpu.max", text);
    }
    int r = write_number(dir, "cpu.cfs_period_us", CPU_PERIOD_US);
    return r < 0 ? r : write_number(dir, "cpu.cfs_quota_us", quota);
}

/* The directory in which a limit is set: the slot's version 2 one, or a version 1 one made now. */
static int limit_dir(struct yard *yard, struct slot *slot, int limit, bool v2)
{
    if (v2)
        return slot->cgroup;
    char path[CGROUP_PATH_MAX];
    if (mkdir(yard->limit_base[limit], 0755) != 0 && errno != EEXIST)
        return -errno;
    slot_path(path, yard->limit_base[limit], slot);
    /* Left by a dead worker: limits are set anew, nothing else is in it. */
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        return -errno;
    int dir = slot->v1[limit].dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    slot->v1[limit].procs = openat(dir, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    return slot->v1[limit].procs < 0 ? -errno : dir;
}

static int set_limit(struct yard *yard, struct slot *slot, int limit,
                     const struct spec_limits *limits, struct mandor_err *err)
{
    bool v2;
    const struct contain_hierarchy *where = limit_host(&yard->host, limit, &v2);
    if (!where->usable)
        return err_set(err, -EOPNOTSUPP, FAULT_JOB,
                       "limit '%s' cannot be enforced on this host: %s", controller[limit],
                       where->why);
    if (v2 && slot->cgroup < 0)
        return err_set(err, -EOPNOTSUPP, FAULT_JOB,
                       "limit '%s' cannot be enforced with containment '%s'", controller[limit],
                       spec_containment_name(slot->rung));

    slot->kept = false;
    int dir = limit_dir(yard, slot, limit, v2);
    int r = dir < 0              ? dir
            : limit == SLOT_PIDS ? write_number(dir, "pids.max", limits->pids)
            : limit == SLOT_CPU  ? set_cpu(dir, v2, limits->cpu)
                                 : set_memory(slot, dir, v2, limits->memory_bytes);
    slot->memory_limited |= r == 0 && limit == SLOT_MEMORY;
    if (r < 0)
        return err_set(err, -EOPNOTSUPP, FAULT_JOB,
                       "limit '%s' cannot be enforced: set it in '%s': %s", controller[limit],
                       where->base, strerror(-r));
    return 0;
}

static int set_limits(struct yard *yard, struct slot *slot, const struct spec_limits *limits,
                      enum spec_limits_policy policy, unsigned *ret_enforced,
                      struct mandor_err *err)
{
    unsigned asked = limits_asked(limits);
    /* Rlimits always hold. */
    unsigned enforced = asked & (LIMIT_CPU_TIME | LIMIT_OPEN_FILES | LIMIT_FILE_SIZE);
    for (int i = 0; i < SLOT_LIMITS; i++) {
        if ((asked & 1u << i) == 0)
            continue;
        int r = set_limit(yard, slot, i, limits, err);
        if (r < 0 && policy == LIMITS_STRICT)
            return r;
        if (r == 0)
            enforced |= 1u << i;
    }
    *ret_enforced = enforced;
    return 0;
}

/* ---- lending ---- */

static int check_rung(const struct yard *yard, enum spec_containment rung, struct mandor_err *err)
{
    const struct contain_host *host = &yard->host;
    if (has_cgroup(rung) && yard->base[0] == 0)
        return err_set(err, -EOPNOTSUPP, FAULT_JOB,
                       "containment '%s' cannot be had: cgroup version 2: %s",
                       spec_containment_name(rung), host->v2.why);
    if (has_keeper(rung) && !host->pidns)
        return err_set(err, -EOPNOTSUPP, FAULT_JOB, "containment '%s' cannot be had: %s",
                       spec_containment_name(rung), host->pidns_why);
    return 0;
}

/* An idle slot of this rung, or NULL.  Those whose keeper died meanwhile are destroyed. */
static struct slot *take_idle(struct yard *yard, enum spec_containment rung)
{
    struct slot *found = NULL;
    struct list dead = LIST_INIT(dead);
    (void)pthread_mutex_lock(&yard->lock);
    LIST_FOREACH(slot, &yard->idle, struct slot, node) {
        if (slot->keeper != NULL && atomic_load(&slot->keeper->dead)) {
            list_remove(&slot->node);
            yard->idle_count--;
            list_push_back(&dead, &slot->node);
        } else if (slot->rung == rung && found == NULL) {
            list_remove(&slot->node);
            yard->idle_count--;
            found = slot;
        }
    }
    (void)pthread_mutex_unlock(&yard->lock);

    for (struct list *node; (node = list_pop_front(&dead)) != NULL;)
        discard(yard, LIST_ENTRY(node, struct slot, node));
    return found;
}

int slot_take(struct yard *yard, enum spec_containment rung, const struct spec_limits *limits,
              enum spec_limits_policy policy, struct slot **ret, unsigned *ret_enforced,
              struct mandor_err *err)
{
    if (rung == CONTAIN_AUTO)
        rung = yard->host.automatic;
    int r = check_rung(yard, rung, err);
    if (r < 0)
        return r;

    struct slot *slot = take_idle(yard, rung);
    if (slot == NULL)
        r = slot_make(yard, rung, &slot, err);
    if (r < 0)
        return r;
    r = set_limits(yard, slot, limits, policy, ret_enforced, err);
    if (r < 0) {
        discard(yard, slot);
        return r;
    }
    if (rung == CONTAIN_GROUP)
        atomic_fetch_add(&yard->group_alive, 1);
    *ret = slot;
    return 0;
}

static void add_rlimit(struct spawn_plan *plan, int resource, rlim_t soft, rlim_t hard)
{
    size_t i = plan->rlimit_count++;
    plan->rlimits[i].resource = resource;
    plan->rlimits[i].limit = (struct rlimit){ .rlim_cur = soft, .rlim_max = hard };
}

void slot_plan(const struct slot *slot, const struct spec_limits *limits, struct spawn_plan *plan)
{
    plan->cgroup = slot->cgroup;
    plan->namespace_pidfd = slot->keeper == NULL ? -1 : slot->keeper->pidfd;
    plan->pid_namespace = slot->keeper != NULL;
    for (int i = 0; i < SLOT_LIMITS; i++)
        if (slot->v1[i].procs >= 0)
            plan->joins[plan->join_count++] = slot->v1[i].procs;

    /* Whole seconds; a second later what ignores SIGXCPU is killed. */
    if (limits->cpu_time_ms > 0) {
        rlim_t seconds = (rlim_t)((limits->cpu_time_ms + 999) / 1000);
        add_rlimit(plan, RLIMIT_CPU, seconds, seconds + 1);
    }
    if (limits->file_size_bytes > 0)
        add_rlimit(plan, RLIMIT_FSIZE, (rlim_t)limits->file_size_bytes,
                   (rlim_t)limits->file_size_bytes);
    if (limits->open_files > 0)
        add_rlimit(plan, RLIMIT_NOFILE, (rlim_t)limits->open_files, (rlim_t)limits->open_files);
}

int slot_enter(const struct slot *slot)
{
    return slot->keeper == NULL || setns(slot->keeper->pidfd, CLONE_NEWPID) == 0 ? 0 : -errno;
}

void slot_leave(const struct yard *yard, const struct slot *slot)
{
    if (slot->keeper != NULL && setns(yard->own_pidns, CLONE_NEWPID) != 0)
        BUG("cannot return to our own PID namespace");
}

/* ---- emptying ---- */

int slot_populated(const struct slot *slot)
{
    if (slot->events >= 0)
        return cgroup_populated(slot->events);
    if (slot->keeper != NULL && atomic_load(&slot->keeper->dead))
        return 0;
    return -EAGAIN;
}

int slot_count(struct yard *yard, struct slot *slot)
{
    if (slot->cgroup < 0 && slot->keeper == NULL)
        return sweep_count(&slot->target);
    if (slot->cgroup < 0)
        return keeper_reap(yard->kinship, slot->keeper, false) ? 0 : keeper_count(slot->keeper);

    struct proc_pids members = { 0 };
    int r = cgroup_pids(slot->cgroup, &members);
    int count = (int)members.count;
    proc_pids_done(&members);
    return r < 0 ? r : count;
}

int slot_terminate(struct slot *slot)
{
    int r = slot->cgroup >= 0      ? cgroup_terminate(slot->cgroup)
            : slot->keeper != NULL ? keeper_terminate(slot->keeper)
                                   : sweep_terminate(&slot->target);
    return MIN(r, 0);
}

int slot_kill(struct yard *yard, struct slot *slot)
{
    if (slot->rung == CONTAIN_GROUP)
        return sweep_kill(&slot->target);

    int count = slot_count(yard, slot);
    if (count == 0 && (slot->events < 0 || cgroup_populated(slot->events) == 0))
        return 0;
    int r = slot->cgroup >= 0 ? cgroup_kill(slot->cgroup) : 0;
    if (slot->keeper != NULL) {
        int one = keeper_kill(slot->keeper);
        r = r < 0 ? r : one;
    }
    return r < 0 ? r : MAX(count, 1);
}

bool slot_oom_killed(const struct slot *slot)
{
    if (!slot->memory_limited)
        return false;
    int dir = slot->v1[SLOT_MEMORY].dir;
    return (dir >= 0 ? cgroup_read_key(dir, "memory.oom_control", "oom_kill")
                     : cgroup_read_key(slot->cgroup, "memory.events", "oom_kill")) > 0;
}

/* Did the job leave the version 2 cgroup as it found it? */
static bool untouched(const struct slot *slot)
{
    struct stat st;
    return slot->cgroup < 0 || (fstat(slot->cgroup, &st) == 0 && st.st_nlink == 2);
}

struct slot *slot_give(struct yard *yard, struct slot *slot, bool clean)
{
    if (slot->rung == CONTAIN_GROUP) {
        atomic_fetch_sub(&yard->group_alive, 1);
        sweep_done(&slot->target);
    }
    if (slot->keeper != NULL)
        slot->keeper->owner = NULL;
    if (!clean || !slot->kept || !untouched(slot))
        return slot;

    (void)pthread_mutex_lock(&yard->lock);
    bool room = yard->idle_count < SLOT_IDLE_MAX;
    if (room) {
        list_push_front(&yard->idle, &slot->node); /* the warmest first */
        yard->idle_count++;
    }
    (void)pthread_mutex_unlock(&yard->lock);
    return room ? NULL : slot;
}

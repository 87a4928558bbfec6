/* contain.c - what this host can do; contract in contain.h. */
#include "child/contain.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "child/probe.h"
#include "os/cgroup.h"
#include "os/pidfd.h"
#include "os/spawn.h"

#define SLOT_NAME_ROOM 32
#define PROBE_PREFIX   "mandor-probe-"
#define PROBE_OLD_S    60

/* A name that no other process, thread or moment uses. */
static void probe_name(char *ret, size_t size, const char *own)
{
    static _Atomic unsigned count;
    (void)snprintf(ret, size, "%s/" PROBE_PREFIX "%d-%u", own, getpid(), count++);
}

/* Of a process that died in its probe.  One that probes now has made its cgroup a moment ago. */
static void sweep_probes(const char *own)
{
    DIR *dir = opendir(own);

    if (dir == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat st;
        char path[CGROUP_PATH_MAX + 300];
        if (strncmp(entry->d_name, PROBE_PREFIX, strlen(PROBE_PREFIX)) != 0 ||
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
            clock_wall_ms() / 1000 - st.st_mtime < PROBE_OLD_S)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", own, entry->d_name);
        (void)cgroup_remove(path); /* only an empty one goes */
    }
    (void)closedir(dir);
}

static void unusable(struct contain_hierarchy *hierarchy, int error, const char *what)
{
    hierarchy->usable = false;
    (void)snprintf(hierarchy->why, sizeof hierarchy->why, "%s: %s", what, strerror(-error));
}

/* Find a hierarchy: where is our own cgroup in it?  unread: self could not be had, -errno. */
static bool locate(const struct cgroup_self *self, int unread, const char *controller,
                   struct contain_hierarchy *ret)
{
    *ret = (struct contain_hierarchy){ 0 };
    int r = unread < 0 ? unread : cgroup_own(self, controller, ret->base);
    if (r == -ENOENT) {
        (void)snprintf(ret->why, sizeof ret->why, "not mounted");
        return false;
    }
    ret->mounted = true;
    if (r < 0)
        unusable(ret, r,
                 r == -EXDEV ? "this process's cgroup is outside of what is mounted"
                             : "find own cgroup");
    return r >= 0;
}

/* Try to make a cgroup there, or take over an empty one of this name that was left behind; `made` is its path ("" = none). */
static void try_make(struct contain_hierarchy *ret, const char *name, char made[CGROUP_PATH_MAX])
{
    made[0] = 0;
    sweep_probes(ret->base);
    char probe[CGROUP_PATH_MAX + 160];
    if (name == NULL)
        probe_name(probe, sizeof probe, ret->base);
    else
        (void)snprintf(probe, sizeof probe, "%s/%s", ret->base, name);
    if (strlen(probe) >= CGROUP_PATH_MAX - SLOT_NAME_ROOM) {
        unusable(ret, -ENAMETOOLONG, "own cgroup");
        return;
    }
    if (mkdir(probe, 0755) != 0 && (name == NULL || errno != EEXIST)) {
        unusable(ret, -errno, "make a cgroup below the own one");
        return;
    }
    ret->usable = true;
    memcpy(made, probe, strlen(probe) + 1);
}

CHILD_SIDE static void leave_at_once(void *arg)
{
    (void)arg;
    for (;;)
        (void)syscall(SYS_exit_group, 0);
}

CHILD_SIDE static void try_proc_mount(void *arg)
{
    (void)arg;
    int code = syscall(SYS_mount, "none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
                       syscall(SYS_mount, "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC,
                               NULL) < 0
                   ? errno
                   : 0;
    for (;;)
        (void)syscall(SYS_exit_group, code);
}

/* Fork, run fn, wait.  Returns its exit code (>= 0) or -errno of the clone. */
static int try_fork(uint64_t flags, int cgroup, void (*fn)(void *))
{
    struct spawn_result born;
    int r = spawn_fork(flags, cgroup, NULL, fn, NULL, &born);
    if (r < 0)
        return r;
    siginfo_t info;
    r = os_pidfd_reap(born.pidfd, true, &info, NULL);
    (void)close(born.pidfd);
    return r < 0 ? r : info.si_code == CLD_EXITED ? info.si_status : -ECANCELED;
}

/* Version 2: what beside the directory works.  Whoever has cgroup.kill (Linux 5.14) has CLONE_INTO_CGROUP (5.7), and root may use it
 * where no filter takes clone3 away: that need not be tried at every start. */
static void probe_v2(struct contain_host *host, const char *made, bool thorough)
{
    SCOPED_FD dir = open(made, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        unusable(&host->v2, -errno, "open the new cgroup");
        return;
    }
    host->cgroup_kill = faccessat(dir, "cgroup.kill", W_OK, 0) == 0;
    bool sure = !thorough && host->cgroup_kill && geteuid() == 0 && spawn_has_clone3();
    int r = sure ? 0 : try_fork(0, dir, leave_at_once);
    host->clone_into_cgroup = r >= 0;
    if (r < 0)
        unusable(&host->v2, r, "start a process in the new cgroup (CLONE_INTO_CGROUP, Linux 5.7)");
}

/* Controllers can be passed on when the own cgroup passes them already, is the root, or holds only us and our guard, which can move. */
static bool can_delegate(const char *own, char *why, size_t size)
{
    SCOPED_FD dir = open(own, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char passed[512];
    if (dir < 0 || cgroup_read(dir, "cgroup.subtree_control", passed, sizeof passed) < 0) {
        (void)snprintf(why, size, "'%.120s': %s", own, strerror(errno));
        return false;
    }
    if (probe_word(passed, "memory") && probe_word(passed, "pids") && probe_word(passed, "cpu"))
        return true;
    if (faccessat(dir, "cgroup.subtree_control", W_OK, 0) != 0) {
        (void)snprintf(why, size, "may not write '%.120s/cgroup.subtree_control'", own);
        return false;
    }
    if (faccessat(dir, "cgroup.type", F_OK, 0) != 0)
        return true; /* the root has no such file, and no rule against processes of its own */

    struct proc_pids pids = { 0 };
    char line[16];
    ssize_t r = cgroup_read(dir, "cgroup.procs", line, sizeof line); /* not of a threaded one */
    if (r >= 0)
        r = cgroup_pids(dir, &pids);
    if (r < 0)
        (void)snprintf(why, size, "'%.120s/cgroup.procs': %s", own, strerror((int)-r));
    bool alone = r == 0;
    for (size_t i = 0; i < pids.count; i++)
        if (pids.pid[i] != getpid() && pids.pid[i] != getppid()) {
            alone = false;
            (void)snprintf(
                why, size,
                "process %d is in '%.100s' too: start mandor in a cgroup of its own (Delegate=yes)",
                pids.pid[i], own);
            break;
        }
    proc_pids_done(&pids);
    return alone;
}

/* A controller: in its own version 1 hierarchy, or in version 2 when that one offers it. */
static void probe_controller(struct contain_host *host, const struct cgroup_self *self, int unread,
                             const char *name, struct contain_hierarchy *ret, bool *is_v2,
                             bool thorough)
{
    char made[CGROUP_PATH_MAX];
    *is_v2 = false;
    if (locate(self, unread, name, ret) && thorough) {
        try_make(ret, NULL, made);
        if (made[0] != 0)
            (void)cgroup_remove(made);
    } else if (ret->mounted && ret->why[0] == 0) {
        /* Few jobs have limits: mkdir(2) will tell those. */
        ret->usable = access(ret->base, W_OK) == 0;
        if (!ret->usable)
            unusable(ret, -errno, "make a cgroup below the own one");
    }
    if (ret->mounted || !host->v2.usable)
        return;

    SCOPED_FD own = open(host->v2.base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char offered[512];
    bool there = own >= 0 && cgroup_read(own, "cgroup.controllers", offered, sizeof offered) >= 0 &&
                 probe_word(offered, name);
    if (!there) {
        (void)snprintf(ret->why, sizeof ret->why, "the %s controller is not delegated to '%.120s'",
                       name, host->v2.base);
        return;
    }
    *ret = host->v2;
    *is_v2 = true;
    ret->usable = can_delegate(host->v2.base, ret->why, sizeof ret->why);
}

bool probe_word(const char *list, const char *word)
{
    size_t want = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += want) {
        bool begins = at == list || at[-1] == ' ';
        if (begins && (at[want] == 0 || at[want] == ' ' || at[want] == '\n'))
            return true;
    }
    return false;
}

static void probe_pidns(struct contain_host *host, bool try_it)
{
    int r = try_it           ? try_fork(CLONE_NEWPID | CLONE_NEWNS, -1, try_proc_mount)
            : geteuid() == 0 ? 0
                             : -EPERM;
    host->pidns = r == 0;
    if (r != 0)
        (void)snprintf(host->pidns_why, sizeof host->pidns_why, "%s: %s",
                       r < 0 ? "make a PID namespace (needs CAP_SYS_ADMIN)"
                             : "mount /proc in a new PID namespace",
                       strerror(abs(r)));
}

/* Tests say which rung they want to see. */
static void narrow(struct contain_host *host, const char *wish)
{
    bool no_cgroup = str_eq(wish, "group") || str_eq(wish, "pidns");
    bool no_pidns = str_eq(wish, "group") || str_eq(wish, "cgroup");
    if (no_cgroup) {
        host->v2.usable = false;
        (void)snprintf(host->v2.why, sizeof host->v2.why, "MANDOR_CONTAINMENT=%s", wish);
        if (host->memory_is_v2)
            host->memory = host->v2;
        if (host->pids_is_v2)
            host->pids = host->v2;
        if (host->cpu_is_v2)
            host->cpu = host->v2;
    }
    if (no_pidns) {
        host->pidns = false;
        (void)snprintf(host->pidns_why, sizeof host->pidns_why, "MANDOR_CONTAINMENT=%s", wish);
    }
}

void probe_host(struct contain_host *ret, const char *name)
{
    bool thorough = name == NULL;
    struct cgroup_self self = { 0 };
    int unread = cgroup_self_read(&self);
    char made[CGROUP_PATH_MAX] = "";
    *ret = (struct contain_host){ 0 };
    if (locate(&self, unread, "", &ret->v2))
        try_make(&ret->v2, name, made);
    if (made[0] != 0)
        probe_v2(ret, made, thorough);
    probe_controller(ret, &self, unread, "memory", &ret->memory, &ret->memory_is_v2, thorough);
    probe_controller(ret, &self, unread, "pids", &ret->pids, &ret->pids_is_v2, thorough);
    probe_controller(ret, &self, unread, "cpu", &ret->cpu, &ret->cpu_is_v2, thorough);
    cgroup_self_done(&self);
    probe_pidns(ret, thorough || !ret->v2.usable);

    const char *wish = getenv("MANDOR_CONTAINMENT");
    if (wish != NULL && *wish != 0)
        narrow(ret, wish);
    if (made[0] != 0 && (thorough || !ret->v2.usable))
        (void)cgroup_remove(made);
    ret->automatic = ret->v2.usable ? CONTAIN_CGROUP : ret->pidns ? CONTAIN_PIDNS : CONTAIN_GROUP;
    if (wish != NULL && str_eq(wish, "strict"))
        ret->automatic = CONTAIN_STRICT;
}

void contain_probe(struct contain_host *ret)
{
    probe_host(ret, NULL);
}

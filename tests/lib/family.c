/* family.c - contract in family.h. */
#include "family.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "os/proc.h"
#include "os/tree.h"

#define EVENT_MS 60000 /* for what comes; a sanitizer or a busy machine makes it slow */

static void family_closed(void *arg)
{
    *(bool *)arg = true;
}

void family_open(struct family *family, const char *name, bool adopt)
{
    memset(family, 0, sizeof *family);
    (void)prctl(PR_SET_CHILD_SUBREAPER, adopt ? 1 : 0);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)snprintf(family->dir, sizeof family->dir, "/tmp/mandor-test-%d", getpid());
    ck_assert_int_eq(uv_loop_init(&family->loop), 0);
    (void)uv_timer_init(&family->loop, &family->deadline);
    char full[64];
    (void)snprintf(full, sizeof full, "%s-%d", name, getpid());
    struct nursery_options options = {
        .name = full, .scratch_dir = family->dir, .adopt_orphans = adopt, .guard_fd = -1
    };
    struct mandor_err err = { 0 };
    struct contain_host
        tried; /* a nursery that has cgroups believes in PID namespaces: in a chroot there are none */
    contain_probe(&tried);
    ck_assert_msg(nursery_new(&family->loop, &options, &family->nursery, &err) == 0, "%s", err.msg);
    family->host = *nursery_host(family->nursery);
    family->host.pidns = tried.pidns;
    memcpy(family->host.pidns_why, tried.pidns_why, sizeof tried.pidns_why);
}

void family_close(struct family *family)
{
    nursery_close(family->nursery, family_closed, &family->closed);
    UNTIL(family, &family->closed);
    uv_close((uv_handle_t *)&family->deadline, NULL);
    (void)uv_run(&family->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&family->loop), 0);
    (void)tree_remove(family->dir);
}

static void read_out(struct member *member)
{
    for (ssize_t n; member->pipes.out >= 0 && member->out_len < sizeof member->out - 1;) {
        n = read(member->pipes.out, member->out + member->out_len,
                 sizeof member->out - 1 - member->out_len);
        if (n <= 0)
            break;
        member->out_len += (size_t)n;
    }
    member->out[member->out_len] = 0;
}

static void on_spawned(struct child *child, pid_t pid, const struct child_pipes *adopt, void *arg)
{
    struct member *member = arg;
    ck_assert(!member->spawned && !member->exited);
    ck_assert_int_eq(child_pid(child), pid);
    member->spawned = true;
    member->pid = pid;
    member->pipes = *adopt;
}

static void on_exited(struct child *child, const struct verdict *verdict, void *arg)
{
    struct member *member = arg;
    ck_assert(!member->exited); /* I1: once */
    member->exited = true;
    member->verdict = *verdict;
    if (!member->keep)
        child_empty(child);
}

static void on_empty(struct child *child, void *arg)
{
    struct member *member = arg;
    (void)child;
    ck_assert(member->exited && !member->empty);
    member->empty = true;
    read_out(member);
}

static void on_kill_pending(struct child *child, void *arg)
{
    struct member *member = arg;
    (void)child;
    ck_assert(!member->kill_pending);
    member->kill_pending = true;
}

static const struct child_events events = { on_spawned, on_exited, on_empty, on_kill_pending };

void member_init(struct member *member, struct family *family, enum spec_containment rung,
                 char *const *argv)
{
    static int count;
    memset(member, 0, offsetof(struct member, out));
    member->out_len = 0;
    member->family = family;
    member->pipes = (struct child_pipes){ -1, -1, -1, -1 };
    for (int i = 0; argv[i] != NULL; i++)
        member->argv[i] = argv[i];
    (void)snprintf(member->mark, sizeof member->mark, "FAMILY=%d.%d.", getpid(), count);
    member->envp[0] = (char *)(uintptr_t) "PATH=/usr/local/bin:/usr/bin:/bin";
    member->envp[1] = member->mark;
    static char labels[4096][16];
    (void)snprintf(labels[count % 4096], 16, "%d.1", count);
    member->launch = (struct child_launch){
        .label = labels[count % 4096],
        .argv = member->argv,
        .envp = member->envp,
        .no_new_privs = true,
        .stdout_fd = -1,
        .stderr_fd = -1,
        .inherit_stderr = true,
        .containment = rung,
    };
    count++;
}

void member_sh(struct member *member, struct family *family, enum spec_containment rung,
               const char *script)
{
    char *argv[] = { (char *)(uintptr_t) "/bin/sh", (char *)(uintptr_t) "-c",
                     (char *)(uintptr_t)script, NULL };
    member_init(member, family, rung, argv);
}

void member_start(struct member *member)
{
    ck_assert_int_eq(
        child_start(member->family->nursery, &member->launch, &events, member, &member->child), 0);
}

static void on_deadline(uv_timer_t *timer)
{
    struct family *family = CONTAINER_OF(timer, struct family, deadline);
    family->timed_out = true;
    uv_stop(&family->loop);
}

void family_until(struct family *family, const bool *flag, const char *what)
{
    family->timed_out = false;
    (void)uv_timer_start(&family->deadline, on_deadline, EVENT_MS, 0);
    while (!*flag && !family->timed_out)
        (void)uv_run(&family->loop, UV_RUN_ONCE);
    (void)uv_timer_stop(&family->deadline);
    ck_assert_msg(*flag, "%s did not come within %d ms", what, EVENT_MS);
}

void family_pass(struct family *family, int ms)
{
    family->timed_out = false;
    (void)uv_timer_start(&family->deadline, on_deadline, (uint64_t)ms, 0);
    while (!family->timed_out)
        (void)uv_run(&family->loop, UV_RUN_ONCE);
}

/* Alive, no zombies, of this mark; comm: with this name only, unless NULL. */
static int alive(const char *mark, const char *comm)
{
    struct proc_pids all = { 0 };
    ck_assert_int_eq(proc_all(&all), 0);
    int count = 0;
    for (size_t i = 0; i < all.count; i++) {
        struct proc_stat stat;
        char path[64], name[32] = "";
        (void)snprintf(path, sizeof path, "/proc/%d/comm", all.pid[i]);
        int fd = comm != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        ssize_t n = fd >= 0 ? read(fd, name, sizeof name - 1) : 0;
        name[n > 0 ? n - 1 : 0] = 0;
        if (fd >= 0)
            (void)close(fd);
        count += (comm == NULL || strcmp(name, comm) == 0) && proc_environ_has(all.pid[i], mark) &&
                 proc_stat_read(all.pid[i], &stat) == 0 && stat.state != 'Z';
    }
    proc_pids_done(&all);
    return count;
}

void family_until_alive(struct family *family, const char *mark, const char *comm, int count)
{
    int seen;
    for (int64_t end = clock_mono_ms() + EVENT_MS;
         (seen = alive(mark, comm)) < count && clock_mono_ms() < end; family_pass(family, 10))
        continue;
    ck_assert_int_ge(seen, count);
}

void member_until_said(struct member *member)
{
    int64_t end = clock_mono_ms() + EVENT_MS;
    for (read_out(member); member->out_len == 0 && clock_mono_ms() < end; read_out(member))
        family_pass(member->family, 5);
    ck_assert_int_gt(member->out_len, 0);
}

void member_until_state(struct member *member, char state)
{
    int64_t end = clock_mono_ms() + EVENT_MS;
    struct proc_stat stat = { 0 };
    while (proc_stat_read(member->pid, &stat) == 0 && stat.state != state && clock_mono_ms() < end)
        family_pass(member->family, 5);
    ck_assert_int_eq(stat.state, state);
}

void family_until_reaped(struct family *family)
{
    int seen;
    for (int64_t end = clock_mono_ms() + EVENT_MS;
         (seen = own_zombies()) > 0 && clock_mono_ms() < end; family_pass(family, 5))
        continue;
    ck_assert_int_eq(seen, 0);
}

void member_run(struct member *member)
{
    member_start(member);
    UNTIL(member->family, &member->empty);
    ck_assert_int_eq(marked_alive(member->mark), 0); /* I3 */
}

void member_done(struct member *member)
{
    int *fds[] = { &member->pipes.in, &member->pipes.out, &member->pipes.err,
                   &member->pipes.channel };
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (*fds[i] >= 0)
            (void)close(*fds[i]);
    child_close(member->child);
}

int marked_alive(const char *mark)
{
    return alive(mark, NULL);
}

void until_alive(const char *mark, int count)
{
    int seen;
    for (int64_t end = clock_mono_ms() + EVENT_MS;
         (seen = marked_alive(mark)) < count && clock_mono_ms() < end; (void)poll(NULL, 0, 10))
        continue;
    ck_assert_int_ge(seen, count);
}

int open_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir) != NULL)
        count++;
    (void)closedir(dir);
    return count - 3; /* ".", ".." and dir itself */
}

int own_zombies(void)
{
    struct proc_pids children = { 0 };
    ck_assert_int_eq(proc_children(getpid(), &children), 0);
    int zombies = 0;
    for (size_t i = 0; i < children.count; i++) {
        struct proc_stat stat;
        zombies += proc_stat_read(children.pid[i], &stat) == 0 && stat.state == 'Z';
    }
    proc_pids_done(&children);
    return zombies;
}

int own_cgroups(const struct family *family)
{
    DIR *dir = opendir(family->host.v2.base);
    int count = 0;
    if (dir == NULL)
        return 0;
    char name[64];
    (void)snprintf(name, sizeof name, "-%d", getpid());
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += strstr(entry->d_name, name) != NULL;
    (void)closedir(dir);
    return count;
}

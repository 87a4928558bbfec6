/* launch.c - from request to exec(2), on the spawner thread.
 *
 * All that a child needs is made before the clone: containment, directories, descriptors, environment, program path.  Each step
 * that fails names its stage; launch_release() then takes back whatever was made.
 */
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "child/child_int.h"
#include "os/pidfd.h"

#define DEFAULT_PATH   "/usr/local/bin:/usr/bin:/bin"
#define OOM_SCORE_ADJ  300
#define ARG_STRING_MAX 131072 /* MAX_ARG_STRLEN: 32 pages, execve(2) */
#define USER_ENTRY_MAX 16384  /* bytes of a user's or group's entry, members and all */
#define FD_FLOOR       10     /* sources of dup2 stay clear of the child's 0..3 */

/* What lives only during one launch. */
struct launch {
    struct child *child;
    struct spawn_plan plan;
    struct spawn_result result;
    char **envp, *path_text, *path, *cwd;
    char *tmp_var;
    gid_t *groups;
    int ends[SPAWN_STDIO]; /* the child's ends of the pipes */
};

#define fail launch_fail

int launch_note(struct child *child, enum spawn_stage stage, const struct mandor_err *err)
{
    child->failed = err->code;
    child->failed_stage = stage;
    (void)snprintf(child->error, sizeof child->error, "%s", err->msg);
    return err->code;
}

static int fail_in_words(struct child *child, enum spawn_stage stage, int error, bool system_too,
                         const char *fmt, va_list args)
{
    struct mandor_err err;
    char text[sizeof err.msg];

    (void)vsnprintf(text, sizeof text, fmt, args);
    if (system_too)
        (void)err_set(&err, error, FAULT_HOST, "%s", text);
    else
        (void)err_say(&err, error, FAULT_HOST, "%s", text);
    return launch_note(child, stage, &err);
}

int launch_fail(struct child *child, enum spawn_stage stage, int error, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int r = fail_in_words(child, stage, error, true, fmt, args);
    va_end(args);
    return r;
}

/* Where the sentence says it all and strerror(3) behind it would only puzzle. */
__attribute__((format(printf, 4, 5))) static int fail_saying(struct child *child,
                                                             enum spawn_stage stage, int error,
                                                             const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int r = fail_in_words(child, stage, error, false, fmt, args);
    va_end(args);
    return r;
}

/* ---- descriptors ---- */

static int lift(int fd)
{
    if (fd < 0 || fd > SPAWN_STDIO)
        return fd;
    int lifted = fcntl(fd, F_DUPFD_CLOEXEC, FD_FLOOR);
    (void)close(fd);
    return lifted;
}

/* A pipe whose far end is the child's (blocking) and whose near end is ours (not). */
int launch_pipe(int *near, int *far, bool we_read)
{
    int pair[2];
    if (pipe2(pair, O_CLOEXEC) != 0)
        return -errno;
    *near = lift(pair[we_read ? 0 : 1]);
    *far = lift(pair[we_read ? 1 : 0]);
    if (*near < 0 || *far < 0 || fcntl(*near, F_SETFL, O_NONBLOCK) != 0)
        return -errno;
    return 0;
}

static int make_stdio(struct launch *launch)
{
    struct child *child = launch->child;
    const struct child_launch *want = &child->launch;
    struct child_pipes *pipes = &child->pipes;
    int *stdio = launch->plan.stdio, *ends = launch->ends;
    stdio[0] = want->inherit_stdin ? -1 : child->nursery->dev_null;
    stdio[1] = child->given[0];
    stdio[2] = child->given[1];
    stdio[3] = child->given[2];

    int r = 0;
    if (want->want_stdin && (r = launch_pipe(&pipes->in, &ends[0], false)) == 0)
        stdio[0] = ends[0];
    if (r == 0 && !want->inherit_stdout && child->given[0] < 0 &&
        (r = launch_pipe(&pipes->out, &ends[1], true)) == 0)
        stdio[1] = ends[1];
    if (r == 0 && !want->inherit_stderr && child->given[1] < 0 &&
        (r = launch_pipe(&pipes->err, &ends[2], true)) == 0)
        stdio[2] = ends[2];
    if (r == 0 && want->want_channel && child->given[2] < 0 &&
        (r = launch_pipe(&pipes->channel, &ends[3], true)) == 0)
        stdio[3] = ends[3];
    return r < 0 ? fail(child, STAGE_PREPARE, r, "make the job's pipes") : 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void close_given(struct child *child)
{
    for (size_t i = 0; i < ARRAY_LEN(child->given); i++)
        close_fd(&child->given[i]);
}

void launch_release(struct child *child)
{
    close_fd(&child->pipes.in);
    close_fd(&child->pipes.out);
    close_fd(&child->pipes.err);
    close_fd(&child->pipes.channel);
    close_given(child);
}

/* ---- directories ---- */

static int make_fresh(struct child *child, const char *kind, char **ret)
{
    struct scratch *scratch = &child->nursery->scratch;
    int r = scratch_take(scratch, child->label, kind, ret);
    return r < 0 ? fail(child, STAGE_PREPARE, r, "make a fresh directory below '%s'", scratch->dir)
                 : 0;
}

static int make_directories(struct launch *launch)
{
    struct child *child = launch->child;
    int r = make_fresh(child, "tmp", &child->tmp_dir);
    if (r == 0 && child->launch.cwd == NULL)
        r = make_fresh(child, "work", &child->work_dir);
    if (r < 0)
        return r;

    launch->plan.cwd = child->launch.cwd == NULL ? child->work_dir : child->launch.cwd;
    if (launch->plan.set_user &&
        (chown(child->tmp_dir, launch->plan.uid, launch->plan.gid) != 0 ||
         (child->work_dir != NULL &&
          chown(child->work_dir, launch->plan.uid, launch->plan.gid) != 0)))
        return errno == EPERM ? fail_saying(child, STAGE_USER, -EPERM,
                                            "only root may run jobs as another user")
                              : fail(child, STAGE_PREPARE, -errno,
                                     "give the fresh directories to the job's user");
    return 0;
}

/* ---- user ---- */

/* Digits alone are a number: 1 and *ret, or -EINVAL.  0: a name.  The highest id means "leave it as it is" to the kernel, and
 * what is higher would be cut to somebody else's, root's among them. */
static int number_of(const char *text, uint32_t *ret)
{
    uint64_t number = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || text[digits] != 0)
        return 0;
    for (size_t i = 0; i < digits; i++)
        number = MIN(number * 10 + (uint64_t)(text[i] - '0'), (uint64_t)UINT32_MAX);
    if (number == UINT32_MAX)
        return -EINVAL;
    *ret = (uint32_t)number;
    return 1;
}

/* entry and buffer: what *found points at, or NULL where the number belongs to nobody. */
static int find_uid(struct launch *launch, struct passwd *entry, char *buffer, size_t size,
                    struct passwd **found)
{
    struct child *child = launch->child;
    const char *user = child->launch.user;
    uint32_t number = 0;
    int numeric = number_of(user, &number);

    if (numeric < 0)
        return fail(child, STAGE_USER, numeric, "user '%s'", user);
    int r = numeric ? getpwuid_r((uid_t)number, entry, buffer, size, found)
                    : getpwnam_r(user, entry, buffer, size, found);
    if (*found == NULL && !numeric && (r == 0 || r == ENOENT))
        return fail_saying(child, STAGE_USER, -ENOENT, "this machine has no user '%.100s'", user);
    if (*found == NULL && !numeric)
        return fail(child, STAGE_USER, -r, "look for user '%s'", user);
    launch->plan.uid = *found == NULL ? (uid_t)number : entry->pw_uid;
    if (*found != NULL)
        launch->plan.gid = entry->pw_gid;
    return 0;
}

static int find_gid(struct launch *launch)
{
    struct child *child = launch->child;
    const char *group = child->launch.group;
    struct group entry, *found = NULL;
    char buffer[USER_ENTRY_MAX];
    uint32_t number = 0;
    int numeric = number_of(group, &number);

    if (numeric < 0)
        return fail(child, STAGE_USER, numeric, "group '%s'", group);
    int r = numeric ? 0 : getgrnam_r(group, &entry, buffer, sizeof buffer, &found);
    if (found == NULL && !numeric)
        return fail(child, STAGE_USER, r == 0 ? -ENOENT : -r, "group '%s'", group);
    launch->plan.gid = numeric ? (gid_t)number : entry.gr_gid;
    return 0;
}

/* All groups of a user with a name, else the one that the job runs with. */
static int list_groups(struct launch *launch, const struct passwd *user)
{
    struct child *child = launch->child;
    struct spawn_plan *plan = &launch->plan;
    int count = 1;

    if (user != NULL) {
        count = 0;
        (void)getgrouplist(user->pw_name, plan->gid, NULL, &count);
    }
    launch->groups = calloc((size_t)MAX(count, 1), sizeof *launch->groups);
    if (launch->groups == NULL)
        return fail(child, STAGE_USER, -ENOMEM, "list groups");
    launch->groups[0] = plan->gid;
    if (user != NULL && getgrouplist(user->pw_name, plan->gid, launch->groups, &count) < 0)
        return fail(child, STAGE_USER, -EAGAIN, "list the groups of '%s'", child->launch.user);
    plan->groups = launch->groups;
    plan->group_count = (size_t)count;
    return 0;
}

static int find_user(struct launch *launch)
{
    const struct child_launch *want = &launch->child->launch;
    struct spawn_plan *plan = &launch->plan;
    struct passwd entry, *found = NULL;
    char buffer[USER_ENTRY_MAX];
    int r = 0;

    if (want->user == NULL && want->group == NULL)
        return 0;
    plan->set_user = true;
    plan->uid = geteuid();
    plan->gid = getegid();
    if (want->user != NULL)
        r = find_uid(launch, &entry, buffer, sizeof buffer, &found);
    if (r == 0 && want->group != NULL)
        r = find_gid(launch);
    return r == 0 ? list_groups(launch, found) : r;
}

/* ---- environment and program ---- */

static bool names(const char *var, const char *name)
{
    size_t len = strlen(name);
    return strncmp(var, name, len) == 0 && var[len] == '=';
}

/* The job's environment with our TMPDIR and MANDOR_FD in it. */
static int make_environment(struct launch *launch)
{
    struct child *child = launch->child;
    char *const *given = child->launch.envp;
    size_t count = 0;
    while (given != NULL && given[count] != NULL)
        count++;
    launch->envp = calloc(count + 3, sizeof *launch->envp);
    if (launch->envp == NULL || asprintf(&launch->tmp_var, "TMPDIR=%s", child->tmp_dir) < 0)
        return fail(child, STAGE_PREPARE, -ENOMEM, "make the job's environment");

    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (names(given[i], "PATH"))
            launch->path_text = given[i] + strlen("PATH=");
        if (!names(given[i], "TMPDIR") && !names(given[i], "MANDOR_FD"))
            launch->envp[at++] = given[i];
    }
    launch->envp[at++] = launch->tmp_var;
    if (child->launch.want_channel || child->launch.channel_fd > 0)
        launch->envp[at++] = (char *)(uintptr_t) "MANDOR_FD=3";
    return 0;
}

/* One place of the PATH: 1 (found), 0 (nothing there), -EACCES (there, but may not be run), -ENOMEM. */
static int try_place(struct launch *launch, const char *dir, size_t dir_len, const char *name)
{
    char *path = NULL;
    /* A relative place is the job's. */
    const char *cwd = dir_len > 0 && *dir == '/' ? "" : launch->plan.cwd;
    if (asprintf(&path, "%s%s%.*s%s%s", cwd, *cwd == 0 ? "" : "/", (int)dir_len, dir,
                 dir_len == 0 ? "" : "/", name) < 0)
        return -ENOMEM;

    struct stat st;
    int r = 0;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        r = faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) == 0 ? 1 : -EACCES;
    if (r == 1)
        launch->path = path;
    else
        free(path);
    return r;
}

static int find_program(struct launch *launch)
{
    struct child *child = launch->child;
    const char *name = child->launch.argv[0];
    if (strchr(name, '/') != NULL) {
        launch->plan.path = name;
        return 0;
    }

    bool forbidden = false;
    const char *path = launch->path_text == NULL ? DEFAULT_PATH : launch->path_text, *place = path;
    for (bool more = *name != 0; more;) {
        const char *end = strchrnul(place, ':');
        int r = try_place(launch, place, (size_t)(end - place), name);
        if (r == 1) {
            launch->plan.path = launch->path;
            return 0;
        }
        if (r == -ENOMEM)
            return fail(child, STAGE_LOOKUP, r, "look for '%s'", name);
        forbidden |= r == -EACCES;
        more = *end != 0;
        place = end + 1;
    }
    if (forbidden)
        return fail_saying(
            child, STAGE_LOOKUP, -EACCES,
            "'%.60s' is in the job's PATH, but may not be executed: permission denied", name);
    return fail_saying(child, STAGE_LOOKUP, -ENOENT,
                       "no program '%.60s' in the job's PATH (%.100s%s)", name, path,
                       strlen(path) > 100 ? "…" : "");
}

/* ---- what failed in the child, in words ---- */

/* execve(2) says only E2BIG: name the string, or the sum. */
static int explain_too_big(struct child *child)
{
    for (int i = 0; child->launch.argv[i] != NULL; i++)
        if (strlen(child->launch.argv[i]) >= ARG_STRING_MAX)
            return fail(child, STAGE_EXEC, -E2BIG,
                        "argument %d has %zu bytes, at most %d are possible (use stdin)", i,
                        strlen(child->launch.argv[i]), ARG_STRING_MAX - 1);
    for (int i = 0; child->launch.envp != NULL && child->launch.envp[i] != NULL; i++) {
        const char *var = child->launch.envp[i];
        if (strlen(var) >= ARG_STRING_MAX)
            return fail(child, STAGE_EXEC, -E2BIG,
                        "environment variable '%.*s' has %zu bytes, at most %d are possible",
                        (int)MIN(strcspn(var, "="), (size_t)60), var, strlen(var),
                        ARG_STRING_MAX - 1);
    }
    return fail(child, STAGE_EXEC, -E2BIG,
                "arguments and environment together are too long for '%s'", child->launch.argv[0]);
}

static int explain_exec(struct launch *launch, int error)
{
    struct child *child = launch->child;
    const char *path = launch->plan.path;
    if (error == -E2BIG)
        return explain_too_big(child);
    if (error == -ENOEXEC)
        return fail(child, STAGE_EXEC, error,
                    "'%s' is neither a program nor a script that names its interpreter (#!)", path);
    if (error == -ENOENT && *path == '/' && access(path, F_OK) == 0)
        return fail(child, STAGE_EXEC, error,
                    "'%s' is there, but the interpreter that it names is not", path);
    return fail(child, STAGE_EXEC, error, "execute '%s'", path);
}

static int explain(struct launch *launch)
{
    struct child *child = launch->child;
    int error = launch->result.error;
    switch (launch->result.step) {
    case SPAWN_STEP_CGROUP:
        return fail(child, STAGE_CGROUP, error, "enter the control groups");
    case SPAWN_STEP_NAMESPACE:
        return fail(child, STAGE_NAMESPACE, error, "enter the mount namespace");
    case SPAWN_STEP_SESSION:
        return fail(child, STAGE_SESSION, error, "set up session and signals");
    case SPAWN_STEP_STDIO:
        return fail(child, STAGE_STDIO, error, "place standard descriptors");
    case SPAWN_STEP_RLIMIT:
        return fail(child, STAGE_RLIMIT, error, "set resource limits");
    case SPAWN_STEP_USER:
        return fail(child, STAGE_USER, error, "become user '%s'",
                    child->launch.user == NULL ? "" : child->launch.user);
    case SPAWN_STEP_CHDIR:
        return fail(child, STAGE_CHDIR, error, "change to directory '%s'", launch->plan.cwd);
    case SPAWN_STEP_EXEC:
        return explain_exec(launch, error);
    default:
        return fail(child, STAGE_CLONE, error, "make a process");
    }
}

/* ---- the launch ---- */

static int take_slot(struct launch *launch)
{
    struct child *child = launch->child;
    struct mandor_err err = { 0 };
    child->limits_asked = limits_asked(&child->launch.limits);
    int r = slot_take(&child->nursery->yard, child->launch.containment, &child->launch.limits,
                      child->launch.limits_policy, &child->slot, &child->limits_enforced, &err);
    if (r < 0)
        return launch_note(child, STAGE_PREPARE, &err);
    slot_plan(child->slot, &child->launch.limits, &launch->plan);
    if (child->nursery->own_nofile && child->launch.limits.open_files == 0) {
        size_t i = launch->plan.rlimit_count++;
        launch->plan.rlimits[i].resource = RLIMIT_NOFILE;
        launch->plan.rlimits[i].limit = child->nursery->nofile;
    }
    return 0;
}

/* The clone, announced to the sentinel, born in the slot. */
static int clone_child(struct launch *launch)
{
    struct child *child = launch->child;
    struct nursery *nursery = child->nursery;
    int r = slot_enter(child->slot);
    if (r < 0)
        return fail(child, STAGE_NAMESPACE, r, "enter the PID namespace");

    kin_expect(&nursery->kinship);
    atomic_store(&nursery->launching, child);
    r = spawn_process(nursery->memory, &launch->plan, &launch->result);
    slot_leave(&nursery->yard, child->slot);
    if (r == 0) {
        child->kin = (struct kin){ .kind = KIN_CHILD, .pid = launch->result.pid };
        child->pidfd = launch->result.pidfd;
        r = child->slot->rung != CONTAIN_GROUP
                ? 0
                : sweep_aim(&child->slot->target, child->kin.pid, child->pidfd);
        if (r == 0)
            r = kin_register(&nursery->kinship, &child->kin);
        if (r < 0) { /* unknown to the sentinel it would be an orphan: end it here */
            siginfo_t info;
            (void)os_pidfd_signal(child->pidfd, SIGKILL);
            (void)os_pidfd_reap(child->pidfd, true, &info, NULL);
            close_fd(&child->pidfd);
            child->kin.pid = 0;
            launch->result = (struct spawn_result){ .step = SPAWN_STEP_CLONE, .error = r };
        }
    }
    atomic_store(&nursery->launching, NULL);
    kin_expected_over(&nursery->kinship);
    return r < 0 ? explain(launch) : 0;
}

static int aim_sweep(struct launch *launch)
{
    struct child *child = launch->child;
    if (child->slot->rung != CONTAIN_GROUP)
        return 0;
    struct sweep_target *target = &child->slot->target;
    target->mark = strdup(launch->tmp_var);
    target->subreaper = child->nursery->adopt_orphans;
    target->kinship = &child->nursery->kinship;
    target->attempts = &child->nursery->yard.group_alive;
    return target->mark == NULL ? fail(child, STAGE_PREPARE, -ENOMEM, "remember the job's mark")
                                : 0;
}

static int launch_do(struct launch *launch)
{
    int r = find_user(launch);
    if (r == 0)
        r = make_directories(launch);
    if (r == 0)
        r = make_environment(launch);
    if (r == 0)
        r = find_program(launch);
    if (r == 0)
        r = take_slot(launch);
    if (r == 0)
        r = aim_sweep(launch);
    if (r == 0)
        r = make_stdio(launch);
    if (r < 0)
        return r;
    launch->plan.argv = launch->child->launch.argv;
    launch->plan.envp = launch->envp;
    return clone_child(launch);
}

void launch_run(struct lane_task *task)
{
    struct child *child = CONTAINER_OF(task, struct child, launch_task);
    struct launch launch = { .child = child, .ends = { -1, -1, -1, -1 } };
    launch.plan = (struct spawn_plan){
        .cgroup = -1,
        .namespace_pidfd = -1,
        .no_new_privs = child->launch.no_new_privs,
        .oom_score_adj = OOM_SCORE_ADJ,
        .not_ignored = child->nursery->not_ignored,
        .parent = getpid(),
        .newborn = &child->nursery->kinship.newborn,
    };

    if (child->launch.zygote_fd > 0)
        (void)launch_copy(child);
    else
        (void)launch_do(&launch); /* a failure is noted in the child */
    for (size_t i = 0; i < ARRAY_LEN(launch.ends); i++)
        close_fd(&launch.ends[i]);
    close_given(child);
    free(launch.envp);
    free(launch.tmp_var);
    free(launch.path);
    free(launch.groups);
}

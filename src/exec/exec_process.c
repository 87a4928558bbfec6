/* exec_process.c - executor `exec`: one job, one supervised process tree (job_tree.h). */
#include <stdio.h>

#include "base/buf.h"
#include "exec/job_tree.h"

struct process {
    struct job_tree tree; /* first */
    /* What child_start() borrows until the process runs. */
    char **argv, **envp;
    char **env_owned; /* the entries of envp that are ours */
    char label[128];
};

static struct process *state_of(const struct execution *execution)
{
    return execution_state(execution);
}

/* ---- what is started ---- */

static void free_vectors(struct process *process)
{
    for (char **p = process->env_owned; p != NULL && *p != NULL; p++)
        free(*p);
    free(process->env_owned);
    free(process->envp);
    free(process->argv);
    process->env_owned = process->envp = process->argv = NULL;
}

static bool names_same(const char *a, const char *b)
{
    size_t len = strcspn(a, "=");
    return strncmp(a, b, len + 1) == 0;
}

static bool overridden(const struct spec *spec, const char *entry)
{
    for (size_t i = 0; i < spec->env_count; i++)
        if (names_same(entry, spec->env[i].bytes))
            return true;
    return false;
}

static int add_owned(struct process *process, size_t *count, const char *name, const char *value)
{
    SCOPED_BUF text = { 0 };

    if (buf_addf(&text, "%s=%s", name, value) < 0)
        return -ENOMEM;
    process->env_owned[*count] = buf_steal(&text);
    return process->env_owned[(*count)++] != NULL ? 0 : -ENOMEM;
}

/* envp: the worker's passed-on variables, then the job's own over them, then MANDOR_*. */
static int make_env(struct process *process, const struct execution_request *request)
{
    const struct spec *spec = request->spec;
    size_t passed = 0, count = 0, owned = 0;
    char attempt[24];

    while (request->env->env_pass[passed] != NULL)
        passed++;
    process->envp = calloc(passed + spec->env_count + 4, sizeof *process->envp);
    process->env_owned = calloc(4, sizeof *process->env_owned);
    if (process->envp == NULL || process->env_owned == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < passed; i++)
        if (!overridden(spec, request->env->env_pass[i]))
            process->envp[count++] = request->env->env_pass[i];
    for (size_t i = 0; i < spec->env_count; i++)
        process->envp[count++] = spec->env[i].bytes;

    (void)snprintf(attempt, sizeof attempt, "%" PRId64, request->attempt);
    if (add_owned(process, &owned, "MANDOR_JOB_ID", request->id) < 0 ||
        add_owned(process, &owned, "MANDOR_ATTEMPT", attempt) < 0 ||
        add_owned(process, &owned, "MANDOR_QUEUE", request->queue) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < owned; i++)
        process->envp[count++] = process->env_owned[i];
    return 0;
}

static int make_argv(struct process *process, const struct spec *spec)
{
    process->argv = calloc(spec->argc + 1, sizeof *process->argv);
    if (process->argv == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < spec->argc; i++)
        process->argv[i] = spec->argv[i].bytes;
    return 0;
}

/* A file name for directories and logs, whatever characters a broker's ids have. */
static void make_label(struct process *process, const struct execution_request *request)
{
    (void)snprintf(process->label, sizeof process->label, "%.100s.%" PRId64, request->id,
                   request->attempt);
    for (char *p = process->label; *p != '\0'; p++)
        if (*p == '/' || (unsigned char)*p < ' ')
            *p = '_';
}

/* ---- the child ---- */

static void on_value(void *arg, const char *kind, json_t *value)
{
    struct execution *execution = arg;
    const struct execution_events *events = execution_events(execution);

    if (str_eq(kind, "result")) {
        execution_keep_result(execution, value);
    } else if (str_eq(kind, "progress")) {
        execution_keep_progress(execution, value);
    } else if (str_eq(kind, "again")) {
        if (events->on_again != NULL)
            events->on_again(execution_arg(execution), value);
    } else if (str_eq(kind, "data")) {
        if (events->on_data != NULL)
            events->on_data(execution_arg(execution), value);
    } else if (events->on_log != NULL && json_is_string(value)) {
        events->on_log(execution_arg(execution), json_string_value(value));
    }
}

static void on_spawned(struct child *child, pid_t pid, const struct child_pipes *pipes, void *arg)
{
    static const struct channel_events channel = { .on_value = on_value,
                                                   .on_activity = job_tree_heard,
                                                   .on_ended = job_tree_unheard };

    free_vectors(state_of(arg));
    job_tree_run(arg, child, pipes, &channel);
}

static void on_exited(struct child *child, const struct verdict *verdict, void *arg)
{
    struct process *process = state_of(arg);

    process->tree.child = child;
    free_vectors(process); /* it may never have run */
    job_tree_exited(arg, verdict);
}

static void on_empty(struct child *child, void *arg)
{
    job_tree_empty(arg);
}

static void on_kill_pending(struct child *child, void *arg)
{
    job_tree_phase(arg, "kill_pending");
}

static int launch(struct execution *execution)
{
    static const struct child_events events = { .on_spawned = on_spawned,
                                                .on_exited = on_exited,
                                                .on_empty = on_empty,
                                                .on_kill_pending = on_kill_pending };
    const struct execution_request *request = execution_request(execution);
    struct process *process = state_of(execution);
    const struct spec *spec = request->spec;
    bool has_stdin = spec->stdin_src.bytes != NULL;
    struct child_launch launch = {
        .label = process->label,
        .argv = process->argv,
        .envp = process->envp,
        .cwd = spec->cwd.bytes,
        .user = spec->user,
        .group = spec->group,
        .no_new_privs = spec->no_new_privs,
        .want_stdin = has_stdin,
        .inherit_stdin = !has_stdin && request->inherit_stdin,
        .want_channel = true,
        .stdout_fd = -1,
        .stderr_fd = -1,
        .limits = spec->limits,
        .limits_policy = spec->limits_policy,
        .containment = spec->containment,
    };

    return child_start(request->env->nursery, &launch, &events, execution, &process->tree.child);
}

/* ---- the ops ---- */

static int start(struct execution *execution, struct mandor_err *err)
{
    const struct execution_request *request = execution_request(execution);
    struct process *process = state_of(execution);

    make_label(process, request);
    int r = make_argv(process, request->spec);
    if (r == 0)
        r = make_env(process, request);
    if (r == 0)
        r = job_tree_open(execution, NULL);
    if (r == 0)
        r = launch(execution);
    if (r < 0) {
        free_vectors(process);
        (void)job_streams_close(&process->tree.streams, NULL, NULL);
        return err_set(err, r, FAULT_HOST, "start job %s", request->id);
    }
    return 0;
}

static json_t *limits_enforced(const struct execution *execution)
{
    return child_limits_enforced(state_of(execution)->tree.child);
}

static const char *containment(const struct execution *execution)
{
    return spec_containment_name(child_containment(state_of(execution)->tree.child));
}

static void close_execution(struct execution *execution)
{
    child_close(state_of(execution)->tree.child);
    job_tree_close(execution, execution_closed);
}

const struct executor_ops executor_process = {
    .name = "exec",
    .kind = SPEC_EXEC,
    .state_size = sizeof(struct process),
    .start = start,
    .stop = job_tree_stop,
    .suspend = job_tree_suspend,
    .sink_ready = job_tree_sink_ready,
    .streams = job_tree_streams,
    .limits_enforced = limits_enforced,
    .containment = containment,
    .close = close_execution,
};

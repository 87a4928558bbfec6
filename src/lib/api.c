/* api.c - libmandor's exported functions: contract in mandor/mandor.h. */
#include <mandor/mandor.h>

#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/words.h"
#include "exec/env.h"
#include "exec/outputs.h"
#include "lib/sink_caller.h"
#include "sink/url.h"

#define MANDOR_MAGIC  0x6d6e6472u
#define PROCESS_MAGIC 0x6d707263u
#define BUFFER_MAX    ((size_t)128 << 20)

struct mandor {
    uint32_t magic;
    struct nursery *nursery;
    struct filter_pool *filters;
    struct executor_env env;
    char **env_pass;
    uint64_t serial;   /* of processes: their ids */
    char *own_scratch; /* made by us, so removed by us; NULL = the host named one */
    char *data_dir;    /* where auto: spills */
    void (*on_closed)(void *arg);
    void *closed_arg;
};

struct process_stream {
    struct mandor_process *process;
    enum mandor_stream stream;
    struct caller caller;
};

struct mandor_process {
    uint32_t magic;
    struct mandor *mandor;
    struct mandor_callbacks callbacks;
    void *arg, *data;
    struct spec *spec;
    struct execution *execution;
    struct outputs outputs;
    struct verdict verdict;
    struct process_stream out, err;
    int64_t started_ms, stdout_bytes, stderr_bytes;
    char *said; /* JSON of {"result": …}, or NULL */
    char id[24];
};

const char *mandor_version(void)
{
    return MANDOR_VERSION;
}

/* ---- the context ---- */

static const char *tmp_dir(void)
{
    const char *tmp = getenv("TMPDIR");

    return tmp != NULL && tmp[0] == '/' ? tmp : "/tmp";
}

static int make_scratch(struct mandor *mandor, struct mandor_err *err)
{
    char *path;

    if (asprintf(&path, "%s/mandor-XXXXXX", tmp_dir()) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "name the scratch directory");
    if (mkdtemp(path) == NULL) {
        int r = err_set(err, -errno, FAULT_HOST, "make the scratch directory '%s'", path);
        free(path);
        return r;
    }
    mandor->own_scratch = path;
    return 0;
}

static void free_context(struct mandor *mandor)
{
    if (mandor->own_scratch != NULL)
        (void)rmdir(mandor->own_scratch);
    free(mandor->own_scratch);
    free(mandor->data_dir);
    words_free(mandor->env_pass);
    OBJ_FINI(mandor);
    free(mandor);
}

int mandor_new(uv_loop_t *loop, const char *name, const char *scratch_dir, struct mandor **ret,
               struct mandor_err *err)
{
    char own_name[64];
    struct mandor *mandor = calloc(1, sizeof *mandor);
    int r;

    if (mandor == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "start libmandor");
    mandor->magic = MANDOR_MAGIC;
    (void)snprintf(own_name, sizeof own_name, "lib-%d-%" PRIx64, (int)getpid(),
                   (uint64_t)clock_mono_ns());
    if (name == NULL)
        name = own_name;
    if (scratch_dir == NULL && (r = make_scratch(mandor, err)) < 0)
        goto fail;
    if (asprintf(&mandor->data_dir, "%s/mandor-%s", scratch_dir != NULL ? scratch_dir : tmp_dir(),
                 name) < 0) {
        mandor->data_dir = NULL;
        r = err_set(err, -ENOMEM, FAULT_HOST, "start libmandor");
        goto fail;
    }

    struct nursery_options options = {
        .name = name,
        .scratch_dir = scratch_dir != NULL ? scratch_dir : mandor->own_scratch,
        .own_scratch = scratch_dir == NULL,
        .guard_fd = -1,
    };
    if ((r = env_passed(NULL, &mandor->env_pass)) < 0 ||
        (r = filter_pool_new(loop, BUFFER_MAX, &mandor->filters)) < 0) {
        (void)err_set(err, r, FAULT_HOST, "start libmandor");
        goto fail;
    }
    if ((r = nursery_new(loop, &options, &mandor->nursery, err)) < 0) {
        filter_pool_close(mandor->filters);
        goto fail;
    }
    mandor->env = (struct executor_env){ .loop = loop,
                                         .nursery = mandor->nursery,
                                         .filters = mandor->filters,
                                         .env_pass = mandor->env_pass };
    *ret = mandor;
    return 0;

fail:
    free_context(mandor);
    return r;
}

static void on_nursery_closed(void *arg)
{
    struct mandor *mandor = arg;
    void (*on_closed)(void *arg) = mandor->on_closed;
    void *closed_arg = mandor->closed_arg;

    free_context(mandor);
    if (on_closed != NULL)
        on_closed(closed_arg);
}

void mandor_close(struct mandor *mandor, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(mandor, MANDOR_MAGIC);
    mandor->on_closed = on_closed;
    mandor->closed_arg = arg;
    filter_pool_close(mandor->filters);
    nursery_close(mandor->nursery, on_nursery_closed, mandor);
}

const char *mandor_containment(const struct mandor *mandor)
{
    OBJ_CHECK(mandor, MANDOR_MAGIC);
    return spec_containment_name(nursery_host(mandor->nursery)->automatic);
}

/* ---- bytes ---- */

static void on_bytes(struct caller *caller, const void *bytes, size_t len)
{
    struct process_stream *stream = CONTAINER_OF(caller, struct process_stream, caller);
    struct mandor_process *process = stream->process;

    process->callbacks.on_output(process, stream->stream, bytes, len, process->arg);
}

static int open_own(void *arg, bool is_stderr, sink_done_fn *on_opened, void *opened_arg,
                    struct sink **ret, struct mandor_err *err)
{
    struct mandor_process *process = arg;
    struct process_stream *stream = is_stderr ? &process->err : &process->out;

    stream->process = process;
    stream->stream = is_stderr ? MANDOR_STDERR : MANDOR_STDOUT;
    stream->caller.on_bytes = on_bytes;
    return sink_open_caller(process->mandor->env.loop, &stream->caller,
                            is_stderr ? "stderr" : "stdout", on_opened, opened_arg, ret, err);
}

static struct process_stream *stream_of(struct mandor_process *process, enum mandor_stream stream)
{
    OBJ_CHECK(process, PROCESS_MAGIC);
    return stream == MANDOR_STDERR ? &process->err : &process->out;
}

void mandor_pause(struct mandor_process *process, enum mandor_stream stream)
{
    caller_pause(&stream_of(process, stream)->caller);
}

void mandor_resume(struct mandor_process *process, enum mandor_stream stream)
{
    caller_resume(&stream_of(process, stream)->caller);
}

/* ---- the process ---- */

static void on_running(void *arg, pid_t pid, const char *slot, const char *containment)
{
    struct mandor_process *process = arg;

    (void)slot;
    (void)containment;
    if (process->callbacks.on_started != NULL)
        process->callbacks.on_started(process, pid, process->arg);
}

static void on_progress(void *arg, const json_t *progress)
{
    struct mandor_process *process = arg;
    SCOPED_FREE char *text = process->callbacks.on_progress != NULL ? json_text(progress) : NULL;

    if (text != NULL)
        process->callbacks.on_progress(process, text, process->arg);
}

static void free_process(struct mandor_process *process)
{
    process->spec = spec_free(process->spec);
    free(process->said);
    OBJ_FINI(process);
    free(process);
}

/* All is closed, so the callback may end the context. */
static void on_execution_closed(void *arg)
{
    struct mandor_process *process = arg;
    const struct verdict *verdict = &process->verdict;
    struct mandor_result result = {
        .cause = cause_name(verdict->cause),
        .exit_code = verdict->exit_code,
        .signal = verdict->signal,
        .core_dumped = verdict->core_dumped,
        .forced = verdict->forced,
        .user_ms = verdict->user_us / 1000,
        .system_ms = verdict->system_us / 1000,
        .wall_ms = clock_mono_ms() - process->started_ms,
        .max_rss_bytes = verdict->max_rss_bytes,
        .descendants_killed = verdict->descendants_killed,
        .stdout_bytes = process->stdout_bytes,
        .stderr_bytes = process->stderr_bytes,
        .error = verdict->error,
        .result = process->said,
    };

    process->callbacks.on_ended(process, &result, process->arg);
    free_process(process);
}

static void on_outputs_ended(void *arg)
{
    struct mandor_process *process = arg;
    const json_t *said = execution_result(process->execution);
    struct record_stream out, err;

    outputs_record(&process->outputs, false, &out);
    outputs_record(&process->outputs, true, &err);
    process->stdout_bytes = out.bytes;
    process->stderr_bytes = err.bytes;
    process->said = said != NULL ? json_text(said) : NULL;
    outputs_close(&process->outputs);
    execution_close(process->execution, on_execution_closed, process);
}

static void on_ended(void *arg, const struct verdict *verdict)
{
    struct mandor_process *process = arg;

    process->verdict = *verdict;
    outputs_end(&process->outputs, &process->verdict, SINK_NO_DEADLINE, on_outputs_ended, process);
}

/* What talks to other machines is in modules, which only the program can load: they use its own functions, and a host is not to have its
 * names mixed with those. */
static int check_place(const struct spec *spec, struct mandor_err *err)
{
    const struct {
        const char *key, *urls;
    } places[] = { { "stdin", spec->stdin_src.bytes },
                   { "stdout", spec->stdout_sink.bytes },
                   { "stderr", spec->stderr_sink.bytes } };

    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        SCOPED_FREE char *url = sink_url_elsewhere(places[i].urls);
        if (url != NULL)
            return err_set(
                err, -EINVAL, FAULT_CALLER,
                "%s: libmandor has sources and sinks on this machine only (file:, "
                "auto:, null:), not '%.*s:'; take the bytes by on_output, or use mandor run",
                places[i].key, (int)strcspn(url, ":"), url);
    }
    return 0;
}

/* Where the job does not say: to the callback when there is one, else nowhere. */
static int make_spec(const char *text, struct spec **ret, struct mandor_err *err)
{
    static const char *const streams[] = { "stdout", "stderr" };
    SCOPED_JSON *job = NULL;
    int r = json_parse(text, strlen(text), &job, err);

    if (r < 0)
        return r;
    for (size_t i = 0; json_is_object(job) && i < ARRAY_LEN(streams); i++)
        if (json_object_get(job, streams[i]) == NULL &&
            json_object_set_new(job, streams[i], json_string("null:")) < 0)
            return err_set(err, -ENOMEM, FAULT_HOST, "read the job");
    r = spec_from_json(job, NULL, ret, err);
    return r < 0 ? r : check_place(*ret, err);
}

static int launch(struct mandor_process *process, struct mandor_err *err)
{
    static const struct execution_events events = { .on_running = on_running,
                                                    .on_progress = on_progress,
                                                    .on_ended = on_ended };
    struct outputs_place place = {
        .id = process->id,
        .queue = process->spec->queue,
        .attempt = 1,
        .data_dir = process->mandor->data_dir,
        .open = process->callbacks.on_output != NULL ? open_own : NULL,
        .open_arg = process,
    };
    int r = outputs_open(&process->outputs, process->mandor->env.loop, process->spec, &place, err);
    if (r < 0)
        return r;

    struct execution_request request = {
        .env = &process->mandor->env,
        .spec = process->spec,
        .id = process->id,
        .queue = process->spec->queue,
        .attempt = 1,
        .out = process->outputs.out.sink,
        .err = process->outputs.err.sink,
    };
    r = executor_start(&request, &events, process, &process->execution, err);
    if (r == 0)
        outputs_attach(&process->outputs, process->execution);
    return r;
}

int mandor_spawn(struct mandor *mandor, const char *job, const struct mandor_callbacks *callbacks,
                 void *arg, struct mandor_process **ret, struct mandor_err *err)
{
    OBJ_CHECK(mandor, MANDOR_MAGIC);
    if (callbacks == NULL || callbacks->on_ended == NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, "callbacks: on_ended must be there");
    struct mandor_process *process = calloc(1, sizeof *process);
    if (process == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "spawn");

    process->magic = PROCESS_MAGIC;
    process->mandor = mandor;
    process->callbacks = *callbacks;
    process->arg = arg;
    process->started_ms = clock_mono_ms();
    (void)snprintf(process->id, sizeof process->id, "p%" PRIu64, ++mandor->serial);
    int r = make_spec(job, &process->spec, err);
    if (r == 0)
        r = launch(process, err);
    if (r < 0) {
        outputs_close(&process->outputs); /* an abort whose end nobody waits for */
        free_process(process);
        return r;
    }
    if (ret != NULL)
        *ret = process;
    return 0;
}

void mandor_stop(struct mandor_process *process, int64_t grace_ms)
{
    OBJ_CHECK(process, PROCESS_MAGIC);
    execution_stop(process->execution, CAUSE_CANCELLED, grace_ms, "stopped by its owner");
}

void mandor_set_data(struct mandor_process *process, void *data)
{
    OBJ_CHECK(process, PROCESS_MAGIC);
    process->data = data;
}

void *mandor_data(const struct mandor_process *process)
{
    OBJ_CHECK(process, PROCESS_MAGIC);
    return process->data;
}

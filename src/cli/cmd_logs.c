/* cmd_logs.c - `mandor logs`: what a job wrote, byte for byte; with -f also what it is writing.
 *
 *     waiting ── poll ──▶ active ── live socket of its worker ──▶ ended ── retry planned? ──▶ poll again
 *                                                                   └── final: over
 *
 * What was not seen live (the job was faster, the worker could not be reached) is printed from the store when its attempt is over.
 */
#include <fcntl.h>
#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/live.h"

#define POLL_MS      250 /* a waiting job */
#define RECONNECT_MS 50  /* an active job whose worker does not answer yet */
#define COPY_SIZE    ((size_t)128 << 10)

struct logs {
    struct cli *cli;
    struct client *client;
    const char *id;
    bool want[2];     /* stdout, stderr */
    int fds[2];       /* where they go */
    int64_t told;     /* attempts up to this one were printed */
    bool reader_gone; /* EPIPE: end quietly */
};

static const char *const stream_names[] = { "stdout", "stderr" };

/* ---- writing ---- */

static int put(struct logs *logs, int stream, const char *bytes, size_t len, struct mandor_err *err)
{
    int r = logs->want[stream] ? file_write_all(logs->fds[stream], bytes, len) : 0;

    if (r == -EPIPE)
        logs->reader_gone = true;
    return r < 0 ? err_set(err, r, FAULT_HOST, "write to %s", stream_names[stream]) : 0;
}

static int put_file(struct logs *logs, int stream, const char *path, struct mandor_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *bytes = fd >= 0 ? malloc(COPY_SIZE) : NULL;
    int r = 0;

    if (fd < 0)
        return err_set(err, -errno, FAULT_HOST, "open stored output '%s'", path);
    if (bytes == NULL)
        r = err_set(err, -ENOMEM, FAULT_HOST, "read stored output '%s'", path);
    while (r == 0) {
        ssize_t n = RETRY_EINTR(read(fd, bytes, COPY_SIZE));
        if (n < 0)
            r = err_set(err, -errno, FAULT_HOST, "read stored output '%s'", path);
        else if (n == 0)
            break;
        else
            r = put(logs, stream, bytes, (size_t)n, err);
    }
    free(bytes);
    (void)close(fd);
    return r;
}

/* ---- stored output ---- */

/* A stream that went elsewhere has nothing to print here: say where it is. */
static void tell_where(const struct logs *logs, int stream)
{
    json_t *record = NULL;

    if (client_record(logs->client, logs->id, &record, NULL) < 0)
        return;
    const json_t *its = json_object_get(json_object_get(record, "streams"), stream_names[stream]);
    const char *target = json_string_value(json_object_get(its, "target"));
    if (target != NULL && json_integer_value(json_object_get(its, "bytes")) > 0)
        cli_warn(logs->cli, "%s of job %s is in '%s'", stream_names[stream], logs->id, target);
    json_decref(record);
}

/* Whether the store could have output of an attempt at all. */
enum stored { STORED_ENDED, STORED_RUNNING, STORED_NEVER_RAN };

/* One stream of an attempt (0: the last). */
static int print_stream(struct logs *logs, int64_t attempt, int stream, enum stored *ret,
                        struct mandor_err *err)
{
    struct broker_req req = {
        .op = BROKER_OUTPUT,
        .output = { .id = logs->id, .attempt = attempt, .want_stderr = stream == 1 }
    };
    int r = client_ask(logs->client, &req, err);
    if (r < 0)
        return r;

    *ret = req.output.active             ? STORED_RUNNING
           : req.output.attempt_out == 0 ? STORED_NEVER_RAN
                                         : STORED_ENDED;
    if (req.output.bytes != NULL)
        r = put(logs, stream, req.output.bytes, req.output.len, err);
    else if (req.output.path != NULL)
        r = put_file(logs, stream, req.output.path, err);
    else if (*ret == STORED_ENDED && attempt == 0)
        tell_where(logs, stream);
    free(req.output.bytes);
    free(req.output.path);
    return r;
}

static int print_stored(struct logs *logs, int64_t attempt, enum stored *ret,
                        struct mandor_err *err)
{
    int r = 0;

    for (int stream = 0; r == 0 && stream < 2; stream++)
        if (logs->want[stream])
            r = print_stream(logs, attempt, stream, ret, err);
    return r;
}

/* ---- following ---- */

/* Print what the store has of attempts that nobody saw live, up to `last`. */
static int catch_up(struct logs *logs, int64_t last, struct mandor_err *err)
{
    for (; logs->told < last; logs->told++) {
        enum stored stored;
        int r = print_stored(logs, logs->told + 1, &stored, err);
        if (r == -ENOENT) { /* earlier attempts' output need not be kept */
            err_clear(err);
            continue;
        }
        if (r < 0)
            return r;
    }
    return 0;
}

/* Whether the worker followed an attempt to its end: it may not have started yet, or be over, when we ask. */
static bool was_followed(const struct live_frame *ended)
{
    SCOPED_JSON *json = NULL;

    return json_parse(ended->bytes, ended->len, &json, NULL) == 0 &&
           json_integer_value(json_object_get(json, "attempt")) > 0;
}

static int on_frame(struct logs *logs, const struct live_frame *frame, struct mandor_err *err)
{
    switch (frame->kind) {
    case LIVE_STDOUT:
    case LIVE_STDERR:
        return put(logs, frame->kind == LIVE_STDERR, frame->bytes, frame->len, err);
    case LIVE_NOTICE:
        (void)!file_write_all(STDERR_FILENO, frame->bytes, frame->len);
        if (frame->len == 0 || frame->bytes[frame->len - 1] != '\n')
            (void)!file_write_all(STDERR_FILENO, "\n", 1);
        return 0;
    case LIVE_ENDED:
    case LIVE_SNAPSHOT:
        break;
    }
    return 0;
}

/* Follow one attempt on its worker's socket.  1 when it was followed (to its end or until the worker was gone), 0 when the worker
 * could not be reached or did not run the attempt (yet, or any more). */
static int follow_live(struct logs *logs, const char *worker, int64_t attempt,
                       struct mandor_err *err)
{
    SCOPED_BUF line = { .data = NULL };
    SCOPED(live_close) struct live *live = NULL;
    json_t *ask = json_pack("{s:s, s:s, s:I}", "follow", logs->id, "of",
                            broker_data_dir(logs->client->broker), "attempt", (json_int_t)attempt);
    char *text = ask != NULL ? json_text(ask) : NULL;
    int r = text == NULL ? -ENOMEM : buf_addf(&line, "%s\n", text);

    free(text);
    json_decref(ask);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "follow job '%s'", logs->id);
    if (live_open(broker_data_dir(logs->client->broker), worker, line.data, &live, NULL) < 0)
        return 0;

    bool heard = false;
    for (;;) {
        struct live_frame frame;
        r = live_read(live, -1, &frame);
        if (r == -EPIPE)
            return heard;
        if (r < 0)
            return err_set(err, r, FAULT_HOST, "read from worker '%s'", worker);
        if (frame.kind == LIVE_ENDED)
            return was_followed(&frame);
        r = on_frame(logs, &frame, err);
        if (r < 0)
            return r;
        heard = true;
    }
}

static int follow(struct logs *logs, struct mandor_err *err)
{
    for (;;) {
        json_t *record = NULL;
        int r = client_record(logs->client, logs->id, &record, err);
        if (r < 0)
            return r;

        bool final = record_final(record);
        bool active = str_eq(record_state(record), "active");
        int64_t attempt = json_integer_value(json_object_get(record, "attempt"));
        const char *name = json_string_value(json_object_get(record, "worker"));
        char *worker = name != NULL ? strdup(name) : NULL;
        json_decref(record);

        /* The store has the output of an attempt only when that is over. */
        r = catch_up(logs, active ? attempt - 1 : attempt, err);
        int followed = 0;
        if (r == 0 && active && worker != NULL && attempt > logs->told)
            r = followed = follow_live(logs, worker, attempt, err);
        if (followed > 0)
            logs->told = attempt;
        free(worker);
        if (r < 0 || final)
            return MIN(r, 0);
        if (followed == 0)
            client_pause(active ? RECONNECT_MS : POLL_MS);
    }
}

/* ---- the command ---- */

static int print(struct logs *logs, struct mandor_err *err)
{
    enum stored stored = STORED_ENDED;
    int r = print_stored(logs, cli_number(logs->cli, "attempt", 0), &stored, err);

    if (r == 0 && stored == STORED_RUNNING)
        cli_warn(logs->cli, "job %s is running; 'mandor logs -f %s' follows it", logs->id,
                 logs->id);
    else if (r == 0 && stored == STORED_NEVER_RAN)
        cli_warn(logs->cli, "job %s has not run yet", logs->id);
    return r;
}

int cmd_logs(struct cli *cli)
{
    struct client client;
    struct mandor_err err;
    bool only_out = cli_flag(cli, "stdout"), only_err = cli_flag(cli, "stderr");
    struct logs logs = { .cli = cli,
                         .client = &client,
                         .id = cli->args[0],
                         .want = { !only_err || only_out, !only_out || only_err },
                         .fds = { STDOUT_FILENO, STDERR_FILENO } };

    if (only_err && !only_out) /* one stream alone can be piped on */
        logs.fds[1] = STDOUT_FILENO;

    if (cli_flag(cli, "follow") && cli_text(cli, "attempt") != NULL)
        return cli_usage(cli, "either '--follow' or '--attempt', not both");

    err_clear(&err);
    int r = client_open(cli, CLIENT_LOOK, &client, &err);
    if (r == 0 && client.broker == NULL)
        r = err_set(&err, -ENOENT, FAULT_CALLER, "no job '%s': nothing was added to '%s' yet",
                    logs.id, client.place);
    if (r == 0)
        r = cli_flag(cli, "follow") ? follow(&logs, &err) : print(&logs, &err);
    client_close(&client);
    if (r < 0 && !logs.reader_gone)
        return cli_fail(cli, &err);
    return EXIT_OK;
}

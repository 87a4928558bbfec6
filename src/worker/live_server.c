/* live_server.c - contract in live_server.h. */
#include "worker/live_server.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "worker/attempt.h"
#include "worker/scheduler.h"

#define SERVER_MAGIC 0x6c697665u
#define CLIENT_MAGIC 0x6c636c69u
#define REQUEST_MAX  4096
/* Bytes queued for a slow client before bytes are skipped. */
#define BACKLOG_MAX  ((size_t)256 << 10)
#define SNAPSHOT_MS  500
#define CLIENTS_MAX  ((size_t)64)

struct live_server {
    uint32_t magic;
    struct worker *worker;
    uv_pipe_t server;
    struct list clients;
    size_t client_count, clients_max;
    char path[4096];
};

struct client {
    uint32_t magic;
    struct live_server *live;
    struct list node;
    uv_pipe_t pipe;
    uv_timer_t timer; /* top: the next snapshot */
    struct follower out, err;
    bool follows_out, follows_err;
    char id[64]; /* job that is followed; "" = none */
    int64_t attempt;
    size_t skipped;
    unsigned closing;
    size_t request_len;
    char request[REQUEST_MAX];
};

/* ---- frames ---- */

struct frame {
    uv_write_t write;
    unsigned char bytes[];
};

static void close_client(struct client *client);

static void on_written(uv_write_t *write, int status)
{
    struct client *client = write->handle->data;

    free(CONTAINER_OF(write, struct frame, write));
    if (status < 0 && status != UV_ECANCELED)
        close_client(client);
}

static void send_frame(struct client *client, enum live_kind kind, const void *bytes, size_t len)
{
    struct frame *frame = malloc(sizeof *frame + LIVE_HEADER + len);

    if (frame == NULL || client->closing > 0) {
        free(frame);
        return;
    }
    frame->bytes[0] = (unsigned char)kind;
    for (int i = 0; i < 4; i++)
        frame->bytes[1 + i] = (unsigned char)(len >> (8 * i));
    if (len > 0)
        memcpy(frame->bytes + LIVE_HEADER, bytes, len);
    uv_buf_t buf = uv_buf_init((char *)frame->bytes, (unsigned)(LIVE_HEADER + len));
    if (uv_write(&frame->write, (uv_stream_t *)&client->pipe, &buf, 1, on_written) < 0)
        free(frame);
}

static void send_skipped(struct client *client)
{
    char text[64];

    if (client->skipped == 0)
        return;
    int n = snprintf(text, sizeof text, "[… %zu bytes skipped]", client->skipped);
    client->skipped = 0;
    send_frame(client, LIVE_NOTICE, text, (size_t)n);
}

static void send_bytes(struct client *client, enum live_kind kind, const void *bytes, size_t len)
{
    if (uv_stream_get_write_queue_size((uv_stream_t *)&client->pipe) > BACKLOG_MAX) {
        client->skipped += len;
        return;
    }
    send_skipped(client);
    send_frame(client, kind, bytes, len);
}

/* ---- follow ---- */

static void on_out(struct follower *follower, const void *bytes, size_t len)
{
    send_bytes(follower->data, LIVE_STDOUT, bytes, len);
}

static void on_err(struct follower *follower, const void *bytes, size_t len)
{
    send_bytes(follower->data, LIVE_STDERR, bytes, len);
}

static void check_end(struct client *client)
{
    char text[160];

    if (client->follows_out || client->follows_err)
        return;
    send_skipped(client);
    int n = snprintf(text, sizeof text, "{\"id\":\"%s\",\"attempt\":%" PRId64 "}", client->id,
                     client->attempt);
    send_frame(client, LIVE_ENDED, text, (size_t)n);
}

static void on_out_end(struct follower *follower)
{
    struct client *client = follower->data;
    client->follows_out = false;
    check_end(client);
}

static void on_err_end(struct follower *follower)
{
    struct client *client = follower->data;
    client->follows_err = false;
    check_end(client);
}

/* What came before: the filter's capture (sent by filter_follow()), what an auto: sink still holds, or word of how much is not kept. */
static void send_past(struct client *client, struct filter *filter, const struct sink *sink,
                      enum live_kind kind)
{
    struct filter_stats stats;
    size_t len;
    const void *bytes = sink_inline(sink, &len);

    filter_stats(filter, &stats);
    if (stats.tail_len > 0)
        return;
    if (bytes != NULL && len > 0) {
        send_bytes(client, kind, bytes, len);
    } else if (stats.bytes > 0) {
        client->skipped = (size_t)stats.bytes;
        send_skipped(client);
    }
}

static void follow_stream(struct client *client, struct attempt *attempt, bool is_stderr)
{
    struct filter *filter = execution_filter(attempt->execution, is_stderr);
    struct follower *follower = is_stderr ? &client->err : &client->out;
    bool *follows = is_stderr ? &client->follows_err : &client->follows_out;

    if (filter == NULL)
        return;
    send_past(client, filter, is_stderr ? attempt->outputs.err.sink : attempt->outputs.out.sink,
              is_stderr ? LIVE_STDERR : LIVE_STDOUT);
    *follower = (struct follower){ .on_bytes = is_stderr ? on_err : on_out,
                                   .on_end = is_stderr ? on_err_end : on_out_end,
                                   .data = client };
    *follows = true;
    filter_follow(filter, follower);
}

static void send_notice(struct client *client, const char *text)
{
    send_frame(client, LIVE_NOTICE, text, strlen(text));
}

/* The attempt numbered number (0: the one that runs) of a job. */
static void follow(struct client *client, const char *data_dir, const char *id, int64_t number)
{
    struct attempt *attempt = worker_attempt(client->live->worker, data_dir, id);

    /* Its followers stand in the filters' lists. */
    if (client->follows_out || client->follows_err) {
        send_notice(client, "one connection follows one job at a time");
        return;
    }
    (void)snprintf(client->id, sizeof client->id, "%s", id);
    for (char *p = client->id; *p != '\0'; p++)
        if (*p == '"' || *p == '\\' || (unsigned char)*p < ' ')
            *p = '_';
    client->attempt = 0;
    if (attempt == NULL || attempt->state != ATTEMPT_RUNNING ||
        (number != 0 && number != attempt->lease.attempt)) {
        check_end(client);
        return;
    }
    client->attempt = attempt->lease.attempt;
    follow_stream(client, attempt, false);
    follow_stream(client, attempt, true);
    check_end(client); /* both may have ended already */
}

/* ---- snapshots ---- */

static json_t *running_json(const struct attempt *attempt)
{
    struct filter_stats out = { 0 }, err = { 0 };
    const json_t *said = NULL;
    char command[256];
    bool lossy;

    attempt_command(attempt, command, sizeof command);
    SCOPED_FREE char *text = json_utf8_lossy(command, strlen(command), &lossy);
    if (attempt->state == ATTEMPT_RUNNING) {
        filter_stats(execution_filter(attempt->execution, false), &out);
        filter_stats(execution_filter(attempt->execution, true), &err);
        said = execution_progress(attempt->execution);
    }
    return json_pack("{s:s, s:s, s:I, s:s?, s:i, s:s?, s:I, s:I, s:I, s:O?}", "id",
                     attempt->lease.id, "queue", attempt->lease.queue, "attempt",
                     (json_int_t)attempt->lease.attempt, "phase", attempt->phase, "pid",
                     (int)attempt->pid, "command", text, "started_ms",
                     (json_int_t)attempt->started_ms, "out_bytes", (json_int_t)out.bytes,
                     "err_bytes", (json_int_t)err.bytes, "progress", (json_t *)(uintptr_t)said);
}

json_t *live_server_snapshot(struct worker *worker)
{
    json_t *running = json_array();

    LIST_FOREACH(attempt, &worker->attempts, struct attempt, node)
        if (attempt_holds_slot(attempt))
            (void)json_array_append_new(running, running_json(attempt));
    return json_pack("{s:s, s:i, s:I, s:b, s:o, s:o, s:o, s:o}", "worker", worker->setup.name,
                     "pid", (int)getpid(), "concurrency",
                     (json_int_t)scheduler_concurrency(worker->scheduler), "stopping",
                     (int)worker->stopping, "running", running, "pools",
                     worker->pools != NULL ? pools_json(worker->pools) : json_array(), "runtimes",
                     worker->pythons != NULL ? pythons_json(worker->pythons) : json_array(),
                     "metrics", metrics_json());
}

static void send_snapshot(struct client *client)
{
    SCOPED_JSON *json = live_server_snapshot(client->live->worker);
    SCOPED_FREE char *text = json != NULL ? json_text(json) : NULL;

    if (text != NULL && uv_stream_get_write_queue_size((uv_stream_t *)&client->pipe) < BACKLOG_MAX)
        send_frame(client, LIVE_SNAPSHOT, text, strlen(text));
}

static void on_snapshot(uv_timer_t *timer)
{
    send_snapshot(timer->data);
}

/* ---- clients ---- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;

    if (--client->closing > 0)
        return;
    client->live->client_count--;
    OBJ_FINI(client);
    free(client);
}

static void close_client(struct client *client)
{
    OBJ_CHECK(client, CLIENT_MAGIC);
    if (client->closing > 0)
        return;
    client->closing = 2;
    list_remove(&client->node);
    if (client->follows_out)
        filter_unfollow(&client->out);
    if (client->follows_err)
        filter_unfollow(&client->err);
    uv_close((uv_handle_t *)&client->pipe, on_handle_closed);
    uv_close((uv_handle_t *)&client->timer, on_handle_closed);
}

static void serve(struct client *client, const char *line, size_t len)
{
    SCOPED_JSON *json = NULL;
    struct mandor_err err = { 0 };

    if (json_parse(line, len, &json, &err) == 0 &&
        json_is_string(json_object_get(json, "follow"))) {
        follow(client, json_string_value(json_object_get(json, "of")),
               json_string_value(json_object_get(json, "follow")),
               json_integer_value(json_object_get(json, "attempt")));
        return;
    }
    if (json_is_true(json_object_get(json, "top"))) {
        send_snapshot(client);
        (void)uv_timer_start(&client->timer, on_snapshot, SNAPSHOT_MS, SNAPSHOT_MS);
        return;
    }
    send_notice(client, err.code < 0 ? err.msg : "expected {\"follow\": ID} or {\"top\": true}");
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct client *client = handle->data;

    (void)suggested;
    *buf = uv_buf_init(client->request + client->request_len,
                       (unsigned)(REQUEST_MAX - client->request_len));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct client *client = stream->data;
    char *newline;

    (void)buf;
    if (n < 0) { /* end of file, or no room left for a request: UV_ENOBUFS */
        close_client(client);
        return;
    }
    client->request_len += (size_t)n;
    while ((newline = memchr(client->request, '\n', client->request_len)) != NULL) {
        size_t len = (size_t)(newline - client->request);
        serve(client, client->request, len);
        client->request_len -= len + 1;
        memmove(client->request, newline + 1, client->request_len);
    }
}

static void on_connection(uv_stream_t *server, int status)
{
    struct live_server *live = server->data;
    struct client *client;

    if (status < 0 || (client = calloc(1, sizeof *client)) == NULL)
        return;
    client->magic = CLIENT_MAGIC;
    client->live = live;
    (void)uv_pipe_init(&live->worker->loop, &client->pipe, 0);
    (void)uv_timer_init(&live->worker->loop, &client->timer);
    client->pipe.data = client->timer.data = client;
    list_push_back(&live->clients, &client->node);
    live->client_count++;
    if (uv_accept(server, (uv_stream_t *)&client->pipe) < 0 ||
        live->client_count > live->clients_max ||
        uv_read_start((uv_stream_t *)&client->pipe, on_alloc, on_read) < 0)
        close_client(client);
}

/* A path may be longer than sun_path has room for: bind through the directory's descriptor. */
static int bind_at(int dir_fd, const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    SCOPED_FD fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    int n =
        snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", dir_fd, name);
    if (n < 0 || (size_t)n >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    if (fchmodat(dir_fd, name, 0600, 0) < 0)
        return -errno;
    return STEAL_FD(fd);
}

/* Clients look in the directory of their broker; the socket is in that of the first one. */
static void point_to(const struct live_server *live, bool there)
{
    const struct worker *worker = live->worker;
    char path[4096];

    for (size_t i = 1; i < worker->source_count; i++) {
        (void)snprintf(path, sizeof path, "%s/run/%s" LIVE_SUFFIX, worker->sources[i].data_dir,
                       worker->setup.name);
        if (str_eq(path, live->path))
            continue;
        (void)unlink(path);
        if (there && symlink(live->path, path) < 0)
            log_warn("'%s': %s: jobs of that broker cannot be followed", path, strerror(errno));
    }
}

/* No more than a quarter of the descriptors: the rest are the jobs' (R72). */
static size_t clients_max(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return CLIENTS_MAX;
    return MIN((size_t)limit.rlim_cur / 4, CLIENTS_MAX);
}

int live_server_new(struct worker *worker, struct live_server **ret, struct mandor_err *err)
{
    char dir[4096], name[256];
    struct live_server *live = calloc(1, sizeof *live);

    if (live == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open the live socket");
    live->magic = SERVER_MAGIC;
    live->worker = worker;
    live->clients_max = clients_max();
    list_init(&live->clients);
    (void)snprintf(dir, sizeof dir, "%s/run", worker->setup.data_dir);
    (void)snprintf(name, sizeof name, "%s" LIVE_SUFFIX, worker->setup.name);
    (void)snprintf(live->path, sizeof live->path, "%s/run/%s", worker->setup.data_dir, name);

    SCOPED_FD dir_fd = open(dir, O_DIRECTORY | O_PATH | O_CLOEXEC);
    int fd = dir_fd < 0 ? -errno : bind_at(dir_fd, name);
    if (fd < 0) {
        free(live);
        return err_set(err, fd, FAULT_HOST, "bind the live socket '%s' in '%s'", name, dir);
    }
    (void)uv_pipe_init(&worker->loop, &live->server, 0);
    live->server.data = live;
    int r = uv_pipe_open(&live->server, fd);
    if (r == 0)
        r = uv_listen((uv_stream_t *)&live->server, 16, on_connection);
    if (r < 0) {
        (void)close(fd);
        /* Fatal: the process ends. */
        return err_set(err, r, FAULT_HOST, "listen on the live socket");
    }
    uv_unref((uv_handle_t *)&live->server);
    point_to(live, true);
    *ret = live;
    return 0;
}

void live_server_close(struct live_server *live)
{
    OBJ_CHECK(live, SERVER_MAGIC);
    (void)unlink(live->path);
    point_to(live, false);
    LIST_FOREACH(client, &live->clients, struct client, node)
        close_client(client);
    uv_close((uv_handle_t *)&live->server, NULL);
}

struct live_server *live_server_free(struct live_server *live)
{
    free(live);
    return NULL;
}

/* feeder.c - contract in feeder.h.
 *
 *    ┌─▶ read a chunk on the pool ─▶ write it to the pipe ─┐     the pipe is full: poll for writable, nothing is read meanwhile
 *    └──────────────────────────── all of it was taken ◀───┘
 */
#include "stream/feeder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/hide.h"
#include "base/module.h"
#include "loop/work.h"
#include "os/sigpipe.h"
#include "sink/url.h"
#include "stream/source.h"

#define FEEDER_MAGIC 0x66656564u
#define CHUNK        ((size_t)64 << 10)

typedef void feeder_end_fn(void *arg, int result, const struct mandor_err *err);

struct feeder {
    uint32_t magic;
    uv_loop_t *loop;
    feeder_end_fn *on_end;
    void *arg;
    int pipe_fd; /* -1 = closed */
    uv_poll_t poll;
    bool poll_open, reading, closing;
    int source_fd; /* -1 = not open; used by the pool while `reading` */
    uint64_t device;
    char *path;                          /* file: */
    const struct source_ops *source_ops; /* of another machine; NULL = none */
    struct source *source;
    char *bytes; /* the chunk, or inline text */
    size_t at, len;
    bool source_ended;
    struct work work;
    int result;
    struct mandor_err err;
};

static const char *after_prefix(const char *text, const char *prefix)
{
    size_t len = strlen(prefix);

    return strncmp(text, prefix, len) == 0 ? text + len : NULL;
}

int feeder_check_url(const char *url, struct mandor_err *err)
{
    const char *path = after_prefix(url, "file:");

    if (after_prefix(url, "inline:") != NULL)
        return 0;
    int r = sink_url_check(url, err); /* where output may go, input may come from */
    if (r != -ENOENT)
        return r;
    if (path == NULL) {
        SCOPED_FREE char *shown = hide_password(url);
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "unknown stdin source '%s': expected file:/PATH, inline:TEXT, "
                       "s3://BUCKET/KEY, http(s)://HOST/PATH, redis[+tls]://… or memcached://…",
                       shown != NULL ? shown : "?");
    }
    if (path[0] != '/')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "stdin source '%s': expected an absolute path, as file:/PATH", url);
    return 0;
}

static void destroy(struct feeder *feeder)
{
    if (feeder->source_fd >= 0)
        (void)close(feeder->source_fd);
    free(feeder->path);
    free(feeder->bytes);
    OBJ_FINI(feeder);
    free(feeder);
}

static void maybe_destroy(struct feeder *feeder)
{
    if (feeder->closing && !feeder->reading && !feeder->poll_open)
        destroy(feeder);
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct feeder *feeder = CONTAINER_OF(handle, struct feeder, poll);

    feeder->poll_open = false;
    maybe_destroy(feeder);
}

static void close_pipe(struct feeder *feeder)
{
    if (feeder->pipe_fd < 0)
        return;
    uv_close((uv_handle_t *)&feeder->poll, on_poll_closed);
    (void)close(STEAL_FD(feeder->pipe_fd));
}

static void close_source(struct feeder *feeder)
{
    if (feeder->source != NULL)
        feeder->source_ops->close(STEAL(feeder->source));
}

static void finish(struct feeder *feeder, int result, const struct mandor_err *err)
{
    close_pipe(feeder);
    close_source(feeder);
    feeder->on_end(feeder->arg, result, err); /* may close the feeder: nothing after it */
}

/* Open the source.  Only what cannot block for ever is taken: a named pipe or a terminal would hold a pool thread. */
static int open_source(struct feeder *feeder)
{
    struct stat st;

    feeder->source_fd = open(feeder->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (feeder->source_fd < 0 || fstat(feeder->source_fd, &st) < 0)
        return err_set(&feeder->err, -errno, FAULT_HOST, "open stdin file '%s'", feeder->path);
    if (!S_ISREG(st.st_mode) && (!S_ISCHR(st.st_mode) || isatty(feeder->source_fd)))
        return err_set(&feeder->err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, FAULT_JOB,
                       "stdin file '%s' is not a regular file", feeder->path);
    feeder->device = (uint64_t)st.st_dev;
    (void)posix_fadvise(feeder->source_fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return 0;
}

static void run_read(struct work *work)
{
    struct feeder *feeder = CONTAINER_OF(work, struct feeder, work);

    feeder->result = feeder->source_fd < 0 ? open_source(feeder) : 0;
    if (feeder->result < 0)
        return;
    ssize_t n = RETRY_EINTR(read(feeder->source_fd, feeder->bytes, CHUNK));
    if (n < 0) {
        feeder->result =
            err_set(&feeder->err, -errno, FAULT_HOST, "read stdin file '%s'", feeder->path);
        return;
    }
    feeder->at = 0;
    feeder->len = (size_t)n;
    feeder->source_ended = n == 0;
}

static void advance(struct feeder *feeder);

static void after_read(struct work *work)
{
    struct feeder *feeder = CONTAINER_OF(work, struct feeder, work);
    OBJ_CHECK(feeder, FEEDER_MAGIC);

    feeder->reading = false;
    if (feeder->closing)
        maybe_destroy(feeder);
    else if (feeder->result < 0)
        finish(feeder, feeder->result, &feeder->err);
    else
        advance(feeder);
}

static void start_read(struct feeder *feeder)
{
    feeder->reading = true;
    work_submit(feeder->loop, &feeder->work, feeder->source_fd < 0 ? WORK_UNKNOWN : feeder->device,
                run_read, after_read);
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
    struct feeder *feeder = CONTAINER_OF(poll, struct feeder, poll);
    OBJ_CHECK(feeder, FEEDER_MAGIC);

    (void)uv_poll_stop(poll);
    advance(feeder);
}

/* Write what there is; then wait for room, or read on. */
static void advance(struct feeder *feeder)
{
    while (feeder->at < feeder->len) {
        ssize_t n =
            sigpipe_write(feeder->pipe_fd, feeder->bytes + feeder->at, feeder->len - feeder->at);
        if (n == -EAGAIN) {
            (void)uv_poll_start(&feeder->poll, UV_WRITABLE, on_writable);
            return;
        }
        if (n == -EPIPE) { /* the job does not want more: its right */
            finish(feeder, 0, NULL);
            return;
        }
        if (n < 0) {
            int r = err_set(&feeder->err, (int)n, FAULT_HOST, "write the job's stdin");
            finish(feeder, r, &feeder->err);
            return;
        }
        feeder->at += (size_t)n;
    }
    if (feeder->source_ended)
        finish(feeder, 0, NULL);
    else if (feeder->source != NULL)
        feeder->source_ops->resume(feeder->source);
    else
        start_read(feeder);
}

/* ---- from another machine ---- */

/* What the pipe takes at once is not copied.  Nothing ends from inside of this: a pipe that fails polls writable, too. */
static bool on_source_bytes(void *arg, const void *bytes, size_t len)
{
    struct feeder *feeder = arg;

    OBJ_CHECK(feeder, FEEDER_MAGIC);
    if (feeder->at < feeder->len || len > CHUNK)
        return false;
    ssize_t n = sigpipe_write(feeder->pipe_fd, bytes, len);
    size_t done = n < 0 ? 0 : (size_t)n;
    feeder->at = 0;
    feeder->len = len - done;
    if (feeder->len > 0) {
        memcpy(feeder->bytes, (const char *)bytes + done, feeder->len);
        (void)uv_poll_start(&feeder->poll, UV_WRITABLE, on_writable);
    }
    return true;
}

static void on_source_end(void *arg, int result, const struct mandor_err *err)
{
    struct feeder *feeder = arg;

    OBJ_CHECK(feeder, FEEDER_MAGIC);
    feeder->source_ended = true;
    if (result < 0) {
        struct mandor_err own = *err;
        (void)err_wrap(&own, result, "stdin");
        finish(feeder, result, &own);
    } else if (feeder->at == feeder->len) {
        finish(feeder, 0, NULL);
    }
}

_Static_assert(SOURCE_PIECE_MAX <= CHUNK, "a piece is a chunk at most");

static int open_remote(struct feeder *feeder, const char *url, struct mandor_err *err)
{
    static const struct source_events events = { .on_bytes = on_source_bytes,
                                                 .on_end = on_source_end };

    feeder->source_ops = module_part("source", url, err);
    if (feeder->source_ops == NULL)
        return err->code;
    int r =
        feeder->source_ops->open(feeder->loop, url, false, &events, feeder, &feeder->source, err);
    return r < 0 ? err_wrap(err, r, "stdin") : 0;
}

/* Take the text of the URL: what is fed, or where to read it. */
static int prepare(struct feeder *feeder, const char *url)
{
    const char *text = after_prefix(url, "inline:"), *path = after_prefix(url, "file:");

    if (text != NULL) {
        feeder->bytes = strdup(text);
        feeder->len = strlen(text);
        feeder->source_ended = true;
        return feeder->bytes == NULL ? -ENOMEM : 0;
    }
    feeder->bytes = malloc(CHUNK);
    if (path == NULL)
        return feeder->bytes == NULL ? -ENOMEM : 0;
    feeder->path = strdup(path);
    return feeder->path == NULL || feeder->bytes == NULL ? -ENOMEM : 0;
}

int feeder_start(uv_loop_t *loop, const char *url, int adopt_pipe_fd, feeder_end_fn *on_end,
                 void *arg, struct feeder **ret, struct mandor_err *err)
{
    SCOPED_FD pipe_fd = adopt_pipe_fd;
    struct mandor_err unused = { 0 };

    err = err != NULL ? err : &unused;
    int r = feeder_check_url(url, err);
    if (r < 0)
        return r;

    struct feeder *feeder = calloc(1, sizeof *feeder);
    if (feeder == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "feed stdin");
    *feeder = (struct feeder){ .magic = FEEDER_MAGIC,
                               .loop = loop,
                               .on_end = on_end,
                               .arg = arg,
                               .pipe_fd = -1,
                               .source_fd = -1 };
    if ((r = prepare(feeder, url)) < 0 || (r = uv_poll_init(loop, &feeder->poll, pipe_fd)) < 0) {
        destroy(feeder);
        return err_set(err, r, FAULT_HOST, "feed stdin");
    }
    feeder->pipe_fd = STEAL_FD(pipe_fd);
    feeder->poll_open = true;
    if (feeder->path != NULL) {
        start_read(feeder);
    } else if (module_has("source", url)) {
        if ((r = open_remote(feeder, url, err)) < 0) {
            feeder_close(feeder);
            return r;
        }
    } else {
        (void)uv_poll_start(&feeder->poll, UV_WRITABLE, on_writable); /* later, not in this call */
    }
    *ret = feeder;
    return 0;
}

void feeder_close(struct feeder *feeder)
{
    if (feeder == NULL)
        return;
    OBJ_CHECK(feeder, FEEDER_MAGIC);
    BUG_ON(feeder->closing);
    feeder->closing = true;
    close_pipe(feeder);
    close_source(feeder);
    maybe_destroy(feeder);
}

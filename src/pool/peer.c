/* peer.c - contract in peer.h.
 *
 * Output gathers in `out` and is written at once, or, while input is being read, at the end of that turn: the answers to many
 * frames share a write.  A write that fails (the worker has gone) only stops writing: what it sent before is still read, and the
 * end of file then ends the connection.
 */
#include "pool/peer.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/json.h"
#include "pool/wire.h"
#include "pool/wire_json.h"

#define PEER_MAGIC  0x70656572u
/* Of one loop turn; whole CHUNKs of 64 KiB with their headers. */
#define READ_SIZE   (((size_t)256 << 10) + 1024)
/* Bytes read after the process died: more than a socket buffer holds. */
#define DRAIN_MAX   ((size_t)4 << 20)
#define CONTROL_MAX ((size_t)256 << 10) /* unread control frames, bytes */
#define KEEP_MAX    ((size_t)256 << 10) /* a larger output buffer is freed when it is empty */
/* Of RESULT, ERROR and PROGRESS: an empty object of two bytes takes 250 in memory. */
#define VALUES_MAX  ((size_t)250000)
#define NAME_SIZE   128
#define TEXT_SIZE   1024

struct peer {
    uint32_t magic;
    struct peer_options options;
    struct peer_events events;
    void *arg;

    int fd; /* -1 = closed */
    uv_poll_t poll;
    uv_timer_t timer; /* HELLO deadline, then PING */
    unsigned handles; /* open */
    int polled;       /* events asked for */

    struct wire_decoder decoder;
    struct buf task; /* the payload of a JOB while it is written */
    struct buf out;
    size_t out_at;       /* bytes of out that are written */
    size_t out_bulk;     /* bytes of JOB and CHUNK put into out since it was empty */
    bool corked, deaf;   /* deaf: writing failed, nothing more is sent */
    bool job_last;       /* the newest frame put was a JOB */
    uint64_t unread_job; /* its number, when the worker is known not to have read it */

    bool greeted, bye_sent, over, closing;
    struct list jobs;
    uint64_t next_job, worker_credit;
    uint64_t ping; /* number of the newest PING */
    bool ping_out;
    int64_t quiet_since_ms; /* no job is held and PING was sent: since when */
    void (*on_closed)(void *arg);
    void *closed_arg;
};

/* ---- the end ---- */

static void on_handle_closed(uv_handle_t *handle);

/* The handle is closed with its descriptor: closed later, it would take another one of the same number out of epoll
 * (uv__platform_invalidate_fd(), libuv src/unix/poll.c). */
static void stop_io(struct peer *peer)
{
    if (peer->fd < 0)
        return;
    uv_close((uv_handle_t *)&peer->poll, on_handle_closed);
    (void)uv_timer_stop(&peer->timer);
    (void)close(STEAL_FD(peer->fd));
}

static void end(struct peer *peer, int result, const struct mandor_err *err)
{
    if (peer->over)
        return;
    peer->over = true;
    stop_io(peer);
    if (!peer->closing)
        peer->events.on_ended(peer->arg, result, err);
}

PRINTF_LIKE(3, 4)
static void fail(struct peer *peer, int code, const char *fmt, ...)
{
    struct mandor_err err = { 0 };
    char text[200];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)err_set(&err, code, FAULT_JOB, "%s%s", code == -EPROTO ? "protocol error: " : "", text);
    end(peer, code, &err);
}

/* ---- writing ---- */

/* The worker closed with bytes of ours unread: the newest were among them. */
static void note_unread(struct peer *peer)
{
    if (peer->job_last)
        peer->unread_job = peer->next_job;
}

/* Something that must be sent cannot be: make the worker see an end, and us its end of file. */
static void mute(struct peer *peer)
{
    peer->deaf = true;
    if (peer->fd >= 0)
        (void)shutdown(peer->fd, SHUT_RDWR);
}

static void on_poll(uv_poll_t *poll, int status, int events);

static size_t out_left(const struct peer *peer)
{
    return peer->out.len - peer->out_at;
}

static void watch(struct peer *peer)
{
    int wanted = UV_READABLE | (out_left(peer) > 0 && !peer->deaf ? UV_WRITABLE : 0);

    if (peer->fd < 0 || peer->polled == wanted)
        return;
    peer->polled = wanted;
    (void)uv_poll_start(&peer->poll, wanted, on_poll);
}

static void forget_out(struct peer *peer)
{
    peer->out_at = peer->out_bulk = 0;
    if (peer->out.cap > KEEP_MAX)
        buf_done(&peer->out);
    else
        buf_clear(&peer->out);
}

static void flush(struct peer *peer)
{
    while (!peer->deaf && peer->fd >= 0 && out_left(peer) > 0) {
        ssize_t n = RETRY_EINTR(
            send(peer->fd, peer->out.data + peer->out_at, out_left(peer), MSG_NOSIGNAL));
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            peer->deaf = true;
            note_unread(peer);
        } else {
            peer->out_at += (size_t)n;
        }
    }
    if (out_left(peer) == 0 || peer->deaf)
        forget_out(peer);
    watch(peer);
}

/* Put one frame into the output.  0, -EMSGSIZE or -ENOMEM. */
static int put(struct peer *peer, enum wire_type type, enum wire_stream stream, bool last,
               uint64_t job, const void *payload, size_t len)
{
    unsigned char header[WIRE_HEADER_SIZE];

    if (peer->deaf || peer->fd < 0) { /* nobody is there: the end of file comes */
        peer->job_last = type == WIRE_JOB;
        note_unread(peer);
        return 0;
    }
    int r = wire_encode(header, WIRE_MANDOR, type, stream, last, job, len);
    if (r == 0 && peer->out_at > 0 && peer->out_at >= peer->out.len / 2) {
        buf_consume(&peer->out, peer->out_at);
        peer->out_at = 0;
    }
    if (r == 0)
        r = buf_reserve(&peer->out, sizeof header + len);
    if (r == 0)
        r = buf_add(&peer->out, header, sizeof header);
    if (r == 0 && len > 0)
        r = buf_add(&peer->out, payload, len);
    if (r < 0)
        return r;
    peer->job_last = type == WIRE_JOB;
    if (type == WIRE_JOB || type == WIRE_CHUNK)
        peer->out_bulk += sizeof header + len;
    if (!peer->corked)
        flush(peer);
    return 0;
}

/* A small frame of ours.  Nothing can be done about missing memory but to give the connection up: the credit would be lost. */
PRINTF_LIKE(5, 6)
static void control(struct peer *peer, enum wire_type type, enum wire_stream stream, uint64_t job,
                    const char *fmt, ...)
{
    char text[WIRE_CONTROL_MAX];
    va_list args;

    va_start(args, fmt);
    int len = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    BUG_ON(len < 0 || (size_t)len >= sizeof text);
    if (put(peer, type, stream, false, job, text, (size_t)len) < 0)
        mute(peer);
}

/* text as a JSON string in a frame that must stay small. */
static const char *quoted(const char *text, char *out, size_t size)
{
    size_t len = strlen(text);

    while (wire_json_quote(text, len, out, size) >= size)
        len /= 2;
    return out;
}

/* ---- jobs ---- */

static struct peer_job *find_job(struct peer *peer, uint64_t number)
{
    LIST_FOREACH(job, &peer->jobs, struct peer_job, node)
        if (job->number == number)
            return job;
    return NULL;
}

/* Append the payload of JOB.  0 or -ENOMEM. */
static int write_task(struct buf *buf, const struct peer_task *task)
{
    int r = buf_adds(buf, "{\"id\":");
    if (r == 0)
        r = json_write_text(buf, task->id);
    if (r == 0)
        r = buf_adds(buf, ",\"queue\":");
    if (r == 0)
        r = json_write_text(buf, task->queue);
    if (r == 0)
        r = buf_addf(buf, ",\"attempt\":%" PRId64 ",\"data\":", task->attempt);
    if (r == 0)
        r = task->data != NULL ? json_write(buf, task->data) : buf_adds(buf, "null");
    if (r == 0)
        r = buf_addf(buf, ",\"timeout_ms\":%" PRId64 ",\"stdin\":%s}", task->timeout_ms,
                     task->has_stdin ? "true" : "false");
    return r;
}

int peer_give(struct peer *peer, const struct peer_task *task, struct peer_job *job,
              const struct peer_job_events *events, void *arg)
{
    OBJ_CHECK(peer, PEER_MAGIC);
    BUG_ON(!peer->greeted);
    buf_clear(&peer->task);
    int r = write_task(&peer->task, task);
    if (r < 0)
        return r;

    uint64_t number = ++peer->next_job;
    r = put(peer, WIRE_JOB, WIRE_STDIN, false, number, peer->task.data, peer->task.len);
    if (peer->task.cap > KEEP_MAX)
        buf_done(&peer->task);
    if (r < 0) {
        peer->next_job--;
        return r;
    }
    *job = (struct peer_job){ .peer = peer,
                              .number = number,
                              .stdin_credit = peer->worker_credit,
                              .credit = { PEER_WINDOW, PEER_WINDOW },
                              .stdin_over = !task->has_stdin,
                              .events = events,
                              .arg = arg };
    list_push_back(&peer->jobs, &job->node);
    return 0;
}

size_t peer_job_room(const struct peer_job *job)
{
    if (job->peer == NULL || job->stdin_over || job->peer->deaf) /* deaf: it would be lost */
        return 0;
    /* What the socket does not take must not gather here: credit may be gigabytes. */
    size_t left = out_left(job->peer);
    return left >= PEER_WINDOW ? 0 : (size_t)MIN(job->stdin_credit, (uint64_t)(PEER_WINDOW - left));
}

void peer_job_stdin(struct peer_job *job, const void *bytes, size_t len, bool last)
{
    if (job->peer == NULL || job->stdin_over || (len == 0 && !last))
        return;
    BUG_ON(wire_credit_spend(&job->stdin_credit, len) < 0);
    job->stdin_over = last;
    if (put(job->peer, WIRE_CHUNK, WIRE_STDIN, last, job->number, bytes, len) < 0)
        mute(job->peer);
}

void peer_job_took(struct peer_job *job, bool is_stderr, size_t len)
{
    if (job->peer == NULL)
        return;
    job->owed[is_stderr] += len;
    if (job->over[is_stderr] || job->owed[is_stderr] < PEER_WINDOW / 4)
        return;
    uint64_t bytes = job->owed[is_stderr];
    BUG_ON(wire_credit_grant(&job->credit[is_stderr], bytes) < 0);
    job->owed[is_stderr] = 0;
    control(job->peer, WIRE_CREDIT, is_stderr ? WIRE_STDERR : WIRE_STDOUT, job->number,
            "{\"bytes\":%" PRIu64 "}", bytes);
}

void peer_job_cancel(struct peer_job *job, const char *reason, int64_t grace_ms)
{
    char text[512];

    if (job->peer != NULL)
        control(job->peer, WIRE_CANCEL, WIRE_STDIN, job->number,
                "{\"reason\":%s,\"grace_ms\":%" PRId64 "}", quoted(reason, text, sizeof text),
                MAX(grace_ms, (int64_t)0));
}

void peer_job_drop(struct peer_job *job)
{
    if (job->peer == NULL)
        return;
    list_remove(&job->node);
    job->peer = NULL;
}

/* ---- what comes in ---- */

static bool get_object(struct peer *peer, const struct wire_frame *frame, struct wire_json *ret)
{
    size_t at;

    if (wire_json_parse(frame->payload, frame->len, ret, &at) < 0)
        fail(peer, -EPROTO, "%s is not JSON at byte %zu of its payload",
             wire_type_name(frame->type), at);
    else if (wire_json_kind(*ret) != 'o')
        fail(peer, -EPROTO, "expected an object in %s", wire_type_name(frame->type));
    return !peer->over;
}

/* Is there text under key?  It is cut to size. */
static bool get_text(struct wire_json object, const char *key, char *text, size_t size)
{
    if (wire_json_unquote(wire_json_member(object, key), text, size) < 0) {
        text[0] = '\0';
        return false;
    }
    return true;
}

static bool need_text(struct peer *peer, const struct wire_frame *frame, struct wire_json object,
                      const char *key, char *text, size_t size)
{
    if (!get_text(object, key, text, size))
        fail(peer, -EPROTO, "expected text as '%s' of %s", key, wire_type_name(frame->type));
    return !peer->over;
}

static bool need_number(struct peer *peer, const struct wire_frame *frame, struct wire_json object,
                        const char *key, uint64_t max, uint64_t *ret)
{
    if (wire_json_uint(wire_json_member(object, key), max, ret) < 0)
        fail(peer, -EPROTO, "expected a whole number up to %" PRIu64 " as '%s' of %s", max, key,
             wire_type_name(frame->type));
    return !peer->over;
}

static bool get_number(struct peer *peer, const struct wire_frame *frame, const char *key,
                       uint64_t max, uint64_t *ret)
{
    struct wire_json object;

    return get_object(peer, frame, &object) && need_number(peer, frame, object, key, max, ret);
}

/* No fewer than the values in it. */
static size_t count_values(struct wire_json json)
{
    size_t count = 1;
    bool text = false;

    for (size_t i = 0; i < json.len; i++) {
        char c = json.text[i];
        if (c == '"')
            text = !text;
        else if (text)
            i += c == '\\';
        else
            count += c == ',' || c == '[' || c == '{' || c == ':';
    }
    return count;
}

/* The payload as a tree, or NULL: the connection has been ended. */
static json_t *get_tree(struct peer *peer, const struct wire_frame *frame)
{
    struct wire_json value;
    json_error_t error;
    size_t at;

    if (wire_json_parse(frame->payload, frame->len, &value, &at) < 0) {
        fail(peer, -EPROTO, "%s is not JSON at byte %zu of its payload",
             wire_type_name(frame->type), at);
        return NULL;
    }
    if (value.len > VALUES_MAX && count_values(value) > VALUES_MAX) {
        fail(peer, -EPROTO, "expected at most %zu values in %s, found more", VALUES_MAX,
             wire_type_name(frame->type));
        return NULL;
    }
    json_t *json = json_load_foreign(value.text, value.len, &error);
    if (json == NULL)
        fail(peer, -EPROTO, "%s cannot be read: %s", wire_type_name(frame->type), error.text);
    return json;
}

static bool speaks_our_version(struct wire_json hello)
{
    struct wire_json item;
    uint64_t version;

    for (size_t at = 0; wire_json_next(wire_json_member(hello, "versions"), &at, &item);)
        if (wire_json_uint(item, UINT16_MAX, &version) == 0 && version == WIRE_VERSION)
            return true;
    return false;
}

static void on_timer(uv_timer_t *timer);

static void on_hello(struct peer *peer, const struct wire_frame *frame)
{
    char name[NAME_SIZE], sdk[NAME_SIZE], pool[512];
    struct wire_json object;

    if (!get_object(peer, frame, &object))
        return;
    if (!speaks_our_version(object)) {
        control(peer, WIRE_BYE, WIRE_STDIN, 0,
                "{\"reason\":\"no common version: mandor speaks %d\"}", WIRE_VERSION);
        flush(peer);
        fail(peer, -EPROTO, "no common version: mandor speaks %d, the worker does not",
             WIRE_VERSION);
        return;
    }
    uint64_t concurrency = peer->options.concurrency;
    if (!need_text(peer, frame, object, "name", name, sizeof name) ||
        !need_text(peer, frame, object, "sdk", sdk, sizeof sdk) ||
        !need_number(peer, frame, object, "credit", WIRE_CREDIT_MAX, &peer->worker_credit) ||
        (wire_json_member(object, "concurrency").text != NULL &&
         !need_number(peer, frame, object, "concurrency", WIRE_NUMBER_MAX, &concurrency)))
        return;
    if (concurrency == 0) {
        fail(peer, -EPROTO, "expected 1 or more as 'concurrency' of HELLO");
        return;
    }
    peer->options.concurrency = (unsigned)MIN(concurrency, (uint64_t)peer->options.concurrency);
    peer->greeted = true;
    control(peer, WIRE_HELLO, WIRE_STDIN, 0,
            "{\"version\":%d,\"pool\":%s,\"concurrency\":%u,\"credit\":%zu}", WIRE_VERSION,
            quoted(peer->options.pool, pool, sizeof pool), peer->options.concurrency, PEER_WINDOW);
    (void)uv_timer_stop(&peer->timer);
    if (peer->options.ping_interval_ms > 0)
        (void)uv_timer_start(&peer->timer, on_timer, (uint64_t)peer->options.ping_interval_ms,
                             (uint64_t)peer->options.ping_interval_ms);
    peer->events.on_hello(peer->arg, name, sdk);
}

static void on_chunk(struct peer *peer, struct peer_job *job, const struct wire_frame *frame)
{
    bool is_stderr = frame->stream == WIRE_STDERR;
    const char *stream = is_stderr ? "stderr" : "stdout";

    if (frame->at == 0) {
        if (job->over[is_stderr]) {
            fail(peer, -EPROTO, "CHUNK behind the last of %s, job %" PRIu64, stream, frame->job);
            return;
        }
        if (wire_credit_spend(&job->credit[is_stderr], frame->total) < 0) {
            fail(peer, -EPROTO,
                 "CHUNK of %zu bytes of %s with credit for %" PRIu64 ", job %" PRIu64, frame->total,
                 stream, job->credit[is_stderr], frame->job);
            return;
        }
    }
    if (frame->last)
        job->over[is_stderr] = true;
    if (frame->len > 0)
        job->events->on_chunk(job->arg, is_stderr, frame->payload, frame->len);
    if (frame->last && job->peer != NULL)
        job->events->on_chunk_end(job->arg, is_stderr);
}

static void on_credit(struct peer *peer, struct peer_job *job, const struct wire_frame *frame)
{
    uint64_t bytes;

    if (!get_number(peer, frame, "bytes", WIRE_CREDIT_MAX, &bytes))
        return;
    if (wire_credit_grant(&job->stdin_credit, bytes) < 0)
        fail(peer, -EPROTO,
             "CREDIT of %" PRIu64 " bytes for stdin, job %" PRIu64
             ", expected 1 up to 2^31-1 in all",
             bytes, frame->job);
    else
        job->events->on_room(job->arg);
}

static void on_done(struct peer *peer, struct peer_job *job, const struct wire_frame *frame)
{
    SCOPED_JSON *value = get_tree(peer, frame);
    bool is_error = frame->type == WIRE_ERROR;

    if (value == NULL)
        return;
    if (is_error && !json_is_string(json_object_get(value, "message"))) {
        fail(peer, -EPROTO, "expected an object with text as 'message' in ERROR, job %" PRIu64,
             frame->job);
        return;
    }
    peer_job_drop(job);
    if (list_empty(&peer->jobs))
        peer->quiet_since_ms = clock_mono_ms();
    job->events->on_done(job->arg, is_error ? NULL : value, is_error ? value : NULL);
}

static void on_log(struct peer *peer, struct peer_job *job, const struct wire_frame *frame)
{
    char text[TEXT_SIZE], level[16];
    struct wire_json object;

    if (!get_object(peer, frame, &object))
        return;
    if (!need_text(peer, frame, object, "text", text, sizeof text))
        return;
    (void)get_text(object, "level", level, sizeof level);
    if (job != NULL)
        job->events->on_log(job->arg, level, text);
    else
        peer->events.on_log(peer->arg, level, text);
}

static void on_ping(struct peer *peer, const struct wire_frame *frame)
{
    uint64_t n;

    if (get_number(peer, frame, "n", WIRE_NUMBER_MAX, &n))
        control(peer, WIRE_PONG, WIRE_STDIN, 0, "{\"n\":%" PRIu64 "}", n);
}

static void on_pong(struct peer *peer, const struct wire_frame *frame)
{
    uint64_t n;

    if (!get_number(peer, frame, "n", WIRE_NUMBER_MAX, &n))
        return;
    if (!peer->ping_out || n != peer->ping)
        fail(peer, -EPROTO, "PONG %" PRIu64 " that nobody asked for", n);
    peer->ping_out = false;
}

static void on_bye(struct peer *peer, const struct wire_frame *frame)
{
    struct wire_json object;
    char reason[256];

    if (!get_object(peer, frame, &object))
        return;
    (void)get_text(object, "reason", reason, sizeof reason);
    peer->events.on_bye(peer->arg, reason);
}

static void on_frame(struct peer *peer, const struct wire_frame *frame)
{
    struct peer_job *job = frame->job == 0 ? NULL : find_job(peer, frame->job);
    SCOPED_JSON *value = NULL;

    if (frame->job != 0 && job == NULL) {
        fail(peer, -EPROTO, "%s for job %" PRIu64 ", which this worker does not have",
             wire_type_name(frame->type), frame->job);
        return;
    }
    switch (frame->type) {
    case WIRE_HELLO:
        on_hello(peer, frame);
        break;
    case WIRE_CHUNK:
        on_chunk(peer, job, frame);
        break;
    case WIRE_CREDIT:
        on_credit(peer, job, frame);
        break;
    case WIRE_RESULT:
    case WIRE_ERROR:
        on_done(peer, job, frame);
        break;
    case WIRE_PROGRESS:
        if ((value = get_tree(peer, frame)) != NULL)
            job->events->on_progress(job->arg, value);
        break;
    case WIRE_LOG:
        on_log(peer, job, frame);
        break;
    case WIRE_PING:
        on_ping(peer, frame);
        break;
    case WIRE_PONG:
        on_pong(peer, frame);
        break;
    case WIRE_BYE:
        on_bye(peer, frame);
        break;
    default: /* the decoder lets nothing else through */
        BUG("a frame that a worker may not send");
    }
}

/* Decode what was read. */
static void take(struct peer *peer, const unsigned char *bytes, size_t len)
{
    struct wire_frame frame;
    int r = 0;

    while (!peer->over && (r = wire_decode(&peer->decoder, &bytes, &len, &frame)) > 0)
        on_frame(peer, &frame);
    if (peer->over)
        return;
    if (r == -EPROTO)
        fail(peer, r, "%s", peer->decoder.error);
    else if (r < 0)
        fail(peer, r, "no memory for a frame of the worker");
    else if (out_left(peer) > CONTROL_MAX + peer->out_bulk)
        fail(peer, -EPROTO, "the worker sends, and reads nothing of what is sent to it");
}

static void end_of_file(struct peer *peer)
{
    if (out_left(peer) > 0)
        note_unread(peer);
    if (wire_decoder_end(&peer->decoder) < 0)
        fail(peer, -EPROTO, "%s", peer->decoder.error);
    else
        end(peer, 0, NULL);
}

/* One read.  Returns bytes, 0 when there is nothing now or the peer is over. */
static size_t read_some(struct peer *peer)
{
    unsigned char bytes[READ_SIZE];

    if (peer->over)
        return 0;
    ssize_t n = RETRY_EINTR(read(peer->fd, bytes, sizeof bytes));
    if (n > 0) {
        take(peer, bytes, (size_t)n);
    } else if (n == 0 || errno == ECONNRESET) {
        if (n < 0) /* unix(7): it closed with unread data in its receive buffer */
            note_unread(peer);
        end_of_file(peer);
    } else if (errno != EAGAIN) {
        fail(peer, -errno, "read from the worker: %s", strerror(errno));
    }
    return n > 0 && !peer->over ? (size_t)n : 0;
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct peer *peer = poll->data;
    OBJ_CHECK(peer, PEER_MAGIC);

    peer->corked = true;
    if (status < 0 || (events & UV_READABLE))
        (void)read_some(peer);
    peer->corked = false;
    if (peer->over)
        return;
    bool was_full = out_left(peer) > 0;
    flush(peer);
    if (was_full && out_left(peer) == 0)
        LIST_FOREACH(job, &peer->jobs, struct peer_job, node)
            job->events->on_room(job->arg);
}

void peer_drain(struct peer *peer)
{
    size_t got = 0, n;
    OBJ_CHECK(peer, PEER_MAGIC);

    peer->deaf = true;
    while (got < DRAIN_MAX && (n = read_some(peer)) > 0)
        got += n;
    if (!peer->over)
        end_of_file(peer); /* a descendant has the other end still: nothing of it counts */
}

/* ---- time ---- */

static void on_timer(uv_timer_t *timer)
{
    struct peer *peer = timer->data;
    OBJ_CHECK(peer, PEER_MAGIC);

    if (!peer->greeted) {
        fail(peer, -ETIMEDOUT, "no HELLO within %" PRId64 " ms", peer->options.hello_timeout_ms);
        return;
    }
    if (!list_empty(&peer->jobs)) /* it may be busy computing: the job's own timeout judges that */
        return;
    int64_t now = clock_mono_ms();
    if (!peer->ping_out) {
        peer->ping_out = true;
        peer->ping++;
        peer->quiet_since_ms = now;
        control(peer, WIRE_PING, WIRE_STDIN, 0, "{\"n\":%" PRIu64 "}", peer->ping);
    } else if (now - peer->quiet_since_ms >= peer->options.ping_interval_ms) {
        fail(peer, -ETIMEDOUT, "no answer to PING within %" PRId64 " ms",
             now - peer->quiet_since_ms);
    }
}

/* ---- life ---- */

int peer_new(uv_loop_t *loop, int adopt_fd, const struct peer_options *options,
             const struct peer_events *events, void *arg, struct peer **ret)
{
    SCOPED_FD fd = adopt_fd;
    struct peer *peer = calloc(1, sizeof *peer);

    if (peer == NULL)
        return -ENOMEM;
    *peer = (struct peer){ .magic = PEER_MAGIC,
                           .options = *options,
                           .events = *events,
                           .arg = arg,
                           .fd = fd,
                           .handles = 2 };
    list_init(&peer->jobs);
    wire_decoder_init(&peer->decoder, WIRE_WORKER, true);
    int r = uv_poll_init(loop, &peer->poll, fd); /* sets O_NONBLOCK */
    if (r < 0) {
        free(peer);
        return r;
    }
    (void)uv_timer_init(loop, &peer->timer);
    peer->poll.data = peer->timer.data = peer;
    STEAL_FD(fd);
    watch(peer);
    deadline_start(&peer->timer, on_timer, options->hello_timeout_ms);
    *ret = peer;
    return 0;
}

void peer_bye(struct peer *peer, const char *reason)
{
    char text[512];
    OBJ_CHECK(peer, PEER_MAGIC);

    if (peer->bye_sent || peer->over || !peer->greeted)
        return;
    peer->bye_sent = true;
    control(peer, WIRE_BYE, WIRE_STDIN, 0, "{\"reason\":%s}", quoted(reason, text, sizeof text));
}

bool peer_job_unread(const struct peer *peer, const struct peer_job *job)
{
    OBJ_CHECK(peer, PEER_MAGIC);
    return job->number != 0 && job->number == peer->unread_job;
}

unsigned peer_concurrency(const struct peer *peer)
{
    OBJ_CHECK(peer, PEER_MAGIC);
    return peer->options.concurrency;
}

bool peer_over(const struct peer *peer)
{
    OBJ_CHECK(peer, PEER_MAGIC);
    return peer->over;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct peer *peer = handle->data;
    OBJ_CHECK(peer, PEER_MAGIC);

    if (--peer->handles > 0)
        return;
    void (*on_closed)(void *arg) = peer->on_closed;
    void *arg = peer->closed_arg;
    wire_decoder_done(&peer->decoder);
    buf_done(&peer->task);
    buf_done(&peer->out);
    OBJ_FINI(peer);
    free(peer);
    if (on_closed != NULL)
        on_closed(arg);
}

void peer_close(struct peer *peer, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(peer, PEER_MAGIC);
    BUG_ON(peer->closing);
    peer->closing = true;
    peer->on_closed = on_closed;
    peer->closed_arg = arg;
    LIST_FOREACH(job, &peer->jobs, struct peer_job, node)
        peer_job_drop(job);
    stop_io(peer);
    peer->over = true;
    uv_close((uv_handle_t *)&peer->timer, on_handle_closed);
}

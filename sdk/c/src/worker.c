/* worker.c - contract in mandor/worker.h.
 *
 * One thread, one socket, no handler ever called from another's depth: whoever waits (for credit, for bytes, for room in
 * the socket) turns pump(), which reads and takes in frames.  pump() never writes; a PONG that is due is noted, and goes
 * out between two frames.
 */
#include <mandor/worker.h>

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "pool/wire.h"
#include "pool/wire_json.h"

#define SDK            "c/" MANDOR_VERSION
#define CREDIT_DEFAULT 65536u
#define READ_SIZE      ((size_t)64 << 10) /* bytes of one recv */
#define CHUNK_SIZE     ((size_t)64 << 10) /* bytes of one CHUNK */
#define PONGS_MAX      32
#define WORD_MAX       64 /* bytes of a CANCEL's reason */

/* Stdin that has come and is unread; never more than the credit that was given. */
struct stdin_buffer {
    unsigned char *bytes;
    size_t start, len, size;
    uint64_t credit; /* bytes that mandor may still send */
    uint64_t taken;  /* bytes that were read since the last CREDIT */
    bool ended;
};

struct mandor_job {
    struct worker *worker;
    uint64_t number;
    char *payload, *id, *queue, *data; /* malloc'ed text */
    uint64_t attempt, timeout_ms;
    struct stdin_buffer in;
    uint64_t out_credit[3];
    bool out_ended[3];
    bool cancelled;
    char reason[WORD_MAX];
    char *result;  /* JSON text, or NULL */
    char *failure; /* JSON text of ERROR, or NULL */
};

struct worker {
    int fd, error; /* error: 0 or the -errno that ended the connection, said once */
    bool hello, bye, refused, closed, said_bye;
    uint64_t in_credit, out_credit; /* of each new job */
    uint64_t last_job;
    uint64_t pongs[PONGS_MAX];
    unsigned pong_count;
    struct mandor_job *job; /* the one that mandor has given and that has not ended */
    struct wire_decoder decoder;
    size_t in_start, in_len;
    unsigned char in[READ_SIZE];
};

static struct worker *running;

/* --- errors */

static int give_up(struct worker *worker, int code, const char *what)
{
    if (worker->error == 0) {
        worker->error = code;
        (void)fprintf(stderr, "mandor-worker: %s\n", what);
    }
    return worker->error;
}

static int give_up_frame(struct worker *worker, const struct wire_frame *frame,
                         const char *expected)
{
    char text[256];

    (void)snprintf(text, sizeof text, "byte %" PRIu64 ": %s for job %" PRIu64 ": expected %s",
                   frame->offset, wire_type_name(frame->type), frame->job, expected);
    return give_up(worker, -EPROTO, text);
}

/* --- frames that come */

static char *copy_text(const char *text, size_t len)
{
    char *copy = malloc(len + 1);

    if (copy != NULL) {
        memcpy(copy, text, len);
        copy[len] = '\0';
    }
    return copy;
}

/* The member as a malloc'ed string, "" when it is none; NULL without memory. */
static char *copy_string(struct wire_json object, const char *key)
{
    struct wire_json value = wire_json_member(object, key);
    ssize_t len = wire_json_unquote(value, NULL, 0);
    char *copy = malloc(len < 0 ? 1 : (size_t)len + 1);

    if (copy == NULL)
        return NULL;
    copy[0] = '\0';
    if (len > 0)
        (void)wire_json_unquote(value, copy, (size_t)len + 1);
    return copy;
}

static void job_free(struct mandor_job *job)
{
    if (job == NULL)
        return;
    free(job->payload);
    free(job->id);
    free(job->queue);
    free(job->data);
    free(job->in.bytes);
    free(job->result);
    free(job->failure);
    free(job);
}

/* The job of a JOB frame; NULL without memory. */
static struct mandor_job *job_new(struct worker *worker, uint64_t number, struct wire_json body)
{
    struct mandor_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return NULL;

    struct wire_json data = wire_json_member(body, "data"), in = wire_json_member(body, "stdin");
    job->worker = worker;
    job->number = number;
    job->id = copy_string(body, "id");
    job->queue = copy_string(body, "queue");
    job->data = data.text == NULL ? copy_text("null", 4) : copy_text(data.text, data.len);
    if (job->id == NULL || job->queue == NULL || job->data == NULL) {
        job_free(job);
        return NULL;
    }
    if (wire_json_uint(wire_json_member(body, "attempt"), WIRE_NUMBER_MAX, &job->attempt) < 0)
        job->attempt = 1;
    if (wire_json_uint(wire_json_member(body, "timeout_ms"), WIRE_NUMBER_MAX, &job->timeout_ms) < 0)
        job->timeout_ms = 0;
    job->in.ended = wire_json_kind(in) != 'b' || in.text[0] != 't';
    job->in.credit = worker->in_credit;
    job->out_credit[WIRE_STDOUT] = job->out_credit[WIRE_STDERR] = worker->out_credit;
    return job;
}

static int on_hello(struct worker *worker, const struct wire_frame *frame, struct wire_json body)
{
    uint64_t version, concurrency;

    if (wire_json_uint(wire_json_member(body, "version"), WIRE_NUMBER_MAX, &version) < 0 ||
        version != WIRE_VERSION)
        return give_up_frame(worker, frame, "\"version\": 1, the one that was offered");
    if (wire_json_uint(wire_json_member(body, "credit"), WIRE_CREDIT_MAX, &worker->out_credit) < 0)
        return give_up_frame(worker, frame, "\"credit\": a number of bytes up to 2147483647");
    if (wire_json_uint(wire_json_member(body, "concurrency"), 1, &concurrency) < 0 ||
        concurrency == 0)
        return give_up_frame(worker, frame, "\"concurrency\": 1, as HELLO had asked for");
    worker->hello = true;
    return 0;
}

static int on_job(struct worker *worker, const struct wire_frame *frame, struct wire_json body)
{
    if (worker->job != NULL)
        return give_up_frame(worker, frame, "one job at a time, as agreed");
    worker->job = job_new(worker, frame->job, body);
    worker->last_job = frame->job;
    return worker->job != NULL ? 0 : give_up(worker, -ENOMEM, "no memory for a job");
}

static int stdin_add(struct stdin_buffer *in, const unsigned char *bytes, size_t len)
{
    if (in->start > 0 && in->start + in->len + len > in->size) {
        memmove(in->bytes, in->bytes + in->start, in->len);
        in->start = 0;
    }
    if (in->len + len > in->size) {
        const size_t size = MAX(2 * in->size, in->len + len);
        unsigned char *grown = realloc(in->bytes, size);
        if (grown == NULL)
            return -ENOMEM;
        in->bytes = grown;
        in->size = size;
    }
    if (len > 0)
        memcpy(in->bytes + in->start + in->len, bytes, len);
    in->len += len;
    return 0;
}

/* A CHUNK comes in pieces; credit is due for all of it with the first. */
static int on_chunk(struct worker *worker, const struct wire_frame *frame)
{
    struct stdin_buffer *in = &worker->job->in;

    if (in->ended)
        return give_up_frame(worker, frame, "none: this stdin has ended, or there is none");
    if (frame->at == 0 && wire_credit_spend(&in->credit, frame->total) < 0)
        return give_up_frame(worker, frame, "no more bytes than there was credit for");
    in->ended = frame->last;
    if (stdin_add(in, frame->payload, frame->len) < 0)
        return give_up(worker, -ENOMEM, "no memory for stdin");
    return 0;
}

static int on_credit(struct worker *worker, const struct wire_frame *frame, struct wire_json body)
{
    uint64_t bytes;

    if (wire_json_uint(wire_json_member(body, "bytes"), WIRE_CREDIT_MAX, &bytes) < 0)
        return give_up_frame(worker, frame, "{\"bytes\": N} with N from 1 to 2147483647");
    if (worker->job == NULL || worker->job->number != frame->job)
        return bytes > 0 ? 0 : give_up_frame(worker, frame, "{\"bytes\": N} with N above 0");
    if (wire_credit_grant(&worker->job->out_credit[frame->stream], bytes) < 0)
        return give_up_frame(worker, frame, "N above 0 and a sum up to 2147483647");
    return 0;
}

static int on_cancel(struct worker *worker, struct wire_json body)
{
    struct mandor_job *job = worker->job;

    job->cancelled = true;
    if (wire_json_unquote(wire_json_member(body, "reason"), job->reason, sizeof job->reason) < 0)
        (void)snprintf(job->reason, sizeof job->reason, "cancelled");
    return 0;
}

static int on_ping(struct worker *worker, const struct wire_frame *frame, struct wire_json body)
{
    uint64_t n;

    if (wire_json_uint(wire_json_member(body, "n"), WIRE_NUMBER_MAX, &n) < 0)
        return give_up_frame(worker, frame, "{\"n\": N} with N from 0 to 2^53-1");
    worker->pongs[worker->pong_count++] = n;
    return 0;
}

static int on_bye(struct worker *worker, struct wire_json body)
{
    char reason[256] = "";

    worker->bye = true;
    if (worker->hello)
        return 0;
    (void)wire_json_unquote(wire_json_member(body, "reason"), reason, sizeof reason);
    (void)fprintf(stderr, "mandor-worker: refused by mandor: %s\n", reason);
    worker->error = -EPROTONOSUPPORT;
    return worker->error;
}

/* Frames of a job that has ended may have crossed its RESULT; those of one that never was are wrong. */
static int on_job_frame(struct worker *worker, const struct wire_frame *frame,
                        struct wire_json body)
{
    if (frame->job > worker->last_job)
        return give_up_frame(worker, frame, "a job that was given to this worker");
    if (frame->type == WIRE_CREDIT)
        return on_credit(worker, frame, body);
    if (worker->job == NULL || worker->job->number != frame->job)
        return 0;
    return frame->type == WIRE_CHUNK ? on_chunk(worker, frame) : on_cancel(worker, body);
}

static int on_frame(struct worker *worker, const struct wire_frame *frame)
{
    struct wire_json body = { 0 };

    if (frame->type != WIRE_CHUNK &&
        (wire_json_parse(frame->payload, frame->len, &body, NULL) < 0 ||
         wire_json_kind(body) != 'o'))
        return give_up_frame(worker, frame, "a JSON object");
    switch (frame->type) {
    case WIRE_HELLO:
        return on_hello(worker, frame, body);
    case WIRE_JOB:
        return on_job(worker, frame, body);
    case WIRE_PING:
        return on_ping(worker, frame, body);
    case WIRE_PONG:
        return give_up_frame(worker, frame, "none: this worker sends no PING");
    case WIRE_BYE:
        return on_bye(worker, body);
    default:
        return on_job_frame(worker, frame, body);
    }
}

/* Take in what was read, up to where the PONGs that are due have no more room. */
static int take_frames(struct worker *worker)
{
    struct wire_frame frame;

    while (worker->pong_count < PONGS_MAX) {
        const unsigned char *at = worker->in + worker->in_start;
        int r = wire_decode(&worker->decoder, &at, &worker->in_len, &frame);
        worker->in_start = (size_t)(at - worker->in);
        if (r == 0)
            return 0;
        if (r < 0)
            return give_up(worker, r,
                           r == -EPROTO ? worker->decoder.error : "no memory for a frame");
        if ((r = on_frame(worker, &frame)) < 0)
            return r;
    }
    return 0;
}

static int on_eof(struct worker *worker)
{
    worker->closed = true;
    if (wire_decoder_end(&worker->decoder) < 0)
        return give_up(worker, -EPROTO, worker->decoder.error);
    /* Behind BYE, with nothing left to do, the end is what was agreed. */
    if (worker->bye && worker->job == NULL)
        return 0;
    return give_up(worker, -EPIPE, "mandor has closed the connection");
}

/* One read into the empty buffer; flags: MSG_DONTWAIT or 0.  Returns bytes, 0 when nothing is there or it has ended (then
 * `closed` says so), or the error that ended the connection. */
static ssize_t receive(struct worker *worker, int flags)
{
    ssize_t n = RETRY_EINTR(recv(worker->fd, worker->in, sizeof worker->in, flags));

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (n < 0 && errno != ECONNRESET)
        return give_up(worker, -errno, strerror(errno));
    if (n <= 0)
        return on_eof(worker);
    worker->in_start = 0;
    worker->in_len = (size_t)n;
    return n;
}

/* Read and take in all that is there; never waits.  Returns 0 or the error that ended the connection. */
static int pump(struct worker *worker)
{
    for (bool drained = false;;) {
        if (worker->error != 0)
            return worker->error;
        int r = take_frames(worker);
        if (r < 0)
            return r;
        if (worker->closed || worker->in_len > 0 || drained)
            return 0;

        ssize_t n = receive(worker, MSG_DONTWAIT);
        if (n <= 0)
            return (int)n;
        drained = (size_t)n < sizeof worker->in; /* a short read: there was no more */
    }
}

/* Wait for bytes and take in what came, with one call where the socket blocks, as mandor's does. */
static int wait_bytes(struct worker *worker)
{
    struct pollfd poll_fd = { .fd = worker->fd, .events = POLLIN };
    ssize_t n = receive(worker, 0);

    if (n < 0 || worker->closed)
        return (int)MIN(n, (ssize_t)0);
    if (n > 0)
        return take_frames(worker);
    if (RETRY_EINTR(poll(&poll_fd, 1, -1)) < 0)
        return give_up(worker, -errno, "cannot wait for the socket");
    return pump(worker);
}

/* --- frames that go */

/* Wait until the socket has bytes, or (room) takes some, and take in what came. */
static int wait_socket(struct worker *worker, bool room)
{
    const bool full = worker->pong_count == PONGS_MAX;
    struct pollfd poll_fd = { .fd = worker->fd,
                              .events = (short)((full ? 0 : POLLIN) | (room ? POLLOUT : 0)) };

    if (!room && worker->in_len > 0 && !full) /* frames that had to wait for their PONGs */
        return pump(worker);
    if (!room && !full)
        return worker->error != 0 ? worker->error : wait_bytes(worker);
    if (RETRY_EINTR(poll(&poll_fd, 1, -1)) < 0)
        return give_up(worker, -errno, "cannot wait for the socket");
    return pump(worker);
}

static void skip_sent(struct iovec iov[2], size_t n)
{
    for (int i = 0; i < 2; i++) {
        const size_t part = MIN(n, iov[i].iov_len);
        iov[i].iov_base = (char *)iov[i].iov_base + part;
        iov[i].iov_len -= part;
        n -= part;
    }
}

/* Put one frame into the socket, and read on while there is no room for it. */
static int send_frame(struct worker *worker, enum wire_type type, enum wire_stream stream,
                      bool last, uint64_t job, const void *payload, size_t len)
{
    static unsigned char nothing[1];
    unsigned char header[WIRE_HEADER_SIZE];
    int r = wire_encode(header, WIRE_WORKER, type, stream, last, job, len);
    if (r < 0)
        return r;

    struct iovec iov[2] = { { header, sizeof header },
                            { len > 0 ? (void *)(uintptr_t)payload : nothing, len } };
    while (iov[0].iov_len + iov[1].iov_len > 0) {
        struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };
        if (worker->error != 0)
            return worker->error;
        ssize_t n = RETRY_EINTR(sendmsg(worker->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
        if (n >= 0) {
            skip_sent(iov, (size_t)n);
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return give_up(worker, errno == ECONNRESET ? -EPIPE : -errno,
                           "mandor has closed the connection");
        /* pump() may report an error of the connection; half a frame is then of no matter */
        if ((r = wait_socket(worker, true)) < 0)
            return r;
    }
    return 0;
}

static int send_pongs(struct worker *worker)
{
    while (worker->pong_count > 0) {
        char text[40];
        const int len = snprintf(text, sizeof text, "{\"n\":%" PRIu64 "}", worker->pongs[0]);
        worker->pong_count--;
        memmove(worker->pongs, worker->pongs + 1, worker->pong_count * sizeof worker->pongs[0]);
        int r = send_frame(worker, WIRE_PONG, 0, false, 0, text, (size_t)len);
        if (r < 0)
            return r;
    }
    return 0;
}

static int send_text(struct worker *worker, enum wire_type type, uint64_t job, const char *text)
{
    int r = send_frame(worker, type, 0, false, job, text, strlen(text));
    return r < 0 ? r : send_pongs(worker);
}

/* Take in what is there, and answer PINGs. */
static int attend(struct worker *worker)
{
    int r = pump(worker);
    return r < 0 ? r : send_pongs(worker);
}

/* Wait for something to come, and answer PINGs. */
static int await(struct worker *worker)
{
    int r = send_pongs(worker);
    if (r < 0 || (r = wait_socket(worker, false)) < 0)
        return r;
    return send_pongs(worker);
}

/* --- text that is built */

struct text {
    char *bytes;
    size_t len, size;
    bool failed;
};

static bool text_reserve(struct text *text, size_t more)
{
    if (text->failed)
        return false;
    if (text->len + more <= text->size)
        return true;
    const size_t size = MAX(2 * text->size, text->len + more + 128);
    char *grown = realloc(text->bytes, size);
    if (grown == NULL) {
        text->failed = true;
        return false;
    }
    text->bytes = grown;
    text->size = size;
    return true;
}

static void text_add(struct text *text, const char *more)
{
    const size_t len = strlen(more);

    if (!text_reserve(text, len + 1))
        return;
    memcpy(text->bytes + text->len, more, len + 1);
    text->len += len;
}

/* The longest start of text, of at most limit bytes when quoted, that ends between two characters. */
static size_t quoted_prefix(const char *text, size_t limit)
{
    size_t len = strnlen(text, limit);

    while (len > 0 && wire_json_quote(text, len, NULL, 0) > limit) {
        len -= MAX(len / 8, (size_t)1);
        while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
            len--;
    }
    return len;
}

/* Add a JSON string; what passes limit bytes is cut off. */
static void text_add_quoted(struct text *text, const char *more, size_t limit)
{
    const size_t len = quoted_prefix(more, limit), size = wire_json_quote(more, len, NULL, 0);

    if (!text_reserve(text, size + 1))
        return;
    text->len += wire_json_quote(more, len, text->bytes + text->len, size + 1);
}

static void text_add_number(struct text *text, int64_t number)
{
    char digits[24];

    (void)snprintf(digits, sizeof digits, "%" PRId64, number);
    text_add(text, digits);
}

/* --- the job */

const char *mandor_worker_id(const struct mandor_job *job)
{
    return job->id;
}

const char *mandor_worker_queue(const struct mandor_job *job)
{
    return job->queue;
}

int64_t mandor_worker_attempt(const struct mandor_job *job)
{
    return (int64_t)job->attempt;
}

int64_t mandor_worker_timeout_ms(const struct mandor_job *job)
{
    return (int64_t)job->timeout_ms;
}

const char *mandor_worker_data(const struct mandor_job *job)
{
    return job->data;
}

bool mandor_worker_cancelled(struct mandor_job *job)
{
    return attend(job->worker) < 0 || job->cancelled;
}

const char *mandor_worker_cancel_reason(const struct mandor_job *job)
{
    return job->cancelled ? job->reason : NULL;
}

/* Grant what was read once it is worth a frame: half of the credit that a job begins with. */
static int grant_stdin(struct mandor_job *job)
{
    struct stdin_buffer *in = &job->in;
    char text[40];

    if (in->ended || in->taken == 0 || in->taken * 2 < job->worker->in_credit)
        return 0;
    const int len = snprintf(text, sizeof text, "{\"bytes\":%" PRIu64 "}", in->taken);
    in->credit += in->taken;
    in->taken = 0;
    return send_frame(job->worker, WIRE_CREDIT, WIRE_STDIN, false, job->number, text, (size_t)len);
}

ssize_t mandor_worker_read(struct mandor_job *job, void *bytes, size_t size)
{
    struct stdin_buffer *in = &job->in;
    int r = attend(job->worker);

    while (r == 0 && !job->cancelled && in->len == 0 && !in->ended)
        r = await(job->worker);
    if (r < 0)
        return r;
    if (job->cancelled)
        return -ECANCELED;

    const size_t n = MIN(size, in->len);
    if (n == 0)
        return 0;
    memcpy(bytes, in->bytes + in->start, n);
    in->start += n;
    in->len -= n;
    if (in->len == 0)
        in->start = 0;
    in->taken += n;
    r = grant_stdin(job);
    return r < 0 ? r : (ssize_t)n;
}

static bool is_output(enum mandor_worker_stream stream)
{
    return stream == MANDOR_WORKER_STDOUT || stream == MANDOR_WORKER_STDERR;
}

int mandor_worker_write(struct mandor_job *job, enum mandor_worker_stream stream, const void *bytes,
                        size_t len)
{
    const unsigned char *at = bytes;
    if (!is_output(stream) || job->out_ended[stream])
        return -EINVAL;

    uint64_t *credit = &job->out_credit[stream];
    while (len > 0) {
        int r = *credit == 0 ? attend(job->worker) : 0;
        while (r == 0 && !job->cancelled && *credit == 0)
            r = await(job->worker);
        if (r < 0)
            return r;
        if (job->cancelled)
            return -ECANCELED;

        const size_t n = MIN(MIN(len, CHUNK_SIZE), (size_t)*credit);
        *credit -= n;
        r = send_frame(job->worker, WIRE_CHUNK, (enum wire_stream)stream, false, job->number, at,
                       n);
        if (r < 0 || (r = send_pongs(job->worker)) < 0)
            return r;
        at += n;
        len -= n;
    }
    return job->worker->error;
}

int mandor_worker_end(struct mandor_job *job, enum mandor_worker_stream stream)
{
    if (!is_output(stream) || job->out_ended[stream])
        return -EINVAL;
    job->out_ended[stream] = true;
    return send_frame(job->worker, WIRE_CHUNK, (enum wire_stream)stream, true, job->number, NULL,
                      0);
}

/* JSON from the caller, of at most limit bytes. */
static int check_json(const char *json, size_t limit)
{
    struct wire_json value;
    const size_t len = strlen(json);

    if (len > limit)
        return -EMSGSIZE;
    return wire_json_parse(json, len, &value, NULL) < 0 ? -EINVAL : 0;
}

int mandor_worker_result(struct mandor_job *job, const char *json)
{
    int r = check_json(json, WIRE_PAYLOAD_MAX);
    if (r < 0)
        return r;
    char *copy = copy_text(json, strlen(json));
    if (copy == NULL)
        return -ENOMEM;
    free(job->result);
    job->result = copy;
    return 0;
}

int mandor_worker_fail_with(struct mandor_job *job, const struct mandor_worker_failure *failure)
{
    struct text text = { 0 };

    text_add(&text, "{\"message\":");
    text_add_quoted(&text, failure->message, WIRE_TEXT_MAX / 4);
    if (failure->traceback != NULL) {
        text_add(&text, ",\"traceback\":");
        text_add_quoted(&text, failure->traceback, WIRE_TEXT_MAX / 2);
    }
    if (failure->no_retry)
        text_add(&text, ",\"retry\":false");
    if (failure->code > 0) {
        text_add(&text, ",\"code\":");
        text_add_number(&text, MIN(failure->code, 255));
    }
    text_add(&text, "}");
    if (text.failed) {
        free(text.bytes);
        return -ENOMEM;
    }
    free(job->failure);
    job->failure = text.bytes;
    return -EBADMSG;
}

int mandor_worker_fail(struct mandor_job *job, const char *message)
{
    return mandor_worker_fail_with(job, &(struct mandor_worker_failure){ .message = message });
}

int mandor_worker_progress(struct mandor_job *job, const char *json)
{
    int r = check_json(json, WIRE_TEXT_MAX);
    return r < 0 ? r : send_text(job->worker, WIRE_PROGRESS, job->number, json);
}

int mandor_worker_log(struct mandor_job *job, const char *level, const char *words)
{
    struct worker *worker = job != NULL ? job->worker : running;
    struct text text = { 0 };

    if (worker == NULL || !worker->hello)
        return -EINVAL;
    text_add(&text, "{\"text\":");
    text_add_quoted(&text, words, WIRE_TEXT_MAX / 2);
    if (level != NULL) {
        text_add(&text, ",\"level\":");
        text_add_quoted(&text, level, WORD_MAX);
    }
    text_add(&text, "}");
    int r = text.failed ? -ENOMEM
                        : send_text(worker, WIRE_LOG, job != NULL ? job->number : 0, text.bytes);
    free(text.bytes);
    return r;
}

int mandor_worker_bye(const char *reason)
{
    struct text text = { 0 };

    if (running == NULL || !running->hello)
        return -EINVAL;
    if (running->said_bye)
        return 0;
    text_add(&text, "{\"reason\":");
    text_add_quoted(&text, reason == NULL ? "" : reason, WIRE_CONTROL_MAX / 2);
    text_add(&text, "}");
    running->said_bye = true;
    int r = text.failed ? -ENOMEM : send_text(running, WIRE_BYE, 0, text.bytes);
    free(text.bytes);
    return r;
}

/* --- the run */

static int send_hello(struct worker *worker, const char *name)
{
    struct text text = { 0 };

    text_add(&text, "{\"versions\":[1],\"name\":");
    text_add_quoted(&text, name, 256);
    text_add(&text, ",\"sdk\":\"" SDK "\",\"concurrency\":1,\"credit\":");
    text_add_number(&text, (int64_t)worker->in_credit);
    text_add(&text, "}");
    int r = text.failed ? give_up(worker, -ENOMEM, "no memory for HELLO")
                        : send_frame(worker, WIRE_HELLO, 0, false, 0, text.bytes, text.len);
    free(text.bytes);
    return r;
}

static void fail_for(struct mandor_job *job, int code)
{
    char message[128];

    if (job->cancelled)
        (void)snprintf(message, sizeof message, "cancelled");
    else if (code < 0)
        (void)snprintf(message, sizeof message, "the handler returned %d: %s", code,
                       strerror(-code));
    else
        (void)snprintf(message, sizeof message, "the handler returned %d", code);
    (void)mandor_worker_fail(job, message);
}

/* Call the handler, and end the job with what it left.  A cancelled one that returned 0 has its result. */
static int run_job(struct worker *worker, mandor_handler *handler, void *arg)
{
    struct mandor_job *job = worker->job;
    const int code = handler(job, arg);

    if (worker->error == 0 && code != 0 && (job->failure == NULL || code == -ECANCELED))
        fail_for(job, code);
    if (worker->error == 0 && code != 0 && job->failure == NULL)
        (void)give_up(worker, -ENOMEM, "no memory for an error");
    if (worker->error == 0) {
        /* What mandor still sends to this job has crossed its end from here on. */
        worker->job = NULL;
        if (code != 0)
            (void)send_text(worker, WIRE_ERROR, job->number, job->failure);
        else
            (void)send_text(worker, WIRE_RESULT, job->number,
                            job->result == NULL ? "null" : job->result);
    }
    worker->job = worker->job == job ? NULL : worker->job;
    job_free(job);
    return worker->error;
}

static int serve(struct worker *worker, mandor_handler *handler, void *arg)
{
    int r = 0;

    while (r == 0) {
        r = attend(worker);
        if (r == 0 && worker->job != NULL)
            r = run_job(worker, handler, arg);
        else if (r == 0 && worker->bye)
            return 0;
        else if (r == 0)
            r = await(worker);
    }
    return r;
}

static int socket_of(const struct mandor_worker_options *options)
{
    const char *text = getenv("MANDOR_FD");
    char *end = NULL;
    long fd = options->fd;

    if (fd <= 0) {
        errno = 0;
        fd = text == NULL ? -1 : strtol(text, &end, 10);
        if (text == NULL || end == text || *end != '\0' || errno != 0 || fd < 3 || fd > INT32_MAX) {
            (void)fprintf(stderr, "mandor-worker: expected a descriptor in MANDOR_FD: a mandor "
                                  "pool starts this program\n");
            return -EINVAL;
        }
    }
    if (fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0) {
        (void)fprintf(stderr, "mandor-worker: descriptor %ld: %s\n", fd, strerror(errno));
        return -errno;
    }
    (void)unsetenv("MANDOR_FD");
    return (int)fd;
}

/* Behind BYE mandor reads to the end; what was sent must not be thrown away by a reset, so nothing is left unread. */
static void leave(struct worker *worker)
{
    (void)shutdown(worker->fd, SHUT_WR);
    while (recv(worker->fd, worker->in, sizeof worker->in, MSG_DONTWAIT) > 0)
        continue;
    (void)close(worker->fd);
}

int mandor_worker_run_with(const struct mandor_worker_options *options, mandor_handler *handler,
                           void *arg)
{
    const struct mandor_worker_options defaults = { 0 };
    if (running != NULL)
        return -EBUSY;
    if (options == NULL)
        options = &defaults;

    const int fd = socket_of(options);
    if (fd < 0)
        return fd;
    struct worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        (void)close(fd);
        return -ENOMEM;
    }
    worker->fd = fd;
    worker->in_credit =
        options->credit == 0 ? CREDIT_DEFAULT : MIN((uint64_t)options->credit, WIRE_CREDIT_MAX);
    wire_decoder_init(&worker->decoder, WIRE_MANDOR, true);
    running = worker;

    int r = options->on_start == NULL ? 0 : options->on_start(NULL, arg);
    if (r == 0)
        r = send_hello(worker,
                       options->name != NULL ? options->name : program_invocation_short_name);
    if (r == 0)
        r = serve(worker, handler, arg);

    running = NULL;
    leave(worker);
    job_free(worker->job);
    wire_decoder_done(&worker->decoder);
    free(worker);
    return r;
}

int mandor_worker_run(mandor_handler *handler, void *arg)
{
    return mandor_worker_run_with(NULL, handler, arg);
}

/* --- JSON strings */

size_t mandor_json_quote(const char *text, char *out, size_t size)
{
    return wire_json_quote(text, strlen(text), out, size);
}

const char *mandor_json_get(const char *json, const char *key, size_t *ret_len)
{
    struct wire_json value, found;

    if (wire_json_parse(json, strlen(json), &value, NULL) < 0)
        return NULL;
    found = wire_json_member(value, key);
    if (found.text != NULL)
        *ret_len = found.len;
    return found.text;
}

ssize_t mandor_json_unquote(const char *json, size_t len, char *out, size_t size)
{
    const ssize_t r = wire_json_unquote((struct wire_json){ .text = json, .len = len }, out, size);
    return r < 0 ? -EINVAL : r;
}

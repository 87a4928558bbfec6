/* sink_http.c - http://… and https://…: one PUT of the whole stream; contract of the sink in sink_ops.h.
 *
 *    up to HTTP_MEMORY bytes     kept until the commit, then sent with their length; tried again where that may help
 *    more                        sent as it comes, in chunks; the end of the last chunk is the commit, and an aborted request
 *                                never gets one, so that a server sees a broken body.  The bytes have gone: no second try
 *
 * A request that streams waits for `100 Continue`, so that a redirect or refusal costs no bytes.
 */
#include <stdio.h>

#include "base/log.h"
#include "curl/s3.h"
#include "sink/sink_ops.h"
#include "sink/url.h"

#define PUT_MAGIC   0x68707574u
#define HTTP_MEMORY ((size_t)1 << 20)
#define HTTP_TRIES  5
#define DELAY_MS    200
#define SILENCE_MS  INT64_C(30000)

struct put {
    uint32_t magic;
    struct sink *sink;
    struct web *web;
    char *url, *shown; /* without a password */
    char *job, *stream;
    int64_t attempt;
    struct s3_memory memory; /* a ring while streaming */
    size_t start, len;
    struct web_call call;
    uv_timer_t timer;
    enum { TIMER_NONE, TIMER_ANSWER, TIMER_AGAIN, TIMER_LATE } timer_for;
    bool streaming; /* the request goes on */
    bool starved;   /* curl waits for bytes */
    bool over;      /* the last byte is in memory */
    unsigned tries;
    const struct iovec *iov;
    int iov_count;
    size_t iov_at;
    XXH3_state_t *hash;
    bool writing, committing;
    int result;
    struct mandor_err err;
};

static struct put *put_of(const struct sink *sink)
{
    return *(struct put **)sink_state(sink);
}

/* ---- memory ---- */

/* Take what fits of the write in flight; true when all of it was. */
static bool fill(struct put *put)
{
    while (put->iov_count > 0 && put->len < HTTP_MEMORY) {
        size_t left = put->iov->iov_len - put->iov_at;
        size_t end = (put->start + put->len) % HTTP_MEMORY;
        size_t len = MIN(MIN(left, HTTP_MEMORY - put->len), HTTP_MEMORY - end);
        const unsigned char *from = (const unsigned char *)put->iov->iov_base + put->iov_at;
        if (len > 0)
            memcpy(put->memory.bytes + end, from, len);
        if (put->hash != NULL)
            (void)XXH3_64bits_update(put->hash, from, len);
        put->len += len;
        put->iov_at += len;
        if (put->iov_at == put->iov->iov_len) {
            put->iov++;
            put->iov_count--;
            put->iov_at = 0;
        }
    }
    return put->iov_count == 0;
}

static void on_timer(uv_timer_t *timer);

static void set_timer(struct put *put, int what, int64_t ms)
{
    put->timer_for = what;
    (void)uv_timer_start(&put->timer, on_timer, (uint64_t)MAX(ms, (int64_t)0), 0);
}

/* The job writes nothing any more: from here on a silent server is one. */
static void wait_for_answer(struct put *put)
{
    set_timer(put, TIMER_LATE, MIN(sink_commit_left_ms(put->sink), SILENCE_MS));
}

/* curl asks for bytes. */
static size_t on_read(char *to, size_t size, size_t count, void *arg)
{
    struct put *put = arg;
    size_t len = MIN(MIN(size * count, put->len), HTTP_MEMORY - put->start);

    OBJ_CHECK(put, PUT_MAGIC);
    if (len == 0 && put->over) { /* what comes next is the last chunk */
        if (put->result == 0 && !sink_may_publish(put->sink, &put->err))
            put->result = put->err.code;
        return put->result < 0 ? CURL_READFUNC_ABORT : 0;
    }
    if (len == 0) {
        put->starved = true;
        return CURL_READFUNC_PAUSE;
    }
    memcpy(to, put->memory.bytes + put->start, len);
    put->start = (put->start + len) % HTTP_MEMORY;
    put->len -= len;
    if (put->timer_for == TIMER_LATE)
        wait_for_answer(put);
    if (put->writing && fill(put) && put->timer_for == TIMER_NONE)
        set_timer(put, TIMER_ANSWER, 0); /* not from inside of curl */
    return len;
}

/* Nothing was sent yet: that much can be begun again. */
static int on_seek(void *arg, curl_off_t offset, int origin)
{
    return CURL_SEEKFUNC_CANTSEEK;
}

/* ---- requests ---- */

static int prepare_call(struct put *put)
{
    struct web_call *call = &put->call;
    int r = web_call_prepare(call, "PUT", put->url);

    if (r < 0)
        return r;
    /* UPLOAD makes it a PUT: named here it would be one also where 303 sends us to have a look. */
    (void)curl_easy_setopt(call->easy, CURLOPT_CUSTOMREQUEST, NULL);
    web_call_follow(call, put->url);
    if ((r = web_call_header(call, "Content-Type: application/octet-stream")) < 0 ||
        (r = web_call_header(call, "X-Mandor-Job: %s", put->job)) < 0 ||
        (r = web_call_header(call, "X-Mandor-Attempt: %" PRId64, put->attempt)) < 0 ||
        (r = web_call_header(call, "X-Mandor-Stream: %s", put->stream)) < 0)
        return r;
    return 0;
}

static void start(struct put *put)
{
    if (web_call_start(&put->call, &put->err) < 0)
        put->result = put->err.code;
}

static void start_streaming(struct put *put)
{
    CURL *easy = put->call.easy;

    if (prepare_call(put) < 0 || web_call_header(&put->call, "Expect: 100-continue") < 0) {
        put->result = err_set(&put->err, -ENOMEM, FAULT_HOST, "send to '%s'", put->shown);
        return;
    }
    (void)curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
    (void)curl_easy_setopt(easy, CURLOPT_READDATA, put);
    (void)curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 0L); /* a slow job is no silent server */
    put->call.flows = true;
    put->streaming = true;
    start(put);
}

static void send_whole(struct put *put)
{
    put->tries++;
    if (!sink_may_publish(put->sink, &put->err)) {
        put->result = put->err.code;
        return;
    }
    if (prepare_call(put) < 0) {
        put->result = err_set(&put->err, -ENOMEM, FAULT_HOST, "send to '%s'", put->shown);
        return;
    }
    web_call_body(&put->call, put->memory.bytes, put->len);
    web_call_time_limit(&put->call, sink_commit_left_ms(put->sink));
    start(put);
}

/* ---- answers ---- */

static void answer(struct put *put)
{
    struct mandor_err err = put->err;

    put->writing = put->committing = false;
    sink_answer(put->sink, put->result, &err);
}

static int judge(struct put *put)
{
    const struct web_call *call = &put->call;
    char what[200];
    struct mandor_err err;

    (void)snprintf(what, sizeof what, "PUT '%.180s'", put->shown);
    if (call->result != CURLE_OK)
        return web_call_error(call, &put->err, what);
    if (call->status >= 200 && call->status <= 299)
        return 0;
    int code = call->status == 401 || call->status == 403   ? -EACCES
               : call->status == 404                        ? -ENOENT
               : call->status == 413 || call->status == 507 ? -EFBIG
                                                            : -EIO;
    (void)err_say(&err, code, FAULT_REMOTE, "%s: the server answered %ld%s%.100s", what,
                  call->status, call->response.len > 0 ? ": " : "",
                  call->response.len > 0 ? call->response.data : "");
    put->err = err;
    return code;
}

static bool may_help(const struct put *put)
{
    long status = put->call.status;

    return put->call.result != CURLE_OK || status >= 500 || status == 429 || status == 408;
}

static void on_done(struct web_call *call)
{
    struct put *put = CONTAINER_OF(call, struct put, call);
    bool was_streaming = put->streaming;

    OBJ_CHECK(put, PUT_MAGIC);
    put->streaming = put->starved = false;
    if (put->timer_for == TIMER_LATE) {
        (void)uv_timer_stop(&put->timer);
        put->timer_for = TIMER_NONE;
    }
    if (put->result == 0)
        put->result = judge(put);
    if (!was_streaming && put->result < 0 && may_help(put) &&
        put->tries < web_call_tries(call, HTTP_TRIES) &&
        sink_commit_left_ms(put->sink) > DELAY_MS << put->tries) {
        log_debug("http", "%s; again", put->err.msg);
        put->result = 0;
        set_timer(put, TIMER_AGAIN, DELAY_MS << put->tries);
        return;
    }
    if (was_streaming && !put->over && put->result == 0)
        put->result = err_set(&put->err, -EPROTO, FAULT_REMOTE,
                              "PUT '%s': the server answered before the end", put->shown);
    if (put->writing || put->committing)
        answer(put);
}

static void on_timer(uv_timer_t *timer)
{
    struct put *put = CONTAINER_OF(timer, struct put, timer);
    int what = put->timer_for;

    put->timer_for = TIMER_NONE;
    if (what == TIMER_ANSWER && put->writing) {
        answer(put);
    } else if (what == TIMER_AGAIN) {
        send_whole(put);
        if (put->result < 0)
            answer(put);
    } else if (what == TIMER_LATE && put->committing) {
        bool over = sink_commit_left_ms(put->sink) <= 0;
        web_call_cancel(&put->call);
        put->streaming = false;
        put->result = over ? err_set(&put->err, -ETIME, FAULT_REMOTE,
                                     "PUT '%s': no answer before the lease ended", put->shown)
                           : err_set(&put->err, -ETIMEDOUT, FAULT_REMOTE,
                                     "PUT '%s': no answer after the last byte", put->shown);
        answer(put);
    }
}

/* ---- the sink's calls ---- */

static void wake(struct put *put)
{
    if (!put->starved)
        return;
    put->starved = false;
    (void)curl_easy_pause(put->call.easy, CURLPAUSE_CONT);
}

static void http_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct put *put = put_of(sink);

    put->iov = iov;
    put->iov_count = count;
    put->iov_at = 0;
    put->hash = hash;
    put->writing = true;
    bool taken = put->result == 0 && fill(put);
    if (!taken && put->result == 0 && !put->streaming)
        start_streaming(put);
    else
        wake(put);
    if (put->writing && (taken || put->result < 0) && put->timer_for == TIMER_NONE)
        answer(put);
}

static void http_commit(struct sink *sink)
{
    struct put *put = put_of(sink);

    put->committing = true;
    put->over = true;
    if (put->result == 0 && !put->streaming) {
        send_whole(put);
    } else if (put->result == 0) {
        wait_for_answer(put);
        wake(put);
    }
    if (put->result < 0 && put->committing)
        answer(put);
}

static void http_abort(struct sink *sink)
{
    struct put *put = put_of(sink);

    web_call_cancel(&put->call); /* the server never sees the end of the body */
    (void)uv_timer_stop(&put->timer);
    sink_answer(sink, 0, NULL);
}

static void http_interrupt(struct sink *sink)
{
    struct put *put = put_of(sink);

    (void)uv_timer_stop(&put->timer);
    put->timer_for = TIMER_NONE;
    web_call_cancel(&put->call);
    put->streaming = put->starved = false;
    put->result = err_set(&put->err, -ECANCELED, FAULT_REMOTE, "PUT '%s' was given up", put->shown);
    if (put->writing || put->committing)
        answer(put);
}

/* ---- opening and closing ---- */

static void on_timer_closed(uv_handle_t *handle)
{
    struct put *put = CONTAINER_OF(handle, struct put, timer);

    OBJ_FINI(put);
    free(put);
}

static void put_free(struct put *put)
{
    web_call_done(&put->call);
    web_put(put->web);
    s3_memory_done(&put->memory);
    free(put->url);
    free(put->shown);
    free(put->job);
    free(put->stream);
    uv_close((uv_handle_t *)&put->timer, on_timer_closed);
}

static int set_up(struct put *put, const struct sink_target *target, struct mandor_err *err)
{
    struct buf job = { 0 };

    put->web = web_get(sink_loop(put->sink), err);
    if (put->web == NULL)
        return -ENOMEM;
    int r = sigv4_encode(&job, target->job_id == NULL ? "run" : target->job_id, false);
    put->job = job.data;
    put->url = strdup(target->url);
    put->stream = strdup(target->stream);
    put->attempt = target->attempt;
    put->shown = web_redact(target->url);
    if (r < 0 || put->job == NULL || put->url == NULL || put->stream == NULL ||
        put->shown == NULL || s3_memory_new(&put->memory, HTTP_MEMORY) < 0 ||
        web_call_init(&put->call, put->web) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "send output by HTTP");
    put->call.on_done = on_done;
    put->call.answer_ms = target->patience_ms;
    return 0;
}

static void http_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct put *put = calloc(1, sizeof *put);
    struct mandor_err err;

    *(struct put **)sink_state(sink) = put;
    if (put == NULL) {
        sink_answer(sink, err_set(&err, -ENOMEM, FAULT_HOST, "send output by HTTP"), &err);
        return;
    }
    put->magic = PUT_MAGIC;
    put->sink = sink;
    (void)uv_timer_init(sink_loop(sink), &put->timer);
    sink_answer(sink, set_up(put, target, &err), &err);
}

static void http_done(struct sink *sink)
{
    struct put *put = put_of(sink);

    if (put != NULL)
        put_free(put);
}

static const char *http_target_text(const struct sink *sink)
{
    const struct put *put = put_of(sink);

    return put != NULL ? put->shown : NULL;
}

#define HTTP_OPS(name)                                                                     \
    .scheme = name, .state_size = sizeof(struct put *), .publishes = true, .remote = true, \
    .interrupt = http_interrupt, .check = sink_url_check_http, .open = http_open,          \
    .write = http_write, .commit = http_commit, .abort = http_abort, .done = http_done,    \
    .target_text = http_target_text

const struct sink_ops sink_http = { HTTP_OPS("http") };
const struct sink_ops sink_https = { HTTP_OPS("https") };

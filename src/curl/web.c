/* web.c - contract in web.h.
 *
 * curl says which sockets to watch for what (on_socket) and when to look again (on_timeout).  A watch is a uv_poll of its own; it
 * outlives its socket by one turn of the loop, as every handle of libuv does, so the web waits for its watches.
 */
#include "curl/web.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/hide.h"
#include "base/list.h"

#define WEB_MAGIC       0x20776562u
#define CALL_MAGIC      0x63616c6cu
#define CONNECT_MS      10000L
#define SILENCE_SECONDS 30L /* without a byte in either direction: the request has failed */
#define SEND_BUFFER     (256L << 10)
#define REDIRECTS_MAX   5L
#define LATE_TRIES      2 /* of a request whose answer trickles */

struct web {
    uint32_t magic;
    struct list node;
    uv_loop_t *loop;
    CURLM *multi;
    uv_timer_t timer;
    unsigned holders, handles;
    bool closing, in_curl;
};

struct watch {
    struct web *web;
    uv_poll_t poll;
    curl_socket_t socket;
    int events;
};

static struct list webs = LIST_INIT(webs);
static pthread_mutex_t webs_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- sockets and time ---- */

static void check_done(struct web *web)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(web->multi, &left)) != NULL) {
        struct web_call *call = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        CURLcode result = message->data.result;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
        OBJ_CHECK(call, CALL_MAGIC);
        (void)curl_multi_remove_handle(web->multi, call->easy);
        call->running = false;
        call->result = result;
        call->status = 0;
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &call->status);
        call->on_done(call); /* may end calls and put the web: it is held by who called us */
        if (web->multi == NULL)
            return;
    }
}

static void unhold(struct web *web);

static void act(struct web *web, curl_socket_t socket, int events)
{
    int running;

    web->holders++;
    web->in_curl = true;
    (void)curl_multi_socket_action(web->multi, socket, events, &running);
    web->in_curl = false;
    check_done(web);
    unhold(web);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct watch *watch = CONTAINER_OF(poll, struct watch, poll);
    int flags = 0;

    /* libuv has stopped it, and says no more than that something is wrong.  curl finds out what by reading and writing; an answer that came
     * before the connection broke is still there. */
    if (status < 0) {
        events = UV_READABLE | UV_WRITABLE;
        (void)uv_poll_start(poll, watch->events, on_poll);
    }
    if (events & UV_READABLE)
        flags |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE)
        flags |= CURL_CSELECT_OUT;
    act(watch->web, watch->socket, flags);
}

static void handle_closed(struct web *web)
{
    if (--web->handles > 0 || !web->closing)
        return;
    OBJ_FINI(web);
    free(web);
}

static void on_watch_closed(uv_handle_t *handle)
{
    struct watch *watch = CONTAINER_OF(handle, struct watch, poll);
    struct web *web = watch->web;

    free(watch);
    handle_closed(web);
}

static struct watch *watch_new(struct web *web, curl_socket_t socket)
{
    struct watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return NULL;

    *watch = (struct watch){ .web = web, .socket = socket };
    if (uv_poll_init_socket(web->loop, &watch->poll, socket) < 0) {
        free(watch);
        return NULL;
    }
    web->handles++;
    (void)curl_multi_assign(web->multi, socket, watch);
    return watch;
}

static int on_socket(CURL *easy, curl_socket_t socket, int what, void *arg, void *socket_arg)
{
    struct web *web = arg;
    struct watch *watch = socket_arg;
    int events = 0;

    if (what == CURL_POLL_REMOVE) {
        if (watch != NULL)
            uv_close((uv_handle_t *)&watch->poll, on_watch_closed); /* also takes it out of epoll */
        (void)curl_multi_assign(web->multi, socket, NULL);
        return 0;
    }
    if (watch == NULL && (watch = watch_new(web, socket)) == NULL)
        return -1; /* curl fails its transfers with CURLE_ABORTED_BY_CALLBACK */
    if (what & CURL_POLL_IN)
        events |= UV_READABLE;
    if (what & CURL_POLL_OUT)
        events |= UV_WRITABLE;
    watch->events = events;
    return events == 0 ? uv_poll_stop(&watch->poll) : uv_poll_start(&watch->poll, events, on_poll);
}

static void on_timer(uv_timer_t *timer)
{
    act(CONTAINER_OF(timer, struct web, timer), CURL_SOCKET_TIMEOUT, 0);
}

static int on_timeout(CURLM *multi, long timeout_ms, void *arg)
{
    struct web *web = arg;

    if (timeout_ms < 0)
        (void)uv_timer_stop(&web->timer);
    else
        (void)uv_timer_start(&web->timer, on_timer, (uint64_t)timeout_ms, 0);
    return 0;
}

/* ---- one for each loop ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
    /* What it cannot set up, the first request reports. */
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

static struct web *web_new(uv_loop_t *loop)
{
    struct web *web = calloc(1, sizeof *web);
    if (web == NULL)
        return NULL;

    *web = (struct web){ .magic = WEB_MAGIC, .loop = loop, .handles = 1 };
    web->multi = curl_multi_init();
    if (web->multi == NULL) {
        free(web);
        return NULL;
    }
    (void)uv_timer_init(loop, &web->timer);
    (void)curl_multi_setopt(web->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    (void)curl_multi_setopt(web->multi, CURLMOPT_SOCKETDATA, web);
    (void)curl_multi_setopt(web->multi, CURLMOPT_TIMERFUNCTION, on_timeout);
    (void)curl_multi_setopt(web->multi, CURLMOPT_TIMERDATA, web);
    return web;
}

struct web *web_get(uv_loop_t *loop, struct mandor_err *err)
{
    struct web *found = NULL;

    (void)pthread_once(&once, init_curl);
    (void)pthread_mutex_lock(&webs_lock);
    LIST_FOREACH(web, &webs, struct web, node) {
        if (web->loop == loop)
            found = web;
    }
    if (found == NULL && (found = web_new(loop)) != NULL)
        list_push_back(&webs, &found->node);
    (void)pthread_mutex_unlock(&webs_lock);
    if (found == NULL)
        (void)err_set(err, -ENOMEM, FAULT_HOST, "start the HTTP client");
    else
        found->holders++;
    return found;
}

static void on_timer_closed(uv_handle_t *handle)
{
    handle_closed(CONTAINER_OF(handle, struct web, timer));
}

static void unhold(struct web *web)
{
    if (--web->holders > 0)
        return;
    (void)pthread_mutex_lock(&webs_lock);
    list_remove(&web->node);
    (void)pthread_mutex_unlock(&webs_lock);
    web->closing = true;
    (void)curl_multi_cleanup(STEAL(web->multi)); /* on_socket() closes the watches */
    uv_close((uv_handle_t *)&web->timer, on_timer_closed);
}

uv_loop_t *web_loop(const struct web *web)
{
    return web->loop;
}

void web_put(struct web *web)
{
    if (web == NULL)
        return;
    OBJ_CHECK(web, WEB_MAGIC);
    unhold(web);
}

/* ---- one request ---- */

static size_t on_body(char *to, size_t size, size_t count, void *arg)
{
    struct web_call *call = arg;
    size_t len = MIN(size * count, call->body_len - call->body_at);

    if (len > 0)
        memcpy(to, call->body + call->body_at, len);
    call->body_at += len;
    return len;
}

static int on_seek(void *arg, curl_off_t offset, int origin)
{
    struct web_call *call = arg;

    if (origin != SEEK_SET || offset < 0 || (size_t)offset > call->body_len)
        return CURL_SEEKFUNC_CANTSEEK;
    call->body_at = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

size_t web_call_keep(struct web_call *call, const void *bytes, size_t len)
{
    if (call->response.len + len > WEB_RESPONSE_MAX) {
        call->response_over = true;
        return 0; /* it may have no end */
    }
    return buf_add(&call->response, bytes, len) < 0 ? 0 : len;
}

static size_t on_response(char *bytes, size_t size, size_t count, void *arg)
{
    return web_call_keep(arg, bytes, size * count);
}

/* Called whenever something moves, and once a second.  A byte a second is no silence. */
static int on_progress(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total,
                       curl_off_t up)
{
    struct web_call *call = arg;

    (void)down_total, (void)down, (void)up_total;
    if (call->answer_ms == 0 || call->flows || up < (curl_off_t)call->body_len) {
        call->sent_ms = 0;
        return 0;
    }
    if (call->sent_ms == 0)
        call->sent_ms = clock_mono_ms();
    call->answer_late = clock_mono_ms() - call->sent_ms > call->answer_ms;
    return call->answer_late;
}

char *web_redact(const char *url)
{
    const char *host = strstr(url, "://");
    char *shown = NULL;

    if (host == NULL)
        return strdup(url);
    host += 3;
    const char *at = hide_end_of_user(host);
    if (at == NULL)
        return strdup(url);
    return asprintf(&shown, "%.*s%s", (int)(host - url), url, at + 1) < 0 ? NULL : shown;
}

int web_call_init(struct web_call *call, struct web *web)
{
    *call = (struct web_call){ .magic = CALL_MAGIC, .web = web, .answer_ms = WEB_ANSWER_MS };
    call->easy = curl_easy_init();
    if (call->easy == NULL)
        return -ENOMEM;
    web->holders++;
    return 0;
}

int web_call_header(struct web_call *call, const char *fmt, ...)
{
    char *line = NULL;
    va_list args;

    va_start(args, fmt);
    int n = vasprintf(&line, fmt, args);
    va_end(args);
    if (n < 0)
        return -ENOMEM;
    struct curl_slist *list = curl_slist_append(call->headers, line);
    free(line);
    if (list == NULL)
        return -ENOMEM;
    call->headers = list;
    return 0;
}

/* A certificate authority of one's own, as other programs are told of it; NULL = the system's. */
static const char *ca_bundle(void)
{
    static const char *const names[] = { "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *path = getenv(names[i]);
        if (path != NULL && path[0] != '\0')
            return path;
    }
    return NULL;
}

int web_call_prepare(struct web_call *call, const char *method, const char *url)
{
    CURL *easy = call->easy;

    OBJ_CHECK(call, CALL_MAGIC);
    curl_slist_free_all(STEAL(call->headers));
    curl_easy_reset(easy);
    call->body = NULL;
    call->body_len = call->body_at = 0;
    buf_clear(&call->response);
    call->response_over = call->answer_late = call->flows = false;
    call->sent_ms = 0;
    call->error[0] = '\0';
    CURLcode r = curl_easy_setopt(easy, CURLOPT_URL, url);
    if (r == CURLE_OK)
        r = curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    if (r == CURLE_OK)
        r = curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_NOBODY, str_eq(method, "HEAD") ? 1L : 0L);
    (void)curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    /* A request that is given up does not wait for the thread that looks its host up: that can take half a minute. */
    (void)curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, SILENCE_SECONDS);
    (void)curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    (void)curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    (void)curl_easy_setopt(easy, CURLOPT_XFERINFODATA, call);
    (void)curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, SEND_BUFFER);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->error);
    if (ca_bundle() != NULL)
        (void)curl_easy_setopt(easy, CURLOPT_CAINFO, ca_bundle());
    (void)curl_easy_setopt(easy, CURLOPT_USERAGENT, "mandor/" MANDOR_VERSION);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_response);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
    (void)curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
    return r == CURLE_OK ? 0 : -ENOMEM;
}

void web_call_body(struct web_call *call, const void *body, size_t len)
{
    CURL *easy = call->easy;

    call->body = body;
    call->body_len = len;
    call->body_at = 0;
    (void)curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)len);
    (void)curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_body);
    (void)curl_easy_setopt(easy, CURLOPT_READDATA, call);
    (void)curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
    (void)curl_easy_setopt(easy, CURLOPT_SEEKDATA, call);
}

void web_call_follow(struct web_call *call, const char *url)
{
    bool secure = strncasecmp(url, "https:", 6) == 0;

    (void)curl_easy_setopt(call->easy, CURLOPT_FOLLOWLOCATION, 1L);
    (void)curl_easy_setopt(call->easy, CURLOPT_MAXREDIRS, REDIRECTS_MAX);
    (void)curl_easy_setopt(call->easy, CURLOPT_REDIR_PROTOCOLS_STR,
                           secure ? "https" : "http,https");
}

void web_call_time_limit(struct web_call *call, int64_t ms)
{
    if (ms < INT32_MAX)
        (void)curl_easy_setopt(call->easy, CURLOPT_TIMEOUT_MS, (long)MAX(ms, (int64_t)1));
}

int web_call_start(struct web_call *call, struct mandor_err *err)
{
    OBJ_CHECK(call, CALL_MAGIC);
    BUG_ON(call->running);
    (void)curl_easy_setopt(call->easy, CURLOPT_HTTPHEADER, call->headers);
    CURLMcode r = curl_multi_add_handle(call->web->multi, call->easy);
    if (r != CURLM_OK)
        return err_set(err, -ENOMEM, FAULT_HOST, "start a request: %s", curl_multi_strerror(r));
    call->running = true;
    return 0;
}

void web_call_cancel(struct web_call *call)
{
    if (!call->running)
        return;
    BUG_ON(call->web->in_curl);
    (void)curl_multi_remove_handle(call->web->multi, call->easy);
    call->running = false;
}

void web_call_done(struct web_call *call)
{
    if (call->magic != CALL_MAGIC)
        return;
    web_call_cancel(call);
    struct web *web = call->easy == NULL ? NULL : call->web;
    curl_easy_cleanup(call->easy);
    curl_slist_free_all(call->headers);
    buf_done(&call->response);
    OBJ_FINI(call);
    web_put(web);
}

const char *web_call_answer(const struct web_call *call, const char *name)
{
    struct curl_header *header = NULL;

    if (curl_easy_header(call->easy, name, 0, CURLH_HEADER, -1, &header) != CURLHE_OK)
        return "";
    return header->value;
}

unsigned web_call_tries(const struct web_call *call, unsigned max)
{
    return call->answer_late ? MIN(max, (unsigned)LATE_TRIES) : max;
}

int web_call_error(const struct web_call *call, struct mandor_err *err, const char *what)
{
    int code = call->result == CURLE_OPERATION_TIMEDOUT || call->answer_late ? -ETIMEDOUT
               : call->result == CURLE_OUT_OF_MEMORY                         ? -ENOMEM
               : call->result == CURLE_COULDNT_CONNECT                       ? -ECONNREFUSED
                                                                             : -EIO;
    const char *why = call->error[0] != '\0' ? call->error : curl_easy_strerror(call->result);

    if (call->response_over) /* curl only knows that we did not take it */
        (void)err_say(err, code, FAULT_REMOTE, "%s: the answer is longer than %zu bytes", what,
                      WEB_RESPONSE_MAX);
    else if (call->answer_late)
        (void)err_say(err, code, FAULT_REMOTE, "%s: the answer was not whole after %" PRId64 " ms",
                      what, call->answer_ms);
    else
        (void)err_say(err, code, FAULT_REMOTE, "%s: %s", what, why);
    return code;
}

/* s3_request.c - one signed request: contract in s3.h.
 *
 *    start ─▶ pool: hash (once), read the credentials ─▶ sign, send ─▶ judge ─┬─▶ on_done
 *                 ▲                                                           │
 *                 └──────────── wait 0.1 s, doubling to 5 s ◀── try again ────┘
 *
 * A request owns all that it needs, so that dropping one never waits: what the pool still works on is freed when it comes back.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "curl/credentials.h"
#include "curl/s3.h"
#include "curl/xml.h"
#include "loop/work.h"

#define REQUEST_MAGIC  0x73337271u
#define HEADERS_MAX    12
#define DELAY_FIRST_MS 100
#define DELAY_MAX_MS   5000
#define REDIRECTS_MAX  3
#define KEY_TRIES      3

struct s3_request {
    uint32_t magic;
    struct web *web;
    uv_loop_t *loop;
    struct s3_place *place;
    void *arg;
    const char *method;
    struct buf query;
    struct {
        char *name, *value;
    } headers[HEADERS_MAX];
    size_t header_count;
    bool of_bucket;
    struct s3_memory memory;
    size_t body_len;
    bool has_body, hashed;
    char sha256[SIGV4_HEX];
    unsigned tries, tries_max, redirects;
    int64_t until_ms; /* monotonic; INT64_MAX = no end */
    bool skew_set, late;
    char *plain_url, *shown; /* instead of a place; shown: without a password */
    bool (*on_body)(void *arg, const void *bytes, size_t len);
    int64_t streamed, streamed_before; /* bytes of the body that were delivered, before this try */
    char *etag, *modified;  /* of the object that is streamed; modified: without an ETag */
    bool starved;           /* curl was told to wait */
    struct sink *publishes; /* NULL = nothing becomes visible by it */
    char *location;         /* where the server sent us: instead of the place's URL */
    struct credentials credentials;
    struct web_call call;
    struct work work;
    uv_timer_t timer;
    bool working, dropped, timer_open;
    int prepared;
    struct mandor_err err;
    char code[64], message[160], region[32];
    s3_check_fn *check;
    s3_done_fn *on_done;
};

/* ---- making one ---- */

struct s3_request *s3_request_new(struct web *web, struct s3_place *place, const char *method,
                                  void *arg, struct mandor_err *err)
{
    struct s3_request *request = calloc(1, sizeof *request);

    if (request == NULL || web_call_init(&request->call, web) < 0) {
        free(request);
        (void)err_set(err, -ENOMEM, FAULT_HOST, "S3 request");
        return NULL;
    }
    request->magic = REQUEST_MAGIC;
    request->web = web;
    request->loop = web_loop(web);
    request->place = place == NULL ? NULL : s3_place_ref(place);
    request->method = method;
    request->arg = arg;
    request->tries_max = S3_TRIES;
    request->until_ms = INT64_MAX;
    memcpy(request->sha256, SIGV4_EMPTY, SIGV4_HEX);
    (void)uv_timer_init(request->loop, &request->timer);
    request->timer_open = true;
    return request;
}

int s3_request_query(struct s3_request *request, const char *name, const char *value)
{
    struct buf *query = &request->query;

    if (query->len > 0 && buf_adds(query, "&") < 0)
        return -ENOMEM;
    if (sigv4_encode(query, name, false) < 0 || buf_adds(query, "=") < 0)
        return -ENOMEM;
    return sigv4_encode(query, value, false);
}

int s3_request_header(struct s3_request *request, const char *name, const char *value)
{
    BUG_ON(request->header_count == HEADERS_MAX);
    char *own_name = strdup(name), *own_value = strdup(value);

    if (own_name == NULL || own_value == NULL) {
        free(own_name);
        free(own_value);
        return -ENOMEM;
    }
    request->headers[request->header_count].name = own_name;
    request->headers[request->header_count++].value = own_value;
    return 0;
}

void s3_request_adopt_body(struct s3_request *request, struct s3_memory *memory, size_t len)
{
    request->memory = *memory;
    request->body_len = len;
    request->has_body = true;
    *memory = (struct s3_memory){ 0 };
}

void s3_request_return_body(struct s3_request *request, struct s3_memory *ret_memory)
{
    BUG_ON(request->working || request->call.running);
    *ret_memory = request->memory;
    request->memory = (struct s3_memory){ 0 };
}

void s3_request_of_bucket(struct s3_request *request)
{
    request->of_bucket = true;
}

int s3_request_plain(struct s3_request *request, const char *url)
{
    request->plain_url = strdup(url);
    request->shown = web_redact(url);
    return request->plain_url == NULL || request->shown == NULL ? -ENOMEM : 0;
}

void s3_request_stream(struct s3_request *request,
                       bool (*on_body)(void *arg, const void *bytes, size_t len))
{
    request->on_body = on_body;
}

void s3_request_resume(struct s3_request *request)
{
    if (!request->starved)
        return;
    request->starved = false;
    if (request->call.running)
        (void)curl_easy_pause(request->call.easy, CURLPAUSE_CONT);
}

void s3_request_tries(struct s3_request *request, unsigned tries)
{
    request->tries_max = tries;
}

void s3_request_answer_within(struct s3_request *request, int64_t ms)
{
    request->call.answer_ms = ms;
}

void s3_request_within(struct s3_request *request, int64_t ms)
{
    request->until_ms = clock_mono_ms() + ms;
}

static int64_t left_ms(const struct s3_request *request)
{
    int64_t left = request->until_ms == INT64_MAX ? INT64_MAX : request->until_ms - clock_mono_ms();

    return request->publishes == NULL ? left : MIN(left, sink_commit_left_ms(request->publishes));
}

static void finish(struct s3_request *request, int result, const struct mandor_err *err)
{
    request->on_done(request, result, err); /* may drop it: nothing after this */
}

static const struct mandor_err *late_error(struct s3_request *request)
{
    (void)err_set(&request->err, -ETIMEDOUT, FAULT_REMOTE, "S3 %s of 's3://%s/%s'", request->method,
                  request->place->bucket, request->place->key);
    return &request->err;
}

static void on_late(uv_timer_t *timer)
{
    struct s3_request *request = CONTAINER_OF(timer, struct s3_request, timer);

    web_call_cancel(&request->call);
    if (request->working) /* hashing: it is not sent */
        request->late = true;
    else
        finish(request, -ETIMEDOUT, late_error(request));
}

void s3_request_hurry(struct s3_request *request, int64_t ms)
{
    bool waiting = !request->working && !request->call.running;

    request->tries_max = 0;
    (void)uv_timer_start(&request->timer, on_late, waiting ? 0 : (uint64_t)ms, 0);
}

void s3_request_publishes(struct s3_request *request, struct sink *sink)
{
    request->publishes = sink;
}

void *s3_request_arg(const struct s3_request *request)
{
    return request->arg;
}

const struct web_call *s3_request_call(const struct s3_request *request)
{
    return &request->call;
}

const char *s3_request_code(const struct s3_request *request)
{
    return request->code;
}

int s3_request_status(const struct s3_request *request)
{
    return (int)request->call.status;
}

unsigned s3_request_tried(const struct s3_request *request)
{
    return request->tries;
}

/* ---- its end ---- */

static void on_timer_closed(uv_handle_t *handle)
{
    struct s3_request *request = CONTAINER_OF(handle, struct s3_request, timer);

    web_call_done(&request->call);
    for (size_t i = 0; i < request->header_count; i++) {
        free(request->headers[i].name);
        free(request->headers[i].value);
    }
    buf_done(&request->query);
    free(request->location);
    free(request->plain_url);
    free(request->shown);
    free(request->etag);
    free(request->modified);
    credentials_done(&request->credentials);
    s3_memory_done(&request->memory);
    s3_place_unref(request->place);
    OBJ_FINI(request);
    free(request);
}

static void maybe_free(struct s3_request *request)
{
    if (!request->dropped || request->working || !request->timer_open)
        return;
    request->timer_open = false;
    uv_close((uv_handle_t *)&request->timer, on_timer_closed);
}

void s3_request_drop(struct s3_request *request)
{
    if (request == NULL)
        return;
    OBJ_CHECK(request, REQUEST_MAGIC);
    BUG_ON(request->dropped);
    request->dropped = true;
    web_call_cancel(&request->call);
    if (!request->working)
        s3_memory_done(&request->memory); /* now, not in the loop's next turn */
    maybe_free(request);
}

static void fail(struct s3_request *request, int result)
{
    struct mandor_err err = request->err;

    finish(request, result, &err);
}

/* ---- sending ---- */

static void run_prepare(struct work *work)
{
    struct s3_request *request = CONTAINER_OF(work, struct s3_request, work);

    request->prepared = 0;
    if (!request->hashed && request->has_body &&
        sigv4_sha256(request->memory.bytes, request->body_len, request->sha256) < 0)
        request->prepared = err_set(&request->err, -ENOMEM, FAULT_HOST, "hash a part");
    request->hashed = true;
    credentials_done(&request->credentials);
    if (request->prepared == 0 && request->place != NULL)
        request->prepared =
            credentials_load(&request->place->settings, &request->credentials, &request->err);
}

/* The path and the host that is asked. */
static int place_path(const struct s3_request *request, struct buf *host, struct buf *path)
{
    const struct s3_place *place = request->place;
    int r = place->path_style ? buf_adds(host, place->host)
                              : buf_addf(host, "%s.%s", place->bucket, place->host);

    if (r == 0)
        r = buf_addf(path, "%s/", place->base_path);
    if (r == 0 && place->path_style)
        r = sigv4_encode(path, place->bucket, false);
    if (r == 0 && place->path_style && !request->of_bucket)
        r = buf_adds(path, "/");
    if (r == 0 && !request->of_bucket)
        r = sigv4_encode(path, place->key, true);
    return r;
}

/* Host and path of "http://host/path?query". */
static int split_location(const char *url, struct buf *host, struct buf *path)
{
    const char *at = strstr(url, "://") + 3; /* checked when it was taken */
    size_t len = strcspn(at, "/?");
    int r = buf_add(host, at, len);

    if (r == 0)
        r = at[len] != '/' ? buf_adds(path, "/") : buf_add(path, at + len, strcspn(at + len, "?"));
    return r;
}

static int64_t now_s(const struct s3_request *request)
{
    return clock_wall_ms() / 1000 + request->place->skew_s;
}

/* All headers, sorted, those that every request has among them: content-… < host < x-amz-… */
static size_t collect(struct s3_request *request, const char *host, const char *stamp,
                      struct sigv4_header all[static HEADERS_MAX + 4])
{
    size_t n = 0, i = 0;

    for (; i < request->header_count && request->headers[i].name[0] < 'h'; i++)
        all[n++] = (struct sigv4_header){ request->headers[i].name, request->headers[i].value };
    all[n++] = (struct sigv4_header){ "host", host };
    for (;
         i < request->header_count && strcmp(request->headers[i].name, "x-amz-content-sha256") < 0;
         i++)
        all[n++] = (struct sigv4_header){ request->headers[i].name, request->headers[i].value };
    all[n++] = (struct sigv4_header){ "x-amz-content-sha256", request->sha256 };
    all[n++] = (struct sigv4_header){ "x-amz-date", stamp };
    for (;
         i < request->header_count && strcmp(request->headers[i].name, "x-amz-security-token") < 0;
         i++)
        all[n++] = (struct sigv4_header){ request->headers[i].name, request->headers[i].value };
    if (request->credentials.token != NULL)
        all[n++] = (struct sigv4_header){ "x-amz-security-token", request->credentials.token };
    for (; i < request->header_count; i++)
        all[n++] = (struct sigv4_header){ request->headers[i].name, request->headers[i].value };
    return n;
}

/* ---- a body that is streamed ---- */

/* Is this the rest of the same object, from where the last answer broke off?  Not every server heeds what it is asked. */
static bool is_rest(struct s3_request *request)
{
    char from[48];

    (void)snprintf(from, sizeof from, "bytes %" PRId64 "-", request->streamed_before);
    if (request->call.status != 206 ||
        strncasecmp(web_call_answer(&request->call, "content-range"), from, strlen(from)) != 0)
        return false;
    return request->etag != NULL
               ? str_eq(web_call_answer(&request->call, "etag"), request->etag)
               : request->modified != NULL &&
                     str_eq(web_call_answer(&request->call, "last-modified"), request->modified);
}

/* Does this answer begin, or go on where the last one broke off? */
static bool continues(struct s3_request *request)
{
    long status = 0;

    (void)curl_easy_getinfo(request->call.easy, CURLINFO_RESPONSE_CODE, &status);
    request->call.status = status;
    return request->streamed_before == 0 ? status >= 200 && status <= 299 : is_rest(request);
}

static void note_object(struct s3_request *request)
{
    const char *etag = web_call_answer(&request->call, "etag");
    const char *modified = web_call_answer(&request->call, "last-modified");

    if (etag[0] == '"')
        request->etag = strdup(etag);
    else if (modified[0] != '\0')
        request->modified = strdup(modified);
}

static size_t on_piece(char *bytes, size_t size, size_t count, void *arg)
{
    struct s3_request *request = arg;
    size_t len = size * count;

    if (!continues(request)) /* an error's text */
        return web_call_keep(&request->call, bytes, len);
    if (request->etag == NULL && request->modified == NULL)
        note_object(request);
    request->call.flows = true;
    if (!request->on_body(request->arg, bytes, len)) {
        request->starved = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    request->streamed += (int64_t)len;
    return len;
}

/* What is asked for: all of it, or the rest of the same object.  Sorted: "if-…" < "range". */
static int set_range(struct s3_request *request)
{
    char range[48];
    int r = 0;

    if (request->on_body == NULL)
        return 0;
    (void)curl_easy_setopt(request->call.easy, CURLOPT_WRITEFUNCTION, on_piece);
    (void)curl_easy_setopt(request->call.easy, CURLOPT_WRITEDATA, request);
    if (request->streamed_before == 0)
        return 0;
    (void)snprintf(range, sizeof range, "bytes=%" PRId64 "-", request->streamed_before);
    if (request->etag != NULL)
        r = web_call_header(&request->call, "If-Match: %s", request->etag);
    else if (request->modified != NULL)
        r = web_call_header(&request->call, "If-Unmodified-Since: %s", request->modified);
    return r < 0 ? r : web_call_header(&request->call, "Range: %s", range);
}

static int prepare_plain(struct s3_request *request)
{
    int r = web_call_prepare(&request->call, request->method, request->plain_url);

    if (r < 0)
        return r;
    web_call_follow(&request->call, request->plain_url);
    return set_range(request);
}

static int add_headers(struct s3_request *request, const struct sigv4_header *all, size_t count,
                       const char *authorization)
{
    int r = web_call_header(&request->call, "Authorization: %s", authorization);

    for (size_t i = 0; r == 0 && i < count; i++)
        r = web_call_header(&request->call, "%s: %s", all[i].name, all[i].value);
    if (r == 0) /* a body is seldom refused, and waiting for leave costs a round trip */
        r = web_call_header(&request->call, "Expect:");
    return r;
}

static int sign_and_prepare(struct s3_request *request)
{
    struct sigv4_header all[HEADERS_MAX + 4];
    SCOPED_BUF host = { 0 }, path = { 0 }, url = { 0 };
    char stamp[SIGV4_STAMP];
    const char *query = request->query.len > 0 ? request->query.data : "";
    int64_t when_s = now_s(request);

    int r = request->location != NULL ? split_location(request->location, &host, &path)
                                      : place_path(request, &host, &path);
    if (r < 0 || buf_addf(&url, "%s://%s%s%s%s", request->place->scheme, host.data, path.data,
                          query[0] != '\0' ? "?" : "", query) < 0)
        return -ENOMEM;
    size_t count = collect(request, host.data, sigv4_stamp(when_s, stamp), all);
    struct sigv4 signature = {
        .method = request->method,
        .path = path.data,
        .query = query,
        .headers = all,
        .header_count = count,
        .body_sha256 = request->sha256,
        .access_key = request->credentials.access_key,
        .secret_key = request->credentials.secret_key,
        .region = request->place->region,
        .service = "s3",
        .when_s = when_s,
    };
    SCOPED_FREE char *authorization = sigv4_authorization(&signature);
    if (authorization == NULL || web_call_prepare(&request->call, request->method, url.data) < 0)
        return -ENOMEM;
    (void)curl_easy_setopt(request->call.easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    if (request->has_body)
        web_call_body(&request->call, request->memory.bytes, request->body_len);
    else if (str_eq(request->method, "POST") || str_eq(request->method, "PUT"))
        web_call_body(&request->call, NULL, 0);
    r = add_headers(request, all, count, authorization);
    return r < 0 ? r : set_range(request); /* not signed: what is signed need not be all */
}

static void after_prepare(struct work *work)
{
    struct s3_request *request = CONTAINER_OF(work, struct s3_request, work);

    request->working = false;
    if (request->dropped) {
        maybe_free(request);
        return;
    }
    if (request->late) {
        finish(request, -ETIMEDOUT, late_error(request));
        return;
    }
    int r = request->prepared;
    request->streamed_before = request->streamed;
    request->starved = false;
    if (r == 0)
        r = request->place == NULL ? prepare_plain(request) : sign_and_prepare(request);
    if (r == -ENOMEM && request->prepared == 0)
        (void)err_set(&request->err, r, FAULT_HOST, "sign an S3 request");
    if (r == 0 && request->publishes != NULL &&
        !sink_may_publish(request->publishes, &request->err))
        r = request->err.code;
    if (r == 0)
        web_call_time_limit(&request->call, left_ms(request));
    if (r == 0)
        r = web_call_start(&request->call, &request->err);
    if (r < 0)
        fail(request, r);
}

static void send_try(struct s3_request *request)
{
    request->tries++;
    request->working = true;
    work_submit(request->loop, &request->work, WORK_CPU, run_prepare, after_prepare);
}

static void on_timer(uv_timer_t *timer)
{
    send_try(CONTAINER_OF(timer, struct s3_request, timer));
}

/* ---- judging the answer ---- */

static void on_error_part(void *arg, unsigned depth, const char *name, const char *text)
{
    struct s3_request *request = arg;

    if (depth != 2)
        return;
    if (str_eq(name, "Code"))
        (void)snprintf(request->code, sizeof request->code, "%s", text);
    else if (str_eq(name, "Message"))
        (void)snprintf(request->message, sizeof request->message, "%s", text);
    else if (str_eq(name, "Region"))
        (void)snprintf(request->region, sizeof request->region, "%s", text);
}

enum advice { ADVICE_FAIL, ADVICE_AGAIN, ADVICE_AT_ONCE };

/* What S3's error codes ask for; others: by the status. */
static enum advice advice_of(const char *code, int status, unsigned tries)
{
    static const char *const again[] = {
        "SlowDown",
        "ServiceUnavailable",
        "InternalError",
        "RequestTimeout",
        "OperationAborted",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "TooManyRequests",
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "IncompleteBody",
        "ConditionalRequestConflict",
        "ExpiredToken",
        "TokenRefreshRequired",
        "RequestExpired", /* credentials are read anew */
    };
    static const char *const once_more[] = {
        /* a file may just be being rotated; else they are wrong */
        "InvalidToken",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
    };

    for (size_t i = 0; i < ARRAY_LEN(again); i++)
        if (str_eq(again[i], code))
            return ADVICE_AGAIN;
    for (size_t i = 0; i < ARRAY_LEN(once_more); i++)
        if (str_eq(once_more[i], code))
            return tries < KEY_TRIES ? ADVICE_AGAIN : ADVICE_FAIL;
    return status >= 500 || status == 429 || status == 408 ? ADVICE_AGAIN : ADVICE_FAIL;
}

/* Our clock is wrong: take the server's, once (R91). */
static bool correct_clock(struct s3_request *request)
{
    time_t theirs = curl_getdate(web_call_answer(&request->call, "date"), NULL);

    if (request->skew_set || theirs == (time_t)-1)
        return false;
    request->skew_set = true;
    request->place->skew_s = (int64_t)theirs - clock_wall_ms() / 1000;
    log_warn("the clock differs from the S3 server's by %" PRId64 " s: its time is used",
             request->place->skew_s);
    return true;
}

/* The bucket is in another region: sign for that, and ask there when the endpoint is Amazon's. */
static bool change_region(struct s3_request *request)
{
    struct s3_place *place = request->place;
    const char *region = web_call_answer(&request->call, "x-amz-bucket-region");
    char *host = NULL;

    if (region[0] == '\0')
        region = request->region;
    if (region[0] == '\0' || str_eq(region, place->region))
        return false;
    char *copy = strdup(region);
    if (copy == NULL || (place->is_amazon && asprintf(&host, "s3.%s.amazonaws.com", region) < 0)) {
        free(copy);
        return false;
    }
    free(place->region);
    place->region = copy;
    if (host != NULL) {
        free(place->host);
        place->host = host;
    }
    return true;
}

/* Go where the server says, but never from https to http: the keys' signatures travel along. */
static bool follow(struct s3_request *request)
{
    const char *to = web_call_answer(&request->call, "location");
    size_t len = strlen(request->place->scheme);

    if (strncmp(to, request->place->scheme, len) != 0 || strncmp(to + len, "://", 3) != 0)
        return false;
    char *copy = strdup(to);
    if (copy == NULL)
        return false;
    free(request->location);
    request->location = copy;
    return true;
}

static enum advice judge_status(struct s3_request *request)
{
    int status = (int)request->call.status;
    if (request->place == NULL)
        return advice_of("", status, request->tries);
    bool moved = status == 301 || status == 302 || status == 307 || status == 308;

    if (str_eq(request->code, "RequestTimeTooSkewed"))
        return correct_clock(request) ? ADVICE_AT_ONCE : ADVICE_FAIL;
    if (moved || str_eq(request->code, "AuthorizationHeaderMalformed")) {
        if (request->redirects++ >= REDIRECTS_MAX)
            return ADVICE_FAIL;
        return (moved && follow(request)) || change_region(request) ? ADVICE_AT_ONCE : ADVICE_FAIL;
    }
    return advice_of(request->code, status, request->tries);
}

static int describe(struct s3_request *request)
{
    const struct s3_place *place = request->place;
    int status = (int)request->call.status;
    int code = status == 403 ? -EACCES : status == 404 ? -ENOENT : status == 507 ? -ENOSPC : -EIO;

    if (place == NULL)
        (void)err_say(&request->err, code, FAULT_REMOTE, "%s of '%s': the server answered %d",
                      request->method, request->shown, status);
    else
        (void)err_say(&request->err, code, FAULT_REMOTE, "S3 %s of 's3://%s/%s': %d %s%s%s",
                      request->method, place->bucket, place->key, status,
                      request->code[0] != '\0' ? request->code : "without a reason",
                      request->message[0] != '\0' ? ": " : "", request->message);
    return code;
}

/* The answer has come.  Returns what to do; *ret_result and request->err say why. */
static enum advice judge(struct s3_request *request, int *ret_result)
{
    struct web_call *call = &request->call;

    request->code[0] = request->message[0] = request->region[0] = '\0';
    bool refused = call->status < 200 || call->status > 299;
    if (!refused && request->streamed_before > 0 && !is_rest(request)) {
        *ret_result =
            err_set(&request->err, -EIO, FAULT_REMOTE,
                    "the connection broke, and the server does not send the rest alone, or "
                    "does not say that it is of the same object");
        return call->response.len > 0 ? ADVICE_FAIL : ADVICE_AGAIN; /* broke amid its headers */
    }
    if (call->result != CURLE_OK) {
        char what[200];
        if (request->place == NULL)
            (void)snprintf(what, sizeof what, "%s of '%.150s'", request->method, request->shown);
        else
            (void)snprintf(what, sizeof what, "S3 %s of 's3://%.60s/%.90s'", request->method,
                           request->place->bucket, request->place->key);
        *ret_result = web_call_error(call, &request->err, what);
        return ADVICE_AGAIN;
    }
    if (refused && call->response.len > 0 &&
        xml_read(call->response.data, call->response.len, on_error_part, request) < 0)
        request->code[0] = '\0'; /* not S3's words: the status must do */
    if (!refused) {
        *ret_result = request->check == NULL ? 0 : request->check(request, &request->err);
        return *ret_result == -EAGAIN ? ADVICE_AGAIN : ADVICE_FAIL;
    }
    *ret_result = describe(request);
    return judge_status(request);
}

static int64_t delay_ms(struct s3_request *request)
{
    long seconds = strtol(web_call_answer(&request->call, "retry-after"), NULL, 10);
    int64_t delay = (int64_t)DELAY_FIRST_MS << MIN(request->tries - 1, 10u);
    int64_t jitter = (int64_t)(uv_hrtime() % 64);

    delay = MIN(delay, (int64_t)DELAY_MAX_MS);
    if (seconds > 0)
        delay = MAX(delay, (int64_t)MIN(seconds, 30L) * 1000);
    return delay + delay * jitter / 256;
}

static void on_answer(struct web_call *call)
{
    struct s3_request *request = CONTAINER_OF(call, struct s3_request, call);
    int result = 0;

    OBJ_CHECK(request, REQUEST_MAGIC);
    (void)uv_timer_stop(&request->timer);
    enum advice advice = judge(request, &result);
    if (advice == ADVICE_AT_ONCE) {
        request->tries--;
        send_try(request);
        return;
    }
    int64_t wait = advice == ADVICE_AGAIN ? delay_ms(request) : 0;
    if (request->streamed > request->streamed_before)
        request->tries = 1; /* it got on: a long body may break more than once */
    unsigned tries_max = web_call_tries(&request->call, request->tries_max);
    if (advice == ADVICE_AGAIN && request->tries < tries_max && wait < left_ms(request)) {
        log_debug("s3", "try %u: %s; again in %" PRId64 " ms", request->tries, request->err.msg,
                  wait);
        (void)uv_timer_start(&request->timer, on_timer, (uint64_t)wait, 0);
        return;
    }
    if (result < 0)
        fail(request, result == -EAGAIN ? -EIO : result);
    else
        finish(request, 0, NULL);
}

void s3_request_start(struct s3_request *request, s3_check_fn *check, s3_done_fn *on_done)
{
    OBJ_CHECK(request, REQUEST_MAGIC);
    request->check = check;
    request->on_done = on_done;
    request->call.on_done = on_answer;
    send_try(request);
}

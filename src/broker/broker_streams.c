/* broker_streams.c - a queue in Redis or Valkey: opening, waking, closing.  Contract in broker_ops.h; see streams.h for how it works.
 *
 * streams[+tls|+unix|+sentinel|+cluster]://[[USER:]PASSWORD@]HOST[:PORT][/DB][?prefix=NAME]
 *
 * The prefix ("mandor") stands in braces in every key, so that all of them lie in one slot of a cluster. */
#include "broker/broker_streams.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "broker/data_dir.h"
#include "broker/store.h"
#include "broker/streams.h"

#define BLOCK_END_MS   5000 /* when XREAD's answer should have been here for long */
#define PAUSE_MS       25   /* between wake-ups */
#define WAKE_AGAIN_MS  200
#define DEFAULT_PREFIX "mandor"

static struct streams *self(struct broker *broker)
{
    return *(struct streams **)broker_state(broker);
}

/* ---- arguments and replies ---- */

static struct arg *next_arg(struct args *args)
{
    if (args->count == args->cap) {
        size_t cap = MAX(args->cap * 2, (size_t)32);
        struct arg *grown = realloc(args->list, cap * sizeof *grown);
        if (grown == NULL) {
            args->failed = true;
            return NULL;
        }
        args->list = grown;
        args->cap = cap;
    }
    return &args->list[args->count++];
}

void args_b(struct args *args, const void *bytes, size_t len)
{
    struct arg *arg = next_arg(args);
    if (arg != NULL)
        *arg = (struct arg){ .at = bytes != NULL ? bytes : "", .len = len };
}

void args_s(struct args *args, const char *text)
{
    args_b(args, text, text != NULL ? strlen(text) : 0);
}

void args_copy(struct args *args, const char *text)
{
    size_t offset = args->text.len, len = strlen(text);
    struct arg *arg = next_arg(args);

    if (arg == NULL || buf_add(&args->text, text, len + 1) < 0)
        args->failed = true;
    else
        *arg = (struct arg){ .offset = offset, .len = len };
}

void args_i(struct args *args, int64_t number)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%" PRId64, number);
    args_copy(args, text);
}

static const char *text_of(const struct args *args, const struct arg *arg)
{
    return arg->at != NULL ? arg->at : args->text.data + arg->offset;
}

void args_own(struct args *args)
{
    for (size_t i = 0; i < args->count; i++) {
        struct arg *arg = &args->list[i];
        size_t offset = args->text.len;
        if (arg->at == NULL)
            continue;
        if (buf_add(&args->text, arg->at, arg->len) < 0)
            args->failed = true;
        *arg = (struct arg){ .offset = offset, .len = arg->len };
    }
}

void args_again(struct args *args, const struct args *those)
{
    for (size_t i = 0; i < those->count; i++)
        args_b(args, text_of(those, &those->list[i]), those->list[i].len);
}

void args_done(struct args *args)
{
    buf_done(&args->text);
    free(args->list);
    *args = (struct args){ .count = 0 };
}

void streams_eval(struct streams *s, struct redis_script *script, int flags, int64_t timeout_ms,
                  struct args *args, redis_reply_fn *fn, void *arg)
{
    SCOPED_FREE const char **argv = calloc(args->count + 1, sizeof *argv);
    SCOPED_FREE size_t *lens = calloc(args->count + 1, sizeof *lens);
    struct mandor_err err;

    if (argv == NULL || lens == NULL || args->failed) {
        args_done(args);
        (void)err_set(&err, -ENOMEM, FAULT_HOST, "ask '%s'", s->url.text);
        fn(arg, -ENOMEM, NULL, &err);
        return;
    }
    argv[0] = s->prefix;
    lens[0] = strlen(s->prefix);
    for (size_t i = 0; i < args->count; i++) {
        const struct arg *one = &args->list[i];
        argv[i + 1] = text_of(args, one);
        lens[i + 1] = one->len;
    }
    redis_eval(s->redis, script, flags, timeout_ms, 1, args->count + 1, argv, lens, fn, arg);
    args_done(args);
}

void streams_nonce(struct streams *s, char nonce[static STREAMS_NONCE_SIZE])
{
    (void)snprintf(nonce, STREAMS_NONCE_SIZE, "%016" PRIx64 "%08x", random_next(&s->random),
                   s->turn++);
}

int64_t reply_int(const redisReply *reply)
{
    if (reply == NULL)
        return 0;
    if (reply->type == REDIS_REPLY_INTEGER)
        return reply->integer;
    return reply->str != NULL ? strtoll(reply->str, NULL, 10) : 0;
}

const char *reply_text(const redisReply *reply)
{
    return reply != NULL && reply->str != NULL ? reply->str : "";
}

const redisReply *reply_at(const redisReply *reply, size_t index)
{
    return reply != NULL && reply->type == REDIS_REPLY_ARRAY && index < reply->elements
               ? reply->element[index]
               : NULL;
}

const char *field_of(const redisReply *fields, const char *name)
{
    for (size_t i = 0; reply_at(fields, i + 1) != NULL; i += 2) {
        if (!str_eq(reply_text(reply_at(fields, i)), name))
            continue;
        const char *text = reply_text(reply_at(fields, i + 1));
        return text[0] != '\0' ? text : NULL;
    }
    return NULL;
}

int64_t field_int(const redisReply *fields, const char *name)
{
    const char *text = field_of(fields, name);
    return text != NULL ? strtoll(text, NULL, 10) : 0;
}

/* ---- closing ---- */

static void streams_free(struct streams *s)
{
    for (size_t i = 0; s->queues != NULL && s->queues[i] != NULL; i++)
        free(s->queues[i]);
    free(s->queues);
    streams_forget_ends(s);
    s->taken_by_id = hash_free(s->taken_by_id);
    redis_url_done(&s->url);
    free(s->prefix);
    free(s);
}

static void on_part_closed(void *arg)
{
    struct streams *s = arg;
    struct broker *broker = s->broker;

    if (--s->handles > 0)
        return;
    streams_free(s);
    broker_closed(broker);
}

static void on_handle_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

static void close_when_done(struct streams *s)
{
    if (!s->closing || s->outstanding > 0)
        return;
    s->closing = false; /* once */
    s->handles = 3u + (s->wake != NULL);
    (void)uv_timer_stop(&s->pause);
    uv_close((uv_handle_t *)&s->pause, on_handle_closed);
    uv_close((uv_handle_t *)&s->turn_over, on_handle_closed);
    if (s->wake != NULL)
        redis_close(STEAL(s->wake), on_part_closed, s);
    redis_close(STEAL(s->redis), on_part_closed, s);
}

static void streams_close(struct broker *broker)
{
    struct streams *s = self(broker);

    s->closing = true;
    close_when_done(s);
}

void streams_answer(struct streams *s, struct broker_req *req, int status)
{
    req->status = status;
    BUG_ON(s->outstanding == 0);
    broker_answer(s->broker, req);
    s->outstanding--;
    close_when_done(s);
}

void streams_part_done(struct streams *s)
{
    BUG_ON(s->outstanding == 0);
    s->outstanding--;
    close_when_done(s);
}

void streams_fail(struct streams *s, struct broker_req *req, int status,
                  const struct mandor_err *err)
{
    if (err != NULL)
        req->err = *err;
    streams_answer(s, req, status);
}

/* ---- submitting ---- */

static void streams_submit(struct broker *broker, struct broker_req *req)
{
    static void (*const ops[BROKER_OPS])(struct streams * s, struct broker_req * req) = {
        [BROKER_ADD] = streams_add,
        [BROKER_LEASE] = streams_lease,
        [BROKER_START] = streams_start,
        [BROKER_RENEW] = streams_renew,
        [BROKER_BEGIN_SETTLE] = streams_begin_settle,
        [BROKER_SETTLE] = streams_settle,
        [BROKER_GIVE_BACK] = streams_give_back,
        [BROKER_PHASE] = streams_phase,
        [BROKER_RECOVER] = streams_recover,
        [BROKER_REGISTER] = streams_register,
        [BROKER_UNREGISTER] = streams_unregister,
        [BROKER_SHOW] = streams_show,
        [BROKER_LIST] = streams_list,
        [BROKER_OUTPUT] = streams_output,
        [BROKER_CANCEL] = streams_change,
        [BROKER_RETRY] = streams_change,
        [BROKER_REMOVE] = streams_change,
        [BROKER_PAUSE] = streams_pause,
        [BROKER_STATS] = streams_stats,
    };
    struct streams *s = self(broker);

    s->outstanding++;
    if (req->op != BROKER_SETTLE) /* requests are carried out in their order */
        streams_send_ends(s);
    ops[req->op](s, req);
}

/* ---- waking: a second connection waits for entries, so that it holds up nothing (R78) ---- */

static void wait_for_entries(struct streams *s);

static void on_pause(uv_timer_t *timer)
{
    wait_for_entries(timer->data);
}

static void look_again(struct streams *s, int64_t in_ms)
{
    if (s->wake != NULL)
        (void)uv_timer_start(&s->pause, on_pause, (uint64_t)in_ms, 0);
}

/* [[stream, [[id, fields], …]], …] */
static void on_entries(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct streams *s = arg;
    char events[256];

    if (result == -ECANCELED)
        return;
    if (result < 0) {
        log_debug("broker", "%s: %s", s->url.text, err->msg);
        look_again(s, WAKE_AGAIN_MS);
        return;
    }
    (void)snprintf(events, sizeof events, "%s:events", s->prefix);
    bool woken = reply_at(reply, 0) != NULL;
    for (size_t i = 0; reply_at(reply, i) != NULL; i++) {
        const redisReply *entries = reply_at(reply_at(reply, i), 1);
        if (str_eq(reply_text(reply_at(reply_at(reply, i), 0)), events) && entries != NULL &&
            entries->elements > 0)
            (void)snprintf(s->event_id, sizeof s->event_id, "%s",
                           reply_text(reply_at(reply_at(entries, entries->elements - 1), 0)));
    }
    look_again(s, woken ? PAUSE_MS : 0);
    if (woken)
        broker_woken(s->broker);
}

static void on_last_event(void *arg, int result, const redisReply *reply,
                          const struct mandor_err *err)
{
    struct streams *s = arg;

    (void)err;
    if (result == -ECANCELED)
        return;
    if (result < 0) {
        look_again(s, WAKE_AGAIN_MS);
        return;
    }
    const char *id = reply_text(reply_at(reply_at(reply, 0), 0));
    (void)snprintf(s->event_id, sizeof s->event_id, "%s", id[0] != '\0' ? id : "0-0");
    broker_woken(s->broker); /* something may have happened before */
    wait_for_entries(s);
}

static void wait_for_entries(struct streams *s)
{
    SCOPED_FREE const char **argv = NULL;
    SCOPED_BUF names = { 0 };
    size_t queues = 0, argc = 0;
    bool failed = false;

    if (s->event_id[0] == '\0') {
        redis_callf(s->wake, REDIS_AGAIN, BLOCK_END_MS, on_last_event, s,
                    "XREVRANGE %s:events + - COUNT 1", s->prefix);
        return;
    }
    while (s->queues != NULL && s->queues[queues] != NULL)
        queues++;
    argv = calloc(2 * queues + 8, sizeof *argv);
    for (size_t i = 0; i <= queues; i++) {
        int r = i == 0 ? buf_addf(&names, "%s:events", s->prefix)
                       : buf_addf(&names, "%s:q:%s", s->prefix, s->queues[i - 1]);
        failed |= r < 0 || buf_add(&names, "", 1) < 0;
    }
    if (argv == NULL || failed) {
        look_again(s, WAKE_AGAIN_MS);
        return;
    }
    static const char *const head[] = { "XREAD", "COUNT", "100", "BLOCK", "2000", "STREAMS" };
    for (; argc < ARRAY_LEN(head); argc++)
        argv[argc] = head[argc];
    const char *name = names.data;
    for (size_t i = 0; i <= queues; i++, name += strlen(name) + 1)
        argv[argc++] = name;
    for (size_t i = 0; i <= queues; i++)
        argv[argc++] = i == 0 ? s->event_id : "$";
    redis_call(s->wake, 0, BLOCK_END_MS, argc, argv, NULL, on_entries, s);
}

static int streams_listen(struct broker *broker, const char *name, struct mandor_err *err)
{
    struct streams *s = self(broker);
    char client_name[160];

    (void)snprintf(client_name, sizeof client_name, "mandor:%s:wait", name);
    struct redis_options options = { .client_name = client_name };
    int r = redis_new(broker_loop(broker), &s->url, &options, &s->wake, err);
    if (r == 0)
        wait_for_entries(s);
    return r;
}

/* ---- opening ---- */

static void on_up(void *arg)
{
    struct streams *s = arg;
    const char *policy = redis_evicts(s->redis);

    s->up_since_ms = clock_mono_ms();
    if (s->was_up && !s->closing) {
        streams_settle_again(s);
        broker_woken(s->broker); /* are the leases still there? */
    }
    s->was_up = true;
    if (policy == NULL || s->warned || !broker_is_worker(s->broker))
        return;
    s->warned = true;
    log_warn("'%s' evicts keys when its memory is full (maxmemory-policy %s): jobs can be LOST; "
             "set maxmemory-policy "
             "noeviction",
             s->url.text, policy);
}

static void on_down(void *arg, const struct mandor_err *err)
{
    struct streams *s = arg;

    s->up_since_ms = 0;
    if (broker_is_worker(s->broker))
        log_warn("connection lost: %s", err->msg);
}

static int parse(const char *url, struct redis_url *ret, struct mandor_err *err)
{
    static const char *const own[] = { "prefix" };
    int r = redis_url_parse(url, ret, err);

    if (r == 0)
        r = redis_url_check_params(ret, own, ARRAY_LEN(own), err);
    const char *prefix = redis_url_param(ret, "prefix");
    if (r == 0 && prefix != NULL && (prefix[0] == '\0' || strpbrk(prefix, "{}") != NULL))
        r = err_set(err, -EINVAL, FAULT_CALLER,
                    "broker '%s': a prefix has no braces and is not empty", ret->text);
    return r;
}

static int check(const char *url, struct mandor_err *err)
{
    struct redis_url parsed;
    int r = parse(url, &parsed, err);

    redis_url_done(&parsed);
    return r;
}

static const char *prefix_of(const struct redis_url *url)
{
    const char *given = redis_url_param(url, "prefix");
    return given != NULL ? given : DEFAULT_PREFIX;
}

/* A file name out of whatever a URL says. */
static int add_name(struct buf *buf, const char *text)
{
    int r = 0;

    for (const char *p = text; *p != '\0' && r == 0; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                     (*p >= '0' && *p <= '9') || *p == '-' || *p == '_' || (*p == '.' && p != text);
        r = plain ? buf_add(buf, p, 1) : buf_addf(buf, "%%%02X", (unsigned char)*p);
    }
    return r;
}

/* <state>/mandor/streams-HOST-PORT-DB-PREFIX, malloc'ed; data_dir_make() puts ".d" behind it. */
static int data_place(const struct redis_url *url, char **ret, struct mandor_err *err)
{
    SCOPED_BUF name = { 0 };
    int r = buf_addf(&name, "%s-", url->scheme);

    if (r == 0 && url->unix_path != NULL)
        r = add_name(&name, url->unix_path);
    for (size_t i = 0; i < url->host_count && r == 0; i++) {
        r = add_name(&name, url->hosts[i].name);
        if (r == 0)
            r = buf_addf(&name, "-%d-", url->hosts[i].port);
    }
    if (r == 0 && url->sentinel_name != NULL)
        r = add_name(&name, url->sentinel_name);
    if (r == 0)
        r = buf_addf(&name, "-%d-", url->db);
    if (r == 0)
        r = add_name(&name, prefix_of(url));
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "open broker '%s'", url->text);
    r = data_dir_standard(name.data, ret, err);
    if (r == -ENODATA)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "no place for files of broker '%s': neither XDG_STATE_HOME nor HOME is set",
                       url->text);
    return r;
}

static int prepare(const char *url, char **ret_data_dir, struct mandor_err *err)
{
    struct redis_url parsed;
    SCOPED_FREE char *place = NULL;
    int r = parse(url, &parsed, err);

    if (r == 0)
        r = data_place(&parsed, &place, err);
    redis_url_done(&parsed);
    return r < 0 ? r : data_dir_make(place, ret_data_dir, err);
}

static int open_parts(struct streams *s, const char *url, struct mandor_err *err)
{
    SCOPED_FREE char *place = NULL;
    char *dir = NULL, client_name[96];

    int r = parse(url, &s->url, err);
    if (r == 0)
        r = data_place(&s->url, &place, err);
    if (r == 0)
        r = data_dir_make(place, &dir, err);
    if (r < 0)
        return r;
    broker_set_data_dir(s->broker, dir);
    if ((r = hash_new(&s->taken_by_id)) < 0)
        return err_set(err, r, FAULT_HOST, "open broker '%s'", s->url.text);
    if (asprintf(&s->prefix, "{%s}", prefix_of(&s->url)) < 0) {
        s->prefix = NULL;
        return err_set(err, -ENOMEM, FAULT_HOST, "open broker '%s'", s->url.text);
    }
    (void)snprintf(client_name, sizeof client_name, "mandor:%.60s:%d", s->host, (int)getpid());
    struct redis_options options = {
        .client_name = client_name,
        .once = !broker_is_worker(s->broker),
        .on_up = on_up,
        .on_down = on_down,
        .arg = s,
    };
    return redis_new(broker_loop(s->broker), &s->url, &options, &s->redis, err);
}

static int streams_open(struct broker *broker, const char *url, struct mandor_err *err)
{
    struct streams *s = calloc(1, sizeof *s);

    if (s == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open broker");
    s->broker = broker;
    list_init(&s->ends);
    list_init(&s->taken);
    s->lease_ms = STORE_LEASE_MS;
    s->random = random_seed();
    (void)gethostname(s->host, sizeof s->host - 1);
    int r = open_parts(s, url, err);
    if (r < 0) {
        streams_free(s);
        return r;
    }
    (void)uv_timer_init(broker_loop(broker), &s->pause);
    (void)uv_idle_init(broker_loop(broker), &s->turn_over);
    s->pause.data = s->turn_over.data = s;
    *(struct streams **)broker_state(broker) = s;
    return 0;
}

const struct broker_ops broker_streams = {
    .scheme = "streams",
    .state_size = sizeof(struct streams *),
    .starts_leases = true,
    .check = check,
    .prepare = prepare,
    .open = streams_open,
    .submit = streams_submit,
    .listen = streams_listen,
    .close = streams_close,
};

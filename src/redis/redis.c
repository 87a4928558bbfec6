/* redis.c - contract in redis.h: calls, their time limits, and a connection that comes back.
 *
 * A call is in one of three places: `queue` (not written yet), `flying` (written, in their order, no reply yet) and `again` (came back
 * unexecuted or in doubt; goes to the head of the queue when nothing flies any more, so that the order stays).
 *
 * After MOVED, READONLY, LOADING and the like nothing more is written (`holding`) until the last flying call has its reply; then the
 * connection is found anew, or kept and tried again after a while. */
#include "redis/redis.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/random.h"
#include "redis/redis_int.h"

#define CONNECT_MS       5000
#define BACKOFF_FIRST_MS 50
#define BACKOFF_LAST_MS  3000
#define FLY_MS           1000 /* what was written gets at least that long */
#define HOLD_MS          100
#define HOLD_LAST_MS     1000 /* where the owner is patient: doubling up to here */
#define HOLD_ASK_MS      1000
#define TRIES_MAX        16 /* of one call that is sent away again and again */

/* ---- calls ---- */

static struct mandor_err *why(struct redis *redis)
{
    return redis->err.code != 0 ? &redis->err : NULL;
}

static void free_call(struct call *call)
{
    if (call->wire != NULL)
        redisFreeCommand(call->wire);
    redis_transaction_free(call->txn);
    free(call);
}

void redis_answer(struct call *call, int result, const redisReply *reply,
                  const struct mandor_err *err)
{
    redis_reply_fn *fn = STEAL(call->fn);

    list_remove(&call->node);
    if (fn != NULL)
        fn(call->arg, result, reply, err);
    /* Else hiredis comes back for it: it is told of later, from inside of one of its callbacks. */
    if (call->in_wire == 0)
        free_call(call);
    else
        call->dead = true;
}

static void fail(struct redis *redis, struct call *call, int code, const char *what)
{
    struct mandor_err err = { 0 };

    (void)err_set(&err, code, FAULT_REMOTE, "redis '%s': %s", redis->url.text, what);
    redis_answer(call, code, NULL, &err);
}

/* It waited for a connection in vain: the reason is why there was none. */
static void fail_waiting(struct redis *redis, struct call *call)
{
    const struct mandor_err *err = why(redis);

    if (err != NULL)
        redis_answer(call, err->code, NULL, err);
    else
        fail(redis, call, -ETIMEDOUT, "no answer in time");
}

static void arm(struct redis *redis);
static void flush(struct redis *redis);

/* ---- scripts: each is loaded once a connection, in front of its first call ---- */

static bool known(const struct redis *redis, const struct redis_script *script)
{
    for (size_t i = 0; i < redis->loaded_count; i++)
        if (redis->loaded[i] == script)
            return true;
    return false;
}

static void forget(struct redis *redis, const struct redis_script *script)
{
    for (size_t i = 0; i < redis->loaded_count; i++)
        if (redis->loaded[i] == script)
            redis->loaded[i--] = redis->loaded[--redis->loaded_count];
}

static void on_loaded(redisAsyncContext *context, void *reply, void *data)
{
    (void)context; /* what matters is the answer to the call behind it */
    (void)reply;
    (void)data;
}

static int send_script(struct redis *redis, const struct redis_script *script)
{
    const char *argv[] = { "SCRIPT", "LOAD", script->text };
    size_t lens[] = { 6, 4, strlen(script->text) };
    char *wire = NULL;

    if (known(redis, script) || redis->loaded_count == ARRAY_LEN(redis->loaded))
        return 0;
    long long len = redisFormatCommandArgv(&wire, (int)ARRAY_LEN(argv), argv, lens);
    if (len < 0)
        return -ENOMEM;
    int r = link_send(redis->link, wire, (size_t)len, on_loaded, NULL);
    redisFreeCommand(wire);
    if (r == 0)
        redis->loaded[redis->loaded_count++] = script;
    return r;
}

/* ---- replies ---- */

/* Nothing more is written; when the last reply is here: reconnect, or try again after the longest time that was asked for. */
static void hold(struct redis *redis, bool reconnect, int64_t ms)
{
    redis->hold_ms = redis->holding ? MAX(redis->hold_ms, ms) : ms;
    redis->holding = true;
    redis->reconnect |= reconnect;
}

static void again(struct redis *redis, struct call *call)
{
    list_remove(&call->node);
    list_push_back(&redis->again, &call->node);
}

static int64_t now_ms(void)
{
    return clock_mono_ms();
}

static void note_reply_error(struct redis *redis, const redisReply *reply)
{
    (void)err_say(&redis->err, redis_error_code(reply->str, reply->len), FAULT_REMOTE,
                  "redis '%s': %.*s", redis->url.text, redis_error_len(reply->str, reply->len),
                  reply->str);
}

static bool is_late(const struct call *call)
{
    return now_ms() >= call->deadline_ms || call->tries >= TRIES_MAX;
}

/* Until it is made again: the last time at the very end of the patience. */
static int64_t hold_time(const struct call *call)
{
    int64_t ms = MIN((int64_t)HOLD_MS << MIN(call->waits - 1, 4u), (int64_t)HOLD_LAST_MS);

    return MAX(MIN(ms, call->wait_until_ms - now_ms()), INT64_C(1));
}

/* The server has no room, or is not ready, or had not for a call before this one, so that any error may come of that; and the owner is patient:
 * the call is made again however often, within a time that began with it. */
static bool wait_out(struct redis *redis, struct call *call)
{
    if (redis->options.patience_ms == 0)
        return false;
    call->waits++;
    call->deadline_ms = MAX(call->deadline_ms, call->wait_until_ms);
    return redis->holding || now_ms() < call->wait_until_ms; /* not before the other fails */
}

/* The server sends the call away: true when it will be made again. */
static bool sent_away(struct redis *redis, struct call *call, const redisReply *reply)
{
    int code = redis_error_code(reply->str, reply->len);
    bool late = is_late(call);
    bool asks = strncmp(reply->str, "ASK ", 4) == 0;
    bool moves = asks && call->txn != NULL; /* no transaction before the slot has moved */
    bool waited =
        (code == -EAGAIN || code == -ENOSPC || moves || redis->holding) && wait_out(redis, call);

    if (strncmp(reply->str, "MOVED ", 6) == 0 && !late) {
        redis_note_moved(redis, reply->str);
        hold(redis, true, 0);
    } else if (moves && (waited || !late)) {
        note_reply_error(redis, reply);
        hold(redis, false, HOLD_ASK_MS);
    } else if (asks && !moves && !late) {
        return redis_ask_elsewhere(redis, call, reply->str);
    } else if (code == -ENOEXEC && call->script != NULL && !late) {
        forget(redis, call->script);
        hold(redis, false, 0);
    } else if (code == -EROFS && !late) {
        note_reply_error(redis, reply);
        hold(redis, true, 0);
    } else if (waited) {
        if (!redis->holding)
            note_reply_error(redis, reply);
        hold(redis, false, hold_time(call));
    } else if (code == -EAGAIN && !late) {
        note_reply_error(redis, reply);
        hold(redis, false, HOLD_MS);
    } else {
        return false;
    }
    call->tries += !waited;
    call->sent_away = true;
    again(redis, call);
    return true;
}

static void landed(struct redis *redis);

bool redis_begin_reply(struct call *call, const redisReply *reply)
{
    struct redis *redis = call->redis;

    if (call->dead) {
        if (call->in_wire == 0)
            free_call(call);
        return false;
    }
    OBJ_CHECK(redis, REDIS_MAGIC);
    if (reply == NULL) { /* the connection is gone: in doubt */
        if (call->in_wire == 0) {
            call->tries++;
            again(redis, call);
        }
        return false;
    }
    redis->depth++;
    return true;
}

void redis_end_reply(struct redis *redis)
{
    redis->depth--;
    landed(redis);
    flush(redis);
}

void redis_refused(struct redis *redis, struct call *call, const redisReply *error)
{
    struct mandor_err err = { 0 };

    if (sent_away(redis, call, error))
        return;
    int code = redis_error_code(error->str, error->len);
    /* Redis does not say which of a script's keys it is. */
    bool which = code == -EMEDIUMTYPE && call->script != NULL;
    (void)err_say(&err, code, FAULT_REMOTE, "redis '%s': %.*s%s", redis->url.text,
                  redis_error_len(error->str, error->len), error->str,
                  which ? "; TYPE shows which of our keys it is: rename or delete it" : "");
    redis_answer(call, code, NULL, &err);
}

void redis_call_again(struct redis *redis, struct call *call)
{
    bool behind = redis->holding && wait_out(redis, call); /* one that waits itself */

    if (!behind && is_late(call)) {
        fail(redis, call, -EPROTO, "a transaction was tried too often");
        return;
    }
    call->tries += !behind;
    hold(redis, false, 0);
    call->sent_away = true;
    again(redis, call);
}

static void on_reply(redisAsyncContext *context, void *data, void *privdata)
{
    const redisReply *reply = data;
    struct call *call = privdata;
    struct redis *redis = call->redis;

    call->in_wire--;
    if (!redis_begin_reply(call, reply))
        return;
    if (reply->type != REDIS_REPLY_ERROR)
        redis_answer(call, 0, reply, NULL);
    else
        redis_refused(redis, call, reply);
    redis_end_reply(redis);
}

/* ---- the connection ---- */

static void connect_later(struct redis *redis)
{
    int64_t wait = redis->backoff_ms;

    redis->backoff_ms = MIN(wait * 2, (int64_t)BACKOFF_LAST_MS);
    redis->state = REDIS_WAITING;
    /* anything between half and the whole: servers are not stormed when they are back */
    redis->state_until_ms =
        now_ms() + wait / 2 + (int64_t)(random_next(&redis->random) % (uint64_t)(wait / 2 + 1));
    arm(redis);
}

/* What is to be made again goes to the head of the queue, in its order; ret_lost gets what must not be. */
static void sort_out(struct redis *redis, struct list *ret_lost)
{
    struct list back = LIST_INIT(back);

    list_splice_back(&back, &redis->again);
    list_splice_back(&back, &redis->queue);
    LIST_FOREACH(call, &back, struct call, node) {
        bool doubtful = call->written && !call->sent_away && !(call->flags & REDIS_AGAIN);
        call->written = call->sent_away = false;
        list_remove(&call->node);
        list_push_back(doubtful ? ret_lost : &redis->queue, &call->node);
    }
}

static void drop_link(struct redis *redis)
{
    struct link *link = STEAL(redis->link);

    redis->loaded_count = 0;
    redis->open = NULL;
    redis->holding = redis->reconnect = false;
    redis->resume_ms = 0;
    link_close(link); /* flying calls come to `again` by on_reply(NULL) */
    list_splice_back(&redis->again, &redis->flying);
}

void redis_lost(struct redis *redis, const struct mandor_err *err)
{
    bool was_up = redis->state == REDIS_UP;
    struct list lost = LIST_INIT(lost);

    if (err != NULL)
        redis->err = *err;
    drop_link(redis);
    connect_later(redis);
    if (was_up)
        redis->backoff_ms = MAX(redis->backoff_ms, (int64_t)BACKOFF_FIRST_MS);
    log_debug("redis", "%s: down: %s", redis->url.text, redis->err.msg);
    sort_out(redis, &lost);
    /* MOVED is no failure to connect, nor is it one to lose a connection */
    bool over = redis->options.once && !redis->moved && !was_up;
    if (over) {
        list_splice_back(&lost, &redis->queue);
        redis->state = REDIS_IDLE;
    }
    redis->depth++;
    while (!list_empty(&lost)) {
        struct call *call = LIST_ENTRY(lost.next, struct call, node);
        if (over)
            fail_waiting(redis, call);
        else
            fail(redis, call, -ECONNRESET, "the connection was lost before the answer");
    }
    redis->depth--;
    if (was_up && redis->options.on_down != NULL && !redis->closing)
        redis->options.on_down(redis->options.arg, &redis->err);
}

/* A reply is in: go on, or do what `holding` waited for. */
static void landed(struct redis *redis)
{
    struct list none = LIST_INIT(none);

    if (redis->depth > 0 || redis->closing || !redis->holding || !list_empty(&redis->flying))
        return;
    sort_out(redis, &none); /* all of `again` was sent away: nothing is in doubt */
    if (redis->reconnect) {
        if (redis->moved)
            redis->backoff_ms = 1; /* it is known where to go */
        redis_lost(redis, NULL);
    } else if (redis->hold_ms > 0) {
        redis->resume_ms = now_ms() + redis->hold_ms;
        arm(redis);
    } else {
        redis->holding = false;
        flush(redis);
    }
}

void redis_ready(struct redis *redis)
{
    redis->state = REDIS_UP;
    redis->backoff_ms = BACKOFF_FIRST_MS;
    redis->moved = false;
    err_clear(&redis->err);
    log_debug("redis", "%s: up", redis->url.text);
    if (redis->options.on_up != NULL)
        redis->options.on_up(redis->options.arg);
    flush(redis);
    arm(redis);
}

/* ---- writing ---- */

static int write_call(struct redis *redis, struct call *call)
{
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";

    if (call->txn != NULL) {
        redis_transaction_write(redis, call);
        return 0;
    }
    if (call->script != NULL) {
        int r = send_script(redis, call->script);
        if (r < 0)
            return r;
    }
    if (redis->asking) {
        int r = link_send(redis->link, asking, strlen(asking), on_loaded, NULL);
        if (r < 0)
            return r;
    }
    int r = link_send(redis->link, call->wire, (size_t)call->len, on_reply, call);
    call->in_wire += r == 0;
    return r;
}

static void flush(struct redis *redis)
{
    while (redis->state == REDIS_UP && !redis->holding && redis->open == NULL &&
           !list_empty(&redis->queue)) {
        struct call *call = LIST_ENTRY(redis->queue.next, struct call, node);
        list_remove(&call->node);
        list_push_back(&redis->flying, &call->node);
        call->written = true;
        call->deadline_ms = MAX(call->deadline_ms, now_ms() + FLY_MS);
        if (write_call(redis, call) < 0) {
            struct mandor_err err;
            (void)err_set(&err, -ENOMEM, FAULT_HOST, "write to redis '%s'", redis->url.text);
            redis_answer(call, -ENOMEM, NULL, &err);
        }
    }
}

/* ---- time ---- */

static void on_timer(uv_timer_t *timer);

static int64_t earliest(const struct list *calls, int64_t at)
{
    LIST_FOREACH(call, calls, struct call, node)
        at = MIN(at, call->deadline_ms);
    return at;
}

/* One timer for everything; a list is looked through only when something may be due. */
static void arm(struct redis *redis)
{
    int64_t at = INT64_MAX;

    if (redis->closing)
        return;
    at = earliest(&redis->queue, earliest(&redis->flying, earliest(&redis->again, at)));
    if (redis->state == REDIS_WAITING || redis->state == REDIS_FINDING ||
        redis->state == REDIS_GREETING)
        at = MIN(at, redis->state_until_ms);
    if (redis->holding && redis->resume_ms > 0)
        at = MIN(at, redis->resume_ms);
    redis->armed_ms = at;
    if (at == INT64_MAX)
        (void)uv_timer_stop(&redis->timer);
    else
        (void)uv_timer_start(&redis->timer, on_timer, (uint64_t)MAX(at - now_ms(), (int64_t)0) + 1,
                             0);
}

static bool overdue(const struct list *calls, int64_t now)
{
    LIST_FOREACH(call, calls, struct call, node)
        if (call->deadline_ms <= now)
            return true;
    return false;
}

static void expire_waiting(struct redis *redis, struct list *calls, int64_t now)
{
    redis->depth++;
    for (bool found = true;
         found;) { /* a callback may add and remove others: start over after each */
        found = false;
        LIST_FOREACH(call, calls, struct call, node) {
            if (call->deadline_ms > now)
                continue;
            fail_waiting(redis, call);
            found = true;
            break;
        }
    }
    redis->depth--;
}

static void on_timer(uv_timer_t *timer)
{
    struct redis *redis = timer->data;
    struct mandor_err err;
    int64_t now = now_ms();

    OBJ_CHECK(redis, REDIS_MAGIC);
    redis->armed_ms = INT64_MAX;
    if (overdue(&redis->flying, now)) {
        (void)err_set(&err, -ETIMEDOUT, FAULT_REMOTE, "redis '%s' does not answer",
                      redis->url.text);
        redis_lost(redis, &err);
    }
    expire_waiting(redis, &redis->queue, now);
    expire_waiting(redis, &redis->again, now);
    if (redis->holding && redis->resume_ms > 0 && redis->resume_ms <= now) {
        redis->holding = false;
        redis->resume_ms = 0;
        flush(redis);
    }
    if (redis->state == REDIS_WAITING && redis->state_until_ms <= now) {
        redis_find(redis);
    } else if ((redis->state == REDIS_FINDING || redis->state == REDIS_GREETING) &&
               redis->state_until_ms <= now) {
        (void)err_set(&err, -ETIMEDOUT, FAULT_REMOTE, "connect to redis '%s'", redis->url.text);
        redis_lost(redis, &err);
    }
    arm(redis);
}

void redis_spoiled(struct redis *redis, struct call *call)
{
    call->deadline_ms = 0;
    arm(redis);
}

/* ---- making calls ---- */

struct call *redis_new_call(struct redis *redis, int flags, int64_t timeout_ms, redis_reply_fn *fn,
                            void *arg)
{
    struct call *call = calloc(1, sizeof *call);

    BUG_ON(call == NULL && fn == NULL);
    if (call == NULL) {
        struct mandor_err err;
        (void)err_set(&err, -ENOMEM, FAULT_HOST, "ask redis '%s'", redis->url.text);
        fn(arg, -ENOMEM, NULL, &err); /* the exception to "never from inside" */
        return NULL;
    }
    list_init(&call->node);
    call->redis = redis;
    call->flags = flags;
    call->deadline_ms = now_ms() + timeout_ms;
    call->wait_until_ms =
        flags & REDIS_IN_TIME ? call->deadline_ms : now_ms() + redis->options.patience_ms;
    call->fn = fn;
    call->arg = arg;
    return call;
}

void redis_submit_call(struct redis *redis, struct call *call)
{
    call->redis = redis;
    if (call->flags & REDIS_FIRST)
        list_push_front(&redis->queue, &call->node);
    else
        list_push_back(&redis->queue, &call->node);
    bool idle = redis->state == REDIS_IDLE;
    if (idle) {
        redis->state = REDIS_WAITING;
        redis->state_until_ms = now_ms();
    }
    int64_t deadline_ms = call->deadline_ms;
    flush(redis);
    if (deadline_ms < redis->armed_ms || idle)
        arm(redis);
}

static void submit(struct redis *redis, struct call *call, char *wire, long long len)
{
    OBJ_CHECK(redis, REDIS_MAGIC);
    BUG_ON(redis->closing);
    if (len < 0) {
        struct mandor_err err;
        (void)err_set(&err, -ENOMEM, FAULT_HOST, "ask redis '%s'", redis->url.text);
        redis_answer(call, -ENOMEM, NULL, &err);
        return;
    }
    call->wire = wire;
    call->len = len;
    redis_submit_call(redis, call);
}

void redis_call(struct redis *redis, int flags, int64_t timeout_ms, size_t argc,
                const char *const *argv, const size_t *lens, redis_reply_fn *fn, void *arg)
{
    struct call *call = redis_new_call(redis, flags, timeout_ms, fn, arg);
    char *wire = NULL;

    if (call == NULL)
        return;
    long long len = redisFormatCommandArgv(&wire, (int)argc, (const char **)(uintptr_t)argv, lens);
    submit(redis, call, wire, len);
}

void redis_callf(struct redis *redis, int flags, int64_t timeout_ms, redis_reply_fn *fn, void *arg,
                 const char *format, ...)
{
    struct call *call = redis_new_call(redis, flags, timeout_ms, fn, arg);
    char *wire = NULL;
    va_list args;

    if (call == NULL)
        return;
    va_start(args, format);
    long long len = redisvFormatCommand(&wire, format, args);
    va_end(args);
    submit(redis, call, wire, len);
}

#define EVAL_HEAD 3

void redis_eval(struct redis *redis, struct redis_script *script, int flags, int64_t timeout_ms,
                size_t key_count, size_t argc, const char *const *argv, const size_t *lens,
                redis_reply_fn *fn, void *arg)
{
    struct call *call = redis_new_call(redis, flags, timeout_ms, fn, arg);
    char count[24], *wire = NULL;
    const char **all = calloc(argc + EVAL_HEAD, sizeof *all);
    size_t *all_lens = calloc(argc + EVAL_HEAD, sizeof *all_lens);
    long long len = -1;

    if (call == NULL)
        goto done;
    redis_script_sha(script);
    call->script = script;
    if (all != NULL && all_lens != NULL) {
        (void)snprintf(count, sizeof count, "%zu", key_count);
        all[0] = "EVALSHA";
        all[1] = script->sha;
        all[2] = count;
        for (size_t i = 0; i < argc + EVAL_HEAD; i++) {
            if (i >= EVAL_HEAD)
                all[i] = argv[i - EVAL_HEAD];
            all_lens[i] = i >= EVAL_HEAD && lens != NULL ? lens[i - EVAL_HEAD] : strlen(all[i]);
        }
        len = redisFormatCommandArgv(&wire, (int)(argc + EVAL_HEAD), all, all_lens);
    }
    submit(redis, call, wire, len);
done:
    free(all);
    free(all_lens);
}

/* ---- life ---- */

int redis_new(uv_loop_t *loop, const struct redis_url *url, const struct redis_options *options,
              struct redis **ret, struct mandor_err *err)
{
    int r = url->tls ? link_check_tls(err) : 0;
    if (r < 0)
        return r;
    struct redis *redis = calloc(1, sizeof *redis);
    if (redis == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open redis");

    redis->magic = REDIS_MAGIC;
    redis->loop = loop;
    redis->options = *options;
    redis->backoff_ms = BACKOFF_FIRST_MS;
    redis->connect_ms = options->connect_ms > 0 ? options->connect_ms : CONNECT_MS;
    redis->random = random_seed();
    redis->armed_ms = INT64_MAX;
    list_init(&redis->queue);
    list_init(&redis->flying);
    list_init(&redis->again);
    if (redis_url_copy(url, &redis->url) < 0) {
        redis_url_done(&redis->url);
        free(redis);
        return err_set(err, -ENOMEM, FAULT_HOST, "open redis");
    }
    (void)uv_timer_init(loop, &redis->timer);
    redis->timer.data = redis;
    redis->state = REDIS_WAITING; /* begins in the next turn */
    redis->state_until_ms = now_ms();
    if (options->client_name != NULL) {
        (void)snprintf(redis->client_name, sizeof redis->client_name, "%s", options->client_name);
        for (char *p = redis->client_name; *p != '\0'; p++)
            if (*p <= ' ' || *p > '~')
                *p = '-';
    }
    arm(redis);
    *ret = redis;
    return 0;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct redis *redis = handle->data;
    void (*on_closed)(void *arg) = redis->on_closed;
    void *arg = redis->closed_arg;

    redis_url_done(&redis->url);
    for (size_t i = 0; i < redis->channel_count; i++)
        free(redis->channels[i]);
    free(redis->channels);
    free(redis->target_host);
    free(redis->evicts);
    OBJ_FINI(redis);
    free(redis);
    if (on_closed != NULL)
        on_closed(arg);
}

void redis_close(struct redis *redis, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(redis, REDIS_MAGIC);
    BUG_ON(redis->closing);
    redis->on_closed = on_closed;
    redis->closed_arg = arg;
    redis->closing = true;
    if (redis->ask != NULL)
        redis_close(STEAL(redis->ask), NULL, NULL);
    drop_link(redis);
    redis->state = REDIS_IDLE;
    list_splice_back(&redis->again, &redis->queue);
    list_splice_back(&redis->again, &redis->flying);
    while (!list_empty(&redis->again))
        fail(redis, LIST_ENTRY(redis->again.next, struct call, node), -ECANCELED, "closed");
    (void)uv_timer_stop(&redis->timer);
    uv_close((uv_handle_t *)&redis->timer, on_timer_closed);
}

int redis_subscribe(struct redis *redis, const char *channel)
{
    char **grown = realloc(redis->channels, (redis->channel_count + 1) * sizeof *grown);

    if (grown == NULL)
        return -ENOMEM;
    redis->channels = grown;
    grown[redis->channel_count] = strdup(channel);
    if (grown[redis->channel_count] == NULL)
        return -ENOMEM;
    redis->channel_count++;
    if (redis->state == REDIS_UP)
        redis_send_subscribe(redis, redis->channel_count - 1);
    return 0;
}

bool redis_is_up(const struct redis *redis)
{
    return redis->state == REDIS_UP && !redis->holding;
}

bool redis_is_connected(const struct redis *redis)
{
    return redis->state == REDIS_UP && !redis->reconnect;
}

int redis_version(const struct redis *redis)
{
    return redis->version;
}

const char *redis_software(const struct redis *redis)
{
    return redis->software;
}

const char *redis_evicts(const struct redis *redis)
{
    return redis->evicts;
}

const char *redis_text(const struct redis *redis)
{
    return redis->url.text;
}

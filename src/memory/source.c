/* source.c - reads what the sinks on Redis have written, and any other value: contract in stream/source.h.
 *
 *    ?key=, ?hash=    the value, in pieces; that it stayed the same one meanwhile is known at the end
 *    ?stream=         the newest attempt that has its `eof` entry (of ?job=ID, where several share the stream): entries in their order, each
 *                     sequence number there, length and checksum as the eof entry says
 *    … follow         the attempt that was written to last, from its first entry to its eof; a later attempt that begins meanwhile starts over
 */
#include "stream/source.h"

#include <stdio.h>
#include <xxhash.h>

#include "base/buf.h"
#include "base/log.h"
#include "memory/parts.h"
#include "redis/redis.h"
#include "redis/target.h"

#define REACH_MS INT64_C(10000) /* the first time, as a sink is given to open */
#define CALL_MS  INT64_C(30000)
#define PATIENCE_MS \
    INT64_C(52500) /* with a server that is full or loads its data: that of a sink, by default */
#define VALUE_PIECE (256 << 10)
#define RANGE_COUNT "16"
#define FOLLOW_MS   100
#define ID_SIZE     48

struct source {
    uv_loop_t *loop;
    struct redis *redis;
    struct target target;
    struct source_events events;
    void *arg;
    bool follow, closed, timer_open;
    uv_timer_t timer; /* follow: look again; and what must not come from inside of a call */
    void (*on_timer)(struct source *source);
    /* What was read and not taken yet. */
    struct buf pending;
    size_t at;
    void (*then)(struct source *source); /* when all of it was taken */
    /* A value. */
    int64_t off;
    unsigned connection, watched; /* their numbers; 0 = the value is not watched */
    /* A stream. */
    char after[ID_SIZE];   /* the last entry that was looked at */
    char last_id[ID_SIZE]; /* of the eof entry */
    char *job;             /* NULL = not chosen yet */
    int64_t attempt, seq;  /* chosen; the entry that is next */
    int64_t bytes;         /* delivered */
    XXH3_state_t *hash;
    bool complete; /* its eof was reached and is right */
};

static void end(struct source *source, int result, const struct mandor_err *err)
{
    source->events.on_end(source->arg, result, err); /* may close it */
}

static void fail(struct source *source, int code, const char *what)
{
    struct mandor_err err;

    (void)err_say(&err, code, code == -ENOENT ? FAULT_CALLER : FAULT_REMOTE, "'%s': %s",
                  source->target.url.text, what);
    end(source, code, &err);
}

static int64_t call_ms(const struct source *source)
{
    return source->connection == 0 ? REACH_MS : CALL_MS;
}

/* ---- delivering ---- */

/* Hand on what is pending; then goes on with the next. */
static void deliver(struct source *source)
{
    while (source->at < source->pending.len) {
        size_t len = MIN(source->pending.len - source->at, SOURCE_PIECE_MAX);
        if (!source->events.on_bytes(source->arg, source->pending.data + source->at, len))
            return; /* resume() comes back here */
        source->at += len;
    }
    buf_clear(&source->pending);
    source->at = 0;
    if (source->then != NULL) {
        void (*then)(struct source * source) = STEAL(source->then);
        then(source);
    }
}

static bool failed(struct source *source, int result, const struct mandor_err *err)
{
    if (source->closed || result == -ECANCELED)
        return true;
    if (result < 0)
        end(source, result, err);
    return result < 0;
}

/* ---- a value: in one piece, or in several while WATCH holds, so that they are of one value ---- */

static void read_value(struct source *source);

static void on_nothing(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    (void)arg, (void)result, (void)reply, (void)err; /* EXEC behind it says it */
}

/* Over another connection nobody watches any more. */
static bool is_watched(struct source *source)
{
    if (source->watched == 0 || source->connection == source->watched)
        return true;
    fail(source, -EIO, "the connection was lost; whether it was changed meanwhile is unknown");
    return false;
}

static void on_unchanged(void *arg, int result, const redisReply *reply,
                         const struct mandor_err *err)
{
    struct source *source = arg;

    if (failed(source, result, err))
        return;
    if (reply->type == REDIS_REPLY_NIL)
        fail(source, -EIO, "it was changed while it was read");
    else if (is_watched(source))
        end(source, 0, NULL);
}

static void finish_value(struct source *source)
{
    if (source->watched == 0) {
        end(source, 0, NULL);
        return;
    }
    redis_callf(source->redis, 0, call_ms(source), on_nothing, source, "MULTI");
    redis_callf(source->redis, 0, call_ms(source), on_unchanged, source, "EXEC");
}

static void on_exists(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct source *source = arg;

    if (failed(source, result, err))
        return;
    if (reply->integer == 0)
        fail(source, -ENOENT, "there is no such value");
    else
        end(source, 0, NULL);
}

static void on_watched(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct source *source = arg;

    if (failed(source, result, err))
        return;
    source->watched = source->connection;
    read_value(source);
}

static void on_piece(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct source *source = arg;
    bool hash = source->target.kind == TARGET_HASH;

    if (failed(source, result, err) || !is_watched(source))
        return;
    size_t len = reply->type == REDIS_REPLY_STRING ? reply->len : 0;
    bool last = hash || len < VALUE_PIECE;
    if (hash && reply->type == REDIS_REPLY_NIL) {
        fail(source, -ENOENT, "there is no such value");
    } else if (!hash && len == 0 && source->off == 0) {
        redis_callf(source->redis, REDIS_AGAIN, call_ms(source), on_exists, source, "EXISTS %s",
                    source->target.key);
    } else if (!last && source->watched == 0) { /* the piece is read once more */
        redis_callf(source->redis, REDIS_AGAIN, call_ms(source), on_watched, source, "WATCH %s",
                    source->target.key);
    } else if (buf_add(&source->pending, reply->str, len) < 0) {
        fail(source, -ENOMEM, "out of memory");
    } else {
        source->off += (int64_t)len;
        source->then = last ? finish_value : read_value;
        deliver(source);
    }
}

static void read_value(struct source *source)
{
    const struct target *target = &source->target;

    if (target->kind == TARGET_HASH)
        redis_callf(source->redis, REDIS_AGAIN, call_ms(source), on_piece, source, "HGET %s %s",
                    target->key, target->field);
    else
        redis_callf(source->redis, REDIS_AGAIN, call_ms(source), on_piece, source,
                    "GETRANGE %s %lld %lld", target->key, (long long)source->off,
                    (long long)(source->off + VALUE_PIECE - 1));
}

/* ---- entries ---- */

/* The value of a field of an entry, or NULL. */
static const redisReply *field(const redisReply *entry, const char *name)
{
    const redisReply *fields = entry->elements == 2 ? entry->element[1] : NULL;

    for (size_t i = 0; fields != NULL && i + 1 < fields->elements; i += 2)
        if (fields->element[i]->type == REDIS_REPLY_STRING && str_eq(fields->element[i]->str, name))
            return fields->element[i + 1];
    return NULL;
}

static const char *text(const redisReply *entry, const char *name)
{
    const redisReply *value = field(entry, name);

    return value == NULL || value->type != REDIS_REPLY_STRING ? "" : value->str;
}

static int64_t number(const redisReply *entry, const char *name)
{
    char *rest;
    const char *value = text(entry, name);
    long long parsed = strtoll(value, &rest, 10);

    return value[0] == '\0' || *rest != '\0' ? -1 : (int64_t)parsed;
}

static void copy_id(char to[static ID_SIZE], const redisReply *entry)
{
    (void)snprintf(to, ID_SIZE, "%s",
                   entry->elements == 2 && entry->element[0]->type == REDIS_REPLY_STRING
                       ? entry->element[0]->str
                       : "-");
}

/* Is it of the job that is asked for?  ?job=ID names its stdout; "ID.stderr" the other one. */
static bool is_wanted(const struct source *source, const redisReply *entry)
{
    const char *asked = redis_url_param(&source->target.url, "job"), *job = text(entry, "job");

    if (number(entry, "attempt") < 0 || number(entry, "seq") < 0)
        return false; /* somebody else's */
    if (source->job != NULL)
        return str_eq(source->job, job);
    if (asked == NULL)
        return job[0] != '\0';
    size_t len = strlen(asked);
    return strncmp(job, asked, len) == 0 && (job[len] == '\0' || str_eq(job + len, ".stdout"));
}

static int choose(struct source *source, const redisReply *entry)
{
    if (source->job == NULL && (source->job = strdup(text(entry, "job"))) == NULL)
        return -ENOMEM;
    source->attempt = number(entry, "attempt");
    source->seq = source->bytes = 0;
    (void)XXH3_64bits_reset(source->hash);
    return 0;
}

static void check_eof(struct source *source, const redisReply *entry)
{
    char hash[24], what[160];

    (void)snprintf(hash, sizeof hash, "%016" PRIx64, XXH3_64bits_digest(source->hash));
    if (number(entry, "bytes") != source->bytes)
        (void)snprintf(what, sizeof what, "%" PRId64 " bytes, its end says %s", source->bytes,
                       text(entry, "bytes"));
    else if (!str_eq(hash, text(entry, "xxh3")))
        (void)snprintf(what, sizeof what, "checksum %s, its end says %.20s", hash,
                       text(entry, "xxh3"));
    else
        source->complete = true;
    if (!source->complete)
        fail(source, -EBADMSG, what);
}

/* A later attempt of the job that is followed. */
static bool starts_over(const struct source *source, const redisReply *entry)
{
    return source->follow && source->job != NULL && number(entry, "attempt") > source->attempt;
}

/* One entry.  false: it ended the source (failed, or complete). */
static bool take(struct source *source, const redisReply *entry)
{
    const redisReply *data = field(entry, "data");

    copy_id(source->after, entry);
    if (!is_wanted(source, entry))
        return true;
    if (source->job == NULL || starts_over(source, entry)) {
        if (source->job != NULL)
            log_warn(
                "attempt %s of the job begins: what was shown of the one before it does not count",
                text(entry, "attempt"));
        if (choose(source, entry) < 0) {
            fail(source, -ENOMEM, "out of memory");
            return false;
        }
    }
    if (number(entry, "attempt") != source->attempt)
        return true;
    if (number(entry, "seq") != source->seq) {
        fail(source, -EBADMSG, "entries are missing: trimmed, or deleted by a reader");
        return false;
    }
    source->seq++;
    if (field(entry, "eof") != NULL) {
        check_eof(source, entry);
        return false;
    }
    if (data == NULL || data->type != REDIS_REPLY_STRING)
        return true; /* aborted: a later attempt may come */
    (void)XXH3_64bits_update(source->hash, data->str, data->len);
    source->bytes += (int64_t)data->len;
    if (buf_add(&source->pending, data->str, data->len) < 0) {
        fail(source, -ENOMEM, "out of memory");
        return false;
    }
    return true;
}

static void read_entries(struct source *source);

static void finished(struct source *source)
{
    end(source, 0, NULL);
}

static void look_again(struct source *source);

static void on_entries(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct source *source = arg;
    bool more = true;

    if (failed(source, result, err))
        return;
    size_t count = reply->type == REDIS_REPLY_ARRAY ? reply->elements : 0;
    for (size_t i = 0; more && i < count; i++)
        more = take(source, reply->element[i]);
    if (!more && !source->complete)
        return; /* failed: it may be gone */
    if (count == 0 && !source->follow) {
        fail(source, -EIO, "its end is gone");
        return;
    }
    source->then = source->complete ? finished : count == 0 ? look_again : read_entries;
    deliver(source);
}

static void read_entries(struct source *source)
{
    bool first = source->after[0] == '\0';
    char from[ID_SIZE + 1];

    (void)snprintf(from, sizeof from, "%s%s", first ? "" : "(", first ? "-" : source->after);
    redis_callf(source->redis, REDIS_AGAIN, call_ms(source), on_entries, source,
                "XRANGE %s %s + COUNT " RANGE_COUNT, source->target.key, from);
}

static void on_timer(uv_timer_t *timer)
{
    struct source *source = CONTAINER_OF(timer, struct source, timer);

    read_entries(source);
}

static void look_again(struct source *source)
{
    (void)uv_timer_start(&source->timer, on_timer, FOLLOW_MS, 0);
}

/* ---- finding the newest attempt: one that has ended, or to follow, any ---- */

static void find_attempt(struct source *source);

static void on_back(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct source *source = arg;

    if (failed(source, result, err))
        return;
    size_t count = reply->type == REDIS_REPLY_ARRAY ? reply->elements : 0;
    for (size_t i = 0; i < count; i++) {
        const redisReply *entry = reply->element[i];
        copy_id(source->last_id, entry);
        if (!is_wanted(source, entry) || (field(entry, "eof") == NULL && !source->follow))
            continue;
        if (choose(source, entry) < 0)
            fail(source, -ENOMEM, "out of memory");
        else
            read_entries(source);
        return;
    }
    if (count == 0 && source->follow)
        read_entries(source);
    else if (count == 0)
        fail(source, -ENOENT, "there is no attempt that has been committed");
    else
        find_attempt(source);
}

static void find_attempt(struct source *source)
{
    bool first = source->last_id[0] == '\0';
    char from[ID_SIZE + 1];

    (void)snprintf(from, sizeof from, "%s%s", first ? "" : "(", first ? "+" : source->last_id);
    redis_callf(source->redis, REDIS_AGAIN, call_ms(source), on_back, source,
                "XREVRANGE %s %s - COUNT " RANGE_COUNT, source->target.key, from);
}

/* ---- opening and closing ---- */

static void on_timer_closed(uv_handle_t *handle)
{
    struct source *source = CONTAINER_OF(handle, struct source, timer);

    target_done(&source->target);
    buf_done(&source->pending);
    (void)XXH3_freeState(source->hash);
    free(source->job);
    free(source);
}

static void on_redis_closed(void *arg)
{
    struct source *source = arg;

    uv_close((uv_handle_t *)&source->timer, on_timer_closed);
}

static void source_close(struct source *source)
{
    source->closed = true;
    (void)uv_timer_stop(&source->timer);
    if (source->redis != NULL)
        redis_close(STEAL(source->redis), on_redis_closed, source);
    else
        on_redis_closed(source);
}

static void on_up(void *arg)
{
    struct source *source = arg;

    source->connection++;
}

static int set_up(struct source *source, const char *url, struct mandor_err *err)
{
    const struct redis_options options = { .client_name = "mandor-source",
                                           .allow_replica = true,
                                           .patience_ms = PATIENCE_MS,
                                           .on_up = on_up,
                                           .arg = source };

    source->hash = XXH3_createState();
    if (source->hash == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read from Redis");
    (void)XXH3_64bits_reset(source->hash);
    int r = target_parse(url, &source->target, err);
    return r < 0 ? r : redis_new(source->loop, &source->target.url, &options, &source->redis, err);
}

static int source_open(uv_loop_t *loop, const char *url, bool follow,
                       const struct source_events *events, void *arg, struct source **ret,
                       struct mandor_err *err)
{
    struct source *source = calloc(1, sizeof *source);
    if (source == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read from Redis");

    *source = (struct source){ .loop = loop, .events = *events, .arg = arg, .follow = follow };
    (void)uv_timer_init(loop, &source->timer);
    int r = set_up(source, url, err);
    if (r < 0) {
        source_close(source);
        return r;
    }
    if (source->target.kind != TARGET_STREAM)
        read_value(source);
    else
        find_attempt(source);
    *ret = source;
    return 0;
}

const struct source_ops source_redis = { .open = source_open,
                                         .resume = deliver,
                                         .close = source_close };

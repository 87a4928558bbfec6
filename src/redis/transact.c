/* transact.c - redis_transact(): several commands on the wire that are one call, contract in redis.h.
 *
 *     WATCH key │ GET key │ MULTI │ commands … ││ EXEC or DISCARD
 *                    └── its answer: check() ────▲
 *
 * Until the end is written nothing else is: what came behind would be part of it.  That costs no time, for the server answers GET before
 * it has read the commands. */
#include "base/log.h"
#include "redis/redis_int.h"

#define GET_AT 1 /* among the commands */

struct redis_transaction {
    struct wire {
        char *bytes;
        size_t len;
    } * commands;
    size_t count, cap;
    bool failed; /* out of memory */
    redis_check_fn *check;
    /* Since it was written last: */
    size_t answered;
    int checked; /* check's result, 0 = none */
    char *error; /* the first of the server's */
    struct mandor_err err;
};

void redis_transaction_free(struct redis_transaction *txn)
{
    if (txn == NULL)
        return;
    for (size_t i = 0; i < txn->count; i++)
        redisFreeCommand(txn->commands[i].bytes);
    free(txn->commands);
    free(txn->error);
    free(txn);
}

void redis_transaction_add(struct redis_transaction *txn, size_t argc, const char *const *argv,
                           const size_t *lens)
{
    if (txn->count == txn->cap) {
        size_t cap = MAX(txn->cap * 2, (size_t)16);
        struct wire *grown = realloc(txn->commands, cap * sizeof *grown);
        txn->failed = txn->failed || grown == NULL;
        if (grown == NULL)
            return;
        txn->commands = grown;
        txn->cap = cap;
    }
    struct wire *wire = &txn->commands[txn->count];
    long long len =
        redisFormatCommandArgv(&wire->bytes, (int)argc, (const char **)(uintptr_t)argv, lens);
    wire->len = len < 0 ? 0 : (size_t)len;
    txn->count += len >= 0;
    txn->failed = txn->failed || len < 0;
}

struct redis_transaction *redis_transaction_new(const char *key)
{
    struct redis_transaction *txn = calloc(1, sizeof *txn);
    const char *watch[] = { "WATCH", key }, *get[] = { "GET", key }, *multi[] = { "MULTI" };

    if (txn == NULL)
        return NULL;
    redis_transaction_add(txn, ARRAY_LEN(watch), watch, NULL);
    redis_transaction_add(txn, ARRAY_LEN(get), get, NULL);
    redis_transaction_add(txn, ARRAY_LEN(multi), multi, NULL);
    return txn;
}

static void on_part(redisAsyncContext *context, void *data, void *privdata);

void redis_transaction_write(struct redis *redis, struct call *call)
{
    struct redis_transaction *txn = call->txn;

    txn->answered = 0;
    txn->checked = 0;
    free(STEAL(txn->error));
    redis->open = call;
    for (size_t i = 0; i < txn->count; i++) {
        const struct wire *wire = &txn->commands[i];
        if (link_send(redis->link, wire->bytes, wire->len, on_part, call) < 0) {
            redis_spoiled(redis, call);
            return;
        }
        call->in_wire++;
    }
}

static void close_it(struct redis *redis, struct call *call)
{
    static const char exec[] = "*1\r\n$4\r\nEXEC\r\n", discard[] = "*1\r\n$7\r\nDISCARD\r\n";
    const char *end = call->txn->checked == REDIS_EXEC ? exec : discard;

    redis->open = NULL;
    if (link_send(redis->link, end, strlen(end), on_part, call) == 0)
        call->in_wire++;
    else
        redis_spoiled(redis, call);
}

static void decide(struct redis *redis, struct call *call, const redisReply *reply)
{
    struct redis_transaction *txn = call->txn;

    if (txn->error == NULL)
        txn->checked = txn->check(call->arg, reply->str, &txn->err);
    close_it(redis, call);
}

static const char *first_error(const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return reply->str;
    for (size_t i = 0; reply->type == REDIS_REPLY_ARRAY && i < reply->elements; i++)
        if (reply->element[i]->type == REDIS_REPLY_ERROR)
            return reply->element[i]->str;
    return NULL;
}

/* The answer to EXEC or DISCARD. */
static void finish(struct redis *redis, struct call *call, const redisReply *reply)
{
    struct redis_transaction *txn = call->txn;

    if (txn->error == NULL && first_error(reply) != NULL)
        txn->error = strdup(first_error(reply));
    if (txn->error != NULL) {
        const redisReply error = { .type = REDIS_REPLY_ERROR,
                                   .str = txn->error,
                                   .len = strlen(txn->error) };
        redis_refused(redis, call, &error);
    } else if (txn->checked < 0) {
        redis_answer(call, txn->checked, NULL, &txn->err);
    } else if (txn->checked == REDIS_DONE) {
        redis_answer(call, 0, NULL, NULL);
    } else if (txn->checked == REDIS_EXEC && reply->type == REDIS_REPLY_ARRAY) {
        redis_answer(call, 0, reply, NULL);
    } else { /* the key has changed, or one before this one comes again */
        redis_call_again(redis, call);
    }
}

static void on_part(redisAsyncContext *context, void *data, void *privdata)
{
    const redisReply *reply = data;
    struct call *call = privdata;
    struct redis *redis = call->redis;
    struct redis_transaction *txn = call->txn;

    call->in_wire--;
    if (!redis_begin_reply(call, reply))
        return;
    size_t at = txn->answered++;
    if (reply->type == REDIS_REPLY_ERROR && txn->error == NULL && at < txn->count)
        txn->error = strdup(reply->str);
    if (at == GET_AT)
        decide(redis, call, reply);
    else if (at == txn->count)
        finish(redis, call, reply);
    redis_end_reply(redis);
}

void redis_transact(struct redis *redis, struct redis_transaction *adopt, int64_t timeout_ms,
                    redis_check_fn *check, redis_reply_fn *fn, void *arg)
{
    struct call *call = redis_new_call(redis, REDIS_AGAIN, timeout_ms, fn, arg);

    if (call == NULL) {
        redis_transaction_free(adopt);
        return;
    }
    adopt->check = check;
    call->txn = adopt;
    if (adopt->failed) {
        struct mandor_err err;
        (void)err_set(&err, -ENOMEM, FAULT_HOST, "ask redis '%s'", redis->url.text);
        redis_answer(call, -ENOMEM, NULL, &err);
        return;
    }
    redis_submit_call(redis, call);
}

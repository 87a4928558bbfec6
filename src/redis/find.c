/* find.c - from the URL to a connection that has been greeted: sentinels asked, name looked up, AUTH, SELECT, ROLE. */
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "redis/redis_int.h"

static int tell(struct redis *redis, size_t argc, const char **argv, redisCallbackFn *fn)
{
    size_t lens[4];
    char *wire = NULL;

    for (size_t i = 0; i < argc; i++)
        lens[i] = strlen(argv[i]);
    long long len = redisFormatCommandArgv(&wire, (int)argc, argv, lens);
    if (len < 0)
        return -ENOMEM;
    int r = link_send(redis->link, wire, (size_t)len, fn, redis);
    redisFreeCommand(wire);
    return r;
}

static void refused(struct redis *redis, int code, const char *step, const char *text, size_t len)
{
    struct mandor_err err;

    (void)err_say(&err, code, FAULT_REMOTE, "redis '%s': %s%.*s", redis->url.text, step,
                  redis_error_len(text, len), text);
    redis_lost(redis, &err);
}

/* ---- messages ---- */

static void on_message(redisAsyncContext *context, void *data, void *privdata)
{
    const redisReply *reply = data;
    struct redis *redis = privdata;

    if (reply == NULL || redis->closing || reply->type != REDIS_REPLY_ARRAY ||
        reply->elements != 3 || reply->element[0]->str == NULL ||
        !str_eq(reply->element[0]->str, "message") || reply->element[1]->str == NULL ||
        reply->element[2]->str == NULL || redis->options.on_message == NULL)
        return;
    redis->options.on_message(redis->options.arg, reply->element[1]->str, reply->element[2]->str,
                              reply->element[2]->len);
}

void redis_send_subscribe(struct redis *redis, size_t index)
{
    const char *argv[] = { "SUBSCRIBE", redis->channels[index] };

    if (tell(redis, ARRAY_LEN(argv), argv, on_message) < 0)
        log_debug("redis", "%s: subscribe: out of memory", redis->url.text);
}

/* ---- the greeting: written at once, answered in order ---- */

/* A reply of the greeting; NULL when the connection has gone, which on_down tells of. */
static struct redis *greeting(const redisReply *reply, void *privdata, const char *step)
{
    struct redis *redis = privdata;

    OBJ_CHECK(redis, REDIS_MAGIC);
    if (reply == NULL || redis->closing || redis->state != REDIS_GREETING)
        return NULL;
    if (reply->type == REDIS_REPLY_ERROR && step != NULL) {
        refused(redis, redis_error_code(reply->str, reply->len), step, reply->str, reply->len);
        return NULL;
    }
    return redis;
}

static void greeted(struct redis *redis)
{
    if (--redis->greetings > 0)
        return;
    for (size_t i = 0; i < redis->channel_count; i++)
        redis_send_subscribe(redis, i);
    redis_ready(redis);
}

static void on_auth(redisAsyncContext *context, void *reply, void *privdata)
{
    struct redis *redis = greeting(reply, privdata, "log in: ");
    if (redis != NULL)
        greeted(redis);
}

static void on_named(redisAsyncContext *context, void *reply, void *privdata)
{
    struct redis *redis = greeting(reply, privdata, NULL); /* a name is a courtesy */
    const redisReply *answer = reply;
    if (redis == NULL)
        return;
    if (answer->type == REDIS_REPLY_ERROR && strncmp(answer->str, "NOAUTH", 6) == 0)
        refused(redis, -EACCES, "", answer->str, answer->len);
    else
        greeted(redis);
}

static void on_selected(redisAsyncContext *context, void *reply, void *privdata)
{
    struct redis *redis = greeting(reply, privdata, "select the database: ");
    if (redis != NULL)
        greeted(redis);
}

static void on_role(redisAsyncContext *context, void *data, void *privdata)
{
    const redisReply *reply = data;
    /* ROLE may be forbidden: then READONLY will tell. */
    struct redis *redis = greeting(reply, privdata, NULL);
    if (redis == NULL)
        return;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 && reply->element[0]->str != NULL &&
        str_eq(reply->element[0]->str, "slave")) {
        refused(redis, -EROFS, "it is a replica, expected the master", "", 0);
        return;
    }
    greeted(redis);
}

/* The text behind "key:" in INFO's reply, to the end of its line; malloc'ed or NULL. */
static char *info(const redisReply *reply, const char *key)
{
    const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, key) : NULL;

    return at == NULL ? NULL : strndup(at + strlen(key), strcspn(at + strlen(key), "\r\n"));
}

static void on_server(redisAsyncContext *context, void *data, void *privdata)
{
    struct redis *redis = greeting(data, privdata, NULL);
    int major = 0, minor = 0, patch = 0;

    if (redis == NULL)
        return;
    SCOPED_FREE char *version = info(data, "\nredis_version:");
    SCOPED_FREE char *valkey = info(data, "\nvalkey_version:");
    if (version != NULL && sscanf(version, "%d.%d.%d", &major, &minor, &patch) >= 2)
        redis->version = major * 10000 + minor * 100 + patch;
    (void)snprintf(redis->software, sizeof redis->software, "%s %s",
                   valkey != NULL ? "Valkey" : "Redis",
                   valkey != NULL    ? valkey
                   : version != NULL ? version
                                     : "of an unknown version");
    greeted(redis);
}

static void on_memory(redisAsyncContext *context, void *data, void *privdata)
{
    struct redis *redis = greeting(data, privdata, NULL);

    if (redis == NULL)
        return;
    free(redis->evicts);
    redis->evicts = info(data, "\nmaxmemory_policy:");
    if (redis->evicts != NULL && str_eq(redis->evicts, "noeviction")) {
        free(redis->evicts);
        redis->evicts = NULL;
    }
    greeted(redis);
}

static int add_greeting(struct redis *redis, size_t argc, const char **argv, redisCallbackFn *fn)
{
    int r = tell(redis, argc, argv, fn);

    redis->greetings += r == 0;
    return r;
}

static int greet(struct redis *redis)
{
    const struct redis_url *url = &redis->url;
    char db[16];
    int r = 0;

    redis->greetings = 0;
    if (url->password != NULL && url->user != NULL)
        r = add_greeting(redis, 3, (const char *[]){ "AUTH", url->user, url->password }, on_auth);
    else if (url->password != NULL)
        r = add_greeting(redis, 2, (const char *[]){ "AUTH", url->password }, on_auth);
    if (r == 0)
        r = add_greeting(
            redis, 3,
            (const char *[]){ "CLIENT", "SETNAME",
                              redis->client_name[0] != '\0' ? redis->client_name : "mandor" },
            on_named);
    (void)snprintf(db, sizeof db, "%d", url->db);
    if (r == 0 && url->db != 0)
        r = add_greeting(redis, 2, (const char *[]){ "SELECT", db }, on_selected);
    if (r == 0 && !redis->options.allow_replica)
        r = add_greeting(redis, 1, (const char *[]){ "ROLE" }, on_role);
    if (r == 0)
        r = add_greeting(redis, 2, (const char *[]){ "INFO", "server" }, on_server);
    if (r == 0)
        r = add_greeting(redis, 2, (const char *[]){ "INFO", "memory" }, on_memory);
    return r;
}

/* ---- sentinels ---- */

static void on_master(redisAsyncContext *context, void *data, void *privdata)
{
    const redisReply *reply = data;
    struct redis *redis = privdata;

    OBJ_CHECK(redis, REDIS_MAGIC);
    if (reply == NULL || redis->closing || redis->state != REDIS_FINDING || !redis->at_sentinel)
        return;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->str == NULL || reply->element[1]->str == NULL) {
        if (reply->type == REDIS_REPLY_ERROR)
            refused(redis, -EPROTO, "sentinel: ", reply->str, reply->len);
        else
            refused(redis, -ENOENT, "the sentinel does not know a master of that name", "", 0);
        return;
    }
    free(redis->target_host);
    redis->target_host = strdup(reply->element[0]->str);
    redis->target_port = atoi(reply->element[1]->str);
    redis->at_sentinel = false;
    link_close(STEAL(redis->link));
    redis_find(redis);
}

static int ask_sentinel(struct redis *redis)
{
    const char *password = redis_url_param(&redis->url, "sentinel_password");
    int r = password == NULL ? 0 : tell(redis, 2, (const char *[]){ "AUTH", password }, on_named);

    if (r == 0)
        r = tell(
            redis, 3,
            (const char *[]){ "SENTINEL", "get-master-addr-by-name", redis->url.sentinel_name },
            on_master);
    return r;
}

/* ---- the link ---- */

static void on_up(void *arg)
{
    struct redis *redis = arg;

    OBJ_CHECK(redis, REDIS_MAGIC);
    if (!redis->at_sentinel)
        redis->state = REDIS_GREETING;
    if ((redis->at_sentinel ? ask_sentinel(redis) : greet(redis)) < 0)
        redis->state_until_ms = clock_mono_ms(); /* out of memory: the timer ends this attempt */
}

static void on_down(void *arg, const struct mandor_err *err)
{
    struct redis *redis = arg;

    OBJ_CHECK(redis, REDIS_MAGIC);
    if (redis->state != REDIS_UP && !redis->asking) { /* that node is gone too: back to the URL */
        free(redis->target_host);
        redis->target_host = NULL;
        redis->moved = false;
    }
    redis_lost(redis, err);
}

void redis_find(struct redis *redis)
{
    static const struct link_events events = { .on_up = on_up, .on_down = on_down };
    const struct redis_url *url = &redis->url;
    struct link_place place = { .unix_path = url->unix_path, .tls = url->tls ? url : NULL };
    struct mandor_err err;
    bool found = redis->target_host != NULL && (!url->sentinel || redis->state == REDIS_FINDING);

    redis->at_sentinel = false;
    if (url->unix_path == NULL && found) {
        place.host = redis->target_host;
        place.port = redis->target_port;
    } else if (url->unix_path == NULL) {
        const struct redis_host *host = &url->hosts[redis->host_turn++ % url->host_count];
        place.host = host->name;
        place.port = host->port;
        redis->at_sentinel = url->sentinel;
    }
    if (redis->state != REDIS_FINDING)
        redis->state_until_ms = clock_mono_ms() + redis->connect_ms;
    redis->state = REDIS_FINDING;
    if (link_new(redis->loop, &place, &events, redis, &redis->link, &err) < 0)
        redis_lost(redis, &err);
}

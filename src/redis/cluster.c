/* cluster.c - MOVED and ASK: where another node of a cluster says that the keys are. */
#include "base/log.h"
#include "redis/redis_int.h"

/* "MOVED 866 10.0.0.7:6379", "ASK 866 [::1]:7001" or ":6379" (the host that we asked): *ret_host is malloc'ed. */
static int parse_place(const struct redis *redis, const char *text, char **ret_host, int *ret_port)
{
    const char *place = strrchr(text, ' ');
    const char *colon = place != NULL ? strrchr(place, ':') : NULL;
    char *end = NULL;

    if (colon == NULL)
        return -EPROTO;
    place++;
    long port = strtol(colon + 1, &end, 10);
    if (*end != '\0' || port < 1 || port > 65535)
        return -EPROTO;
    size_t len = (size_t)(colon - place);
    if (len >= 2 && place[0] == '[' && place[len - 1] == ']') {
        place++;
        len -= 2;
    }
    const char *same = redis->target_host != NULL  ? redis->target_host
                       : redis->url.host_count > 0 ? redis->url.hosts[0].name
                                                   : "127.0.0.1";
    *ret_host = len > 0 ? strndup(place, len) : strdup(same);
    *ret_port = (int)port;
    return *ret_host != NULL ? 0 : -ENOMEM;
}

void redis_note_moved(struct redis *redis, const char *text)
{
    char *host = NULL;
    int port = 0;

    (void)err_say(&redis->err, -EROFS, FAULT_REMOTE, "redis '%s': %.100s", redis->url.text, text);
    if (parse_place(redis, text, &host, &port) < 0)
        return; /* the next of the URL's hosts is tried */
    log_debug("redis", "%s: %s", redis->url.text, text);
    free(redis->target_host);
    redis->target_host = host;
    redis->target_port = port;
    redis->moved = true;
}

static int open_node(struct redis *redis, const char *host, int port)
{
    struct redis_url url;
    struct redis_options options = { .client_name = redis->client_name,
                                     .connect_ms = redis->connect_ms,
                                     .patience_ms = redis->options.patience_ms };
    int r = redis_url_copy(&redis->url, &url);

    if (r == 0)
        r = redis_new(redis->loop, &url, &options, &redis->ask, NULL);
    redis_url_done(&url);
    if (r < 0)
        return r;
    redis->ask->asking = true;
    redis->ask->target_host = strdup(host);
    redis->ask->target_port = port;
    return redis->ask->target_host != NULL ? 0 : -ENOMEM;
}

bool redis_ask_elsewhere(struct redis *redis, struct call *call, const char *text)
{
    char *host = NULL;
    int port = 0;

    if (redis->asking || parse_place(redis, text, &host, &port) < 0)
        return false;
    bool same = redis->ask != NULL && redis->ask->target_host != NULL &&
                str_eq(redis->ask->target_host, host) && redis->ask->target_port == port;
    if (!same && redis->ask != NULL)
        redis_close(STEAL(redis->ask), NULL, NULL);
    if (!same && open_node(redis, host, port) < 0) {
        if (redis->ask != NULL)
            redis_close(STEAL(redis->ask), NULL, NULL);
        free(host);
        return false;
    }
    free(host);
    list_remove(&call->node);
    call->written = false;
    call->tries++;
    redis_submit_call(redis->ask, call);
    return true;
}

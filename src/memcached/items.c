/* items.c - contract in items.h, on libmemcached. */
#include "memcached/items.h"

#include <libmemcached/memcached.h>
#include <stdio.h>
#include <xxhash.h>

#include "base/json.h"

#define PORT_DEFAULT 11211
#define TRIES        3 /* of what may be carried out twice, when the connection breaks */
#define PAUSE_MS     50

struct items {
    memcached_st *server;
    char *host, *key;
    int port;
    int64_t wait_ms;
    bool connected; /* the server has answered over this connection */
};

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Percent-decoded; NULL when a sequence is none or a byte may not stand in a key. */
static char *decode(const char *text)
{
    char *out = malloc(strlen(text) + 1), *to = out;

    for (const char *p = text; out != NULL && *p != '\0'; p++) {
        int c = (unsigned char)*p;
        if (c == '%') {
            int high = hex(p[1]), low = high < 0 ? -1 : hex(p[2]);
            c = low < 0 ? 0 : high * 16 + low;
            p += 2;
        }
        if (c <= 0x20 || c == 0x7f) {
            free(out);
            return NULL;
        }
        *to++ = (char)c;
    }
    if (out != NULL)
        *to = '\0';
    return out;
}

static int bad(const char *rest, struct mandor_err *err)
{
    return err_set(
        err, -EINVAL, FAULT_CALLER,
        "'memcached:%.80s': expected memcached://HOST[:PORT]/KEY, the key of at most %zu "
        "bytes without blanks",
        rest, ITEM_KEY_MAX);
}

static int parse(struct items *items, const char *rest, struct mandor_err *err)
{
    const char *host = rest + 2, *slash = strncmp(rest, "//", 2) == 0 ? strchr(host, '/') : NULL;
    char *end;

    if (slash == NULL || slash == host || slash[1] == '\0')
        return bad(rest, err);
    bool bracketed = host[0] == '[';
    items->host = bracketed ? strndup(host + 1, (size_t)(slash - host) - 1)
                            : strndup(host, (size_t)(slash - host));
    items->key = decode(slash + 1);
    items->port = PORT_DEFAULT;
    if (items->host == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open 'memcached:%s'", rest);
    if (items->key == NULL || strlen(items->key) > ITEM_KEY_MAX)
        return bad(rest, err);
    char *colon = strrchr(items->host, bracketed ? ']' : ':');
    if (bracketed && colon != NULL) {
        *colon++ = '\0';
        colon = *colon == ':' ? colon : NULL;
    }
    if (colon == NULL)
        return bracketed && strchr(items->host, ']') != NULL ? bad(rest, err) : 0;
    *colon = '\0';
    long port = strtol(colon + 1, &end, 10);
    if (colon[1] == '\0' || *end != '\0' || port < 1 || port > 65535)
        return bad(rest, err);
    items->port = (int)port;
    return 0;
}

static void set_waits(struct items *items)
{
    uint64_t wait = (uint64_t)items->wait_ms;

    (void)memcached_behavior_set(items->server, MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT, wait);
    (void)memcached_behavior_set(items->server, MEMCACHED_BEHAVIOR_POLL_TIMEOUT, wait);
    (void)memcached_behavior_set(items->server, MEMCACHED_BEHAVIOR_SND_TIMEOUT, wait * 1000);
    (void)memcached_behavior_set(items->server, MEMCACHED_BEHAVIOR_RCV_TIMEOUT, wait * 1000);
}

void items_wait_ms(struct items *items, int64_t ms)
{
    items->wait_ms = MAX(MIN(ms, (int64_t)ITEM_WAIT_MS), INT64_C(1));
    set_waits(items);
}

/* A new struct for a new connection: the library shuns a server for a while whose connection broke. */
static int set_server(struct items *items)
{
    memcached_st *server = memcached_create(NULL);

    if (server == NULL ||
        memcached_server_add(server, items->host, (in_port_t)items->port) != MEMCACHED_SUCCESS) {
        memcached_free(server);
        return -ENOMEM;
    }
    (void)memcached_behavior_set(server, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1);
    (void)memcached_behavior_set(server, MEMCACHED_BEHAVIOR_NO_BLOCK, 0);
    (void)memcached_behavior_set(server, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
    memcached_free(items->server);
    items->server = server;
    items->connected = false;
    set_waits(items);
    return 0;
}

int items_new(const char *rest, struct items **ret, struct mandor_err *err)
{
    struct items *items = calloc(1, sizeof *items);

    if (items == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open 'memcached:%s'", rest);
    items->wait_ms = ITEM_WAIT_MS;
    int r = parse(items, rest, err);
    if (r == 0 && (r = set_server(items)) < 0)
        (void)err_set(err, r, FAULT_HOST, "open 'memcached:%s'", rest);
    if (r < 0) {
        items_free(items);
        return r;
    }
    *ret = items;
    return 0;
}

void items_free(struct items *items)
{
    if (items == NULL)
        return;
    if (items->server != NULL)
        memcached_free(items->server);
    free(items->host);
    free(items->key);
    free(items);
}

const char *items_key(const struct items *items)
{
    return items->key;
}

uint64_t items_device(const struct items *items)
{
    return XXH3_64bits(items->host, strlen(items->host)) ^ (uint64_t)items->port;
}

static bool is_lost(memcached_return_t r)
{
    return r == MEMCACHED_CONNECTION_FAILURE || r == MEMCACHED_ERRNO ||
           r == MEMCACHED_READ_FAILURE || r == MEMCACHED_UNKNOWN_READ_FAILURE ||
           r == MEMCACHED_WRITE_FAILURE || r == MEMCACHED_PARTIAL_READ ||
           r == MEMCACHED_SERVER_TEMPORARILY_DISABLED || r == MEMCACHED_SERVER_MARKED_DEAD;
}

static int report(const struct items *items, memcached_return_t r, const char *what,
                  const char *key, struct mandor_err *err)
{
    int code = r == MEMCACHED_NOTFOUND                           ? -ENOENT
               : r == MEMCACHED_E2BIG                            ? -EFBIG
               : r == MEMCACHED_TIMEOUT                          ? -ETIMEDOUT
               : r == MEMCACHED_SERVER_MEMORY_ALLOCATION_FAILURE ? -ENOSPC
                                                                 : -EIO;

    if (is_lost(r)) {
        int cause = memcached_last_error_errno(items->server); /* 0 where it could not connect */
        code = items->connected ? -ECONNRESET : cause > 0 ? -cause : -ECONNREFUSED;
        (void)err_set(err, code, FAULT_REMOTE, "memcached '%s:%d'", items->host, items->port);
    } else {
        (void)err_say(err, code, FAULT_REMOTE, "memcached '%s:%d': %s '%.100s': %s", items->host,
                      items->port, what, key, memcached_strerror(items->server, r));
    }
    return code;
}

/* Is it worth asking the same again, over a new connection? */
static bool again(struct items *items, memcached_return_t r, int *tries)
{
    items->connected |= !is_lost(r);
    if (!is_lost(r) || ++*tries == TRIES)
        return false;
    (void)usleep((useconds_t)(PAUSE_MS * 1000) << *tries);
    return set_server(items) == 0;
}

int items_set(struct items *items, const char *key, const void *bytes, size_t len, uint32_t flags,
              unsigned seconds, struct mandor_err *err)
{
    memcached_return_t r;
    int tries = 0;

    do
        r = memcached_set(items->server, key, strlen(key), bytes, len, (time_t)seconds, flags);
    while (again(items, r, &tries));
    return r == MEMCACHED_SUCCESS ? 0 : report(items, r, "set", key, err);
}

int items_get(struct items *items, const char *key, struct buf *buf, uint32_t *ret_flags,
              struct mandor_err *err)
{
    memcached_return_t r;
    size_t len;
    char *value;
    int tries = 0;

    do
        value = memcached_get(items->server, key, strlen(key), &len, ret_flags, &r);
    while (again(items, r, &tries));
    if (r != MEMCACHED_SUCCESS)
        return report(items, r, "get", key, err);
    int added = len == 0 ? 0 : buf_add(buf, value, len);
    free(value);
    return added < 0 ? err_set(err, added, FAULT_HOST, "get '%s'", key) : 0;
}

int items_gets(struct items *items, const char *key, struct buf *buf, uint32_t *ret_flags,
               uint64_t *ret_token, struct mandor_err *err)
{
    size_t len = strlen(key);
    memcached_return_t r;
    memcached_result_st *result;
    int added = 0, tries = 0;

    do {
        r = memcached_mget(items->server, &key, &len, 1);
        result = r == MEMCACHED_SUCCESS ? memcached_fetch_result(items->server, NULL, &r) : NULL;
    } while (result == NULL && again(items, r, &tries));

    *ret_token = 0;
    if (result == NULL)
        return report(items, r == MEMCACHED_SUCCESS || r == MEMCACHED_END ? MEMCACHED_NOTFOUND : r,
                      "get", key, err);
    if (memcached_result_length(result) > 0)
        added = buf_add(buf, memcached_result_value(result), memcached_result_length(result));
    *ret_flags = memcached_result_flags(result);
    *ret_token = memcached_result_cas(result);
    memcached_result_free(result);
    while ((result = memcached_fetch_result(items->server, NULL, &r)) != NULL)
        memcached_result_free(result); /* the end of the answer */
    return added < 0 ? err_set(err, added, FAULT_HOST, "get '%s'", key) : 0;
}

int items_replace(struct items *items, const char *key, const void *bytes, size_t len,
                  uint32_t flags, uint64_t token, struct mandor_err *err)
{
    memcached_return_t r =
        token == 0 ? memcached_add(items->server, key, strlen(key), bytes, len, 0, flags)
                   : memcached_cas(items->server, key, strlen(key), bytes, len, 0, flags, token);

    if (r == MEMCACHED_SUCCESS)
        return 0;
    if (r == MEMCACHED_NOTSTORED || r == MEMCACHED_DATA_EXISTS || r == MEMCACHED_NOTFOUND)
        return err_set(err, -EEXIST, FAULT_REMOTE, "memcached '%s:%d': set '%.100s'", items->host,
                       items->port, key);
    return report(items, r, "set", key, err);
}

int items_touch(struct items *items, const char *key, unsigned seconds, struct mandor_err *err)
{
    memcached_return_t r;
    int tries = 0;

    do
        r = memcached_touch(items->server, key, strlen(key), (time_t)seconds);
    while (again(items, r, &tries));
    return r == MEMCACHED_SUCCESS ? 0 : report(items, r, "keep", key, err);
}

void items_delete(struct items *items, const char *key)
{
    (void)memcached_delete(items->server, key, strlen(key), 0); /* what is not there is as good */
}

/* ---- manifests ---- */

int manifest_parse(const char *text, size_t len, struct manifest *ret)
{
    SCOPED_JSON *json = NULL;
    json_int_t parts = 0, bytes = 0;
    const char *hash, *prefix;
    char *end;

    if (json_parse(text, len, &json, NULL) < 0 ||
        json_unpack(json, "{s:I, s:I, s:s, s:s}", "parts", &parts, "bytes", &bytes, "xxh3", &hash,
                    "prefix", &prefix) < 0)
        return -EBADMSG;
    uint64_t xxh3 = strtoull(hash, &end, 16);
    if (bytes < 1 || parts != (bytes - 1) / (json_int_t)ITEM_MAX + 1 || strlen(hash) != 16 ||
        *end != '\0' || strlen(prefix) > ITEM_KEY_MAX + 60)
        return -EBADMSG;
    *ret =
        (struct manifest){ .parts = parts, .bytes = bytes, .xxh3 = xxh3, .prefix = strdup(prefix) };
    return ret->prefix == NULL ? -ENOMEM : 0;
}

char *manifest_text(const struct manifest *manifest)
{
    char hash[17];

    (void)snprintf(hash, sizeof hash, "%016" PRIx64, manifest->xxh3);
    SCOPED_JSON *json =
        json_pack("{s:I, s:I, s:s, s:s}", "parts", (json_int_t)manifest->parts, "bytes",
                  (json_int_t)manifest->bytes, "xxh3", hash, "prefix", manifest->prefix);
    return json == NULL ? NULL : json_text(json);
}

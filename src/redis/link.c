/* link.c - contract in link.h.
 *
 * hiredis has an adapter for libuv, but the one of the oldest version that we build with (0.14) is blind to a refused connection: libuv
 * reports it as a failed poll, and the adapter returns.  So the five calls of an adapter are here. */
#include "redis/link.h"

#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>

#ifdef HAVE_HIREDIS_SSL
#include <arpa/inet.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

#define LINK_MAGIC 0x6c696e6bu

/* The poll handle of one redisAsyncContext; outlives it until uv has closed it. */
struct wire {
    uv_poll_t poll;
    redisAsyncContext *context;
    struct link *link;
    int events;
};

struct link {
    uint32_t magic;
    uv_loop_t *loop;
    const struct link_events *events;
    void *arg;
    char *name, *host, *unix_path;
    int port;
    uv_getaddrinfo_t lookup;
    struct addrinfo *addresses, *next;
    redisAsyncContext *context; /* NULL between two */
    struct mandor_err err;      /* why the last address did not do */
    unsigned refs;              /* the owner, the lookup, each wire */
    bool up, closed;
#ifdef HAVE_HIREDIS_SSL
    uv_work_t prepare; /* certificates are read on the pool */
    struct redis_url url;
    SSL_CTX *tls;
    char *tls_name; /* what the certificate must be for */
    SSL *ssl;       /* of the latest connection: it knows why a handshake failed */
#endif
};

static void unref(struct link *link)
{
    if (--link->refs > 0)
        return;
    if (link->addresses != NULL)
        uv_freeaddrinfo(link->addresses);
#ifdef HAVE_HIREDIS_SSL
    SSL_free(link->ssl);
    SSL_CTX_free(link->tls);
    free(link->tls_name);
    redis_url_done(&link->url);
#endif
    free(link->name);
    free(link->host);
    free(link->unix_path);
    OBJ_FINI(link);
    free(link);
}

/* ---- hiredis on libuv ---- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct wire *wire = poll->data;
    /* A failed poll (status < 0) has stopped the handle: hiredis finds out what is wrong by reading. */
    int seen = status < 0 ? wire->events : events;

    if (wire->context != NULL && (seen & UV_READABLE))
        redisAsyncHandleRead(wire->context);
    /* What the answers led to is written at once: the next turn may be long. */
    if (wire->context != NULL && ((seen | wire->events) & UV_WRITABLE))
        redisAsyncHandleWrite(wire->context);
}

static void watch(struct wire *wire, int events)
{
    wire->events = events;
    if (events == 0)
        (void)uv_poll_stop(&wire->poll);
    else
        (void)uv_poll_start(&wire->poll, events, on_poll);
}

static void add_read(void *data)
{
    struct wire *wire = data;
    watch(wire, wire->events | UV_READABLE);
}
static void del_read(void *data)
{
    struct wire *wire = data;
    watch(wire, wire->events & ~UV_READABLE);
}
static void add_write(void *data)
{
    struct wire *wire = data;
    watch(wire, wire->events | UV_WRITABLE);
}
static void del_write(void *data)
{
    struct wire *wire = data;
    watch(wire, wire->events & ~UV_WRITABLE);
}

static void on_wire_closed(uv_handle_t *handle)
{
    struct wire *wire = handle->data;

    unref(wire->link);
    free(wire);
}

static void cleanup(void *data)
{
    struct wire *wire = data;

    wire->context = NULL;
    uv_close((uv_handle_t *)&wire->poll, on_wire_closed);
}

static int attach(struct link *link, redisAsyncContext *context)
{
    struct wire *wire = calloc(1, sizeof *wire);

    if (wire == NULL)
        return -ENOMEM;
    int r = uv_poll_init(link->loop, &wire->poll, context->c.fd);
    if (r < 0) {
        free(wire);
        return r;
    }
    wire->poll.data = wire;
    wire->context = context;
    wire->link = link;
    link->refs++;
    context->ev.data = wire;
    context->ev.addRead = add_read;
    context->ev.delRead = del_read;
    context->ev.addWrite = add_write;
    context->ev.delWrite = del_write;
    context->ev.cleanup = cleanup;
    return 0;
}

/* ---- connecting ---- */

static void down(struct link *link)
{
    if (link->closed)
        return;
    link->up = false;
    if (link->err.code == 0)
        (void)err_set(&link->err, -ECONNRESET, FAULT_REMOTE, "redis '%s'", link->name);
    link->events->on_down(link->arg, &link->err);
}

static int code_of(const redisAsyncContext *context, int fallback)
{
    if (context->err == REDIS_ERR_IO && errno != 0)
        return -errno;
    return context->err == REDIS_ERR_EOF        ? -ECONNRESET
           : context->err == REDIS_ERR_OOM      ? -ENOMEM
           : context->err == REDIS_ERR_PROTOCOL ? -EPROTO
                                                : fallback;
}

#ifdef HAVE_HIREDIS_SSL
/* Where a handshake fails later than in its first step hiredis has only errno's word, and that is "Success".
 * *code: -EPROTO where the two cannot talk to each other, which stays so; not where the other side hung up. */
static const char *tls_reason(const struct link *link, const redisAsyncContext *context, int *code)
{
    if (link->ssl == NULL || SSL_is_init_finished(link->ssl))
        return NULL;
    long verdict = SSL_get_verify_result(link->ssl);
    unsigned long error = context->err == REDIS_ERR_IO ? ERR_peek_last_error() : 0;
    const char *reason = verdict != X509_V_OK ? X509_verify_cert_error_string(verdict)
                                              : ERR_reason_error_string(error);

    if (reason != NULL)
        *code = ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? -ECONNRESET : -EPROTO;
    return reason;
}
#else
static const char *tls_reason(const struct link *link, const redisAsyncContext *context, int *code)
{
    (void)link;
    (void)context;
    (void)code;
    return NULL;
}
#endif

/* hiredis keeps the system's words only: take the number from the socket where it can be had. */
static void note_error(struct link *link, const redisAsyncContext *context, int fallback)
{
    int code = code_of(context, fallback);
    const char *reason = tls_reason(link, context, &code);

    if (reason != NULL)
        (void)err_say(&link->err, code, FAULT_REMOTE, "TLS to redis '%s': %s", link->name, reason);
    else
        (void)err_say(&link->err, code, FAULT_REMOTE, "redis '%s': %s", link->name,
                      context->errstr != NULL && context->errstr[0] != '\0' ? context->errstr
                                                                            : strerror(-code));
}

static void try_next(struct link *link);

static void on_connected(const redisAsyncContext *context, int status)
{
    struct link *link = context->data;

    OBJ_CHECK(link, LINK_MAGIC);
    if (status != REDIS_OK) { /* hiredis frees it when we return */
        note_error(link, context, -ECONNREFUSED);
        link->context = NULL;
        if (!link->closed)
            try_next(link);
        return;
    }
    link->up = true;
    if (!link->closed)
        link->events->on_up(link->arg);
}

static void on_disconnected(const redisAsyncContext *context, int status)
{
    struct link *link = context->data;

    OBJ_CHECK(link, LINK_MAGIC);
    link->context = NULL;
    if (status != REDIS_OK)
        note_error(link, context, -ECONNRESET);
    down(link);
}

#ifdef HAVE_HIREDIS_SSL
/* hiredis' own contexts check who signed a certificate and not for whom: so OpenSSL is told here. */
static int expect_name(SSL *ssl, const char *name)
{
    unsigned char bytes[16];
    bool address = inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;

    SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
    if (address)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1 ? 0 : -EINVAL;
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1 ? 0 : -EINVAL;
}

static int start_tls(struct link *link, redisAsyncContext *context)
{
    if (link->tls == NULL)
        return 0;
    SSL *ssl = SSL_new(link->tls);
    if (ssl == NULL)
        return -ENOMEM;
    if (expect_name(ssl, link->tls_name) < 0) {
        SSL_free(ssl);
        return -EINVAL;
    }
    SSL_free(link->ssl);
    link->ssl = ssl;
    (void)SSL_up_ref(ssl);
    ERR_clear_error();
    if (redisInitiateSSL(&context->c, ssl) == REDIS_OK)
        return 0; /* the other reference is hiredis' now */
    SSL_free(ssl);
    return -ECONNRESET; /* but for what note_error() finds */
}
#else
static int start_tls(struct link *link, redisAsyncContext *context)
{
    (void)link;
    (void)context;
    return 0;
}
#endif

/* Give hiredis an address; a failure at once is a failure like any other. */
static int begin(struct link *link, redisAsyncContext *context)
{
    if (context == NULL)
        return err_set(&link->err, -ENOMEM, FAULT_HOST, "connect to redis '%s'", link->name);
    if (context->err != 0) {
        note_error(link, context, -ECONNREFUSED);
        redisAsyncFree(context);
        return link->err.code;
    }
    (void)fcntl(context->c.fd, F_SETFD, FD_CLOEXEC);
    int r = start_tls(link, context);
    if (r < 0) {
        note_error(link, context, r);
        redisAsyncFree(context);
        return link->err.code;
    }
    r = attach(link, context);
    if (r < 0) {
        redisAsyncFree(context);
        return err_set(&link->err, r, FAULT_HOST, "watch the connection to redis '%s'", link->name);
    }
    context->data = link;
    link->context = context;
    (void)redisAsyncSetConnectCallback(context, on_connected);
    (void)redisAsyncSetDisconnectCallback(context, on_disconnected);
    return 0;
}

static void try_next(struct link *link)
{
    char text[64];

    while (link->next != NULL) {
        const struct addrinfo *at = link->next;
        link->next = at->ai_next;
        if (at->ai_family == AF_INET)
            (void)uv_ip4_name((struct sockaddr_in *)(void *)at->ai_addr, text, sizeof text);
        else if (at->ai_family == AF_INET6)
            (void)uv_ip6_name((struct sockaddr_in6 *)(void *)at->ai_addr, text, sizeof text);
        else
            continue;
        if (begin(link, redisAsyncConnect(text, link->port)) == 0)
            return;
    }
    if (link->err.code == 0)
        (void)err_set(&link->err, -EHOSTUNREACH, FAULT_REMOTE, "redis '%s' has no address",
                      link->name);
    down(link);
}

static void on_looked_up(uv_getaddrinfo_t *lookup, int status, struct addrinfo *found)
{
    struct link *link = lookup->data;

    OBJ_CHECK(link, LINK_MAGIC);
    link->addresses = found;
    if (!link->closed && link->unix_path != NULL) {
        if (begin(link, redisAsyncConnectUnix(link->unix_path)) < 0)
            down(link);
    } else if (!link->closed && status < 0) {
        (void)err_set(&link->err, status, FAULT_REMOTE, "look up redis '%s'", link->name);
        down(link);
    } else if (!link->closed) {
        link->next = found;
        try_next(link);
    }
    unref(link);
}

/* ---- life ---- */

#ifdef HAVE_HIREDIS_SSL
int link_check_tls(struct mandor_err *err)
{
    (void)err;
    return 0;
}

static int bad_tls(const struct link *link, struct mandor_err *err, const char *what)
{
    char text[160];

    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    return err_set(err, -EINVAL, FAULT_CALLER, "TLS to redis '%s': %s: %s", link->name, what, text);
}

/* On a pool thread: a bundle of authorities is some hundred kilobytes to read and to take apart.  Done for each connection, so that
 * a certificate that was renewed is used from the next one on. */
static void read_certificates(uv_work_t *work)
{
    struct link *link = work->data;
    const char *ca = redis_url_param(&link->url, "ca"), *cert = redis_url_param(&link->url, "cert");
    const char *key = redis_url_tls_key(&link->url), *name = redis_url_param(&link->url, "sni");
    struct mandor_err *err = &link->err;

    ERR_clear_error();
    link->tls_name = strdup(name != NULL ? name : link->host);
    link->tls = SSL_CTX_new(TLS_client_method());
    if (link->tls == NULL || link->tls_name == NULL) {
        (void)err_set(err, -ENOMEM, FAULT_HOST, "TLS to redis '%s'", link->name);
        return;
    }
    (void)SSL_CTX_set_min_proto_version(link->tls, TLS1_2_VERSION);
    if (ca != NULL ? SSL_CTX_load_verify_locations(link->tls, ca, NULL) != 1
                   : SSL_CTX_set_default_verify_paths(link->tls) != 1)
        (void)bad_tls(link, err, "read the authorities' certificates");
    else if (cert != NULL && SSL_CTX_use_certificate_chain_file(link->tls, cert) != 1)
        (void)bad_tls(link, err, "read the certificate 'cert'");
    else if (key != NULL && SSL_CTX_use_PrivateKey_file(link->tls, key, SSL_FILETYPE_PEM) != 1)
        (void)bad_tls(link, err, "read the private key 'key'");
}

static int look_up(struct link *link);

static void on_certificates(uv_work_t *work, int status)
{
    struct link *link = work->data;

    OBJ_CHECK(link, LINK_MAGIC);
    if (status == 0 && link->err.code == 0 && !link->closed)
        status = look_up(link);
    if (status < 0 && link->err.code == 0)
        (void)err_set(&link->err, status, FAULT_REMOTE, "look up redis '%s'", link->name);
    if (link->err.code != 0)
        down(link);
    unref(link);
}

static int begin_tls(struct link *link, const struct redis_url *url)
{
    int r = redis_url_copy(url, &link->url);

    link->prepare.data = link;
    if (r == 0)
        r = uv_queue_work(link->loop, &link->prepare, read_certificates, on_certificates);
    if (r == 0)
        link->refs++;
    return r;
}
#else
int link_check_tls(struct mandor_err *err)
{
    return err_set(err, -ENOTSUP, FAULT_CALLER,
                   "TLS to Redis is not in this build: hiredis here came without it (Debian 12 has "
                   "none); use a build with libhiredis-ssl, or a tunnel");
}

static int begin_tls(struct link *link, const struct redis_url *url)
{
    (void)link, (void)url;
    return -ENOTSUP; /* redis_new() has said so */
}
#endif

static int fill(struct link *link, const struct link_place *place)
{
    int r;

    if (place->unix_path != NULL) {
        link->unix_path = strdup(place->unix_path);
        link->name = strdup(place->unix_path);
        return link->unix_path != NULL && link->name != NULL ? 0 : -ENOMEM;
    }
    link->host = strdup(place->host);
    r = asprintf(&link->name, strchr(place->host, ':') != NULL ? "[%s]:%d" : "%s:%d", place->host,
                 place->port);
    if (r < 0)
        link->name = NULL;
    link->port = place->port;
    return r < 0 || link->host == NULL ? -ENOMEM : 0;
}

/* A Unix socket's lookup is one of a numeric address: it only brings us out of the caller's stack. */
static int look_up(struct link *link)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };

    link->lookup.data = link;
    int r = uv_getaddrinfo(link->loop, &link->lookup, on_looked_up,
                           link->unix_path != NULL ? "127.0.0.1" : link->host, NULL, &hints);
    if (r == 0)
        link->refs++;
    return r;
}

int link_new(uv_loop_t *loop, const struct link_place *place, const struct link_events *events,
             void *arg, struct link **ret, struct mandor_err *err)
{
    struct link *link = calloc(1, sizeof *link);

    if (link == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "connect to redis");
    link->magic = LINK_MAGIC;
    link->loop = loop;
    link->events = events;
    link->arg = arg;
    link->refs = 1;
    int r = fill(link, place);
    if (r < 0) {
        unref(link);
        return err_set(err, r, FAULT_HOST, "connect to redis");
    }
    r = place->tls != NULL ? begin_tls(link, place->tls) : look_up(link);
    if (r < 0) {
        (void)err_set(err, r, FAULT_REMOTE, "look up redis '%s'", link->name);
        unref(link);
        return r;
    }
    *ret = link;
    return 0;
}

void link_close(struct link *link)
{
    if (link == NULL)
        return;
    OBJ_CHECK(link, LINK_MAGIC);
    BUG_ON(link->closed);
    link->closed = true;
    (void)uv_cancel((uv_req_t *)&link->lookup); /* refused when it has ended, or was not begun */
    if (link->context != NULL)
        redisAsyncFree(STEAL(link->context)); /* inside of a callback of it: when that returns */
    unref(link);
}

int link_send(struct link *link, const char *wire, size_t len, redisCallbackFn *fn, void *data)
{
    OBJ_CHECK(link, LINK_MAGIC);
    if (!link->up || link->closed || link->context == NULL)
        return -ENOTCONN;
    int r = redisAsyncFormattedCommand(link->context, fn, data, wire, len);
    return r == REDIS_OK ? 0 : -ENOMEM;
}

/* link.h - one connection to one server, from its name to its end: hiredis on the libuv loop.  Private to redis/.
 *
 *     link_new ─▶ uv_getaddrinfo ─▶ connect to its addresses in turn ─▶ on_up ─▶ link_send … ─▶ on_down
 *
 * It knows no time limits: whoever owns it closes it when it takes too long.  Loop thread only. */
#ifndef REDIS_LINK_H
#define REDIS_LINK_H

#include <hiredis/async.h>
#include <uv.h>

#include "base/err.h"
#include "redis/url.h"

struct link;

struct link_place { /* borrowed for the call */
    const char *host;
    int port;
    const char *unix_path; /* instead of host and port; NULL = none */
    /* Whose parameters say how: ca, cert, tls_key, sni; NULL = plain. */
    const struct redis_url *tls;
};

struct link_events {
    void (*on_up)(void *arg);
    /* Never up, or not any more; not after link_close(). */
    void (*on_down)(void *arg, const struct mandor_err *err);
};

/* Is hiredis here able to do TLS?  0 or -ENOTSUP with *err. */
MUST_CHECK int link_check_tls(struct mandor_err *err);

/* Start connecting.  Events come later, never from inside of the call.  0 or -errno with *err. */
MUST_CHECK int link_new(uv_loop_t *loop, const struct link_place *place,
                        const struct link_events *events, void *arg, struct link **ret,
                        struct mandor_err *err);
/* Give it up.  Commands without a reply get theirs (NULL) before this returns; the memory goes later.  NULL is a no-op. */
void link_close(struct link *link);

/* Queue one formatted command (redisFormatCommandArgv()).  fn is called once, with a reply or NULL.  0 or -ENOMEM; -ENOTCONN when not up. */
MUST_CHECK int link_send(struct link *link, const char *wire, size_t len, redisCallbackFn *fn,
                         void *data);

#endif

/* url.h - where a Redis is: the part of a broker's or sink's URL that says it.  Pure.  Any thread.
 *
 *     SCHEME[+tls][+unix][+sentinel][+cluster]://[[USER:]PASSWORD@]HOST[:PORT][,HOST[:PORT]]…[/DB][?key=value&…]
 *     SCHEME+unix:///run/redis.sock[?db=N]        SCHEME+sentinel://HOST[:PORT],HOST…/NAME[/DB]
 *
 * SCHEME is the caller's ("streams", "redis", …).  "sentinel://" alone is the same as "redis+sentinel://".  IPv6 addresses stand in
 * brackets.  User, password, path and values are percent-encoded. */
#ifndef REDIS_URL_H
#define REDIS_URL_H

#include "base/err.h"
#include "base/macro.h"

#define REDIS_PORT          6379
#define REDIS_SENTINEL_PORT 26379
#define REDIS_HOSTS_MAX     16

struct redis_host {
    char *name; /* name or address, without brackets */
    int port;
};

struct redis_url {
    char *scheme; /* before any '+' */
    bool tls, sentinel, cluster;
    char *unix_path; /* or NULL */
    struct redis_host *hosts;
    size_t host_count;
    char *sentinel_name; /* of the group of servers, with sentinel */
    char *user, *password;
    int db;
    struct redis_param {
        char *key, *value;
    } * params; /* what stands behind '?', in its order */
    size_t param_count;
    char *text; /* the same URL without the password: for messages */
};

/* ret: ended by redis_url_done(), also after a failure.  0, -EINVAL with *err (FAULT_CALLER, the password never in it) or -ENOMEM. */
MUST_CHECK int redis_url_parse(const char *url, struct redis_url *ret, struct mandor_err *err);
void redis_url_done(struct redis_url *url);
/* A deep copy; ret: ended by redis_url_done(), also after a failure.  0 or -ENOMEM. */
MUST_CHECK int redis_url_copy(const struct redis_url *from, struct redis_url *ret);
/* Is each parameter behind '?' one of own, or one that every connection has (db, ca, cert, key, tls_key, sni, sentinel_password)?
 * 0, or -EINVAL with *err. */
MUST_CHECK int redis_url_check_params(const struct redis_url *url, const char *const *own,
                                      size_t own_count, struct mandor_err *err);
/* The last value of key behind '?', or NULL. */
const char *redis_url_param(const struct redis_url *url, const char *key);
/* The file of the private key for TLS: `tls_key`, or `key` where that is not the name of a value (redis:…?key=KEY); or NULL. */
const char *redis_url_tls_key(const struct redis_url *url);

#endif

/* url.c - contract in url.h. */
#include "redis/url.h"

#include <ctype.h>

#include "base/hide.h"
#include "base/units.h"

#define PARAMS_MAX 32

static const char *const of_connection[] = {
    "db", "ca", "cert", "key", "tls_key", "sni", "sentinel_password"
};

static int bad(const struct redis_url *url, struct mandor_err *err, const char *what)
{
    return err_set(err, -EINVAL, FAULT_CALLER, "redis URL '%s': %s", url->text, what);
}

/* The same for a piece of it. */
static int bad_at(const struct redis_url *url, struct mandor_err *err, const char *piece,
                  size_t len, const char *what)
{
    return piece[0] == '\0' ? bad(url, err, what)
                            : err_set(err, -EINVAL, FAULT_CALLER, "redis URL '%s': '%.*s': %s",
                                      url->text, (int)MIN(len, (size_t)40), piece, what);
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : isxdigit((unsigned char)c) ? tolower(c) - 'a' + 10 : -1;
}

/* Percent-decoded copy of len bytes; no NUL may come out. */
static int decode(const struct redis_url *url, const char *text, size_t len, char **ret,
                  struct mandor_err *err)
{
    char *out = malloc(len + 1);
    size_t n = 0;

    if (out == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a redis URL");
    for (size_t i = 0; i < len; i++) {
        if (text[i] != '%') {
            out[n++] = text[i];
            continue;
        }
        int high = i + 2 < len ? hex(text[i + 1]) : -1;
        int low = i + 2 < len ? hex(text[i + 2]) : -1;
        if (high < 0 || low < 0 || (high == 0 && low == 0)) {
            free(out);
            /* what comes before the parameters may be a password */
            return bad_at(url, err, url->params != NULL ? text + i : "", MIN(len - i, (size_t)3),
                          "'%' must be followed by two hexadecimal digits that are not 00");
        }
        out[n++] = (char)(high << 4 | low);
        i += 2;
    }
    out[n] = '\0';
    free(*ret);
    *ret = out;
    return 0;
}

/* ---- the parts ---- */

static int read_scheme(struct redis_url *url, const char *text, size_t len, struct mandor_err *err)
{
    size_t base = 0;

    while (base < len && text[base] != '+')
        base++;
    url->scheme = strndup(text, base);
    if (url->scheme == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a redis URL");
    url->sentinel = str_eq(url->scheme, "sentinel");
    for (size_t at = base; at < len;) {
        size_t end = ++at;
        while (end < len && text[end] != '+')
            end++;
        size_t n = end - at;
        if (n == 3 && memcmp(text + at, "tls", n) == 0)
            url->tls = true;
        else if (n == 8 && memcmp(text + at, "sentinel", n) == 0)
            url->sentinel = true;
        else if (n == 7 && memcmp(text + at, "cluster", n) == 0)
            url->cluster = true;
        else if (n == 4 && memcmp(text + at, "unix", n) == 0 && url->unix_path == NULL) {
            if ((url->unix_path = strdup("")) == NULL)
                return err_set(err, -ENOMEM, FAULT_HOST, "read a redis URL");
        } else
            return bad(url, err, "what follows a '+' is tls, unix, sentinel or cluster");
        at = end;
    }
    if (url->unix_path != NULL && (url->sentinel || url->cluster || url->tls))
        return bad(url, err, "unix goes with none of tls, sentinel and cluster");
    return url->sentinel && url->cluster ? bad(url, err, "sentinel and cluster exclude each other")
                                         : 0;
}

static int read_port(const char *text, size_t len, int *ret)
{
    int port = 0;

    if (len == 0 || len > 5)
        return -EINVAL;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i]))
            return -EINVAL;
        port = port * 10 + (text[i] - '0');
    }
    *ret = port;
    return port >= 1 && port <= 65535 ? 0 : -EINVAL;
}

static int read_host(struct redis_url *url, const char *text, size_t len, struct mandor_err *err)
{
    struct redis_host *host = &url->hosts[url->host_count];
    size_t name_len, rest;

    if (len > 0 && text[0] == '[') {
        const char *end = memchr(text, ']', len);
        if (end == NULL)
            return bad(url, err, "an address in brackets must end in ']'");
        rest = (size_t)(end - text) + 1;
        name_len = rest - 2;
        text++;
        rest--;
        len--;
    } else {
        const char *colon = memchr(text, ':', len);
        name_len = rest = colon != NULL ? (size_t)(colon - text) : len;
    }
    if (name_len == 0)
        return bad(url, err, "a host is missing, expected HOST[:PORT]");
    host->port = url->sentinel ? REDIS_SENTINEL_PORT : REDIS_PORT;
    if (rest < len &&
        (text[rest] != ':' || read_port(text + rest + 1, len - rest - 1, &host->port) < 0))
        return bad(url, err, "a port is a number from 1 to 65535");
    host->name = strndup(text, name_len);
    if (host->name == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a redis URL");
    url->host_count++;
    return 0;
}

static int read_hosts(struct redis_url *url, const char *text, size_t len, struct mandor_err *err)
{
    url->hosts = calloc(REDIS_HOSTS_MAX, sizeof *url->hosts);
    if (url->hosts == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a redis URL");
    for (size_t at = 0;;) {
        size_t end = at;
        while (end < len && text[end] != ',')
            end++;
        if (url->host_count == REDIS_HOSTS_MAX)
            return bad(url, err, "at most 16 hosts");
        int r = read_host(url, text + at, end - at, err);
        if (r < 0)
            return r;
        if (end == len)
            return 0;
        at = end + 1;
    }
}

static int read_user(struct redis_url *url, const char *text, size_t len, struct mandor_err *err)
{
    const char *colon = memchr(text, ':', len);
    size_t user_len = colon != NULL ? (size_t)(colon - text) : 0;
    const char *password = colon != NULL ? colon + 1 : text;
    int r = user_len > 0 ? decode(url, text, user_len, &url->user, err) : 0;

    if (r == 0 && (password[0] != '@' || url->user != NULL)) /* "//:@host", "//@host": none */
        r = decode(url, password, len - (size_t)(password - text), &url->password, err);
    return r;
}

static int read_db(struct redis_url *url, const char *text, size_t len, struct mandor_err *err)
{
    int db = 0;

    if (len > 5)
        return bad(url, err, "a database is a number");
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)text[i]))
            return bad(url, err, "a database is a number");
        db = db * 10 + (text[i] - '0');
    }
    url->db = db;
    return db != 0 && url->cluster ? bad(url, err, "a cluster has database 0 only") : 0;
}

/* What follows the authority: /DB, for sentinels /NAME[/DB], for a socket its path. */
static int read_path(struct redis_url *url, const char *text, size_t len, struct mandor_err *err)
{
    if (url->unix_path != NULL) {
        int r = decode(url, text, len, &url->unix_path, err);
        return r < 0 ? r
               : url->unix_path[0] != '/'
                   ? bad(url, err, "the path of a Unix socket must be absolute: +unix:///PATH")
                   : 0;
    }
    if (len > 0) { /* the '/' itself */
        text++;
        len--;
    }
    if (!url->sentinel)
        return read_db(url, text, len, err);
    const char *slash = memchr(text, '/', len);
    size_t name_len = slash != NULL ? (size_t)(slash - text) : len;
    if (name_len == 0)
        return bad(url, err, "sentinels need the name that they watch: //HOST,HOST/NAME");
    int r = decode(url, text, name_len, &url->sentinel_name, err);
    return r < 0 || slash == NULL ? r : read_db(url, slash + 1, len - name_len - 1, err);
}

static int read_param(struct redis_url *url, const char *text, size_t len, struct mandor_err *err)
{
    struct redis_param *param = &url->params[url->param_count];
    const char *equals = memchr(text, '=', len);
    size_t key_len = equals != NULL ? (size_t)(equals - text) : 0;

    if (key_len == 0)
        return bad_at(url, err, text, len, "what follows '?' is key=value, separated by '&'");
    url->param_count++;
    int r = decode(url, text, key_len, &param->key, err);
    if (r == 0)
        r = decode(url, equals + 1, len - key_len - 1, &param->value, err);
    if (r == 0 && str_eq(param->key, "db"))
        r = read_db(url, param->value, strlen(param->value), err);
    return r;
}

static int read_params(struct redis_url *url, const char *text, size_t len, struct mandor_err *err)
{
    url->params = calloc(PARAMS_MAX, sizeof *url->params);
    if (url->params == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a redis URL");
    for (size_t at = 0; at < len;) {
        size_t end = at;
        while (end < len && text[end] != '&')
            end++;
        if (url->param_count == PARAMS_MAX)
            return bad(url, err, "too many parameters");
        int r = read_param(url, text + at, end - at, err);
        if (r < 0)
            return r;
        at = end + 1;
    }
    return 0;
}

static bool is_among(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(names[i], name))
            return true;
    return false;
}

int redis_url_check_params(const struct redis_url *url, const char *const *own, size_t own_count,
                           struct mandor_err *err)
{
    for (size_t i = 0; i < url->param_count; i++) {
        const char *name = url->params[i].key;
        if (is_among(name, own, own_count) ||
            is_among(name, of_connection, ARRAY_LEN(of_connection)))
            continue;
        const char *near = units_nearest(name, own, own_count);
        if (near == NULL)
            near = units_nearest(name, of_connection, ARRAY_LEN(of_connection));
        return err_set(err, -EINVAL, FAULT_CALLER, "'%s': unknown parameter '%.40s'%s%s%s",
                       url->text, name, near != NULL ? ", did you mean '" : "",
                       near != NULL ? near : "", near != NULL ? "'?" : "");
    }
    return 0;
}

/* ---- the whole ---- */

int redis_url_parse(const char *text, struct redis_url *ret, struct mandor_err *err)
{
    *ret = (struct redis_url){ .text = hide_password(text) };
    if (ret->text == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a redis URL");
    for (const char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f)
            return bad(ret, err,
                       "blanks and control characters must be written as %20 and the like");

    const char *slashes = strstr(text, "://");
    if (slashes == NULL || slashes == text)
        return bad(ret, err, "expected SCHEME://[[USER:]PASSWORD@]HOST[:PORT][/DB]");
    int r = read_scheme(ret, text, (size_t)(slashes - text), err);
    if (r < 0)
        return r;

    const char *begin = slashes + 3;
    size_t authority = strcspn(begin, "/?");
    const char *at = memrchr(begin, '@', authority);
    const char *hosts = at != NULL ? at + 1 : begin;
    if (at != NULL && (r = read_user(ret, begin, (size_t)(at - begin), err)) < 0)
        return r;
    size_t hosts_len = authority - (size_t)(hosts - begin);
    if (ret->unix_path == NULL && (r = read_hosts(ret, hosts, hosts_len, err)) < 0)
        return r;
    const char *path = begin + authority;
    size_t path_len = strcspn(path, "?");
    r = read_path(ret, path, path_len, err);
    if (r == 0 && path[path_len] == '?')
        r = read_params(ret, path + path_len + 1, strlen(path + path_len + 1), err);
    return r;
}

void redis_url_done(struct redis_url *url)
{
    for (size_t i = 0; i < url->host_count; i++)
        free(url->hosts[i].name);
    for (size_t i = 0; i < url->param_count; i++) {
        free(url->params[i].key);
        free(url->params[i].value);
    }
    free(url->hosts);
    free(url->params);
    free(url->scheme);
    free(url->unix_path);
    free(url->sentinel_name);
    free(url->user);
    free(url->password);
    free(url->text);
    *url = (struct redis_url){ 0 };
}

static char *copy(const char *text, bool *failed)
{
    char *same = text != NULL ? strdup(text) : NULL;

    *failed |= text != NULL && same == NULL;
    return same;
}

int redis_url_copy(const struct redis_url *from, struct redis_url *ret)
{
    bool failed = false;

    *ret = (struct redis_url){
        .tls = from->tls, .sentinel = from->sentinel, .cluster = from->cluster, .db = from->db
    };
    ret->scheme = copy(from->scheme, &failed);
    ret->unix_path = copy(from->unix_path, &failed);
    ret->sentinel_name = copy(from->sentinel_name, &failed);
    ret->user = copy(from->user, &failed);
    ret->password = copy(from->password, &failed);
    ret->text = copy(from->text, &failed);
    ret->hosts = calloc(from->host_count + 1, sizeof *ret->hosts);
    ret->params = calloc(from->param_count + 1, sizeof *ret->params);
    if (ret->hosts == NULL || ret->params == NULL)
        return -ENOMEM;
    for (; ret->host_count < from->host_count; ret->host_count++) {
        ret->hosts[ret->host_count].name = copy(from->hosts[ret->host_count].name, &failed);
        ret->hosts[ret->host_count].port = from->hosts[ret->host_count].port;
    }
    for (; ret->param_count < from->param_count; ret->param_count++) {
        ret->params[ret->param_count].key = copy(from->params[ret->param_count].key, &failed);
        ret->params[ret->param_count].value = copy(from->params[ret->param_count].value, &failed);
    }
    return failed ? -ENOMEM : 0;
}

const char *redis_url_param(const struct redis_url *url, const char *key)
{
    for (size_t i = url != NULL ? url->param_count : 0; i-- > 0;)
        if (str_eq(url->params[i].key, key))
            return url->params[i].value;
    return NULL;
}

const char *redis_url_tls_key(const struct redis_url *url)
{
    const char *own = redis_url_param(url, "tls_key");

    return own != NULL || url == NULL || str_eq(url->scheme, "redis") ? own
                                                                      : redis_url_param(url, "key");
}

/* url.c - contract in url.h. */
#include "sink/url.h"

#include "base/hide.h"

#define S3_KEY_MAX 1024 /* bytes; S3's own bound */

static bool has_control(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

int sink_url_check_s3(const char *rest, struct mandor_err *err)
{
    const char *key = strncmp(rest, "//", 2) == 0 ? strchr(rest + 2, '/') : NULL;

    if (key == NULL || key == rest + 2 || key[1] == '\0')
        return err_set(err, -EINVAL, FAULT_CALLER, "'s3:%s': expected s3://BUCKET/KEY", rest);
    if (strcspn(rest + 2, "/?#@:%") != (size_t)(key - rest - 2) || has_control(rest))
        return err_set(err, -EINVAL, FAULT_CALLER, "'s3:%s': this is no bucket's name", rest);
    if (strlen(key + 1) > S3_KEY_MAX)
        return err_set(err, -EINVAL, FAULT_CALLER, "'s3:%.60s…': the key is longer than %d bytes",
                       rest, S3_KEY_MAX);
    return 0;
}

/* Does the authority end in a port, or has it none? */
static bool is_port(const char *authority, size_t len)
{
    const char *colon = memrchr(authority, ':', len);
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;

    return colon == NULL || colon + 1 + digits == authority + len || authority[len - 1] == ']';
}

int sink_url_check_http(const char *rest, struct mandor_err *err)
{
    size_t len = strncmp(rest, "//", 2) == 0 ? strcspn(rest + 2, "/?#") : 0;
    const char *user_end = len > 0 ? hide_end_of_user(rest + 2) : NULL;

    if (user_end > rest + 2 + len && !is_port(rest + 2, len))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'http:…': a '/', '?' or '#' in a password is written %%2F, %%3F or %%23");
    if (len == 0 || rest[2] == ':' || has_control(rest) || strchr(rest, ' ') != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, /* without the URL: it may hold a password */
                       "'http:…': expected http://HOST/PATH or https://HOST/PATH, spaces as %%20");
    return 0;
}

int sink_url_check_memcached(const char *rest, struct mandor_err *err)
{
    const char *key = strncmp(rest, "//", 2) == 0 ? strchr(rest + 2, '/') : NULL;

    if (key == NULL || key == rest + 2 || key[1] == '\0' || has_control(rest) ||
        strchr(rest, ' ') != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'memcached:%s': expected memcached://HOST[:PORT]/KEY", rest);
    return 0;
}

/* Is `name=` with a value among the parameters? */
static bool has_param(const char *query, const char *name)
{
    size_t len = strlen(name);

    for (const char *at = query; *at != '\0'; at += strcspn(at, "&")) {
        at += *at == '&';
        if (strncmp(at, name, len) == 0 && at[len] == '=' && at[len + 1] != '\0' &&
            at[len + 1] != '&')
            return true;
    }
    return false;
}

/* What names the place is read when it is opened (memory/target.h); here only whether it is of the form. */
int sink_url_check_redis(const char *rest, struct mandor_err *err)
{
    const char *query = strchr(rest, '?');
    bool keys =
        query != NULL && has_param(query + 1, "stream") + has_param(query + 1, "key") +
                                 (has_param(query + 1, "hash") && has_param(query + 1, "field")) ==
                             1;

    if (strncmp(rest, "//", 2) != 0 || !keys || has_control(rest) || strchr(rest, ' ') != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'redis:…': expected redis://HOST[:PORT][/DB] with ?stream=KEY, ?key=KEY or "
                       "?hash=KEY&field=F, spaces as %%20");
    return 0;
}

int sink_url_check(const char *url, struct mandor_err *err)
{
    static const struct {
        const char *scheme;
        int (*check)(const char *rest, struct mandor_err *err);
    } checks[] = {
        { "s3:", sink_url_check_s3 },
        { "http:", sink_url_check_http },
        { "https:", sink_url_check_http },
        { "memcached:", sink_url_check_memcached },
        { "redis:", sink_url_check_redis },
        { "redis+", sink_url_check_redis }, /* redis+tls:, redis+unix:, … */
    };

    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        size_t len = strlen(checks[i].scheme);
        const char *colon = strchr(url, ':');
        if (colon != NULL && strncmp(url, checks[i].scheme, len) == 0)
            return checks[i].check(colon + 1, err);
    }
    return -ENOENT;
}

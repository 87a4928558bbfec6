/* url.c - contract in url.h. */
#include "sink/url.h"

#include "base/hide.h"
#include "job/sink_list.h"
#include "redis/target.h"

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

static int check_redis(const char *url, struct mandor_err *err)
{
    struct target target;
    int r = target_parse(url, &target, err);

    target_done(&target);
    return r;
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
    };

    if (strncmp(url, "redis:", 6) == 0 || strncmp(url, "redis+", 6) == 0) /* +tls, +unix, … */
        return check_redis(url, err);
    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        size_t len = strlen(checks[i].scheme);
        const char *colon = strchr(url, ':');
        if (colon != NULL && strncmp(url, checks[i].scheme, len) == 0)
            return checks[i].check(colon + 1, err);
    }
    return -ENOENT;
}

static int leads_there(void *arg, const char *text)
{
    struct sink_member member;
    struct mandor_err unused;

    if (sink_member_parse(text, &member, &unused) < 0 ||
        sink_url_check(member.url, &unused) == -ENOENT)
        return 0;
    *(char **)arg = strdup(member.url);
    return 1;
}

char *sink_url_elsewhere(const char *urls)
{
    char *found = NULL;

    if (urls != NULL)
        (void)sink_list_each(urls, leads_there, &found);
    return found;
}

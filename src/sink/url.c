/* url.c - contract in url.h. */
#include "sink/url.h"

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

int sink_url_check_http(const char *rest, struct mandor_err *err)
{
    size_t len = strncmp(rest, "//", 2) == 0 ? strcspn(rest + 2, "/?#") : 0;

    if (len == 0 || rest[2] == ':' || has_control(rest) || strchr(rest, ' ') != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'http:%s': expected http://HOST/PATH or https://HOST/PATH, spaces as %%20",
                       rest);
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
    };

    for (size_t i = 0; i < ARRAY_LEN(checks); i++) {
        size_t len = strlen(checks[i].scheme);
        if (strncmp(url, checks[i].scheme, len) == 0)
            return checks[i].check(url + len, err);
    }
    return -ENOENT;
}

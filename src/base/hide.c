/* hide.c - contract in hide.h. */
#include "base/hide.h"

#include "base/buf.h"

const char *hide_end_of_user(const char *begin)
{
    size_t authority = strcspn(begin, "/?");
    const char *at = memrchr(begin, '@', authority);
    const char *colon = memrchr(begin, ':', authority);

    if (at != NULL || colon == NULL || begin[0] == '[')
        return at;
    size_t digits = strspn(colon + 1, "0123456789");
    return strchr("/?,", colon[1 + digits]) != NULL ? NULL : strrchr(begin, '@');
}

/* The rest of the URL, its parameters without the one that is a password. */
static int add_rest(struct buf *buf, const char *text)
{
    static const char secret[] = "sentinel_password=";
    size_t len = strcspn(text, "?");
    int r = buf_add(buf, text, len);

    for (text += len; r == 0 && *text != '\0'; text += len) {
        bool hide = strncmp(text + 1, secret, strlen(secret)) == 0;
        len = 1 + strcspn(text + 1, "&");
        r = buf_add(buf, text, hide ? 1 + strlen(secret) : len);
        if (r == 0 && hide)
            r = buf_adds(buf, "***");
    }
    return r;
}

char *hide_password(const char *text)
{
    const char *slashes = strstr(text, "://"), *scheme = strchrnul(text, ':');
    const char *begin = slashes != NULL ? slashes + 3 : scheme + (*scheme == ':');
    const char *at = hide_end_of_user(begin);
    const char *colon = at != NULL ? memchr(begin, ':', (size_t)(at - begin)) : NULL;
    const char *secret = colon != NULL ? colon + 1 : begin;
    SCOPED_BUF buf = { 0 };

    if (at != NULL &&
        (buf_add(&buf, text, (size_t)(secret - text)) < 0 || buf_adds(&buf, "***") < 0))
        return NULL;
    if (buf_adds(&buf, "") < 0 || add_rest(&buf, at != NULL ? at : text) < 0)
        return NULL;
    return buf_steal(&buf);
}

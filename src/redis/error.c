/* error.c - the server's error replies as -errno; contract in redis.h. */
#include "redis/redis.h"

#define SHOWN_MAX ((size_t)180)

static const struct {
    const char *word;
    int code;
} classes[] = {
    { "READONLY", -EROFS },        { "MASTERDOWN", -EROFS },   { "OOM", -ENOSPC },
    { "MISCONF", -ENOSPC },        { "LOADING", -EAGAIN },     { "BUSY", -EAGAIN },
    { "TRYAGAIN", -EAGAIN },       { "CLUSTERDOWN", -EAGAIN }, { "NOREPLICAS", -EAGAIN },
    { "UNBLOCKED", -EAGAIN },      { "NOAUTH", -EACCES },      { "WRONGPASS", -EACCES },
    { "NOPERM", -EACCES },         { "NOSCRIPT", -ENOEXEC },   { "NOGROUP", -ESRCH },
    { "WRONGTYPE", -EMEDIUMTYPE },
};

/* Is word in text, as a whole?  Errors of commands inside of a script or a transaction stand in the middle of its own. */
static bool has_word(const char *text, size_t len, const char *word, bool first)
{
    size_t n = strlen(word);

    for (size_t at = 0; at + n <= len; at++) {
        bool begins = at == 0 || text[at - 1] == ' ' || text[at - 1] == '-';
        bool ends = at + n == len || text[at + n] == ' ' || text[at + n] == ':';
        if (begins && ends && memcmp(text + at, word, n) == 0)
            return true;
        if (first)
            return false;
    }
    return false;
}

int redis_error_code(const char *text, size_t len)
{
    static const char *const outer[] = { "ERR Error running script", "ERR user_script",
                                         "EXECABORT Transaction discarded because of" };
    bool nested = false;

    for (size_t i = 0; i < ARRAY_LEN(outer); i++)
        nested |= len > strlen(outer[i]) && memcmp(text, outer[i], strlen(outer[i])) == 0;
    if (!nested && len > 4 && memcmp(text, "ERR ", 4) == 0) { /* a script has passed it on */
        text += 4;
        len -= 4;
    }
    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        if (has_word(text, len, classes[i].word, !nested))
            return classes[i].code;
    return -EPROTO;
}

int redis_error_len(const char *text, size_t len)
{
    const char *place = memmem(text, len, " script: ", 9);

    return (int)MIN(place != NULL ? (size_t)(place - text) : len, SHOWN_MAX);
}

bool redis_is_transient(int code)
{
    switch (code) {
    case -EROFS:
    case -ENOSPC:
    case -EAGAIN:
    case -ETIMEDOUT:
    case -ECONNRESET:
    case -ECONNREFUSED:
    case -ENOTCONN:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -EPIPE:
        return true;
    default:
        /* Names are looked up again. */
        return code <= UV_EAI_ADDRFAMILY && code >= UV_EAI_OVERFLOW - 20;
    }
}

/* error.c - the server's error replies as -errno; contract in redis.h. */
#include "redis/redis.h"

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

/* Is word in text, as a whole?  Errors of commands inside of a script stand in the middle of the script's own. */
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
    static const char script[] = "ERR Error running script";
    static const char user_script[] = "ERR user_script";
    bool nested =
        (len > sizeof script && memcmp(text, script, sizeof script - 1) == 0) ||
        (len > sizeof user_script && memcmp(text, user_script, sizeof user_script - 1) == 0);

    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        if (has_word(text, len, classes[i].word, !nested))
            return classes[i].code;
    return -EPROTO;
}

size_t redis_error_len(const char *text, size_t len)
{
    const char *place = memmem(text, len, " script: ", 9);

    return place != NULL ? (size_t)(place - text) : len;
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
        return code <= UV_EAI_ADDRFAMILY &&
               code >= UV_EAI_OVERFLOW - 20; /* names are looked up again */
    }
}

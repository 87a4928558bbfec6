/* expand.c - {id} {queue} {attempt} {stream} in sink and stdin URLs.
 *
 * A value must not change what the URL means: "/" and a leading "." could leave the directory, "?", "#" and "&" could
 * add a parameter, "%" could pretend to be one of these, control characters belong nowhere.
 */
#include <stdio.h>

#include "base/buf.h"
#include "job/spec.h"

static int add_value(struct buf *buf, const char *value)
{
    for (const char *p = value; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        bool plain =
            c >= 0x20 && c != 0x7f && strchr("/%?#&", c) == NULL && !(c == '.' && p == value);
        int r = plain ? buf_add(buf, p, 1) : buf_addf(buf, "%%%02X", c);
        if (r < 0)
            return r;
    }
    return 0;
}

struct placeholder {
    const char *name, *value;
};

/* Add what stands for the placeholder at `open` (a "{") and return what is behind it; NULL with *err. */
static const char *add_placeholder(struct buf *buf, const char *open,
                                   const struct placeholder *known, size_t count,
                                   struct mandor_err *err)
{
    size_t len = strcspn(open + 1, "{}");

    if (open[1 + len] != '}') {
        (void)err_set(
            err, -EINVAL, FAULT_CALLER,
            "'%.40s' has no end, expected {id}, {queue}, {attempt} or {stream}, or {{ for a brace",
            open);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (strlen(known[i].name) != len || memcmp(known[i].name, open + 1, len) != 0)
            continue;
        if (add_value(buf, known[i].value) < 0) {
            (void)err_set(err, -ENOMEM, FAULT_HOST, "expand a URL");
            return NULL;
        }
        return open + len + 2;
    }
    (void)err_set(err, -EINVAL, FAULT_CALLER,
                  "unknown placeholder '%.*s', expected {id}, {queue}, {attempt} or {stream}, or "
                  "{{ for a brace",
                  (int)MIN(len + 2, (size_t)40), open);
    return NULL;
}

char *spec_expand(const char *template_text, const char *id, const char *queue, int64_t attempt,
                  const char *stream, struct mandor_err *err)
{
    char number[24];
    const struct placeholder known[] = {
        { "id", id },
        { "queue", queue },
        { "attempt", number },
        { "stream", stream },
    };
    SCOPED_BUF buf = { 0 };
    /* The bytes themselves, braces included. */
    bool verbatim = strncmp(template_text, "inline:", 7) == 0;

    (void)snprintf(number, sizeof number, "%" PRId64, attempt);
    for (const char *at = template_text; *at != '\0';) {
        size_t len = verbatim ? strlen(at) : strcspn(at, "{");
        if (len == 0 && at[1] != '{') {
            at = add_placeholder(&buf, at, known, ARRAY_LEN(known), err);
            if (at == NULL)
                return NULL;
            continue;
        }
        bool brace = len == 0; /* "{{" */
        if (buf_add(&buf, at, brace ? 1 : len) < 0)
            goto no_memory;
        at += brace ? 2 : len;
    }
    char *text = buf_steal(&buf);
    if (text != NULL)
        return text;
no_memory:
    (void)err_set(err, -ENOMEM, FAULT_HOST, "expand a URL");
    return NULL;
}

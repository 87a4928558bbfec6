/* buf.c - contract in buf.h. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>

#define BUF_FIRST ((size_t)64) /* bytes of the first allocation */

int buf_reserve(struct buf *buf, size_t len)
{
    if (len >= SIZE_MAX / 2 - buf->len)
        return -ENOMEM;
    size_t need = buf->len + len + 1;
    if (need <= buf->cap)
        return 0;

    size_t cap = MAX(MAX(need, buf->cap + buf->cap / 2), BUF_FIRST);
    char *data = realloc(buf->data, cap);
    if (data == NULL)
        return -ENOMEM;

    buf->data = data;
    buf->cap = cap;
    buf->data[buf->len] = '\0';
    return 0;
}

int buf_add(struct buf *buf, const void *bytes, size_t len)
{
    int r = buf_reserve(buf, len);
    if (r < 0)
        return r;

    if (len > 0)
        memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
    return 0;
}

int buf_adds(struct buf *buf, const char *text)
{
    return buf_add(buf, text, strlen(text));
}

int buf_addf(struct buf *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0 || buf_reserve(buf, (size_t)n) < 0)
        return -ENOMEM;

    va_start(args, fmt);
    (void)vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, args);
    va_end(args);
    buf->len += (size_t)n;
    return 0;
}

void buf_consume(struct buf *buf, size_t n)
{
    BUG_ON(n > buf->len);
    if (n == 0)
        return;

    buf->len -= n;
    memmove(buf->data, buf->data + n, buf->len + 1);
}

void buf_clear(struct buf *buf)
{
    buf->len = 0;
    if (buf->data != NULL)
        buf->data[0] = '\0';
}

void buf_done(struct buf *buf)
{
    free(buf->data);
    *buf = (struct buf){ 0 };
}

char *buf_steal(struct buf *buf)
{
    char *data = buf->data != NULL ? buf->data : calloc(1, 1);

    *buf = (struct buf){ 0 };
    return data;
}

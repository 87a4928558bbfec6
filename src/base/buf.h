/* buf.h - growable bytes, always NUL-terminated behind len so that text can be used as a string. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/macro.h"

struct buf {
    char *data; /* NULL while nothing was added */
    size_t len, cap;
};

/* Each returns 0 or -ENOMEM (the buffer is unchanged then). */
MUST_CHECK int buf_add(struct buf *buf, const void *bytes, size_t len);
MUST_CHECK int buf_adds(struct buf *buf, const char *text);
MUST_CHECK int buf_addf(struct buf *buf, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Make room for len more bytes at data + len. */
MUST_CHECK int buf_reserve(struct buf *buf, size_t len);
/* Drop the first n bytes. */
void buf_consume(struct buf *buf, size_t n);
void buf_clear(struct buf *buf); /* len = 0, memory kept */
void buf_done(struct buf *buf);  /* memory freed; usable again as empty */
/* Hand the memory over as a malloc'ed string (never NULL on success); buf is empty afterwards. */
char *buf_steal(struct buf *buf);

#define SCOPED_BUF __attribute__((cleanup(buf_done), unused)) struct buf

#endif

/* capture.c - contract in capture.h.  Linear while it grows, a ring once it has reached max. */
#include "stream/capture.h"

#define CAPTURE_FIRST ((size_t)1 << 10)

void capture_init(struct capture *capture, size_t max)
{
    *capture = (struct capture){ .max = max };
}

void capture_done(struct capture *capture)
{
    free(capture->bytes);
    *capture = (struct capture){ .max = capture->max };
}

/* Make room for len bytes in all, at most max. */
static void grow(struct capture *capture, size_t len)
{
    size_t cap = MAX(capture->cap, CAPTURE_FIRST);

    while (cap < len && cap < capture->max)
        cap *= 2;
    cap = MIN(cap, capture->max);
    if (cap <= capture->cap || capture->start != 0)
        return;

    unsigned char *bytes = realloc(capture->bytes, cap);
    if (bytes == NULL)
        return;
    capture->bytes = bytes;
    capture->cap = cap;
}

void capture_add(struct capture *capture, const void *bytes, size_t len)
{
    const unsigned char *from = bytes;

    if (len == 0)
        return;
    if (capture->len + len > capture->cap)
        grow(capture, capture->len + len);
    if (capture->cap == 0)
        return;
    if (len > capture->cap) {
        from += len - capture->cap;
        len = capture->cap;
    }

    size_t end = (capture->start + capture->len) % capture->cap;
    size_t first = MIN(len, capture->cap - end);
    memcpy(capture->bytes + end, from, first);
    if (len > first)
        memcpy(capture->bytes, from + first, len - first);

    size_t total = capture->len + len;
    if (total > capture->cap) {
        capture->start = (capture->start + total - capture->cap) % capture->cap;
        total = capture->cap;
    }
    capture->len = total;
}

static void reverse(unsigned char *bytes, size_t len)
{
    for (size_t i = 0, j = len; i + 1 < j; i++) {
        unsigned char swap = bytes[i];
        bytes[i] = bytes[--j];
        bytes[j] = swap;
    }
}

const void *capture_bytes(struct capture *capture, size_t *ret_len)
{
    if (capture->start != 0) { /* rotate in place: full, so three reversals do it */
        reverse(capture->bytes, capture->start);
        reverse(capture->bytes + capture->start, capture->cap - capture->start);
        reverse(capture->bytes, capture->cap);
        capture->start = 0;
    }
    *ret_len = capture->len;
    return capture->bytes;
}

/* lines.c - contract in lines.h. */
#include "cli/lines.h"

#define READ_SIZE ((size_t)256 << 10)

void lines_init(struct lines *lines, int fd, char delim, size_t max)
{
    *lines = (struct lines){ .fd = fd, .delim = delim, .max = max };
}

void lines_done(struct lines *lines)
{
    buf_done(&lines->in);
}

/* The line from `at` up to end is over; next: where the one behind it starts. */
static enum lines_result give(struct lines *lines, size_t end, size_t next, const char **ret_line,
                              size_t *ret_len)
{
    bool too_long = lines->skipping || end - lines->at > lines->max;

    *ret_line = lines->in.data + lines->at;
    *ret_len = end - lines->at;
    lines->at = lines->scanned = next;
    lines->skipping = false;
    lines->number++;
    return too_long ? LINES_TOO_LONG : LINES_LINE;
}

enum lines_result lines_next(struct lines *lines, const char **ret_line, size_t *ret_len)
{
    struct buf *in = &lines->in;
    char *found = in->len > lines->scanned
                      ? memchr(in->data + lines->scanned, lines->delim, in->len - lines->scanned)
                      : NULL;

    if (found != NULL) {
        size_t end = (size_t)(found - in->data);
        return give(lines, end, end + 1, ret_line, ret_len);
    }
    lines->scanned = in->len;
    if (lines->over && (in->len > lines->at || lines->skipping))
        return give(lines, in->len, in->len, ret_line, ret_len);
    return lines->over ? LINES_END : LINES_WANT;
}

int lines_fill(struct lines *lines)
{
    struct buf *in = &lines->in;

    buf_consume(in, lines->at);
    lines->scanned -= lines->at;
    lines->at = 0;
    if (in->len > lines->max) { /* no delimiter so far: forget what came */
        buf_clear(in);
        lines->scanned = 0;
        lines->skipping = true;
    }

    int r = buf_reserve(in, READ_SIZE);
    if (r < 0)
        return r;
    ssize_t n = RETRY_EINTR(read(lines->fd, in->data + in->len, READ_SIZE));
    if (n < 0)
        return errno == EAGAIN ? 0 : -errno;
    in->len += (size_t)n;
    lines->over = n == 0;
    return 0;
}

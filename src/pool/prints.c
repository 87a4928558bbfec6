/* prints.c - contract in prints.h. */
#include "pool/prints.h"

#define PRINTS_MAGIC 0x7072696eu
#define READ_SIZE    ((size_t)16 << 10)
#define FINISH_MAX   ((size_t)1 << 20) /* a pipe holds no more (pipe(7)) */

struct prints {
    uint32_t magic;
    int fd; /* -1 = closed */
    uv_poll_t poll;
    bool poll_open, closing;
    char line[PRINTS_LINE];
    size_t len;
    void (*on_line)(void *arg, const char *line);
    void *arg;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

static void try_free(struct prints *prints)
{
    if (!prints->closing || prints->poll_open)
        return;
    void (*on_closed)(void *arg) = prints->on_closed;
    void *arg = prints->closed_arg;
    OBJ_FINI(prints);
    free(prints);
    if (on_closed != NULL)
        on_closed(arg);
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct prints *prints = handle->data;
    OBJ_CHECK(prints, PRINTS_MAGIC);

    prints->poll_open = false;
    try_free(prints);
}

/* The handle goes with its descriptor, see stop_io() of peer.c. */
static void stop(struct prints *prints)
{
    if (prints->fd < 0)
        return;
    uv_close((uv_handle_t *)&prints->poll, on_poll_closed);
    (void)close(STEAL_FD(prints->fd));
}

static void tell(struct prints *prints)
{
    prints->line[prints->len] = '\0';
    if (prints->len > 0)
        prints->on_line(prints->arg, prints->line);
    prints->len = 0;
}

static void take(struct prints *prints, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] == '\n')
            tell(prints);
        else if (prints->len + 1 < PRINTS_LINE)
            prints->line[prints->len++] =
                (unsigned char)bytes[i] < ' ' && bytes[i] != '\t' ? ' ' : bytes[i];
    }
}

/* Returns bytes, 0 when there is nothing now or ever. */
static size_t read_some(struct prints *prints)
{
    char bytes[READ_SIZE];

    if (prints->fd < 0)
        return 0;
    ssize_t n = RETRY_EINTR(read(prints->fd, bytes, sizeof bytes));
    if (n > 0)
        take(prints, bytes, (size_t)n);
    else if (n == 0 || errno != EAGAIN)
        stop(prints);
    return n > 0 ? (size_t)n : 0;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct prints *prints = poll->data;
    OBJ_CHECK(prints, PRINTS_MAGIC);

    (void)status, (void)events;
    for (int i = 0; i < 4 && read_some(prints) == READ_SIZE; i++)
        ;
}

int prints_new(uv_loop_t *loop, int adopt_fd, void (*on_line)(void *arg, const char *line),
               void *arg, struct prints **ret)
{
    SCOPED_FD fd = adopt_fd;
    struct prints *prints = calloc(1, sizeof *prints);

    if (prints == NULL)
        return -ENOMEM;
    *prints = (struct prints){ .magic = PRINTS_MAGIC, .fd = fd, .on_line = on_line, .arg = arg };
    int r = uv_poll_init(loop, &prints->poll, fd);
    if (r < 0) {
        free(prints);
        return r;
    }
    STEAL_FD(fd);
    prints->poll_open = true;
    prints->poll.data = prints;
    (void)uv_poll_start(&prints->poll, UV_READABLE, on_readable);
    *ret = prints;
    return 0;
}

void prints_finish(struct prints *prints)
{
    size_t got = 0, n;
    OBJ_CHECK(prints, PRINTS_MAGIC);

    while (got < FINISH_MAX && (n = read_some(prints)) > 0)
        got += n;
    stop(prints);
    tell(prints);
}

void prints_close(struct prints *prints, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(prints, PRINTS_MAGIC);
    stop(prints);
    prints->on_closed = on_closed;
    prints->closed_arg = arg;
    prints->closing = true;
    try_free(prints);
}

/* channel.c - contract in channel.h. */
#include "exec/channel.h"

#include "base/json.h"

#define CHANNEL_MAGIC 0x63686e6cu

static const char *const common[] = { "progress", "log", "result", "data", "again", NULL };

#define RESULT_START "{\"result\": "
#define ARRAY_COST   4 /* in numbers, each of 24 bytes and a pointer */
#define OBJECT_COST  8

static bool starts_as_result(const char *line, size_t len)
{
    return len >= strlen(RESULT_START) && memcmp(line, RESULT_START, strlen(RESULT_START)) == 0;
}

/* No less than the line's values take, in numbers. */
static size_t cost_of(const char *line, size_t len)
{
    size_t cost = 1;
    bool text = false;

    for (size_t i = 0; i < len; i++) {
        char c = line[i];
        if (c == '"')
            text = !text;
        else if (text)
            i += c == '\\';
        else
            cost += c == '{' ? OBJECT_COST : c == '[' ? ARRAY_COST : c == ',' || c == ':';
    }
    return cost;
}

static void skip_line(struct channel_parser *parser, const char *line, size_t len)
{
    parser->skipped++;
    parser->refused += starts_as_result(line, len);
}

static void parse_line(struct channel_parser *parser, char *line, size_t len,
                       void (*on_value)(void *arg, const char *kind, json_t *value), void *arg)
{
    SCOPED_JSON *json = NULL;
    const char *const *kinds = parser->kinds != NULL ? parser->kinds : common;
    bool known = false;

    if (len == 0)
        return;
    if (len > CHANNEL_COST_MAX / OBJECT_COST && cost_of(line, len) > CHANNEL_COST_MAX) {
        skip_line(parser, line, len);
        return;
    }
    int r = json_parse(line, len, &json, NULL);
    if (r < 0 && json_mend_surrogates(line, len))
        r = json_parse(line, len, &json, NULL);
    if (r == 0 && json_is_object(json)) {
        for (size_t i = 0; kinds[i] != NULL; i++) {
            json_t *value = json_object_get(json, kinds[i]);
            if (value == NULL)
                continue;
            known = true;
            on_value(arg, kinds[i], value);
        }
    }
    if (!known)
        parser->skipped++;
}

/* Add a piece of the current line, or give the line up when it is too long or memory is out. */
static void gather(struct channel_parser *parser, const char *bytes, size_t len)
{
    struct buf *line = &parser->line;
    size_t max = CHANNEL_LINE_MAX;

    if (parser->skipping)
        return;
    if (parser->line_max > 0 &&
        starts_as_result(line->len > 0 ? line->data : bytes, line->len > 0 ? line->len : len))
        max = parser->line_max;
    if (line->len + len > max || buf_add(line, bytes, len) < 0) {
        parser->skipping = true;
        skip_line(parser, line->len > 0 ? line->data : bytes, line->len > 0 ? line->len : len);
        buf_done(line);
    }
}

void channel_parse(struct channel_parser *parser, const char *bytes, size_t len,
                   void (*on_value)(void *arg, const char *kind, json_t *value), void *arg)
{
    while (len > 0) {
        const char *newline = memchr(bytes, '\n', len);
        size_t piece = newline != NULL ? (size_t)(newline - bytes) : len;

        gather(parser, bytes, piece);
        if (newline == NULL)
            return;
        if (!parser->skipping)
            parse_line(parser, parser->line.data, parser->line.len, on_value, arg);
        parser->skipping = false;
        buf_clear(&parser->line);
        bytes += piece + 1;
        len -= piece + 1;
    }
}

void channel_parse_end(struct channel_parser *parser,
                       void (*on_value)(void *arg, const char *kind, json_t *value), void *arg)
{
    if (!parser->skipping)
        parse_line(parser, parser->line.data, parser->line.len, on_value, arg);
    parser->skipping = false;
    buf_done(&parser->line);
}

struct channel {
    uint32_t magic;
    int fd;
    bool ended;
    uv_poll_t poll;
    struct channel_parser parser;
    struct channel_events events;
    void *arg;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

static void end(struct channel *channel)
{
    if (channel->ended)
        return;
    channel->ended = true;
    (void)uv_poll_stop(&channel->poll);
    channel_parse_end(&channel->parser, channel->events.on_value, channel->arg);
    channel->events.on_ended(channel->arg);
}

/* Read up to max bytes.  Returns false at end of file or on an error: nothing more will come. */
static bool take(struct channel *channel, size_t max, bool *ret_empty)
{
    char bytes[16 << 10];

    *ret_empty = false;
    for (size_t total = 0; total < max;) {
        ssize_t n = RETRY_EINTR(read(channel->fd, bytes, sizeof bytes));
        if (n < 0 && errno == EAGAIN) {
            *ret_empty = true;
            return true;
        }
        if (n <= 0)
            return false;
        total += (size_t)n;
        channel_parse(&channel->parser, bytes, (size_t)n, channel->events.on_value, channel->arg);
    }
    return true;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct channel *channel = CONTAINER_OF(poll, struct channel, poll);
    bool empty;

    OBJ_CHECK(channel, CHANNEL_MAGIC);
    (void)events;
    bool more = status == 0 && take(channel, CHANNEL_TURN_MAX, &empty);
    channel->events.on_activity(channel->arg);
    if (!more)
        end(channel);
}

int channel_new(uv_loop_t *loop, int adopt_fd, const struct channel_events *events, void *arg,
                struct channel **ret)
{
    struct channel *channel = calloc(1, sizeof *channel);
    int r = -ENOMEM;

    if (channel == NULL)
        goto fail_fd;
    *channel = (struct channel){
        .magic = CHANNEL_MAGIC,
        .fd = adopt_fd,
        .parser = { .kinds = events->kinds, .line_max = events->line_max },
        .events = *events,
        .arg = arg,
    };
    r = uv_poll_init(loop, &channel->poll, adopt_fd); /* which makes it non-blocking */
    if (r < 0)
        goto fail;
    BUG_ON(uv_poll_start(&channel->poll, UV_READABLE, on_readable) < 0);
    *ret = channel;
    return 0;

fail:
    free(channel);
fail_fd:
    (void)close(adopt_fd);
    return r;
}

void channel_finish(struct channel *channel)
{
    OBJ_CHECK(channel, CHANNEL_MAGIC);
    bool empty = false;

    /* Nobody of the job is left, so the pipe holds at most its own size (a stranger may keep a writer: EAGAIN ends it). */
    if (!channel->ended)
        (void)take(channel, MAX(channel->parser.line_max, CHANNEL_LINE_MAX), &empty);
    end(channel);
}

int64_t channel_refused(const struct channel *channel)
{
    OBJ_CHECK(channel, CHANNEL_MAGIC);
    return channel->parser.refused;
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct channel *channel = CONTAINER_OF((uv_poll_t *)handle, struct channel, poll);
    void (*on_closed)(void *arg) = channel->on_closed;
    void *arg = channel->closed_arg;

    (void)close(channel->fd);
    buf_done(&channel->parser.line);
    OBJ_FINI(channel);
    free(channel);
    if (on_closed != NULL)
        on_closed(arg);
}

void channel_close(struct channel *channel, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(channel, CHANNEL_MAGIC);
    channel->ended = true;
    channel->on_closed = on_closed;
    channel->closed_arg = arg;
    uv_close((uv_handle_t *)&channel->poll, on_poll_closed);
}

/* framer.c - contract in framer.h.  One table row for each kind; binary kinds share the walk and differ in their header. */
#include "stream/framer.h"

struct framer_ops {
    const char *name;
    int (*push)(struct framer *framer, const unsigned char *bytes, size_t len,
                const struct framer_events *events);
    int (*end)(struct framer *framer, const struct framer_events *events);
    /* Binary: take one header byte.  1 = complete (framer->header is the length), 0 = more, -EPROTO. */
    int (*header)(struct framer *framer, unsigned char byte);
    int trailer; /* the byte that must follow the payload, -1 = none */
};

static void piece(const struct framer_events *events, const unsigned char *bytes, size_t len)
{
    if (events != NULL && events->on_piece != NULL && len > 0)
        events->on_piece(events->arg, bytes, len);
}

static void complete(struct framer *framer, const struct framer_events *events, unsigned flags)
{
    framer->frames++;
    if (events != NULL && events->on_frame != NULL)
        events->on_frame(events->arg, flags);
}

static int broken(struct framer *framer, const char *fault)
{
    framer->fault = fault;
    return -EPROTO;
}

/* ---- raw ---- */

static int raw_push(struct framer *framer, const unsigned char *bytes, size_t len,
                    const struct framer_events *events)
{
    piece(events, bytes, len);
    framer->offset += (int64_t)len;
    return 0;
}

static int raw_end(struct framer *framer, const struct framer_events *events)
{
    return 0;
}

/* ---- lines ---- */

static void carry_add(struct framer *framer, const unsigned char *bytes, size_t len)
{
    size_t n = MIN(len, FRAMER_PROGRESS_MAX - framer->carry_len);

    memcpy(framer->carry + framer->carry_len, bytes, n);
    framer->carry_len += n;
}

/* Where the text that runs up to `end` begins: behind the last \r or \n before it. */
static size_t text_start(const unsigned char *bytes, size_t end)
{
    const unsigned char *newline = memrchr(bytes, '\n', end);
    size_t start = newline == NULL ? 0 : (size_t)(newline - bytes) + 1;
    const unsigned char *cr = memrchr(bytes + start, '\r', end - start);

    return cr == NULL ? start : (size_t)(cr - bytes) + 1;
}

/* Find the last \r of this chunk that does not belong to a \r\n.  Only the last counts: whoever draws progress wants
 * the newest, and a chunk is looked at from its end, so two million of them cost no more than one (R49).  A \r that is
 * the chunk's last byte counts at once, because a program that draws progress is silent after it. */
static void note_progress(struct framer *framer, const unsigned char *bytes, size_t len)
{
    size_t end = len;
    const unsigned char *cr;

    while ((cr = memrchr(bytes, '\r', end)) != NULL) {
        end = (size_t)(cr - bytes);
        if (end + 1 == len || bytes[end + 1] != '\n')
            break;
    }
    if (cr != NULL) {
        size_t start = text_start(bytes, end);
        if (start > 0)
            framer->carry_len = 0;
        carry_add(framer, bytes + start, end - start);
        memcpy(framer->progress, framer->carry, framer->carry_len);
        framer->progress_len = framer->carry_len;
        framer->progress_new = true;
    }

    size_t rest = text_start(bytes, len);
    if (rest > 0)
        framer->carry_len = 0;
    carry_add(framer, bytes + rest, len - rest);
}

/* Bytes of one line (newline at most as the last of them): split at frame_max. */
static void line_bytes(struct framer *framer, const unsigned char *bytes, size_t len,
                       const struct framer_events *events)
{
    while (len > 0) {
        /* There is more than fits: only now it is known. */
        if (framer->frame_len == framer->frame_max) {
            complete(framer, events, FRAME_CONT);
            framer->frame_start += (int64_t)framer->frame_len;
            framer->frame_len = 0;
        }
        size_t n = MIN(len, framer->frame_max - framer->frame_len);
        piece(events, bytes, n);
        framer->frame_len += n;
        bytes += n;
        len -= n;
    }
}

static int lines_push(struct framer *framer, const unsigned char *bytes, size_t len,
                      const struct framer_events *events)
{
    const unsigned char *at = bytes, *end = bytes + len, *newline;

    while (at < end && (newline = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        line_bytes(framer, at, (size_t)(newline - at) + 1, events);
        complete(framer, events, 0);
        framer->frame_len = 0;
        at = newline + 1;
        framer->frame_start = framer->offset + (at - bytes);
    }
    line_bytes(framer, at, (size_t)(end - at), events);
    note_progress(framer, bytes, len);
    framer->offset += (int64_t)len;
    return 0;
}

static int lines_end(struct framer *framer, const struct framer_events *events)
{
    if (framer->frame_len > 0)
        complete(framer, events, FRAME_PARTIAL);
    framer->frame_len = 0;
    return 0;
}

/* ---- binary kinds ---- */

static int u32be_header(struct framer *framer, unsigned char byte)
{
    framer->header = framer->header << 8 | byte;
    return framer->header_len == 4;
}

static int u32le_header(struct framer *framer, unsigned char byte)
{
    framer->header |= (uint64_t)byte << (8 * (framer->header_len - 1));
    return framer->header_len == 4;
}

/* Base 128, least significant group first, high bit = more (as protocol buffers delimit messages). */
static int varint_header(struct framer *framer, unsigned char byte)
{
    unsigned shift = 7 * (framer->header_len - 1);

    if (shift > 63 || (shift == 63 && byte > 1))
        return broken(framer, "its varint length does not fit in 64 bits");
    framer->header |= (uint64_t)(byte & 0x7f) << shift;
    return (byte & 0x80) == 0;
}

static int netstring_header(struct framer *framer, unsigned char byte)
{
    if (byte == ':')
        return framer->header_len > 1 ? 1 : broken(framer, "its netstring length is missing");
    if (byte < '0' || byte > '9')
        return broken(framer, "its netstring length has a character that is neither digit nor ':'");
    if (framer->header_len > 1 && framer->header == 0)
        return broken(framer, "its netstring length has a leading zero");
    framer->header = framer->header * 10 + (uint64_t)(byte - '0');
    if (framer->header > framer->frame_max) /* now, before it overflows */
        return broken(framer, "it is longer than frame_max");
    return 0;
}

static void next_frame(struct framer *framer, const struct framer_events *events)
{
    complete(framer, events, 0);
    framer->where = FRAMER_HEADER;
    framer->header = 0;
    framer->header_len = 0;
    framer->frame_start = framer->offset;
}

static void body_done(struct framer *framer, const struct framer_events *events)
{
    if (framer->ops->trailer >= 0)
        framer->where = FRAMER_TRAILER;
    else
        next_frame(framer, events);
}

static int header_byte(struct framer *framer, unsigned char byte,
                       const struct framer_events *events)
{
    framer->header_len++;
    framer->offset++;
    int r = framer->ops->header(framer, byte);
    if (r <= 0)
        return r;
    if (framer->header > framer->frame_max)
        return broken(framer, "it is longer than frame_max");

    framer->frame_len = (size_t)framer->header;
    framer->where = FRAMER_BODY;
    if (framer->frame_len == 0)
        body_done(framer, events);
    return 0;
}

static size_t body_bytes(struct framer *framer, const unsigned char *bytes, size_t len,
                         const struct framer_events *events)
{
    size_t n = MIN(len, framer->frame_len);

    piece(events, bytes, n);
    framer->offset += (int64_t)n;
    framer->frame_len -= n;
    if (framer->frame_len == 0)
        body_done(framer, events);
    return n;
}

static int binary_push(struct framer *framer, const unsigned char *bytes, size_t len,
                       const struct framer_events *events)
{
    const unsigned char *end = bytes + len;

    while (bytes < end) {
        if (framer->where == FRAMER_BODY) {
            bytes += body_bytes(framer, bytes, (size_t)(end - bytes), events);
        } else if (framer->where == FRAMER_HEADER) {
            int r = header_byte(framer, *bytes++, events);
            if (r < 0)
                return r;
        } else {
            if (*bytes++ != framer->ops->trailer)
                return broken(framer, "the ',' after its netstring payload is missing");
            framer->offset++;
            next_frame(framer, events);
        }
    }
    return 0;
}

static int binary_end(struct framer *framer, const struct framer_events *events)
{
    if (framer->where == FRAMER_HEADER && framer->header_len == 0)
        return 0;
    return broken(framer, "the stream ended inside of it");
}

static const struct framer_ops framers[] = {
    [FRAME_RAW] = { "raw", raw_push, raw_end, NULL, -1 },
    [FRAME_LINES] = { "lines", lines_push, lines_end, NULL, -1 },
    [FRAME_U32BE] = { "u32be", binary_push, binary_end, u32be_header, -1 },
    [FRAME_U32LE] = { "u32le", binary_push, binary_end, u32le_header, -1 },
    [FRAME_VARINT] = { "varint", binary_push, binary_end, varint_header, -1 },
    [FRAME_NETSTRING] = { "netstring", binary_push, binary_end, netstring_header, ',' },
};

void framer_init(struct framer *framer, enum spec_frame frame, size_t frame_max)
{
    BUG_ON((size_t)frame >= ARRAY_LEN(framers) || frame_max == 0);
    memset(framer, 0, offsetof(struct framer, carry)); /* the texts have lengths */
    framer->ops = &framers[frame];
    framer->frame_max = frame_max;
}

int framer_push(struct framer *framer, const void *bytes, size_t len,
                const struct framer_events *events)
{
    return len == 0 ? 0 : framer->ops->push(framer, bytes, len, events);
}

int framer_end(struct framer *framer, const struct framer_events *events)
{
    return framer->ops->end(framer, events);
}

int framer_error(const struct framer *framer, struct mandor_err *err)
{
    return err_set(err, -EPROTO, FAULT_JOB, "%s frame %" PRId64 " at byte %" PRId64 ": %s",
                   framer->ops->name, framer->frames + 1, framer->frame_start, framer->fault);
}

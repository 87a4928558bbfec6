/* frame_model.c - contract in frame_model.h. */
#include "frame_model.h"

static void add(struct buf *log, const void *bytes, size_t len)
{
    if (len > 0)
        BUG_ON(buf_add(log, bytes, len) < 0);
}

static void frame_over(struct buf *log, unsigned flags)
{
    BUG_ON(buf_addf(log, "|%u;", flags) < 0);
}

static void model_lines(size_t frame_max, const unsigned char *bytes, size_t len, struct buf *log)
{
    size_t start = 0;

    while (start < len) {
        size_t end = start;
        while (end < len && bytes[end] != '\n')
            end++;
        bool whole = end < len;
        end += whole;
        while (end - start > frame_max) {
            add(log, bytes + start, frame_max);
            frame_over(log, FRAME_CONT);
            start += frame_max;
        }
        add(log, bytes + start, end - start);
        frame_over(log, whole ? 0 : FRAME_PARTIAL);
        start = end;
    }
}

/* The header at `at`: its length in *ret_used, the payload's returned; SIZE_MAX = malformed or cut. */
static size_t model_header(enum spec_frame frame, size_t frame_max, const unsigned char *bytes,
                           size_t len, size_t *ret_used)
{
    uint64_t value = 0;
    size_t i = 0;

    switch (frame) {
    case FRAME_U32BE:
    case FRAME_U32LE:
        if (len < 4)
            return SIZE_MAX;
        for (i = 0; i < 4; i++)
            value |= (uint64_t)bytes[i] << (frame == FRAME_U32LE ? 8 * i : 8 * (3 - i));
        break;
    case FRAME_VARINT:
        do {
            if (i == len || i == 10 || (i == 9 && bytes[i] > 1))
                return SIZE_MAX;
            value |= (uint64_t)(bytes[i] & 0x7f) << (7 * i);
        } while (bytes[i++] & 0x80);
        break;
    default: /* netstring */
        while (i < len && bytes[i] >= '0' && bytes[i] <= '9' && value <= frame_max)
            value = value * 10 + (uint64_t)(bytes[i++] - '0');
        if (i == 0 || i == len || bytes[i] != ':' || (i > 1 && bytes[0] == '0'))
            return SIZE_MAX;
        i++;
    }
    *ret_used = i;
    return value > frame_max ? SIZE_MAX : (size_t)value;
}

/* Payload bytes that the framer passes on before it finds a frame torn are part of the log too. */
static void model_binary(enum spec_frame frame, size_t frame_max, const unsigned char *bytes,
                         size_t len, struct buf *log)
{
    size_t at = 0, trailer = frame == FRAME_NETSTRING;

    while (at < len) {
        size_t used = 0, payload = model_header(frame, frame_max, bytes + at, len - at, &used);
        if (payload == SIZE_MAX)
            goto broken;
        at += used;
        add(log, bytes + at, MIN(payload, len - at));
        if (len - at < payload + trailer || (trailer && bytes[at + payload] != ','))
            goto broken;
        frame_over(log, 0);
        at += payload + trailer;
    }
    return;
broken:
    add(log, "!", 1);
}

void frame_model(enum spec_frame frame, size_t frame_max, const unsigned char *bytes, size_t len,
                 struct buf *log)
{
    if (frame == FRAME_RAW)
        add(log, bytes, len);
    else if (frame == FRAME_LINES)
        model_lines(frame_max, bytes, len, log);
    else
        model_binary(frame, frame_max, bytes, len, log);
}

static void on_piece(void *arg, const void *bytes, size_t len)
{
    BUG_ON(len == 0);
    add(arg, bytes, len);
}

static void on_frame(void *arg, unsigned flags)
{
    frame_over(arg, flags);
}

void frame_walk(enum spec_frame frame, size_t frame_max, const unsigned char *bytes, size_t len,
                size_t chunk, uint32_t seed, struct buf *log)
{
    struct framer_events events = { on_piece, on_frame, log };
    struct framer framer;
    int r = 0;

    framer_init(&framer, frame, frame_max);
    for (size_t at = 0; at < len && r == 0;) {
        seed = seed * 1664525u + 1013904223u;
        size_t n = MIN(chunk == 0 ? 1 + (seed >> 8) % 37 : chunk, len - at);
        char *copy = malloc(n); /* exactly n: the sanitizer sees every byte beyond */
        BUG_ON(copy == NULL);
        memcpy(copy, bytes + at, n);
        r = framer_push(&framer, copy, n, &events);
        free(copy);
        at += n;
    }
    if (r == 0)
        r = framer_end(&framer, &events);
    if (r < 0) {
        struct mandor_err err;
        BUG_ON(framer_error(&framer, &err) != -EPROTO || framer.fault == NULL);
        BUG_ON(framer.frame_start < 0 || framer.frame_start > (int64_t)len);
        add(log, "!", 1);
    }
}

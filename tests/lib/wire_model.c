#include "wire_model.h"

#include <stdio.h>

/* Written from doc/pool-protocol.md, without the table of wire.c. */
enum { HELLO = 1, JOB, CHUNK, RESULT, ERROR, PROGRESS, LOG, CANCEL, CREDIT, PING, PONG, BYE };

struct past {
    bool hello, bye;
    uint64_t job;
};

struct fields {
    uint64_t len, type, flags, version, job;
};

static uint64_t number(const unsigned char *bytes, size_t at, size_t count)
{
    uint64_t value = 0;

    for (size_t i = 0; i < count; i++)
        value += (uint64_t)bytes[at + i] << (8 * i);
    return value;
}

static bool forbidden(enum wire_side sender, uint64_t type)
{
    if (sender == WIRE_WORKER)
        return type == JOB || type == CANCEL;
    return type == RESULT || type == ERROR || type == PROGRESS || type == LOG;
}

static bool out_of_order(enum wire_side sender, const struct past *past, uint64_t type)
{
    if (!past->hello && past->bye)
        return true;
    if (!past->hello)
        return !(type == HELLO || (type == BYE && sender == WIRE_MANDOR));
    return type == HELLO || (past->bye && (type == BYE || type == JOB));
}

static uint64_t most(uint64_t type)
{
    switch (type) {
    case JOB:
    case CHUNK:
    case RESULT:
        return 16 << 20;
    case ERROR:
    case PROGRESS:
    case LOG:
        return 1 << 20;
    default:
        return 4096;
    }
}

/* The fault of a header, and in *at the byte of it that is wrong; NULL when it is good. */
static const char *judge(enum wire_side sender, const struct past *past, const struct fields *f,
                         size_t *at)
{
    const uint64_t stream = f->flags / 2 % 4;
    const bool worker = sender == WIRE_WORKER, named = f->type == CHUNK || f->type == CREDIT;
    const bool out = (f->type == CHUNK) == worker; /* else stdin */
    const bool connection = f->type == HELLO || f->type >= PING;
    uint64_t least = f->type == CHUNK                           ? 1 - f->flags % 2
                     : f->type == RESULT || f->type == PROGRESS ? 1
                                                                : 2;

    *at = 0;
    if (f->len > 16 << 20)
        return "length";
    *at = 4;
    if (f->type < HELLO || f->type > BYE)
        return "type";
    *at = 6;
    if (f->version != 1)
        return "version";
    *at = 4;
    if (forbidden(sender, f->type))
        return "direction";
    if (out_of_order(sender, past, f->type))
        return "order";
    *at = 5;
    if (f->flags >= 8 || (f->flags % 2 == 1 && f->type != CHUNK) || (!named && stream != 0))
        return "flags";
    if (named && (out ? stream != 1 && stream != 2 : stream != 0))
        return "stream";
    *at = 8;
    if (f->job >= (uint64_t)1 << 53 || (connection && f->job != 0) ||
        (!connection && f->type != LOG && f->job == 0) || (f->type == JOB && f->job <= past->job))
        return "job";
    *at = 0;
    return f->len < least || f->len > most(f->type) ? "length" : NULL;
}

static void log_text(struct buf *log, const char *text)
{
    if (buf_add(log, text, strlen(text)) < 0)
        abort();
}

static void log_frame(struct buf *log, const struct fields *f, const unsigned char *payload,
                      size_t len, bool begins, bool ends)
{
    char text[128];

    if (begins) {
        (void)snprintf(text, sizeof text, "%d.%d.%d.%" PRIu64 ".%" PRIu64 ":", (int)f->type,
                       (int)(f->flags / 2), (int)(f->flags % 2), f->job, f->len);
        log_text(log, text);
    }
    if (len > 0 && buf_add(log, payload, len) < 0)
        abort();
    if (ends)
        log_text(log, ";");
}

static void log_fault(struct buf *log, const char *fault, uint64_t at)
{
    char text[64];

    (void)snprintf(text, sizeof text, "!%s@%" PRIu64, fault, at);
    log_text(log, text);
}

void wire_model(enum wire_side sender, const unsigned char *bytes, size_t len, struct buf *log)
{
    struct past past = { 0 };

    for (size_t at = 0, wrong; at < len;) {
        if (len - at < 16) {
            log_fault(log, "torn", len);
            return;
        }
        struct fields f = { number(bytes, at, 4), bytes[at + 4], bytes[at + 5],
                            number(bytes, at + 6, 2), number(bytes, at + 8, 8) };
        const char *fault = judge(sender, &past, &f, &wrong);
        if (fault != NULL) {
            log_fault(log, fault, at + wrong);
            return;
        }
        at += 16;
        if (len - at < f.len) {
            log_fault(log, "torn", len);
            return;
        }
        log_frame(log, &f, bytes + at, f.len, true, true);
        at += f.len;
        past.hello |= f.type == HELLO;
        past.bye |= f.type == BYE;
        past.job = f.type == JOB ? f.job : past.job;
    }
}

/* The pieces of a CHUNK that stays torn were given out, but the model tells of whole frames alone. */
struct walk {
    struct wire_decoder decoder;
    struct buf *log;
    size_t whole;   /* length of the log behind the last whole frame */
    size_t last_at; /* where the '1' for `last` has to be put when it comes with the final piece */
};

static void walk_frame(struct walk *walk, const struct wire_frame *frame)
{
    const bool ends = frame->at + frame->len == frame->total;
    struct fields f = { frame->total, frame->type, (uint64_t)frame->stream * 2 + frame->last, 1,
                        frame->job };

    if (frame->last && !ends)
        abort();
    if (frame->at == 0) {
        char text[16];
        walk->last_at = walk->log->len + (size_t)snprintf(text, sizeof text, "%d.%d.",
                                                          (int)frame->type, (int)frame->stream);
    }
    log_frame(walk->log, &f, frame->payload, frame->len, frame->at == 0, ends);
    if (ends) {
        walk->log->data[walk->last_at] = frame->last ? '1' : '0';
        walk->whole = walk->log->len;
    }
}

static size_t pick(size_t chunk, uint32_t *seed, size_t left)
{
    if (chunk == 0) {
        *seed = *seed * 1664525u + 1013904223u;
        chunk = *seed >> 28 == 0 ? left : 1 + (*seed >> 8) % 40;
    }
    return MIN(chunk, left);
}

void wire_walk(enum wire_side sender, const unsigned char *bytes, size_t len, size_t chunk,
               uint32_t seed, bool pieces, struct buf *log)
{
    struct walk walk = { .log = log, .whole = log->len };
    int r = 0;

    wire_decoder_init(&walk.decoder, sender, pieces);
    for (size_t at = 0; at < len && r >= 0;) {
        /* A copy of just that size, so that a read behind its end is seen. */
        size_t n = pick(chunk, &seed, len - at), left = n;
        unsigned char *copy = malloc(n);
        if (copy == NULL)
            abort();
        memcpy(copy, bytes + at, n);
        const unsigned char *next = copy;
        struct wire_frame frame;
        while ((r = wire_decode(&walk.decoder, &next, &left, &frame)) == 1)
            walk_frame(&walk, &frame);
        if (r == 0 && left > 0)
            abort();
        /* at most twice of what came, and a page */
        if (walk.decoder.cap > 2 * (at + n) + 4096)
            abort();
        at += n;
        free(copy);
    }
    if (r == 0)
        r = wire_decoder_end(&walk.decoder);
    if (r < 0) {
        log->len = walk.whole;
        log_fault(log, wire_fault_name(walk.decoder.fault), walk.decoder.fault_at);
    }
    wire_decoder_done(&walk.decoder);
}

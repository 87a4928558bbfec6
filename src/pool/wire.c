/* wire.c - contract in wire.h.
 *
 * A header is looked at when its 16 bytes are there, and its faults are reported in one fixed order (check_frame), so that
 * all implementations name the same one.
 */
#include "pool/wire.h"

#include <stdarg.h>
#include <stdio.h>

#define GROW_MIN ((size_t)4 << 10)  /* bytes: first allocation for a payload in parts */
#define KEEP_MAX ((size_t)64 << 10) /* bytes: a larger buffer is freed behind its frame */

#define FLAG_LAST     0x01u
#define STREAM_SHIFT  1
#define STREAM_MASK   0x06u
#define FLAGS_DEFINED (FLAG_LAST | STREAM_MASK)

enum job_rule { JOB_NONE, JOB_SOME, JOB_ANY };
enum payload_kind {
    PAYLOAD_BYTES,
    PAYLOAD_VALUE,
    PAYLOAD_OBJECT
}; /* also the fewest bytes of each: 0, "0", "{}" */

#define STREAMS_NONE 0u
#define STREAMS_IN   (1u << WIRE_STDIN)
#define STREAMS_OUT  (1u << WIRE_STDOUT | 1u << WIRE_STDERR)

static const struct msg {
    const char *name;
    enum wire_side senders;
    enum job_rule job;
    enum payload_kind payload;
    uint32_t payload_max;
    unsigned mandor_streams, worker_streams;
    bool once;
} msgs[WIRE_TYPES] = {
#define MSG(number, NAME, sender, job, payload, max, mandor, worker, once)     \
    [number] = { #NAME, WIRE_##sender,    JOB_##job,        PAYLOAD_##payload, \
                 max,   STREAMS_##mandor, STREAMS_##worker, once },
#include "pool/wire_msgs.def"
#undef MSG
};

static const char *const fault_names[] = {
    [WIRE_FAULT_NONE] = "none",
    [WIRE_FAULT_LENGTH] = "length",
    [WIRE_FAULT_TYPE] = "type",
    [WIRE_FAULT_VERSION] = "version",
    [WIRE_FAULT_DIRECTION] = "direction",
    [WIRE_FAULT_ORDER] = "order",
    [WIRE_FAULT_FLAGS] = "flags",
    [WIRE_FAULT_STREAM] = "stream",
    [WIRE_FAULT_JOB] = "job",
    [WIRE_FAULT_TORN] = "torn",
};

/* The fields of a header as they stand on the wire. */
struct header {
    uint32_t len;
    unsigned type, flags, version;
    uint64_t job;
};

static uint64_t get_le(const unsigned char *bytes, int count)
{
    uint64_t value = 0;

    while (count-- > 0)
        value = value << 8 | bytes[count];
    return value;
}

static void put_le(unsigned char *bytes, int count, uint64_t value)
{
    for (int i = 0; i < count; i++, value >>= 8)
        bytes[i] = (unsigned char)value;
}

static struct header header_read(const unsigned char bytes[WIRE_HEADER_SIZE])
{
    return (struct header){
        .len = (uint32_t)get_le(bytes, 4),
        .type = bytes[4],
        .flags = bytes[5],
        .version = (unsigned)get_le(bytes + 6, 2),
        .job = get_le(bytes + 8, 8),
    };
}

static const char *side_name(enum wire_side side)
{
    return side == WIRE_MANDOR ? "mandor" : "a worker";
}

/* Fail for good.  field: offset of the header field that is wrong. */
static int fail(struct wire_decoder *decoder, enum wire_fault fault, unsigned field,
                const char *fmt, ...) PRINTF_LIKE(4, 5);
static int fail(struct wire_decoder *decoder, enum wire_fault fault, unsigned field,
                const char *fmt, ...)
{
    int n = snprintf(decoder->error, sizeof decoder->error, "byte %" PRIu64 ": ",
                     decoder->offset + field);
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(decoder->error + n, sizeof decoder->error - (size_t)n, fmt, args);
    va_end(args);
    decoder->fault = fault;
    decoder->fault_at = decoder->offset + field;
    return -EPROTO;
}

/* Sixteen bytes of a printed line instead of a header: the commonest accident deserves its own words. */
static bool looks_like_text(const unsigned char bytes[WIRE_HEADER_SIZE])
{
    for (int i = 0; i < WIRE_HEADER_SIZE; i++)
        if ((bytes[i] < 0x20 || bytes[i] > 0x7e) && bytes[i] != '\n' && bytes[i] != '\r' &&
            bytes[i] != '\t')
            return false;
    return true;
}

static int fail_size(struct wire_decoder *decoder, uint32_t len)
{
    char text[WIRE_HEADER_SIZE + 1] = "";

    if (!looks_like_text(decoder->header))
        return fail(decoder, WIRE_FAULT_LENGTH, 0,
                    "expected a payload of at most %u bytes, found length %u", WIRE_PAYLOAD_MAX,
                    len);
    for (int i = 0; i < WIRE_HEADER_SIZE; i++)
        text[i] = (char)(decoder->header[i] < 0x20 ? '.' : decoder->header[i]);
    return fail(decoder, WIRE_FAULT_LENGTH, 0,
                "expected a frame, found text: \"%s\" (prints belong on descriptor 1 or 2)", text);
}

static unsigned streams_of(const struct msg *msg, enum wire_side sender)
{
    return sender == WIRE_MANDOR ? msg->mandor_streams : msg->worker_streams;
}

/* What is first, what comes once, what comes no more. */
static int check_order(struct wire_decoder *decoder, const struct header *header)
{
    const bool hello = decoder->seen & 1u << WIRE_HELLO, bye = decoder->seen & 1u << WIRE_BYE;
    const char *name = msgs[header->type].name;

    if (bye && !hello)
        return fail(decoder, WIRE_FAULT_ORDER, 4, "expected the end after a refusing BYE, found %s",
                    name);
    if (!hello && header->type != WIRE_HELLO &&
        !(decoder->sender == WIRE_MANDOR && header->type == WIRE_BYE))
        return fail(decoder, WIRE_FAULT_ORDER, 4, "expected HELLO as the first frame, found %s",
                    name);
    if (msgs[header->type].once && decoder->seen & 1u << header->type)
        return fail(decoder, WIRE_FAULT_ORDER, 4, "expected %s once, found it again", name);
    if (bye && header->type == WIRE_JOB)
        return fail(decoder, WIRE_FAULT_ORDER, 4, "expected no JOB after BYE, found one");
    return 0;
}

static int check_flags(struct wire_decoder *decoder, const struct header *header)
{
    const struct msg *msg = &msgs[header->type];
    const unsigned streams = streams_of(msg, decoder->sender),
                   stream = (header->flags & STREAM_MASK) >> STREAM_SHIFT;

    if (header->flags & ~FLAGS_DEFINED)
        return fail(decoder, WIRE_FAULT_FLAGS, 5,
                    "expected bits 3-7 of the flags to be 0, found flags 0x%02x", header->flags);
    if (header->flags & FLAG_LAST && header->type != WIRE_CHUNK)
        return fail(decoder, WIRE_FAULT_FLAGS, 5,
                    "expected bit 0 of the flags on CHUNK alone, found it on %s", msg->name);
    if (streams == STREAMS_NONE && stream != 0)
        return fail(decoder, WIRE_FAULT_FLAGS, 5, "expected no stream on %s, found stream %u",
                    msg->name, stream);
    if (streams != STREAMS_NONE && !(streams & 1u << stream))
        return fail(decoder, WIRE_FAULT_STREAM, 5,
                    "expected stream %s on %s from %s, found stream %u",
                    streams == STREAMS_IN ? "0 (stdin)" : "1 or 2 (stdout, stderr)", msg->name,
                    side_name(decoder->sender), stream);
    return 0;
}

static int check_job(struct wire_decoder *decoder, const struct header *header)
{
    const struct msg *msg = &msgs[header->type];

    if (header->job > WIRE_NUMBER_MAX)
        return fail(decoder, WIRE_FAULT_JOB, 8,
                    "expected a job number up to 2^53-1, found %" PRIu64, header->job);
    if (msg->job == JOB_NONE && header->job != 0)
        return fail(decoder, WIRE_FAULT_JOB, 8, "expected job number 0 on %s, found %" PRIu64,
                    msg->name, header->job);
    if (msg->job == JOB_SOME && header->job == 0)
        return fail(decoder, WIRE_FAULT_JOB, 8, "expected a job number on %s, found 0", msg->name);
    if (header->type == WIRE_JOB && header->job <= decoder->last_job)
        return fail(decoder, WIRE_FAULT_JOB, 8,
                    "expected a JOB number above %" PRIu64 ", found %" PRIu64, decoder->last_job,
                    header->job);
    return 0;
}

static int check_length(struct wire_decoder *decoder, const struct header *header)
{
    const struct msg *msg = &msgs[header->type];
    const bool end = header->type == WIRE_CHUNK && header->flags & FLAG_LAST;
    /* A CHUNK that neither carries nor ends anything would cost no credit and could be sent for ever. */
    const uint32_t least = header->type == WIRE_CHUNK ? !end : msg->payload;

    if (header->len < least || header->len > msg->payload_max)
        return fail(decoder, WIRE_FAULT_LENGTH, 0,
                    "expected %u to %u bytes of payload in %s%s, found length %u", least,
                    msg->payload_max, msg->name,
                    header->type == WIRE_CHUNK && !end ? " that is not the last" : "", header->len);
    return 0;
}

static int check_header(struct wire_decoder *decoder, const struct header *header)
{
    int r;

    if (header->len > WIRE_PAYLOAD_MAX)
        return fail_size(decoder, header->len);
    if (header->type == 0 || header->type >= WIRE_TYPES)
        return fail(decoder, WIRE_FAULT_TYPE, 4, "expected a type from 1 to %d, found %u",
                    WIRE_TYPES - 1, header->type);
    if (header->version != WIRE_VERSION)
        return fail(decoder, WIRE_FAULT_VERSION, 6, "expected protocol version %d, found %u",
                    WIRE_VERSION, header->version);
    if (!(msgs[header->type].senders & decoder->sender))
        return fail(decoder, WIRE_FAULT_DIRECTION, 4, "expected no %s from %s, found one",
                    msgs[header->type].name, side_name(decoder->sender));
    if ((r = check_order(decoder, header)) < 0 || (r = check_flags(decoder, header)) < 0 ||
        (r = check_job(decoder, header)) < 0)
        return r;
    return check_length(decoder, header);
}

/* Move up to `want` bytes from the input to `to`; returns how many. */
static size_t take(const unsigned char **bytes, size_t *len, unsigned char *to, size_t want)
{
    size_t n = MIN(*len, want);
    if (n == 0)
        return 0;

    memcpy(to, *bytes, n);
    *bytes += n;
    *len -= n;
    return n;
}

/* Complete the header.  Returns 1, 0 (more bytes are needed) or -EPROTO. */
static int header_take(struct wire_decoder *decoder, const unsigned char **bytes, size_t *len)
{
    decoder->have += (unsigned)take(bytes, len, decoder->header + decoder->have,
                                    WIRE_HEADER_SIZE - decoder->have);
    if (decoder->have < WIRE_HEADER_SIZE)
        return 0;

    struct header header = header_read(decoder->header);
    int r = check_header(decoder, &header);
    if (r < 0)
        return r;

    decoder->seen |= 1u << header.type;
    if (header.type == WIRE_JOB)
        decoder->last_job = header.job;
    decoder->frame = (struct wire_frame){
        .type = (enum wire_type)header.type,
        .stream = (enum wire_stream)((header.flags & STREAM_MASK) >> STREAM_SHIFT),
        .last = header.flags & FLAG_LAST,
        .job = header.job,
        .offset = decoder->offset,
        .total = header.len,
    };
    return 1;
}

/* Hand out the next len bytes of the payload, and begin anew behind the last of them. */
static int give(struct wire_decoder *decoder, const unsigned char *payload, size_t len,
                struct wire_frame *ret)
{
    *ret = decoder->frame;
    ret->payload = payload;
    ret->len = len;
    decoder->frame.at += len;
    if (decoder->frame.at < ret->total) {
        ret->last = false;
        return 1;
    }

    decoder->offset += WIRE_HEADER_SIZE + ret->total;
    decoder->have = 0;
    decoder->got = 0;
    return 1;
}

static int give_input(struct wire_decoder *decoder, const unsigned char **bytes, size_t *len,
                      size_t count, struct wire_frame *ret)
{
    const unsigned char *payload = *bytes;

    if (count > 0)
        *bytes += count;
    *len -= count;
    decoder->got += count;
    return give(decoder, payload, count, ret);
}

/* Room for `more` bytes behind those that came: at most twice of what has come. */
static int reserve(struct wire_decoder *decoder, size_t more)
{
    size_t need = decoder->got + more;
    if (need <= decoder->cap)
        return 0;

    size_t cap = MIN(MAX(need * 2, GROW_MIN), decoder->frame.total);
    unsigned char *buf = realloc(decoder->buf, cap);
    if (buf == NULL)
        return -ENOMEM;
    decoder->buf = buf;
    decoder->cap = cap;
    return 0;
}

static void forget_large_buffer(struct wire_decoder *decoder)
{
    if (decoder->cap <= KEEP_MAX || decoder->got > 0)
        return;
    free(decoder->buf);
    decoder->buf = NULL;
    decoder->cap = 0;
}

static int payload_take(struct wire_decoder *decoder, const unsigned char **bytes, size_t *len,
                        struct wire_frame *ret)
{
    const size_t left = decoder->frame.total - decoder->got, n = MIN(*len, left);

    if (n == 0 && left > 0)
        return 0;
    if (decoder->pieces && decoder->frame.type == WIRE_CHUNK)
        return give_input(decoder, bytes, len, n, ret);
    if (decoder->got == 0 && n == left)
        return give_input(decoder, bytes, len, n, ret);

    int r = reserve(decoder, n);
    if (r < 0)
        return r;
    decoder->got += take(bytes, len, decoder->buf + decoder->got, n);
    return decoder->got < decoder->frame.total ? 0 : give(decoder, decoder->buf, decoder->got, ret);
}

void wire_decoder_init(struct wire_decoder *decoder, enum wire_side sender, bool pieces)
{
    *decoder = (struct wire_decoder){ .sender = sender, .pieces = pieces };
}

void wire_decoder_done(struct wire_decoder *decoder)
{
    free(decoder->buf);
    decoder->buf = NULL;
    decoder->cap = 0;
}

int wire_decode(struct wire_decoder *decoder, const unsigned char **bytes, size_t *len,
                struct wire_frame *ret)
{
    if (decoder->fault != WIRE_FAULT_NONE)
        return -EPROTO;

    forget_large_buffer(decoder);
    if (decoder->have < WIRE_HEADER_SIZE) {
        int r = header_take(decoder, bytes, len);
        if (r <= 0)
            return r;
    }
    return payload_take(decoder, bytes, len, ret);
}

int wire_decoder_end(struct wire_decoder *decoder)
{
    if (decoder->fault != WIRE_FAULT_NONE)
        return -EPROTO;
    if (decoder->have == 0)
        return 0;

    const size_t came = decoder->have + decoder->got;
    if (decoder->have < WIRE_HEADER_SIZE)
        return fail(decoder, WIRE_FAULT_TORN, (unsigned)came,
                    "expected a header of %d bytes, found the end after %zu", WIRE_HEADER_SIZE,
                    came);
    return fail(decoder, WIRE_FAULT_TORN, (unsigned)came,
                "expected %zu bytes of payload in %s, found the end after %zu",
                decoder->frame.total, msgs[decoder->frame.type].name, decoder->got);
}

int wire_encode(unsigned char out[WIRE_HEADER_SIZE], enum wire_side sender, enum wire_type type,
                enum wire_stream stream, bool last, uint64_t job, size_t payload_len)
{
    /* A decoder of its own judges the frame; it is past HELLO, so that order is not its matter. */
    struct wire_decoder judge = { .sender = sender,
                                  .seen = type == WIRE_HELLO ? 0 : 1u << WIRE_HELLO };

    if (payload_len > WIRE_PAYLOAD_MAX)
        return -EMSGSIZE;
    struct header header = { .len = (uint32_t)payload_len,
                             .type = (unsigned)type,
                             .flags = (unsigned)stream << STREAM_SHIFT | (last ? FLAG_LAST : 0),
                             .version = WIRE_VERSION,
                             .job = job };
    if (check_header(&judge, &header) < 0)
        return judge.fault == WIRE_FAULT_LENGTH && payload_len > 0 ? -EMSGSIZE : -EINVAL;

    put_le(out, 4, header.len);
    out[4] = (unsigned char)header.type;
    out[5] = (unsigned char)header.flags;
    put_le(out + 6, 2, header.version);
    put_le(out + 8, 8, header.job);
    return 0;
}

int wire_credit_grant(uint64_t *credit, uint64_t bytes)
{
    if (bytes == 0 || bytes > WIRE_CREDIT_MAX || *credit > WIRE_CREDIT_MAX - bytes)
        return -EPROTO;
    *credit += bytes;
    return 0;
}

int wire_credit_spend(uint64_t *credit, uint64_t bytes)
{
    if (bytes > *credit)
        return -EPROTO;
    *credit -= bytes;
    return 0;
}

const char *wire_type_name(unsigned type)
{
    return type > 0 && type < WIRE_TYPES ? msgs[type].name : "?";
}

const char *wire_fault_name(enum wire_fault fault)
{
    return (size_t)fault < ARRAY_LEN(fault_names) ? fault_names[fault] : "?";
}

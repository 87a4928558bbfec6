/* Frames of warm pools: the same in every chunking, and those of a naive reader; memory follows what came. */
#include "unit.h"

#include <stdio.h>

#include "wire_model.h"

static uint32_t state = 1;

static uint32_t draw(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

static void put(struct buf *buf, uint64_t len, unsigned type, unsigned flags, unsigned version,
                uint64_t job)
{
    unsigned char header[16];

    for (int i = 0; i < 16; i++)
        header[i] = (unsigned char)(i < 4    ? len >> (8 * i)
                                    : i == 4 ? type
                                    : i == 5 ? flags
                                    : i < 8  ? version >> (8 * (i - 6))
                                             : job >> (8 * (i - 8)));
    ck_assert_int_eq(buf_add(buf, header, sizeof header), 0);
}

static void put_noise(struct buf *buf, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)draw(256);
        ck_assert_int_eq(buf_add(buf, &byte, 1), 0);
    }
}

static void put_frame(struct buf *buf, size_t len, unsigned type, unsigned flags, uint64_t job)
{
    put(buf, len, type, flags, 1, job);
    put_noise(buf, len);
}

/* Mostly good frames of one side, now and then one with a field or two gone wrong. */
static void put_session(struct buf *buf, enum wire_side sender, uint32_t wrong_in)
{
    uint64_t job = 0;

    if (draw(20) > 0)
        put_frame(buf, 2 + draw(60), WIRE_HELLO, 0, 0);
    for (uint32_t count = draw(12); count > 0; count--) {
        static const unsigned of_worker[] = { 3, 3, 4, 5, 6, 7, 9, 10, 11 },
                              of_mandor[] = { 2, 2, 3, 3, 8, 9, 10, 11, 12 };
        unsigned type = sender == WIRE_WORKER ? of_worker[draw(9)] : of_mandor[draw(9)], flags = 0,
                 version = 1;
        const bool out = (type == WIRE_CHUNK) == (sender == WIRE_WORKER);
        if (type == WIRE_JOB)
            job++;
        if (type == WIRE_CHUNK || type == WIRE_CREDIT)
            flags = out ? 2 + 2 * draw(2) : 0;
        if (type == WIRE_CHUNK)
            flags |= draw(2);
        uint64_t number = type >= WIRE_PING ? 0 : MAX(job, (uint64_t)1), len = 2 + draw(100);
        if (draw(wrong_in) == 0) {
            switch (draw(5)) {
            case 0:
                type = draw(20);
                break;
            case 1:
                flags = draw(256);
                break;
            case 2:
                version = draw(4);
                break;
            case 3:
                number = draw(3) > 0 ? draw(3) : UINT64_MAX - draw(3);
                break;
            default:
                len = draw(2) > 0 ? draw(3) : 4000 + draw(300);
            }
        }
        put(buf, len, type, flags, version, number);
        put_noise(buf, len);
    }
    if (draw(4) == 0 && buf->len > 0)
        buf->len -= MIN((size_t)draw(30), buf->len);
}

static void check(enum wire_side sender, const struct buf *bytes, size_t chunk, bool pieces)
{
    SCOPED_BUF expected = { 0 }, got = { 0 };

    wire_model(sender, (unsigned char *)bytes->data, bytes->len, &expected);
    wire_walk(sender, (unsigned char *)bytes->data, bytes->len, chunk, state, pieces, &got);
    ck_assert_msg(got.len == expected.len &&
                      (got.len == 0 || memcmp(got.data, expected.data, got.len) == 0),
                  "%zu bytes in chunks of %zu, seed %u", bytes->len, chunk, state);
}

TEST(frames_are_those_of_a_naive_reader_in_every_chunking)
{
    for (int round = 0; round < 4; round++) {
        SCOPED_BUF bytes = { 0 };
        put_session(&bytes, round % 2 ? WIRE_WORKER : WIRE_MANDOR, 1000);
        for (size_t chunk = 1; chunk <= bytes.len + 1; chunk += 1 + chunk / 16)
            check(round % 2 ? WIRE_WORKER : WIRE_MANDOR, &bytes, chunk, round / 2);
    }
}

TEST(random_sessions_with_and_without_faults_are_read_as_a_naive_reader_does)
{
    for (int round = 0; round < 2000; round++) {
        SCOPED_BUF bytes = { 0 };
        const enum wire_side sender = round % 2 ? WIRE_WORKER : WIRE_MANDOR;
        put_session(&bytes, sender, round % 3 ? 1000 : 6);
        check(sender, &bytes, 0, round % 4 / 2);
    }
}

TEST(noise_is_refused_as_a_naive_reader_does)
{
    for (int round = 0; round < 1000; round++) {
        SCOPED_BUF bytes = { 0 };
        put_noise(&bytes, draw(40));
        check(round % 2 ? WIRE_WORKER : WIRE_MANDOR, &bytes, 0, false);
    }
}

TEST(r55_a_hundred_frames_in_one_read_then_byte_by_byte_then_half_a_frame)
{
    SCOPED_BUF bytes = { 0 };

    put_frame(&bytes, 20, WIRE_HELLO, 0, 0);
    for (int i = 0; i < 100; i++)
        put_frame(&bytes, 1 + draw(50), WIRE_CHUNK, 2, 1);
    check(WIRE_WORKER, &bytes, bytes.len, false);
    check(WIRE_WORKER, &bytes, 1, true);
    bytes.len -= 1;
    check(WIRE_WORKER, &bytes, 7, false);
}

static void begin(struct wire_decoder *decoder, enum wire_side sender, bool pieces)
{
    SCOPED_BUF hello = { 0 };
    struct wire_frame frame;

    put_frame(&hello, 2, WIRE_HELLO, 0, 0);
    wire_decoder_init(decoder, sender, pieces);
    const unsigned char *at = (unsigned char *)hello.data;
    size_t len = hello.len;
    ck_assert_int_eq(wire_decode(decoder, &at, &len, &frame), 1);
    ck_assert_int_eq(frame.type, WIRE_HELLO);
}

TEST(a_claimed_length_allocates_nothing)
{
    struct wire_decoder decoder;
    struct wire_frame frame;
    SCOPED_BUF bytes = { 0 };

    begin(&decoder, WIRE_WORKER, false);
    put(&bytes, WIRE_PAYLOAD_MAX, WIRE_RESULT, 0, 1, 1);
    put_noise(&bytes, 100);
    const unsigned char *at = (unsigned char *)bytes.data;
    size_t len = bytes.len;
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), 0);
    ck_assert_uint_eq(len, 0);
    ck_assert_uint_le(decoder.cap, 4096);
    ck_assert_int_eq(wire_decoder_end(&decoder), -EPROTO);
    ck_assert_int_eq(decoder.fault, WIRE_FAULT_TORN);
    wire_decoder_done(&decoder);
}

TEST(the_longest_payload_comes_whole_and_its_memory_goes)
{
    struct wire_decoder decoder;
    struct wire_frame frame;
    SCOPED_BUF header = { 0 };
    static unsigned char part[65536 - 7];
    size_t given = 0;
    int r = 0;

    begin(&decoder, WIRE_WORKER, false);
    put(&header, WIRE_PAYLOAD_MAX, WIRE_RESULT, 0, 1, 1);
    const unsigned char *at = (unsigned char *)header.data;
    size_t len = header.len;
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), 0);
    while (r == 0) {
        ck_assert_uint_lt(given, WIRE_PAYLOAD_MAX);
        for (size_t i = 0; i < sizeof part; i++)
            part[i] = (unsigned char)((given + i) * 31);
        at = part;
        len = MIN(sizeof part, WIRE_PAYLOAD_MAX - given);
        given += len;
        r = wire_decode(&decoder, &at, &len, &frame);
        ck_assert_uint_le(decoder.cap, 2 * given + 4096);
    }
    ck_assert_int_eq(r, 1);
    ck_assert_uint_eq(frame.len, WIRE_PAYLOAD_MAX);
    for (size_t i = 0; i < frame.len; i++)
        if (frame.payload[i] != (unsigned char)(i * 31))
            ck_abort_msg("byte %zu", i);
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), 0);
    ck_assert_uint_eq(decoder.cap, 0);
    wire_decoder_done(&decoder);
}

TEST(what_lies_whole_in_the_input_is_not_copied)
{
    struct wire_decoder decoder;
    struct wire_frame frame;
    SCOPED_BUF bytes = { 0 };

    begin(&decoder, WIRE_WORKER, false);
    put_frame(&bytes, 300, WIRE_RESULT, 0, 1);
    const unsigned char *at = (unsigned char *)bytes.data;
    size_t len = bytes.len;
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), 1);
    ck_assert_ptr_eq(frame.payload, bytes.data + 16);
    ck_assert_uint_eq(decoder.cap, 0);
    wire_decoder_done(&decoder);
}

TEST(the_pieces_of_a_chunk_are_never_copied_and_its_end_is_on_the_final_one)
{
    struct wire_decoder decoder;
    struct wire_frame frame;
    SCOPED_BUF bytes = { 0 };

    begin(&decoder, WIRE_WORKER, true);
    put_frame(&bytes, 1000, WIRE_CHUNK, 3, 1);
    const unsigned char *at = (unsigned char *)bytes.data;
    size_t len = 16 + 400;
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), 1);
    ck_assert_ptr_eq(frame.payload, bytes.data + 16);
    ck_assert(frame.at == 0 && frame.len == 400 && frame.total == 1000 && !frame.last);
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), 0);
    len = 600;
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), 1);
    ck_assert_ptr_eq(frame.payload, bytes.data + 16 + 400);
    ck_assert(frame.at == 400 && frame.len == 600 && frame.last && frame.stream == WIRE_STDOUT);
    ck_assert_uint_eq(decoder.cap, 0);
    wire_decoder_done(&decoder);
}

TEST(an_error_names_the_byte_and_what_was_expected_and_stays)
{
    struct wire_decoder decoder;
    struct wire_frame frame;

    begin(&decoder, WIRE_WORKER, false);
    const unsigned char *at = (const unsigned char *)"Error: boom\n and more";
    size_t len = 21;
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), -EPROTO);
    ck_assert_str_eq(decoder.error, "byte 18: expected a frame, found text: \"Error: boom. and\" "
                                    "(prints belong on descriptor 1 or 2)");
    at = (const unsigned char *)"";
    len = 0;
    ck_assert_int_eq(wire_decode(&decoder, &at, &len, &frame), -EPROTO);
    ck_assert_int_eq(wire_decoder_end(&decoder), -EPROTO);
    wire_decoder_done(&decoder);
}

TEST(every_header_that_is_encoded_is_decoded_as_it_was_and_no_other_is_made)
{
    static const unsigned char zeros[((size_t)1 << 20) + 1];
    unsigned made = 0;

    for (unsigned tried = 0; tried < 2u * 16 * 4 * 2 * 3 * 5; tried++) {
        static const size_t lens[] = { 0, 1, 2, 4097, ((size_t)1 << 20) + 1 };
        unsigned rest = tried;
        unsigned char header[WIRE_HEADER_SIZE];
        const enum wire_side sender = rest % 2 ? WIRE_WORKER : WIRE_MANDOR;
        rest /= 2;
        const unsigned type = rest % 16, stream = rest / 16 % 4, last = rest / 64 % 2;
        const uint64_t job = rest / 128 % 3 == 2 ? UINT64_MAX : rest / 128 % 3;
        const size_t len = lens[rest / 384];

        SCOPED_BUF bytes = { 0 }, log = { 0 };
        if (type != WIRE_HELLO) {
            put(&bytes, 2, WIRE_HELLO, 0, 1, 0);
            ck_assert_int_eq(buf_add(&bytes, "{}", 2), 0);
        }
        put(&bytes, len, type, stream * 2 + last, 1, job);
        size_t end = bytes.len;
        ck_assert_int_eq(buf_add(&bytes, zeros, len), 0);
        wire_model(sender, (unsigned char *)bytes.data, bytes.len, &log);
        int r = wire_encode(header, sender, (enum wire_type)type, (enum wire_stream)stream, last,
                            job, len);
        if (log.data[log.len - 1] != ';') {
            ck_assert_int_lt(r, 0);
            continue;
        }
        ck_assert_msg(r == 0, "type %u stream %u last %u job %" PRIu64 " length %zu: %d", type,
                      stream, last, job, len, r);
        ck_assert_mem_eq(header, bytes.data + end - 16, 16);
        made++;
    }
    ck_assert_uint_gt(made, 50);
}

TEST(a_payload_that_is_too_long_is_told_apart_from_a_frame_that_is_none)
{
    unsigned char header[WIRE_HEADER_SIZE];

    ck_assert_int_eq(wire_encode(header, WIRE_WORKER, WIRE_LOG, 0, false, 1, (1 << 20) + 1),
                     -EMSGSIZE);
    ck_assert_int_eq(wire_encode(header, WIRE_WORKER, WIRE_RESULT, 0, false, 1, SIZE_MAX),
                     -EMSGSIZE);
    ck_assert_int_eq(wire_encode(header, WIRE_WORKER, WIRE_JOB, 0, false, 1, 2), -EINVAL);
    ck_assert_int_eq(wire_encode(header, WIRE_WORKER, WIRE_RESULT, 0, false, 1, 0), -EINVAL);
}

UNIT_MAIN("wire")

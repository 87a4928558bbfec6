/* Framers: the same frames in every chunking, and those of a naive reader. */
#include <stdio.h>

#include "frame_model.h"
#include "lib/unit.h"

static const enum spec_frame kinds[] = { FRAME_RAW,   FRAME_LINES,  FRAME_U32BE,
                                         FRAME_U32LE, FRAME_VARINT, FRAME_NETSTRING };

static void check_chunking(enum spec_frame frame, size_t frame_max, const unsigned char *bytes,
                           size_t len, size_t chunk, uint32_t seed)
{
    SCOPED_BUF expected = { 0 }, got = { 0 };

    frame_model(frame, frame_max, bytes, len, &expected);
    frame_walk(frame, frame_max, bytes, len, chunk, seed, &got);
    ck_assert_msg(
        got.len == expected.len && (got.len == 0 || memcmp(got.data, expected.data, got.len) == 0),
        "kind %d, %zu bytes in chunks of %zu (seed %u):\n%s\nexpected\n%s", (int)frame, len, chunk,
        seed, got.data == NULL ? "" : got.data, expected.data == NULL ? "" : expected.data);
}

static void add(struct buf *buf, const void *bytes, size_t len)
{
    ck_assert_int_eq(buf_add(buf, bytes, len), 0);
}

static void add_header(struct buf *buf, enum spec_frame frame, size_t len)
{
    unsigned char header[16];
    int n = 0;

    switch (frame) {
    case FRAME_U32BE:
        for (n = 0; n < 4; n++)
            header[n] = (unsigned char)(len >> (24 - 8 * n));
        break;
    case FRAME_U32LE:
        for (n = 0; n < 4; n++)
            header[n] = (unsigned char)(len >> (8 * n));
        break;
    case FRAME_VARINT:
        for (; len > 0x7f; len >>= 7)
            header[n++] = (unsigned char)(len | 0x80);
        header[n++] = (unsigned char)len;
        break;
    case FRAME_NETSTRING:
        n = snprintf((char *)header, sizeof header, "%zu:", len);
        break;
    default:
        break;
    }
    add(buf, header, (size_t)n);
}

/* A stream of frames of awkward sizes with every byte value in them. */
static void make_stream(struct buf *buf, enum spec_frame frame)
{
    static const size_t lens[] = { 0, 1, 2, 127, 128, 300, 0, 64, 1000 };
    unsigned char byte = 0;

    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        add_header(buf, frame, lens[i]);
        for (size_t j = 0; j < lens[i]; j++, byte++) {
            unsigned char b = frame == FRAME_LINES && byte == '\n' ? '.' : byte;
            add(buf, &b, 1);
        }
        if (frame == FRAME_NETSTRING)
            add(buf, ",", 1);
        else if (frame == FRAME_LINES)
            add(buf, "\n", 1);
    }
}

TEST_EACH(whole_frames_are_found_in_every_chunking, ARRAY_LEN(kinds))
{
    SCOPED_BUF buf = { 0 };

    make_stream(&buf, kinds[_i]);
    for (size_t chunk = 1; chunk <= buf.len; chunk++)
        check_chunking(kinds[_i], 1000, (unsigned char *)buf.data, buf.len, chunk, 0);
}

TEST_EACH(a_stream_cut_anywhere_is_torn_or_partial_as_a_naive_reader_sees_it, ARRAY_LEN(kinds))
{
    SCOPED_BUF buf = { 0 };

    make_stream(&buf, kinds[_i]);
    for (size_t len = 0; len <= buf.len; len++)
        check_chunking(kinds[_i], 1000, (unsigned char *)buf.data, len, 0, (uint32_t)len);
}

TEST_EACH(frames_over_the_maximum_are_split_or_refused, ARRAY_LEN(kinds))
{
    SCOPED_BUF buf = { 0 };

    make_stream(&buf, kinds[_i]);
    for (size_t max = 1; max <= 1001; max += max < 10 ? 1 : 33)
        for (uint32_t seed = 0; seed < 20; seed++)
            check_chunking(kinds[_i], max, (unsigned char *)buf.data, buf.len, 0, seed);
}

TEST_EACH(noise_is_read_as_a_naive_reader_does, ARRAY_LEN(kinds))
{
    static const char alphabet[] = "\n\n\r:,0123456789\0\0\0\1\2\x80\xff"
                                   "a";
    unsigned char noise[200];
    uint32_t state = 1;

    for (int round = 0; round < 20000; round++) {
        size_t len = 0, limit = (state >> 8) % sizeof noise;
        while (len < limit) {
            state = state * 1664525u + 1013904223u;
            noise[len++] = (unsigned char)alphabet[(state >> 8) % (sizeof alphabet - 1)];
        }
        check_chunking(kinds[_i], 1 + round % 20, noise, len, 0, state);
        state++;
    }
}

static void push(struct framer *framer, const char *text)
{
    ck_assert_int_eq(framer_push(framer, text, strlen(text), NULL), 0);
}

static void check_progress(struct framer *framer, const char *expected)
{
    ck_assert(framer->progress_new == (expected != NULL));
    if (expected != NULL) {
        ck_assert_uint_eq(framer->progress_len, strlen(expected));
        ck_assert_mem_eq(framer->progress, expected, framer->progress_len);
    }
    framer->progress_new = false;
}

TEST(a_carriage_return_is_progress_and_no_frame)
{
    struct framer framer;

    framer_init(&framer, FRAME_LINES, 1 << 20);
    push(&framer, "frame=1\r");
    check_progress(&framer, "frame=1");
    push(&framer, "fra");
    check_progress(&framer, NULL);
    push(&framer, "me=2\rframe=3\rfra");
    check_progress(&framer, "frame=3");
    push(&framer, "me=4");
    check_progress(&framer, NULL);
    push(&framer, "\r");
    check_progress(&framer, "frame=4");
    ck_assert_int_eq(framer.frames, 0);
    push(&framer, "done\nwindows line\r\n");
    check_progress(&framer, NULL);
    ck_assert_int_eq(framer.frames, 2);
    push(&framer, "next\r\nbar 1\rbar 2\rlast\r\n");
    check_progress(&framer, "bar 2");
}

TEST(progress_text_is_cut_and_memory_stays_flat)
{
    struct framer framer;
    static char text[5000];

    memset(text, 'x', sizeof text);
    framer_init(&framer, FRAME_LINES, 1 << 20);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(framer_push(&framer, text, sizeof text, NULL), 0);
    push(&framer, "\r");
    ck_assert(framer.progress_new);
    ck_assert_uint_eq(framer.progress_len, FRAMER_PROGRESS_MAX);
}

TEST(an_error_names_frame_and_byte)
{
    struct framer framer;
    struct mandor_err err;

    framer_init(&framer, FRAME_NETSTRING, 100);
    ck_assert_int_eq(framer_push(&framer, "3:abc,2:de,x", 12, NULL), -EPROTO);
    ck_assert_int_eq(framer_error(&framer, &err), -EPROTO);
    ck_assert_msg(strstr(err.msg, "netstring frame 3 at byte 11") != NULL, "%s", err.msg);

    framer_init(&framer, FRAME_U32LE, 100);
    ck_assert_int_eq(framer_push(&framer, "\xff\xff\xff\xff", 4, NULL), -EPROTO);
    (void)framer_error(&framer, &err);
    ck_assert_msg(strstr(err.msg, "frame_max") != NULL, "%s", err.msg);
}

UNIT_MAIN("framer", .timeout_s = 120)

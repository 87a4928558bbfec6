/* test_pieces.c - a stream cut at any two places gives the same frames as one that comes whole. */
#include "lib/unit.h"

#include <stdio.h>

#include "memory/pieces.h"

#define FRAMES_MAX 16

struct sample {
    const char *name;
    enum spec_frame frame;
    const char *bytes;
    size_t len;
    size_t lens[FRAMES_MAX], heads[FRAMES_MAX];
    size_t count;
};

#define BYTES(text) text, sizeof text - 1
static const struct sample samples[] = {
    { "u32be",
      FRAME_U32BE,
      BYTES("\0\0\0\0\0\0\0\1a\0\0\0\5\0\n,:x"),
      { 4, 5, 9 },
      { 4, 4, 4 },
      3 },
    { "u32le", FRAME_U32LE, BYTES("\2\0\0\0ab\0\0\0\0\1\0\0\0z"), { 6, 4, 5 }, { 4, 4, 4 }, 3 },
    { "varint", FRAME_VARINT, BYTES("\0\1a\203\0xyz\2\n\n"), { 1, 2, 5, 3 }, { 1, 1, 2, 1 }, 4 },
    { "netstring", FRAME_NETSTRING, BYTES("0:,1:a,10:0123456789,"), { 3, 4, 14 }, { 2, 2, 3 }, 3 },
    { "lines", FRAME_LINES, BYTES("\na\r\nbb\n12345678\n"), { 1, 3, 3, 8, 1 }, { 0 }, 5 },
    { "raw", FRAME_RAW, BYTES("abc"), { 0 }, { 0 }, 0 },
};

/* Take what waits, some of it now and some later. */
static void collect(struct pieces *pieces, struct buf *all, size_t *lens, size_t *heads, size_t *n,
                    size_t most)
{
    size_t take = MIN(pieces->count, most);

    for (size_t i = 0; i < take; i++) {
        const void *bytes;
        const struct piece *piece = pieces_at(pieces, i, &bytes);
        ck_assert_int_eq(piece->off, (int64_t)all->len);
        ck_assert_int_eq(buf_add(all, bytes, piece->len), 0);
        ck_assert_uint_lt(*n, FRAMES_MAX);
        lens[*n] = piece->len;
        heads[(*n)++] = piece->head;
    }
    pieces_drop(pieces, take);
}

static void check_cuts(const struct sample *sample, size_t a, size_t b, size_t most)
{
    const size_t cuts[] = { 0, a, b, sample->len };
    size_t lens[FRAMES_MAX], heads[FRAMES_MAX], n = 0;
    SCOPED_BUF all = { 0 };
    struct pieces pieces;

    pieces_init(&pieces, sample->frame, 8 + 8 * (sample->frame != FRAME_LINES));
    for (size_t i = 0; i + 1 < ARRAY_LEN(cuts); i++) {
        if (cuts[i] < cuts[i + 1])
            ck_assert_int_eq(pieces_add(&pieces, sample->bytes + cuts[i], cuts[i + 1] - cuts[i]),
                             0);
        collect(&pieces, &all, lens, heads, &n, most);
    }
    ck_assert_int_eq(pieces_end(&pieces), 0);
    collect(&pieces, &all, lens, heads, &n, SIZE_MAX);
    pieces_done(&pieces);
    ck_assert_uint_eq(all.len, sample->len);
    ck_assert_mem_eq(all.data, sample->bytes, sample->len);
    if (sample->frame == FRAME_RAW)
        return;
    ck_assert_msg(n == sample->count, "%s cut at %zu and %zu: %zu pieces", sample->name, a, b, n);
    ck_assert_mem_eq(lens, sample->lens, n * sizeof *lens);
    ck_assert_mem_eq(heads, sample->heads, n * sizeof *heads);
}

TEST(pieces_are_the_frames_wherever_the_stream_is_cut)
{
    for (size_t s = 0; s < ARRAY_LEN(samples); s++)
        for (size_t a = 0; a <= samples[s].len; a++)
            for (size_t b = a; b <= samples[s].len; b++)
                for (size_t most = 0; most <= 3; most++)
                    check_cuts(&samples[s], a, b, most);
}

TEST(an_unterminated_line_is_the_last_piece_and_says_so)
{
    struct pieces pieces;
    const void *bytes;

    pieces_init(&pieces, FRAME_LINES, 100);
    ck_assert_int_eq(pieces_add(&pieces, "a\nbc", 4), 0);
    ck_assert_uint_eq(pieces.count, 1);
    ck_assert_int_eq(pieces_end(&pieces), 0);
    ck_assert_uint_eq(pieces.count, 2);
    const struct piece *piece = pieces_at(&pieces, 1, &bytes);
    ck_assert_uint_eq(piece->flags, FRAME_PARTIAL);
    ck_assert_uint_eq(piece->len, 2);
    ck_assert_mem_eq(bytes, "bc", 2);
    ck_assert_int_eq(pieces_end(&pieces), 0);
    ck_assert_uint_eq(pieces.count, 2);
    pieces_done(&pieces);
}

TEST(a_stream_without_frames_is_cut_into_chunks)
{
    static char bytes[3 * PIECE_CHUNK + 5];
    struct pieces pieces;
    const void *at;

    pieces_init(&pieces, FRAME_RAW, 1);
    ck_assert_int_eq(pieces_add(&pieces, bytes, sizeof bytes), 0);
    ck_assert_uint_eq(pieces.count, 4);
    ck_assert_uint_eq(pieces_at(&pieces, 2, &at)->len, PIECE_CHUNK);
    ck_assert_uint_eq(pieces_at(&pieces, 3, &at)->len, 5);
    pieces_done(&pieces);
}

TEST(a_bad_frame_leaves_those_before_it)
{
    struct pieces pieces;

    pieces_init(&pieces, FRAME_NETSTRING, 100);
    ck_assert_int_eq(pieces_add(&pieces, "1:a,x", 5), -EPROTO);
    ck_assert_uint_eq(pieces.count, 1);
    pieces_done(&pieces);
}

UNIT_MAIN("pieces")

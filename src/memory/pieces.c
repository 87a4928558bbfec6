/* pieces.c - contract in pieces.h. */
#include "memory/pieces.h"

void pieces_init(struct pieces *pieces, enum spec_frame frame, size_t frame_max)
{
    *pieces = (struct pieces){ .framed = frame != FRAME_RAW };
    framer_init(&pieces->framer, frame, frame_max);
}

void pieces_done(struct pieces *pieces)
{
    buf_done(&pieces->bytes);
    free(pieces->items);
    pieces->items = NULL;
    pieces->count = pieces->cap = 0;
}

/* Where the next piece begins. */
static int64_t next_off(const struct pieces *pieces)
{
    if (pieces->count == 0)
        return pieces->start_off;
    const struct piece *last = &pieces->items[pieces->first + pieces->count - 1];
    return last->off + (int64_t)last->len;
}

static int push(struct pieces *pieces, int64_t end, size_t head, unsigned flags)
{
    if (pieces->first + pieces->count == pieces->cap) {
        size_t cap = MAX(pieces->cap * 2, (size_t)64);
        struct piece *items = realloc(pieces->items, cap * sizeof *items);
        if (items == NULL)
            return -ENOMEM;
        pieces->items = items;
        pieces->cap = cap;
    }
    int64_t off = next_off(pieces);
    pieces->items[pieces->first + pieces->count++] =
        (struct piece){ .off = off, .len = (size_t)(end - off), .head = head, .flags = flags };
    return 0;
}

static void on_frame(void *arg, unsigned flags)
{
    struct pieces *pieces = arg;
    const struct framer *framer = &pieces->framer;
    bool binary = framer->header_len > 0; /* lines have none */
    int64_t end = binary ? framer->offset : framer->frame_start + (int64_t)framer->frame_len;

    pieces->failed |= push(pieces, end, framer->header_len, flags) < 0;
}

static int cut_chunks(struct pieces *pieces, int64_t end)
{
    int r = 0;

    for (int64_t off = next_off(pieces); r == 0 && off < end; off = next_off(pieces))
        r = push(pieces, MIN(off + (int64_t)PIECE_CHUNK, end), 0, 0);
    return r;
}

int pieces_add(struct pieces *pieces, const void *bytes, size_t len)
{
    const struct framer_events events = { .on_frame = on_frame, .arg = pieces };

    if (pieces->start > 0 && pieces->start >= pieces->bytes.len / 2) {
        buf_consume(&pieces->bytes, pieces->start);
        pieces->start = 0;
    }
    if (buf_add(&pieces->bytes, bytes, len) < 0)
        return -ENOMEM;
    if (!pieces->framed)
        return cut_chunks(pieces, pieces->start_off + (int64_t)(pieces->bytes.len - pieces->start));
    int r = framer_push(&pieces->framer, bytes, len, &events);
    return pieces->failed ? -ENOMEM : r;
}

int pieces_end(struct pieces *pieces)
{
    const struct framer_events events = { .on_frame = on_frame, .arg = pieces };
    int r = framer_end(&pieces->framer, &events);

    return pieces->failed ? -ENOMEM : r;
}

const struct piece *pieces_at(const struct pieces *pieces, size_t n, const void **ret_bytes)
{
    const struct piece *piece = &pieces->items[pieces->first + n];

    BUG_ON(n >= pieces->count);
    *ret_bytes = pieces->bytes.data + pieces->start + (piece->off - pieces->start_off);
    return piece;
}

void pieces_drop(struct pieces *pieces, size_t n)
{
    BUG_ON(n > pieces->count);
    if (n == 0)
        return;
    const struct piece *last = &pieces->items[pieces->first + n - 1];
    int64_t end = last->off + (int64_t)last->len;
    pieces->start += (size_t)(end - pieces->start_off);
    pieces->start_off = end;
    pieces->first += n;
    pieces->count -= n;
    if (pieces->count == 0)
        pieces->first = 0;
}

/* pieces.h - cuts a stream into what becomes one entry each: frames, or chunks where there are none.  Pure. */
#ifndef MEMORY_PIECES_H
#define MEMORY_PIECES_H

#include "base/buf.h"
#include "stream/framer.h"

#define PIECE_CHUNK ((size_t)64 << 10) /* bytes of an entry without frames, at most */

struct piece {
    int64_t off;    /* of its first byte in the stream */
    size_t len;     /* header and trailer included: all pieces together are the stream */
    size_t head;    /* bytes of its header */
    unsigned flags; /* enum frame_flags */
};

struct pieces {
    struct framer framer;
    bool framed;
    /* From `start` on: the pieces, then the part of the open frame that is here. */
    struct buf bytes;
    size_t start;
    int64_t start_off; /* of bytes + start */
    struct piece *items;
    size_t first, count, cap; /* items[first … first + count) wait */
    bool failed;              /* out of memory */
};

void pieces_init(struct pieces *pieces, enum spec_frame frame, size_t frame_max);
void pieces_done(struct pieces *pieces);
/* 0, -ENOMEM, or -EPROTO: framer_error() says what. */
MUST_CHECK int pieces_add(struct pieces *pieces, const void *bytes, size_t len);
/* The stream has ended: what is left is the last piece.  As above; a torn frame is none. */
MUST_CHECK int pieces_end(struct pieces *pieces);
/* The n-th that waits, and its bytes. */
const struct piece *pieces_at(const struct pieces *pieces, size_t n, const void **ret_bytes);
void pieces_drop(struct pieces *pieces, size_t n); /* the first n */

#endif

/* framer.h - finds the frames in a stream of bytes, whatever chunks it comes in.  Pure: no I/O, no copy of the payload.
 *
 *    chunk │ abc\nde │ f\ngh │ end        lines:  on_piece "abc\n" on_frame(0)  on_piece "de"
 *                                                 on_piece "f\n"   on_frame(0)  on_piece "gh"  on_frame(FRAME_PARTIAL)
 *
 * Bytes that are stored exactly as they came do not need the pieces: with NULL callbacks a framer only counts and checks.
 * One thread at a time.
 */
#ifndef STREAM_FRAMER_H
#define STREAM_FRAMER_H

#include "base/err.h"
#include "base/macro.h"
#include "job/spec.h"

#define FRAMER_PROGRESS_MAX ((size_t)1024) /* bytes of a progress text that are kept */

enum frame_flags {
    FRAME_CONT = 1,    /* lines: longer than frame_max, the rest of the line is the next frame */
    FRAME_PARTIAL = 2, /* lines: the stream ended without a newline */
};

struct framer_events {
    /* Part of the payload of the open frame: lines with their newline, binary frames without header and trailer. */
    void (*on_piece)(void *arg, const void *bytes, size_t len);
    /* The frame is complete. */
    void (*on_frame)(void *arg, unsigned flags);
    void *arg;
};

struct framer_ops;
struct framer {
    const struct framer_ops *ops;
    size_t frame_max;
    int64_t offset;      /* of the next byte in the stream */
    int64_t frames;      /* completed */
    int64_t frame_start; /* offset of the open frame's first byte (its header for binary frames) */
    /* Lines: payload bytes of the open frame so far; binary: payload bytes still to come. */
    size_t frame_len;
    enum { FRAMER_HEADER, FRAMER_BODY, FRAMER_TRAILER } where;
    unsigned header_len; /* header bytes seen */
    uint64_t header;     /* their value so far */
    const char *fault;   /* after -EPROTO: what was wrong */
    /* `lines`: what came since the last \r or \n, cut to FRAMER_PROGRESS_MAX (a progress bar being drawn). */
    size_t carry_len;
    size_t progress_len;
    bool progress_new; /* the caller clears it */
    char carry[FRAMER_PROGRESS_MAX];
    char progress[FRAMER_PROGRESS_MAX]; /* the text that the last \r ended */
};

/* frame_max: longest payload, bytes, > 0. */
void framer_init(struct framer *framer, enum spec_frame frame, size_t frame_max);

/* Take the next bytes.  events may be NULL.
 * Returns 0, or -EPROTO: a header is malformed or asks for more than frame_max; fault and frame_start then say what and where,
 * and the framer must not be used again. */
MUST_CHECK int framer_push(struct framer *framer, const void *bytes, size_t len,
                           const struct framer_events *events);

/* The stream has ended: an unterminated line is completed as FRAME_PARTIAL; a torn binary frame is -EPROTO. */
MUST_CHECK int framer_end(struct framer *framer, const struct framer_events *events);

/* Fill *err for an -EPROTO of the two above; returns -EPROTO. */
int framer_error(const struct framer *framer, struct mandor_err *err);

#endif

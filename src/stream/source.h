/* source.h - where a job's stdin comes from, when it is neither a file nor text: what a module offers as its part "source".
 *
 *     open ─▶ on_bytes … (false: wait for resume) … ─▶ on_end, once ─▶ close
 *
 * Loop thread only. */
#ifndef STREAM_SOURCE_H
#define STREAM_SOURCE_H

#include <uv.h>

#include "base/err.h"
#include "base/macro.h"

struct source;

#define SOURCE_PIECE_MAX ((size_t)64 << 10) /* bytes in one on_bytes */

struct source_events {
    /* All or nothing: false = no room, the same bytes come again after resume.  Must not close the source. */
    bool (*on_bytes)(void *arg, const void *bytes, size_t len);
    /* Everything was delivered (0), or it cannot be had (-errno with *err).  May close it. */
    void (*on_end)(void *arg, int result, const struct mandor_err *err);
};

struct source_ops {
    /* follow: what is still being written, to its end; for kinds that know such a thing.  events: copied; none of them runs from inside
     * of this.  0 or -errno with *err. */
    int (*open)(uv_loop_t *loop, const char *url, bool follow, const struct source_events *events,
                void *arg, struct source **ret, struct mandor_err *err);
    /* There is room again.  on_bytes may run from inside. */
    void (*resume)(struct source *source);
    /* Any time but from inside of on_bytes: no event after it. */
    void (*close)(struct source *source);
};

#endif

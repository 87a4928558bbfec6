/* live_frame.h - what goes over a worker's live socket, <data_dir>/run/<worker>.live: a client sends one JSON line,
 * {"follow": "<job id>", "attempt": N} or {"top": true}, and gets frames.  Without "attempt" the running one is followed,
 * whichever it is; with "of", the data directory of its broker, the job of that broker.
 *
 *     u8 kind │ u32 little-endian length │ payload
 */
#ifndef WORKER_LIVE_FRAME_H
#define WORKER_LIVE_FRAME_H

#include "base/macro.h"

#define LIVE_SUFFIX      ".live"
#define LIVE_HEADER      ((size_t)5)        /* bytes */
#define LIVE_PAYLOAD_MAX ((size_t)16 << 20) /* bytes */

enum live_kind {
    LIVE_STDOUT = 1, /* bytes of the job */
    LIVE_STDERR = 2,
    LIVE_NOTICE = 3,   /* text for people: "[… 4096 bytes skipped]" */
    LIVE_ENDED = 4,    /* {"id", "attempt"}: followed to its end; 0: not running, yet or any more */
    LIVE_SNAPSHOT = 5, /* live_server_snapshot() */
};

#endif

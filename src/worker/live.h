/* live.h - live data for `logs -f` and `top`: a stream socket <data_dir>/run/<worker>.live (mode 0600).
 *
 * A client sends one JSON line, {"follow": "<job id>"} or {"top": true}, and gets frames: kind (1 byte), length (u32 little-endian),
 * payload.  A slow client gets "[… N bytes skipped]" and never causes backpressure.  Loop thread only. */
#ifndef WORKER_LIVE_H
#define WORKER_LIVE_H

#include "worker/worker.h"

enum live_kind {
    LIVE_STDOUT = 1,
    LIVE_STDERR = 2,
    LIVE_NOTICE = 3,
    LIVE_END = 4,      /* JSON: the attempt has ended */
    LIVE_SNAPSHOT = 5, /* JSON: live_snapshot() */
};

MUST_CHECK int live_new(struct worker *worker, struct live **ret, struct mandor_err *err);
void live_close(struct live *live);
struct live *live_free(struct live *live); /* after the loop has ended */

/* {"worker", "pid", "concurrency", "running": […], "metrics": {…}}; new reference or NULL. */
json_t *live_snapshot(struct worker *worker);

#endif

/* live_server.h - live data for `logs -f` and `top`: a stream socket <data_dir>/run/<worker>.live (mode 0600).
 *
 * A client sends one JSON line, {"follow": "<job id>"} or {"top": true}, and gets frames: kind (1 byte), length (u32 little-endian),
 * payload.  A slow client gets "[… N bytes skipped]" and never causes backpressure.  Loop thread only. */
#ifndef WORKER_LIVE_SERVER_H
#define WORKER_LIVE_SERVER_H

#include "worker/worker.h"

enum live_kind {
    LIVE_STDOUT = 1,
    LIVE_STDERR = 2,
    LIVE_NOTICE = 3,
    LIVE_END = 4,      /* JSON: the attempt has ended */
    LIVE_SNAPSHOT = 5, /* JSON: live_server_snapshot() */
};

MUST_CHECK int live_server_new(struct worker *worker, struct live_server **ret, struct mandor_err *err);
void live_server_close(struct live_server *live);
struct live_server *live_server_free(struct live_server *live); /* after the loop has ended */

/* {"worker", "pid", "concurrency", "running": […], "metrics": {…}}; new reference or NULL. */
json_t *live_server_snapshot(struct worker *worker);

#endif

/* live_server.h - live data for `logs -f` and `top`: a stream socket (mode 0600) that speaks live_frame.h.
 * A slow client gets "[… N bytes skipped]" and never causes backpressure.  Loop thread only. */
#ifndef WORKER_LIVE_SERVER_H
#define WORKER_LIVE_SERVER_H

#include "worker/live_frame.h"
#include "worker/worker.h"

/* Listen on <data_dir>/run/<worker>.live, and link to it from the other brokers' directories.  0 or -errno with *err. */
MUST_CHECK int live_server_new(struct worker *worker, struct live_server **ret,
                               struct mandor_err *err);
void live_server_close(struct live_server *live);
struct live_server *live_server_free(struct live_server *live); /* after the loop has ended */

/* {"worker", "pid", "concurrency", "running": […], "metrics": {…}}; new reference or NULL. */
json_t *live_server_snapshot(struct worker *worker);

#endif

/* leftovers.h - what dead attempts left on other machines is ended there: at the start, after each takeover, and once a minute while
 * something of it stays (a server that cannot be reached). */
#ifndef WORKER_LEFTOVERS_H
#define WORKER_LEFTOVERS_H

#include "worker/worker.h"

/* Look, if it is time; cheap.  Loop thread. */
void leftovers_sweep(struct worker *worker);
/* A dead worker's journal: hand its notes over, then sweep soon.  Broker thread. */
void leftovers_take(struct worker *worker, const char *journal_dir);

#endif

/* scheduler.h - which job runs next: slots, bounds and weights of queues, and leasing ahead.
 *
 * A queue's turn comes by stride scheduling: every start moves its `pass` by 1/weight, the lowest pass goes first, so that each queue with work
 * gets its share and none starves.  Where a broker leases and starts in one write, as many jobs are leased as there are free slots.  Else as many
 * are leased ahead as lately ended within a second (at most `concurrency`): short jobs then never wait for the broker, and long ones
 * never hoard what another worker could run.  Loop thread only. */
#ifndef WORKER_SCHEDULER_H
#define WORKER_SCHEDULER_H

#include "worker/worker.h"

MUST_CHECK int scheduler_new(struct worker *worker, struct scheduler **ret);
void scheduler_close(struct scheduler *scheduler); /* closes its handles */
/* After the loop has ended. */
struct scheduler *scheduler_free(struct scheduler *scheduler);

/* Read the bounds again (start, SIGHUP). */
void scheduler_configure(struct scheduler *scheduler);
/* Another process says that there may be jobs in source (NULL = in any), or a second has passed. */
void scheduler_wake(struct scheduler *scheduler, const struct source *source);
/* The same for what we know of ourselves: no cancel can be behind it. */
void scheduler_look(struct scheduler *scheduler, const struct source *source);
/* A delayed job of ours is due in so many ms. */
void scheduler_due(struct scheduler *scheduler, int64_t in_ms);
/* An attempt is leased no longer: it starts, was given back, or its lease is lost. */
void scheduler_unleased(struct scheduler *scheduler, struct attempt *attempt);
/* An attempt takes a slot, and gives it back. */
void scheduler_taken(struct scheduler *scheduler, struct attempt *attempt);
void scheduler_freed(struct scheduler *scheduler, struct attempt *attempt);
/* Give back what is leased of source (NULL = of all) and not started (shutdown, or waiting too long). */
void scheduler_give_back(struct scheduler *scheduler, const struct source *source,
                         int64_t older_than_ms);
/* --drain: the brokers say that nothing is left for us. */
bool scheduler_drained(const struct scheduler *scheduler);
/* … and there was nothing from the start: say so, the queue's name may be misspelt. */
void scheduler_say_if_idle(const struct scheduler *scheduler);
/* Is a lease under way?  It may bring jobs that are started already. */
bool scheduler_asking(const struct scheduler *scheduler);
int64_t scheduler_concurrency(const struct scheduler *scheduler);
size_t scheduler_queues(const struct scheduler *scheduler); /* that it knows of */
size_t scheduler_active(const struct scheduler *scheduler);

#endif

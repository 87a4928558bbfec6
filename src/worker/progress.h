/* progress.h - what a person at a terminal sees of `mandor work`: a line for each job that ended and one moving line at the bottom.
 * Without a terminal it is silent and the structured log speaks.  All accept NULL.  Loop thread only. */
#ifndef WORKER_PROGRESS_H
#define WORKER_PROGRESS_H

#include "worker/worker.h"

struct progress *progress_new(struct worker *worker); /* NULL: nobody watches */
void progress_settled(struct progress *progress, const struct attempt *attempt);
/* A line above the moving one. */
__attribute__((format(printf, 2, 3))) void progress_say(struct progress *progress, const char *fmt,
                                                        ...);
void progress_close(struct progress *progress); /* closes its handle, clears the line */
struct progress *progress_free(struct progress *progress);

#endif

/* waiting.h - wait until jobs are in a final state: `wait`, `cancel --wait`.  Main thread. */
#ifndef CLI_WAITING_H
#define CLI_WAITING_H

#include "cli/cli.h"
#include "cli/client.h"

/* How a job that has ended counts and is told: returns an exit code. */
typedef int waiting_fn(const struct cli *cli, const json_t *record);

/* Prints the record with --json, a line on a terminal; EXIT_OK when completed, else EXIT_FAILED. */
int waiting_tell(const struct cli *cli, const json_t *record);

/* Poll until all jobs have ended.  Returns the worst of on_ended's codes, EXIT_NOT_FOUND when one is unknown, EXIT_TIMED_OUT
 * after timeout_ms (-1: never), or what an error asks for, told on stderr. */
int waiting_for(const struct cli *cli, struct client *client, char *const *ids, size_t count,
                int64_t timeout_ms, waiting_fn *on_ended);

#endif

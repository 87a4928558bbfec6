/* wheels_smoke.h - does each package of a store import in the sandbox?  By real jobs in a queue of their own, which is thrown away.
 * Blocks; main thread. */
#ifndef CLI_WHEELS_SMOKE_H
#define CLI_WHEELS_SMOKE_H

#include "cli/wheels.h"

/* names: packages of lock, texts.  *ret: a new object {name: null when all its modules could be imported, else why not}.
 * Returns 0, or -errno with *err when nothing could be imported at all: no Node, no sandbox. */
MUST_CHECK int wheels_smoke(const struct wheels *wheels, const json_t *lock, const json_t *names,
                            json_t **ret, struct mandor_err *err);

#endif

/* intake.h - jobs on their way into a broker: gathered into batches, several of them in flight.
 *
 *     intake_add ─▶ batch ─(full, or input runs dry)─▶ BROKER_ADD ─▶ on_added for each, in order
 *
 * One failed batch ends the intake: later calls return its error.  Main thread; callbacks run inside the calls here.
 */
#ifndef CLI_INTAKE_H
#define CLI_INTAKE_H

#include "base/err.h"
#include "base/macro.h"
#include "cli/client.h"
#include "job/spec.h"

#define INTAKE_BATCH       ((size_t)500)     /* jobs */
#define INTAKE_BATCH_BYTES ((size_t)1 << 20) /* of input, about */
#define INTAKE_IN_FLIGHT   4                 /* batches */

struct intake_events {
    void (*on_added)(const char *id, bool existing, void *arg);
    /* After a batch's on_added; served: as in BROKER_ADD. */
    void (*on_batch)(bool served, void *arg);
};

struct intake;
MUST_CHECK int intake_new(struct client *client, const struct intake_events *events, void *arg,
                          struct intake **ret);
/* Only after intake_finish() or before anything was added. */
struct intake *intake_free(struct intake *intake);
DEFINE_CLEANUP(struct intake *, intake_free)

/* Parse, check and take one job (job: borrowed; defaults: of its queue, NULL allowed).  weight: bytes of input it came from.
 * -EINVAL: the job is bad, nothing else happened; other errors end the intake. */
MUST_CHECK int intake_add(struct intake *intake, const json_t *job, const json_t *defaults,
                          size_t weight, struct mandor_err *err);

/* Wait until fd can be read without blocking; what was gathered is sent when that is not at once. */
MUST_CHECK int intake_await(struct intake *intake, int fd, struct mandor_err *err);

/* Send what is left and wait until all is answered. */
MUST_CHECK int intake_finish(struct intake *intake, struct mandor_err *err);

#endif

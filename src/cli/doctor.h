/* doctor.h - findings of `mandor doctor`, for the files that make them. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include <jansson.h>

#include "child/contain.h"
#include "cli/cli.h"

enum health { HEALTH_OK, HEALTH_WARN, HEALTH_BROKEN };

struct doctor {
    struct cli *cli;
    json_t *checks; /* [{"check", "health", "text"}] */
    struct contain_host host;
    enum health worst;
    bool no_memory;
};

/* Add a finding. */
void doctor_found(struct doctor *doctor, enum health health, const char *check, const char *fmt,
                  ...) PRINTF_LIKE(4, 5);

/* Could the workers of the configured pools be started?  Nothing is started. */
void doctor_pools(struct doctor *doctor);
/* Can Python jobs run, and which walls are around them? */
void doctor_python(struct doctor *doctor);
/* Is everything in the wheel store that the configured runtimes load? */
void doctor_wheels(struct doctor *doctor);

#endif

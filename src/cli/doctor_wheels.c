/* doctor_wheels.c - `mandor doctor` on the wheels that the configured runtimes load. */
#include <stdio.h>

#include "cli/doctor.h"
#include "config/config.h"
#include "python/store.h"

/* Is everything there that each runtime loads, byte for byte (R103)? */
static void check_runtimes(struct doctor *doctor, const struct python_options *python)
{
    for (size_t i = 0; i < python->runtime_count; i++) {
        const struct python_runtime *runtime = &python->runtimes[i];
        struct store_wheels wheels;
        struct mandor_err err;
        char check[64];
        if (runtime->packages == NULL || runtime->packages[0] == NULL)
            continue;
        (void)snprintf(check, sizeof check, "runtime %s", runtime->name);
        if (store_wheels(python->store, runtime->packages, &wheels, &err) < 0) {
            doctor_found(doctor, HEALTH_BROKEN, check, "%s", err.msg);
            continue;
        }
        doctor_found(doctor, HEALTH_OK, check, "%zu wheels of '%s', all there", wheels.count,
                     python->store);
        store_wheels_done(&wheels);
    }
}

void doctor_wheels(struct doctor *doctor)
{
    SCOPED(config_free) struct config *config = NULL;

    /* Else the broker's check says it. */
    if (config_load(doctor->cli->config_path, &config, NULL) == 0)
        check_runtimes(doctor, &config->python);
}

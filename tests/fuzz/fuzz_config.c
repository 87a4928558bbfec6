/* fuzz_config.c - mandor.yaml: any bytes are taken or refused with a reason; what is taken can be used. */
#include "config/config.h"
#include "job/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mandor_err err = { .code = 0 };
    SCOPED(config_free) struct config *config = NULL;

    if (config_parse("mandor.yaml", (const char *)data, size, &config, &err) < 0) {
        if (err.msg[0] == '\0')
            abort(); /* a refusal says why */
        return 0;
    }

    if (config->concurrency < 1 || config->env_pass == NULL || config->lease_ms < 1)
        abort();
    for (size_t i = 0; i < config->queue_count; i++) {
        const struct config_queue *queue = config_queue(config, config->queues[i].name);
        if (queue->weight < 1 || spec_check_defaults(queue->defaults, &err) < 0)
            abort(); /* a job of this queue would fail for what the configuration said */
    }
    return 0;
}

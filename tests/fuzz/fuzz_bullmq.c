/* fuzz_bullmq.c - what strangers write into a BullMQ job's hash: options, stack traces, records. */
#include "base/json.h"
#include "broker/bullmq_job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void options(const char *text, size_t len)
{
    struct bullmq_opts opts;

    if (bullmq_opts_parse(text, len, &opts, NULL) == 0) {
        for (int64_t made = 1; made < 80; made += 13)
            if (bullmq_backoff_ms(&opts, made, 0.7) < -1)
                abort();
        free(bullmq_repeat_opts(&opts, 2));
        if (opts.completed.count < -1 || opts.failed.age_s < 0)
            abort();
    }
    bullmq_opts_done(&opts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    SCOPED_FREE char *text = strndup((const char *)data, size);
    if (text == NULL)
        return 0;
    options((const char *)data, size);

    SCOPED_FREE char *stack = bullmq_stack(text, text, 3);
    SCOPED_JSON *list = stack != NULL ? json_loads(stack, 0, NULL) : NULL;
    if (json_array_size(list) > 3 || (stack != NULL && list == NULL))
        abort();
    free(bullmq_trace("why", text));

    struct bullmq_record record = {
        .worker = "w", .last = "{}", .before = text, .out = data, .out_len = size
    };
    SCOPED_FREE char *written = bullmq_record_text(&record);
    SCOPED_JSON *read = written != NULL ? bullmq_record_parse(written, strlen(written)) : NULL;
    if (written != NULL && read == NULL)
        abort();
    return 0;
}

/* fuzz_cron.c - patterns and zone files: what is accepted gives a time, later than the one asked about, and the pattern fits it again. */
#include "job/cron.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void pattern(const char *text, const struct zone *zone)
{
    const int64_t after = 1790000000123;
    struct cron cron;
    int64_t next, again;

    if (cron_parse(text, &cron, NULL) < 0 || cron_after(&cron, zone, after, &next) < 0)
        return;
    if (next <= after || cron_after(&cron, zone, next - 1000, &again) < 0 || again != next)
        abort();
}

/* "pattern\0zone file" */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    SCOPED(zone_free) struct zone *zone = NULL;
    const uint8_t *end = memchr(data, 0, size);
    size_t len = end != NULL ? (size_t)(end - data) : size;
    SCOPED_FREE char *text = strndup((const char *)data, len);

    if (text == NULL)
        return 0;
    if (end != NULL && zone_parse(end + 1, size - len - 1, &zone) == 0)
        for (int64_t at = -4000000000; at < INT64_C(8000000000); at += 777777777)
            (void)(zone_offset(zone, at) + (zone_next_change(zone, at) > at));
    SCOPED(zone_free) struct zone *utc = NULL;
    if (zone_load("UTC", &utc, NULL) == 0)
        pattern(text, utc);
    return 0;
}

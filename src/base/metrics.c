/* metrics.c - contract in metrics.h.
 *
 * A histogram's bucket: values below 16 have one each; above, the four bits behind the leading one choose among 16 buckets
 * of each power of two, so a bucket is never wider than 1/16 of its lower end.
 */
#include "base/metrics.h"

#define SUB_BITS 4
#define SUB      (1u << SUB_BITS)
/* Leading bit up to 62: int64_t is not negative here. */
#define BUCKETS  ((63 - SUB_BITS) * SUB + SUB)

struct histogram {
    int64_t count, max;
    int64_t buckets[BUCKETS];
};

static _Atomic int64_t counters[METRIC_COUNTERS];
static struct histogram histograms[METRIC_HISTOGRAMS];

static const char *const counter_names[] = {
#define COUNTER(name, help) #name,
#define HISTOGRAM(name, unit, help)
#include "base/metrics.def"
#undef COUNTER
#undef HISTOGRAM
};
static const char *const histogram_names[] = {
#define COUNTER(name, help)
#define HISTOGRAM(name, unit, help) #name,
#include "base/metrics.def"
#undef COUNTER
#undef HISTOGRAM
};

void metric_add(enum metric_counter counter, int64_t n)
{
    atomic_fetch_add_explicit(&counters[counter], n, memory_order_relaxed);
}

int64_t metric_get(enum metric_counter counter)
{
    return atomic_load_explicit(&counters[counter], memory_order_relaxed);
}

static size_t bucket_of(uint64_t value)
{
    if (value < SUB)
        return (size_t)value;

    unsigned lead = 63u - (unsigned)__builtin_clzll(value);
    return (size_t)(lead - SUB_BITS + 1) * SUB + ((value >> (lead - SUB_BITS)) & (SUB - 1));
}

/* The largest value that falls into the bucket. */
static int64_t bucket_top(size_t bucket)
{
    if (bucket < SUB)
        return (int64_t)bucket;

    unsigned shift = (unsigned)(bucket / SUB) - 1;
    uint64_t low = (uint64_t)(SUB + bucket % SUB) << shift;
    return (int64_t)(low + ((uint64_t)1 << shift) - 1);
}

void metric_observe(enum metric_histogram histogram, int64_t value)
{
    struct histogram *h = &histograms[histogram];

    value = MAX(value, (int64_t)0);
    h->buckets[bucket_of((uint64_t)value)]++;
    h->count++;
    h->max = MAX(h->max, value);
}

int64_t metric_quantile(enum metric_histogram histogram, double q)
{
    const struct histogram *h = &histograms[histogram];
    if (h->count == 0)
        return 0;

    q = MIN(MAX(q, 0.0), 1.0);
    int64_t rank = MAX((int64_t)(q * (double)h->count + 0.5), (int64_t)1), seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen >= rank)
            return MIN(bucket_top(i), h->max);
    }
    return h->max;
}

static json_t *histogram_json(enum metric_histogram histogram)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "count", (json_int_t)histograms[histogram].count,
                     "p50", (json_int_t)metric_quantile(histogram, 0.5), "p90",
                     (json_int_t)metric_quantile(histogram, 0.9), "p99",
                     (json_int_t)metric_quantile(histogram, 0.99), "max",
                     (json_int_t)histograms[histogram].max);
}

json_t *metrics_json(void)
{
    json_t *all = json_object();

    for (unsigned i = 0; i < METRIC_COUNTERS; i++)
        if (json_object_set_new(all, counter_names[i], json_integer(metric_get(i))) < 0)
            goto fail;
    for (unsigned i = 0; i < METRIC_HISTOGRAMS; i++)
        if (json_object_set_new(all, histogram_names[i], histogram_json(i)) < 0)
            goto fail;
    return all;

fail:
    json_decref(all);
    return NULL;
}

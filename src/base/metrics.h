/* metrics.h - counters and histograms of this process in one registry: printed by `mandor stats` of the worker,
 * dumped as JSON.  Counters are atomic; histograms belong to the loop thread. */
#ifndef BASE_METRICS_H
#define BASE_METRICS_H

#include <jansson.h>
#include <stdatomic.h>

#include "base/macro.h"

/* Rows of metrics.def: COUNTER(name, help) and HISTOGRAM(name, unit, help). */
enum metric_counter {
#define COUNTER(name, help) METRIC_##name,
#define HISTOGRAM(name, unit, help)
#include "base/metrics.def"
#undef COUNTER
#undef HISTOGRAM
    METRIC_COUNTERS
};
enum metric_histogram {
#define COUNTER(name, help)
#define HISTOGRAM(name, unit, help) METRIC_##name,
#include "base/metrics.def"
#undef COUNTER
#undef HISTOGRAM
    METRIC_HISTOGRAMS
};

void metric_add(enum metric_counter counter, int64_t n);
int64_t metric_get(enum metric_counter counter);
/* Log-linear buckets (16 a power of two), so quantiles are within 7 %.  value >= 0. */
void metric_observe(enum metric_histogram histogram, int64_t value);
/* q in [0, 1]; 0 when nothing was observed. */
int64_t metric_quantile(enum metric_histogram histogram, double q);
/* {"jobs_completed": 12, …, "loop_lag_us": {"count": …, "p50": …, "p90": …, "p99": …, "max": …}, …}
 * New reference or NULL. */
json_t *metrics_json(void);

#endif

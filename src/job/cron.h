/* cron.h - patterns of repeated times, as BullMQ's job schedulers have them (the dialect of cron-parser 5).
 *
 *     [second] minute hour day-of-month month day-of-week      or @hourly, @daily, @weekly, @monthly, @yearly, …
 *
 * Fields: * ? lists (1,5) ranges (1-5) steps (X/5, 1-30/5, 7/2), names (JAN, MON), L (the last day, 5L the last Friday), 5#2 (the second
 * Friday).  When day of month and day of week are both given, either will do.  An hour that a zone skips in spring comes with the
 * next that exists; what it has twice in autumn is taken once, unless the hours are '*'.
 * Pure but for the zone's file, which is read.  Any thread. */
#ifndef JOB_CRON_H
#define JOB_CRON_H

#include "base/err.h"
#include "base/macro.h"
#include "base/zone.h"

struct cron {
    uint64_t seconds, minutes, hours, days, months, weekdays; /* bit n: n is in */
    bool last_day;                                            /* L */
    uint64_t last_weekdays;    /* bit n: the last n-day of the month */
    unsigned char nth[7];      /* bit n: the nth such weekday */
    bool any_day, any_weekday; /* were '*' or '?' */
    bool any_hour;
};

/* 0, or -EINVAL with *err naming field and text. */
MUST_CHECK int cron_parse(const char *pattern, struct cron *ret, struct mandor_err *err);
/* The first time after after_ms (wall clock) in zone.  0, or -ENOENT: there is none within ten years. */
MUST_CHECK int cron_after(const struct cron *cron, const struct zone *zone, int64_t after_ms,
                          int64_t *ret_ms);
/* Both at once; zone NULL = the machine's own. */
MUST_CHECK int cron_next(const char *pattern, const char *zone, int64_t after_ms, int64_t *ret_ms,
                         struct mandor_err *err);

#endif

/* zone.h - time zones by name, read from the system's database (tzfile(5)), independent of TZ and of localtime(3), which know one zone
 * for the whole process.  Reads a small file; what was loaded is immutable.  Any thread. */
#ifndef BASE_ZONE_H
#define BASE_ZONE_H

#include "base/err.h"
#include "base/macro.h"

struct zone;

/* name: "Europe/Berlin", "UTC"; NULL = the machine's own (TZ, /etc/localtime).
 * Returns 0; -ENOENT with *err when there is no such zone; -EINVAL (a broken file); -ENOMEM. */
MUST_CHECK int zone_load(const char *name, struct zone **ret, struct mandor_err *err);
/* The same from the bytes of a tzfile. */
MUST_CHECK int zone_parse(const void *bytes, size_t len, struct zone **ret);
struct zone *zone_free(struct zone *zone);
DEFINE_CLEANUP(struct zone *, zone_free)

/* Seconds east of UTC at this instant (seconds since 1970). */
int64_t zone_offset(const struct zone *zone, int64_t utc_s);
/* The next instant after utc_s at which the offset changes; INT64_MAX = never. */
int64_t zone_next_change(const struct zone *zone, int64_t utc_s);

/* ---- the calendar, without zones ---- */

struct civil {
    int64_t year;
    int month, day;           /* 1 … */
    int hour, minute, second; /* 0 … */
    int weekday;              /* 0 = Sunday */
};
void civil_from_seconds(int64_t seconds, struct civil *ret);
int64_t civil_to_seconds(const struct civil *civil); /* weekday is not read */
int civil_days_in_month(int64_t year, int month);

#endif

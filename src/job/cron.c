/* cron.c - contract in cron.h. */
#include "job/cron.h"

#include <strings.h>

#define YEARS_MAX 10

static const char *const month_names[] = { "JAN", "FEB", "MAR", "APR", "MAY", "JUN",
                                           "JUL", "AUG", "SEP", "OCT", "NOV", "DEC" };
static const char *const weekday_names[] = { "SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT" };

enum field { SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY, FIELDS };
static const struct {
    const char *name;
    int min, max;
    const char *const *names;
    int name_count;
} fields[FIELDS] = {
    [SECOND] = { "second", 0, 59, NULL, 0 },
    [MINUTE] = { "minute", 0, 59, NULL, 0 },
    [HOUR] = { "hour", 0, 23, NULL, 0 },
    [DAY] = { "day of month", 1, 31, NULL, 0 },
    [MONTH] = { "month", 1, 12, month_names, 12 },
    [WEEKDAY] = { "day of week", 0, 7, weekday_names, 7 },
};
static const struct {
    const char *name, *pattern;
} aliases[] = {
    { "@yearly", "0 0 0 1 1 *" },     { "@annually", "0 0 0 1 1 *" },
    { "@monthly", "0 0 0 1 * *" },    { "@weekly", "0 0 0 * * 0" },
    { "@daily", "0 0 0 * * *" },      { "@hourly", "0 0 * * * *" },
    { "@minutely", "0 * * * * *" },   { "@secondly", "* * * * * *" },
    { "@weekdays", "0 0 0 * * 1-5" }, { "@weekends", "0 0 0 * * 0,6" },
};

/* ---- parse ---- */

/* One piece between commas: "*", "3", "1-5", "1-30/5", with first and last of a range. */
static bool read_value(const char **text, enum field field, int *ret)
{
    const char *p = *text;

    if (*p >= '0' && *p <= '9') {
        int value = 0;
        for (; *p >= '0' && *p <= '9' && value < 1000; p++)
            value = value * 10 + (*p - '0');
        *text = p;
        *ret = value;
        return value >= fields[field].min && value <= fields[field].max;
    }
    for (int i = 0; i < fields[field].name_count; i++)
        if (strncasecmp(p, fields[field].names[i], 3) == 0) {
            *text = p + 3;
            *ret = fields[field].min + i;
            return true;
        }
    return false;
}

static void add_range(uint64_t *bits, int from, int to, int step)
{
    for (int value = from; value <= to; value += step)
        *bits |= UINT64_C(1) << value;
}

/* What only days have: L, 5L, 5#2.  1: it was such; 0: something else; < 0: wrong. */
static int read_special(const char **text, enum field field, struct cron *cron)
{
    const char *p = *text;
    int value;

    if (*p == 'L' || *p == 'l') {
        if (field != DAY && field != WEEKDAY)
            return -EINVAL;
        *text = p + 1;
        if (field == DAY)
            cron->last_day = true;
        else
            cron->weekdays |= UINT64_C(1) << 6; /* the last of the week */
        return 1;
    }
    if (field != WEEKDAY || !read_value(&p, field, &value))
        return 0;
    if (*p == 'L' || *p == 'l') {
        cron->last_weekdays |= UINT64_C(1) << (value % 7);
        *text = p + 1;
        return 1;
    }
    if (*p != '#')
        return 0;
    if (p[1] < '1' || p[1] > '5')
        return -EINVAL;
    cron->nth[value % 7] |= (unsigned char)(1u << (p[1] - '0'));
    *text = p + 2;
    return 1;
}

static bool read_step(const char **text, int *ret)
{
    char *end;

    *ret = 1;
    if (**text != '/')
        return true;
    if ((*text)[1] < '0' || (*text)[1] > '9')
        return false;
    long step = strtol(*text + 1, &end, 10);
    *text = end;
    *ret = (int)MIN(step, 1000L);
    return step > 0;
}

static bool read_piece(const char **text, enum field field, struct cron *cron, uint64_t *bits)
{
    int from = fields[field].min, to = fields[field].max, step, special;

    special = read_special(text, field, cron);
    if (special != 0)
        return special > 0;
    if (**text == '*' || **text == '?') {
        (*text)++;
        if (field == WEEKDAY)
            to = 6;
        if (!read_step(text, &step))
            return false;
        add_range(bits, from, to, step);
        return true;
    }
    if (!read_value(text, field, &from))
        return false;
    bool range = **text == '-';
    if (range) {
        (*text)++;
        if (!read_value(text, field, &to))
            return false;
    }
    bool stepped = **text == '/';
    if (!read_step(text, &step))
        return false;
    if (!range && !stepped)
        to = from;
    if (field == WEEKDAY && range && to < from && to == 0)
        to = 7; /* 5-0: until Sunday */
    if (to < from)
        return false;
    add_range(bits, from, to, step);
    return true;
}

static int read_field(const char *text, size_t len, enum field field, struct cron *cron,
                      uint64_t *bits, struct mandor_err *err)
{
    SCOPED_FREE char *copy = strndup(text, len);
    const char *p = copy;

    if (copy == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a pattern");
    for (;;) {
        if (!read_piece(&p, field, cron, bits))
            break;
        if (*p == '\0')
            return 0;
        if (*p++ != ',')
            break;
    }
    return err_set(err, -EINVAL, FAULT_CALLER,
                   "'%s' is no %s, expected %d to %d or a pattern of "
                   "them",
                   copy, fields[field].name, fields[field].min, fields[field].max);
}

static const char *resolve(const char *pattern)
{
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++)
        if (strcasecmp(pattern, aliases[i].name) == 0)
            return aliases[i].pattern;
    return pattern;
}

static size_t split(const char *pattern, const char *parts[FIELDS + 1], size_t lens[FIELDS + 1])
{
    size_t count = 0;

    for (const char *p = pattern + strspn(pattern, " \t"); *p != '\0' && count <= FIELDS;
         p += strspn(p, " \t")) {
        parts[count] = p;
        lens[count] = strcspn(p, " \t");
        p += lens[count++];
    }
    return count;
}

static bool is_any(const char *text, size_t len)
{
    return len == 1 && (*text == '*' || *text == '?');
}

int cron_parse(const char *pattern, struct cron *ret, struct mandor_err *err)
{
    const char *parts[FIELDS + 1];
    size_t lens[FIELDS + 1], count = split(resolve(pattern), parts, lens);
    uint64_t *const bits[FIELDS] = { &ret->seconds, &ret->minutes, &ret->hours,
                                     &ret->days,    &ret->months,  &ret->weekdays };

    *ret = (struct cron){ 0 };
    if (count != 5 && count != 6)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "pattern '%s' has %zu fields, expected 5, or 6 with seconds", pattern,
                       count);
    size_t skip = FIELDS - count;
    if (skip > 0)
        ret->seconds = 1;
    for (size_t i = skip; i < FIELDS; i++) {
        int r = read_field(parts[i - skip], lens[i - skip], (enum field)i, ret, bits[i], err);
        if (r < 0)
            return err_wrap(err, r, "pattern '%s'", pattern);
    }
    if (ret->weekdays >> 7 & 1)
        ret->weekdays |= 1; /* 7 is Sunday too */
    ret->any_hour = is_any(parts[HOUR - skip], lens[HOUR - skip]);
    ret->any_day = is_any(parts[DAY - skip], lens[DAY - skip]);
    ret->any_weekday = is_any(parts[WEEKDAY - skip], lens[WEEKDAY - skip]);
    return 0;
}

/* ---- when ---- */

static bool has(uint64_t bits, int value)
{
    return (bits >> value & 1) != 0;
}

static bool weekday_matches(const struct cron *cron, const struct civil *at)
{
    int last = civil_days_in_month(at->year, at->month);

    return has(cron->weekdays, at->weekday) ||
           (has(cron->last_weekdays, at->weekday) && at->day + 7 > last) ||
           (cron->nth[at->weekday] >> ((at->day - 1) / 7 + 1) & 1) != 0;
}

static bool day_matches(const struct cron *cron, const struct civil *at)
{
    bool day = has(cron->days, at->day) ||
               (cron->last_day && at->day == civil_days_in_month(at->year, at->month));
    bool weekday = weekday_matches(cron, at);

    if (cron->any_day)
        return weekday;
    return cron->any_weekday ? day : day || weekday;
}

/* The first time of this day, from `at` on, that fits; false: none.  Fields below the one that moved start over. */
static bool fit_time(const struct cron *cron, struct civil *at)
{
    for (; at->hour < 24; at->hour++, at->minute = at->second = 0) {
        if (!has(cron->hours, at->hour))
            continue;
        for (; at->minute < 60; at->minute++, at->second = 0) {
            if (!has(cron->minutes, at->minute))
                continue;
            for (; at->second < 60; at->second++)
                if (has(cron->seconds, at->second))
                    return true;
        }
    }
    return false;
}

static void next_day(struct civil *at)
{
    struct civil midnight = { .year = at->year, .month = at->month, .day = at->day };
    civil_from_seconds(civil_to_seconds(&midnight) + 86400, at);
}

/* The first local time from *seconds on that fits; false: none before last_year is over. */
static bool fit(const struct cron *cron, int64_t *seconds, int64_t last_year)
{
    struct civil at;

    civil_from_seconds(*seconds, &at);
    while (at.year <= last_year) {
        if (!has(cron->months, at.month)) {
            at = (struct civil){ .year = at.year + at.month / 12,
                                 .month = at.month % 12 + 1,
                                 .day = 1 };
            civil_from_seconds(civil_to_seconds(&at), &at);
            continue;
        }
        if (day_matches(cron, &at) && fit_time(cron, &at)) {
            *seconds = civil_to_seconds(&at);
            return true;
        }
        at.hour = MIN(at.hour, 23);
        next_day(&at);
    }
    return false;
}

/* No zone moves its clocks by more, but where it changes its side of the date line. */
#define SHIFT_MAX_S (3 * 3600)

/* The last change of the offset not long before utc, and what the offset was; false: there was none. */
static bool shifted(const struct zone *zone, int64_t utc, int64_t *ret_change, int64_t *ret_before)
{
    *ret_change = zone_next_change(zone, utc - SHIFT_MAX_S - 1);
    if (*ret_change > utc)
        return false;
    *ret_before = zone_offset(zone, *ret_change - 1);
    return true;
}

/* A local time that was skipped when the clocks went forward comes as late as it would have without that; INT64_MAX = none. */
static int64_t in_gap(const struct cron *cron, int64_t utc, int64_t change, int64_t before,
                      int64_t offset, int64_t last_year)
{
    int64_t end = change + offset - before, local = utc + before;

    if (utc >= end || !fit(cron, &local, last_year) || local - before >= end)
        return INT64_MAX;
    return local - before;
}

int cron_after(const struct cron *cron, const struct zone *zone, int64_t after_ms, int64_t *ret_ms)
{
    int64_t utc = after_ms / 1000 - (after_ms % 1000 < 0) + 1;
    struct civil now;

    civil_from_seconds(utc, &now);
    int64_t last_year = now.year + YEARS_MAX;
    for (;;) {
        int64_t offset = zone_offset(zone, utc), end = zone_next_change(zone, utc);
        int64_t local = utc + offset, change, before, best = INT64_MAX;
        if (shifted(zone, utc, &change, &before)) {
            best = in_gap(cron, utc, change, before, offset, last_year);
            if (!cron->any_hour) /* what the clocks show for the second time is not taken again */
                local = MAX(local, change + before);
        }
        bool fits = fit(cron, &local, last_year);
        if (fits && local - offset < end)
            best = MIN(best, local - offset);
        if (best < INT64_MAX) {
            *ret_ms = best * 1000;
            return 0;
        }
        if (!fits)
            return -ENOENT;
        utc = end; /* another offset holds from there on */
    }
}

int cron_next(const char *pattern, const char *zone_name, int64_t after_ms, int64_t *ret_ms,
              struct mandor_err *err)
{
    SCOPED(zone_free) struct zone *zone = NULL;
    struct cron cron;

    int r = cron_parse(pattern, &cron, err);
    if (r == 0)
        r = zone_load(zone_name, &zone, err);
    return r < 0 ? r : cron_after(&cron, zone, after_ms, ret_ms);
}

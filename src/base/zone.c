/* zone.c - contract in zone.h. */
#include "base/zone.h"

#include <stdio.h>

#include "base/file.h"

#define ZONE_FILE_MAX ((size_t)1 << 20)

/* A day of the year on which the rule of a footer ("CET-1CEST,M3.5.0,M10.5.0/3") changes the offset. */
struct rule {
    enum { RULE_NONE, RULE_MONTH, RULE_JULIAN, RULE_DAY } kind;
    int month, week, day; /* RULE_MONTH; day alone for the others */
    int64_t time_s;       /* local, of the offset before */
};

struct zone {
    int64_t *at;     /* instants, ascending */
    int64_t *offset; /* from then on */
    size_t count;
    int64_t first_offset;       /* before the first */
    bool footer;                /* after the last: */
    int64_t standard, daylight; /* offsets */
    struct rule begin, end;     /* of daylight saving; RULE_NONE: never */
};

/* ---- calendar ---- */

static int64_t days_from_civil(int64_t year, int month, int day)
{
    year -= month <= 2;
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    int64_t of_era = year - era * 400;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

void civil_from_seconds(int64_t seconds, struct civil *ret)
{
    int64_t days = floor_div(seconds, 86400), rest = seconds - days * 86400;
    int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
    int64_t of_era = z - era * 146097;
    int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t mp = (5 * of_year + 2) / 153;

    ret->day = (int)(of_year - (153 * mp + 2) / 5 + 1);
    ret->month = (int)(mp < 10 ? mp + 3 : mp - 9);
    ret->year = year_of_era + era * 400 + (ret->month <= 2);
    ret->hour = (int)(rest / 3600);
    ret->minute = (int)(rest / 60 % 60);
    ret->second = (int)(rest % 60);
    ret->weekday = (int)(((days + 4) % 7 + 7) % 7);
}

int64_t civil_to_seconds(const struct civil *civil)
{
    return days_from_civil(civil->year, civil->month, civil->day) * 86400 +
           civil->hour * INT64_C(3600) + civil->minute * INT64_C(60) + civil->second;
}

int civil_days_in_month(int64_t year, int month)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return days[month - 1] + (month == 2 && leap);
}

/* ---- the footer ---- */

static bool read_number(const char **text, int64_t *ret)
{
    char *end;

    if (**text < '0' || **text > '9')
        return false;
    *ret = strtol(*text, &end, 10);
    *text = end;
    return *ret <= 1000;
}

static bool skip_name(const char **text)
{
    const char *p = *text;

    if (*p == '<') {
        p = strchr(p, '>');
        if (p == NULL)
            return false;
        p++;
    } else {
        while ((*p >= 'A' && *p <= 'Z') || (*p >= 'a' && *p <= 'z'))
            p++;
    }
    bool some = p > *text;
    *text = p;
    return some;
}

/* [+-]hh[:mm[:ss]] */
static bool read_time(const char **text, int64_t *ret_s)
{
    int64_t sign = **text == '-' ? -1 : 1, part, unit = 3600, total = 0;

    if (**text == '-' || **text == '+')
        (*text)++;
    for (;;) {
        if (!read_number(text, &part))
            return false;
        total += part * unit;
        unit /= 60;
        if (**text != ':' || unit == 0)
            break;
        (*text)++;
    }
    *ret_s = sign * total;
    return true;
}

static bool read_rule(const char **text, struct rule *ret)
{
    int64_t a, b, c;

    *ret = (struct rule){ .time_s = 7200 };
    if (**text != ',')
        return false;
    (*text)++;
    if (**text == 'M') {
        (*text)++;
        if (!read_number(text, &a) || *(*text)++ != '.' || !read_number(text, &b) ||
            *(*text)++ != '.' || !read_number(text, &c) || a < 1 || a > 12 || b < 1 || b > 5 ||
            c > 6)
            return false;
        ret->kind = RULE_MONTH;
        ret->month = (int)a;
        ret->week = (int)b;
        ret->day = (int)c;
    } else {
        ret->kind = **text == 'J' ? RULE_JULIAN : RULE_DAY;
        *text += **text == 'J';
        if (!read_number(text, &a) || a > 366)
            return false;
        ret->day = (int)a;
    }
    if (**text != '/')
        return true;
    (*text)++;
    return read_time(text, &ret->time_s);
}

static bool read_footer(const char *text, struct zone *zone)
{
    int64_t west;

    if (!skip_name(&text) || !read_time(&text, &west))
        return false;
    zone->footer = true;
    zone->standard = zone->daylight = -west;
    if (*text == '\0')
        return true;
    if (!skip_name(&text))
        return false;
    zone->daylight = zone->standard + 3600;
    if (*text != ',' && *text != '\0') {
        if (!read_time(&text, &west))
            return false;
        zone->daylight = -west;
    }
    return read_rule(&text, &zone->begin) && read_rule(&text, &zone->end) && *text == '\0';
}

/* The instant of a rule in a year; before: the offset that it ends. */
static int64_t rule_at(const struct rule *rule, int64_t year, int64_t before)
{
    int64_t days;

    if (rule->kind == RULE_MONTH) {
        int64_t first = days_from_civil(year, rule->month, 1);
        int weekday = (int)(((first + 4) % 7 + 7) % 7);
        int day = 1 + (rule->day - weekday + 7) % 7 + 7 * (rule->week - 1);
        while (day > civil_days_in_month(year, rule->month))
            day -= 7;
        days = first + day - 1;
    } else {
        days = days_from_civil(year, 1, 1) + rule->day - (rule->kind == RULE_JULIAN);
        if (rule->kind == RULE_JULIAN && rule->day > 59 && civil_days_in_month(year, 2) == 29)
            days++;
    }
    return days * 86400 + rule->time_s - before;
}

static int64_t footer_offset(const struct zone *zone, int64_t utc_s)
{
    struct civil civil;

    if (zone->begin.kind == RULE_NONE)
        return zone->standard;
    civil_from_seconds(utc_s + zone->standard, &civil);
    int64_t begin = rule_at(&zone->begin, civil.year, zone->standard);
    int64_t end = rule_at(&zone->end, civil.year, zone->daylight);
    bool daylight = begin < end ? utc_s >= begin && utc_s < end : utc_s >= begin || utc_s < end;
    return daylight ? zone->daylight : zone->standard;
}

static int64_t footer_next(const struct zone *zone, int64_t utc_s)
{
    struct civil civil;
    int64_t next = INT64_MAX;

    if (zone->begin.kind == RULE_NONE)
        return INT64_MAX;
    civil_from_seconds(utc_s, &civil);
    for (int64_t year = civil.year - 1; year <= civil.year + 1; year++) {
        int64_t begin = rule_at(&zone->begin, year, zone->standard);
        int64_t end = rule_at(&zone->end, year, zone->daylight);
        if (begin > utc_s)
            next = MIN(next, begin);
        if (end > utc_s)
            next = MIN(next, end);
    }
    return next;
}

/* ---- queries ---- */

/* How many changes are not after utc_s. */
static size_t passed(const struct zone *zone, int64_t utc_s)
{
    size_t low = 0, high = zone->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (zone->at[middle] <= utc_s)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t zone_offset(const struct zone *zone, int64_t utc_s)
{
    size_t n = passed(zone, utc_s);

    if (n == zone->count && zone->footer)
        return footer_offset(zone, utc_s);
    return n == 0 ? zone->first_offset : zone->offset[n - 1];
}

int64_t zone_next_change(const struct zone *zone, int64_t utc_s)
{
    size_t n = passed(zone, utc_s);

    if (n < zone->count)
        return zone->at[n];
    return zone->footer ? footer_next(zone, utc_s) : INT64_MAX;
}

/* ---- the file ---- */

static int64_t big(const unsigned char *bytes, int size)
{
    uint64_t value = size == 4 && (bytes[0] & 0x80) != 0 ? UINT64_MAX : 0;

    if (size == 8)
        value = 0;
    for (int i = 0; i < size; i++)
        value = value << 8 | bytes[i];
    return (int64_t)value;
}

struct header {
    size_t isut, isstd, leap, time, type, chars;
};

static bool read_header(const unsigned char *bytes, size_t len, struct header *ret)
{
    size_t *const fields[] = { &ret->isut, &ret->isstd, &ret->leap,
                               &ret->time, &ret->type,  &ret->chars };

    if (len < 44 || memcmp(bytes, "TZif", 4) != 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        int64_t value = big(bytes + 20 + 4 * i, 4);
        if (value < 0 || (size_t)value > ZONE_FILE_MAX)
            return false;
        *fields[i] = (size_t)value;
    }
    return true;
}

static size_t body_size(const struct header *header, size_t time_size)
{
    return header->time * (time_size + 1) + header->type * 6 + header->chars +
           header->leap * (time_size + 4) + header->isstd + header->isut;
}

static int fill(struct zone *zone, const unsigned char *body, const struct header *header,
                size_t time_size)
{
    const unsigned char *index = body + header->time * time_size;
    const unsigned char *types = index + header->time;

    if (header->type == 0)
        return -EINVAL;
    zone->at = calloc(header->time + 1, sizeof *zone->at);
    zone->offset = calloc(header->time + 1, sizeof *zone->offset);
    if (zone->at == NULL || zone->offset == NULL)
        return -ENOMEM;
    zone->first_offset = big(types, 4);
    for (size_t i = 0; i < header->time; i++) {
        if (index[i] >= header->type)
            return -EINVAL;
        zone->at[i] = big(body + i * time_size, (int)time_size);
        zone->offset[i] = big(types + (size_t)6 * index[i], 4);
        if (i > 0 && zone->at[i] <= zone->at[i - 1])
            return -EINVAL;
    }
    zone->count = header->time;
    return 0;
}

/* The text between the last two newlines. */
static int fill_footer(struct zone *zone, const unsigned char *bytes, size_t len)
{
    if (len < 2 || bytes[0] != '\n')
        return 0;
    const unsigned char *end = memchr(bytes + 1, '\n', len - 1);
    if (end == NULL || end == bytes + 1)
        return 0;
    SCOPED_FREE char *text = strndup((const char *)bytes + 1, (size_t)(end - bytes - 1));
    if (text == NULL)
        return -ENOMEM;
    return read_footer(text, zone) ? 0 : -EINVAL;
}

static int fill_zone(struct zone *zone, const unsigned char *bytes, size_t len)
{
    struct header header;
    size_t time_size = 4;

    if (!read_header(bytes, len, &header))
        return -EINVAL;
    if (bytes[4] >= '2') { /* the same again, with 64 bits */
        size_t first = 44 + body_size(&header, 4);
        if (first > len || !read_header(bytes + first, len - first, &header))
            return -EINVAL;
        bytes += first;
        len -= first;
        time_size = 8;
    }
    size_t size = body_size(&header, time_size);
    if (44 + size > len)
        return -EINVAL;
    int r = fill(zone, bytes + 44, &header, time_size);
    if (r == 0 && time_size == 8)
        r = fill_footer(zone, bytes + 44 + size, len - 44 - size);
    return r;
}

int zone_parse(const void *bytes, size_t len, struct zone **ret)
{
    struct zone *zone = calloc(1, sizeof *zone);

    if (zone == NULL)
        return -ENOMEM;
    int r = fill_zone(zone, bytes, len);
    if (r == 0)
        *ret = zone;
    else
        zone_free(zone);
    return r;
}

struct zone *zone_free(struct zone *zone)
{
    if (zone != NULL) {
        free(zone->at);
        free(zone->offset);
    }
    free(zone);
    return NULL;
}

static bool valid_name(const char *name)
{
    return name[0] != '\0' && name[0] != '/' && strstr(name, "..") == NULL && strlen(name) < 256;
}

static int utc(struct zone **ret)
{
    struct zone *zone = calloc(1, sizeof *zone);

    if (zone == NULL)
        return -ENOMEM;
    *ret = zone;
    return 0;
}

int zone_load(const char *name, struct zone **ret, struct mandor_err *err)
{
    const char *tz = name != NULL ? name : getenv("TZ");
    const char *dir = getenv("TZDIR");
    char path[4096];
    SCOPED_BUF bytes = { 0 };

    if (tz != NULL && tz[0] == ':')
        tz++;
    if (tz != NULL && (str_eq(tz, "UTC") || str_eq(tz, "Etc/UTC") || str_eq(tz, "GMT") ||
                       (name == NULL && tz[0] == '\0')))
        return utc(ret);
    if (tz != NULL && !(name == NULL && tz[0] == '/') && !valid_name(tz))
        return err_set(err, -ENOENT, FAULT_CALLER, "time zone '%s' is not known", tz);
    if (tz == NULL)
        (void)snprintf(path, sizeof path, "/etc/localtime");
    else if (tz[0] == '/')
        (void)snprintf(path, sizeof path, "%s", tz);
    else
        (void)snprintf(path, sizeof path, "%s/%s", dir != NULL ? dir : "/usr/share/zoneinfo", tz);

    int r = file_read(path, ZONE_FILE_MAX, true, &bytes);
    if (r == -ENOENT && tz == NULL)
        return utc(ret);
    if (r == 0)
        r = zone_parse(bytes.data, bytes.len, ret);
    if (r == -ENOENT || r == -EISDIR || r == -ENOTDIR)
        return err_set(err, -ENOENT, FAULT_CALLER,
                       "time zone '%s' is not known on this machine (Debian package tzdata)", tz);
    return r < 0 ? err_set(err, r, FAULT_HOST, "read time zone file '%s'", path) : 0;
}

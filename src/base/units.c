/* units.c - contract in units.h.
 *
 * Everything is integer arithmetic: a fraction is digits over a power of ten, so "1.5G" is exact and nothing is ever
 * rounded up to a limit that nobody wrote.
 */
#include "base/units.h"

#include <stdio.h>

#define FRACTION_DIGITS 6 /* at most; with the largest unit the product still fits */

struct unit {
    const char *name;
    int64_t factor;
};

static const struct unit duration_units[] = {
    /* largest first: printing goes down the list */
    { "d", INT64_C(86400000) }, { "h", 3600000 }, { "m", 60000 }, { "s", 1000 }, { "ms", 1 },
};
static const struct unit size_units[] = {
    { "T", INT64_C(1) << 40 },
    { "G", INT64_C(1) << 30 },
    { "M", INT64_C(1) << 20 },
    { "K", INT64_C(1) << 10 },
    { "B", 1 },
};

#define DURATION_WANT "expected a duration such as 500ms, 30s, 5m, 1h30m or 7d"
#define SIZE_WANT     "expected a size such as 100, 64K, 512M, 8MiB or 1.5G"

/* A number as written: whole + fraction / scale. */
struct number {
    int64_t whole, fraction, scale;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Read digits[.digits] from *p and move it on.  Returns 0, -EINVAL (no number, or too many decimals) or -ERANGE. */
static int read_number(const char **p, struct number *ret)
{
    struct number number = { .scale = 1 };
    const char *at = *p;

    if (!is_digit(*at))
        return -EINVAL;
    for (; is_digit(*at); at++)
        if (__builtin_mul_overflow(number.whole, 10, &number.whole) ||
            __builtin_add_overflow(number.whole, *at - '0', &number.whole))
            return -ERANGE;
    if (*at == '.') {
        int digits = 0;
        for (at++; is_digit(*at); at++, digits++) {
            if (digits >= FRACTION_DIGITS)
                return *p = at, -EINVAL;
            number.fraction = number.fraction * 10 + (*at - '0');
            number.scale *= 10;
        }
        if (digits == 0)
            return *p = at, -EINVAL;
    }
    *p = at;
    *ret = number;
    return 0;
}

/* number * factor, cut to whole units; *ret_exact says whether nothing was cut. */
static int scale(const struct number *number, int64_t factor, int64_t *ret, bool *ret_exact)
{
    int64_t value, part = number->fraction * factor;

    *ret_exact = part % number->scale == 0;
    if (__builtin_mul_overflow(number->whole, factor, &value) ||
        __builtin_add_overflow(value, part / number->scale, &value))
        return -ERANGE;
    *ret = value;
    return 0;
}

static int malformed(struct mandor_err *err, const char *text, const char *at, const char *want)
{
    if (text[0] == '\0')
        return err_set(err, -EINVAL, FAULT_CALLER, "empty, %s", want);
    if (text[0] == '-')
        return err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' is negative, %s", text, want);
    if (*at == '\0')
        return err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' ends too early, %s", text, want);
    return err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' is wrong at character %td, %s", text,
                   at - text + 1, want);
}

static int too_large(struct mandor_err *err, const char *text, const char *want)
{
    return err_set(err, -ERANGE, FAULT_CALLER, "'%.40s' is too large, %s", text, want);
}

/* The duration unit that starts at *p, from `first` (they go down: 1h30m, not 30m1h) on, or NULL. */
static const struct unit *duration_unit(const char **p, size_t *first)
{
    size_t len = 0;

    while (is_letter((*p)[len]))
        len++;
    for (size_t i = *first; i < ARRAY_LEN(duration_units); i++) {
        const char *name = duration_units[i].name;
        if (strlen(name) == len && memcmp(name, *p, len) == 0) {
            *p += len;
            *first = i + 1;
            return &duration_units[i];
        }
    }
    return NULL;
}

int units_parse_duration(const char *text, int64_t *ret_ms, struct mandor_err *err)
{
    const char *at = text;
    int64_t total = 0;
    size_t next_unit = 0;

    if (str_eq(text, "0"))
        return *ret_ms = 0, 0;
    do {
        struct number number;
        int64_t part;
        bool exact;

        int r = read_number(&at, &number);
        if (r == -ERANGE)
            return too_large(err, text, DURATION_WANT);
        if (r < 0)
            return malformed(err, text, at, DURATION_WANT);
        if (*at == '\0')
            return err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' lacks a unit, " DURATION_WANT,
                           text);
        const struct unit *unit = duration_unit(&at, &next_unit);
        if (unit == NULL)
            return malformed(err, text, at, DURATION_WANT);
        if (scale(&number, unit->factor, &part, &exact) < 0 ||
            __builtin_add_overflow(total, part, &total))
            return too_large(err, text, DURATION_WANT);
        if (!exact)
            return err_set(err, -EINVAL, FAULT_CALLER,
                           "'%.40s' is not a whole number of milliseconds, " DURATION_WANT, text);
    } while (*at != '\0');

    *ret_ms = total;
    return 0;
}

/* The size unit that is all of `text`: "", "B", "K", "KiB"…; lower case too; or NULL. */
static const struct unit *size_unit(const char *text)
{
    if (*text == '\0')
        return &size_units[ARRAY_LEN(size_units) - 1];
    for (size_t i = 0; i < ARRAY_LEN(size_units); i++) {
        const char *name = size_units[i].name;
        if ((text[0] & ~0x20) != name[0] || !is_letter(text[0]))
            continue;
        if (text[1] == '\0' || (size_units[i].factor > 1 && str_eq(text + 1, "iB")))
            return &size_units[i];
    }
    return NULL;
}

int units_parse_size(const char *text, int64_t *ret_bytes, struct mandor_err *err)
{
    const char *at = text;
    struct number number;
    int64_t bytes;
    bool exact;

    int r = read_number(&at, &number);
    if (r == -ERANGE)
        return too_large(err, text, SIZE_WANT);
    if (r < 0)
        return malformed(err, text, at, SIZE_WANT);
    const struct unit *unit = size_unit(at);
    if (unit == NULL)
        return malformed(err, text, at, SIZE_WANT);
    if (scale(&number, unit->factor, &bytes, &exact) < 0)
        return too_large(err, text, SIZE_WANT);
    if (!exact && unit->factor == 1)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'%.40s' is not a whole number of bytes, " SIZE_WANT, text);

    *ret_bytes = bytes; /* 1.1G has no whole number of bytes: the fraction of one is cut */
    return 0;
}

static int out_of_range(struct mandor_err *err, const char *text, int64_t min, int64_t max)
{
    if (max == INT64_MAX)
        return err_set(err, -ERANGE, FAULT_CALLER,
                       "'%.40s' is out of range, expected a whole number of at least %" PRId64,
                       text, min);
    return err_set(err, -ERANGE, FAULT_CALLER,
                   "'%.40s' is out of range, expected a whole number from %" PRId64 " to %" PRId64,
                   text, min, max);
}

int units_parse_int(const char *text, int64_t min, int64_t max, int64_t *ret,
                    struct mandor_err *err)
{
    bool negative = text[0] == '-';
    const char *at = text + negative;
    int64_t value = 0;

    if (!is_digit(*at))
        return err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' is no number, expected a whole number",
                       text);
    for (; is_digit(*at); at++) {
        int digit = negative ? -(*at - '0') : *at - '0';
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return out_of_range(err, text, min, max);
    }
    if (*at != '\0')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'%.40s' is wrong at character %td, expected a whole number", text,
                       at - text + 1);
    if (value < min || value > max)
        return out_of_range(err, text, min, max);

    *ret = value;
    return 0;
}

char *units_print_duration(int64_t ms, char buf[static UNITS_TEXT_SIZE])
{
    uint64_t left = ms < 0 ? -(uint64_t)ms : (uint64_t)ms;
    size_t len = 0;

    if (ms == 0)
        return memcpy(buf, "0", 2);
    if (ms < 0)
        buf[len++] = '-';
    if (left < 60000 && left % 1000 != 0) { /* 1500ms, not 1s500ms */
        (void)snprintf(buf + len, UNITS_TEXT_SIZE - len, "%" PRIu64 "ms", left);
        return buf;
    }
    for (size_t i = 0; i < ARRAY_LEN(duration_units); i++) {
        uint64_t factor = (uint64_t)duration_units[i].factor;
        if (left >= factor)
            len += (size_t)snprintf(buf + len, UNITS_TEXT_SIZE - len, "%" PRIu64 "%s",
                                    left / factor, duration_units[i].name);
        left %= factor;
    }
    return buf;
}

char *units_print_size(int64_t bytes, char buf[static UNITS_TEXT_SIZE])
{
    for (size_t i = 0; bytes != 0 && i + 1 < ARRAY_LEN(size_units); i++) {
        if (bytes % size_units[i].factor == 0) {
            (void)snprintf(buf, UNITS_TEXT_SIZE, "%" PRId64 "%s", bytes / size_units[i].factor,
                           size_units[i].name);
            return buf;
        }
    }
    (void)snprintf(buf, UNITS_TEXT_SIZE, "%" PRId64, bytes);
    return buf;
}

char *units_human_size(int64_t bytes, char buf[static UNITS_TEXT_SIZE])
{
    double value = (double)bytes;
    size_t unit = ARRAY_LEN(size_units) - 1;

    while (unit > 0 && (value >= 1023.95 || value <= -1023.95)) { /* what would print as 1024.0 */
        value /= 1024;
        unit--;
    }
    if (unit == ARRAY_LEN(size_units) - 1)
        (void)snprintf(buf, UNITS_TEXT_SIZE, "%" PRId64 " B", bytes);
    else
        (void)snprintf(buf, UNITS_TEXT_SIZE, "%.1f %siB", value, size_units[unit].name);
    return buf;
}

char *units_human_duration(int64_t ms, char buf[static UNITS_TEXT_SIZE])
{
    int64_t s = ms / 1000;

    if (ms < 1000)
        (void)snprintf(buf, UNITS_TEXT_SIZE, "%" PRId64 " ms", ms);
    else if (s < 60) /* cut, not rounded: 59.96 s are not 60.0 s */
        (void)snprintf(buf, UNITS_TEXT_SIZE, "%" PRId64 ".%" PRId64 " s", s, ms / 100 % 10);
    else if (s < 3600)
        (void)snprintf(buf, UNITS_TEXT_SIZE, "%" PRId64 "m %" PRId64 "s", s / 60, s % 60);
    else if (s < 86400)
        (void)snprintf(buf, UNITS_TEXT_SIZE, "%" PRId64 "h %" PRId64 "m", s / 3600, s / 60 % 60);
    else
        (void)snprintf(buf, UNITS_TEXT_SIZE, "%" PRId64 "d %" PRId64 "h", s / 86400, s / 3600 % 24);
    return buf;
}

#define WORD_MAX ((size_t)48) /* longer words are not mistyped, they are something else */

/* Damerau-Levenshtein distance (insert, delete, replace, swap neighbours: one each) of two words of at most WORD_MAX. */
static size_t distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned char rows[3][WORD_MAX + 1]; /* the row before the last, the last, this one */

    for (size_t j = 0; j <= b_len; j++)
        rows[1][j] = (unsigned char)j;
    for (size_t i = 1; i <= a_len; i++) {
        unsigned char *row = rows[2];
        row[0] = (unsigned char)i;
        for (size_t j = 1; j <= b_len; j++) {
            unsigned best = MIN(rows[1][j], row[j - 1]) + 1u;
            best = MIN(best, rows[1][j - 1] + (a[i - 1] != b[j - 1] ? 1u : 0u));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = MIN(best, rows[0][j - 2] + 1u);
            row[j] = (unsigned char)best;
        }
        memcpy(rows[0], rows[1], b_len + 1);
        memcpy(rows[1], rows[2], b_len + 1);
    }
    return rows[1][b_len];
}

const char *units_nearest(const char *word, const char *const *candidates, size_t count)
{
    size_t len = strlen(word), best = 4;
    const char *nearest = NULL;

    if (len > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(candidates[i]);
        if (other > WORD_MAX)
            continue;
        size_t d = distance(word, len, candidates[i], other);
        if (d < best && d * 2 < len) {
            best = d;
            nearest = candidates[i];
        }
    }
    return nearest;
}

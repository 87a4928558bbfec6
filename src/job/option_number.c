/* option_number.c - options that are numbers, quantities or yes and no.  Contract in option_type.h. */
#include <math.h>
#include <stdio.h>

#include "base/units.h"
#include "job/option_type.h"

/* 3.0 and 1e3 are whole, too. */
bool option_whole_number(const json_t *value, int64_t *ret)
{
    if (json_is_integer(value))
        return *ret = json_integer_value(value), true;

    double real = json_real_value(value); /* 0 when it is no real */
    if (!json_is_real(value) || real != floor(real) || fabs(real) > 9007199254740992.0)
        return false;
    *ret = (int64_t)real;
    return true;
}

int option_out_of_range(struct mandor_err *err, const json_t *value, const char *low,
                        const char *high)
{
    char want[96];

    (void)snprintf(want, sizeof want, "%s to %s", low, high);
    return option_unexpected(err, value, want);
}

static int int_from_text(const struct option_row *row, const char *text, json_t **ret,
                         struct mandor_err *err)
{
    int64_t value;

    int r = units_parse_int(text, row->range.min, row->range.max, &value, err);
    if (r < 0)
        return r == -ERANGE ? -EINVAL : r;
    *ret = json_integer(value);
    return *ret != NULL ? 0 : option_out_of_memory(err);
}

static int int_store(const struct option_row *row, const json_t *value, void *field,
                     struct mandor_err *err)
{
    const struct option_range *range = &row->range;
    char low[40], high[24];
    int64_t number;

    if (!option_whole_number(value, &number) || number < range->min || number > range->max) {
        (void)snprintf(low, sizeof low, "a whole number from %" PRId64, range->min);
        (void)snprintf(high, sizeof high, "%" PRId64, range->max);
        return option_out_of_range(err, value, low, high);
    }
    *(int64_t *)field = number;
    return 0;
}

static json_t *int_load(const struct option_row *row, const void *field)
{
    return json_integer(*(const int64_t *)field);
}

static bool int_same(const void *a, const void *b)
{
    return *(const int64_t *)a == *(const int64_t *)b;
}

static int real_from_text(const struct option_row *row, const char *text, json_t **ret,
                          struct mandor_err *err)
{
    char *end;

    /* strtod(3) also takes "inf", "nan" and hexadecimal: nobody means those */
    double value = strtod(text, &end);
    if (text[0] == '\0' || *end != '\0' || text[strspn(text, "+-0123456789.eE")] != '\0')
        return err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' is no number, expected one such as 0.5",
                       text);
    if (!isfinite(value))
        return err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' is too large", text);
    *ret = json_real(value);
    return *ret != NULL ? 0 : option_out_of_memory(err);
}

static int real_store(const struct option_row *row, const json_t *value, void *field,
                      struct mandor_err *err)
{
    const struct option_range *range = &row->range;
    char low[40], high[24];

    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= (double)range->min && number <= (double)range->max)) {
        (void)snprintf(low, sizeof low, "a number from %" PRId64, range->min);
        (void)snprintf(high, sizeof high, "%" PRId64, range->max);
        return option_out_of_range(err, value, low, high);
    }
    *(double *)field = number;
    return 0;
}

static json_t *real_load(const struct option_row *row, const void *field)
{
    return json_real(*(const double *)field);
}

static bool real_same(const void *a, const void *b)
{
    return !(*(const double *)a < *(const double *)b) && !(*(const double *)a > *(const double *)b);
}

static int bool_from_text(const struct option_row *row, const char *text, json_t **ret,
                          struct mandor_err *err)
{
    bool yes = text == NULL || text[0] == '\0' || str_eq(text, "true");

    if (!yes && !str_eq(text, "false"))
        return err_set(err, -EINVAL, FAULT_CALLER, "expected true or false, got '%.40s'", text);
    *ret = json_boolean(yes);
    return 0;
}

static int bool_store(const struct option_row *row, const json_t *value, void *field,
                      struct mandor_err *err)
{
    if (!json_is_boolean(value))
        return option_unexpected(err, value, "true or false");
    *(bool *)field = json_is_true(value);
    return 0;
}

static json_t *bool_load(const struct option_row *row, const void *field)
{
    return json_boolean(*(const bool *)field);
}

static bool bool_same(const void *a, const void *b)
{
    return *(const bool *)a == *(const bool *)b;
}

/* A duration or a size: text with a unit, or a number of the smallest one. */
static int unit_store(const struct option_row *row, bool time, const json_t *value, int64_t *field,
                      struct mandor_err *err)
{
    const struct option_range *range = &row->range;
    char low[UNITS_TEXT_SIZE + 16], high[UNITS_TEXT_SIZE], text[UNITS_TEXT_SIZE];
    int64_t number;

    if (json_is_string(value)) {
        const char *given = json_string_value(value);
        int r = time ? units_parse_duration(given, &number, err)
                     : units_parse_size(given, &number, err);
        if (r < 0)
            return -EINVAL;
    } else if (!option_whole_number(value, &number)) {
        return option_unexpected(
            err, value,
            time ? "a duration such as \"30s\" or a whole number of milliseconds"
                 : "a size such as \"512M\" or a whole number of bytes");
    }
    if (number < range->min || number > range->max) {
        (void)snprintf(low, sizeof low, "a %s from %s", time ? "duration" : "size",
                       time ? units_print_duration(range->min, text)
                            : units_print_size(range->min, text));
        return option_out_of_range(err, value, low,
                                   time ? units_print_duration(range->max, high)
                                        : units_print_size(range->max, high));
    }
    *field = number;
    return 0;
}

static int duration_store(const struct option_row *row, const json_t *value, void *field,
                          struct mandor_err *err)
{
    return unit_store(row, true, value, field, err);
}

static json_t *duration_load(const struct option_row *row, const void *field)
{
    char text[UNITS_TEXT_SIZE];

    return json_string(units_print_duration(*(const int64_t *)field, text));
}

static int size_store(const struct option_row *row, const json_t *value, void *field,
                      struct mandor_err *err)
{
    return unit_store(row, false, value, field, err);
}

static json_t *size_load(const struct option_row *row, const void *field)
{
    char text[UNITS_TEXT_SIZE];

    return json_string(units_print_size(*(const int64_t *)field, text));
}

const struct option_type option_int = {
    .from_text = int_from_text, .store = int_store, .load = int_load, .same = int_same
};
const struct option_type option_real = {
    .from_text = real_from_text, .store = real_store, .load = real_load, .same = real_same
};
const struct option_type option_bool = {
    .from_text = bool_from_text, .store = bool_store, .load = bool_load, .same = bool_same
};
const struct option_type option_duration = { .from_text = option_text_from_text,
                                             .store = duration_store,
                                             .load = duration_load,
                                             .same = int_same };
const struct option_type option_size = {
    .from_text = option_text_from_text, .store = size_store, .load = size_load, .same = int_same
};

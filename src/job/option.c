/* option.c - contract in option.h.  A few functions for each OPT_ type, in the table in the middle. */
#include "job/option.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/units.h"
#include "base/utf8.h"
#include "job/sink_list.h"

/* The longest single argument or variable without its NUL: MAX_ARG_STRLEN, execve(2).  A longer one fails every time
 * with E2BIG however much the total allows (R08). */
#define ARG_BYTES_MAX   ((size_t)131072 - 1)
#define QUEUE_BYTES_MAX ((size_t)100) /* names become parts of file names and of Redis keys */

/* An array's count stands right behind its pointer, so that one offset finds both. */
#define ARRAY_ASSERT(items_, count_)                                   \
    _Static_assert(offsetof(struct spec, count_) ==                    \
                       offsetof(struct spec, items_) + sizeof(void *), \
                   #count_ " must stand right behind " #items_)
ARRAY_ASSERT(argv, argc);
ARRAY_ASSERT(env, env_count);
ARRAY_ASSERT(no_retry_exit_codes, no_retry_count);
_Static_assert(
    sizeof(struct spec_str) == sizeof(void *) + sizeof(size_t),
    "OPT_BYTES, OPT_ARGV, OPT_ENV and OPT_INTS fields are alike: a pointer, then a size_t");
_Static_assert(sizeof(enum spec_frame) == sizeof(unsigned), "enums are stored as unsigned");

typedef int check_fn(const struct spec_str *text, struct mandor_err *err);
static check_fn check_filled, check_queue, check_cwd, check_url;

struct range {
    int64_t min, max;
};

/* The half of a row that only this file needs. */
struct option {
    size_t offset; /* of the field in struct spec */
    struct range range;
    check_fn *check;
};

static const struct spec_option public_rows[] = {
#define OPTION(key_, type_, field_, choices_, fallback_, range_, check_, flag_, arg_, queue_, \
               help_)                                                                         \
    { .key = key_,                                                                            \
      .type = OPT_##type_,                                                                    \
      .choices = choices_,                                                                    \
      .fallback = fallback_,                                                                  \
      .flag = flag_,                                                                          \
      .arg = arg_,                                                                            \
      .on_queue = queue_,                                                                     \
      .help = help_ },
#include "job/options.def"
#undef OPTION
};

static const struct option rows[] = {
#define OPTION(key_, type_, field_, choices_, fallback_, range_, check_, flag_, arg_, queue_, \
               help_)                                                                         \
    { .offset = offsetof(struct spec, field_), .range = range_, .check = check_ },
#include "job/options.def"
#undef OPTION
};

_Static_assert(ARRAY_LEN(rows) <= OPTIONS_MAX, "struct spec's `given` has a bit for each row");

size_t option_count(void)
{
    return ARRAY_LEN(rows);
}

const struct spec_option *spec_options(size_t *ret_count)
{
    *ret_count = ARRAY_LEN(public_rows);
    return public_rows;
}

int option_by_key(const char *key)
{
    for (size_t i = 0; i < ARRAY_LEN(public_rows); i++)
        if (public_rows[i].key[0] == key[0] && str_eq(public_rows[i].key, key))
            return (int)i;
    return -ENOENT;
}

int option_by_flag(const char *flag)
{
    for (size_t i = 0; i < ARRAY_LEN(public_rows); i++)
        if (public_rows[i].flag != NULL && str_eq(public_rows[i].flag, flag))
            return (int)i;
    return -ENOENT;
}

int option_wrap(struct mandor_err *err, int code, const char *key)
{
    if (err == NULL || code == -ENOMEM)
        return code;

    struct mandor_err inner = *err; /* "[3]: …" and ".NAME: …" go on naming the place */
    bool goes_on = inner.msg[0] == '[' || inner.msg[0] == '.';
    return err_set(err, code, inner.fault, "%s%s%s", key, goes_on ? "" : ": ", inner.msg);
}

/* ---- checks ---- */

static int invalid_utf8(struct mandor_err *err)
{
    return err_set(err, -EINVAL, FAULT_CALLER, "not valid UTF-8, expected text");
}

static int out_of_memory(struct mandor_err *err)
{
    return err_set(err, -ENOMEM, FAULT_HOST, "read a job option");
}

/* "expected WANT, got VALUE" with a short picture of value. */
static int unexpected(struct mandor_err *err, const json_t *value, const char *want)
{
    if (json_is_object(value) || json_is_array(value))
        return err_set(err, -EINVAL, FAULT_CALLER, "expected %s, got an %s", want,
                       json_is_object(value) ? "object" : "array");

    SCOPED_FREE char *text = json_text(value);
    return err_set(err, -EINVAL, FAULT_CALLER, "expected %s, got %.60s", want,
                   text != NULL ? text : "something else");
}

static int check_filled(const struct spec_str *text, struct mandor_err *err)
{
    return text->len > 0 ? 0 : err_set(err, -EINVAL, FAULT_CALLER, "empty, expected text");
}

static int check_queue(const struct spec_str *text, struct mandor_err *err)
{
    if (text->len == 0 || text->len > QUEUE_BYTES_MAX)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "%zu bytes long, expected a name of 1 to %zu bytes", text->len,
                       QUEUE_BYTES_MAX);
    for (size_t i = 0; i < text->len; i++)
        if ((unsigned char)text->bytes[i] < 0x20 || text->bytes[i] == 0x7f)
            return err_set(err, -EINVAL, FAULT_CALLER,
                           "control character at byte %zu, expected a printable name", i + 1);
    return 0;
}

static int check_cwd(const struct spec_str *text, struct mandor_err *err)
{
    if (text->len == 0 || text->bytes[0] != '/')
        return err_set(err, -EINVAL, FAULT_CALLER, "'%.60s' is relative, expected an absolute path",
                       text->bytes);
    if (text->len >= PATH_MAX)
        return err_set(err, -EINVAL, FAULT_CALLER, "%zu bytes long, expected a path of at most %d",
                       text->len, PATH_MAX - 1);
    return 0;
}

static int check_member(void *arg, const char *text)
{
    struct mandor_err *err = arg;
    struct sink_member member;

    int r = sink_member_parse(text, &member, err);
    if (r == 0 && strncmp(member.url, "file:", 5) == 0 && member.url[5] != '/')
        r = err_set(err, -EINVAL, FAULT_CALLER,
                    "'%.60s' is relative, expected an absolute path such as file:/srv/out", text);
    return r;
}

/* Scheme and form are the sink's to check; here: placeholders, and no path that depends on who reads it. */
static int check_url(const struct spec_str *text, struct mandor_err *err)
{
    if (text->len == 0)
        return err_set(err, -EINVAL, FAULT_CALLER, "empty, expected a URL such as file:/srv/out");

    struct mandor_err why = { 0 };
    SCOPED_FREE char *url = spec_expand(text->bytes, "1", "q", 1, "stdout", &why);
    if (url == NULL) {
        if (err != NULL)
            *err = why;
        return why.code;
    }
    return sink_list_each(text->bytes, check_member, err);
}

static int no_nul(const struct spec_str *text, struct mandor_err *err)
{
    const char *nul = memchr(text->bytes, '\0', text->len);

    return nul == NULL
               ? 0
               : err_set(err, -EINVAL, FAULT_CALLER, "NUL at byte %td, expected bytes without NUL",
                         nul - text->bytes + 1);
}

static int arg_fits(size_t len, struct mandor_err *err)
{
    return len <= ARG_BYTES_MAX ? 0
                                : err_set(err, -EINVAL, FAULT_CALLER,
                                          "%zu bytes long, Linux takes at most %zu in one string; "
                                          "pass it by stdin or a file",
                                          len, ARG_BYTES_MAX);
}

/* ---- numbers ---- */

/* value as a whole number; 3.0 and 1e3 are whole, too. */
static bool whole_number(const json_t *value, int64_t *ret)
{
    if (json_is_integer(value))
        return *ret = json_integer_value(value), true;

    double real = json_real_value(value); /* 0 when it is no real */
    if (!json_is_real(value) || real != floor(real) || fabs(real) > 9007199254740992.0)
        return false;
    *ret = (int64_t)real;
    return true;
}

static int load_failed_range(struct mandor_err *err, const json_t *value, const char *low,
                             const char *high)
{
    char want[96];

    (void)snprintf(want, sizeof want, "%s to %s", low, high);
    return unexpected(err, value, want);
}

static int int_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    int64_t value;

    int r = units_parse_int(text, rows[row].range.min, rows[row].range.max, &value, err);
    if (r < 0)
        return r == -ERANGE ? -EINVAL : r;
    *ret = json_integer(value);
    return *ret != NULL ? 0 : out_of_memory(err);
}

static int int_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    const struct range *range = &rows[row].range;
    char low[40], high[24];
    int64_t number;

    if (!whole_number(value, &number) || number < range->min || number > range->max) {
        (void)snprintf(low, sizeof low, "a whole number from %" PRId64, range->min);
        (void)snprintf(high, sizeof high, "%" PRId64, range->max);
        return load_failed_range(err, value, low, high);
    }
    *(int64_t *)field = number;
    return 0;
}

static json_t *int_load(int row, const void *field)
{
    return json_integer(*(const int64_t *)field);
}

static bool int_same(const void *a, const void *b)
{
    return *(const int64_t *)a == *(const int64_t *)b;
}

static int real_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
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
    return *ret != NULL ? 0 : out_of_memory(err);
}

static int real_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    const struct range *range = &rows[row].range;
    char low[40], high[24];

    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= (double)range->min && number <= (double)range->max)) {
        (void)snprintf(low, sizeof low, "a number from %" PRId64, range->min);
        (void)snprintf(high, sizeof high, "%" PRId64, range->max);
        return load_failed_range(err, value, low, high);
    }
    *(double *)field = number;
    return 0;
}

static json_t *real_load(int row, const void *field)
{
    return json_real(*(const double *)field);
}

static bool real_same(const void *a, const void *b)
{
    return !(*(const double *)a < *(const double *)b) && !(*(const double *)a > *(const double *)b);
}

static int bool_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    bool yes = text == NULL || text[0] == '\0' || str_eq(text, "true");

    if (!yes && !str_eq(text, "false"))
        return err_set(err, -EINVAL, FAULT_CALLER, "expected true or false, got '%.40s'", text);
    *ret = json_boolean(yes);
    return 0;
}

static int bool_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    if (!json_is_boolean(value))
        return unexpected(err, value, "true or false");
    *(bool *)field = json_is_true(value);
    return 0;
}

static json_t *bool_load(int row, const void *field)
{
    return json_boolean(*(const bool *)field);
}

static bool bool_same(const void *a, const void *b)
{
    return *(const bool *)a == *(const bool *)b;
}

static int text_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    if (!utf8_clean(text, strlen(text)))
        return invalid_utf8(err);
    *ret = json_string(text);
    return *ret != NULL ? 0 : out_of_memory(err);
}

/* A duration or a size: text with a unit, or a number of the smallest one. */
static int unit_store(int row, const json_t *value, int64_t *field, struct mandor_err *err)
{
    bool time = public_rows[row].type == OPT_DURATION;
    const struct range *range = &rows[row].range;
    char low[UNITS_TEXT_SIZE + 16], high[UNITS_TEXT_SIZE], text[UNITS_TEXT_SIZE];
    int64_t number;

    if (json_is_string(value)) {
        const char *given = json_string_value(value);
        int r = time ? units_parse_duration(given, &number, err)
                     : units_parse_size(given, &number, err);
        if (r < 0)
            return -EINVAL;
    } else if (!whole_number(value, &number)) {
        return unexpected(err, value,
                          time ? "a duration such as \"30s\" or a whole number of milliseconds"
                               : "a size such as \"512M\" or a whole number of bytes");
    }
    if (number < range->min || number > range->max) {
        (void)snprintf(low, sizeof low, "a %s from %s", time ? "duration" : "size",
                       time ? units_print_duration(range->min, text)
                            : units_print_size(range->min, text));
        return load_failed_range(err, value, low,
                                 time ? units_print_duration(range->max, high)
                                      : units_print_size(range->max, high));
    }
    *field = number;
    return 0;
}

static int units_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    return unit_store(row, value, field, err);
}

static json_t *duration_load(int row, const void *field)
{
    char text[UNITS_TEXT_SIZE];

    return json_string(units_print_duration(*(const int64_t *)field, text));
}

static json_t *size_load(int row, const void *field)
{
    char text[UNITS_TEXT_SIZE];

    return json_string(units_print_size(*(const int64_t *)field, text));
}

/* ---- one of a few words ---- */

/* The n-th of "a|b|c"; NULL behind the last. */
static const char *choice(const char *choices, unsigned n, size_t *ret_len)
{
    for (; n > 0; n--) {
        choices = strchr(choices, '|');
        if (choices == NULL)
            return NULL;
        choices++;
    }
    *ret_len = strcspn(choices, "|");
    return choices;
}

/* The choice that was probably meant, as "'word'"; or the empty text. */
static void nearest_choice(const char *word, const char *choices, char *ret, size_t size)
{
    char copies[8][16];
    const char *names[8], *found;
    size_t count = 0, len;

    ret[0] = '\0';
    for (; count < 8 && (found = choice(choices, (unsigned)count, &len)) != NULL; count++) {
        (void)snprintf(copies[count], sizeof copies[count], "%.*s", (int)len, found);
        names[count] = copies[count];
    }
    const char *nearest = units_nearest(word, names, count);
    if (nearest != NULL)
        (void)snprintf(ret, size, ", did you mean '%s'?", nearest);
}

static int enum_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    const char *choices = public_rows[row].choices, *given = json_string_value(value), *name;
    char want[96], hint[48];
    size_t len;

    for (unsigned n = 0; given != NULL && (name = choice(choices, n, &len)) != NULL; n++)
        if (strlen(given) == len && memcmp(given, name, len) == 0) {
            *(unsigned *)field = n;
            return 0;
        }

    (void)snprintf(want, sizeof want, "one of %s", choices);
    int r = unexpected(err, value, want);
    if (given != NULL && err != NULL) {
        nearest_choice(given, choices, hint, sizeof hint);
        if (hint[0] != '\0') {
            struct mandor_err inner = *err;
            (void)err_set(err, r, inner.fault, "%s%s", inner.msg, hint);
        }
    }
    return r;
}

static json_t *enum_load(int row, const void *field)
{
    size_t len = 0;
    const char *name = choice(public_rows[row].choices, *(const unsigned *)field, &len);

    BUG_ON(name == NULL);
    return json_stringn(name, len);
}

static bool enum_same(const void *a, const void *b)
{
    return *(const unsigned *)a == *(const unsigned *)b;
}

/* ---- text and bytes ---- */

/* Bytes of value, checked for NUL and by the row's own check. */
static int get_bytes(int row, const json_t *value, struct spec_str *ret, struct mandor_err *err)
{
    struct spec_str text;

    int r = json_bytes_get(value, &text.bytes, &text.len, err);
    if (r < 0)
        return r;
    r = no_nul(&text, err);
    if (r == 0 && rows[row].check != NULL)
        r = rows[row].check(&text, err);
    if (r < 0) {
        free(text.bytes);
        return r;
    }
    *ret = text;
    return 0;
}

static int string_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    struct spec_str text;

    if (!json_is_string(value))
        return unexpected(err, value, "text");
    int r = get_bytes(row, value, &text, err);
    if (r < 0)
        return r;
    free(*(char **)field);
    *(char **)field = text.bytes;
    return 0;
}

static json_t *string_load(int row, const void *field)
{
    const char *text = *(char *const *)field;

    return text != NULL ? json_string(text) : json_null();
}

static bool string_same(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;

    return x == NULL || y == NULL ? x == y : str_eq(x, y);
}

static void string_drop(void *field)
{
    free(*(char **)field);
    *(char **)field = NULL;
}

static int bytes_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    *ret = json_bytes(text, strlen(text));
    return *ret != NULL ? 0 : out_of_memory(err);
}

/* ---- sinks ---- */

static int sinks_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    struct spec_str text;

    int r = sink_list_from_json(value, &text.bytes, &text.len, err);
    if (r < 0)
        return r;
    r = no_nul(&text, err);
    if (r == 0)
        r = rows[row].check(&text, err);
    if (r < 0) {
        free(text.bytes);
        return r;
    }
    free(((struct spec_str *)field)->bytes);
    *(struct spec_str *)field = text;
    return 0;
}

static json_t *sinks_load(int row, const void *field)
{
    const struct spec_str *text = field;

    return text->bytes != NULL ? sink_list_to_json(text->bytes, text->len) : json_null();
}

/* ---- bytes ---- */

static int bytes_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    struct spec_str text;

    int r = get_bytes(row, value, &text, err);
    if (r < 0)
        return r;
    free(((struct spec_str *)field)->bytes);
    *(struct spec_str *)field = text;
    return 0;
}

static json_t *bytes_load(int row, const void *field)
{
    const struct spec_str *text = field;

    return text->bytes != NULL ? json_bytes(text->bytes, text->len) : json_null();
}

static bool str_same(const struct spec_str *a, const struct spec_str *b)
{
    if (a->bytes == NULL || b->bytes == NULL)
        return a->bytes == b->bytes;
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

static bool bytes_same(const void *a, const void *b)
{
    return str_same(a, b);
}

static void bytes_drop(void *field)
{
    free(((struct spec_str *)field)->bytes);
    *(struct spec_str *)field = (struct spec_str){ 0 };
}

/* ---- arrays: argv and env ---- */

struct strs {
    struct spec_str *items;
    size_t count;
};

static void strs_drop(void *field)
{
    struct strs *strs = field;

    for (size_t i = 0; i < strs->count; i++)
        free(strs->items[i].bytes);
    free(strs->items);
    *strs = (struct strs){ 0 };
}

static bool strs_same(const void *a, const void *b)
{
    const struct strs *x = a, *y = b;

    if (x->count != y->count)
        return false;
    for (size_t i = 0; i < x->count; i++)
        if (!str_same(&x->items[i], &y->items[i]))
            return false;
    return true;
}

static int check_arg(const struct spec_str *arg, size_t i, struct mandor_err *err)
{
    int r = no_nul(arg, err);
    if (r == 0 && i == 0 && arg->len == 0)
        return err_set(err, -EINVAL, FAULT_CALLER, "empty, expected a program");
    return r == 0 ? arg_fits(arg->len, err) : r;
}

static int get_arg(const json_t *value, size_t i, struct spec_str *ret, struct mandor_err *err)
{
    char where[32];

    int r = json_bytes_get(value, &ret->bytes, &ret->len, err);
    if (r == 0)
        r = check_arg(ret, i, err);
    if (r == 0)
        return 0;
    (void)snprintf(where, sizeof where, "[%zu]", i);
    return option_wrap(err, r, where);
}

static int argv_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    size_t count = json_array_size(value);

    if (!json_is_array(value))
        return unexpected(err, value, "an array of strings, the program first");
    if (count == 0)
        return err_set(err, -EINVAL, FAULT_CALLER, "empty, expected at least a program");

    struct strs strs = { .items = calloc(count, sizeof *strs.items), .count = count };
    if (strs.items == NULL)
        return out_of_memory(err);
    for (size_t i = 0; i < count; i++) {
        int r = get_arg(json_array_get(value, i), i, &strs.items[i], err);
        if (r < 0) {
            strs_drop(&strs);
            return r;
        }
    }
    strs_drop(field);
    *(struct strs *)field = strs;
    return 0;
}

static json_t *argv_load(int row, const void *field)
{
    const struct strs *strs = field;
    json_t *array = json_array();

    for (size_t i = 0; i < strs->count; i++)
        if (json_array_append_new(array, json_bytes(strs->items[i].bytes, strs->items[i].len)) <
            0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static int check_name(const char *name, struct mandor_err *err)
{
    if (name[0] == '\0')
        return err_set(err, -EINVAL, FAULT_CALLER, "empty name, expected NAME and value");
    if (strchr(name, '=') != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       ".%.60s: '=' in the name, expected a name without", name);
    if (strncmp(name, "MANDOR_", 7) == 0)
        return err_set(
            err, -EINVAL, FAULT_CALLER,
            ".%.60s: names that start with MANDOR_ are mandor's own, expected another name", name);
    return 0;
}

/* "NAME=value" of one member. */
static int get_variable(const char *name, const json_t *value, struct spec_str *ret,
                        struct mandor_err *err)
{
    SCOPED_FREE char *bytes = NULL;
    struct spec_str text = { 0 };
    size_t name_len = strlen(name);
    char where[80];

    int r = check_name(name, err);
    if (r < 0)
        return r;
    r = json_bytes_get(value, &text.bytes, &text.len, err);
    bytes = text.bytes;
    if (r == 0)
        r = no_nul(&text, err);
    if (r == 0)
        r = arg_fits(name_len + 1 + text.len, err);
    if (r < 0) {
        (void)snprintf(where, sizeof where, ".%.60s", name);
        return option_wrap(err, r, where);
    }

    ret->len = name_len + 1 + text.len;
    ret->bytes = malloc(ret->len + 1);
    if (ret->bytes == NULL)
        return out_of_memory(err);
    memcpy(ret->bytes, name, name_len);
    ret->bytes[name_len] = '=';
    memcpy(ret->bytes + name_len + 1, text.bytes, text.len + 1);
    return 0;
}

static int env_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    struct strs strs = { 0 };
    const char *name;
    json_t *member;

    if (!json_is_object(value))
        return unexpected(err, value, "an object of names and values");
    strs.items = calloc(json_object_size(value) + 1, sizeof *strs.items);
    if (strs.items == NULL)
        return out_of_memory(err);
    json_object_foreach((json_t *)value, name, member) {
        int r = get_variable(name, member, &strs.items[strs.count], err);
        if (r < 0) {
            strs_drop(&strs);
            return r;
        }
        strs.count++;
    }
    strs_drop(field);
    *(struct strs *)field = strs;
    return 0;
}

static json_t *env_load(int row, const void *field)
{
    const struct strs *strs = field;
    json_t *object = json_object();

    for (size_t i = 0; i < strs->count; i++) {
        const struct spec_str *item = &strs->items[i];
        size_t name_len = (size_t)((char *)memchr(item->bytes, '=', item->len) - item->bytes);
        if (json_object_setn_new(object, item->bytes, name_len,
                                 json_bytes(item->bytes + name_len + 1, item->len - name_len - 1)) <
            0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static int env_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    const char *equals = strchr(text, '=');

    if (equals == NULL || equals == text)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'%.60s' has no name and '=', expected NAME=VALUE", text);
    if (!utf8_clean(text, (size_t)(equals - text)))
        return invalid_utf8(err);

    json_t *object = json_object();
    if (json_object_setn_new(object, text, (size_t)(equals - text),
                             json_bytes(equals + 1, strlen(equals + 1))) < 0) {
        json_decref(object);
        return out_of_memory(err);
    }
    *ret = object;
    return 0;
}

/* ---- arrays of integers ---- */

struct ints {
    int *items;
    size_t count;
};

static int ints_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    json_t *array = json_array();
    const char *at = text;

    while (*at != '\0') {
        char one[24];
        int64_t value;
        size_t len = strcspn(at, ",");
        (void)snprintf(one, sizeof one, "%.*s", (int)MIN(len, sizeof one - 1), at);
        int r = units_parse_int(one, rows[row].range.min, rows[row].range.max, &value, err);
        if (r == 0 && json_array_append_new(array, json_integer(value)) < 0)
            r = out_of_memory(err);
        if (r < 0) {
            json_decref(array);
            return r == -ERANGE ? -EINVAL : r;
        }
        at += len;
        if (*at == ',' && *++at == '\0') {
            json_decref(array);
            return err_set(err, -EINVAL, FAULT_CALLER,
                           "'%.40s' ends in a comma, expected a number behind it", text);
        }
    }
    *ret = array;
    return array != NULL ? 0 : out_of_memory(err);
}

static void ints_drop(void *field)
{
    free(((struct ints *)field)->items);
    *(struct ints *)field = (struct ints){ 0 };
}

static int ints_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    const struct range *range = &rows[row].range;
    size_t count = json_array_size(value);
    char low[64], high[24];

    if (!json_is_array(value))
        return unexpected(err, value, "an array of whole numbers");
    struct ints ints = { .items = calloc(count + 1, sizeof *ints.items), .count = count };
    if (ints.items == NULL)
        return out_of_memory(err);
    for (size_t i = 0; i < count; i++) {
        int64_t number;
        const json_t *item = json_array_get(value, i);
        if (!whole_number(item, &number) || number < range->min || number > range->max) {
            free(ints.items);
            (void)snprintf(low, sizeof low, "item %zu to be a whole number from %" PRId64, i,
                           range->min);
            (void)snprintf(high, sizeof high, "%" PRId64, range->max);
            return load_failed_range(err, item, low, high);
        }
        ints.items[i] = (int)number;
    }
    ints_drop(field);
    *(struct ints *)field = ints;
    return 0;
}

static json_t *ints_load(int row, const void *field)
{
    const struct ints *ints = field;
    json_t *array = json_array();

    for (size_t i = 0; i < ints->count; i++)
        if (json_array_append_new(array, json_integer(ints->items[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static bool ints_same(const void *a, const void *b)
{
    const struct ints *x = a, *y = b;

    return x->count == y->count &&
           (x->count == 0 || memcmp(x->items, y->items, x->count * sizeof *x->items) == 0);
}

/* ---- any JSON value ---- */

static int json_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    return json_parse(text, strlen(text), ret, err);
}

static int json_store(int row, const json_t *value, void *field, struct mandor_err *err)
{
    json_t *copy = json_deep_copy(value);
    if (copy == NULL)
        return out_of_memory(err);

    json_decref(*(json_t **)field);
    *(json_t **)field = copy;
    return 0;
}

static json_t *json_load(int row, const void *field)
{
    const json_t *value = *(json_t *const *)field;

    return value != NULL ? json_deep_copy(value) : json_null();
}

static bool json_same(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;

    return x == NULL || y == NULL ? x == y : json_equal(x, y);
}

static void json_drop(void *field)
{
    json_decref(*(json_t **)field);
    *(json_t **)field = NULL;
}

/* ---- copies of defaults ---- */

static int string_copy(const void *from, void *to)
{
    const char *text = *(char *const *)from;

    *(char **)to = text != NULL ? strdup(text) : NULL;
    return text == NULL || *(char **)to != NULL ? 0 : -ENOMEM;
}

static int bytes_copy(const void *from, void *to)
{
    const struct spec_str *text = from;
    char *bytes = text->bytes != NULL ? malloc(text->len + 1) : NULL;

    if (text->bytes == NULL)
        return 0;
    if (bytes == NULL)
        return -ENOMEM;
    memcpy(bytes, text->bytes, text->len + 1);
    *(struct spec_str *)to = (struct spec_str){ .bytes = bytes, .len = text->len };
    return 0;
}

static int ints_copy(const void *from, void *to)
{
    const struct ints *ints = from;
    int *items = calloc(ints->count + 1, sizeof *items);

    if (items == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < ints->count; i++)
        items[i] = ints->items[i];
    *(struct ints *)to = (struct ints){ .items = items, .count = ints->count };
    return 0;
}

/* ---- the types ---- */

struct type {
    int (*from_text)(int row, const char *text, json_t **ret,
                     struct mandor_err *err); /* NULL = JSON only */
    int (*store)(int row, const json_t *value, void *field, struct mandor_err *err);
    json_t *(*load)(int row, const void *field);
    bool (*same)(const void *a, const void *b);
    void (*drop)(void *field); /* NULL = holds no memory */
    int (*copy)(const void *from,
                void *to); /* of a default that holds memory; NULL = there is none */
};

static const struct type types[] = {
    [OPT_STRING] = { text_from_text, string_store, string_load, string_same, string_drop,
                     string_copy },
    [OPT_BYTES] = { bytes_from_text, bytes_store, bytes_load, bytes_same, bytes_drop, bytes_copy },
    [OPT_INT] = { int_from_text, int_store, int_load, int_same, NULL, NULL },
    [OPT_REAL] = { real_from_text, real_store, real_load, real_same, NULL, NULL },
    [OPT_BOOL] = { bool_from_text, bool_store, bool_load, bool_same, NULL, NULL },
    [OPT_DURATION] = { text_from_text, units_store, duration_load, int_same, NULL, NULL },
    [OPT_SIZE] = { text_from_text, units_store, size_load, int_same, NULL, NULL },
    [OPT_ENUM] = { text_from_text, enum_store, enum_load, enum_same, NULL, NULL },
    [OPT_ENV] = { env_from_text, env_store, env_load, strs_same, strs_drop, NULL },
    [OPT_ARGV] = { NULL, argv_store, argv_load, strs_same, strs_drop, NULL },
    [OPT_INTS] = { ints_from_text, ints_store, ints_load, ints_same, ints_drop, ints_copy },
    [OPT_SINKS] = { bytes_from_text, sinks_store, sinks_load, bytes_same, bytes_drop, bytes_copy },
    [OPT_JSON] = { json_from_text, json_store, json_load, json_same, json_drop, NULL },
};

static const struct type *type_of(int row)
{
    return &types[public_rows[row].type];
}

static void *field_of(int row, struct spec *spec)
{
    return (char *)spec + rows[row].offset;
}

static const void *const_field_of(int row, const struct spec *spec)
{
    return (const char *)spec + rows[row].offset;
}

int option_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    BUG_ON(type_of(row)->from_text == NULL);
    return type_of(row)->from_text(row, text, ret, err);
}

int option_store(int row, const json_t *value, struct spec *spec, struct mandor_err *err)
{
    return type_of(row)->store(row, value, field_of(row, spec), err);
}

json_t *option_load(int row, const struct spec *spec)
{
    return type_of(row)->load(row, const_field_of(row, spec));
}

bool option_same(int row, const struct spec *a, const struct spec *b)
{
    return type_of(row)->same(const_field_of(row, a), const_field_of(row, b));
}

void option_drop(int row, struct spec *spec)
{
    if (type_of(row)->drop != NULL)
        type_of(row)->drop(field_of(row, spec));
}

/* Parse the default into its field.  0 or -ENOMEM. */
static int store_default(int row, struct spec *spec)
{
    SCOPED_JSON *value = NULL;

    if (public_rows[row].fallback[0] == '\0')
        return 0;
    int r = option_from_text(row, public_rows[row].fallback, &value, NULL);
    if (r == 0)
        r = option_store(row, value, spec, NULL);
    BUG_ON(r < 0 && r != -ENOMEM); /* the table contradicts itself */
    return r;
}

const struct spec *option_defaults(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct spec defaults;
    static atomic_bool ready;

    if (atomic_load_explicit(&ready, memory_order_acquire))
        return &defaults;
    (void)pthread_mutex_lock(&lock);
    if (!ready) {
        int r = 0;
        defaults.magic = SPEC_MAGIC;
        for (int row = 0; row < (int)ARRAY_LEN(rows) && r == 0; row++)
            r = store_default(row, &defaults);
        atomic_store_explicit(&ready, r == 0,
                              memory_order_release); /* else the next caller tries again */
    }
    bool ok = ready;
    (void)pthread_mutex_unlock(&lock);
    return ok ? &defaults : NULL;
}

int option_copy_default(int row, struct spec *spec)
{
    const struct type *type = type_of(row);

    if (type->drop == NULL || public_rows[row].fallback[0] == '\0')
        return 0; /* option_copy_numbers() did it; or it is empty */
    BUG_ON(type->copy == NULL);
    return type->copy(const_field_of(row, option_defaults()), field_of(row, spec));
}

int option_copy_numbers(struct spec *spec)
{
    const struct spec *defaults = option_defaults();
    if (defaults == NULL)
        return -ENOMEM;

    *spec = *defaults;
    for (int row = 0; row < (int)ARRAY_LEN(rows); row++)
        if (public_rows[row].type == OPT_STRING || public_rows[row].type == OPT_JSON)
            *(void **)field_of(row, spec) = NULL;
        else if (type_of(row)->drop != NULL) /* pointer and length, or pointer and count */
            memset(field_of(row, spec), 0, sizeof(struct spec_str));
    return 0;
}

const char *spec_frame_name(enum spec_frame frame)
{
    static const char *const names[] = { "raw", "lines", "u32be", "u32le", "varint", "netstring" };

    return (size_t)frame < ARRAY_LEN(names) ? names[frame] : "?";
}

const char *spec_containment_name(enum spec_containment containment)
{
    static const char *const names[] = { "auto", "cgroup", "pidns", "group", "strict" };

    return (size_t)containment < ARRAY_LEN(names) ? names[containment] : "?";
}

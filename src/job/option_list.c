/* option_list.c - options that hold several values.  Contract in option_type.h. */
#include <stdio.h>

#include "base/json.h"
#include "base/units.h"
#include "base/utf8.h"
#include "job/option.h"
#include "job/option_type.h"

/* The longest single argument or variable without its NUL: MAX_ARG_STRLEN, execve(2).  A longer one fails every time
 * with E2BIG however much the total allows (R08). */
#define ARG_BYTES_MAX ((size_t)131072 - 1)

static int arg_fits(size_t len, struct mandor_err *err)
{
    return len <= ARG_BYTES_MAX ? 0
                                : err_set(err, -EINVAL, FAULT_CALLER,
                                          "%zu bytes long, Linux takes at most %zu in one string; "
                                          "pass it by stdin or a file",
                                          len, ARG_BYTES_MAX);
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
        if (!option_str_same(&x->items[i], &y->items[i]))
            return false;
    return true;
}

static int check_arg(const struct spec_str *arg, size_t i, struct mandor_err *err)
{
    int r = option_no_nul(arg, err);
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

static int argv_store(const struct option_row *row, const json_t *value, void *field,
                      struct mandor_err *err)
{
    size_t count = json_array_size(value);

    if (!json_is_array(value))
        return option_unexpected(err, value, "an array of strings, the program first");
    if (count == 0)
        return err_set(err, -EINVAL, FAULT_CALLER, "empty, expected at least a program");

    struct strs strs = { .items = calloc(count, sizeof *strs.items), .count = count };
    if (strs.items == NULL)
        return option_out_of_memory(err);
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

static json_t *argv_load(const struct option_row *row, const void *field)
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
        r = option_no_nul(&text, err);
    if (r == 0)
        r = arg_fits(name_len + 1 + text.len, err);
    if (r < 0) {
        (void)snprintf(where, sizeof where, ".%.60s", name);
        return option_wrap(err, r, where);
    }

    ret->len = name_len + 1 + text.len;
    ret->bytes = malloc(ret->len + 1);
    if (ret->bytes == NULL)
        return option_out_of_memory(err);
    memcpy(ret->bytes, name, name_len);
    ret->bytes[name_len] = '=';
    memcpy(ret->bytes + name_len + 1, text.bytes, text.len + 1);
    return 0;
}

static int env_store(const struct option_row *row, const json_t *value, void *field,
                     struct mandor_err *err)
{
    struct strs strs = { 0 };
    const char *name;
    json_t *member;

    if (!json_is_object(value))
        return option_unexpected(err, value, "an object of names and values");
    strs.items = calloc(json_object_size(value) + 1, sizeof *strs.items);
    if (strs.items == NULL)
        return option_out_of_memory(err);
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

static json_t *env_load(const struct option_row *row, const void *field)
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

static int env_from_text(const struct option_row *row, const char *text, json_t **ret,
                         struct mandor_err *err)
{
    const char *equals = strchr(text, '=');

    if (equals == NULL || equals == text)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'%.60s' has no name and '=', expected NAME=VALUE", text);
    if (!utf8_clean(text, (size_t)(equals - text)))
        return option_invalid_utf8(err);

    json_t *object = json_object();
    if (json_object_setn_new(object, text, (size_t)(equals - text),
                             json_bytes(equals + 1, strlen(equals + 1))) < 0) {
        json_decref(object);
        return option_out_of_memory(err);
    }
    *ret = object;
    return 0;
}

/* ---- arrays of integers ---- */

struct ints {
    int *items;
    size_t count;
};

static int ints_from_text(const struct option_row *row, const char *text, json_t **ret,
                          struct mandor_err *err)
{
    json_t *array = json_array();
    const char *at = text;

    while (*at != '\0') {
        char one[24];
        int64_t value;
        size_t len = strcspn(at, ",");
        (void)snprintf(one, sizeof one, "%.*s", (int)MIN(len, sizeof one - 1), at);
        int r = units_parse_int(one, row->range.min, row->range.max, &value, err);
        if (r == 0 && json_array_append_new(array, json_integer(value)) < 0)
            r = option_out_of_memory(err);
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
    return array != NULL ? 0 : option_out_of_memory(err);
}

static void ints_drop(void *field)
{
    free(((struct ints *)field)->items);
    *(struct ints *)field = (struct ints){ 0 };
}

static int ints_store(const struct option_row *row, const json_t *value, void *field,
                      struct mandor_err *err)
{
    const struct option_range *range = &row->range;
    size_t count = json_array_size(value);
    char low[64], high[24];

    if (!json_is_array(value))
        return option_unexpected(err, value, "an array of whole numbers");
    struct ints ints = { .items = calloc(count + 1, sizeof *ints.items), .count = count };
    if (ints.items == NULL)
        return option_out_of_memory(err);
    for (size_t i = 0; i < count; i++) {
        int64_t number;
        const json_t *item = json_array_get(value, i);
        if (!option_whole_number(item, &number) || number < range->min || number > range->max) {
            free(ints.items);
            (void)snprintf(low, sizeof low, "item %zu to be a whole number from %" PRId64, i,
                           range->min);
            (void)snprintf(high, sizeof high, "%" PRId64, range->max);
            return option_out_of_range(err, item, low, high);
        }
        ints.items[i] = (int)number;
    }
    ints_drop(field);
    *(struct ints *)field = ints;
    return 0;
}

static json_t *ints_load(const struct option_row *row, const void *field)
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

/* ---- any JSON value ---- */

static int json_from_text(const struct option_row *row, const char *text, json_t **ret,
                          struct mandor_err *err)
{
    return json_parse(text, strlen(text), ret, err);
}

static int json_store(const struct option_row *row, const json_t *value, void *field,
                      struct mandor_err *err)
{
    json_t *copy = json_deep_copy(value);
    if (copy == NULL)
        return option_out_of_memory(err);

    json_decref(*(json_t **)field);
    *(json_t **)field = copy;
    return 0;
}

static json_t *json_load(const struct option_row *row, const void *field)
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

const struct option_type option_argv = {
    .store = argv_store, .load = argv_load, .same = strs_same, .drop = strs_drop
};
const struct option_type option_env = { .from_text = env_from_text,
                                        .store = env_store,
                                        .load = env_load,
                                        .same = strs_same,
                                        .drop = strs_drop };
const struct option_type option_ints = { .from_text = ints_from_text,
                                         .store = ints_store,
                                         .load = ints_load,
                                         .same = ints_same,
                                         .drop = ints_drop,
                                         .copy = ints_copy };
const struct option_type option_json = { .from_text = json_from_text,
                                         .store = json_store,
                                         .load = json_load,
                                         .same = json_same,
                                         .drop = json_drop };

/* value.c - contract in value.h. */
#include "config/value.h"

#include <stdio.h>

#include "base/file.h"
#include "base/units.h"
#include "base/words.h"
#include "config/scalar.h"

static void *field_of(const struct param *param, void *object)
{
    return (char *)object + param->offset;
}

int value_text(const struct place *place, const struct tree *value, struct buf *ret)
{
    struct mandor_err why = { 0 };

    if (tree_is_null(value))
        return place_bad(place, "no value, expected one");
    int r = scalar_text(value, place->dir, ret, &why);
    return r < 0 ? place_failed(place, r, &why) : 0;
}

/* ---- one value ---- */

/* Put text, malloc'ed or NULL, in place of what the field holds. */
static int replace(const struct place *place, char **field, char *text)
{
    if (text == NULL)
        return place_no_memory(place);
    free(*field);
    *field = text;
    return 0;
}

static int parse_number(const struct param *param, const char *text, int64_t *ret,
                        struct mandor_err *err)
{
    char low[UNITS_TEXT_SIZE], high[UNITS_TEXT_SIZE];
    int64_t value;

    if (param->type == PARAM_INT)
        return units_parse_int(text, param->range.min, param->range.max, ret, err);

    bool time = param->type == PARAM_DURATION;
    int r = time ? units_parse_duration(text, &value, err) : units_parse_size(text, &value, err);
    if (r < 0)
        return r;
    if (value < param->range.min || value > param->range.max) {
        char *(*print)(int64_t, char *) = time ? units_print_duration : units_print_size;
        return err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' is out of range, expected %s to %s",
                       text, print(param->range.min, low), print(param->range.max, high));
    }
    *ret = value;
    return 0;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t len = strlen(text);

    for (const char *at = choices;; at++) {
        size_t n = strcspn(at, "|");
        if (n == len && memcmp(at, text, n) == 0)
            return true;
        at += n;
        if (*at == '\0')
            return false;
    }
}

int value_scalar(const struct place *place, const struct param *param, const struct tree *value,
                 void *object)
{
    struct mandor_err why = { 0 };
    SCOPED_BUF text = { 0 };

    int r = value_text(place, value, &text);
    if (r < 0)
        return r;
    if (param->type == PARAM_INT || param->type == PARAM_DURATION || param->type == PARAM_SIZE) {
        r = parse_number(param, text.data, field_of(param, object), &why);
        return r < 0 ? place_failed(place, r, &why) : 0;
    }
    if (param->type == PARAM_CHOICE && !is_choice(param->choices, text.data))
        return place_bad(place, "expected one of %s, got '%.40s'", param->choices, text.data);
    if (text.len == 0)
        return place_bad(place, "empty, expected text");
    return replace(place, field_of(param, object), buf_steal(&text));
}

int value_bool(const struct place *place, const struct param *param, const struct tree *value,
               void *object)
{
    SCOPED_BUF text = { 0 };

    int r = value_text(place, value, &text);
    if (r < 0)
        return r;
    bool yes = str_eq(text.data, "true");
    if (!yes && !str_eq(text.data, "false"))
        return place_bad(place, "expected true or false, got '%.40s'", text.data);
    *(bool *)field_of(param, object) = yes;
    return 0;
}

/* ---- paths ---- */

/* path as it is, or below the directory dir; malloc'ed or NULL. */
static char *path_below(const char *dir, const char *path)
{
    char *joined = NULL;

    if (path[0] == '/')
        return strdup(path);
    return asprintf(&joined, "%s/%s", dir, path) < 0 ? NULL : joined;
}

int value_dir(const struct place *place, const struct param *param, const struct tree *value,
              void *object)
{
    SCOPED_BUF text = { 0 };

    int r = value_text(place, value, &text);
    if (r < 0)
        return r;
    SCOPED_FREE char *path = path_below(place->dir, text.data);
    if (path == NULL)
        return place_no_memory(place);
    char *absolute = realpath(path, NULL);
    if (absolute == NULL && errno != ENOMEM)
        return place_bad(place, "'%.100s': %s", text.data, strerrordesc_np(errno));
    return replace(place, field_of(param, object), absolute);
}

int value_path(const struct place *place, const struct param *param, const struct tree *value,
               void *object)
{
    SCOPED_FREE char *dir = NULL;
    SCOPED_BUF text = { 0 };

    int r = value_text(place, value, &text);
    if (r < 0)
        return r;
    if (text.len == 0)
        return place_bad(place, "empty, expected a directory");
    if (text.data[0] != '/' && (dir = realpath(place->dir, NULL)) == NULL)
        return place_bad(place, "'%.100s': %s", place->dir, strerrordesc_np(errno));
    return replace(place, field_of(param, object), path_below(dir, text.data));
}

int value_code(const struct place *place, const struct param *param, const struct tree *value,
               void *object)
{
    SCOPED_BUF text = { 0 }, code = { 0 };

    int r = value_text(place, value, &text);
    if (r < 0)
        return r;
    SCOPED_FREE char *path = path_below(place->dir, text.data);
    if (path == NULL)
        return place_no_memory(place);
    r = file_read(path, VALUE_FILE_MAX, true, &code);
    if (r < 0)
        return r == -ENOMEM ? place_no_memory(place)
                            : place_bad(place, "'%.100s': %s", text.data, strerrordesc_np(-r));
    if (code.len == 0 || memchr(code.data, '\0', code.len) != NULL)
        return place_bad(place, "'%.100s' is empty or no text", text.data);
    return replace(place, field_of(param, object), buf_steal(&code));
}

/* ---- two numbers ---- */

/* A value for the first of them, or a mapping: {age: 7d, count: 10000}, {min: 1, max: 8}. */
static int read_pair(const struct place *place, const struct param pair[2],
                     const struct tree *value, int64_t numbers[2])
{
    const char *const known[] = { pair[0].key, pair[1].key };
    const struct tree_item *item;
    struct place inner;

    if (value->kind != TREE_MAP)
        return value_scalar(place, &pair[0], value, numbers);
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        const struct param *param = &pair[str_eq(item->key, known[1])];
        int r = str_eq(item->key, param->key)
                    ? value_scalar(&inner, param, item->value, numbers)
                    : place_unknown(&inner, item->key, known, ARRAY_LEN(known));
        if (r < 0)
            return r;
    }
    return 0;
}

int value_keep(const struct place *place, const struct param *param, const struct tree *value,
               void *object)
{
    static const struct param pair[] = {
        { .key = "age", .type = PARAM_DURATION, .range = { 0, INT64_C(36500) * 86400000 } },
        { .key = "count", .type = PARAM_INT, .range = { 0, INT64_MAX }, .offset = sizeof(int64_t) },
    };
    int64_t numbers[2] = { 0, 0 }; /* what is left out has no bound */

    int r = read_pair(place, pair, value, numbers);
    if (r == 0)
        memcpy(field_of(param, object), numbers, sizeof numbers);
    return r;
}

int value_count(const struct place *place, const struct param *param, const struct tree *value,
                void *object)
{
    const struct param pair[] = {
        { .key = "min", .type = PARAM_INT, .range = { 0, param->range.max } },
        { .key = "max",
          .type = PARAM_INT,
          .range = { 0, param->range.max },
          .offset = sizeof(int64_t) },
    };
    int64_t numbers[2] = { 0, 0 };

    int r = read_pair(place, pair, value, numbers);
    if (r < 0)
        return r;
    if (value->kind != TREE_MAP)
        numbers[1] = numbers[0];
    if (numbers[1] >= 1 && numbers[1] < numbers[0])
        return place_bad(place, "min is %" PRId64 " and max %" PRId64 ", expected no more than max",
                         numbers[0], numbers[1]);
    if (numbers[1] < 1)
        return place_bad(place, "expected at least one worker, as 4 or {min: 0, max: 8}");
    memcpy(field_of(param, object), numbers, sizeof numbers);
    return 0;
}

/* ---- lists ---- */

/* An empty list for `count` texts in place of what the field holds.  It is freed with the configuration, half-filled or
 * not.  NULL when out of memory. */
static char **renew_list(char ***field, size_t count)
{
    char **list = calloc(count + 1, sizeof *list);

    if (list != NULL) {
        words_free(*field);
        *field = list;
    }
    return list;
}

/* The texts of a list, each of which check (may be NULL) finds good. */
static int read_texts(const struct place *place, const struct tree *value,
                      int (*check)(const struct place *place, const struct buf *text),
                      char ***field)
{
    const struct tree_item *item;
    struct place inner;

    char **list = renew_list(field, value->count);
    if (list == NULL)
        return place_no_memory(place);
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        SCOPED_BUF text = { 0 };
        int r = value_text(&inner, item->value, &text);
        if (r == 0 && check != NULL)
            r = check(&inner, &text);
        if (r < 0)
            return r;
        if ((list[i] = buf_steal(&text)) == NULL)
            return place_no_memory(place);
    }
    return 0;
}

static int check_name(const struct place *place, const struct buf *text)
{
    return text->len == 0 ? place_bad(place, "empty, expected a name") : 0;
}

static int check_variable(const struct place *place, const struct buf *text)
{
    if (text->len == 0 || strchr(text->data, '=') != NULL)
        return place_bad(place, "'%.60s' is no variable's name", text->data);
    if (strncmp(text->data, "MANDOR_", 7) == 0)
        return place_bad(place,
                         "'%.60s': names that start with MANDOR_ are mandor's own, jobs get their "
                         "own values",
                         text->data);
    return 0;
}

int value_list(const struct place *place, const struct param *param, const struct tree *value,
               void *object)
{
    if (value->kind != TREE_LIST)
        return place_bad(place, "expected a list of names such as [numpy, pandas]");
    return read_texts(place, value, check_name, field_of(param, object));
}

int value_names(const struct place *place, const struct param *param, const struct tree *value,
                void *object)
{
    if (value->kind != TREE_LIST)
        return place_bad(place, "expected a list of variable names such as [SSL_CERT_FILE]");
    return read_texts(place, value, check_variable, field_of(param, object));
}

int value_words(const struct place *place, const struct param *param, const struct tree *value,
                void *object)
{
    char ***field = field_of(param, object);

    if (value->kind != TREE_LIST || value->count == 0)
        return place_bad(place, "expected a list of words such as [python3, worker.py]");
    int r = read_texts(place, value, NULL, field);
    if (r == 0 && (*field)[0][0] == '\0')
        return place_bad(place, "the first word is empty, expected a program");
    return r;
}

int value_vars(const struct place *place, const struct param *param, const struct tree *value,
               void *object)
{
    const struct tree_item *item;
    struct place inner;

    if (value->kind != TREE_MAP)
        return place_bad(place, "expected a mapping of names to values");
    char **vars = renew_list(field_of(param, object), value->count);
    if (vars == NULL)
        return place_no_memory(place);
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        SCOPED_BUF text = { 0 };
        if (item->key[0] == '\0' || strchr(item->key, '=') != NULL)
            return place_bad(&inner, "'%.60s' is no variable's name", item->key);
        int r = value_text(&inner, item->value, &text);
        if (r < 0)
            return r;
        if (asprintf(&vars[i], "%s=%s", item->key, text.data) < 0) {
            vars[i] = NULL;
            return place_no_memory(place);
        }
    }
    return 0;
}

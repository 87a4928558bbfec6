/* config.c - contract in config.h.
 *
 *     file ──tree_parse──▶ tree with lines ──params.def, job/options.def──▶ struct config
 *
 * `struct place` walks along: it knows file, line and key, so that every message can say where.
 */
#include "config/config.h"

#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/units.h"
#include "config/scalar.h"
#include "config/tree.h"
#include "job/sink_list.h"
#include "job/spec.h"
#include "sink/sink.h"
#include "stream/feeder.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define KEYS_MAX       ((size_t)96)

enum param_type {
    PARAM_TEXT,
    PARAM_INT,
    PARAM_DURATION,
    PARAM_SIZE,
    PARAM_CHOICE,
    PARAM_NAMES,
    PARAM_KEEP,
    PARAM_QUEUES,
    PARAM_POOLS,
    PARAM_WORDS,
    PARAM_VARS,
    PARAM_COUNT,
    PARAM_LIMITS,
    PARAM_DIR,
    PARAM_PATH,
    PARAM_LIST,
    PARAM_PYTHON,
    PARAM_RUNTIMES,
    PARAM_SINKS,
    PARAM_BOOL,
    PARAM_CODE,
};

struct param {
    const char *key;
    enum param_type type;
    size_t offset;
    const char *choices, *fallback;
    struct {
        int64_t min, max;
    } range;
};

/* The range comes last: its braces hold a comma. */
#define ROW(key_, type_, object_, field_, choices_, fallback_, ...)                     \
    {                                                                                   \
        .key = key_, .type = PARAM_##type_, .offset = offsetof(struct object_, field_), \
        .choices = choices_, .fallback = fallback_, .range = __VA_ARGS__                \
    }

static const struct param top_params[] = {
#define PARAM(key, type, field, choices, fallback, range_, help) \
    ROW(key, type, config, field, choices, fallback, range_),
#define QUEUE_PARAM(key, type, field, choices, fallback, range_, help)
#define POOL_PARAM(key, type, field, choices, fallback, range_, help)
#define PYTHON_PARAM(key, type, field, choices, fallback, range_, help)
#define RUNTIME_PARAM(key, type, field, choices, fallback, range_, help)
#define S3_PARAM(key, type, field, choices, fallback, range_, help)
#include "config/params.def"
#undef PARAM
#undef QUEUE_PARAM
#undef POOL_PARAM
#undef PYTHON_PARAM
#undef RUNTIME_PARAM
#undef S3_PARAM
};

static const struct param queue_params[] = {
#define PARAM(key, type, field, choices, fallback, range_, help)
#define QUEUE_PARAM(key, type, field, choices, fallback, range_, help) \
    ROW(key, type, config_queue, field, choices, fallback, range_),
#define POOL_PARAM(key, type, field, choices, fallback, range_, help)
#define PYTHON_PARAM(key, type, field, choices, fallback, range_, help)
#define RUNTIME_PARAM(key, type, field, choices, fallback, range_, help)
#define S3_PARAM(key, type, field, choices, fallback, range_, help)
#include "config/params.def"
#undef PARAM
#undef QUEUE_PARAM
#undef POOL_PARAM
#undef PYTHON_PARAM
#undef RUNTIME_PARAM
#undef S3_PARAM
};

static const struct param pool_params[] = {
#define PARAM(key, type, field, choices, fallback, range_, help)
#define QUEUE_PARAM(key, type, field, choices, fallback, range_, help)
#define POOL_PARAM(key, type, field, choices, fallback, range_, help) \
    ROW(key, type, pool_options, field, choices, fallback, range_),
#define PYTHON_PARAM(key, type, field, choices, fallback, range_, help)
#define RUNTIME_PARAM(key, type, field, choices, fallback, range_, help)
#define S3_PARAM(key, type, field, choices, fallback, range_, help)
#include "config/params.def"
#undef PARAM
#undef QUEUE_PARAM
#undef POOL_PARAM
#undef PYTHON_PARAM
#undef RUNTIME_PARAM
#undef S3_PARAM
};

static const struct param python_params[] = {
#define PARAM(key, type, field, choices, fallback, range_, help)
#define QUEUE_PARAM(key, type, field, choices, fallback, range_, help)
#define POOL_PARAM(key, type, field, choices, fallback, range_, help)
#define PYTHON_PARAM(key, type, field, choices, fallback, range_, help) \
    ROW(key, type, python_options, field, choices, fallback, range_),
#define RUNTIME_PARAM(key, type, field, choices, fallback, range_, help)
#define S3_PARAM(key, type, field, choices, fallback, range_, help)
#include "config/params.def"
#undef PARAM
#undef QUEUE_PARAM
#undef POOL_PARAM
#undef PYTHON_PARAM
#undef RUNTIME_PARAM
#undef S3_PARAM
};

static const struct param runtime_params[] = {
#define PARAM(key, type, field, choices, fallback, range_, help)
#define QUEUE_PARAM(key, type, field, choices, fallback, range_, help)
#define POOL_PARAM(key, type, field, choices, fallback, range_, help)
#define PYTHON_PARAM(key, type, field, choices, fallback, range_, help)
#define RUNTIME_PARAM(key, type, field, choices, fallback, range_, help) \
    ROW(key, type, python_runtime, field, choices, fallback, range_),
#define S3_PARAM(key, type, field, choices, fallback, range_, help)
#include "config/params.def"
#undef PARAM
#undef QUEUE_PARAM
#undef POOL_PARAM
#undef PYTHON_PARAM
#undef RUNTIME_PARAM
#undef S3_PARAM
};

static const struct param s3_params[] = {
#define PARAM(key, type, field, choices, fallback, range_, help)
#define QUEUE_PARAM(key, type, field, choices, fallback, range_, help)
#define POOL_PARAM(key, type, field, choices, fallback, range_, help)
#define PYTHON_PARAM(key, type, field, choices, fallback, range_, help)
#define RUNTIME_PARAM(key, type, field, choices, fallback, range_, help)
#define S3_PARAM(key, type, field, choices, fallback, range_, help) \
    ROW(key, type, s3_settings, field, choices, fallback, range_),
#include "config/params.def"
#undef PARAM
#undef QUEUE_PARAM
#undef POOL_PARAM
#undef PYTHON_PARAM
#undef RUNTIME_PARAM
#undef S3_PARAM
};

_Static_assert(offsetof(struct config_queue, keep_completed_count) ==
                       offsetof(struct config_queue, keep_completed_ms) + sizeof(int64_t) &&
                   offsetof(struct config_queue, keep_failed_count) ==
                       offsetof(struct config_queue, keep_failed_ms) + sizeof(int64_t),
               "PARAM_KEEP: the count stands right behind the age");
_Static_assert(offsetof(struct pool_options, size_max) ==
                   offsetof(struct pool_options, size_min) + sizeof(int64_t),
               "PARAM_COUNT: the most stands right behind the least");

/* ---- where we are ---- */

struct place {
    const char *file, *dir;
    int line;
    char key[160]; /* "queues.transcode.timeout" */
    struct mandor_err *err;
};

static struct place below(const struct place *place, const char *key, int line)
{
    struct place inner = *place;

    int n = snprintf(inner.key, sizeof inner.key, "%s%s%.60s", place->key,
                     place->key[0] != '\0' ? "." : "", key);
    if (n >= (int)sizeof inner.key)
        memcpy(inner.key + sizeof inner.key - 4, "...", 4);
    inner.line = line;
    return inner;
}

/* "file:line: key: what". */
static int bad(const struct place *place, const char *fmt, ...) PRINTF_LIKE(2, 3);
static int bad(const struct place *place, const char *fmt, ...)
{
    char what[sizeof place->err->msg];

    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return err_set(place->err, -EINVAL, FAULT_CALLER, "%s:%d: %s%s%s", place->file, place->line,
                   place->key, place->key[0] != '\0' ? ": " : "", what);
}

/* Hand on what a function without a place said. */
static int failed(const struct place *place, int code, const struct mandor_err *why)
{
    if (code == -ENOMEM) {
        if (place->err != NULL)
            *place->err = *why;
        return code;
    }
    bool goes_on = why->msg[0] == '[' || why->msg[0] == '.'; /* "env" + ".NAME: …" */
    return err_set(place->err, -EINVAL, FAULT_CALLER, "%s:%d: %s%s%s", place->file, place->line,
                   place->key, goes_on || place->key[0] == '\0' ? "" : ": ", why->msg);
}

static int no_memory(const struct place *place)
{
    return err_set(place->err, -ENOMEM, FAULT_HOST, "read the configuration");
}

static int unknown_key(const struct place *place, const char *key, const char *const *known,
                       size_t count)
{
    const char *nearest = units_nearest(key, known, count);

    return nearest != NULL ? bad(place, "unknown key, did you mean '%s'?", nearest)
                           : bad(place, "unknown key");
}

/* ---- values ---- */

/* The text of value. */
static int get_text(const struct place *place, const struct tree *value, struct buf *ret)
{
    struct mandor_err why = { 0 };

    if (tree_is_null(value))
        return bad(place, "no value, expected one");
    int r = scalar_text(value, place->dir, ret, &why);
    return r < 0 ? failed(place, r, &why) : 0;
}

static int parse_number(const struct param *param, const char *text, int64_t *ret,
                        struct mandor_err *err)
{
    char low[UNITS_TEXT_SIZE], high[UNITS_TEXT_SIZE];
    int64_t value;

    if (param->type == PARAM_INT || param->type == PARAM_COUNT)
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

/* Put text into the field of a scalar parameter.  Messages do not name the place. */
static int store_text(const struct param *param, const char *text, void *field,
                      struct mandor_err *err)
{
    if (param->type == PARAM_INT || param->type == PARAM_DURATION || param->type == PARAM_SIZE)
        return parse_number(param, text, field, err);
    if (param->type == PARAM_CHOICE && !is_choice(param->choices, text))
        return err_set(err, -EINVAL, FAULT_CALLER, "expected one of %s, got '%.40s'",
                       param->choices, text);
    if (text[0] == '\0')
        return err_set(err, -EINVAL, FAULT_CALLER, "empty, expected text");

    char *copy = strdup(text);
    if (copy == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    free(*(char **)field);
    *(char **)field = copy;
    return 0;
}

static int read_number(const struct place *place, const struct tree *value, enum param_type type,
                       int64_t max, int64_t *ret)
{
    const struct param param = { .type = type, .range = { 0, max } };
    struct mandor_err why = { 0 };
    SCOPED_BUF text = { 0 };

    int r = get_text(place, value, &text);
    if (r < 0)
        return r;
    r = parse_number(&param, text.data, ret, &why);
    return r < 0 ? failed(place, r, &why) : 0;
}

/* 7d, or {age: 7d, count: 10000}; what is left out has no bound. */
static int read_keep(const struct place *place, const struct tree *value, int64_t *field)
{
    static const char *const known[] = { "age", "count" };
    const int64_t age_max = INT64_C(36500) * 86400000;
    int64_t bounds[2] = { 0, 0 };
    int r = 0;

    if (value->kind != TREE_MAP)
        r = read_number(place, value, PARAM_DURATION, age_max, &bounds[0]);
    for (size_t i = 0; value->kind == TREE_MAP && i < value->count && r == 0; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        if (str_eq(item->key, "age"))
            r = read_number(&inner, item->value, PARAM_DURATION, age_max, &bounds[0]);
        else if (str_eq(item->key, "count"))
            r = read_number(&inner, item->value, PARAM_INT, INT64_MAX, &bounds[1]);
        else
            r = unknown_key(&inner, item->key, known, ARRAY_LEN(known));
    }
    if (r < 0)
        return r;
    memcpy(field, bounds, sizeof bounds);
    return 0;
}

static void free_names(char **names)
{
    for (size_t i = 0; names != NULL && names[i] != NULL; i++)
        free(names[i]);
    free(names);
}

/* 4, or {min: 1, max: 8}. */
static int read_count(const struct place *place, const struct tree *value,
                      const struct param *param, int64_t *field)
{
    static const char *const known[] = { "min", "max" };
    int64_t bounds[2] = { 0, 0 };
    int r = 0;

    if (value->kind != TREE_MAP) {
        r = read_number(place, value, PARAM_INT, param->range.max, &bounds[0]);
        bounds[1] = bounds[0];
    }
    for (size_t i = 0; value->kind == TREE_MAP && i < value->count && r == 0; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        bool is_max = str_eq(item->key, "max");
        if (!is_max && !str_eq(item->key, "min"))
            return unknown_key(&inner, item->key, known, ARRAY_LEN(known));
        r = read_number(&inner, item->value, PARAM_INT, param->range.max, &bounds[is_max]);
    }
    if (r < 0)
        return r;
    if (bounds[1] < 1 || bounds[1] < bounds[0])
        return bad(place, "expected at least one worker, as 4 or {min: 0, max: 8}");
    memcpy(field, bounds, sizeof bounds);
    return 0;
}

/* A command: [python3, thumbs.py]. */
static int read_words(const struct place *place, const struct tree *value, char ***field)
{
    if (value->kind != TREE_LIST || value->count == 0)
        return bad(place, "expected a list of words such as [python3, worker.py]");

    char **words = calloc(value->count + 1, sizeof *words);
    if (words == NULL)
        return no_memory(place);
    free_names(*field);
    *field = words; /* freed with the rest, half-filled or not */
    for (size_t i = 0; i < value->count; i++) {
        SCOPED_BUF text = { 0 };
        struct place inner = *place;
        inner.line = value->items[i].line;
        int r = get_text(&inner, value->items[i].value, &text);
        if (r < 0)
            return r;
        words[i] = text.data != NULL ? buf_steal(&text) : strdup("");
        if (words[i] == NULL)
            return no_memory(place);
    }
    return words[0][0] != '\0' ? 0 : bad(place, "the first word is empty, expected a program");
}

/* {NAME: value} as "NAME=value" entries. */
static int read_vars(const struct place *place, const struct tree *value, char ***field)
{
    if (value->kind != TREE_MAP)
        return bad(place, "expected a mapping of names to values");

    char **vars = calloc(value->count + 1, sizeof *vars);
    if (vars == NULL)
        return no_memory(place);
    free_names(*field);
    *field = vars;
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        SCOPED_BUF text = { 0 };
        if (item->key[0] == '\0' || strchr(item->key, '=') != NULL)
            return bad(&inner, "'%.60s' is no variable's name", item->key);
        int r = get_text(&inner, item->value, &text);
        if (r < 0)
            return r;
        if (asprintf(&vars[i], "%s=%s", item->key, text.data != NULL ? text.data : "") < 0) {
            vars[i] = NULL;
            return no_memory(place);
        }
    }
    return 0;
}

/* A directory, relative to that of the file. */
static int read_dir(const struct place *place, const char *text, char **field)
{
    char *path = NULL;
    int n =
        text[0] == '/' ? asprintf(&path, "%s", text) : asprintf(&path, "%s/%s", place->dir, text);
    if (n < 0)
        return no_memory(place);
    char *absolute = realpath(path, NULL);
    free(path);
    if (absolute == NULL)
        return errno == ENOMEM ? no_memory(place)
                               : bad(place, "'%.100s': %s", text, strerrordesc_np(errno));
    free(*field);
    *field = absolute;
    return 0;
}

/* A place that may not be there yet, relative to the file's directory. */
static int read_path(const struct place *place, const char *text, char **field)
{
    SCOPED_FREE char *dir = NULL;
    char *path = NULL;

    if (text[0] == '\0')
        return bad(place, "empty, expected a directory");
    if (text[0] != '/' && (dir = realpath(place->dir, NULL)) == NULL)
        return bad(place, "'%.100s': %s", place->dir, strerrordesc_np(errno));
    int n = dir == NULL ? asprintf(&path, "%s", text) : asprintf(&path, "%s/%s", dir, text);
    if (n < 0)
        return no_memory(place);
    free(*field);
    *field = path;
    return 0;
}

/* The text of a file that jobs will run. */
static int read_code(const struct place *place, const char *text, char **field)
{
    SCOPED_FREE char *path = NULL;
    SCOPED_BUF code = { 0 };
    int n =
        text[0] == '/' ? asprintf(&path, "%s", text) : asprintf(&path, "%s/%s", place->dir, text);
    if (n < 0) {
        path = NULL;
        return no_memory(place);
    }
    int r = scalar_read_file(path, FILE_BYTES_MAX, true, &code);
    if (r < 0)
        return r == -ENOMEM ? no_memory(place)
                            : bad(place, "'%.100s': %s", text, strerrordesc_np(-r));
    if (code.len == 0 || memchr(code.data, '\0', code.len) != NULL)
        return bad(place, "'%.100s' is empty or no text", text);
    free(*field);
    *field = buf_steal(&code);
    return 0;
}

static int read_bool(const struct place *place, const char *text, bool *field)
{
    bool yes = str_eq(text, "true");

    if (!yes && !str_eq(text, "false"))
        return bad(place, "expected true or false, got '%.40s'", text);
    *field = yes;
    return 0;
}

/* A list of texts; may be empty.  example: of such a list. */
static int read_texts(const struct place *place, const struct tree *value, const char *example,
                      int (*check)(const struct place *place, const struct buf *text),
                      char ***field)
{
    if (value->kind != TREE_LIST)
        return bad(place, "expected a list of %s", example);

    char **list = calloc(value->count + 1, sizeof *list);
    if (list == NULL)
        return no_memory(place);
    free_names(*field);
    *field = list; /* config_free() ends it, half-filled or not */
    for (size_t i = 0; i < value->count; i++) {
        SCOPED_BUF text = { 0 };
        struct place inner = *place;
        inner.line = value->items[i].line;
        int r = get_text(&inner, value->items[i].value, &text);
        if (r == 0)
            r = check(&inner, &text);
        if (r < 0)
            return r;
        if ((list[i] = buf_steal(&text)) == NULL)
            return no_memory(place);
    }
    return 0;
}

static int check_word(const struct place *place, const struct buf *text)
{
    return text->len == 0 ? bad(place, "empty, expected a name") : 0;
}

static int check_variable(const struct place *place, const struct buf *text)
{
    if (text->len == 0 || strchr(text->data, '=') != NULL)
        return bad(place, "'%.60s' is no variable's name", text->len == 0 ? "" : text->data);
    if (strncmp(text->data, "MANDOR_", 7) == 0)
        return bad(place,
                   "'%.60s': names that start with MANDOR_ are mandor's own, jobs get their "
                   "own values",
                   text->data);
    return 0;
}

static int read_list(const struct place *place, const struct tree *value, char ***field)
{
    return read_texts(place, value, "names such as [numpy, pandas]", check_word, field);
}

static int read_names(const struct place *place, const struct tree *value, char ***field)
{
    return read_texts(place, value, "variable names such as [SSL_CERT_FILE]", check_variable,
                      field);
}

/* ---- job options on a queue ---- */

static const struct spec_option *find_option(const char *key)
{
    size_t count;
    const struct spec_option *options = spec_options(&count);

    for (size_t i = 0; i < count; i++)
        if (str_eq(options[i].key, key))
            return &options[i];
    return NULL;
}

static int read_env(const struct place *place, const struct tree *value, json_t **ret)
{
    if (value->kind != TREE_MAP)
        return bad(place, "expected a mapping of names to values");

    SCOPED_JSON *env = json_object();
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        SCOPED_BUF text = { 0 };
        int r = get_text(&inner, item->value, &text);
        if (r < 0)
            return r;
        if (json_object_set_new(env, item->key, json_bytes(text.data, text.len)) < 0)
            return no_memory(place);
    }
    *ret = STEAL(env);
    return 0;
}

/* A list of integers: [1, 2], or the command line's "1,2". */
static int read_ints_text(const struct place *place, const struct tree *value, struct buf *ret)
{
    if (value->kind != TREE_LIST)
        return get_text(place, value, ret);

    if (buf_adds(ret, "") < 0)
        return no_memory(place);
    for (size_t i = 0; i < value->count; i++) {
        struct place inner = *place;
        inner.line = value->items[i].line;
        if (i > 0 && buf_adds(ret, ",") < 0)
            return no_memory(place);
        int r = get_text(&inner, value->items[i].value, ret);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_sink_list(const struct place *place, const struct tree *value, json_t **ret)
{
    SCOPED_JSON *list = json_array();

    for (size_t i = 0; list != NULL && i < value->count; i++) {
        SCOPED_BUF text = { 0 };
        struct place inner = *place;
        inner.line = value->items[i].line;
        int r = get_text(&inner, value->items[i].value, &text);
        if (r < 0)
            return r;
        if (json_array_append_new(list, json_bytes(text.data == NULL ? "" : text.data, text.len)) <
            0)
            return no_memory(place);
    }
    if (list == NULL)
        return no_memory(place);
    *ret = STEAL(list);
    return 0;
}

/* The checked JSON value of a job option. */
static int read_option(const struct place *place, const struct spec_option *option,
                       const struct tree *value, json_t **ret)
{
    struct mandor_err why = { 0 };
    SCOPED_JSON *json = NULL;
    SCOPED_BUF text = { 0 };
    int r;

    if (option->type == OPT_ENV || (option->type == OPT_SINKS && value->kind == TREE_LIST)) {
        r = option->type == OPT_ENV ? read_env(place, value, &json)
                                    : read_sink_list(place, value, &json);
        if (r < 0)
            return r;
        r = spec_check_value(option->key, json, &why);
    } else {
        r = option->type == OPT_INTS ? read_ints_text(place, value, &text)
                                     : get_text(place, value, &text);
        if (r < 0)
            return r;
        r = spec_value_from_text(option->key, text.data, &json, &why);
    }
    if (r < 0)
        return failed(place, r, &why);
    *ret = STEAL(json);
    return 0;
}

/* What may stand in a queue (group "") or in "limits." or "backoff." there. */
static size_t queue_keys(const char *group, const char *names[KEYS_MAX], char firsts[KEYS_MAX][32])
{
    size_t option_count, count = 0, len = strlen(group);
    const struct spec_option *options = spec_options(&option_count);

    for (size_t i = 0; len == 0 && i < ARRAY_LEN(queue_params); i++)
        names[count++] = queue_params[i].key;
    for (size_t i = 0; i < option_count && count < KEYS_MAX; i++) {
        if (!options[i].on_queue || strncmp(options[i].key, group, len) != 0)
            continue;
        (void)snprintf(firsts[count], sizeof firsts[count], "%.*s",
                       (int)strcspn(options[i].key + len, "."), options[i].key + len);
        names[count] = firsts[count];
        count++;
    }
    return count;
}

static int unknown_queue_key(const struct place *place, const char *key, const char *group)
{
    const char *names[KEYS_MAX];
    char firsts[KEYS_MAX][32];

    return unknown_key(place, key, names, queue_keys(group, names, firsts));
}

/* Is there an option "key.…"? */
static bool is_group(const char *key)
{
    size_t count, len = strlen(key);
    const struct spec_option *options = spec_options(&count);

    for (size_t i = 0; i < count; i++)
        if (strncmp(options[i].key, key, len) == 0 && options[i].key[len] == '.')
            return true;
    return false;
}

static int read_group(const struct place *place, const char *group, const struct tree *value,
                      json_t *defaults)
{
    char prefix[40], key[100];
    json_t *object = json_object();

    if (json_object_set_new(defaults, group, object) < 0)
        return no_memory(place);
    if (value->kind != TREE_MAP)
        return bad(place, "expected a mapping");
    (void)snprintf(prefix, sizeof prefix, "%.36s.", group);
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        json_t *json;
        (void)snprintf(key, sizeof key, "%s%.56s", prefix, item->key);
        const struct spec_option *option = find_option(key);
        if (option == NULL)
            return unknown_queue_key(&inner, item->key, prefix);
        int r = read_option(&inner, option, item->value, &json);
        if (r < 0)
            return r;
        if (json_object_set_new(object, item->key, json) < 0)
            return no_memory(place);
    }
    return 0;
}

/* The limits of a job, for something that is none. */
static int read_limits(const struct place *place, const struct tree *value,
                       struct spec_limits *limits)
{
    SCOPED_JSON *options = json_object(), *job = json_pack("{s:[s]}", "exec", "true");
    SCOPED(spec_free) struct spec *spec = NULL;
    struct mandor_err why = { 0 };

    if (options == NULL || job == NULL)
        return no_memory(place);
    int r = read_group(place, "limits", value, options);
    if (r < 0)
        return r;
    r = spec_from_json(job, options, &spec, &why);
    if (r < 0)
        return failed(place, r, &why);
    *limits = spec->limits;
    return 0;
}

static int check_sink(void *arg, const char *text)
{
    struct mandor_err *why = arg;
    struct sink_member member;
    int r = sink_member_parse(text, &member, why);

    return r < 0 ? r : sink_check_url(member.url, why);
}

static int check_sinks(const json_t *value, struct mandor_err *why)
{
    SCOPED_FREE char *text = NULL;
    size_t len;
    int r = sink_list_from_json(value, &text, &len, why);

    return r < 0 ? r : sink_list_each(text, check_sink, why);
}

/* A stream that leads nowhere would fail every job of the queue: say it now. */
static int check_end(const struct place *place, const char *key, const json_t *value)
{
    struct mandor_err why = { 0 };
    const char *url = json_string_value(value);
    int r = 0;

    if (url != NULL && str_eq(key, "stdin"))
        r = feeder_check_url(url, &why);
    else if (str_eq(key, "stdout") || str_eq(key, "stderr"))
        r = check_sinks(value, &why);
    return r < 0 ? failed(place, r, &why) : 0;
}

static int read_job_option(const struct place *place, const struct tree_item *item,
                           json_t *defaults)
{
    const struct spec_option *option = find_option(item->key);
    json_t *json;

    if (option == NULL && is_group(item->key))
        return read_group(place, item->key, item->value, defaults);
    if (option == NULL || strchr(item->key, '.') != NULL)
        return unknown_queue_key(place, item->key, "");
    if (!option->on_queue)
        return bad(place, "belongs to a job, not to a queue");

    int r = read_option(place, option, item->value, &json);
    if (r < 0)
        return r;
    if (json_object_set_new(defaults, item->key, json) < 0)
        return no_memory(place);
    return check_end(place, item->key, json);
}

/* ---- queues ---- */

static int read_param(const struct place *place, const struct param *param,
                      const struct tree *value, void *object);

static const struct param *find_param(const struct param *params, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(params[i].key, key))
            return &params[i];
    return NULL;
}

static void set_queue_defaults(struct config_queue *queue)
{
    queue->weight = 1;
    queue->keep_completed_ms = INT64_C(7) * 86400000;
    queue->keep_completed_count = 10000;
    queue->keep_failed_ms = INT64_C(30) * 86400000;
}

static int read_queue(const struct place *place, const char *name, const struct tree *value,
                      struct config_queue *queue)
{
    struct mandor_err why = { 0 };

    set_queue_defaults(queue);
    queue->name = strdup(name);
    queue->defaults = json_object();
    if (queue->name == NULL || queue->defaults == NULL)
        return no_memory(place);

    SCOPED_JSON *named = json_string(name);
    if (named == NULL)
        return no_memory(place);
    int r = spec_check_value("queue", named, &why);
    if (r < 0)
        return failed(place, r, &why);
    if (value->kind != TREE_MAP && !tree_is_null(value))
        return bad(place, "expected a mapping of queue keys and job options, or {}");
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        const struct param *param = find_param(queue_params, ARRAY_LEN(queue_params), item->key);
        r = param != NULL ? read_param(&inner, param, item->value, queue)
                          : read_job_option(&inner, item, queue->defaults);
        if (r < 0)
            return r;
    }
    r = spec_check_defaults(queue->defaults, &why); /* what must hold between options */
    return r < 0 ? failed(place, r, &why) : 0;
}

static int read_queues(const struct place *place, const struct tree *value, struct config *config)
{
    if (tree_is_null(value))
        return 0;
    if (value->kind != TREE_MAP)
        return bad(place, "expected a mapping of queue names");

    config->queues = calloc(value->count + 1, sizeof *config->queues);
    if (config->queues == NULL)
        return no_memory(place);
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        int r = read_queue(&inner, item->key, item->value, &config->queues[config->queue_count++]);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- pools ---- */

static int set_pool_defaults(const struct place *place, const char *name, struct pool_options *pool)
{
    struct mandor_err why;

    pool->name = strdup(name);
    pool->size_min = pool->size_max = 1;
    if (pool->name == NULL)
        return no_memory(place);
    for (size_t i = 0; i < ARRAY_LEN(pool_params); i++) {
        const struct param *param = &pool_params[i];
        if (param->fallback[0] == '\0' || param->fallback[0] == '(' || param->type == PARAM_COUNT)
            continue;
        if (store_text(param, param->fallback, (char *)pool + param->offset, &why) < 0)
            return no_memory(place);
    }
    return 0;
}

static int read_pool(const struct place *place, const char *name, const struct tree *value,
                     struct pool_options *pool)
{
    const char *known[ARRAY_LEN(pool_params)];
    int r = set_pool_defaults(place, name, pool);

    if (r < 0)
        return r;
    if (name[0] == '\0')
        return bad(place, "a pool needs a name");
    if (value->kind != TREE_MAP)
        return bad(place, "expected a mapping such as {command: [python3, worker.py], size: 4}");
    for (size_t i = 0; i < ARRAY_LEN(pool_params); i++)
        known[i] = pool_params[i].key;
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        const struct param *param = find_param(pool_params, ARRAY_LEN(pool_params), item->key);
        r = param != NULL ? read_param(&inner, param, item->value, pool)
                          : unknown_key(&inner, item->key, known, ARRAY_LEN(known));
        if (r < 0)
            return r;
    }
    if (pool->command == NULL)
        return bad(place, "no command, expected one such as [python3, worker.py]");
    return pool->cwd != NULL ? 0 : read_dir(place, ".", &pool->cwd);
}

static int read_pools(const struct place *place, const struct tree *value, struct config *config)
{
    if (tree_is_null(value))
        return 0;
    if (value->kind != TREE_MAP)
        return bad(place, "expected a mapping of pool names");

    config->pools = calloc(value->count + 1, sizeof *config->pools);
    if (config->pools == NULL)
        return no_memory(place);
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        int r = read_pool(&inner, item->key, item->value, &config->pools[config->pool_count++]);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- python ---- */

/* Every key of a mapping by its table. */
static int read_table(const struct place *place, const struct tree *value,
                      const struct param *params, size_t count, void *object)
{
    const char *known[KEYS_MAX];

    for (size_t i = 0; i < count; i++)
        known[i] = params[i].key;
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        const struct param *param = find_param(params, count, item->key);
        int r = param != NULL ? read_param(&inner, param, item->value, object)
                              : unknown_key(&inner, item->key, known, count);
        if (r < 0)
            return r;
    }
    return 0;
}

static int set_runtime_defaults(const char *name, struct python_runtime *runtime,
                                struct mandor_err *err)
{
    runtime->name = strdup(name);
    if (runtime->name == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    for (size_t i = 0; i < ARRAY_LEN(runtime_params); i++) {
        const struct param *param = &runtime_params[i];
        if (param->fallback[0] == '\0' || param->fallback[0] == '(')
            continue;
        int r = store_text(param, param->fallback, (char *)runtime + param->offset, err);
        BUG_ON(r < 0 && r != -ENOMEM); /* the table contradicts itself */
        if (r < 0)
            return r;
    }
    return 0;
}

static int check_runtime(const struct place *place, const struct python_runtime *runtime)
{
    struct mandor_err why = { 0 };
    int64_t seed;

    if (runtime->hash_seed == NULL ||
        units_parse_int(runtime->hash_seed, 0, UINT32_MAX, &seed, &why) == 0)
        return 0;
    struct place inner = below(place, "hash_seed", place->line);
    return failed(&inner, -EINVAL, &why);
}

static int read_runtime(const struct place *place, const char *name, const struct tree *value,
                        struct python_runtime *runtime)
{
    if (name[0] == '\0' || strchr(name, '/') != NULL)
        return bad(place, "'%.60s' is no name of a runtime", name);
    if (value->kind != TREE_MAP && !tree_is_null(value))
        return bad(place, "expected a mapping such as {packages: [numpy], preload: [numpy]}");
    int r = set_runtime_defaults(name, runtime, place->err);
    runtime->named = true;
    if (r == 0)
        r = read_table(place, value, runtime_params, ARRAY_LEN(runtime_params), runtime);
    return r < 0 ? r : check_runtime(place, runtime);
}

/* The first one is `default`, which is there in any case. */
static int read_runtimes(const struct place *place, const struct tree *value,
                         struct python_options *python)
{
    if (tree_is_null(value))
        return 0;
    if (value->kind != TREE_MAP)
        return bad(place, "expected a mapping of runtime names");

    struct python_runtime *grown =
        realloc(python->runtimes, (value->count + 1) * sizeof *python->runtimes);
    if (grown == NULL)
        return no_memory(place);
    python->runtimes = grown;
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        struct python_runtime *runtime = python->runtimes;
        if (str_eq(item->key, runtime->name))
            python_runtime_done(runtime);
        else
            runtime = &python->runtimes[python->runtime_count++];
        *runtime = (struct python_runtime){ 0 };
        int r = read_runtime(&inner, item->key, item->value, runtime);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_python(const struct place *place, const struct tree *value,
                       struct python_options *python)
{
    if (value->kind != TREE_MAP && !tree_is_null(value))
        return bad(place, "expected a mapping such as {store: /var/lib/mandor/wheels}");
    return read_table(place, value, python_params, ARRAY_LEN(python_params), python);
}

static int set_python_defaults(struct python_options *python, struct mandor_err *err)
{
    python->runtimes = calloc(1, sizeof *python->runtimes);
    if (python->runtimes == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    python->runtime_count = 1;
    return set_runtime_defaults("default", python->runtimes, err);
}

/* ---- sinks ---- */

static int set_s3_defaults(struct s3_settings *s3, struct mandor_err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(s3_params); i++) {
        const struct param *param = &s3_params[i];
        if (param->fallback[0] == '\0' || param->fallback[0] == '(')
            continue;
        int r = store_text(param, param->fallback, (char *)s3 + param->offset, err);
        BUG_ON(r < 0 && r != -ENOMEM); /* the table contradicts itself */
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_sinks(const struct place *place, const struct tree *value,
                      struct sink_settings *sinks)
{
    static const char *const known[] = { "s3" };

    if (value->kind != TREE_MAP && !tree_is_null(value))
        return bad(place, "expected a mapping such as {s3: {endpoint: \"https://s3.internal\"}}");
    for (size_t i = 0; i < value->count; i++) {
        const struct tree_item *item = &value->items[i];
        struct place inner = below(place, item->key, item->line);
        if (!str_eq(item->key, "s3"))
            return unknown_key(&inner, item->key, known, ARRAY_LEN(known));
        if (item->value->kind != TREE_MAP && !tree_is_null(item->value))
            return bad(&inner, "expected a mapping such as {endpoint: \"https://s3.internal\"}");
        int r = read_table(&inner, item->value, s3_params, ARRAY_LEN(s3_params), &sinks->s3);
        if (r < 0)
            return r;
        if ((sinks->s3.access_key == NULL) != (sinks->s3.secret_key == NULL))
            return bad(&inner, "expected access_key and secret_key together");
    }
    return 0;
}

/* ---- the whole ---- */

static int read_param(const struct place *place, const struct param *param,
                      const struct tree *value, void *object)
{
    struct mandor_err why = { 0 };
    SCOPED_BUF text = { 0 };
    void *field = (char *)object + param->offset;

    if (param->type == PARAM_QUEUES)
        return read_queues(place, value, object);
    if (param->type == PARAM_NAMES)
        return read_names(place, value, field);
    if (param->type == PARAM_KEEP)
        return read_keep(place, value, field);
    if (param->type == PARAM_POOLS)
        return read_pools(place, value, object);
    if (param->type == PARAM_WORDS)
        return read_words(place, value, field);
    if (param->type == PARAM_VARS)
        return read_vars(place, value, field);
    if (param->type == PARAM_COUNT)
        return read_count(place, value, param, field);
    if (param->type == PARAM_LIMITS)
        return read_limits(place, value, field);
    if (param->type == PARAM_LIST)
        return read_list(place, value, field);
    if (param->type == PARAM_PYTHON)
        return read_python(place, value, field);
    if (param->type == PARAM_RUNTIMES)
        return read_runtimes(place, value, object);
    if (param->type == PARAM_SINKS)
        return read_sinks(place, value, field);

    int r = get_text(place, value, &text);
    if (r < 0)
        return r;
    if (param->type == PARAM_DIR)
        return read_dir(place, text.data, field);
    if (param->type == PARAM_CODE)
        return read_code(place, text.data, field);
    if (param->type == PARAM_BOOL)
        return read_bool(place, text.data, field);
    if (param->type == PARAM_PATH)
        return read_path(place, text.data, field);
    r = store_text(param, text.data, field, &why);
    return r < 0 ? failed(place, r, &why) : 0;
}

static int64_t cpu_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    return MAX((int64_t)sysconf(_SC_NPROCESSORS_ONLN), (int64_t)1); /* more than 1024 CPUs */
}

static int set_defaults(struct config *config, struct mandor_err *err)
{
    config->concurrency = cpu_count();
    config->env_pass = calloc(1, sizeof *config->env_pass);
    if (config->env_pass == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");

    for (size_t i = 0; i < ARRAY_LEN(top_params); i++) {
        const struct param *param = &top_params[i];
        if (param->fallback[0] == '\0' || param->fallback[0] == '(')
            continue;
        int r = store_text(param, param->fallback, (char *)config + param->offset, err);
        BUG_ON(r < 0 && r != -ENOMEM); /* the table contradicts itself */
        if (r < 0)
            return r;
    }
    int r = set_s3_defaults(&config->sinks.s3, err);
    return r < 0 ? r : set_python_defaults(&config->python, err);
}

static const struct python_runtime *runtime_of(const struct config *config, const char *name)
{
    for (size_t i = 0; i < config->python.runtime_count; i++)
        if (str_eq(config->python.runtimes[i].name, name != NULL ? name : "default"))
            return &config->python.runtimes[i];
    return NULL;
}

struct binding config_binding(const struct config *config, const struct config_queue *queue)
{
    const struct python_runtime *runtime = runtime_of(config, queue->runtime);

    return (struct binding){
        .executor = queue->executor,
        .command = (const char *const *)queue->command,
        .pool = json_string_value(json_object_get(queue->defaults, "pool")),
        .runtime = queue->runtime,
        .code = queue->code,
        .allow_exec = queue->allow_exec,
        .python_open = runtime != NULL && !str_eq(runtime->sandbox, "strict"),
    };
}

/* What holds between the keys of a queue and other parts of the file; the file's end is where all of it is known. */
static int check_queues(const struct place *place, const struct config *config)
{
    struct mandor_err why = { 0 };

    for (size_t i = 0; i < config->queue_count; i++) {
        const struct config_queue *queue = &config->queues[i];
        const struct binding binding = config_binding(config, queue);
        struct place inner = below(place, "queues", place->line);
        inner = below(&inner, queue->name, place->line);
        int r = binding_check(&binding, &why);
        if (r < 0)
            return failed(&inner, r, &why);
        if (queue->runtime != NULL && runtime_of(config, queue->runtime) == NULL)
            return bad(&inner, "runtime: there is no '%.60s' below python.runtimes",
                       queue->runtime);
    }
    return 0;
}

static int read_top(const struct place *place, const struct tree *tree, struct config *config)
{
    const char *known[ARRAY_LEN(top_params)];

    if (tree->kind != TREE_MAP)
        return bad(place, "expected a mapping of keys at the top");
    for (size_t i = 0; i < ARRAY_LEN(top_params); i++)
        known[i] = top_params[i].key;
    for (size_t i = 0; i < tree->count; i++) {
        const struct tree_item *item = &tree->items[i];
        struct place inner = below(place, item->key, item->line);
        const struct param *param = find_param(top_params, ARRAY_LEN(top_params), item->key);
        int r = param != NULL ? read_param(&inner, param, item->value, config)
                              : unknown_key(&inner, item->key, known, ARRAY_LEN(known));
        if (r < 0)
            return r;
    }
    return check_queues(place, config);
}

static int config_new(struct config **ret, struct mandor_err *err)
{
    SCOPED(config_free) struct config *config = calloc(1, sizeof *config);
    if (config == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");

    int r = set_defaults(config, err);
    if (r < 0)
        return r;
    *ret = STEAL(config);
    return 0;
}

int config_parse(const char *name, const char *text, size_t len, struct config **ret,
                 struct mandor_err *err)
{
    SCOPED(config_free) struct config *config = NULL;
    SCOPED(tree_free) struct tree *tree = NULL;
    const char *slash = strrchr(name, '/');

    SCOPED_FREE char *dir = slash == NULL ? strdup(".") : strndup(name, (size_t)(slash - name) + 1);
    if (dir == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    int r = config_new(&config, err);
    if (r < 0)
        return r;
    config->path = strdup(name);
    if (config->path == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    r = tree_parse(name, text, len, &tree, err);
    if (r < 0)
        return r;
    r = read_top(&(struct place){ .file = name, .dir = dir, .line = tree->line, .err = err }, tree,
                 config);
    if (r < 0)
        return r;

    *ret = STEAL(config);
    return 0;
}

static int load_file(const char *path, struct config **ret, struct mandor_err *err)
{
    SCOPED_BUF text = { 0 };

    int r = scalar_read_file(path, FILE_BYTES_MAX, false, &text);
    if (r == -EFBIG)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "configuration '%.120s' is longer than %zu bytes, is it the right file?",
                       path, FILE_BYTES_MAX);
    if (r <
        0) /* whoever named the file is to act, so not FAULT_HOST; the reason is said all the same */
        return err_set(err, r == -ENOMEM ? r : -EINVAL, FAULT_CALLER, "configuration '%.120s': %s",
                       path, strerrordesc_np(-r));
    return config_parse(path, text.data, text.len, ret, err);
}

/* The n-th place to look in, malloc'ed; NULL where there is none of that kind. */
static char *standard_path(int n)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    SCOPED_BUF path = { 0 };
    int r = -ENOENT;

    if (n == 1)
        r = buf_adds(&path, "/etc/mandor/mandor.yaml");
    else if (xdg != NULL && xdg[0] == '/')
        r = buf_addf(&path, "%s/mandor/mandor.yaml", xdg);
    else if (home != NULL && home[0] == '/')
        r = buf_addf(&path, "%s/.config/mandor/mandor.yaml", home);
    return r == 0 ? buf_steal(&path) : NULL;
}

int config_load(const char *path, struct config **ret, struct mandor_err *err)
{
    const char *named = path != NULL ? path : getenv("MANDOR_CONFIG");
    if (named != NULL && named[0] != '\0')
        return load_file(named, ret, err);

    for (int n = 0; n < 2; n++) {
        SCOPED_FREE char *standard = standard_path(n);
        if (standard == NULL ||
            (access(standard, F_OK) < 0 && (errno == ENOENT || errno == ENOTDIR)))
            continue;
        return load_file(standard, ret, err);
    }
    return config_new(ret, err);
}

struct config *config_free(struct config *config)
{
    if (config == NULL)
        return NULL;

    for (size_t i = 0; i < config->queue_count; i++) {
        free(config->queues[i].name);
        json_decref(config->queues[i].defaults);
        free(config->queues[i].broker);
        free(config->queues[i].executor);
        free_names(config->queues[i].command);
        free(config->queues[i].runtime);
        free(config->queues[i].code);
    }
    free(config->queues);
    for (size_t i = 0; i < config->pool_count; i++)
        pool_options_done(&config->pools[i]);
    free(config->pools);
    python_options_done(&config->python);
    s3_settings_done(&config->sinks.s3);
    free_names(config->env_pass);
    free(config->containment);
    free(config->log_format);
    free(config->broker);
    free(config->path);
    free(config);
    return NULL;
}

const struct config_queue *config_queue(const struct config *config, const char *name)
{
    static const struct config_queue unnamed = {
        .weight = 1,
        .keep_completed_ms = INT64_C(7) * 86400000,
        .keep_completed_count = 10000,
        .keep_failed_ms = INT64_C(30) * 86400000,
    };

    for (size_t i = 0; i < config->queue_count; i++)
        if (str_eq(config->queues[i].name, name))
            return &config->queues[i];
    return &unnamed;
}

const struct config_param *config_params(size_t *ret_count)
{
#define TYPE_TEXT     "text"
#define TYPE_INT      "integer"
#define TYPE_DURATION "duration"
#define TYPE_SIZE     "size"
#define TYPE_CHOICE   "choice"
#define TYPE_NAMES    "list"
#define TYPE_KEEP     "duration, or {age, count}"
#define TYPE_QUEUES   "mapping"
#define TYPE_POOLS    "mapping"
#define TYPE_LIMITS   "mapping"
#define TYPE_WORDS    "list"
#define TYPE_VARS     "map of names to values"
#define TYPE_COUNT    "integer, or {min, max}"
#define TYPE_DIR      "directory"
#define TYPE_PATH     "directory"
#define TYPE_LIST     "list"
#define TYPE_PYTHON   "mapping"
#define TYPE_RUNTIMES "mapping"
#define TYPE_SINKS    "mapping"
#define TYPE_BOOL     "true or false"
#define TYPE_CODE     "file"
    static const struct config_param params[] = {
#define PARAM(key, type, field, choices, fallback, range, help) \
    { key, (choices) != NULL ? (choices) : TYPE_##type, fallback, help },
#define QUEUE_PARAM(key, type, field, choices, fallback, range, help) \
    { "queues.NAME." key, (choices) != NULL ? (choices) : TYPE_##type, fallback, help },
#define POOL_PARAM(key, type, field, choices, fallback, range, help) \
    { "pools.NAME." key, (choices) != NULL ? (choices) : TYPE_##type, fallback, help },
#define PYTHON_PARAM(key, type, field, choices, fallback, range, help) \
    { "python." key, TYPE_##type, fallback, help },
#define RUNTIME_PARAM(key, type, field, choices, fallback, range, help) \
    { "python.runtimes.NAME." key, (choices) != NULL ? (choices) : TYPE_##type, fallback, help },
#define S3_PARAM(key, type, field, choices, fallback, range, help) \
    { "sinks.s3." key, (choices) != NULL ? (choices) : TYPE_##type, fallback, help },
#include "config/params.def"
#undef PARAM
#undef QUEUE_PARAM
#undef POOL_PARAM
#undef PYTHON_PARAM
#undef RUNTIME_PARAM
#undef S3_PARAM
    };
    *ret_count = ARRAY_LEN(params);
    return params;
}

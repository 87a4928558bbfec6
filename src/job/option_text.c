/* option_text.c - options that are text, bytes or one of a few words, and what all types share.  Contract in option_type.h. */
#include <limits.h>
#include <stdio.h>

#include "base/json.h"
#include "base/units.h"
#include "base/utf8.h"
#include "job/option_type.h"
#include "job/sink_list.h"

#define QUEUE_BYTES_MAX ((size_t)100) /* names become parts of file names and of Redis keys */

int option_invalid_utf8(struct mandor_err *err)
{
    return err_set(err, -EINVAL, FAULT_CALLER, "not valid UTF-8, expected text");
}

int option_out_of_memory(struct mandor_err *err)
{
    return err_set(err, -ENOMEM, FAULT_HOST, "read a job option");
}

/* "expected WANT, got VALUE" with a short picture of value. */
int option_unexpected(struct mandor_err *err, const json_t *value, const char *want)
{
    if (json_is_object(value) || json_is_array(value))
        return err_set(err, -EINVAL, FAULT_CALLER, "expected %s, got an %s", want,
                       json_is_object(value) ? "object" : "array");

    SCOPED_FREE char *text = json_text(value);
    return err_set(err, -EINVAL, FAULT_CALLER, "expected %s, got %.60s", want,
                   text != NULL ? text : "something else");
}

int option_no_nul(const struct spec_str *text, struct mandor_err *err)
{
    const char *nul = memchr(text->bytes, '\0', text->len);

    return nul == NULL
               ? 0
               : err_set(err, -EINVAL, FAULT_CALLER, "NUL at byte %td, expected bytes without NUL",
                         nul - text->bytes + 1);
}

bool option_str_same(const struct spec_str *a, const struct spec_str *b)
{
    if (a->bytes == NULL || b->bytes == NULL)
        return a->bytes == b->bytes;
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

int option_text_from_text(const struct option_row *row, const char *text, json_t **ret,
                          struct mandor_err *err)
{
    if (!utf8_clean(text, strlen(text)))
        return option_invalid_utf8(err);
    *ret = json_string(text);
    return *ret != NULL ? 0 : option_out_of_memory(err);
}

/* ---- checks of rows ---- */

int option_check_filled(const struct spec_str *text, struct mandor_err *err)
{
    return text->len > 0 ? 0 : err_set(err, -EINVAL, FAULT_CALLER, "empty, expected text");
}

int option_check_queue(const struct spec_str *text, struct mandor_err *err)
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

int option_check_cwd(const struct spec_str *text, struct mandor_err *err)
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
int option_check_url(const struct spec_str *text, struct mandor_err *err)
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

static int enum_store(const struct option_row *row, const json_t *value, void *field,
                      struct mandor_err *err)
{
    const char *choices = row->choices, *given = json_string_value(value), *name;
    char want[96], hint[48];
    size_t len;

    for (unsigned n = 0; given != NULL && (name = choice(choices, n, &len)) != NULL; n++)
        if (strlen(given) == len && memcmp(given, name, len) == 0) {
            *(unsigned *)field = n;
            return 0;
        }

    (void)snprintf(want, sizeof want, "one of %s", choices);
    int r = option_unexpected(err, value, want);
    if (given != NULL && err != NULL) {
        nearest_choice(given, choices, hint, sizeof hint);
        if (hint[0] != '\0') {
            struct mandor_err inner = *err;
            (void)err_set(err, r, inner.fault, "%s%s", inner.msg, hint);
        }
    }
    return r;
}

static json_t *enum_load(const struct option_row *row, const void *field)
{
    size_t len = 0;
    const char *name = choice(row->choices, *(const unsigned *)field, &len);

    BUG_ON(name == NULL);
    return json_stringn(name, len);
}

static bool enum_same(const void *a, const void *b)
{
    return *(const unsigned *)a == *(const unsigned *)b;
}

/* ---- text and bytes ---- */

/* Bytes of value, checked for NUL and by the row's own check. */
static int get_bytes(const struct option_row *row, const json_t *value, struct spec_str *ret,
                     struct mandor_err *err)
{
    struct spec_str text;

    int r = json_bytes_get(value, &text.bytes, &text.len, err);
    if (r < 0)
        return r;
    r = option_no_nul(&text, err);
    if (r == 0 && row->check != NULL)
        r = row->check(&text, err);
    if (r < 0) {
        free(text.bytes);
        return r;
    }
    *ret = text;
    return 0;
}

static int string_store(const struct option_row *row, const json_t *value, void *field,
                        struct mandor_err *err)
{
    struct spec_str text;

    if (!json_is_string(value))
        return option_unexpected(err, value, "text");
    int r = get_bytes(row, value, &text, err);
    if (r < 0)
        return r;
    free(*(char **)field);
    *(char **)field = text.bytes;
    return 0;
}

static json_t *string_load(const struct option_row *row, const void *field)
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

static int bytes_from_text(const struct option_row *row, const char *text, json_t **ret,
                           struct mandor_err *err)
{
    *ret = json_bytes(text, strlen(text));
    return *ret != NULL ? 0 : option_out_of_memory(err);
}

/* ---- sinks ---- */

static int sinks_store(const struct option_row *row, const json_t *value, void *field,
                       struct mandor_err *err)
{
    struct spec_str text;

    int r = sink_list_from_json(value, &text.bytes, &text.len, err);
    if (r < 0)
        return r;
    r = option_no_nul(&text, err);
    if (r == 0)
        r = row->check(&text, err);
    if (r < 0) {
        free(text.bytes);
        return r;
    }
    free(((struct spec_str *)field)->bytes);
    *(struct spec_str *)field = text;
    return 0;
}

static json_t *sinks_load(const struct option_row *row, const void *field)
{
    const struct spec_str *text = field;

    return text->bytes != NULL ? sink_list_to_json(text->bytes, text->len) : json_null();
}

/* ---- bytes ---- */

static int bytes_store(const struct option_row *row, const json_t *value, void *field,
                       struct mandor_err *err)
{
    struct spec_str text;

    int r = get_bytes(row, value, &text, err);
    if (r < 0)
        return r;
    free(((struct spec_str *)field)->bytes);
    *(struct spec_str *)field = text;
    return 0;
}

static json_t *bytes_load(const struct option_row *row, const void *field)
{
    const struct spec_str *text = field;

    return text->bytes != NULL ? json_bytes(text->bytes, text->len) : json_null();
}

static bool bytes_same(const void *a, const void *b)
{
    return option_str_same(a, b);
}

static void bytes_drop(void *field)
{
    free(((struct spec_str *)field)->bytes);
    *(struct spec_str *)field = (struct spec_str){ 0 };
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

const struct option_type option_enum = {
    .from_text = option_text_from_text, .store = enum_store, .load = enum_load, .same = enum_same
};
const struct option_type option_string = { .from_text = option_text_from_text,
                                           .store = string_store,
                                           .load = string_load,
                                           .same = string_same,
                                           .drop = string_drop,
                                           .copy = string_copy };
const struct option_type option_bytes = { .from_text = bytes_from_text,
                                          .store = bytes_store,
                                          .load = bytes_load,
                                          .same = bytes_same,
                                          .drop = bytes_drop,
                                          .copy = bytes_copy };
const struct option_type option_sinks = { .from_text = bytes_from_text,
                                          .store = sinks_store,
                                          .load = sinks_load,
                                          .same = bytes_same,
                                          .drop = bytes_drop,
                                          .copy = bytes_copy };

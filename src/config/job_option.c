/* job_option.c - contract in job_option.h. */
#include "config/job_option.h"

#include <stdio.h>

#include "base/json.h"
#include "config/value.h"
#include "job/sink_list.h"
#include "job/spec.h"
#include "sink/sink.h"
#include "stream/feeder.h"

static const struct spec_option *find_option(const char *key)
{
    size_t count;
    const struct spec_option *options = spec_options(&count);

    for (size_t i = 0; i < count; i++)
        if (str_eq(options[i].key, key))
            return &options[i];
    return NULL;
}

static int put(const struct place *place, json_t *object, const char *key, json_t *adopt)
{
    return json_object_set_new(object, key, adopt) < 0 ? place_no_memory(place) : 0;
}

/* ---- values ---- */

static int read_env(const struct place *place, const struct tree *value, json_t **ret)
{
    const struct tree_item *item;
    struct place inner;

    if (value->kind != TREE_MAP)
        return place_bad(place, "expected a mapping of names to values");
    SCOPED_JSON *env = json_object();
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        SCOPED_BUF text = { 0 };
        int r = value_text(&inner, item->value, &text);
        if (r == 0)
            r = put(place, env, item->key, json_bytes(text.data, text.len));
        if (r < 0)
            return r;
    }
    *ret = STEAL(env);
    return 0;
}

/* A list of integers: [1, 2], or the command line's "1,2". */
static int read_ints_text(const struct place *place, const struct tree *value, struct buf *ret)
{
    const struct tree_item *item;
    struct place inner;

    if (value->kind != TREE_LIST)
        return value_text(place, value, ret);
    if (buf_adds(ret, "") < 0)
        return place_no_memory(place);
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        if (i > 0 && buf_adds(ret, ",") < 0)
            return place_no_memory(place);
        int r = value_text(&inner, item->value, ret);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_sink_list(const struct place *place, const struct tree *value, json_t **ret)
{
    SCOPED_JSON *list = json_array();
    const struct tree_item *item;
    struct place inner;

    if (list == NULL)
        return place_no_memory(place);
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        SCOPED_BUF text = { 0 };
        int r = value_text(&inner, item->value, &text);
        if (r < 0)
            return r;
        if (json_array_append_new(list, json_bytes(text.data, text.len)) < 0)
            return place_no_memory(place);
    }
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
                                     : value_text(place, value, &text);
        if (r < 0)
            return r;
        r = spec_value_from_text(option->key, text.data, &json, &why);
    }
    if (r < 0)
        return place_failed(place, r, &why);
    *ret = STEAL(json);
    return 0;
}

/* ---- keys ---- */

/* No key of a queue (group ""), or below "limits." or "backoff." there. */
static int unknown_key(const struct place *place, const char *key, const char *group)
{
    const char *names[PARAM_KEYS_MAX];
    char firsts[PARAM_KEYS_MAX][32]; /* "limits" of "limits.memory", or what is behind the group */
    size_t option_count, len = strlen(group);
    const struct spec_option *options = spec_options(&option_count);
    size_t count = len == 0 ? param_keys(SECTION_QUEUE, names, ARRAY_LEN(names)) : 0;
    const char *inside = len == 0 ? spec_key_in_group(key) : NULL;

    if (inside != NULL)
        return place_bad(place, "unknown key, expected '%s' in '%.*s'", strchr(inside, '.') + 1,
                         (int)strcspn(inside, "."), inside);
    for (size_t i = 0; i < option_count && count < ARRAY_LEN(names); i++) {
        if (!options[i].on_queue || strncmp(options[i].key, group, len) != 0)
            continue;
        (void)snprintf(firsts[count], sizeof firsts[count], "%.*s",
                       (int)strcspn(options[i].key + len, "."), options[i].key + len);
        names[count] = firsts[count];
        count++;
    }
    return place_unknown(place, key, names, count);
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
    json_t *object = json_object();
    const struct tree_item *item;
    struct place inner;
    char prefix[40], key[100];

    int r = put(place, defaults, group, object);
    if (r < 0)
        return r;
    if (value->kind != TREE_MAP)
        return place_bad(place, "expected a mapping");
    (void)snprintf(prefix, sizeof prefix, "%.36s.", group);
    for (size_t i = 0; (item = place_item(place, value, i, &inner)) != NULL; i++) {
        json_t *json;
        (void)snprintf(key, sizeof key, "%s%.56s", prefix, item->key);
        const struct spec_option *option = find_option(key);
        if (option == NULL)
            return unknown_key(&inner, item->key, prefix);
        r = read_option(&inner, option, item->value, &json);
        if (r == 0)
            r = put(place, object, item->key, json);
        if (r < 0)
            return r;
    }
    return 0;
}

int job_option_limits(const struct place *place, const struct param *param,
                      const struct tree *value, void *object)
{
    SCOPED_JSON *options = json_object(), *job = json_pack("{s:[s]}", "exec", "true");
    SCOPED(spec_free) struct spec *spec = NULL;
    struct mandor_err why = { 0 };

    if (options == NULL || job == NULL)
        return place_no_memory(place);
    int r = read_group(place, "limits", value, options);
    if (r < 0)
        return r;
    r = spec_from_json(job, options, &spec, &why);
    if (r < 0)
        return place_failed(place, r, &why);
    *(struct spec_limits *)(void *)((char *)object + param->offset) = spec->limits;
    return 0;
}

/* ---- where a stream leads ---- */

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
    return r < 0 ? place_failed(place, r, &why) : 0;
}

int job_option_read(const struct place *place, const struct tree_item *item, json_t *defaults)
{
    const struct spec_option *option = find_option(item->key);
    json_t *json;

    if (option == NULL && is_group(item->key))
        return read_group(place, item->key, item->value, defaults);
    if (option == NULL || strchr(item->key, '.') != NULL)
        return unknown_key(place, item->key, "");
    if (!option->on_queue)
        return place_bad(place, "belongs to a job, not to a queue");

    int r = read_option(place, option, item->value, &json);
    if (r == 0)
        r = put(place, defaults, item->key, json);
    return r < 0 ? r : check_end(place, item->key, json);
}

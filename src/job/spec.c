/* spec.c - contract in spec.h.  What one option means is in option.c; here: which options may stand where, and together. */
#include "job/spec.h"

#include <stdio.h>

#include "base/hide.h"
#include "base/json.h"
#include "base/units.h"
#include "job/option.h"
#include "job/sink_list.h"

#define NAMES_MAX 64

/* The values of one object by row; NULL = not given. */
struct given {
    const json_t *at[OPTIONS_MAX];
};

/* The part of an option's key that stands at one place: at the top ("timeout", "limits") or in a group ("memory").
 * NULL when the option is not there.  *ret_len: its length. */
static const char *name_at(const struct spec_option *option, const char *group, bool on_queue,
                           size_t *ret_len)
{
    size_t len = group != NULL ? strlen(group) : 0;

    if (on_queue && !option->on_queue)
        return NULL;
    if (group == NULL) {
        *ret_len = strcspn(option->key, ".");
        return option->key;
    }
    if (strncmp(option->key, group, len) != 0 || option->key[len] != '.')
        return NULL;
    *ret_len = strlen(option->key + len + 1);
    return option->key + len + 1;
}

/* The row of key at this place, or -ENOENT. */
static int row_at(const char *key, const char *group, bool on_queue)
{
    char path[64];
    size_t count;
    int row = -ENOENT;

    if (group != NULL)
        row = (size_t)snprintf(path, sizeof path, "%s.%s", group, key) < sizeof path
                  ? option_by_key(path)
                  : -ENOENT;
    else if (strchr(key, '.') == NULL)
        row = option_by_key(key);
    return row >= 0 && on_queue && !spec_options(&count)[row].on_queue ? -ENOENT : row;
}

static int unknown_key(const char *key, const char *place, const char *const *known, size_t count,
                       struct mandor_err *err)
{
    const char *nearest = units_nearest(key, known, count);

    if (nearest != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, "unknown key '%.60s' in %s, did you mean '%s'?",
                       key, place, nearest);
    return err_set(err, -EINVAL, FAULT_CALLER, "unknown key '%.60s' in %s", key, place);
}

const char *spec_key_in_group(const char *name)
{
    size_t count;
    const struct spec_option *options = spec_options(&count);

    for (size_t i = 0; i < count; i++) {
        const char *p = options[i].flag, *q = name;
        if (p == NULL || strchr(options[i].key, '.') == NULL)
            continue;
        if (str_eq(options[i].key, name))
            return options[i].key;
        for (; *p != '\0' && (*p == *q || (*p == '-' && *q == '_')); p++)
            q++;
        if (*p == '\0' && *q == '\0')
            return options[i].key;
    }
    return NULL;
}

/* The same, with the names that may stand at this place. */
static int unknown_option(const char *key, const char *group, bool on_queue, const char *place,
                          struct mandor_err *err)
{
    const char *known[NAMES_MAX];
    char names[NAMES_MAX][32];
    size_t count, len, n = 0;
    const struct spec_option *options = spec_options(&count);

    if (group == NULL && on_queue && option_by_key(key) >= 0)
        return err_set(err, -EINVAL, FAULT_CALLER, "key '%s' belongs to a job, not to %s", key,
                       place);
    const char *inside = group == NULL ? spec_key_in_group(key) : NULL;
    if (inside != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "unknown key '%.60s' in %s, expected '%s' in '%.*s'", key, place,
                       strchr(inside, '.') + 1, (int)strcspn(inside, "."), inside);
    for (size_t i = 0; i < count && n < NAMES_MAX; i++) {
        const char *name = name_at(&options[i], group, on_queue, &len);
        if (name == NULL)
            continue;
        (void)snprintf(names[n], sizeof names[n], "%.*s", (int)len, name);
        known[n] = names[n];
        n++;
    }
    return unknown_key(key, place, known, n, err);
}

static bool is_group(const char *name)
{
    return str_eq(name, "backoff") || str_eq(name, "limits");
}

/* Note the values of object, and of the groups in it.  A key that is not known at this place is an error. */
static int gather(const json_t *object, const char *group, bool on_queue, struct given *given,
                  struct mandor_err *err)
{
    const char *place = group != NULL ? group : on_queue ? "queue" : "job";
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object, key, value) {
        if (group == NULL && is_group(key)) {
            if (!json_is_object(value))
                return err_set(err, -EINVAL, FAULT_CALLER, "%s: expected an object", key);
            int r = gather(value, key, on_queue, given, err);
            if (r < 0)
                return r;
            continue;
        }
        int row = row_at(key, group, on_queue);
        if (row < 0)
            return unknown_option(key, group, on_queue, place, err);
        given->at[row] = value;
    }
    return 0;
}

/* env of job over that of the queue; new reference or NULL. */
static json_t *merged_env(const json_t *job, const json_t *defaults)
{
    json_t *both = json_copy((json_t *)defaults);

    if (json_object_update(both, (json_t *)job) < 0) {
        json_decref(both);
        return NULL;
    }
    return both;
}

static int store_one(int row, const json_t *own, const json_t *queues, struct spec *spec,
                     struct mandor_err *err)
{
    size_t count;
    const struct spec_option *option = &spec_options(&count)[row];
    SCOPED_JSON *both = NULL;

    if (own == NULL && queues == NULL) {
        int r = option_copy_default(row, spec);
        return r < 0 ? err_set(err, r, FAULT_HOST, "set the default of %s", option->key) : 0;
    }
    spec->given |= UINT64_C(1) << row;
    if (option->type == OPT_ENV && json_is_object(own) && json_is_object(queues)) {
        both = merged_env(own, queues);
        if (both == NULL)
            return err_set(err, -ENOMEM, FAULT_HOST, "merge env");
        own = both;
    }
    int r = option_store(row, own != NULL ? own : queues, spec, err);
    return r < 0 ? option_wrap(err, r, option->key) : 0;
}

static int check_python(const json_t *python, struct mandor_err *err)
{
    static const char *const known[] = { "code", "params", "bind_params", "packages", "runtime" };
    const json_t *packages = json_object_get(python, "packages");
    const json_t *runtime = json_object_get(python, "runtime");
    const char *key;
    json_t *value;

    if (!json_is_object(python))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "python: expected an object {\"code\": \"...\"}");
    json_object_foreach((json_t *)python, key, value) {
        size_t i = 0;
        while (i < ARRAY_LEN(known) && !str_eq(key, known[i]))
            i++;
        if (i == ARRAY_LEN(known))
            return unknown_key(key, "python", known, ARRAY_LEN(known), err);
    }
    if (!json_is_string(json_object_get(python, "code")))
        return err_set(err, -EINVAL, FAULT_CALLER, "python.code: expected the program's text");
    const json_t *bind = json_object_get(python, "bind_params");
    if (bind != NULL && !json_is_boolean(bind))
        return err_set(err, -EINVAL, FAULT_CALLER, "python.bind_params: expected true or false");
    if (json_is_true(bind) && !json_is_object(json_object_get(python, "params")))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "python.bind_params: expected params to be an object");
    if (runtime != NULL && !json_is_string(runtime))
        return err_set(err, -EINVAL, FAULT_CALLER, "python.runtime: expected a runtime's name");
    if (packages != NULL && !json_is_array(packages))
        return err_set(err, -EINVAL, FAULT_CALLER, "python.packages: expected an array of names");
    for (size_t i = 0; i < json_array_size(packages); i++)
        if (!json_is_string(json_array_get(packages, i)))
            return err_set(err, -EINVAL, FAULT_CALLER, "python.packages[%zu]: expected a name", i);
    return 0;
}

/* Exactly one of exec, pool (with data) and python. */
static int decide_kind(struct spec *spec, struct mandor_err *err)
{
    int kinds = (spec->argv != NULL) + (spec->pool != NULL) + (spec->python != NULL);

    if (kinds == 0 && spec->data != NULL) {
        spec->kind = SPEC_DATA;
        return 0;
    }
    if (kinds == 0)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "nothing to run, expected exactly one of 'exec', 'pool', 'python'");
    if (kinds > 1)
        return err_set(
            err, -EINVAL, FAULT_CALLER,
            "more than one thing to run (%s%s%s), expected exactly one of 'exec', 'pool', 'python'",
            spec->argv != NULL ? "exec" : "pool", spec->argv && spec->pool ? ", pool" : "",
            spec->python != NULL ? ", python" : "");
    if (spec->data != NULL && spec->pool == NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "data: belongs to 'pool', expected it only there");

    spec->kind = spec->argv != NULL ? SPEC_EXEC : spec->pool != NULL ? SPEC_POOL : SPEC_PYTHON;
    return spec->python != NULL ? check_python(spec->python, err) : 0;
}

/* A delay above the default maximum raises it; above a maximum that somebody wrote it is a contradiction. */
static int check_backoff(struct spec *spec, bool max_given, struct mandor_err *err)
{
    char delay[UNITS_TEXT_SIZE], max[UNITS_TEXT_SIZE];

    if (spec->backoff != BACKOFF_EXPONENTIAL || spec->backoff_delay_ms <= spec->backoff_max_ms)
        return 0;
    if (max_given)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "backoff.max: %s is shorter than backoff.delay %s, expected at least that",
                       units_print_duration(spec->backoff_max_ms, max),
                       units_print_duration(spec->backoff_delay_ms, delay));
    spec->backoff_max_ms = spec->backoff_delay_ms;
    return 0;
}

static bool may_be_shared(const char *url)
{
    return strncmp(url, "auto:", 5) == 0 || strncmp(url, "null:", 5) == 0 ||
           strncmp(url, "inherit:", 8) == 0;
}

struct others {
    const char *shown;      /* stderr's own text, where it is no list */
    const char *url, *list; /* url: of the member that is compared with those of list */
    struct mandor_err *err;
};

static int compare(void *arg, const char *member)
{
    const struct others *others = arg;
    struct sink_member parsed;

    int r = sink_member_parse(member, &parsed, others->err);
    if (r < 0)
        return r;
    if (!str_eq(parsed.url, others->url) || may_be_shared(parsed.url))
        return 0;
    SCOPED_FREE char *shown = hide_password(others->shown != NULL ? others->shown : parsed.url);
    return err_set(
        others->err, -EINVAL, FAULT_CALLER,
        "stderr: '%.120s' is where stdout goes too, expected two places, or {stream} in the name",
        shown != NULL ? shown : "?");
}

struct twice {
    const char *list, *url, *stream;
    unsigned count; /* of url in list */
    struct mandor_err *err;
};

static int count_same(void *arg, const char *member)
{
    struct twice *twice = arg;
    struct sink_member parsed;

    int r = sink_member_parse(member, &parsed, twice->err);
    twice->count += r == 0 && str_eq(parsed.url, twice->url);
    return r;
}

/* One place of a list.  There twice the second would take it from the first. */
static int check_once(void *arg, const char *member)
{
    struct twice *twice = arg;
    struct sink_member parsed;

    int r = sink_member_parse(member, &parsed, twice->err);
    if (r < 0 || may_be_shared(parsed.url))
        return r;
    twice->url = parsed.url;
    twice->count = 0;
    r = sink_list_each(twice->list, count_same, twice);
    if (r < 0 || twice->count == 1)
        return r;
    SCOPED_FREE char *shown = hide_password(parsed.url);
    return err_set(twice->err, -EINVAL, FAULT_CALLER, "%s: '%.120s' is in its list twice",
                   twice->stream, shown != NULL ? shown : "?");
}

static int check_list(const char *list, const char *stream, struct mandor_err *err)
{
    struct twice twice = { .list = list, .stream = stream, .err = err };

    return sink_list_each(list, check_once, &twice);
}

static int compare_all(void *arg, const char *member)
{
    struct others others = *(struct others *)arg;
    struct sink_member parsed;

    int r = sink_member_parse(member, &parsed, others.err);
    if (r < 0)
        return r;
    others.url = parsed.url;
    return sink_list_each(others.list, compare, &others);
}

/* Two streams to one place: the later commit would silently replace the earlier one. */
static int check_outputs(const struct spec *spec, struct mandor_err *err)
{
    SCOPED_FREE char *one = spec_expand(spec->stdout_sink.bytes, "", "", 1, "stdout", err);
    SCOPED_FREE char *other = spec_expand(spec->stderr_sink.bytes, "", "", 1, "stderr", err);
    if (one == NULL || other == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "make a job"); /* placeholders have been checked */

    int r = check_list(one, "stdout", err);
    if (r == 0)
        r = check_list(other, "stderr", err);
    if (r < 0)
        return r;
    struct others others = {
        .shown = sink_list_is(spec->stderr_sink.bytes) ? NULL : spec->stderr_sink.bytes,
        .list = other,
        .err = err,
    };
    return sink_list_each(one, compare_all, &others);
}

static const char *kind_of_json(const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    default:
        return "something else";
    }
}

/* Fill all fields of spec, which has none yet. */
static int fill(struct spec *spec, const struct given *job, const struct given *defaults,
                struct mandor_err *err)
{
    int max_row = option_by_key("backoff.max");
    bool max_given = job->at[max_row] != NULL || defaults->at[max_row] != NULL;

    int r = option_copy_numbers(spec);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "make a job");
    for (size_t row = 0; row < option_count() && r == 0; row++)
        r = store_one((int)row, job->at[row], defaults->at[row], spec, err);
    if (r == 0)
        r = check_backoff(spec, max_given, err);
    return r < 0 ? r : check_outputs(spec, err);
}

int spec_from_json(const json_t *job, const json_t *defaults, struct spec **ret,
                   struct mandor_err *err)
{
    if (!json_is_object(job))
        return err_set(err, -EINVAL, FAULT_CALLER, "a job must be a JSON object, got %s",
                       job != NULL ? kind_of_json(job) : "nothing");
    struct given own = { 0 }, queues = { 0 };
    int r = gather(job, NULL, false, &own, err);
    if (r == 0 && defaults != NULL)
        r = gather(defaults, NULL, true, &queues, err);
    if (r < 0)
        return r;
    if (own.at[option_by_key("exec")] != NULL || own.at[option_by_key("python")] != NULL)
        queues.at[option_by_key("pool")] = NULL; /* that is for jobs that do not say themselves */

    SCOPED(spec_free) struct spec *spec = calloc(1, sizeof *spec);
    if (spec == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "make a job");
    spec->magic = SPEC_MAGIC;
    r = fill(spec, &own, &queues, err);
    if (r == 0)
        r = decide_kind(spec, err);
    if (r < 0)
        return r;

    *ret = STEAL(spec);
    return 0;
}

struct spec *spec_free(struct spec *spec)
{
    if (spec == NULL)
        return NULL;
    OBJ_CHECK(spec, SPEC_MAGIC);

    for (size_t row = 0; row < option_count(); row++)
        option_drop((int)row, spec);
    OBJ_FINI(spec);
    free(spec);
    return NULL;
}

int spec_check_key(const char *key, struct mandor_err *err)
{
    return is_group(key) || row_at(key, NULL, false) >= 0
               ? 0
               : unknown_option(key, NULL, false, "job", err);
}

bool spec_is_place(const char *key)
{
    static const char *const keys[] = { "queue", "priority", "delay",    "unique",
                                        "id",    "lifo",     "attempts", "backoff" };

    size_t len = strcspn(key, ".");

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (strlen(keys[i]) == len && strncmp(keys[i], key, len) == 0)
            return true;
    return false;
}

int spec_check_defaults(const json_t *defaults, struct mandor_err *err)
{
    if (!json_is_object(defaults))
        return err_set(err, -EINVAL, FAULT_CALLER, "queue options must be an object");
    struct given own = { 0 };
    int r = gather(defaults, NULL, true, &own, err);
    if (r < 0)
        return r;

    SCOPED(spec_free) struct spec *scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "check queue options");
    scratch->magic = SPEC_MAGIC;
    return fill(scratch, &own, &(struct given){ 0 }, err);
}

int spec_check_value(const char *key, const json_t *value, struct mandor_err *err)
{
    int row = option_by_key(key);
    if (row < 0)
        return err_set(err, -ENOENT, FAULT_CALLER, "unknown key '%.60s'", key);

    SCOPED(spec_free) struct spec *scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "check a job option");
    scratch->magic = SPEC_MAGIC;
    return option_store(row, value, scratch, err);
}

int spec_value_from_text(const char *key, const char *text, json_t **ret, struct mandor_err *err)
{
    SCOPED_JSON *value = NULL;
    size_t count;
    int row = option_by_key(key);

    if (row < 0)
        return err_set(err, -ENOENT, FAULT_CALLER, "unknown key '%.60s'", key);
    if (spec_options(&count)[row].type == OPT_ARGV)
        return err_set(err, -EINVAL, FAULT_CALLER, "expected an array of strings");
    int r = option_from_text(row, text, &value, err);
    if (r == 0)
        r = spec_check_value(key, value, err);
    if (r < 0)
        return r;

    *ret = STEAL(value);
    return 0;
}

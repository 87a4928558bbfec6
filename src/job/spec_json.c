/* spec_json.c - a spec as canonical JSON, and single options put into a job object from command line text. */
#include <stdio.h>

#include "base/json.h"
#include "job/option.h"
#include "job/spec.h"

/* Set value (consumed) at row's JSON path in job.  0 or -ENOMEM. */
static int set_at(json_t *job, int row, json_t *adopt_value)
{
    size_t count;
    const char *key = spec_options(&count)[row].key, *dot = strchr(key, '.');
    char group[32];

    if (dot == NULL)
        return json_object_set_new(job, key, adopt_value) < 0 ? -ENOMEM : 0;

    (void)snprintf(group, sizeof group, "%.*s", (int)(dot - key), key);
    json_t *inner = json_object_get(job, group);
    if (!json_is_object(inner)) {
        inner = json_object();
        if (json_object_set_new(job, group, inner) < 0) {
            json_decref(adopt_value);
            return -ENOMEM;
        }
    }
    return json_object_set_new(inner, dot + 1, adopt_value) < 0 ? -ENOMEM : 0;
}

/* Does row stand in the open group ("limits")? */
static bool in_group(const char *key, const char *group, size_t group_len)
{
    return strncmp(key, group, group_len) == 0 && key[group_len] == '.';
}

/* Rows of a group stand together in options.def, so one pass opens and closes each. */
struct printer {
    struct buf text;
    const char *group; /* NULL = at the top */
    size_t group_len;
};

static int leave_group(struct printer *to)
{
    int r = to->group != NULL ? buf_add(&to->text, "}", 1) : 0;
    to->group = NULL;
    return r;
}

static int enter_group(struct printer *to, const char *group, size_t len)
{
    to->group = group;
    to->group_len = len;
    return buf_addf(&to->text, "\"%.*s\":{", (int)len, group);
}

static int print_row(struct printer *to, const char *key, const json_t *value)
{
    const char *dot = strchr(key, '.');
    int r = 0;

    if (to->group != NULL && !in_group(key, to->group, to->group_len))
        r = leave_group(to);
    if (r == 0 && to->text.data[to->text.len - 1] != '{')
        r = buf_add(&to->text, ",", 1);
    if (r == 0 && dot != NULL && to->group == NULL)
        r = enter_group(to, key, (size_t)(dot - key));
    if (r == 0)
        r = buf_add(&to->text, "\"", 1);
    if (r == 0)
        r = buf_adds(&to->text, dot != NULL ? dot + 1 : key);
    if (r == 0)
        r = buf_add(&to->text, "\":", 2);
    return r == 0 ? json_write(&to->text, value) : r;
}

static int print_rows(struct printer *to, const struct spec *spec, const struct spec *defaults)
{
    size_t count;
    const struct spec_option *options = spec_options(&count);
    int r = buf_reserve(&to->text, 250); /* most jobs are no longer */

    if (r == 0)
        r = buf_add(&to->text, "{", 1);
    for (size_t row = 0; r == 0 && row < count; row++) {
        if ((spec->given >> row & 1) == 0 && option_same((int)row, spec, defaults))
            continue;
        SCOPED_JSON *value = option_load((int)row, spec);
        r = print_row(to, options[row].key, value);
    }
    if (r == 0)
        r = leave_group(to);
    return r == 0 ? buf_add(&to->text, "}", 1) : r;
}

char *spec_to_text(const struct spec *spec)
{
    OBJ_CHECK(spec, SPEC_MAGIC);
    const struct spec *defaults = option_defaults();
    struct printer to = { .group = NULL };

    if (defaults != NULL && print_rows(&to, spec, defaults) == 0)
        return buf_steal(&to.text);
    buf_done(&to.text);
    return NULL;
}

/* --env may be given again and again: each adds a member. */
static int add_variable(json_t *job, json_t *variable)
{
    json_t *env = json_object_get(job, "env");

    if (!json_is_object(env))
        return json_object_set(job, "env", variable) < 0 ? -ENOMEM : 0;
    return json_object_update(env, variable) < 0 ? -ENOMEM : 0;
}

/* The second one makes a list of both. */
static int add_sink(json_t *job, const char *key, json_t *value)
{
    json_t *old = json_object_get(job, key);

    if (old == NULL)
        return json_object_set(job, key, value) < 0 ? -ENOMEM : 0;
    if (json_is_array(old))
        return json_array_append(old, value) < 0 ? -ENOMEM : 0;
    json_t *list = json_pack("[O, O]", old, value);
    return list == NULL || json_object_set_new(job, key, list) < 0 ? -ENOMEM : 0;
}

int spec_set_flag(json_t *job, const char *flag, const char *text, struct mandor_err *err)
{
    SCOPED_JSON *value = NULL;
    struct mandor_err why = { 0 };
    char dashed[40];
    size_t count;

    int row = option_by_flag(flag);
    if (row < 0)
        return err_set(err, -ENOENT, FAULT_CALLER, "unknown option '--%.60s'", flag);
    const struct spec_option *option = &spec_options(&count)[row];
    if (text == NULL && option->type != OPT_BOOL)
        return err_set(err, -EINVAL, FAULT_CALLER, "--%s: expected an argument %s", flag,
                       option->arg);
    int r = spec_value_from_text(option->key, text, &value, &why);
    if (r < 0) {
        if (err != NULL)
            *err = why;
        (void)snprintf(dashed, sizeof dashed, "--%s", flag);
        return option_wrap(err, r, dashed);
    }

    r = option->type == OPT_ENV     ? add_variable(job, value)
        : option->type == OPT_SINKS ? add_sink(job, option->key, value)
                                    : set_at(job, row, json_incref(value));
    return r < 0 ? err_set(err, r, FAULT_HOST, "set --%s", flag) : 0;
}

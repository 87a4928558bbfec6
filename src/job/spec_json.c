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

json_t *spec_to_json(const struct spec *spec)
{
    OBJ_CHECK(spec, SPEC_MAGIC);
    const struct spec *defaults = option_defaults();
    SCOPED_JSON *job = json_object();
    if (defaults == NULL || job == NULL)
        return NULL;

    for (size_t row = 0; row < option_count(); row++) {
        if ((spec->given >> row & 1) == 0 && option_same((int)row, spec, defaults))
            continue;
        if (set_at(job, (int)row, option_load((int)row, spec)) < 0)
            return NULL;
    }
    return STEAL(job);
}

/* --env may be given again and again: each adds a member. */
static int add_variable(json_t *job, json_t *variable)
{
    json_t *env = json_object_get(job, "env");

    if (!json_is_object(env))
        return json_object_set(job, "env", variable) < 0 ? -ENOMEM : 0;
    return json_object_update(env, variable) < 0 ? -ENOMEM : 0;
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

    r = option->type == OPT_ENV ? add_variable(job, value) : set_at(job, row, json_incref(value));
    return r < 0 ? err_set(err, r, FAULT_HOST, "set --%s", flag) : 0;
}

/* target.c - contract in target.h. */
#include "redis/target.h"

#include <stdio.h>

#include "base/units.h"

static int bad(const struct target *target, struct mandor_err *err, const char *what)
{
    return err_set(err, -EINVAL, FAULT_CALLER, "'%s': %s",
                   target->url.text != NULL ? target->url.text : "redis:", what);
}

static int read_kind(struct target *target, struct mandor_err *err)
{
    const char *stream = redis_url_param(&target->url, "stream");
    const char *key = redis_url_param(&target->url, "key");
    const char *hash = redis_url_param(&target->url, "hash");

    target->field = redis_url_param(&target->url, "field");
    if ((stream != NULL) + (key != NULL) + (hash != NULL) != 1)
        return bad(target, err, "expected one of ?stream=KEY, ?key=KEY and ?hash=KEY&field=F");
    target->kind = stream != NULL ? TARGET_STREAM : key != NULL ? TARGET_KEY : TARGET_HASH;
    target->key = stream != NULL ? stream : key;
    if (target->key == NULL)
        target->key = hash != NULL ? hash : "";
    if (target->key[0] == '\0')
        return bad(target, err, "expected the name of a key");
    if ((target->field != NULL) != (hash != NULL))
        return bad(target, err, "expected hash=KEY and field=F together");
    return 0;
}

static int read_number(const struct target *target, const char *name, int64_t *ret,
                       struct mandor_err *err)
{
    const char *text = redis_url_param(&target->url, name);

    if (text == NULL)
        return 0;
    if (target->kind != TARGET_STREAM)
        return bad(target, err, "max_pending and maxlen are for ?stream=KEY");
    int r = units_parse_int(text, 1, INT64_C(1) << 40, ret, err);
    return r < 0 ? err_wrap(err, r, "'%s': %s", target->url.text, name) : 0;
}

/* A key with a tag of its own keeps it; in one without, braces make the whole key the tag. */
static char *tag(const char *key)
{
    const char *open = strchr(key, '{'), *close = open == NULL ? NULL : strchr(open, '}');
    char *tagged = NULL;

    if (close != NULL && close > open + 1)
        return strdup(key);
    return asprintf(&tagged, "{%s}", key) < 0 ? NULL : tagged;
}

int target_parse(const char *url, struct target *ret, struct mandor_err *err)
{
    static const char *const own[] = { "stream", "key",         "hash",   "field",
                                       "group",  "max_pending", "maxlen", "job" };

    *ret = (struct target){ 0 };
    int r = redis_url_parse(url, &ret->url, err);
    if (r == 0)
        r = redis_url_check_params(&ret->url, own, ARRAY_LEN(own), err);
    if (r == 0)
        r = read_kind(ret, err);
    if (r == 0)
        r = read_number(ret, "max_pending", &ret->max_pending, err);
    if (r == 0)
        r = read_number(ret, "maxlen", &ret->maxlen, err);
    if (r < 0)
        return r;
    ret->group = redis_url_param(&ret->url, "group");
    ret->tagged = tag(ret->key);
    return ret->tagged == NULL ? err_set(err, -ENOMEM, FAULT_HOST, "read '%s'", ret->url.text) : 0;
}

void target_done(struct target *target)
{
    redis_url_done(&target->url);
    free(target->tagged);
    *target = (struct target){ 0 };
}

char *target_own_key(const struct target *target, const char *what, const char *job)
{
    char *key = NULL;

    return asprintf(&key, "%s:mandor:%s:%s", target->tagged, what, job) < 0 ? NULL : key;
}

/* job.c - contract in job.h. */
#include "cli/job.h"

#include "base/buf.h"
#include "base/json.h"
#include "job/sink_list.h"
#include "sink/sink.h"
#include "stream/feeder.h"

static const char *const url_keys[] = { "stdin", "stdout", "stderr" };

int job_set_exec(json_t *job, char *const *argv, size_t count)
{
    json_t *exec = json_array();
    if (exec == NULL)
        return -ENOMEM;

    for (size_t i = 0; i < count; i++)
        if (json_array_append_new(exec, json_bytes(argv[i], strlen(argv[i]))) < 0) {
            json_decref(exec);
            return -ENOMEM;
        }
    return json_object_set_new(job, "exec", exec) < 0 ? -ENOMEM : 0;
}

/* ---- paths ---- */

/* Sinks and stdin are templates: a brace of the current directory's name must stay one. */
static int add_directory(struct buf *buf, const char *dir, bool is_template)
{
    int r = 0;

    for (const char *p = dir; r == 0 && *p != '\0'; p++)
        r = is_template && *p == '{' ? buf_adds(buf, "{{") : buf_add(buf, p, 1);
    if (r == 0 && (dir[0] == '\0' || dir[strlen(dir) - 1] != '/'))
        r = buf_adds(buf, "/");
    return r;
}

/* What a path stands behind in this option, or NULL when the option holds none. */
static const char *path_prefix(const char *key)
{
    for (size_t i = 0; i < ARRAY_LEN(url_keys); i++)
        if (str_eq(url_keys[i], key))
            return "file:";
    return str_eq(key, "cwd") ? "" : NULL;
}

int job_absolute(const char *key, const char *text, char **ret, struct mandor_err *err)
{
    const char *prefix = path_prefix(key);
    SCOPED_BUF absolute = { .data = NULL };
    struct sink_member member = { .url = text };
    struct mandor_err unused;

    if (prefix != NULL && str_eq(prefix, "file:") && sink_member_parse(text, &member, &unused) < 0)
        return 0; /* it will be refused */
    if (prefix == NULL || strncmp(member.url, prefix, strlen(prefix)) != 0)
        return 0;
    const char *path = member.url + strlen(prefix);
    if (path[0] == '/' || path[0] == '\0')
        return 0;

    char *dir = getcwd(NULL, 0);
    if (dir == NULL)
        return err_set(err, -errno, FAULT_HOST, "find the current directory");
    while (strncmp(path, "./", 2) == 0)
        path += 2;
    int r = buf_add(&absolute, text, (size_t)(member.url - text));
    if (r == 0)
        r = buf_adds(&absolute, prefix);
    if (r == 0)
        r = add_directory(&absolute, dir, prefix[0] != '\0');
    if (r == 0 && !str_eq(path, "."))
        r = buf_adds(&absolute, path);
    free(dir);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "make '%s' absolute", key);
    *ret = buf_steal(&absolute);
    return 0;
}

int job_default_cwd(json_t *job, struct mandor_err *err)
{
    if (json_object_get(job, "cwd") != NULL)
        return 0;

    char *dir = getcwd(NULL, 0);
    if (dir == NULL)
        return err_set(err, -errno, FAULT_HOST, "find the current directory");
    int r = json_object_set_new(job, "cwd", json_bytes(dir, strlen(dir)));
    free(dir);
    return r < 0 ? err_set(err, -ENOMEM, FAULT_HOST, "set the working directory") : 0;
}

/* ---- checks ---- */

static bool is_scheme(const char *url, const char *scheme)
{
    return strncmp(url, scheme, strlen(scheme)) == 0;
}

struct sink_check {
    const char *key;
    bool queued;
    struct mandor_err *err;
};

static int check_member(void *arg, const char *text)
{
    const struct sink_check *check = arg;
    const char *key = check->key;
    bool queued = check->queued;
    struct mandor_err *err = check->err;
    struct sink_member member;

    int r = sink_member_parse(text, &member, err);
    if (r < 0)
        return err_wrap(err, r, "'%s'", key);
    const char *url = member.url;
    if (queued && is_scheme(url, "inherit:"))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'%s': 'inherit:' is only for 'mandor run', a queued job has no terminal",
                       key);
    if (!queued && is_scheme(url, "auto:"))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'%s': 'auto:' keeps output in a queue, and 'mandor run' has none: expected "
                       "file:PATH, null: or inherit:",
                       key);
    r = sink_check_url(url, err);
    return r < 0 ? err_wrap(err, r, "'%s'", key) : 0;
}

static int check_sink(const char *key, const char *url, bool queued, struct mandor_err *err)
{
    struct sink_check check = { .key = key, .queued = queued, .err = err };

    return url == NULL ? 0 : sink_list_each(url, check_member, &check);
}

static int check(const struct spec *spec, bool queued, struct mandor_err *err)
{
    int r = check_sink("stdout", spec->stdout_sink.bytes, queued, err);
    if (r == 0)
        r = check_sink("stderr", spec->stderr_sink.bytes, queued, err);
    if (r == 0 && spec->stdin_src.bytes != NULL) {
        r = feeder_check_url(spec->stdin_src.bytes, err);
        if (r < 0)
            return err_wrap(err, r, "'stdin'");
    }
    return r;
}

int job_check(const struct spec *spec, struct mandor_err *err)
{
    return check(spec, true, err);
}

int job_check_run(const struct spec *spec, struct mandor_err *err)
{
    return check(spec, false, err);
}

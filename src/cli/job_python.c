/* job_python.c - a Python job from the command line: code from a file, parameters as JSON.  Contract in job.h. */
#include <fcntl.h>

#include "base/buf.h"
#include "base/json.h"
#include "cli/job.h"

#define CODE_MAX ((size_t)8 << 20) /* bytes */

static int read_code(const char *file, struct buf *ret, struct mandor_err *err)
{
    bool from_stdin = str_eq(file, "-");
    int fd = from_stdin ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : 1;
    int r = 0;

    while (r == 0 && n > 0 && ret->len <= CODE_MAX) {
        r = buf_reserve(ret, (size_t)64 << 10);
        n = r < 0 ? 0 : RETRY_EINTR(read(fd, ret->data + ret->len, (size_t)64 << 10));
        ret->len += n > 0 ? (size_t)n : 0;
    }
    if (n < 0)
        r = err_set(err, -EINVAL, FAULT_CALLER, "--python: read '%.100s': %s", file,
                    strerrordesc_np(errno));
    else if (r < 0)
        (void)err_set(err, r, FAULT_HOST, "read '%.100s'", file);
    else if (ret->len > CODE_MAX)
        r = err_set(err, -EINVAL, FAULT_CALLER,
                    "--python: '%.100s' is longer than %zu bytes, is it the right file?", file,
                    CODE_MAX);
    if (fd >= 0 && !from_stdin)
        (void)close(fd);
    return r;
}

static int code_of(const char *file, json_t **ret, struct mandor_err *err)
{
    SCOPED_BUF code = { .data = NULL };
    int r = read_code(file, &code, err);

    if (r < 0)
        return r;
    *ret = json_bytes(code.data != NULL ? code.data : "", code.len);
    if (*ret == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read '%.100s'", file);
    if (json_is_string(*ret))
        return 0;
    json_decref(*ret);
    return err_set(err, -EINVAL, FAULT_CALLER, "--python: '%.100s' is no UTF-8 text without NUL",
                   file);
}

int job_set_python(json_t *job, const char *file, const char *params, bool bind_params,
                   const char *runtime, struct mandor_err *err)
{
    json_t *code = NULL, *python = json_object();
    struct mandor_err why = { 0 };
    int r = code_of(file, &code, err);

    if (r == 0 && json_object_set_new(python, "code", code) < 0)
        r = err_set(err, -ENOMEM, FAULT_HOST, "make the job");
    if (r == 0 && params != NULL) {
        json_t *value = NULL;
        r = json_parse(params, strlen(params), &value, &why);
        if (r < 0)
            r = err_set(err, r, why.fault, "--params: %.200s", why.msg);
        else if (json_object_set_new(python, "params", value) < 0)
            r = err_set(err, -ENOMEM, FAULT_HOST, "make the job");
    }
    if (r == 0 && bind_params && json_object_set_new(python, "bind_params", json_true()) < 0)
        r = err_set(err, -ENOMEM, FAULT_HOST, "make the job");
    if (r == 0 && runtime != NULL &&
        json_object_set_new(python, "runtime", json_string(runtime)) < 0)
        r = err_set(err, -EINVAL, FAULT_CALLER, "--runtime: not UTF-8");
    if (r == 0 && json_object_set(job, "python", python) < 0)
        r = err_set(err, -ENOMEM, FAULT_HOST, "make the job");
    json_decref(python);
    return r;
}

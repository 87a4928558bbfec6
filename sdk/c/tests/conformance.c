/* conformance.c - the worker that tests/lib/pool_peer.py drives: data names what to do. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mandor/worker.h>

static char *member(const char *json, const char *key)
{
    size_t len;
    const char *value = mandor_json_get(json, key, &len);

    return value == NULL ? NULL : strndup(value, len);
}

static char *string_member(const char *json, const char *key)
{
    size_t len;
    const char *value = mandor_json_get(json, key, &len);
    ssize_t size = value == NULL ? -1 : mandor_json_unquote(value, len, NULL, 0);
    char *text = size < 0 ? NULL : malloc((size_t)size + 1);

    if (text != NULL)
        (void)mandor_json_unquote(value, len, text, (size_t)size + 1);
    return text;
}

static int result_count(struct mandor_job *job, size_t bytes)
{
    char text[64];

    (void)snprintf(text, sizeof text, "{\"bytes\": %zu}", bytes);
    return mandor_worker_result(job, text);
}

/* {"op": "echo"}: stdin to stdout */
static int do_echo(struct mandor_job *job, const char *data)
{
    char bytes[5000];
    size_t count = 0;
    ssize_t n;

    (void)data;
    while ((n = mandor_worker_read(job, bytes, sizeof bytes)) > 0) {
        int r = mandor_worker_write(job, MANDOR_WORKER_STDOUT, bytes, (size_t)n);
        if (r < 0)
            return r;
        count += (size_t)n;
    }
    return n < 0 ? (int)n : result_count(job, count);
}

/* {"op": "emit", "bytes": N}: N bytes on stdout, i * 7 mod 251, and "N bytes" on stderr */
static int do_emit(struct mandor_job *job, const char *data)
{
    char *number = member(data, "bytes");
    const size_t count = number == NULL ? 0 : strtoul(number, NULL, 10);
    unsigned char bytes[3001];
    char words[40];
    int r = 0;

    free(number);
    for (size_t at = 0, n; at < count && r == 0; at += n) {
        for (n = 0; n < sizeof bytes && at + n < count; n++)
            bytes[n] = (unsigned char)((at + n) * 7 % 251);
        r = mandor_worker_write(job, MANDOR_WORKER_STDOUT, bytes, n);
    }
    if (r == 0 && (r = mandor_worker_end(job, MANDOR_WORKER_STDOUT)) == 0) {
        (void)snprintf(words, sizeof words, "%zu bytes", count);
        r = mandor_worker_write(job, MANDOR_WORKER_STDERR, words, strlen(words));
    }
    return r < 0 ? r : result_count(job, count);
}

/* {"op": "result", "value": X} */
static int do_result(struct mandor_job *job, const char *data)
{
    char *value = member(data, "value");
    int r = mandor_worker_result(job, value == NULL ? "null" : value);

    free(value);
    return r;
}

/* {"op": "error", "message": M, "code": N, "retry": B} */
static int do_error(struct mandor_job *job, const char *data)
{
    char *message = string_member(data, "message"), *code = member(data, "code"),
         *retry = member(data, "retry");
    int r =
        mandor_worker_fail_with(job, &(struct mandor_worker_failure){
                                         .message = message == NULL ? "" : message,
                                         .code = code == NULL ? 0 : atoi(code),
                                         .no_retry = retry != NULL && strcmp(retry, "false") == 0,
                                     });

    free(message);
    free(code);
    free(retry);
    return r;
}

/* {"op": "wait"}: until cancelled; stdin never comes */
static int do_wait(struct mandor_job *job, const char *data)
{
    char byte;

    (void)data;
    (void)mandor_worker_progress(job, "\"waiting\"");
    while (!mandor_worker_cancelled(job)) {
        ssize_t n = mandor_worker_read(job, &byte, 1);
        if (n < 0)
            return (int)n;
    }
    return -ECANCELED;
}

/* {"op": "tell", "progress": X, "text": T} */
static int do_tell(struct mandor_job *job, const char *data)
{
    char *progress = member(data, "progress"), *text = string_member(data, "text");
    int r = mandor_worker_progress(job, progress == NULL ? "null" : progress);

    if (r == 0)
        r = mandor_worker_log(job, "info", text == NULL ? "" : text);
    if (r == 0)
        r = mandor_worker_log(NULL, NULL, "about the worker");
    free(progress);
    free(text);
    return r;
}

/* {"op": "print", "text": T}: on descriptors 1 and 2 */
static int do_print(struct mandor_job *job, const char *data)
{
    char *text = string_member(data, "text");

    (void)job;
    (void)fputs(text == NULL ? "" : text, stdout);
    (void)fflush(stdout);
    (void)fputs(text == NULL ? "" : text, stderr);
    free(text);
    return 0;
}

/* {"op": "info"}: what the job is */
static int do_info(struct mandor_job *job, const char *data)
{
    char id[200], queue[200], result[1000];

    (void)data;
    (void)mandor_json_quote(mandor_worker_id(job), id, sizeof id);
    (void)mandor_json_quote(mandor_worker_queue(job), queue, sizeof queue);
    (void)snprintf(result, sizeof result,
                   "{\"id\": %s, \"queue\": %s, \"attempt\": %lld, \"timeout_ms\": %lld}", id,
                   queue, (long long)mandor_worker_attempt(job),
                   (long long)mandor_worker_timeout_ms(job));
    return mandor_worker_result(job, result);
}

/* {"op": "bye"}: no more jobs after this one */
static int do_bye(struct mandor_job *job, const char *data)
{
    (void)job;
    (void)data;
    return mandor_worker_bye("enough");
}

static const struct {
    const char *name;
    int (*run)(struct mandor_job *job, const char *data);
} ops[] = {
    { "bye", do_bye },       { "echo", do_echo }, { "emit", do_emit },
    { "error", do_error },   { "info", do_info }, { "print", do_print },
    { "result", do_result }, { "tell", do_tell }, { "wait", do_wait },
};

static int handle(struct mandor_job *job, void *arg)
{
    const char *data = mandor_worker_data(job);
    char *op = string_member(data, "op");
    int r = -ENOSYS;

    (void)arg;
    for (size_t i = 0; op != NULL && i < sizeof ops / sizeof ops[0]; i++)
        if (strcmp(ops[i].name, op) == 0)
            r = ops[i].run(job, data);
    free(op);
    return r;
}

int main(void)
{
    const struct mandor_worker_options options = { .name = "conformance", .credit = 4096 };

    return mandor_worker_run_with(&options, handle, NULL) == 0 ? 0 : 1;
}

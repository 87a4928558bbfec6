/* source.c - stdin from s3:, http: and https:, by GET: contract in stream/source.h.  A connection that breaks in the middle is made
 * again for the rest (s3_request_stream()). */
#include "stream/source.h"

#include "curl/parts.h"
#include "curl/s3.h"

struct source {
    struct web *web;
    struct s3_place *place;
    struct s3_request *request;
    struct source_events events;
    void *arg;
};

static void source_free(struct source *source)
{
    s3_request_drop(source->request);
    s3_place_unref(source->place);
    web_put(source->web);
    free(source);
}

static bool on_body(void *arg, const void *bytes, size_t len)
{
    struct source *source = arg;

    return source->events.on_bytes(source->arg, bytes, len);
}

static void on_done(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct source *source = s3_request_arg(request);

    source->events.on_end(source->arg, result, err);
}

static int start(struct source *source, const char *url, struct mandor_err *err)
{
    bool is_s3 = strncmp(url, "s3:", 3) == 0;
    int r = is_s3 ? s3_place_new(url + 3, &sink_settings()->s3, &source->place, err) : 0;

    if (r < 0)
        return r;
    source->request = s3_request_new(source->web, source->place, "GET", source, err);
    if (source->request == NULL)
        return -ENOMEM;
    if (!is_s3 && s3_request_plain(source->request, url) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "read by HTTP");
    s3_request_stream(source->request, on_body);
    s3_request_start(source->request, NULL, on_done);
    return 0;
}

static int source_open(uv_loop_t *loop, const char *url, bool follow,
                       const struct source_events *events, void *arg, struct source **ret,
                       struct mandor_err *err)
{
    struct source *source = calloc(1, sizeof *source);
    if (source == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read by HTTP");

    source->events = *events;
    source->arg = arg;
    source->web = web_get(loop, err);
    int r = source->web == NULL ? -ENOMEM : start(source, url, err);
    if (r < 0)
        source_free(source);
    else
        *ret = source;
    return r;
}

static void source_resume(struct source *source)
{
    s3_request_resume(source->request);
}

const struct source_ops source_web = { .open = source_open,
                                       .resume = source_resume,
                                       .close = source_free };

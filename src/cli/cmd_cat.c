/* cmd_cat.c - `mandor cat`: what a sink has been given, put together again and checked. */
#include <fcntl.h>
#include <stdio.h>

#include "base/file.h"
#include "base/hide.h"
#include "base/log.h"
#include "base/module.h"
#include "cli/cli.h"
#include "config/config.h"
#include "sink/url.h"
#include "stream/source.h"

struct cat {
    uv_loop_t loop;
    const struct source_ops *ops;
    struct source *source;
    uv_idle_t idle; /* resumes: not from inside of on_bytes */
    bool ended;
    int write_error;  /* -errno; the rest is not wanted any more */
    bool reader_gone; /* EPIPE: end quietly */
    int result;
    struct mandor_err err;
};

/* 0, or -errno with cat->err.  Blocks as long as the reader likes. */
static int put(struct cat *cat, const void *bytes, size_t len)
{
    int r = file_write_all(STDOUT_FILENO, bytes, len);

    cat->reader_gone = r == -EPIPE;
    return r < 0 ? err_set(&cat->err, r, FAULT_HOST, "write to standard output") : 0;
}

static void on_idle_closed(uv_handle_t *handle)
{
    (void)handle;
}

static void stop(struct cat *cat)
{
    if (cat->ended)
        return;
    cat->ended = true;
    cat->ops->close(STEAL(cat->source));
    uv_close((uv_handle_t *)&cat->idle, on_idle_closed);
}

static void on_idle(uv_idle_t *idle)
{
    struct cat *cat = CONTAINER_OF(idle, struct cat, idle);

    cat->result = cat->write_error;
    stop(cat);
}

static bool on_bytes(void *arg, const void *bytes, size_t len)
{
    struct cat *cat = arg;

    if (cat->write_error == 0)
        cat->write_error = put(cat, bytes, len);
    if (cat->write_error < 0)
        (void)uv_idle_start(&cat->idle, on_idle);
    return cat->write_error == 0;
}

static void on_end(void *arg, int result, const struct mandor_err *err)
{
    struct cat *cat = arg;

    cat->result = result;
    if (result < 0)
        cat->err = *err;
    if (result == -ENOENT)
        cat->err.fault = FAULT_CALLER; /* not found */
    stop(cat);
}

static int cat_remote(struct cat *cat, const char *url, bool follow)
{
    static const struct source_events events = { .on_bytes = on_bytes, .on_end = on_end };

    cat->ops = module_part("source", url, &cat->err);
    if (cat->ops == NULL)
        return cat->err.code;
    int r = uv_loop_init(&cat->loop);
    if (r < 0)
        return err_set(&cat->err, r, FAULT_HOST, "start");
    (void)uv_idle_init(&cat->loop, &cat->idle);
    r = cat->ops->open(&cat->loop, url, follow, &events, cat, &cat->source, &cat->err);
    if (r < 0) {
        cat->ended = true;
        uv_close((uv_handle_t *)&cat->idle, on_idle_closed);
    }
    (void)uv_run(&cat->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&cat->loop);
    return r < 0 ? r : cat->result;
}

static int cat_file(struct cat *cat, const char *path)
{
    SCOPED_FD fd = open(path, O_RDONLY | O_CLOEXEC);
    static char bytes[256 << 10];
    ssize_t n;
    int r = 0;

    if (fd < 0) {
        r = err_set(&cat->err, -errno, FAULT_HOST, "open '%s'", path);
        if (r == -ENOENT)
            cat->err.fault = FAULT_CALLER;
        return r;
    }
    while ((n = RETRY_EINTR(read(fd, bytes, sizeof bytes))) > 0) {
        r = put(cat, bytes, (size_t)n);
        if (r < 0)
            return r;
    }
    return n < 0 ? err_set(&cat->err, -errno, FAULT_HOST, "read '%s'", path) : 0;
}

int cmd_cat(struct cli *cli)
{
    const char *url = cli->args[0];
    struct cat cat = { .result = 0 };
    struct config *config = NULL;
    int r;

    log_setup(LOG_LOGFMT, LOG_WARN);
    if (strncmp(url, "file:", 5) == 0) {
        r = cat_file(&cat, url + 5);
        return r < 0 && !cat.reader_gone ? cli_fail(cli, &cat.err) : EXIT_OK;
    }
    r = sink_url_check(url, &cat.err);
    if (r == -ENOENT) {
        SCOPED_FREE char *shown = hide_password(url);
        r = err_set(&cat.err, -EINVAL, FAULT_CALLER,
                    "'%s': expected file:PATH, s3:, http:, https:, redis: or memcached:",
                    shown != NULL ? shown : "?");
    }
    if (r == 0)
        r = config_load(cli->config_path, &config, &cat.err);
    if (r == 0) {
        sink_settings_set(&config->sinks);
        r = cat_remote(&cat, url, cli_flag(cli, "follow"));
        sink_settings_set(NULL);
    }
    config_free(config);
    return r < 0 && !cat.reader_gone ? cli_fail(cli, &cat.err) : EXIT_OK;
}

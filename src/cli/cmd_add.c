/* cmd_add.c - `mandor add`: one job from the command line, one a line of NDJSON, or one a line of values. */
#include <fcntl.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/intake.h"
#include "cli/job.h"
#include "cli/lines.h"
#include "cli/out.h"

#define PROGRESS_EVERY_MS 100
#define PLACE             "{}"

struct adder {
    struct cli *cli;
    struct client *client;
    struct intake *intake;
    const char *source; /* FILE of "FILE:LINE: …" */
    size_t added, existing, bad;
    bool many;     /* from --from or --each */
    bool warned;   /* that nobody serves the queue */
    bool progress; /* stderr is a terminal and stdout is not */
    int64_t told_ms;
};

/* ---- what comes back ---- */

static void on_added(const char *id, bool existing, void *arg)
{
    struct adder *adder = arg;

    adder->added++;
    adder->existing += existing;
    if (existing && !adder->many)
        cli_warn(adder->cli, "nothing added: job %s is there already", id);
    if (!adder->cli->json) {
        out_line("%s", id);
        return;
    }
    json_t *json = json_pack("{s:s, s:b}", "id", id, "existing", (int)existing);
    if (json == NULL || out_json(json) < 0)
        cli_warn(adder->cli, "job %s was added, but there is no memory to print it", id);
    json_decref(json);
}

static void tell_progress(struct adder *adder, bool last)
{
    int64_t now_ms = clock_mono_ms();

    if (!adder->progress || (!last && now_ms - adder->told_ms < PROGRESS_EVERY_MS))
        return;
    adder->told_ms = now_ms;
    (void)fprintf(stderr, "\r\033[Kadded %zu jobs%s", adder->added, last ? "\n" : "");
}

/* The configuration names queues, and this is none of them. */
static bool left_out(const struct config *config, const char *queue)
{
    return config->queue_count > 0 && config_queue(config, queue)->name == NULL;
}

static void on_batch(bool served, void *arg)
{
    struct adder *adder = arg;
    const struct config *config = adder->client->config;
    const char *named = json_string_value(json_object_get(adder->cli->job, "queue"));
    const char *queue = named != NULL ? named : "default";

    out_flush();
    tell_progress(adder, false);
    if (served || adder->warned)
        return;
    adder->warned = true;
    if (cli_text(adder->cli, "from") != NULL && named == NULL)
        cli_warn(adder->cli, "no live worker serves all of these queues; 'mandor work' starts one");
    else if (left_out(config, queue))
        cli_warn(adder->cli,
                 "no live worker serves queue '%s', and it is not one of those in '%.120s'; "
                 "'mandor work --queue %s' starts one",
                 queue, config->path, queue);
    else
        cli_warn(adder->cli, "no live worker serves queue '%s'; 'mandor work' starts one", queue);
}

/* ---- one job ---- */

static const struct config_queue *queue_of(const struct adder *adder, const json_t *job)
{
    const char *queue = json_string_value(json_object_get(job, "queue"));

    return config_queue(adder->client->config, queue != NULL ? queue : "default");
}

/* Data alone are enough where something says what is run with them: on a shared broker the worker's configuration, else ours. */
static int check_said(const struct adder *adder, const json_t *job, struct mandor_err *err)
{
    const struct binding binding = config_binding(adder->client->config, queue_of(adder, job));
    const char *queue = json_string_value(json_object_get(job, "queue"));

    if (json_object_get(job, "data") == NULL || json_object_get(job, "exec") != NULL ||
        json_object_get(job, "pool") != NULL || json_object_get(job, "python") != NULL ||
        binding_is_bound(&binding) || broker_is_shared(adder->client->url))
        return 0;
    return err_set(err, -EINVAL, FAULT_CALLER,
                   "nothing to run: expected 'exec', 'pool' or 'python' beside 'data', or a queue "
                   "that is bound to one in the configuration, which '%.60s' is not",
                   queue != NULL ? queue : "default");
}

/* A job that goes to a broker where nobody looks for its queue would wait for ever. */
static int check_place(const struct adder *adder, const json_t *job, struct mandor_err *err)
{
    const struct config_queue *queue = queue_of(adder, job);

    if (adder->cli->broker != NULL || queue->broker == NULL ||
        str_eq(queue->broker, adder->client->url))
        return 0;
    if (!adder->client->chosen) /* `work` looks for it where the configuration says */
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "queue '%.60s' has a broker of its own in '%.120s', which is not the one of "
                       "$MANDOR_BROKER: unset that, or name a broker with --broker",
                       queue->name, adder->client->config->path);
    return err_set(err, -EINVAL, FAULT_CALLER,
                   "queue '%.60s' is at another broker: name it with --queue, or that broker with "
                   "--broker",
                   queue->name);
}

/* Options that have no place in the message would be lost without a word. */
static int check_room(const struct adder *adder, const json_t *job, struct mandor_err *err)
{
    const char *key;
    json_t *value;

    if (!broker_has_bare_data(adder->client->broker) || json_object_get(job, "exec") != NULL)
        return 0;
    json_object_foreach((json_t *)(uintptr_t)job, key, value) {
        if (spec_is_place(key) || str_eq(key, "data") || str_eq(key, "pool") ||
            str_eq(key, "python"))
            continue;
        int r = spec_check_key(key, err);
        return r < 0 ? r
                     : err_set(err, -EINVAL, FAULT_CALLER,
                               "'%.60s': a job of BullMQ that brings no command is its data alone: "
                               "set it on the queue in the worker's configuration",
                               key);
    }
    return 0;
}

/* With what the configuration says of the job's queue.  What may not come with a message of a shared broker is left out: the
 * worker has a configuration of its own. */
static int put(struct adder *adder, const json_t *job, size_t weight, struct mandor_err *err)
{
    json_t *defaults = queue_of(adder, job)->defaults;
    SCOPED_JSON *kept = NULL;

    int r = check_said(adder, job, err);
    if (r == 0)
        r = check_place(adder, job, err);
    if (r == 0)
        r = check_room(adder, job, err);
    if (r < 0)
        return r;
    if (broker_is_shared(adder->client->url)) {
        kept = binding_harmless(defaults);
        if (kept == NULL)
            return err_set(err, -ENOMEM, FAULT_HOST, "make a job");
        defaults = kept;
    }
    return intake_add(adder->intake, job, defaults, weight, err);
}

/* Does the command line itself say this job option? */
static bool says(const struct cli *cli, const char *key)
{
    return json_object_get(cli->job, key) != NULL;
}

static int add_one(struct adder *adder, struct mandor_err *err)
{
    const struct cli *cli = adder->cli;
    const char *python = cli_text(cli, "python");

    if (python != NULL) {
        int r = job_set_python(cli->job, python, cli_text(cli, "params"),
                               cli_flag(cli, "bind-params"), cli_text(cli, "runtime"), err);
        if (r < 0)
            return r;
    }
    if (cli->arg_count > 0 && job_set_exec(cli->job, cli->args, cli->arg_count) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "make the job");
    return put(adder, cli->job, 0, err);
}

/* ---- many jobs ---- */

/* A job that is no good: told with its place, the others go on.  Returns 0, or the error when it was not the job's. */
static int skip_bad(struct adder *adder, size_t line, int r, const struct mandor_err *err)
{
    if (r == 0 || err->fault != FAULT_CALLER)
        return r;

    SCOPED_BUF safe = { .data = NULL };
    adder->bad++;
    if (text_escape(&safe, err->msg, strlen(err->msg)) < 0)
        return -ENOMEM;
    out_flush();
    (void)fprintf(stderr, "%s%s:%zu: %s\n", adder->progress ? "\r\033[K" : "", adder->source, line,
                  safe.data);
    return 0;
}

typedef int line_fn(struct adder *adder, const char *line, size_t len, struct mandor_err *err);

static int add_lines(struct adder *adder, int fd, char delim, line_fn *add_line,
                     struct mandor_err *err)
{
    struct lines lines;
    int r = 0;

    lines_init(&lines, fd, delim, LINES_MAX);
    while (r == 0) {
        const char *line;
        size_t len;
        enum lines_result result = lines_next(&lines, &line, &len);

        if (result == LINES_END)
            break;
        if (result == LINES_WANT) {
            r = intake_await(adder->intake, fd, err);
            if (r == 0 && (r = lines_fill(&lines)) < 0)
                (void)err_set(err, r, FAULT_HOST, "read '%s'", adder->source);
            continue;
        }
        r = result == LINES_TOO_LONG ? err_set(err, -EINVAL, FAULT_CALLER,
                                               "the line is longer than %zu bytes", LINES_MAX)
                                     : add_line(adder, line, len, err);
        r = skip_bad(adder, lines.number, r, err);
    }
    lines_done(&lines);
    return r;
}

static bool is_blank(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (strchr(" \t\r", line[i]) == NULL || line[i] == '\0')
            return false;
    return true;
}

/* Options of the command line fill what the line leaves out. */
static json_t *fill(const json_t *options, json_t *job)
{
    if (json_object_size(options) == 0 || !json_is_object(job))
        return json_incref(job);

    json_t *filled = json_deep_copy(options);
    if (filled == NULL || json_object_update_recursive(filled, job) < 0) {
        json_decref(filled);
        return NULL;
    }
    return filled;
}

static int add_ndjson(struct adder *adder, const char *line, size_t len, struct mandor_err *err)
{
    json_t *given = NULL;

    if (is_blank(line, len))
        return 0;
    int r = json_parse(line, len, &given, err);
    if (r < 0)
        return r;
    json_t *job = fill(adder->cli->job, given);
    r = job != NULL ? put(adder, job, len, err) : err_set(err, -ENOMEM, FAULT_HOST, "read a job");
    json_decref(job);
    json_decref(given);
    return r;
}

static int add_from(struct adder *adder, struct mandor_err *err)
{
    const char *path = cli_text(adder->cli, "from");
    int fd = str_eq(path, "-") ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) /* what was asked for is not there: the caller's affair */
        return err_set(err, -EINVAL, FAULT_CALLER, "open '%s': %s", path, strerror(errno));
    adder->source = path;
    int r = add_lines(adder, fd, '\n', add_ndjson, err);
    if (fd != STDIN_FILENO)
        (void)close(fd);
    return r;
}

/* Argument with each {} replaced by value; bytes are kept. */
static json_t *replaced(const char *argument, const char *value, size_t len)
{
    SCOPED_BUF text = { .data = NULL };
    const char *place;
    int r = buf_add(&text, "", 0);

    for (; r == 0 && (place = strstr(argument, PLACE)) != NULL; argument = place + strlen(PLACE)) {
        r = buf_add(&text, argument, (size_t)(place - argument));
        if (r == 0)
            r = buf_add(&text, value, len);
    }
    if (r == 0)
        r = buf_adds(&text, argument);
    return r < 0 ? NULL : json_bytes(text.data != NULL ? text.data : "", text.len);
}

static int add_value(struct adder *adder, const char *value, size_t len, struct mandor_err *err)
{
    const struct cli *cli = adder->cli;
    json_t *exec = json_array();

    if (memchr(value, '\0', len) != NULL) {
        json_decref(exec);
        return err_set(
            err, -EINVAL, FAULT_CALLER,
            "the line holds a NUL byte, which no argument can; are values separated by NUL (-0)?");
    }
    for (size_t i = 0; i < cli->arg_count; i++)
        if (json_array_append_new(exec, replaced(cli->args[i], value, len)) < 0) {
            json_decref(exec);
            return err_set(err, -ENOMEM, FAULT_HOST, "make a job");
        }
    if (json_object_set_new(cli->job, "exec", exec) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "make a job");
    return put(adder, cli->job, len, err);
}

static int add_each(struct adder *adder, struct mandor_err *err)
{
    adder->source = "-";
    return add_lines(adder, STDIN_FILENO, cli_flag(adder->cli, "null") ? '\0' : '\n', add_value,
                     err);
}

/* ---- the command ---- */

/* What only a process of its own can have.  Returns 0, or the exit code after a complaint. */
static int check_process(const struct cli *cli, const char *instead)
{
    static const char *const keys[] = { "env", "cwd", "user", "group", "containment" };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (says(cli, keys[i]))
            return cli_usage(cli, "'--%s' goes with a command, not with '--%s'", keys[i], instead);
    return EXIT_OK;
}

/* Exactly one source of jobs.  Returns 0, or the exit code after a complaint. */
static int check_usage(const struct cli *cli)
{
    bool from = cli_text(cli, "from") != NULL, each = cli_flag(cli, "each");
    bool pool = says(cli, "pool"), data = says(cli, "data"), command = cli->arg_count > 0;
    bool python = cli_text(cli, "python") != NULL, place = false;

    for (size_t i = 0; i < cli->arg_count; i++)
        place = place || strstr(cli->args[i], PLACE) != NULL;

    if (from && each)
        return cli_usage(cli, "only one of '--from' and '--each' can be given");
    if (command && (from || pool || python))
        return cli_usage(cli, "unexpected '%.64s': '--%s' takes no command", cli->args[0],
                         from   ? "from"
                         : pool ? "pool"
                                : "python");
    if (python && (from || each || pool || data))
        return cli_usage(cli, "only one of '--python' and '--%s' can be given",
                         from   ? "from"
                         : each ? "each"
                         : pool ? "pool"
                                : "data");
    if (!python && (cli_text(cli, "params") != NULL || cli_text(cli, "runtime") != NULL ||
                    cli_flag(cli, "bind-params")))
        return cli_usage(cli, "'--params', '--bind-params' and '--runtime' go with '--python'");
    if (command && data)
        return cli_usage(cli, "'--data' goes with '--pool', which takes no command");
    if (says(cli, "id") && (from || each))
        return cli_usage(cli, "'--id' is one job's, and '--%s' adds many", from ? "from" : "each");
    /* Data alone is for the pool of the queue. */
    if (!command && !from && !pool && !data && !python)
        return cli_usage(cli, "no command; usage: mandor add -- CMD [ARG…]");
    if (each && !place)
        return cli_usage(cli, "'--each' needs " PLACE " in the command, where the line goes");
    if (cli_flag(cli, "null") && !each)
        return cli_usage(cli, "'--null' goes with '--each'");
    return python || pool ? check_process(cli, python ? "python" : "pool") : EXIT_OK;
}

static int add(struct adder *adder, struct mandor_err *err)
{
    static const struct intake_events events = { .on_added = on_added, .on_batch = on_batch };
    SCOPED(intake_free) struct intake *intake = NULL;
    struct cli *cli = adder->cli;
    bool from = cli_text(cli, "from") != NULL, each = cli_flag(cli, "each");
    struct mandor_err late;

    /* A job from JSON runs in a fresh directory; one typed here runs here, unless other machines may take it. */
    bool here = cli->arg_count > 0 && !broker_is_shared(adder->client->url);
    int r = here ? job_default_cwd(cli->job, err) : 0;
    if (r == 0 && intake_new(adder->client, &events, adder, &intake) < 0)
        r = err_set(err, -ENOMEM, FAULT_HOST, "add jobs");
    if (r < 0)
        return r;

    adder->intake = intake;
    adder->many = from || each;
    adder->progress = adder->many && isatty(STDERR_FILENO) && !out_is_terminal();
    r = from ? add_from(adder, err) : each ? add_each(adder, err) : add_one(adder, err);
    err_clear(&late);
    int last = intake_finish(intake, &late); /* what was taken before an error is still added */
    if (r == 0 && last < 0) {
        *err = late;
        r = last;
    }
    if (adder->added > 0)
        tell_progress(adder, true);
    return r;
}

int cmd_add(struct cli *cli)
{
    struct client client;
    struct mandor_err err;
    struct adder adder = { .cli = cli, .client = &client };

    int code = check_usage(cli);
    if (code != EXIT_OK)
        return code;

    err_clear(&err);
    int r = client_open(cli, CLIENT_CREATE, &client, &err);
    if (r == 0)
        r = add(&adder, &err);
    client_close(&client);
    if (adder.many && adder.existing > 0)
        cli_warn(cli, "%zu of %zu jobs were there already", adder.existing, adder.added);
    if (r < 0)
        return cli_fail(cli, &err);
    return adder.bad > 0 ? EXIT_FAILED : EXIT_OK;
}

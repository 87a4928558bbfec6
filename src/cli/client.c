/* client.c - contract in client.h. */
#include "cli/client.h"

#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include "base/hide.h"

/* ---- which broker ---- */

char *client_sqlite_path(const char *url)
{
    static const char scheme[] = "sqlite:";
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;

    if (strncmp(url, scheme, strlen(scheme)) != 0)
        return NULL;
    if (url[strlen(scheme)] != '\0')
        return strdup(url + strlen(scheme));

    int r = state != NULL && state[0] == '/'
                ? asprintf(&path, "%s/mandor/queue.db", state)
                : asprintf(&path, "%s/.local/state/mandor/queue.db", home != NULL ? home : "");
    return r < 0 ? NULL : path;
}

char *client_place(const char *url)
{
    SCOPED_FREE char *path = client_sqlite_path(url);
    char *name = NULL;

    if (path == NULL)
        return hide_password(url);
    return asprintf(&name, "sqlite:%s", path) < 0 ? NULL : name;
}

static const char *first_of(const char *a, const char *b)
{
    return a != NULL && a[0] != '\0' ? a : b;
}

/* The queue that the command line names, or NULL. */
static const char *named_queue(const struct cli *cli)
{
    const char *name = cli->command->name;

    if ((cli->command->takes & TAKES_QUEUED) != 0)
        return json_string_value(json_object_get(cli->job, "queue"));
    if (str_eq(name, "pause") || str_eq(name, "resume"))
        return cli->args[0];
    return str_eq(name, "ls") || str_eq(name, "retry") || str_eq(name, "rm")
               ? cli_text(cli, "queue")
               : NULL;
}

/* What the configuration says: a named queue's own broker, else `broker`; without either, for commands that name no queue, the one
 * that all queues are at.  NULL = nothing. */
static const char *configured_broker(const struct cli *cli, const struct config *config)
{
    const char *queue = named_queue(cli);
    const char *own = queue != NULL ? config_queue(config, queue)->broker : NULL;

    if (own != NULL || queue != NULL || config->broker != NULL ||
        (cli->command->takes & TAKES_QUEUED) != 0)
        return own != NULL ? own : config->broker;
    for (size_t i = 0; i < config->queue_count; i++) {
        if (config->queues[i].broker == NULL ||
            (own != NULL && !str_eq(own, config->queues[i].broker)))
            return NULL;
        own = config->queues[i].broker;
    }
    return own;
}

/* The configuration is read only when something of it is needed, so that a broken file does not stand in the way of
 * `mandor ls --broker URL`. */
static int choose_broker(const struct cli *cli, enum client_mode mode, struct client *client,
                         struct mandor_err *err)
{
    const char *url = first_of(cli->broker, first_of(getenv("MANDOR_BROKER"), NULL));

    if (url == NULL || mode == CLIENT_CREATE || cli->config_path != NULL) {
        int r = config_load(cli->config_path, &client->config, err);
        if (r < 0)
            return r;
        client->chosen = url == NULL;
        url = first_of(url, first_of(configured_broker(cli, client->config), "sqlite:"));
    }
    char *path = client_sqlite_path(url);
    client->url = strdup(url);
    client->place = path != NULL ? path : client_place(url);
    return client->url != NULL && client->place != NULL
               ? 0
               : err_set(err, -ENOMEM, FAULT_HOST, "choose a broker");
}

/* Is there nothing where url points to?  Only an embedded broker can be absent; anything else that stat(2) says (a directory, no
 * permission) is for the back end to complain about. */
static bool nothing_there(const char *url)
{
    struct stat st;
    char *path = client_sqlite_path(url);
    bool absent = path != NULL && stat(path, &st) < 0 && errno == ENOENT;

    free(path);
    return absent;
}

/* While a broker is open ^Z is for the broker's thread, which knows when it holds up nobody. */
static void leave_stops_to_broker(bool on)
{
    sigset_t stop;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTSTP);
    (void)pthread_sigmask(on ? SIG_BLOCK : SIG_UNBLOCK, &stop, NULL);
}

int client_open(const struct cli *cli, enum client_mode mode, struct client *client,
                struct mandor_err *err)
{
    *client = (struct client){ .looping = false };

    int r = choose_broker(cli, mode, client, err);
    if (r < 0)
        return r;
    if (mode == CLIENT_LOOK && nothing_there(client->url))
        return 0;

    r = uv_loop_init(&client->loop);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "make an event loop");
    client->looping = true;
    leave_stops_to_broker(true);
    return broker_open(client->url, &client->loop, false, &client->broker, err);
}

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

void client_close(struct client *client)
{
    if (client->broker != NULL) {
        bool closed = false;
        broker_close(client->broker, on_closed, &closed);
        while (!closed)
            (void)uv_run(&client->loop, UV_RUN_ONCE);
    }
    leave_stops_to_broker(false);
    if (client->looping) {
        (void)uv_run(&client->loop, UV_RUN_DEFAULT);
        (void)uv_loop_close(&client->loop);
    }
    (void)config_free(client->config);
    free(client->url);
    free(client->place);
    *client = (struct client){ .looping = false };
}

/* ---- asking ---- */

static void ignore_done(struct broker_req *req)
{
    (void)req;
}

int client_ask(struct client *client, struct broker_req *req, struct mandor_err *err)
{
    BUG_ON(client->broker == NULL);
    req->done = ignore_done; /* broker_wait() puts its own in its place */

    int r = broker_wait(client->broker, req);
    if (r < 0 && err != NULL) {
        *err = req->err;
        if (err->code == 0)
            (void)err_set(err, r, FAULT_HOST, "ask the broker");
    }
    return r;
}

int client_record(struct client *client, const char *id, json_t **ret, struct mandor_err *err)
{
    if (client->broker == NULL)
        return err_set(err, -ENOENT, FAULT_CALLER, "no job '%s': nothing was added to '%s' yet", id,
                       client->place);

    struct broker_req req = { .op = BROKER_SHOW, .show = { .id = id } };
    int r = client_ask(client, &req, err);
    if (r < 0)
        return r;
    *ret = req.show.record;
    return 0;
}

const char *record_state(const json_t *record)
{
    const char *state = json_string_value(json_object_get(record, "state"));
    return state != NULL ? state : "?";
}

bool record_final(const json_t *record)
{
    int state = job_state_from_name(record_state(record));
    return state >= 0 && job_state_final((enum job_state)state);
}

size_t client_live_workers(const json_t *stats)
{
    size_t i, alive = 0;
    json_t *worker;

    json_array_foreach(json_object_get(stats, "workers"), i, worker)
        alive += !json_is_false(json_object_get(worker, "alive"));
    return alive;
}

void client_pause(int64_t ms)
{
    struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    (void)RETRY_EINTR(nanosleep(&left, &left));
}

int worse_exit(int a, int b)
{
    return MAX(a, b);
}

/* cmd_change.c - the commands that change jobs that are there: cancel, retry, rm, pause, resume.
 *
 * Several ids are dealt with one by one: a bad one is told and does not stop the others; the worst exit code counts.
 */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/out.h"
#include "cli/waiting.h"

/* ---- by id ---- */

static int print_changed(const char *id, const struct broker_req *req, const char *word)
{
    json_t *json = json_pack("{s:s, s:s}", "id", id, "done", word);
    if (json == NULL)
        return -ENOMEM;
    if (req->op == BROKER_CANCEL &&
        json_object_set_new(json, "worker",
                            req->change.worker[0] != '\0' ? json_string(req->change.worker)
                                                          : json_null()) < 0) {
        json_decref(json);
        return -ENOMEM;
    }
    int r = out_json(json);
    json_decref(json);
    return r;
}

/* One job.  Returns the exit code. */
static int change_one(struct cli *cli, struct client *client, enum broker_op op, const char *id,
                      const char *word)
{
    struct mandor_err err;
    struct broker_req req = { .op = op, .change = { .id = id, .state = -1 } };
    int r;

    err_clear(&err);
    if (client->broker == NULL)
        r = err_set(&err, -ENOENT, FAULT_CALLER, "no job '%s': nothing was added to '%s' yet", id,
                    client->place);
    else
        r = client_ask(client, &req, &err);
    if (r < 0)
        return cli_fail(cli, &err);

    if (cli->json && print_changed(id, &req, word) < 0)
        return EXIT_HOST;
    return EXIT_OK;
}

static int change_ids(struct cli *cli, struct client *client, enum broker_op op, const char *word)
{
    int code = EXIT_OK;

    for (size_t i = 0; i < cli->arg_count; i++)
        code = worse_exit(code, change_one(cli, client, op, cli->args[i], word));
    return code;
}

/* ---- by state ---- */

static int change_state(struct cli *cli, struct client *client, enum broker_op op, int state,
                        size_t *ret_count)
{
    struct mandor_err err;
    struct broker_req req = { .op = op,
                              .change = { .queue = cli_text(cli, "queue"), .state = state } };

    err_clear(&err);
    *ret_count = 0;
    if (client->broker == NULL)
        return EXIT_OK;
    if (client_ask(client, &req, &err) < 0)
        return cli_fail(cli, &err);
    *ret_count = req.change.count;
    return EXIT_OK;
}

static int print_count(const struct cli *cli, size_t count, const char *word)
{
    if (!cli->json) {
        out_line("%zu %s %s", count, count == 1 ? "job" : "jobs", word);
        return EXIT_OK;
    }
    json_t *json = json_pack("{s:I}", "count", (json_int_t)count);
    int r = json != NULL ? out_json(json) : -ENOMEM;
    json_decref(json);
    return r < 0 ? EXIT_HOST : EXIT_OK;
}

/* A flag of the command that stands for all jobs in a state. */
struct by_state {
    const char *flag;
    enum job_state state;
};

static int change_flagged(struct cli *cli, struct client *client, enum broker_op op,
                          const struct by_state *flags, size_t count, const char *word)
{
    size_t changed = 0;

    for (size_t i = 0; i < count; i++) {
        size_t n;
        if (!cli_flag(cli, flags[i].flag))
            continue;
        int code = change_state(cli, client, op, (int)flags[i].state, &n);
        if (code != EXIT_OK)
            return code;
        changed += n;
    }
    return print_count(cli, changed, word);
}

/* ids or flags, never both, never neither. */
static int change(struct cli *cli, enum broker_op op, const struct by_state *flags, size_t count,
                  const char *word)
{
    struct client client;
    struct mandor_err err;
    bool flagged = false;

    for (size_t i = 0; i < count; i++)
        flagged = flagged || cli_flag(cli, flags[i].flag);
    if (flagged && cli->arg_count > 0)
        return cli_usage(cli, "either ids or '--%s', not both", flags[0].flag);
    if (!flagged && cli->arg_count == 0)
        return cli_usage(cli, "which jobs?  Give ids or '--%s'", flags[0].flag);
    if (!flagged && cli_text(cli, "queue") != NULL)
        return cli_usage(cli, "option '--queue' goes with '--%s', not with ids", flags[0].flag);

    err_clear(&err);
    int r = client_open(cli, CLIENT_LOOK, &client, &err);
    int code = r < 0     ? cli_fail(cli, &err)
               : flagged ? change_flagged(cli, &client, op, flags, count, word)
                         : change_ids(cli, &client, op, word);
    client_close(&client);
    return code;
}

int cmd_retry(struct cli *cli)
{
    static const struct by_state flags[] = { { "failed", JOB_FAILED } };
    return change(cli, BROKER_RETRY, flags, ARRAY_LEN(flags), "retried");
}

int cmd_rm(struct cli *cli)
{
    static const struct by_state flags[] = { { "completed", JOB_COMPLETED },
                                             { "failed", JOB_FAILED },
                                             { "cancelled", JOB_CANCELLED } };
    return change(cli, BROKER_REMOVE, flags, ARRAY_LEN(flags), "removed");
}

/* ---- cancel ---- */

/* Cancelled is what was asked for; that a job ended by itself first is no failure of the command either. */
static int count_ended(const struct cli *cli, const json_t *record)
{
    return EXIT_OK;
}

/* All are cancelled first, so that they end side by side. */
static int cancel_and_wait(struct cli *cli, struct client *client)
{
    char **ids = calloc(cli->arg_count, sizeof *ids);
    size_t count = 0;
    int code = EXIT_OK;

    if (ids == NULL)
        return EXIT_HOST;
    for (size_t i = 0; i < cli->arg_count; i++) {
        int one = change_one(cli, client, BROKER_CANCEL, cli->args[i], "cancelled");
        if (one == EXIT_OK)
            ids[count++] = cli->args[i];
        code = worse_exit(code, one);
    }
    out_flush();
    code = worse_exit(code, waiting_for(cli, client, ids, count, -1, count_ended));
    free(ids);
    return code;
}

int cmd_cancel(struct cli *cli)
{
    struct client client;
    struct mandor_err err;

    err_clear(&err);
    if (client_open(cli, CLIENT_LOOK, &client, &err) < 0) {
        client_close(&client);
        return cli_fail(cli, &err);
    }
    int code = cli_flag(cli, "wait") ? cancel_and_wait(cli, &client)
                                     : change_ids(cli, &client, BROKER_CANCEL, "cancelled");
    client_close(&client);
    return code;
}

/* ---- pause, resume ---- */

/* A queue may be paused before its first job; a name that was only typed wrong must not look like that. */
static void warn_unknown(const struct cli *cli, struct client *client)
{
    struct broker_req req = { .op = BROKER_STATS };

    if (client_ask(client, &req, NULL) < 0)
        return;
    if (json_object_get(json_object_get(req.stats.stats, "queues"), cli->args[0]) == NULL)
        cli_warn(cli, "queue '%s' has no jobs yet; it is paused for those that come", cli->args[0]);
    json_decref(req.stats.stats);
}

static int set_paused(struct cli *cli, bool paused)
{
    struct client client;
    struct mandor_err err;
    struct broker_req req = { .op = BROKER_PAUSE,
                              .pause = { .queue = cli->args[0], .paused = paused } };

    err_clear(&err);
    int r = client_open(cli, CLIENT_CREATE, &client, &err);
    if (r == 0 && paused)
        warn_unknown(cli, &client);
    if (r == 0)
        r = client_ask(&client, &req, &err);
    client_close(&client);
    if (r < 0)
        return cli_fail(cli, &err);
    if (!cli->json)
        return EXIT_OK;

    json_t *json = json_pack("{s:s, s:b}", "queue", cli->args[0], "paused", (int)paused);
    r = json != NULL ? out_json(json) : -ENOMEM;
    json_decref(json);
    return r < 0 ? EXIT_HOST : EXIT_OK;
}

int cmd_pause(struct cli *cli)
{
    return set_paused(cli, true);
}

int cmd_resume(struct cli *cli)
{
    return set_paused(cli, false);
}

/* client.h - a command's way to its broker: which one, opened, asked one question at a time.
 *
 * A command that only looks never creates a database: client_open(…, CLIENT_LOOK, …) succeeds with client->broker NULL when
 * nothing was ever added.  Main thread; the loop runs only inside the calls here.
 */
#ifndef CLI_CLIENT_H
#define CLI_CLIENT_H

#include <uv.h>

#include "base/err.h"
#include "base/macro.h"
#include "broker/broker.h"
#include "cli/cli.h"
#include "config/config.h"

enum client_mode {
    CLIENT_LOOK,   /* nothing there: broker stays NULL */
    CLIENT_CREATE, /* made when it is not there */
};

struct client {
    uv_loop_t loop;
    bool looping;          /* loop was initialised */
    struct broker *broker; /* NULL: there is none yet */
    struct config *config;
    bool chosen; /* by the configuration, not by --broker or $MANDOR_BROKER */
    char *url;
    char *place; /* for people: the database's path, or the URL */
};

/* Which broker: --broker, $MANDOR_BROKER, the configuration's for the queue that is named, "sqlite:".  Errors leave client such that client_close() is fine. */
MUST_CHECK int client_open(const struct cli *cli, enum client_mode mode, struct client *client,
                           struct mandor_err *err);
void client_close(struct client *client);

/* Submit req, run the loop until it is done.  Returns its status with *err. */
MUST_CHECK int client_ask(struct client *client, struct broker_req *req, struct mandor_err *err);

/* The record of job id, a new reference; -ENOENT (FAULT_CALLER). */
MUST_CHECK int client_record(struct client *client, const char *id, json_t **ret,
                             struct mandor_err *err);

/* The path behind a sqlite: URL, malloc'ed ("sqlite:" is the default one); NULL for other schemes or without memory. */
char *client_sqlite_path(const char *url);
/* A broker's URL for people, malloc'ed: the default's path is filled in, a password is not shown.  NULL without memory. */
char *client_place(const char *url);

/* "state" of a record, and whether it is a final one. */
const char *record_state(const json_t *record);
bool record_final(const json_t *record);

/* How many of the workers that BROKER_STATS tells of are alive. */
size_t client_live_workers(const json_t *stats);

/* Sleep without the loop. */
void client_pause(int64_t ms);

/* The worse one of two exit codes when several jobs were dealt with: 125, 4, 3, 1, 0. */
int worse_exit(int a, int b);

#endif

/* cmd_stats.c - `mandor stats`, `mandor top`, `mandor pools`: queues, workers, what runs now, and where. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/out.h"
#include "cli/snapshots.h"

#define ANSWER_MS 1000 /* how long workers have for their first snapshot */
#define REDRAW_MS 500

static const char *const counted[] = { "waiting",   "delayed", "active",
                                       "completed", "failed",  "cancelled" };

static json_int_t number_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* ---- asking ---- */

/* {"queues": …, "workers": …}, a new reference; what an absent broker would say when there is none. */
static int ask_stats(struct client *client, json_t **ret, struct mandor_err *err)
{
    struct broker_req req = { .op = BROKER_STATS };

    if (client->broker == NULL) {
        *ret = json_pack("{s:{}, s:[]}", "queues", "workers");
        return *ret != NULL ? 0 : err_set(err, -ENOMEM, FAULT_HOST, "count jobs");
    }
    int r = client_ask(client, &req, err);
    if (r == 0)
        *ret = req.stats.stats;
    return r;
}

/* Add what the live workers say under "live". */
static int add_live(json_t *stats, const struct snapshots *snapshots)
{
    json_t *live = snapshots != NULL ? snapshots_json(snapshots) : json_array();
    return live == NULL || json_object_set_new(stats, "live", live) < 0 ? -ENOMEM : 0;
}

/* ---- printing ---- */

static int print_queues(const json_t *stats)
{
    static const char *const titles[] = { "QUEUE",  "WAITING",   "DELAYED", "ACTIVE", "COMPLETED",
                                          "FAILED", "CANCELLED", "OLDEST",  "" };
    SCOPED(table_free) struct table *table = table_new(titles, ARRAY_LEN(titles));
    const char *name;
    json_t *queue;

    if (table == NULL)
        return -ENOMEM;
    json_object_foreach(json_object_get(stats, "queues"), name, queue) {
        char age[UNITS_TEXT_SIZE];
        int64_t oldest_ms = number_of(queue, "oldest_waiting_ms");
        bool paused = json_is_true(json_object_get(queue, "paused"));

        table_cell(table, STYLE_PLAIN, "%s", name);
        for (size_t i = 0; i < ARRAY_LEN(counted); i++)
            table_number(table, number_of(queue, counted[i]));
        table_cell(table, STYLE_PLAIN, "%s",
                   oldest_ms > 0 ? units_human_duration(oldest_ms, age) : "-");
        table_cell(table, STYLE_YELLOW, "%s", paused ? "paused" : "");
    }
    return table_print(table);
}

/* One histogram of a worker's metrics, in ms. */
static void quantile_cell(struct table *table, const json_t *metrics, const char *name,
                          const char *q)
{
    const json_t *histogram = json_object_get(metrics, name);

    if (number_of(histogram, "count") == 0)
        table_cell(table, STYLE_DIM, "-");
    else
        table_cell(table, STYLE_PLAIN, "%.2f",
                   json_number_value(json_object_get(histogram, q)) / 1e3);
}

static int print_workers(const json_t *stats)
{
    static const char *const titles[] = { "WORKER",    "PID",        "RUNNING",
                                          "DONE",      "LAG p99 ms", "SPAWN p50",
                                          "SPAWN p99", "SETTLE p50", "SETTLE p99" };
    SCOPED(table_free) struct table *table = table_new(titles, ARRAY_LEN(titles));
    size_t i;
    json_t *worker;

    if (table == NULL)
        return -ENOMEM;
    json_array_foreach(json_object_get(stats, "live"), i, worker) {
        const json_t *metrics = json_object_get(worker, "metrics");
        table_cell(table, STYLE_PLAIN, "%s", text_of(worker, "worker"));
        table_number(table, number_of(worker, "pid"));
        table_cell(table, STYLE_PLAIN, "%zu/%" JSON_INTEGER_FORMAT,
                   json_array_size(json_object_get(worker, "running")),
                   number_of(worker, "concurrency"));
        table_number(table,
                     number_of(metrics, "jobs_completed") + number_of(metrics, "jobs_failed"));
        quantile_cell(table, metrics, "loop_lag_us", "p99");
        quantile_cell(table, metrics, "spawn_us", "p50");
        quantile_cell(table, metrics, "spawn_us", "p99");
        quantile_cell(table, metrics, "settle_us", "p50");
        quantile_cell(table, metrics, "settle_us", "p99");
    }
    return table_print(table);
}

static int add_running(struct table *table, const json_t *worker, const json_t *job)
{
    int64_t started_ms = number_of(job, "started_ms");
    char time[UNITS_TEXT_SIZE], out[UNITS_TEXT_SIZE], err[UNITS_TEXT_SIZE];
    const json_t *progress = json_object_get(job, "progress");
    char *said = progress != NULL && !json_is_null(progress) ? json_text(progress) : strdup("");

    if (said == NULL)
        return -ENOMEM;
    table_cell(table, STYLE_PLAIN, "%s", text_of(job, "id"));
    table_cell(table, STYLE_PLAIN, "%s", text_of(job, "queue"));
    table_cell(table, STYLE_CYAN, "%s", text_of(job, "phase"));
    table_number(table, number_of(job, "attempt"));
    table_number(table, number_of(job, "pid"));
    table_cell(table, STYLE_PLAIN, "%s",
               started_ms > 0
                   ? units_human_duration(MAX(clock_wall_ms() - started_ms, (int64_t)0), time)
                   : "-");
    table_cell(table, STYLE_PLAIN, "%s", units_human_size(number_of(job, "out_bytes"), out));
    table_cell(table, STYLE_PLAIN, "%s", units_human_size(number_of(job, "err_bytes"), err));
    table_cell(table, STYLE_PLAIN, "%.20s", said);
    table_cell(table, STYLE_DIM, "%s", text_of(worker, "worker"));
    table_cell(table, STYLE_PLAIN, "%s", text_of(job, "command"));
    free(said);
    return 0;
}

/* How many jobs the terminal has lines for, below the queues. */
static size_t room_for_jobs(const json_t *stats)
{
    size_t used =
        json_object_size(json_object_get(stats, "queues")) + 5; /* titles, gap, "… more", cursor */
    size_t i, pools = 0;
    const json_t *worker;

    json_array_foreach(json_object_get(stats, "live"), i, worker)
        pools += json_array_size(json_object_get(worker, "pools"));
    used += pools > 0 ? pools + 2 : 0;
    size_t rows = (size_t)out_rows();

    return rows == 0 ? SIZE_MAX : MAX(rows, used + 1) - used;
}

static int print_running(const json_t *stats)
{
    static const char *const titles[] = { "ID",       "QUEUE",  "PHASE",  "TRY",
                                          "PID",      "TIME",   "STDOUT", "STDERR",
                                          "PROGRESS", "WORKER", "COMMAND" };
    SCOPED(table_free) struct table *table = table_new(titles, ARRAY_LEN(titles));
    size_t i, j, running = 0, room = room_for_jobs(stats);
    json_t *worker, *job;

    if (table == NULL)
        return -ENOMEM;
    json_array_foreach(json_object_get(stats, "live"), i, worker)
        json_array_foreach(json_object_get(worker, "running"), j, job) {
            int r = running++ < room ? add_running(table, worker, job) : 0;
            if (r < 0)
                return r;
        }
    int r = table_print(table);
    if (r == 0 && running > room)
        out_line("… and %zu more", running - room);
    return r;
}

static enum out_style style_of(const char *state)
{
    return str_eq(state, "ready")     ? STYLE_PLAIN
           : str_eq(state, "failing") ? STYLE_RED
                                      : STYLE_YELLOW;
}

static size_t count_ready(const json_t *pool)
{
    size_t i, ready = 0;
    json_t *one;

    json_array_foreach(json_object_get(pool, "workers"), i, one)
        ready += str_eq(text_of(one, "state"), "ready");
    return ready;
}

static void add_pool(struct table *table, const json_t *worker, const json_t *pool)
{
    const json_t *size = json_object_get(pool, "size");
    const char *state = text_of(pool, "state");
    char memory[UNITS_TEXT_SIZE];

    table_cell(table, STYLE_PLAIN, "%s", text_of(pool, "name"));
    table_cell(table, style_of(state), "%s", state);
    table_cell(table, STYLE_PLAIN, "%zu/%" JSON_INTEGER_FORMAT, count_ready(pool),
               number_of(size, "max"));
    table_number(table, number_of(pool, "busy"));
    table_number(table, number_of(pool, "waiting"));
    table_number(table, number_of(pool, "jobs"));
    table_number(table, number_of(pool, "recycles"));
    table_number(table, number_of(pool, "deaths"));
    table_number(table, number_of(pool, "failed_starts"));
    table_cell(table, STYLE_PLAIN, "%s", units_human_size(number_of(pool, "memory"), memory));
    table_cell(table, STYLE_DIM, "%s", text_of(worker, "worker"));
    table_cell(table, STYLE_PLAIN, "%s", text_of(pool, "last_error"));
}

/* Returns 1 when there were any, 0 or -ENOMEM. */
static int print_pool_table(const json_t *stats)
{
    static const char *const titles[] = { "POOL",    "STATE",  "READY",    "BUSY",
                                          "WAITING", "JOBS",   "RECYCLED", "DIED",
                                          "FAILED",  "MEMORY", "WORKER",   "LAST ERROR" };
    SCOPED(table_free) struct table *table = table_new(titles, ARRAY_LEN(titles));
    size_t i, j, count = 0;
    json_t *worker, *pool;

    if (table == NULL)
        return -ENOMEM;
    json_array_foreach(json_object_get(stats, "live"), i, worker)
        json_array_foreach(json_object_get(worker, "pools"), j, pool) {
            add_pool(table, worker, pool);
            count++;
        }
    int r = count > 0 ? table_print(table) : 0;
    return r < 0 ? r : count > 0;
}

static int print_pools(const json_t *stats)
{
    int r = print_pool_table(stats);

    if (r == 0)
        out_line("no live worker has a pool");
    return MIN(r, 0);
}

static bool any_pools(const json_t *stats)
{
    const json_t *worker;
    size_t i;

    json_array_foreach(json_object_get(stats, "live"), i, worker)
        if (json_array_size(json_object_get(worker, "pools")) > 0)
            return true;
    return false;
}

/* Behind something else, and only where there are some. */
static int print_pools_too(const json_t *stats)
{
    if (!any_pools(stats))
        return 0;
    (void)putchar('\n');
    return MIN(print_pool_table(stats), 0);
}

static int print_stats(const json_t *stats)
{
    size_t workers = client_live_workers(stats);

    int r = print_queues(stats);
    if (r < 0)
        return r;
    /* BullMQ lists a connection for each queue, and does not say whose process it is. */
    const json_t *first = json_array_get(json_object_get(stats, "workers"), 0);
    bool by_queue = workers > 1 && json_object_get(first, "pid") == NULL;
    out_line("\n%zu live %s%s", workers, workers == 1 ? "worker" : "workers",
             by_queue ? ", counted in each queue that they serve" : "");
    r = json_array_size(json_object_get(stats, "live")) > 0 ? print_workers(stats) : 0;
    return r < 0 ? r : print_pools_too(stats);
}

static int print_top(const json_t *stats)
{
    int r = print_queues(stats);

    if (r == 0)
        r = print_pools_too(stats);
    (void)putchar('\n');
    return r < 0 ? r : print_running(stats);
}

/* ---- the commands ---- */

/* Ask broker and workers, and print with print_people or as JSON. */
static int ask_and_print(struct cli *cli, struct client *client, struct snapshots *snapshots,
                         int (*print_people)(const json_t *stats), struct mandor_err *err)
{
    json_t *stats = NULL;
    int r = ask_stats(client, &stats, err);
    if (r < 0)
        return r;

    r = add_live(stats, snapshots);
    if (r == 0)
        r = cli->json ? out_json_pretty(stats) : print_people(stats);
    json_decref(stats);
    return r < 0 ? err_set(err, r, FAULT_HOST, "print the figures") : 0;
}

static int open_snapshots(struct client *client, struct snapshots **ret, struct mandor_err *err)
{
    if (client->broker == NULL)
        return 0;
    int r = snapshots_new(broker_data_dir(client->broker), ret);
    if (r == 0)
        r = snapshots_refresh(*ret, ANSWER_MS, true);
    return r < 0 ? err_set(err, r, FAULT_HOST, "ask the workers") : 0;
}

/* Redraw until the reader or the user ends it. */
static int redraw(struct cli *cli, struct client *client, struct snapshots *snapshots,
                  struct mandor_err *err)
{
    int r = 0;

    while (r == 0 && !out_broken()) {
        (void)fputs("\033[H\033[J", stdout);
        r = ask_and_print(cli, client, snapshots, print_top, err);
        out_flush();
        if (snapshots == NULL)
            client_pause(REDRAW_MS);
        else if (r == 0 && snapshots_refresh(snapshots, REDRAW_MS, false) < 0)
            r = err_set(err, -ENOMEM, FAULT_HOST, "ask the workers");
    }
    return r;
}

/* [{"worker": …, "pools": […]}, …] */
static json_t *only_pools(const struct snapshots *snapshots)
{
    SCOPED_JSON *live = snapshots != NULL ? snapshots_json(snapshots) : json_array();
    json_t *list = json_array(), *worker;
    size_t i;

    json_array_foreach(live, i, worker)
        (void)json_array_append_new(list, json_pack("{s:O, s:O?}", "worker",
                                                    json_object_get(worker, "worker"), "pools",
                                                    json_object_get(worker, "pools")));
    return list;
}

int cmd_pools(struct cli *cli)
{
    SCOPED(snapshots_free) struct snapshots *snapshots = NULL;
    SCOPED_JSON *list = NULL, *stats = NULL;
    struct client client;
    struct mandor_err err;

    err_clear(&err);
    int r = client_open(cli, CLIENT_LOOK, &client, &err);
    if (r == 0)
        r = open_snapshots(&client, &snapshots, &err);
    if (r == 0) {
        list = only_pools(snapshots);
        stats = json_pack("{s:O}", "live", list);
        r = stats == NULL ? -ENOMEM : cli->json ? out_json_pretty(list) : print_pools(stats);
        if (r < 0)
            (void)err_set(&err, r, FAULT_HOST, "print the pools");
    }
    client_close(&client);
    return r < 0 ? cli_fail(cli, &err) : EXIT_OK;
}

static int figures(struct cli *cli, bool top)
{
    SCOPED(snapshots_free) struct snapshots *snapshots = NULL;
    struct client client;
    struct mandor_err err;

    err_clear(&err);
    int r = client_open(cli, CLIENT_LOOK, &client, &err);
    if (r == 0)
        r = open_snapshots(&client, &snapshots, &err);
    if (r == 0)
        r = top && out_is_terminal() && !cli->json
                ? redraw(cli, &client, snapshots, &err)
                : ask_and_print(cli, &client, snapshots, top ? print_top : print_stats, &err);
    client_close(&client);
    return r < 0 ? cli_fail(cli, &err) : EXIT_OK;
}

int cmd_stats(struct cli *cli)
{
    return figures(cli, false);
}

int cmd_top(struct cli *cli)
{
    return figures(cli, true);
}

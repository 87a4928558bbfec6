/* cmd_ls.c - `mandor ls`. */
#include <time.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/out.h"

#define PAGE_SIZE ((size_t)200)
#define SHOWN_MAX 50 /* jobs in the table unless --limit says otherwise */

/* How long ago an RFC 3339 time was. */
static char *age_of(const char *text, char buf[static 32])
{
    struct tm tm = { .tm_isdst = 0 };

    buf[0] = '\0';
    if (strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) != NULL)
        (void)text_age((int64_t)timegm(&tm) * 1000, clock_wall_ms(), buf);
    return buf;
}

/* One job as a row. */
static int add_row(struct table *table, const json_t *record)
{
    const char *state = record_state(record);
    const char *queue = json_string_value(json_object_get(record, "queue"));
    const char *phase = json_string_value(json_object_get(record, "phase"));
    const char *created = json_string_value(json_object_get(record, "created_at"));
    SCOPED_BUF command = { .data = NULL };
    char age[32];

    int r = text_command(&command, json_object_get(record, "spec"));
    if (r < 0)
        return r;

    const char *id = json_string_value(json_object_get(record, "id"));
    table_cell(table, STYLE_PLAIN, "%s", id != NULL ? id : "?"); /* not UTF-8 */
    table_cell(table, style_of_state(state), "%s", phase != NULL ? phase : state);
    table_cell(table, STYLE_PLAIN, "%s", queue != NULL ? queue : "");
    table_cell(table, STYLE_PLAIN, "%" JSON_INTEGER_FORMAT "/%" JSON_INTEGER_FORMAT,
               json_integer_value(json_object_get(record, "attempts_used")),
               json_integer_value(json_object_get(record, "attempts")));
    table_cell(table, STYLE_DIM, "%s", created != NULL ? age_of(created, age) : "");
    table_cell(table, STYLE_PLAIN, "%s", command.data != NULL ? command.data : "");
    return 0;
}

/* What the pages are shown with. */
struct listing {
    struct table *table; /* NULL: JSON */
    size_t left;         /* jobs that may still be shown */
};

static int show_page(struct listing *listing, const json_t *records)
{
    size_t i;
    json_t *record;

    json_array_foreach(records, i, record) {
        if (listing->left == 0 || out_broken())
            break;
        int r = listing->table != NULL ? add_row(listing->table, record) : out_json(record);
        if (r < 0)
            return r;
        listing->left--;
    }
    return 0;
}

/* Ask for page after page, newest first. */
static int show_pages(struct client *client, struct listing *listing, const char *queue, int state,
                      struct mandor_err *err)
{
    SCOPED_FREE char *last = NULL;

    while (listing->left > 0 && !out_broken()) {
        struct broker_req req = { .op = BROKER_LIST,
                                  .list = { .queue = queue,
                                            .state = state,
                                            .after = last,
                                            .limit = MIN(listing->left, PAGE_SIZE) } };
        int r = client_ask(client, &req, err);
        if (r < 0)
            return r;

        json_t *records = req.list.records;
        size_t count = json_array_size(records);
        r = show_page(listing, records);
        const char *id =
            json_string_value(json_object_get(json_array_get(records, count - 1), "id"));
        free(last);
        last = id != NULL ? strdup(id) : NULL;
        json_decref(records);
        if (r < 0)
            return err_set(err, r, FAULT_HOST, "print the jobs");
        if (last == NULL)
            break;
    }
    return 0;
}

static int list(struct client *client, struct cli *cli, int state, struct mandor_err *err)
{
    static const char *const titles[] = { "ID", "STATE", "QUEUE", "TRIES", "AGE", "COMMAND" };
    SCOPED(table_free) struct table *table = NULL;
    int64_t limit = cli_number(cli, "limit", cli->json ? 0 : SHOWN_MAX);
    struct listing listing = { .left = limit == 0 ? SIZE_MAX : (size_t)limit };

    if (!cli->json && (table = table_new(titles, ARRAY_LEN(titles))) == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "print the jobs");
    listing.table = table;

    int r = show_pages(client, &listing, cli_text(cli, "queue"), state, err);
    if (r < 0 || table == NULL)
        return r;
    r = table_print(table);
    if (r == 0 && listing.left == 0 && out_is_terminal() && cli_text(cli, "limit") == NULL)
        out_line("%sThe newest %d; --limit 0 lists all.%s", style_on(STYLE_DIM), SHOWN_MAX,
                 style_off(STYLE_DIM));
    return r < 0 ? err_set(err, r, FAULT_HOST, "print the jobs") : 0;
}

int cmd_ls(struct cli *cli)
{
    const char *state_name = cli_text(cli, "state");
    int state = state_name != NULL ? job_state_from_name(state_name) : -1;
    struct client client;
    struct mandor_err err;

    if (state_name != NULL && state < 0)
        return cli_usage(
            cli,
            "option '--state': '%.32s' is no state, expected waiting, delayed, active, "
            "completed, failed or cancelled",
            state_name);

    err_clear(&err);
    int r = client_open(cli, CLIENT_LOOK, &client, &err);
    if (r == 0 && client.broker != NULL)
        r = list(&client, cli, state, &err);
    else if (r == 0 && !cli->json)
        cli_warn(cli, "no jobs yet: nothing was added to '%s'", client.place);
    client_close(&client);
    return r < 0 ? cli_fail(cli, &err) : EXIT_OK;
}

/* waiting.c - contract in waiting.h. */
#include "cli/waiting.h"

#include "base/clock.h"
#include "cli/out.h"

/* Pauses between polls: short at first, so that a script that waits for a quick job does not feel it. */
#define POLL_FIRST_MS 5
#define POLL_LAST_MS  100

int waiting_tell(const struct cli *cli, const json_t *record)
{
    const char *state = record_state(record);

    if (cli->json && out_json(record) < 0)
        return EXIT_HOST;
    if (!cli->json && out_is_terminal())
        out_line("%s %s%s%s", json_string_value(json_object_get(record, "id")),
                 style_on(style_of_state(state)), state, style_off(style_of_state(state)));
    return str_eq(state, "completed") ? EXIT_OK : EXIT_FAILED;
}

struct waiting {
    const struct cli *cli;
    struct client *client;
    const char **ids; /* those that have not ended; count of them */
    size_t count;
    int code;
    waiting_fn *on_ended;
};

/* Look at one job.  1 when it needs no more waiting, 0 when it does. */
static int look(struct waiting *waiting, const char *id)
{
    struct mandor_err err;
    json_t *record = NULL;

    err_clear(&err);
    if (client_record(waiting->client, id, &record, &err) < 0) {
        waiting->code = worse_exit(waiting->code, cli_fail(waiting->cli, &err));
        return 1;
    }
    bool ended = record_final(record);
    if (ended)
        waiting->code = worse_exit(waiting->code, waiting->on_ended(waiting->cli, record));
    json_decref(record);
    return ended;
}

/* One round over those that are left, in order. */
static void look_at_all(struct waiting *waiting)
{
    size_t left = 0;

    for (size_t i = 0; i < waiting->count; i++)
        if (look(waiting, waiting->ids[i]) == 0)
            waiting->ids[left++] = waiting->ids[i];
    waiting->count = left;
}

static int wait_for_rest(struct waiting *waiting, int64_t timeout_ms)
{
    int64_t now_ms = clock_mono_ms(), pause_ms = POLL_FIRST_MS;
    bool bounded = timeout_ms >= 0 && timeout_ms < INT64_MAX - now_ms;
    int64_t until_ms = bounded ? now_ms + timeout_ms : INT64_MAX;

    for (;;) {
        look_at_all(waiting);
        out_flush();
        if (waiting->count == 0 || waiting->code >= EXIT_NOT_FOUND)
            return waiting->code;

        int64_t left_ms = until_ms - clock_mono_ms();
        if (left_ms <= 0) {
            cli_warn(waiting->cli, "the time is over, and %zu of the jobs had not ended: %s%s",
                     waiting->count, waiting->ids[0], waiting->count > 1 ? ", …" : "");
            return EXIT_TIMED_OUT;
        }
        client_pause(MIN(pause_ms, left_ms));
        pause_ms = MIN(pause_ms * 2, (int64_t)POLL_LAST_MS);
    }
}

int waiting_for(const struct cli *cli, struct client *client, char *const *ids, size_t count,
                int64_t timeout_ms, waiting_fn *on_ended)
{
    struct waiting waiting = { .cli = cli,
                               .client = client,
                               .ids = calloc(MAX(count, (size_t)1), sizeof *waiting.ids),
                               .count = count,
                               .on_ended = on_ended };
    if (waiting.ids == NULL)
        return EXIT_HOST;

    for (size_t i = 0; i < count; i++)
        waiting.ids[i] = ids[i];
    int code = wait_for_rest(&waiting, timeout_ms);
    free(waiting.ids);
    return code;
}

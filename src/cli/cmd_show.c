/* cmd_show.c - `mandor show`: a job's record for people, or as JSON. */
#include <stdio.h>

#include "base/json.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/out.h"

#define LABEL_WIDTH 13

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static json_int_t number_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* "Label        text", the text escaped. */
static int print_field(const char *label, const char *text)
{
    SCOPED_BUF safe = { .data = NULL };
    int r = text_escape(&safe, text, strlen(text));
    if (r < 0)
        return r;
    out_line("%s%-*s%s%s", style_on(STYLE_BOLD), LABEL_WIDTH, label, style_off(STYLE_BOLD),
             safe.data != NULL ? safe.data : "");
    return 0;
}

/* The same for a value that may be anything; nothing when it is absent. */
static int print_value(const char *label, const json_t *value)
{
    if (value == NULL || json_is_null(value))
        return 0;
    if (json_is_string(value))
        return print_field(label, json_string_value(value));

    char *text = json_text(value);
    int r = text != NULL ? print_field(label, text) : -ENOMEM;
    free(text);
    return r;
}

static int print_command(const json_t *record)
{
    SCOPED_BUF command = { .data = NULL };
    int r = text_command(&command, json_object_get(record, "spec"));
    return r < 0 ? r : print_field("Command", command.data != NULL ? command.data : "");
}

static int print_ending(const json_t *record)
{
    const char *cause = text_of(record, "cause");
    const json_t *exit_code = json_object_get(record, "exit_code");
    const json_t *number = json_object_get(record, "signal");
    char text[128];

    if (cause == NULL)
        return 0;
    (void)snprintf(text, sizeof text, "%s", cause);
    size_t len = strlen(text);
    if (json_is_integer(exit_code) && json_integer_value(exit_code) >= 0)
        (void)snprintf(text + len, sizeof text - len, ", exit code %" JSON_INTEGER_FORMAT,
                       json_integer_value(exit_code));
    else if (json_is_string(number))
        (void)snprintf(text + len, sizeof text - len, ", %s", json_string_value(number));
    else if (json_integer_value(number) > 0)
        (void)snprintf(text + len, sizeof text - len, ", signal %" JSON_INTEGER_FORMAT,
                       json_integer_value(number));
    return print_field("Cause", text);
}

static int print_usage(const json_t *record)
{
    const json_t *usage = json_object_get(record, "usage");
    char wall[UNITS_TEXT_SIZE], user[UNITS_TEXT_SIZE], system[UNITS_TEXT_SIZE],
        rss[UNITS_TEXT_SIZE], text[4 * UNITS_TEXT_SIZE + 64];

    if (!json_is_object(usage))
        return 0;
    /* It had no process of its own: a warm worker's is not known by job. */
    if (number_of(usage, "max_rss") == 0)
        return print_field("Ran", units_human_duration(number_of(usage, "wall_ms"), wall));
    (void)snprintf(text, sizeof text, "%s; CPU %s user, %s system; %s memory at most",
                   units_human_duration(number_of(usage, "wall_ms"), wall),
                   units_human_duration(number_of(usage, "user_ms"), user),
                   units_human_duration(number_of(usage, "system_ms"), system),
                   units_human_size(number_of(usage, "max_rss"), rss));
    return print_field("Ran", text);
}

/* Where a stream went to several places: one line each. */
static int print_sinks(const json_t *sinks)
{
    char size[UNITS_TEXT_SIZE], lost[UNITS_TEXT_SIZE];
    int r = 0;

    for (size_t i = 0; r == 0 && i < json_array_size(sinks); i++) {
        const json_t *sink = json_array_get(sinks, i);
        const char *target = text_of(sink, "target");
        SCOPED_BUF text = { .data = NULL };
        r = buf_addf(&text, "%s to %s%s%s%s", units_human_size(number_of(sink, "bytes"), size),
                     text_of(sink, "sink"), target != NULL ? " " : "", target != NULL ? target : "",
                     json_is_false(json_object_get(sink, "committed")) ? ", not committed" : "");
        if (r == 0 && number_of(sink, "dropped_bytes") > 0)
            r = buf_addf(&text, ", %s dropped",
                         units_human_size(number_of(sink, "dropped_bytes"), lost));
        if (r == 0)
            r = print_field("", text.data);
    }
    return r;
}

static int print_stream(const json_t *record, const char *name)
{
    const json_t *stream = json_object_get(json_object_get(record, "streams"), name);
    const char *target = text_of(stream, "target"), *sink = text_of(stream, "sink");
    char size[UNITS_TEXT_SIZE];
    SCOPED_BUF text = { .data = NULL };

    if (!json_is_object(stream))
        return 0;
    int r =
        buf_addf(&text, "%s to %s%s%s%s", units_human_size(number_of(stream, "bytes"), size),
                 sink != NULL ? sink : "?", target != NULL ? " " : "", target != NULL ? target : "",
                 json_is_false(json_object_get(stream, "committed")) ? ", not committed" : "");
    if (r == 0 && number_of(stream, "discarded_bytes") > 0)
        r = buf_addf(&text, ", %s left out",
                     units_human_size(number_of(stream, "discarded_bytes"), size));
    if (r == 0)
        r = print_field(name, text.data);
    return r < 0 ? r : print_sinks(json_object_get(stream, "sinks"));
}

/* The captured tail, its lines indented and escaped one by one. */
static int print_tail(const json_t *record, const char *name)
{
    const char *tail = text_of(json_object_get(json_object_get(record, "streams"), name), "tail");

    if (tail == NULL || tail[0] == '\0')
        return 0;
    out_line("\n%sEnd of %s%s", style_on(STYLE_BOLD), name, style_off(STYLE_BOLD));
    while (*tail != '\0') {
        SCOPED_BUF safe = { .data = NULL };
        size_t len = strcspn(tail, "\n");
        int r = text_escape(&safe, tail, len);
        if (r < 0)
            return r;
        out_line("  %s", safe.data != NULL ? safe.data : "");
        tail += len + (tail[len] == '\n');
    }
    return 0;
}

static int print_attempts(const json_t *record)
{
    char text[128];

    (void)snprintf(text, sizeof text,
                   "%" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
                   " used; started %" JSON_INTEGER_FORMAT " time%s",
                   number_of(record, "attempts_used"), number_of(record, "attempts"),
                   number_of(record, "attempt"), number_of(record, "attempt") == 1 ? "" : "s");
    return print_field("Attempts", text);
}

static int print_history(const json_t *record)
{
    const json_t *history = json_object_get(record, "history");
    size_t i;
    json_t *past;

    json_array_foreach(history, i, past) {
        char label[32];
        const char *error = text_of(past, "error"), *cause = text_of(past, "cause");
        (void)snprintf(label, sizeof label, "Attempt %" JSON_INTEGER_FORMAT,
                       number_of(past, "attempt"));
        int r = print_field(label, error != NULL && error[0] != '\0' ? error
                                   : cause != NULL                   ? cause
                                                                     : "?");
        if (r < 0)
            return r;
    }
    return 0;
}

static int print_head(const json_t *record)
{
    const char *state = record_state(record), *phase = text_of(record, "phase");
    SCOPED_BUF safe = { .data = NULL };
    int r = text_escape(&safe, text_of(record, "id"), strlen(text_of(record, "id")));

    if (r < 0)
        return r;
    out_line("%sJob %s%s %s%s%s%s%s%s", style_on(STYLE_BOLD), safe.data, style_off(STYLE_BOLD),
             style_on(style_of_state(state)), state, phase != NULL ? " (" : "",
             phase != NULL ? phase : "", phase != NULL ? ")" : "",
             style_off(style_of_state(state)));
    return 0;
}

static int print_record(const json_t *record)
{
    static const struct {
        const char *label, *key;
    } plain[] = { { "Queue", "queue" },  { "Unique", "unique" },      { "Created", "created_at" },
                  { "Due", "due_at" },   { "Started", "started_at" }, { "Finished", "finished_at" },
                  { "Worker", "worker" } },
      after[] = { { "Error", "error" },
                  { "Progress", "progress" },
                  { "Result", "result" },
                  { "Containment", "containment" },
                  { "Limits", "limits_enforced" } };

    int r = print_head(record);
    if (r == 0)
        r = print_command(record);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(plain); i++)
        r = print_value(plain[i].label, json_object_get(record, plain[i].key));
    if (r == 0)
        r = print_attempts(record);
    if (r == 0)
        r = print_ending(record);
    for (size_t i = 0; r == 0 && i < ARRAY_LEN(after); i++) {
        const json_t *value = json_object_get(record, after[i].key);
        if (!json_is_string(value) || json_string_length(value) > 0)
            r = print_value(after[i].label, value);
    }
    if (r == 0)
        r = print_usage(record);
    if (r == 0)
        r = print_stream(record, "stdout");
    if (r == 0)
        r = print_stream(record, "stderr");
    if (r == 0)
        r = print_history(record);
    if (r == 0)
        r = print_tail(record, "stdout");
    return r < 0 ? r : print_tail(record, "stderr");
}

static int show_one(struct cli *cli, struct client *client, const char *id)
{
    struct mandor_err err;
    json_t *record = NULL;

    err_clear(&err);
    if (client_record(client, id, &record, &err) < 0)
        return cli_fail(cli, &err);

    int r = !cli->json            ? print_record(record)
            : cli->arg_count == 1 ? out_json_pretty(record)
                                  : out_json(record);
    json_decref(record);
    if (r == 0)
        return EXIT_OK;
    (void)err_set(&err, r, FAULT_HOST, "print job '%s'", id);
    return cli_fail(cli, &err);
}

int cmd_show(struct cli *cli)
{
    struct client client;
    struct mandor_err err;
    int code = EXIT_OK;

    err_clear(&err);
    if (client_open(cli, CLIENT_LOOK, &client, &err) < 0)
        code = cli_fail(cli, &err);
    else
        for (size_t i = 0; i < cli->arg_count && !out_broken(); i++)
            code = worse_exit(code, show_one(cli, &client, cli->args[i]));
    client_close(&client);
    return code;
}

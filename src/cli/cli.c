/* cli.c - contract in cli.h: the tables at run time and the parser over them. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/units.h"
#include "cli/job.h"
#include "cli/out.h"
#include "job/spec.h"

struct cli_value {
    const struct cli_option *option;
    const char *text;
    int64_t number; /* CLI_INT, CLI_DURATION, CLI_SIZE */
};

static const struct cli_command commands[] = {
#define COMMAND(name_, takes_, min_, max_, usage_, summary_, text_) \
    { .name = #name_,                                               \
      .run = cmd_##name_,                                           \
      .takes = (takes_),                                            \
      .min = (min_),                                                \
      .max = (max_),                                                \
      .usage = (usage_),                                            \
      .summary = (summary_),                                        \
      .text = (text_) },
#define OPTION(command, name, letter, arg, type, help)
#include "cli/cmds.def"
#undef COMMAND
#undef OPTION
};

static const struct cli_option options[] = {
#define COMMAND(name, takes, min, max, usage, summary, text)
#define OPTION(command_, name_, letter_, arg_, type_, help_) \
    { .command = (command_),                                 \
      .name = (name_),                                       \
      .letter = (letter_),                                   \
      .arg = (arg_),                                         \
      .type = (type_),                                       \
      .help = (help_) },
#include "cli/cmds.def"
#undef COMMAND
#undef OPTION
};

static const struct {
    const char *flag;
    char letter;
} job_letters[] = { { "queue", 'q' } };

/* ---- the tables ---- */

const struct cli_command *cli_commands(size_t *ret_count)
{
    *ret_count = ARRAY_LEN(commands);
    return commands;
}

const struct cli_command *cli_find_command(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (str_eq(commands[i].name, name))
            return &commands[i];
    return NULL;
}

/* command NULL (before the command's name): common options only. */
static bool offers(const struct cli_command *command, const struct cli_option *option)
{
    if (option->command[0] != '\0')
        return command != NULL && str_eq(option->command, command->name);
    if (command == NULL || str_eq(option->name, "help") || str_eq(option->name, "version"))
        return true;
    unsigned needs = str_eq(option->name, "json")     ? TAKES_JSON
                     : str_eq(option->name, "config") ? TAKES_BROKER | TAKES_CONFIG
                                                      : TAKES_BROKER;
    return (command->takes & needs) != 0;
}

void cli_each_option(const struct cli_command *command,
                     void (*fn)(const struct cli_option *option, void *arg), void *arg)
{
    for (int common = 0; common < 2; common++)
        for (size_t i = 0; i < ARRAY_LEN(options); i++)
            if ((options[i].command[0] == '\0') == (common == 1) && offers(command, &options[i]))
                fn(&options[i], arg);
}

static const struct cli_option *find_option(const struct cli_command *command, const char *name,
                                            size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        if (offers(command, &options[i]) && strncmp(options[i].name, name, len) == 0 &&
            options[i].name[len] == '\0')
            return &options[i];
    return NULL;
}

static const struct cli_option *find_letter(const struct cli_command *command, char letter)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        if (options[i].letter == letter && offers(command, &options[i]))
            return &options[i];
    return NULL;
}

/* Does a job option only mean something to a queue?  `run` does without it. */
static bool needs_queue(const char *key)
{
    return spec_is_place(key) || str_eq(key, "no_retry_exit_codes") || str_eq(key, "pool") ||
           str_eq(key, "data");
}

/* A command's own option hides the job option of the same name. */
static bool offers_job(const struct cli_command *command, const struct spec_option *option)
{
    if (command == NULL || (command->takes & TAKES_JOB) == 0 || option->flag == NULL)
        return false;
    if ((command->takes & TAKES_QUEUED) == 0 && needs_queue(option->key))
        return false;
    return find_option(command, option->flag, strlen(option->flag)) == NULL;
}

void cli_each_job_option(const struct cli_command *command,
                         void (*fn)(const struct spec_option *option, void *arg), void *arg)
{
    size_t count;
    const struct spec_option *all = spec_options(&count);

    for (size_t i = 0; i < count; i++)
        if (offers_job(command, &all[i]))
            fn(&all[i], arg);
}

static const struct spec_option *find_job_option(const struct cli_command *command,
                                                 const char *flag, size_t len)
{
    size_t count;
    const struct spec_option *all = spec_options(&count);

    for (size_t i = 0; i < count; i++)
        if (offers_job(command, &all[i]) && strncmp(all[i].flag, flag, len) == 0 &&
            all[i].flag[len] == '\0')
            return &all[i];
    return NULL;
}

char cli_job_letter(const char *flag)
{
    for (size_t i = 0; i < ARRAY_LEN(job_letters); i++)
        if (str_eq(job_letters[i].flag, flag))
            return job_letters[i].letter;
    return '\0';
}

static const char *job_flag_of(char letter)
{
    for (size_t i = 0; i < ARRAY_LEN(job_letters); i++)
        if (job_letters[i].letter == letter)
            return job_letters[i].flag;
    return NULL;
}

/* ---- unknown words ---- */

#define NAMES_MAX 128

struct names {
    const char *at[NAMES_MAX];
    size_t count;
};

static void note_name(struct names *names, const char *name)
{
    BUG_ON(names->count == NAMES_MAX);
    names->at[names->count++] = name;
}

static void note_option(const struct cli_option *option, void *arg)
{
    note_name(arg, option->name);
}

static void note_job_option(const struct spec_option *option, void *arg)
{
    note_name(arg, option->flag);
}

static int unknown_option(const struct cli_command *command, const char *name, size_t len,
                          struct mandor_err *err)
{
    struct names names = { .count = 0 };
    char word[64];

    cli_each_option(command, note_option, &names);
    cli_each_job_option(command, note_job_option, &names);
    (void)snprintf(word, sizeof word, "%.*s", (int)MIN(len, sizeof word - 1), name);

    const char *near = units_nearest(word, names.at, names.count);
    if (near != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, "unknown option '--%s', did you mean '--%s'?",
                       word, near);
    return err_set(err, -EINVAL, FAULT_CALLER, "unknown option '--%s'", word);
}

static int unknown_command(const char *word, struct mandor_err *err)
{
    struct names names = { .count = 0 };

    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if ((commands[i].takes & TAKES_HIDDEN) == 0)
            note_name(&names, commands[i].name);

    const char *near = units_nearest(word, names.at, names.count);
    if (near != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, "unknown command '%.64s', did you mean '%s'?",
                       word, near);
    return err_set(err, -EINVAL, FAULT_CALLER,
                   "unknown command '%.64s'; 'mandor help' lists the commands", word);
}

/* ---- the parser ---- */

/* argv with a place in it. */
struct scan {
    char **argv;
    int argc, at;
};

static int check_value(const struct cli_option *option, const char *text, int64_t *ret,
                       struct mandor_err *err)
{
    int r = 0;

    if (option->type == CLI_INT)
        r = units_parse_int(text, 0, INT64_MAX, ret, err);
    else if (option->type == CLI_DURATION)
        r = units_parse_duration(text, ret, err);
    else if (option->type == CLI_SIZE)
        r = units_parse_size(text, ret, err);
    return r < 0 ? err_wrap(err, r, "option '--%s'", option->name) : 0;
}

static int keep_option(struct cli *cli, const struct cli_option *option, const char *text,
                       struct mandor_err *err)
{
    int64_t number = 0;
    int r = check_value(option, text, &number, err);
    if (r < 0)
        return r;

    struct cli_value *grown = reallocarray(cli->values, cli->value_count + 1, sizeof *cli->values);
    if (grown == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the command line");
    cli->values = grown;
    cli->values[cli->value_count++] =
        (struct cli_value){ .option = option, .text = text, .number = number };

    if (option->command[0] != '\0')
        return 0;
    if (str_eq(option->name, "json"))
        cli->json = true;
    else if (str_eq(option->name, "help"))
        cli->help = true;
    else if (str_eq(option->name, "version"))
        cli->version = true;
    else if (str_eq(option->name, "broker"))
        cli->broker = text;
    else
        cli->config_path = text;
    return 0;
}

/* A relative path means the caller's directory, whoever reads it later. */
static int keep_job_option(struct cli *cli, const struct spec_option *option, const char *text,
                           struct mandor_err *err)
{
    char *absolute = NULL;
    int r = job_absolute(option->key, text, &absolute, err);
    if (r < 0)
        return r;

    r = spec_set_flag(cli->job, option->flag, absolute != NULL ? absolute : text, err);
    free(absolute);
    return r;
}

/* The argument of an option: what is glued to it, or the next word. */
static int argument(struct scan *scan, const char *name, const char *arg, const char *glued,
                    const char **ret, struct mandor_err *err)
{
    if (glued == NULL && scan->at >= scan->argc)
        return err_set(err, -EINVAL, FAULT_CALLER, "option '--%s' needs an argument %s", name,
                       arg != NULL ? arg : "");
    *ret = glued != NULL ? glued : scan->argv[scan->at++];
    return 0;
}

static int take_known(struct cli *cli, struct scan *scan, const struct cli_option *option,
                      const char *glued, struct mandor_err *err)
{
    const char *text = "";

    if (option->type == CLI_FLAG) {
        if (glued != NULL)
            return err_set(err, -EINVAL, FAULT_CALLER, "option '--%s' takes no argument",
                           option->name);
        return keep_option(cli, option, text, err);
    }

    int r = argument(scan, option->name, option->arg, glued, &text, err);
    return r < 0 ? r : keep_option(cli, option, text, err);
}

static int take_job(struct cli *cli, struct scan *scan, const struct spec_option *option,
                    const char *glued, struct mandor_err *err)
{
    const char *text = "true";

    if (option->type != OPT_BOOL || glued != NULL) {
        int r = argument(scan, option->flag, option->arg, glued, &text, err);
        if (r < 0)
            return r;
    }
    return keep_job_option(cli, option, text, err);
}

static int take_long(struct cli *cli, struct scan *scan, const char *word, struct mandor_err *err)
{
    const char *name = word + 2;
    size_t len = strcspn(name, "=");
    const char *glued = name[len] == '=' ? name + len + 1 : NULL;

    const struct cli_option *option = find_option(cli->command, name, len);
    if (option != NULL)
        return take_known(cli, scan, option, glued, err);
    const struct spec_option *job = find_job_option(cli->command, name, len);
    if (job != NULL)
        return take_job(cli, scan, job, glued, err);
    return unknown_option(cli->command, name, len, err);
}

/* "-f", "-fn5", "-n 5". */
static int take_short(struct cli *cli, struct scan *scan, const char *word, struct mandor_err *err)
{
    for (const char *p = word + 1; *p != '\0'; p++) {
        const struct cli_option *option = find_letter(cli->command, *p);
        const char *flag = job_flag_of(*p);
        const char *glued = p[1] != '\0' ? p + 1 : NULL;
        int r;

        if (option != NULL && option->type == CLI_FLAG) {
            r = take_known(cli, scan, option, NULL, err);
            if (r < 0)
                return r;
            continue;
        }
        if (option != NULL)
            return take_known(cli, scan, option, glued, err);

        const struct spec_option *job =
            flag != NULL ? find_job_option(cli->command, flag, strlen(flag)) : NULL;
        if (job != NULL)
            return take_job(cli, scan, job, glued, err);
        return err_set(err, -EINVAL, FAULT_CALLER, "unknown option '-%c' in '%.64s'", *p, word);
    }
    return 0;
}

static int pick_command(struct cli *cli, const char *word, struct mandor_err *err)
{
    const struct cli_command *command = cli_find_command(word);
    if (command == NULL)
        return unknown_command(word, err);

    for (size_t i = 0; i < cli->value_count; i++)
        if (!offers(command, cli->values[i].option))
            return err_set(err, -EINVAL, FAULT_CALLER, "'%s' has no option '--%s'", word,
                           cli->values[i].option->name);

    cli->command = command;
    if ((command->takes & TAKES_JOB) != 0 && (cli->job = json_object()) == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the command line");
    return 0;
}

static int check_operands(const struct cli *cli, struct mandor_err *err)
{
    const struct cli_command *command = cli->command;

    if (command == NULL || cli->help || cli->version)
        return 0;
    const char *space = command->usage[0] != '\0' ? " " : "";
    if (cli->arg_count < (size_t)command->min)
        return err_set(err, -EINVAL, FAULT_CALLER, "%s; usage: mandor %s%s%s",
                       (command->takes & TAKES_COMMAND) != 0 ? "no command"
                                                             : "an argument is missing",
                       command->name, space, command->usage);
    if (command->max >= 0 && cli->arg_count > (size_t)command->max)
        return err_set(err, -EINVAL, FAULT_CALLER, "unexpected '%.64s'; usage: mandor %s%s%s",
                       cli->args[command->max], command->name, space, command->usage);
    return 0;
}

/* One word: an option, the command's name, or an operand.  *only_operands is set behind "--". */
static int take_word(struct cli *cli, struct scan *scan, bool *only_operands,
                     struct mandor_err *err)
{
    char *word = scan->argv[scan->at++];

    if (!*only_operands && str_eq(word, "--")) {
        *only_operands = true;
        return 0;
    }
    if (!*only_operands && word[0] == '-' && word[1] == '-')
        return take_long(cli, scan, word, err);
    if (!*only_operands && word[0] == '-' && word[1] != '\0')
        return take_short(cli, scan, word, err);
    if (cli->command == NULL)
        return pick_command(cli, word, err);

    cli->operands[cli->arg_count++] = word;
    if ((cli->command->takes & TAKES_COMMAND) != 0)
        *only_operands = true;
    return 0;
}

int cli_parse(int argc, char **argv, struct cli *cli, struct mandor_err *err)
{
    struct scan scan = { .argv = argv, .argc = argc, .at = 1 };
    bool only_operands = false;

    *cli = (struct cli){ .operands = calloc((size_t)MAX(argc, 0) + 1, sizeof *cli->operands) };
    if (cli->operands == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the command line");
    cli->args = cli->operands;

    while (scan.at < scan.argc) {
        int r = take_word(cli, &scan, &only_operands, err);
        if (r < 0)
            return r;
    }
    return check_operands(cli, err);
}

void cli_done(struct cli *cli)
{
    json_decref(cli->job);
    free(cli->values);
    free(cli->operands);
    *cli = (struct cli){ .command = NULL };
}

/* ---- what was given ---- */

/* The nth value of an option that the command offers, or NULL. */
static const struct cli_value *value_of(const struct cli *cli, const char *name, size_t nth)
{
    BUG_ON(find_option(cli->command, name, strlen(name)) == NULL);

    for (size_t i = 0; i < cli->value_count; i++)
        if (str_eq(cli->values[i].option->name, name) && nth-- == 0)
            return &cli->values[i];
    return NULL;
}

static const struct cli_value *last_value_of(const struct cli *cli, const char *name)
{
    const struct cli_value *last = NULL, *value;

    for (size_t i = 0; (value = value_of(cli, name, i)) != NULL; i++)
        last = value;
    return last;
}

bool cli_flag(const struct cli *cli, const char *name)
{
    return value_of(cli, name, 0) != NULL;
}

const char *cli_text(const struct cli *cli, const char *name)
{
    const struct cli_value *value = last_value_of(cli, name);
    return value != NULL ? value->text : NULL;
}

const char *cli_text_nth(const struct cli *cli, const char *name, size_t nth)
{
    const struct cli_value *value = value_of(cli, name, nth);
    return value != NULL ? value->text : NULL;
}

int64_t cli_number(const struct cli *cli, const char *name, int64_t fallback)
{
    const struct cli_value *value = last_value_of(cli, name);
    return value != NULL ? value->number : fallback;
}

/* ---- complaints ---- */

static void complain(const struct cli *cli, const char *text)
{
    const char *name = cli->command != NULL ? cli->command->name : NULL;

    /* Data of others may be quoted in the text: a terminal must not be steered by it. */
    SCOPED_BUF safe = { .data = NULL };
    if (buf_adds(&safe, "mandor") < 0 || (name != NULL && buf_addf(&safe, " %s", name) < 0) ||
        buf_adds(&safe, ": ") < 0 || text_escape(&safe, text, strlen(text)) < 0 ||
        buf_adds(&safe, "\n") < 0)
        return;
    out_flush();
    (void)fputs(safe.data, stderr);
}

int cli_fail(const struct cli *cli, const struct mandor_err *err)
{
    complain(cli, err->msg);
    return err_exit_code(err);
}

static void vcomplain(const struct cli *cli, const char *fmt, va_list args)
{
    char text[512];

    (void)vsnprintf(text, sizeof text, fmt, args);
    complain(cli, text);
}

void cli_warn(const struct cli *cli, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vcomplain(cli, fmt, args);
    va_end(args);
}

int cli_usage(const struct cli *cli, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vcomplain(cli, fmt, args);
    va_end(args);
    if (cli->command != NULL)
        (void)fprintf(stderr, "Try 'mandor %s --help'.\n", cli->command->name);
    else
        (void)fputs("Try 'mandor --help'.\n", stderr);
    return EXIT_USAGE;
}

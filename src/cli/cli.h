/* cli.h - the frame of the command line: one table of commands and options (cmds.def), one parser, one help.
 *
 *     argv ──▶ cli_parse() ──▶ struct cli ──▶ command->run(cli) ──▶ exit code
 *
 * A command reads its options by name: cli_flag(), cli_text(), cli_number().  A name that the table does not give to the
 * command is a bug and says so at once.  Job options come from job/options.def and are gathered in cli->job as the JSON
 * object that spec_from_json() takes.  Main thread only.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"

/* Exit codes of all commands but `run` (which mirrors its child's). */
enum cli_exit {
    EXIT_OK = 0,
    EXIT_FAILED = 1,    /* a job or an operation failed */
    EXIT_USAGE = 2,     /* the command line or a job was wrong */
    EXIT_NOT_FOUND = 3, /* no such job, no such queue */
    EXIT_REFUSED = 4,   /* not possible in this state */
    EXIT_TIMED_OUT = 124,
    EXIT_HOST = 125, /* broker or machine */
};

/* What a command takes beside its own options. */
enum cli_takes {
    TAKES_NOTHING = 0,
    TAKES_BROKER = 1 << 0,  /* --broker, --config */
    TAKES_JSON = 1 << 1,    /* --json */
    TAKES_JOB = 1 << 2,     /* the job options of job/options.def */
    TAKES_QUEUED = 1 << 3,  /* with TAKES_JOB: those too that only mean something in a queue */
    TAKES_COMMAND = 1 << 4, /* the operands are a command: options end at the first */
    TAKES_HIDDEN = 1 << 5,  /* not in lists */
    TAKES_CONFIG = 1 << 6,  /* --config, without --broker */
};

enum cli_type {
    CLI_FLAG,     /* --json */
    CLI_TEXT,     /* --from FILE; the last one wins */
    CLI_TEXTS,    /* --queue Q, may be repeated */
    CLI_INT,      /* >= 0 */
    CLI_DURATION, /* in ms */
    CLI_SIZE,     /* in bytes */
};

struct cli_option {
    const char *command; /* "" = common */
    const char *name;    /* without dashes */
    char letter;         /* 0 = none */
    const char *arg;     /* the argument's name in help; NULL with CLI_FLAG */
    enum cli_type type;
    const char *help;
};

struct cli;

struct cli_command {
    const char *name;
    int (*run)(struct cli *cli); /* returns the exit code */
    unsigned takes;              /* enum cli_takes */
    int min, max;                /* operands; max -1 = any number */
    const char *usage;           /* behind "mandor NAME" */
    const char *summary;         /* for the list of commands */
    const char *text;            /* paragraphs for help and man page */
};

struct cli {
    const struct cli_command *command; /* NULL: `mandor` alone */
    char *const *args;                 /* operands, NULL-terminated */
    size_t arg_count;
    json_t *job;             /* job options as given, an object; NULL unless TAKES_JOB */
    bool json;               /* --json */
    bool help, version;      /* asked for: nothing else counts */
    const char *broker;      /* --broker or NULL */
    const char *config_path; /* --config or NULL */
    struct cli_value *values;
    size_t value_count;
    char **operands; /* backs args */
};

/* Take argv (borrowed for the life of cli) apart.  Returns 0, or -EINVAL or -ERANGE with *err naming the word and what was expected.
 * cli_done() in both cases. */
MUST_CHECK int cli_parse(int argc, char **argv, struct cli *cli, struct mandor_err *err);
void cli_done(struct cli *cli);

bool cli_flag(const struct cli *cli, const char *name);
const char *cli_text(const struct cli *cli, const char *name); /* or NULL */
/* CLI_TEXTS; NULL behind the last. */
const char *cli_text_nth(const struct cli *cli, const char *name, size_t nth);
int64_t cli_number(const struct cli *cli, const char *name, int64_t fallback);

/* Complain on stderr: "mandor NAME: message".  cli_fail() returns err's exit code; cli_usage() adds where help is and
 * returns EXIT_USAGE; cli_warn() goes on. */
int cli_fail(const struct cli *cli, const struct mandor_err *err);
int cli_usage(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);
void cli_warn(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- the tables ---- */

const struct cli_command *cli_commands(size_t *ret_count);
const struct cli_command *cli_find_command(const char *name); /* or NULL */
/* Call fn for each option of command in the order of help: its own, then common ones.  Job options are not among them. */
void cli_each_option(const struct cli_command *command,
                     void (*fn)(const struct cli_option *option, void *arg), void *arg);
/* Call fn for each job option (struct spec_option) of command that has a flag. */
struct spec_option;
void cli_each_job_option(const struct cli_command *command,
                         void (*fn)(const struct spec_option *option, void *arg), void *arg);
char cli_job_letter(const char *flag); /* short form of a job option, or 0 */

/* ---- help.c ---- */

void help_overview(void);                             /* `mandor` alone */
void help_commands(void);                             /* `mandor --help` */
void help_command(const struct cli_command *command); /* `mandor NAME --help` */

/* ---- the commands: cmd_NAME(), one file each ---- */

#define COMMAND(name, takes, min, max, usage, summary, text) int cmd_##name(struct cli *cli);
#define OPTION(command, name, letter, arg, type, help)
#include "cli/cmds.def"
#undef COMMAND
#undef OPTION

#endif

/* help.c - help, man page and completion, all from the tables. */
#include <ctype.h>
#include <stdio.h>

#include "base/buf.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "job/spec.h"
#include "job/verdict.h"

#define HELP_COLUMN    28 /* where an option's text starts */
#define HELP_WIDTH     100
#define HELP_NARROWEST 40

static size_t line_width(void)
{
    int columns = out_columns();
    return columns > 0 ? MIN(MAX((size_t)columns, (size_t)HELP_NARROWEST), (size_t)HELP_WIDTH)
                       : HELP_WIDTH;
}

/* Where the text of an option starts: in a narrow terminal below the option. */
static size_t help_column(void)
{
    return line_width() < 2 * HELP_COLUMN ? 8 : HELP_COLUMN;
}

static void new_line(size_t indent)
{
    (void)printf("\n%*s", (int)indent, "");
}

/* Print text broken at spaces; indent: where the cursor is and where further lines start.  A newline in the text ends a
 * paragraph. */
static void wrap(const char *text, size_t indent)
{
    size_t width = line_width(), column = indent, gap = 0; /* gap: spaces that wait for a word */

    while (*text != '\0') {
        size_t len = strcspn(text, " \n");
        if (len > 0 && column > indent && column + gap + len > width) {
            new_line(indent);
            column = indent;
        } else if (len > 0 && column > indent) {
            (void)printf("%*s", (int)gap, "");
            column += gap;
        }
        gap = len > 0 ? 1 : gap + 1;
        (void)printf("%.*s", (int)len, text);
        column += len;
        if (text[len] == '\n') {
            new_line(indent);
            column = indent;
        }
        text += len + (text[len] != '\0');
    }
    (void)putchar('\n');
}

/* ---- lists ---- */

static void print_names(void)
{
    size_t count;
    const struct cli_command *all = cli_commands(&count);

    for (size_t i = 0; i < count; i++)
        if ((all[i].takes & TAKES_HIDDEN) == 0)
            out_line("  %-8s  %s", all[i].name, all[i].summary);
}

void help_overview(void)
{
    out_line("mandor %s: runs jobs from a queue as real processes and leaves none behind.\n",
             MANDOR_VERSION);
    out_line("First steps:");
    out_line("  mandor run -- make -j4          run one command under supervision, now");
    out_line("  mandor add -- sh -c 'echo hi'   put a job into the queue; prints its id");
    out_line("  mandor add --python job.py      the same for Python code, in a sandbox");
    out_line("  mandor work                     run what is queued, until Ctrl-C");
    out_line("  mandor ls                       see the jobs");
    out_line("  mandor logs ID                  see what one of them printed\n");
    out_line("'mandor help' lists all commands, 'mandor help COMMAND' explains one, "
             "'mandor doctor' checks this machine.");
}

void help_commands(void)
{
    out_line("Usage: mandor COMMAND [OPTION…] [ARGUMENT…]\n\nCommands:");
    print_names();
    out_line("\nCommon options:");
    out_line("  --broker URL    broker to use (else $MANDOR_BROKER, the configuration, sqlite:)");
    out_line("  --config FILE   configuration file");
    out_line("  --json          print JSON and nothing else");
    out_line("  -h, --help      print help, of a command when it is named");
    out_line("  -V, --version   print the version");
    out_line(
        "\nExit codes: 0 ok, 1 a job or operation failed, 2 usage, 3 not found, 4 refused in this "
        "state,\n124 timed out, 125 broker or machine. `run` exits with its command's code.");
}

/* ---- one command ---- */

/* One option, whichever table it came from. */
struct row {
    const char *name, *arg, *help, *fallback, *choices;
    char letter;
    bool repeatable;
};

typedef void row_fn(const struct row *row, void *arg);

struct each {
    row_fn *fn;
    void *arg;
    const struct cli_command *command;
};

/* `run` has no queue to keep output in: its sinks are its own streams unless it is told otherwise. */
static const char *fallback_of(const struct cli_command *command, const struct spec_option *option)
{
    bool sink = str_eq(option->key, "stdout") || str_eq(option->key, "stderr");

    return sink && (command->takes & TAKES_QUEUED) == 0 ? "inherit:" : option->fallback;
}

static void own_row(const struct cli_option *option, void *arg)
{
    const struct each *each = arg;
    struct row row = { .name = option->name,
                       .arg = option->arg,
                       .help = option->help,
                       .letter = option->letter,
                       .repeatable = option->type == CLI_TEXTS };

    each->fn(&row, each->arg);
}

static void job_row(const struct spec_option *option, void *arg)
{
    const struct each *each = arg;
    struct row row = { .name = option->flag,
                       .arg = option->type == OPT_BOOL ? NULL : option->arg,
                       .help = option->help,
                       .fallback = fallback_of(each->command, option),
                       .choices = option->type == OPT_ENUM ? option->choices : NULL,
                       .letter = cli_job_letter(option->flag),
                       .repeatable = option->type == OPT_ENV || option->type == OPT_SINKS };

    if (row.arg == NULL && option->type != OPT_BOOL)
        row.arg = "VALUE";
    each->fn(&row, each->arg);
}

static void each_own(const struct cli_command *command, row_fn *fn, void *arg)
{
    struct each each = { .fn = fn, .arg = arg };
    cli_each_option(command, own_row, &each);
}

static void each_job(const struct cli_command *command, row_fn *fn, void *arg)
{
    struct each each = { .fn = fn, .arg = arg, .command = command };
    cli_each_job_option(command, job_row, &each);
}

static void print_option(const struct row *row, void *arg)
{
    char letter[8] = "    ";
    char head[128];

    if (row->letter != '\0')
        (void)snprintf(letter, sizeof letter, "-%c, ", row->letter);
    (void)snprintf(head, sizeof head, "  %s--%s%s%s", letter, row->name,
                   row->arg != NULL ? " " : "", row->arg != NULL ? row->arg : "");
    size_t column = help_column();
    (void)printf("%-*s", (int)column - 2, head);
    if (strlen(head) + 4 > column)
        new_line(column - 2);
    (void)fputs("  ", stdout);

    char text[512];
    (void)snprintf(text, sizeof text, "%s%s%s%s%s%s%s", row->help, row->choices != NULL ? ": " : "",
                   row->choices != NULL ? row->choices : "",
                   row->repeatable && strstr(row->help, "repeated") == NULL ? " (may be repeated)"
                                                                            : "",
                   row->fallback != NULL && row->fallback[0] != '\0' ? " (default " : "",
                   row->fallback != NULL ? row->fallback : "",
                   row->fallback != NULL && row->fallback[0] != '\0' ? ")" : "");
    wrap(text, column);
    (void)arg;
}

void help_command(const struct cli_command *command)
{
    char text[512];

    (void)snprintf(text, sizeof text, "mandor %s%s%s", command->name,
                   command->usage[0] != '\0' ? " " : "", command->usage);
    (void)fputs("Usage: ", stdout);
    wrap(text, strlen("Usage: "));
    (void)snprintf(text, sizeof text, "%s.", command->summary);
    (void)putchar('\n');
    wrap(text, 0);
    if (command->text != NULL) {
        (void)putchar('\n');
        wrap(command->text, 0);
    }
    out_line("\nOptions:");
    each_own(command, print_option, NULL);
    if ((command->takes & TAKES_JOB) != 0) {
        out_line("\nJob options:");
        each_job(command, print_option, NULL);
    }
}

/* ---- man page (scdoc) ---- */

/* scdoc takes these for markup, and a line that starts with a dash, dot, bar or colon for a list or table. */
static void print_scdoc(const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        bool line_start = p == text || p[-1] == '\n';
        if (strchr("*_\\#`<[", *p) != NULL || (line_start && strchr("-.|:", *p) != NULL))
            (void)putchar('\\');
        (void)putchar(*p);
        if (*p == '\n')
            (void)putchar('\n'); /* a paragraph of its own */
    }
}

static void man_option(const struct row *row, void *arg)
{
    (void)arg;
    if (row->letter != '\0')
        (void)printf("*-%c*, ", row->letter);
    (void)printf("*--%s*", row->name);
    if (row->arg != NULL) {
        (void)fputs(" _", stdout);
        print_scdoc(row->arg);
        (void)fputs("_", stdout);
    }
    (void)printf("\n\t%c", toupper((unsigned char)row->help[0]));
    print_scdoc(row->help + 1);
    if (row->choices != NULL) {
        (void)fputs(": ", stdout);
        print_scdoc(row->choices);
    }
    if (row->repeatable && strstr(row->help, "repeated") == NULL)
        (void)fputs(" (may be repeated)", stdout);
    if (row->fallback != NULL && row->fallback[0] != '\0') {
        (void)fputs(" (default ", stdout);
        print_scdoc(row->fallback);
        (void)fputs(")", stdout);
    }
    (void)fputs(".\n\n", stdout);
}

static void man_command(const struct cli_command *command)
{
    (void)printf("## mandor %s\n\n*mandor %s*%s", command->name, command->name,
                 command->usage[0] != '\0' ? " " : "");
    print_scdoc(command->usage);
    (void)fputs("\n\n", stdout);
    print_scdoc(command->summary);
    (void)fputs(".\n\n", stdout);
    if (command->text != NULL) {
        print_scdoc(command->text);
        (void)fputs("\n\n", stdout);
    }
    each_own(command, man_option, NULL);
    each_job(command, man_option, NULL);
}

/* scdoc of one command's options; NULL: all commands. */
static void print_man(const struct cli_command *command)
{
    size_t count;
    const struct cli_command *all = cli_commands(&count);

    if (command != NULL) {
        man_command(command);
        return;
    }
    for (size_t i = 0; i < count; i++)
        if ((all[i].takes & TAKES_HIDDEN) == 0)
            man_command(&all[i]);
}

/* ---- completion ---- */

/* What may stand behind an option, "a|b|c", or NULL. */
static const char *words_of(const struct row *row)
{
    static char states[128];

    if (row->choices != NULL)
        return row->choices;
    if (str_eq(row->name, "completion"))
        return "bash|zsh|fish";
    if (!str_eq(row->name, "state"))
        return NULL;
    states[0] = '\0';
    for (int state = 0; state < JOB_STATES; state++) {
        size_t len = strlen(states);
        (void)snprintf(states + len, sizeof states - len, "%s%s", state > 0 ? "|" : "",
                       job_state_name((enum job_state)state));
    }
    return states;
}

/* Is a path likely there? */
static bool wants_file(const struct row *row)
{
    static const char *const args[] = { "FILE", "DIR", "SRC", "SINK", "PATH", "FILE|-" };

    for (size_t i = 0; row->arg != NULL && i < ARRAY_LEN(args); i++)
        if (str_eq(row->arg, args[i]))
            return true;
    return false;
}

/* What a command takes beside options. */
static bool runs_command(const struct cli_command *command)
{
    return (command->takes & TAKES_COMMAND) != 0;
}

static bool takes_files(const struct cli_command *command)
{
    return str_eq(command->name, "wheels") || str_eq(command->name, "cat");
}

/* The words that its first operand may be, "a|b|c", or NULL. */
static const char *operands_of(const struct cli_command *command)
{
    return str_eq(command->name, "wheels")   ? "add|import|ls|verify|rm|export"
           : str_eq(command->name, "verify") ? "isolation"
                                             : NULL;
}

static void print_choices(const char *choices, const char *before, const char *behind)
{
    (void)fputs(before, stdout);
    for (const char *p = choices; *p != '\0'; p++)
        (void)putchar(*p == '|' ? ' ' : *p);
    (void)fputs(behind, stdout);
}

static void print_word(const struct row *row, void *arg)
{
    (void)arg;
    (void)printf(" --%s", row->name);
}

/* The values that a word behind an option may have: "--frame) words=... ;;". */
static void bash_choices(const struct row *row, void *arg)
{
    const char *words = words_of(row);

    (void)arg;
    if (words == NULL)
        return;
    (void)printf("    --%s) words=", row->name);
    print_choices(words, "\"", "\" ;;\n");
}

static void bash_file(const struct row *row, void *arg)
{
    (void)arg;
    if (wants_file(row))
        (void)printf("|--%s", row->name);
}

static void bash_values(void)
{
    out_line("    words=\n    case $prev in");
    each_job(cli_find_command("add"), bash_choices, NULL);
    each_own(cli_find_command("ls"), bash_choices, NULL);
    each_own(cli_find_command("help"), bash_choices, NULL);
    (void)fputs("    --config", stdout);
    each_own(cli_find_command("add"), bash_file, NULL);
    each_job(cli_find_command("add"), bash_file, NULL);
    each_own(cli_find_command("wheels"), bash_file, NULL);
    out_line(
        ") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n    esac\n"
        "    [[ -n $words ]] && { COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")); return; }");
}

static void complete_bash(void)
{
    size_t count;
    const struct cli_command *all = cli_commands(&count);

    out_line("# bash completion for mandor\n_mandor()\n{\n"
             "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words i "
             "command=\n"
             "    [[ $cur == = ]] && cur=\n"
             "    [[ $prev == = && COMP_CWORD -ge 2 ]] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"
             "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
             "        [[ ${COMP_WORDS[i]} == -- ]] && { COMPREPLY=($(compgen -c -- \"$cur\")); "
             "return; }\n"
             "        [[ -z $command && ${COMP_WORDS[i]} != -* ]] && command=${COMP_WORDS[i]}\n"
             "    done");
    bash_values();
    out_line("    case $command in");
    for (size_t i = 0; i < count; i++) {
        (void)printf("    %s) words=\"", all[i].name);
        each_own(&all[i], print_word, NULL);
        each_job(&all[i], print_word, NULL);
        for (size_t j = 0; str_eq(all[i].name, "help") && j < count; j++)
            (void)printf(" %s", all[j].name);
        if (operands_of(&all[i]) != NULL)
            print_choices(operands_of(&all[i]), " ", "");
        out_line("\" ;;");
    }
    (void)printf("    *) words=\"--help --version");
    for (size_t i = 0; i < count; i++)
        (void)printf(" %s", all[i].name);
    out_line("\" ;;\n    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
             "    [[ ${#COMPREPLY[@]} -eq 0 && $cur != -* ]] && COMPREPLY=($(compgen -f -- "
             "\"$cur\"))\n}\n"
             "complete -F _mandor mandor");
}

/* Text inside single quotes of zsh and fish. */
static void print_quoted(const char *text, const char *escape)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (strchr(escape, *p) != NULL)
            (void)putchar('\\');
        if (*p == '\'')
            (void)fputs("'\\''", stdout);
        else
            (void)putchar(*p);
    }
}

static void zsh_option(const struct row *row, void *arg)
{
    (void)arg;
    (void)printf("      '%s--%s%s[", row->repeatable ? "*" : "", row->name,
                 row->arg != NULL ? "=" : "");
    print_quoted(row->help, "[]:\\");
    (void)fputs("]", stdout);
    if (row->arg != NULL) {
        (void)fputs(":", stdout);
        print_quoted(row->arg, "[]:\\");
        const char *words = words_of(row);
        if (words != NULL)
            print_choices(words, ":(", ")");
        else
            (void)fputs(wants_file(row) ? ":_files" : ": ", stdout);
    }
    (void)fputs("' \\\n", stdout);
}

static void complete_zsh(void)
{
    size_t count;
    const struct cli_command *all = cli_commands(&count);

    out_line("#compdef mandor\n_mandor() {\n  local -a subcommands=(");
    for (size_t i = 0; i < count; i++) {
        (void)printf("    '%s:", all[i].name);
        print_quoted(all[i].summary, ":\\");
        out_line("'");
    }
    out_line("  )\n  if (( CURRENT == 2 )); then _describe command subcommands; return; fi\n"
             "  local command=$words[2]\n  words=(\"${words[@]:1}\"); (( CURRENT-- ))\n"
             "  local -i dashes=${words[(i)--]}\n"
             "  if (( dashes < CURRENT )); then # a command line of its own\n"
             "    words=(\"${(@)words[dashes+1,-1]}\"); (( CURRENT -= dashes )); _normal; return\n"
             "  fi\n"
             "  case $command in");
    for (size_t i = 0; i < count; i++) {
        out_line("    %s) _arguments -S \\", all[i].name);
        each_own(&all[i], zsh_option, NULL);
        each_job(&all[i], zsh_option, NULL);
        if (str_eq(all[i].name, "help"))
            out_line("      '1:command:(${subcommands%%%%:*})' ;;");
        else if (operands_of(&all[i]) != NULL)
            print_choices(operands_of(&all[i]), "      '1:what:(",
                          takes_files(&all[i]) ? ")' '*:argument:_files' ;;\n" : ")' ;;\n");
        else
            out_line("      '*:%s' ;;", runs_command(&all[i])  ? ":arguments:_normal"
                                        : takes_files(&all[i]) ? "argument:_files"
                                                               : "argument: ");
    }
    out_line("  esac\n}\n_mandor \"$@\"");
}

static void fish_option(const struct row *row, void *arg)
{
    const struct cli_command *command = arg;

    const char *words = words_of(row);

    (void)printf("complete -c mandor -n '__mandor_in %s' -l %s", command->name, row->name);
    if (row->letter != '\0')
        (void)printf(" -s %c", row->letter);
    if (words != NULL)
        print_choices(words, " -xa '", "'");
    else if (row->arg != NULL)
        (void)fputs(wants_file(row) ? " -r" : " -x", stdout);
    (void)fputs(" -d '", stdout);
    print_quoted(row->help, "");
    out_line("'");
}

static void complete_fish(void)
{
    size_t count;
    const struct cli_command *all = cli_commands(&count);

    out_line(
        "# fish completion for mandor\n"
        "function __mandor_in\n"
        "    set -l words (commandline -opc)\n"
        "    test (count $words) -gt 1; and test \"$words[2]\" = $argv[1]; and not contains -- "
        "-- $words\n"
        "end\n"
        "function __mandor_after_dashes\n"
        "    contains -- -- (commandline -opc)\n"
        "end\n"
        "function __mandor_command\n"
        "    set -l words (commandline -opc)\n"
        "    set -e words[1..(contains -i -- -- $words)]\n"
        "    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))\n"
        "end\n"
        "complete -c mandor -n __mandor_after_dashes -xa '(__mandor_command)'");
    for (size_t i = 0; i < count; i++) {
        (void)printf("complete -c mandor -n __fish_use_subcommand -f -a %s -d '", all[i].name);
        print_quoted(all[i].summary, "");
        out_line("'");
        if (runs_command(&all[i]))
            out_line("complete -c mandor -n '__mandor_in %s' -a '(__fish_complete_subcommand "
                     "--fcs-skip=2)'",
                     all[i].name);
        else if (!takes_files(&all[i]))
            out_line("complete -c mandor -n '__mandor_in %s' -f", all[i].name);
        for (size_t j = 0; str_eq(all[i].name, "help") && j < count; j++)
            out_line("complete -c mandor -n '__mandor_in help' -a %s", all[j].name);
        if (operands_of(&all[i]) != NULL) {
            (void)printf("complete -c mandor -n '__mandor_in %s' -a ", all[i].name);
            print_choices(operands_of(&all[i]), "'", "'\n");
        }
        each_own(&all[i], fish_option, (void *)(uintptr_t)&all[i]);
        each_job(&all[i], fish_option, (void *)(uintptr_t)&all[i]);
    }
}

/* bash, zsh or fish; -EINVAL. */
static int print_completion(const char *shell)
{
    static const struct {
        const char *shell;
        void (*print)(void);
    } shells[] = { { "bash", complete_bash }, { "zsh", complete_zsh }, { "fish", complete_fish } };

    for (size_t i = 0; i < ARRAY_LEN(shells); i++)
        if (str_eq(shells[i].shell, shell)) {
            shells[i].print();
            return 0;
        }
    return -EINVAL;
}

int cmd_help(struct cli *cli)
{
    const char *shell = cli_text(cli, "completion");
    const struct cli_command *about = NULL;

    if (shell != NULL)
        return print_completion(shell) == 0
                   ? EXIT_OK
                   : cli_usage(cli, "option '--completion': '%.32s' is not bash, zsh or fish",
                               shell);
    if (cli->arg_count > 0 && (about = cli_find_command(cli->args[0])) == NULL)
        return cli_usage(cli, "no command '%.64s'; 'mandor help' lists them", cli->args[0]);

    if (cli_flag(cli, "man"))
        print_man(about);
    else if (about != NULL)
        help_command(about);
    else
        help_commands();
    return EXIT_OK;
}

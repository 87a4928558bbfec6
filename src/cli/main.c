/* main.c - `mandor`: take the command line apart, run the command, end with its exit code. */

#include "cli/cli.h"
#include "cli/out.h"

static int run(struct cli *cli)
{
    if (cli->version) {
        out_line("mandor %s", MANDOR_VERSION);
        return EXIT_OK;
    }
    if (cli->help && cli->command == NULL) {
        help_commands();
        return EXIT_OK;
    }
    if (cli->help) {
        help_command(cli->command);
        return EXIT_OK;
    }
    if (cli->command == NULL) {
        help_overview();
        return EXIT_OK;
    }
    return cli->command->run(cli);
}

int main(int argc, char **argv)
{
    struct cli cli;
    struct mandor_err err;
    int code;

    out_setup();
    err_clear(&err);
    if (cli_parse(argc, argv, &cli, &err) < 0)
        code = err.fault == FAULT_CALLER ? cli_usage(&cli, "%s", err.msg) : cli_fail(&cli, &err);
    else
        code = run(&cli);
    cli_done(&cli);
    return out_end(code);
}

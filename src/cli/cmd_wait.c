/* cmd_wait.c - `mandor wait`. */
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/waiting.h"

int cmd_wait(struct cli *cli)
{
    int64_t timeout_ms = cli_number(cli, "timeout", -1);
    struct client client;
    struct mandor_err err;

    err_clear(&err);
    int r = client_open(cli, CLIENT_LOOK, &client, &err);
    int code = r < 0
                   ? cli_fail(cli, &err)
                   : waiting_for(cli, &client, cli->args, cli->arg_count, timeout_ms, waiting_tell);
    client_close(&client);
    return code;
}

/* cmd_run.c - `mandor run`. */
#include "cli/cli.h"

int cmd_run(struct cli *cli)
{
    struct mandor_err err;

    (void)err_set(&err, -ENOSYS, FAULT_BUG, "not built yet");
    return cli_fail(cli, &err);
}

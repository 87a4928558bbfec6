/* cmd_work.c - `mandor work`. */
#include "cli/cli.h"

int cmd_work(struct cli *cli)
{
    struct mandor_err err;

    (void)err_set(&err, -ENOSYS, FAULT_BUG, "not built yet");
    return cli_fail(cli, &err);
}

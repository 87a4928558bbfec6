/* stubs.c - stands in for commands and job options until their files land; goes away with them. */
#include "cli/cli.h"
#include "job/spec.h"

#define STUB(name)                                                \
    int cmd_##name(struct cli *cli)                               \
    {                                                             \
        struct mandor_err err;                                    \
        (void)err_set(&err, -ENOSYS, FAULT_BUG, "not built yet"); \
        return cli_fail(cli, &err);                               \
    }
STUB(add)
STUB(ls)
STUB(show)
STUB(logs)
STUB(wait)
STUB(cancel)
STUB(retry)
STUB(rm)
STUB(stats)
STUB(top)
STUB(pause)
STUB(resume)
STUB(doctor)

const struct spec_option *spec_options(size_t *ret_count)
{
    *ret_count = 0;
    return NULL;
}

int spec_set_flag(json_t *job, const char *flag, const char *text, struct mandor_err *err)
{
    return -ENOENT;
}

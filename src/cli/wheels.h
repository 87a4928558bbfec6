/* wheels.h - what the parts of `mandor wheels` share.  Main thread. */
#ifndef CLI_WHEELS_H
#define CLI_WHEELS_H

#include "cli/cli.h"
#include "config/config.h"

struct wheels {
    struct cli *cli;
    struct config *config; /* NULL when it was not needed */
    char *store;           /* absolute */
    char *const *args;     /* operands behind the subcommand, NULL-terminated */
    size_t arg_count;
};

/* Each returns the exit code; has said what was wrong. */
int wheels_add(struct wheels *wheels);
int wheels_import(struct wheels *wheels);

#endif

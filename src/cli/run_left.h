/* run_left.h - what `mandor run` notes of its sinks on other machines, so that the next one ends what a kill has left there (R85).
 *
 *    <state>/run/journal/<id>/   notes and temporary files of one run; the directory is locked (flock) while it lives
 *    <state>/run/left/           of dead ones, and what a run itself could not end
 *
 * Made only where a sink needs it.  Blocks, but not for long: before the loop runs, and after it. */
#ifndef CLI_RUN_LEFT_H
#define CLI_RUN_LEFT_H

#include "base/err.h"
#include "base/macro.h"

struct run_left {
    char *journal, *left; /* NULL = there is no place for them */
    int lock;
};

/* Make and lock the journal of id, and take over those of dead runs: files here are swept, notes go to `left`.
 * 0, also where neither XDG_STATE_HOME nor HOME is set, or -errno with *err.  Ended by run_left_close() in any case. */
MUST_CHECK int run_left_open(struct run_left *left, const char *id, struct mandor_err *err);
void run_left_close(struct run_left *left);

#endif

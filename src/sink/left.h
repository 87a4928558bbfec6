/* left.h - notes of what an attempt has begun on another machine, so that a crash leaves nothing there (R85).
 *
 *    <journal>/<id>.<attempt>.<stream>.left     while the attempt lives; a file of JSON, whole or absent, durable
 *    <data>/left/…                              what is to be ended: of dead workers, and where the attempt itself could not
 *
 * Blocking: pool threads. */
#ifndef SINK_LEFT_H
#define SINK_LEFT_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"
#include "sink/sink.h"

#define LEFT_SUFFIX ".left"

/* Where target's note lies, malloc'ed.  NULL without a journal, or when out of memory (then *ret_result is -ENOMEM). */
char *left_path(const struct sink_target *target, int *ret_result);
/* The directory of what is to be ended; malloc'ed or NULL. */
char *left_dir(const char *data_dir);

/* Write the note, in place of an older one.  Directories are made.  0 or -errno with *err. */
MUST_CHECK int left_note(const char *path, const json_t *what, struct mandor_err *err);
void left_forget(const char *path);
/* Hand it to who sweeps. */
MUST_CHECK int left_hand_over(const char *path, const char *dir, struct mandor_err *err);
/* The same with all notes of a dead worker's journal.  Returns how many, or -errno. */
MUST_CHECK int left_hand_over_all(const char *journal_dir, const char *dir, struct mandor_err *err);

#endif

/* data_dir.h - the directory that a broker keeps on this machine for its workers, and what dead workers left in it.
 *
 *     <dir>/run/NAME.lock   made before anything else of a worker, and locked while it or its guard lives; as soon as there is
 *                           something to clean up, its text says what (the text that BROKER_REGISTER takes)
 *     <dir>/run/NAME.live   its socket for followers, or a link to the one that it has with another broker
 *     <dir>/run/NAME.sock   how SQLite's workers wake each other
 *     <dir>/output, scratch, journal   of jobs
 */
#ifndef BROKER_DATA_DIR_H
#define BROKER_DATA_DIR_H

#include "base/err.h"
#include "base/macro.h"

/* Where mandor's own files are when nobody says where: $XDG_STATE_HOME/mandor/NAME or ~/.local/state/mandor/NAME.  Makes the
 * directories above it.  *ret: malloc'ed.
 * Returns 0; -ENODATA, with nothing in *err, when neither variable is set; or -errno with *err. */
MUST_CHECK int data_dir_standard(const char *name, char **ret, struct mandor_err *err);

/* Make "<path>.d" and the directories in it (closed to others but for passing through) where they are missing.  *ret: malloc'ed. */
MUST_CHECK int data_dir_make(const char *path, char **ret, struct mandor_err *err);

/* Remove <dir>/output/<id>: plain files and the directory.  Blocks. */
void data_dir_remove_output(const char *dir, const char *id);

/* Is the worker that holds this lock alive?  1: yes, or it may be; 0: no, and *ret_fd holds the lock now (-1 when the file is
 * gone).  lock_path: may be NULL or "": gone. */
int data_dir_worker_alive(const char *lock_path, int *ret_fd);

/* Remove path if it is still the file behind fd (may be -1): a successor of the same name may have made a new one. */
void data_dir_remove_lock(const char *path, int fd);

/* Empty and remove what dead workers left in <dir>/run: those whose lock is free.  Blocks: for a thread.
 *
 * own: this worker, left alone.
 * known: 1 = a worker of that name is left alone, too, 0 = not, < 0 ends the sweep; NULL = none is.  Asked again when the lock is held.
 * empty: as in BROKER_RECOVER; NULL = nothing can be emptied, so only signs without a lock go.
 * Returns 0, or what known returned. */
int data_dir_sweep(const char *dir, const char *own, int (*known)(const char *name, void *arg),
                   void *known_arg, int (*empty)(const char *text, void *arg), void *empty_arg);

#endif

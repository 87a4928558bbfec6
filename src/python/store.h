/* store.h - a directory of wheels, filled once, from which Python runtimes are started without any network.
 *
 *     DIR/lock.json                      what is in it (lockfile.h); replaced whole, so readers take no lock
 *     DIR/<16 digits of sha256>/<wheel>  never changed once there: other bytes are another directory
 *     DIR/.turn                          flock(2) of who changes something
 *     DIR/.tmp-XXXXXX                    what is being made; swept by the next change when its maker is gone
 *
 * A wheel is durable before the lock file names it, and is removed after the lock file has stopped naming it: a crash at any point
 * leaves a good store, and at most a file too many.  Everything here blocks: pool threads, or a command's main thread.
 */
#ifndef PYTHON_STORE_H
#define PYTHON_STORE_H

#include "python/lockfile.h"

#define STORE_LOCK_NAME "lock.json" /* below DIR */
#define STORE_RACES_MAX 10          /* changes of the store that one look at it outlives */

/* ---- reading ---- */

/* One wheel to load. */
struct store_wheel {
    char *name, *version;
    char *path;         /* absolute when the store's directory is */
    char *sha256;       /* of the file, small letters */
    int64_t size_bytes; /* of the file */
};

struct store_wheels {
    struct store_wheel *at; /* dependencies stand before who needs them, each once */
    size_t count;
};

/* Work out which wheels `packages` (NULL-terminated names, extras allowed: "pandas[excel]"; NULL = none) take, dependencies
 * included, and check that each file is there with the bytes that were put in (R104, R107).
 *
 * dir: the store; NULL is a store without packages.
 * Returns 0, ended by store_wheels_done(); else one sentence in *err: -ENOENT (FAULT_CALLER) no store, no such package or extra, or
 * a file that has gone; -EINVAL (FAULT_CALLER) a bad name or lock file; -EBADMSG (FAULT_CALLER) other bytes; other -errno (FAULT_HOST). */
MUST_CHECK int store_wheels(const char *dir, char *const *packages, struct store_wheels *ret,
                            struct mandor_err *err);
void store_wheels_done(struct store_wheels *wheels);

/* The lock of a store, a new reference.  Returns as store_wheels() does. */
MUST_CHECK int store_read(const char *dir, json_t **ret, struct mandor_err *err);
/* The lock in a file of any name; -errno of open(2) (FAULT_HOST). */
MUST_CHECK int store_read_file(const char *path, json_t **ret, struct mandor_err *err);
/* As store_wheels(), without looking at files: names of packages in the order of loading, from a lock that may not be on disk yet. */
MUST_CHECK int store_order(const json_t *lock, const char *dir, char *const *packages,
                           json_t **ret_names, struct mandor_err *err);
/* Check one package's file as store_wheels() does. */
MUST_CHECK int store_check_file(const char *dir, const char *name, const json_t *package,
                                struct mandor_err *err);
/* Path of a package's file, malloc'ed or NULL. */
char *store_path(const char *dir, const json_t *package);

/* ---- changing ---- */

struct store_edit;

/* Make the directory when it is not there, wait for the turn, sweep what crashes left, read the lock.  store_edit_free() gives the
 * turn back; without commit nothing has changed. */
MUST_CHECK int store_edit_begin(const char *dir, struct store_edit **ret, struct mandor_err *err);
struct store_edit *store_edit_free(struct store_edit *edit);
DEFINE_CLEANUP(struct store_edit *, store_edit_free)
/* The lock as it will be, borrowed. */
json_t *store_edit_lock(const struct store_edit *edit);
/* Copy the file at `from` in and note package (checked; borrowed) under name, in place of one that was there.
 * -ESTALE (FAULT_CALLER): the file has not the size and sha256 of package. */
MUST_CHECK int store_edit_put(struct store_edit *edit, const char *name, json_t *package,
                              const char *from, struct mandor_err *err);
/* Forget a package; -ENOENT (FAULT_CALLER). */
MUST_CHECK int store_edit_remove(struct store_edit *edit, const char *name, struct mandor_err *err);
/* Write the lock file, then remove the files that it does not name. */
MUST_CHECK int store_edit_commit(struct store_edit *edit, struct mandor_err *err);

/* A directory in the store to fetch files into; it belongs to the caller as long as *ret_fd is open.  *ret_path is malloc'ed. */
MUST_CHECK int store_staging(const char *dir, char **ret_path, int *ret_fd, struct mandor_err *err);

#endif

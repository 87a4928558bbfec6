/* store_traces.c - what remains of workers that no row names: killed before they had registered, or while they signed off.
 *
 * Each worker has <data>/run/<name>.lock, made before anything else of it and locked while it or its guard lives.  As soon as there is
 * something to clean up, the file's text says what (the same text that REGISTER stores).
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "broker/store.h"

#define TEXT_MAX 8192
#define YOUNG_S  5 /* a worker makes its lock file and then locks it: leave those two steps alone */

static int is_registered(struct store *store, const char *name)
{
    sqlite3_stmt *stmt = store_stmt(store, STMT_WORKER_KNOWN);
    bind_s(stmt, 1, name);
    int r = store_step(store, stmt);
    if (r == 1)
        (void)sqlite3_reset(stmt);
    return r;
}

/* "<name>.lock", "<name>.sock", "<name>.live": the name, or false for any other file. */
static bool name_of(const char *file, char *name, size_t size)
{
    const char *dot = strrchr(file, '.');
    if (dot == NULL || dot == file || (size_t)(dot - file) >= size ||
        (!str_eq(dot, ".lock") && !str_eq(dot, ".sock") && !str_eq(dot, ".live")))
        return false;
    (void)snprintf(name, size, "%.*s", (int)(dot - file), file);
    return true;
}

/* The lock of a dead worker: >= 0, held; -1: it lives, or may; -ENOENT: there is no file. */
static int take_dead_lock(int run_fd, const char *name)
{
    char file[NAME_MAX + 1];
    struct stat st;

    (void)snprintf(file, sizeof file, "%s.lock", name);
    SCOPED_FD fd = openat(run_fd, file, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? -ENOENT : -1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return -1;
    int64_t age_s = store_wall_ms() / 1000 - st.st_mtim.tv_sec;
    if ((age_s >= 0 && age_s < YOUNG_S) || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return -1;
    return STEAL_FD(fd);
}

/* Empty what the text names; one who had no time to write it is known by name alone.  false: not yet. */
static bool emptied(struct broker_req *req, int lock_fd, const char *name)
{
    char text[TEXT_MAX];
    ssize_t n = lock_fd < 0 ? 0 : RETRY_EINTR(pread(lock_fd, text, sizeof text - 1, 0));
    if (lock_fd < 0)
        return true; /* the lock goes last: this one had signed off */
    if (n > 0)
        text[n] = '\0';
    else
        (void)snprintf(text, sizeof text, "%s\n", name);
    return req->recover.empty != NULL && req->recover.empty(text, req->recover.arg) == 0;
}

static int sweep_one(struct store *store, struct broker_req *req, int run_fd, const char *name)
{
    static const char *const kinds[] = { "sock", "live", "lock" };
    if (str_eq(name, store->worker))
        return 0;
    int r = is_registered(store, name);
    if (r != 0)
        return MIN(r, 0);

    int lock = take_dead_lock(run_fd, name);
    SCOPED_FD lock_fd = MAX(lock, -1);
    if (lock == -1)
        return 0;
    /* it may have registered before we had the lock: then its row says what to do */
    r = is_registered(store, name);
    if (r != 0 || !emptied(req, lock_fd, name))
        return MIN(r, 0);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) { /* the lock last: it leads to the others */
        char file[NAME_MAX + 1];
        (void)snprintf(file, sizeof file, "%s.%s", name, kinds[i]);
        (void)unlinkat(run_fd, file, 0);
    }
    return 0;
}

int store_sweep_traces(struct store *store, struct broker_req *req)
{
    char path[PATH_MAX], name[sizeof store->worker];
    int r = 0;

    (void)snprintf(path, sizeof path, "%s/run", store->data_dir);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return 0; /* whoever needs it says so */
    store->rc = SQLITE_OK;
    for (struct dirent *entry; r == 0 && (entry = readdir(dir)) != NULL;)
        if (name_of(entry->d_name, name, sizeof name))
            r = sweep_one(store, req, dirfd(dir), name);
    (void)closedir(dir);
    return r < 0 ? store_error(store, &req->err) : 0;
}

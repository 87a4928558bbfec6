/* data_dir.c - contract in data_dir.h. */
#include "broker/data_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"

#define TEXT_MAX 8192
#define YOUNG_S  5

/* ---- directories ---- */

int data_dir_standard(const char *name, char **ret, struct mandor_err *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    SCOPED_FREE char *path = NULL;
    int n;

    if (state != NULL && state[0] == '/')
        n = asprintf(&path, "%s/mandor/%s", state, name);
    else if (home != NULL && home[0] == '/')
        n = asprintf(&path, "%s/.local/state/mandor/%s", home, name);
    else
        return -ENODATA;
    if (n < 0) {
        path = NULL;
        return err_set(err, -ENOMEM, FAULT_HOST, "find the place of '%s'", name);
    }
    int r = file_make_parents(path, 0700, NULL, err);
    if (r == 0)
        *ret = STEAL(path);
    return r;
}

static int make_dir(const char *path, mode_t mode, struct mandor_err *err)
{
    struct stat st;

    if (mkdir(path, mode) == 0)
        return 0;
    if (errno != EEXIST)
        return err_set(err, -errno, FAULT_HOST, "make directory '%s'", path);
    if (stat(path, &st) < 0)
        return err_set(err, -errno, FAULT_HOST, "look at '%s'", path);
    if (!S_ISDIR(st.st_mode))
        return err_set(err, -ENOTDIR, FAULT_HOST, "'%s' must be a directory", path);
    return 0;
}

int data_dir_make(const char *path, char **ret, struct mandor_err *err)
{
    /* A job that runs as another user passes through two of them to its own directories. */
    static const struct {
        const char *name;
        mode_t mode;
    } parts[] = { { "", 0711 },
                  { "/run", 0700 },
                  { "/output", 0700 },
                  { "/scratch", 0711 },
                  { "/journal", 0700 } };
    SCOPED_FREE char *dir = NULL;

    if (asprintf(&dir, "%s.d", path) < 0) {
        dir = NULL;
        return err_set(err, -ENOMEM, FAULT_HOST, "open '%s'", path);
    }
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        char part[PATH_MAX];
        (void)snprintf(part, sizeof part, "%s%s", dir, parts[i].name);
        int r = make_dir(part, parts[i].mode, err);
        if (r < 0)
            return r;
    }
    *ret = STEAL(dir);
    return 0;
}

void data_dir_remove_output(const char *dir, const char *id)
{
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/output/%s", dir, id) >= sizeof path)
        return;
    int fd = RETRY_EINTR(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    DIR *output = fd >= 0 ? fdopendir(fd) : NULL;
    if (output == NULL) { /* one that is gone already is as good */
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(output)) != NULL;)
        if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
            (void)unlinkat(dirfd(output), entry->d_name, 0);
    (void)closedir(output);
    (void)rmdir(path);
}

/* ---- locks ---- */

enum { LOCK_ALIVE = -1, LOCK_GONE = -2 };

/* A worker makes its lock file, locks it, and then writes into it.  So an empty young file may be one that is about to be locked;
 * a text in it means that it was locked: where it is free now, its worker is dead, however young the file. */
static bool is_being_made(const struct stat *st)
{
    int64_t age_s = clock_wall_ms() / 1000 - st->st_mtim.tv_sec;

    return st->st_size == 0 && age_s >= 0 && age_s < YOUNG_S;
}

/* The lock of a dead worker: its descriptor, held; LOCK_ALIVE: it lives, or may; LOCK_GONE: there is no file. */
static int take_dead_lock(int dir_fd, const char *path, bool leave_young)
{
    struct stat st;

    /* O_NONBLOCK: a FIFO of that name must not hold us up */
    SCOPED_FD fd =
        RETRY_EINTR(openat(dir_fd, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0)
        return errno == ENOENT ? LOCK_GONE : LOCK_ALIVE;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (leave_young && is_being_made(&st)) ||
        flock(fd, LOCK_EX | LOCK_NB) < 0)
        return LOCK_ALIVE;
    return STEAL_FD(fd);
}

int data_dir_worker_alive(const char *lock_path, int *ret_fd)
{
    int lock = lock_path == NULL || lock_path[0] == '\0'
                   ? LOCK_GONE
                   : take_dead_lock(AT_FDCWD, lock_path, false); /* whoever registered has locked */

    *ret_fd = MAX(lock, -1);
    return lock == LOCK_ALIVE;
}

void data_dir_remove_lock(const char *path, int fd)
{
    struct stat held, found;

    if (fd >= 0 && fstat(fd, &held) == 0 && lstat(path, &found) == 0 &&
        held.st_ino == found.st_ino && held.st_dev == found.st_dev)
        (void)unlink(path);
}

/* ---- what is left ---- */

/* The lock last: it leads to the others. */
static const char *const kinds[] = { ".sock", ".live", ".lock" };

struct sweep {
    int run_fd;
    int (*known)(const char *name, void *arg);
    void *known_arg;
    int (*empty)(const char *text, void *arg);
    void *empty_arg;
};

/* NAME of NAME.lock and so on, or false for any other file. */
static bool worker_of(const char *file, char *name, size_t size)
{
    const char *dot = strrchr(file, '.');
    bool ours = false;

    for (size_t i = 0; dot != NULL && i < ARRAY_LEN(kinds); i++)
        ours |= str_eq(dot, kinds[i]);
    if (!ours || dot == file)
        return false;
    return (size_t)snprintf(name, size, "%.*s", (int)(dot - file), file) < size;
}

/* Is this the sign of a worker whose own files, its lock among them, are with another broker?  It is a link to its socket there. */
static bool is_elsewhere(int run_fd, const char *name)
{
    char file[NAME_MAX + 8];
    struct stat link, target;

    (void)snprintf(file, sizeof file, "%s.live", name);
    return fstatat(run_fd, file, &link, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(link.st_mode) &&
           fstatat(run_fd, file, &target, 0) == 0;
}

/* Empty what the lock's text names; one who had no time to write it is known by name alone.  false: not yet. */
static bool emptied(const struct sweep *sweep, int lock_fd, const char *name)
{
    char text[TEXT_MAX];
    ssize_t n = RETRY_EINTR(pread(lock_fd, text, sizeof text - 1, 0));

    if (n > 0)
        text[n] = '\0';
    else
        (void)snprintf(text, sizeof text, "%s\n", name);
    return sweep->empty != NULL && sweep->empty(text, sweep->empty_arg) == 0;
}

static int is_known(const struct sweep *sweep, const char *name)
{
    return sweep->known != NULL ? sweep->known(name, sweep->known_arg) : 0;
}

static int sweep_one(const struct sweep *sweep, const char *name)
{
    char file[NAME_MAX + 8];
    int r = is_known(sweep, name);
    if (r != 0)
        return MIN(r, 0);

    (void)snprintf(file, sizeof file, "%s.lock", name);
    int lock = take_dead_lock(sweep->run_fd, file, true);
    SCOPED_FD lock_fd = MAX(lock, -1);
    if (lock == LOCK_ALIVE || (lock == LOCK_GONE && is_elsewhere(sweep->run_fd, name)))
        return 0;
    r = is_known(sweep, name); /* it may have become known before we had the lock */
    if (r != 0)
        return MIN(r, 0);
    /* The lock goes last: without it, it had signed off. */
    if (lock >= 0 && !emptied(sweep, lock_fd, name))
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        (void)snprintf(file, sizeof file, "%s%s", name, kinds[i]);
        (void)unlinkat(sweep->run_fd, file, 0);
    }
    return 0;
}

int data_dir_sweep(const char *dir, const char *own, int (*known)(const char *name, void *arg),
                   void *known_arg, int (*empty)(const char *text, void *arg), void *empty_arg)
{
    char path[PATH_MAX], name[NAME_MAX + 1];
    int r = 0;

    (void)snprintf(path, sizeof path, "%s/run", dir);
    DIR *run = opendir(path);
    if (run == NULL)
        return 0; /* whoever needs it says so */
    const struct sweep sweep = { dirfd(run), known, known_arg, empty, empty_arg };
    for (struct dirent *entry; r == 0 && (entry = readdir(run)) != NULL;)
        if (worker_of(entry->d_name, name, sizeof name) && !str_eq(name, own))
            r = sweep_one(&sweep, name);
    (void)closedir(run);
    return r;
}

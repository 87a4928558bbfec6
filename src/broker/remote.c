/* remote.c - contract in remote.h. */
#include "broker/remote.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "broker/store.h"

#define TEXT_MAX 8192
#define YOUNG_S \
    5 /* a worker makes its lock file, locks it and then writes into it: leave the first two steps alone */

/* ---- directories ---- */

static int make_parents(char *path, struct mandor_err *err)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int r = mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
        if (r < 0)
            r = err_set(err, r, FAULT_HOST, "make directory '%s'", path);
        *slash = '/';
        if (r < 0)
            return r;
    }
    return 0;
}

int remote_data_dir(const char *name, char **ret, struct mandor_err *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    SCOPED_BUF path = { 0 };
    int r;

    if (state != NULL && state[0] == '/')
        r = buf_addf(&path, "%s/mandor/", state);
    else if (home != NULL && home[0] == '/')
        r = buf_addf(&path, "%s/.local/state/mandor/", home);
    else
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "no place for a worker's files: neither XDG_STATE_HOME nor HOME is set");
    for (; r == 0 && *name != '\0'; name++) {
        bool plain = *name > ' ' && *name < 127 && *name != '/';
        r = buf_add(&path, plain ? name : "_", 1);
    }
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "find a place for a worker's files");
    r = make_parents(path.data, err);
    return r < 0 ? r : store_data_dirs(path.data, ret, err);
}

/* ---- what is left ---- */

/* "<name>.lock", "<name>.live": the name, or false for any other file. */
static bool name_of(const char *file, char *name, size_t size)
{
    const char *dot = strrchr(file, '.');
    if (dot == NULL || dot == file || (size_t)(dot - file) >= size ||
        (!str_eq(dot, ".lock") && !str_eq(dot, ".live")))
        return false;
    (void)snprintf(name, size, "%.*s", (int)(dot - file), file);
    return true;
}

/* The lock of a dead worker: >= 0, held; -1: it lives, or may; -ENOENT: there is no file. */
static int take_dead_lock(int run_fd, const char *name)
{
    char file[NAME_MAX + 8];
    struct stat st;

    (void)snprintf(file, sizeof file, "%s.lock", name);
    SCOPED_FD fd = openat(run_fd, file, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? -ENOENT : -1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return -1;
    int64_t age_s = clock_wall_ms() / 1000 - st.st_mtim.tv_sec;
    if ((st.st_size == 0 && age_s >= 0 && age_s < YOUNG_S) || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return -1;
    return STEAL_FD(fd);
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

static void sweep_one(int run_fd, const char *name, int (*empty)(const char *text, void *arg),
                      void *arg)
{
    static const char *const kinds[] = { "live",
                                         "lock" }; /* the lock last: it leads to the other */
    char text[TEXT_MAX];
    int lock = take_dead_lock(run_fd, name);
    SCOPED_FD lock_fd = MAX(lock, -1);

    if (lock == -1 || (lock == -ENOENT && is_elsewhere(run_fd, name)))
        return;
    if (lock >= 0) {
        ssize_t n = RETRY_EINTR(pread(lock_fd, text, sizeof text - 1, 0));
        if (n > 0)
            text[n] = '\0';
        else /* it had no time to say what it would make: its name leads there */
            (void)snprintf(text, sizeof text, "%s\n", name);
        if (empty == NULL || empty(text, arg) != 0)
            return;
    }
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        char file[NAME_MAX + 8];
        (void)snprintf(file, sizeof file, "%s.%s", name, kinds[i]);
        (void)unlinkat(run_fd, file, 0);
    }
}

void remote_sweep(const char *data_dir, const char *own, int (*empty)(const char *text, void *arg),
                  void *arg)
{
    char path[PATH_MAX], name[NAME_MAX + 1];

    (void)snprintf(path, sizeof path, "%s/run", data_dir);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return; /* whoever needs it says so */
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (name_of(entry->d_name, name, sizeof name) && !str_eq(name, own))
            sweep_one(dirfd(dir), name, empty, arg);
    (void)closedir(dir);
}

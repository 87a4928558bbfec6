/* tree.c - contract in tree.h.
 *
 * Everything is relative to a descriptor of the directory that holds it and opened with O_NOFOLLOW, so a job that swaps
 * names for links while we work can at most make us fail.  The depth is the job's choice: the walk keeps its path on the
 * heap and climbs back through "..", checked by inode, instead of holding a descriptor a level.
 */
#include "os/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/macro.h"

struct level {
    struct level *up;
    dev_t dev;
    ino_t ino;
    char name[256]; /* its name in the directory above */
};

struct walk {
    dev_t dev; /* the mount that we stay on */
    int dir;   /* the directory that is being emptied */
    struct level *level;
    int first_error;
};

static void note(struct walk *walk, int error)
{
    if (walk->first_error == 0)
        walk->first_error = error;
}

/* Open a subdirectory, giving ourselves the rights first if they are missing.  -errno. */
static int open_dir(int parent, const char *name)
{
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    int fd = openat(parent, name, flags);
    if (fd < 0 && errno == EACCES) {
        /* Without following: open as a path, then change the mode of exactly that inode. */
        SCOPED_FD path_fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        char self[64];
        (void)snprintf(self, sizeof self, "/proc/self/fd/%d", path_fd);
        if (path_fd < 0 || chmod(self, 0700) != 0)
            return -EACCES;
        fd = openat(parent, name, flags);
    }
    return fd < 0 ? -errno : fd;
}

/* Go down into `name`.  0, or -errno (nothing changed). */
static int descend(struct walk *walk, const char *name)
{
    int fd = open_dir(walk->dir, name);
    if (fd < 0)
        return fd;

    struct stat st;
    int r = fstat(fd, &st) != 0 ? -errno : st.st_dev != walk->dev ? -EXDEV : 0;
    struct level *level = r == 0 ? malloc(sizeof *level) : NULL;
    if (level == NULL) {
        (void)close(fd);
        return r != 0 ? r : -ENOMEM;
    }
    if ((st.st_mode & 0700) != 0700)
        (void)fchmod(fd, 0700); /* to remove what is in it */

    *level = (struct level){ .up = walk->level, .dev = st.st_dev, .ino = st.st_ino };
    (void)snprintf(level->name, sizeof level->name, "%s", name);
    (void)close(walk->dir);
    walk->dir = fd;
    walk->level = level;
    return 0;
}

/* Back to the directory above and remove the one we leave.  Returns 0, or -errno when the way back is lost. */
static int ascend(struct walk *walk)
{
    struct level *left = walk->level;
    int up = openat(walk->dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = up < 0 ? -errno : 0;
    struct stat st;
    if (r == 0 && left->up != NULL && (fstat(up, &st) != 0 || st.st_ino != left->up->ino))
        r = -ESTALE; /* somebody moved it meanwhile: stop rather than delete elsewhere */
    if (r != 0) {
        if (up >= 0)
            (void)close(up);
        return r;
    }

    (void)close(walk->dir);
    walk->dir = up;
    if (unlinkat(up, left->name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        note(walk, -errno);
    walk->level = left->up;
    free(left);
    return 0;
}

/* Remove plain entries of the current directory; returns 1 after going down into a subdirectory (the caller reads
 * anew there), 0 when nothing is left that can be removed, or -errno. */
static int empty_some(struct walk *walk)
{
    int fd = openat(walk->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        int r = -errno;
        if (fd >= 0)
            (void)close(fd);
        return r;
    }

    int r = 0;
    for (struct dirent *entry; r == 0 && (entry = readdir(dir)) != NULL;) {
        const char *name = entry->d_name;
        if (str_eq(name, ".") || str_eq(name, ".."))
            continue;
        if (unlinkat(walk->dir, name, 0) == 0 || errno == ENOENT)
            continue;
        int why = errno;
        if (unlinkat(walk->dir, name, AT_REMOVEDIR) == 0)
            continue;
        if (errno != ENOTEMPTY && errno != EEXIST) {
            note(walk, errno == ENOTDIR ? -why : -errno);
            continue; /* a mount point (EBUSY), immutable, … */
        }
        int down = descend(walk, name);
        if (down == 0)
            r = 1;
        else
            note(walk, down);
    }
    (void)closedir(dir);
    return r;
}

/* The directory that holds path, and path's last component. */
static int open_parent(const char *path, char name[256])
{
    char parent[4096];
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    if (len == 0 || len >= sizeof parent)
        return -EINVAL;
    memcpy(parent, path, len);
    parent[len] = 0;

    char *slash = strrchr(parent, '/');
    const char *last = slash == NULL ? parent : slash + 1;
    if (*last == 0 || str_eq(last, ".") || str_eq(last, "..") || strlen(last) > 255)
        return -EINVAL;
    (void)snprintf(name, 256, "%s", last);
    if (slash != NULL)
        slash[slash == parent ? 1 : 0] = 0;
    int fd = open(slash == NULL ? "." : parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* A subdirectory that stays full would be entered again and again: one that failed once ends the walk of its parent. */
static int empty_all(struct walk *walk)
{
    while (walk->level != NULL) {
        int before = walk->first_error;
        int r = empty_some(walk);
        if (r < 0)
            return r;
        if (r == 1)
            continue;
        r = ascend(walk);
        if (r < 0)
            return r;
        if (walk->first_error != before || walk->first_error != 0) {
            /* What failed below makes everything above it fail too (ENOTEMPTY): leave it in place. */
            return walk->first_error;
        }
    }
    return 0;
}

int tree_remove(const char *path)
{
    char name[256];
    struct walk walk = { .dir = open_parent(path, name) };
    if (walk.dir < 0)
        return walk.dir == -ENOENT ? 0 : walk.dir;

    int r = 0;
    if (unlinkat(walk.dir, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        struct stat st;
        if (errno == ENOTDIR)
            r = unlinkat(walk.dir, name, 0) != 0 ? -errno : 0;
        else if (fstat(walk.dir, &st) != 0)
            r = -errno;
        else {
            walk.dev = st.st_dev;
            r = descend(&walk, name);
            if (r == 0)
                r = empty_all(&walk);
        }
    }
    while (walk.level != NULL) {
        struct level *level = walk.level;
        walk.level = level->up;
        free(level);
    }
    (void)close(walk.dir);
    return r;
}

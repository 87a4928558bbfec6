/* tree.c - contract in tree.h.
 *
 * Everything is relative to a descriptor of the directory that holds it and opened with O_NOFOLLOW, so a job that swaps
 * names for links while we work can at most make us fail.  The depth is the job's choice: the walk keeps its path on the
 * heap and climbs back through "..", checked by inode, instead of holding a descriptor a level.
 */
#include "os/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/macro.h"

#define STUCK_MAX 256 /* so much that cannot be removed ends the walk */

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
    ino_t stuck[STUCK_MAX]; /* directories that could not be removed: they are not entered again */
    size_t stuck_count;
};

static void note(struct walk *walk, int error)
{
    if (walk->first_error == 0)
        walk->first_error = error;
}

/* Take "immutable" and "append only" (chattr(1)) from an inode; a job with root's rights may have set them.  true: there was one. */
static bool loosen(int fd)
{
    int flags;
    if (fd < 0 || ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0 ||
        (flags & (FS_IMMUTABLE_FL | FS_APPEND_FL)) == 0)
        return false;
    flags &= ~(FS_IMMUTABLE_FL | FS_APPEND_FL);
    return ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
}

/* What stands in the way of removing an entry for somebody with the right to remove it?  true: try again. */
static bool clear_way(struct walk *walk, const char *name, int error)
{
    if (error == EPERM) {
        SCOPED_FD fd = openat(walk->dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        bool own = loosen(fd);
        /* What holds the tree is not the job's. */
        return (walk->level != NULL && loosen(walk->dir)) || own;
    }
    /* What was mounted here was mounted by the job; it is let go of, not emptied. */
    if (error == EBUSY) {
        char path[64 + NAME_MAX];
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d/%s", walk->dir, name);
        return umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0;
    }
    return false;
}

/* 0, or -errno: ENOTEMPTY means that it must be entered. */
static int remove_entry(struct walk *walk, const char *name)
{
    for (bool again = true;;) {
        if (unlinkat(walk->dir, name, 0) == 0 || errno == ENOENT)
            return 0;
        int why = errno;
        if (unlinkat(walk->dir, name, AT_REMOVEDIR) == 0)
            return 0;
        why = errno == ENOTDIR ? why : errno;
        if (why == ENOTEMPTY || why == EEXIST)
            return -ENOTEMPTY;
        if (!again || !clear_way(walk, name, why))
            return -why;
        again = false;
    }
}

static bool is_stuck(const struct walk *walk, ino_t ino)
{
    for (size_t i = 0; i < walk->stuck_count; i++)
        if (walk->stuck[i] == ino)
            return true;
    return false;
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
    walk->level = left->up;
    r = remove_entry(walk, left->name);
    if (r < 0) {
        note(walk, r);
        if (walk->stuck_count < STUCK_MAX)
            walk->stuck[walk->stuck_count++] = left->ino;
    }
    free(left);
    return walk->stuck_count < STUCK_MAX ? 0 : walk->first_error;
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
        if (is_stuck(walk, entry->d_ino))
            continue;
        int left = remove_entry(walk, name);
        if (left == -ENOTEMPTY) {
            left = descend(walk, name);
            r = left == 0;
        }
        if (left < 0)
            note(walk, left);
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

/* What cannot be removed does not save the rest. */
static int empty_all(struct walk *walk)
{
    while (walk->level != NULL) {
        int r = empty_some(walk);
        if (r == 0)
            r = ascend(walk);
        if (r < 0)
            return r;
    }
    return walk->first_error;
}

int tree_remove(const char *path)
{
    char name[256];
    struct walk walk = { .dir = open_parent(path, name) };
    if (walk.dir < 0)
        return walk.dir == -ENOENT ? 0 : walk.dir;

    struct stat st;
    int r = remove_entry(&walk, name);
    if (r == -ENOTEMPTY) {
        r = fstat(walk.dir, &st) != 0 ? -errno : 0;
        walk.dev = st.st_dev;
        if (r == 0)
            r = descend(&walk, name);
        if (r == 0)
            r = empty_all(&walk);
    }
    while (walk.level != NULL) {
        struct level *level = walk.level;
        walk.level = level->up;
        free(level);
    }
    (void)close(walk.dir);
    return r;
}

/* scratch.c - contract in scratch.h. */
#include "child/scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/file.h"

#define FRESH_TRIES 1000

int scratch_init(struct scratch *scratch, const char *dir)
{
    *scratch = (struct scratch){ .fd = -1, .dir = strdup(dir) };
    int r = scratch->dir == NULL ? -ENOMEM : file_make_parents(dir, 0700, NULL, NULL);
    struct stat st;

    /* others may pass through: jobs that run as another user */
    if (r == 0 && mkdir(dir, 0711) != 0 && errno != EEXIST)
        r = -errno;
    if (r == 0 && ((scratch->fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
                   fstat(scratch->fd, &st) != 0))
        r = -errno;
    if (r == 0)
        scratch->device = (uint64_t)st.st_dev;
    return r;
}

/* The name of a spare. */
static const char *spare_name(char ret[static 32], unsigned number)
{
    (void)snprintf(ret, 32, "spare.%u", number);
    return ret;
}

void scratch_empty(struct scratch *scratch)
{
    char name[32];
    while (scratch->spare_count > 0)
        (void)unlinkat(scratch->fd, spare_name(name, scratch->spares[--scratch->spare_count]),
                       AT_REMOVEDIR);
}

void scratch_done(struct scratch *scratch)
{
    if (scratch->dir != NULL && scratch->fd >= 0)
        (void)close(scratch->fd);
    free(scratch->dir);
    scratch->dir = NULL;
}

/* Give the newest spare this name, or make a directory.  0 or -errno. */
static int make(struct scratch *scratch, const char *name)
{
    if (scratch->spare_count > 0) {
        char spare[32];
        (void)spare_name(spare, scratch->spares[scratch->spare_count - 1]);
        int r =
            renameat2(scratch->fd, spare, scratch->fd, name, RENAME_NOREPLACE) == 0 ? 0 : -errno;
        if (r == -EEXIST)
            return r;
        scratch->spare_count--;
        if (r == 0)
            return 0;
    }
    return mkdirat(scratch->fd, name, 0700) == 0 ? 0 : -errno;
}

int scratch_take(struct scratch *scratch, const char *label, const char *kind, char **ret)
{
    int r = -EEXIST;
    for (int i = 0; i < FRESH_TRIES && r == -EEXIST; i++) {
        char name[NAME_MAX + 1], number[16] = "";
        if (i > 0)
            (void)snprintf(number, sizeof number, ".%d", i);
        if (snprintf(name, sizeof name, "%s%s.%s", label, number, kind) >= (int)sizeof name)
            return -ENAMETOOLONG;
        r = make(scratch, name);
        if (r == 0 && asprintf(ret, "%s/%s", scratch->dir, name) < 0) {
            (void)unlinkat(scratch->fd, name, AT_REMOVEDIR);
            r = -ENOMEM;
        }
    }
    return r;
}

/* Is it as we made it? */
static bool untouched(int parent, const char *name)
{
    SCOPED_FD fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || (st.st_mode & 07777) != 0700 || st.st_uid != geteuid() ||
        flistxattr(fd, NULL, 0) > 0)
        return false;

    _Alignas(struct dirent64) char entries[512];
    ssize_t n = getdents64(fd, entries, sizeof entries);
    int count = 0;
    for (ssize_t at = 0; at < n; count++)
        at += ((struct dirent64 *)(void *)(entries + at))->d_reclen;
    return n > 0 && count == 2; /* "." and ".." */
}

bool scratch_give(struct scratch *scratch, const char *path, bool reuse)
{
    const char *name = strrchr(path, '/') + 1;
    if (reuse && scratch->spare_count < SCRATCH_SPARES && untouched(scratch->fd, name)) {
        char spare[32];
        unsigned number = scratch->next++;
        (void)spare_name(spare, number);
        if (renameat2(scratch->fd, name, scratch->fd, spare, RENAME_NOREPLACE) == 0) {
            scratch->spares[scratch->spare_count++] = number;
            return true;
        }
    }
    return unlinkat(scratch->fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

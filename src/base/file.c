/* file.c - contract in file.h. */
#include "base/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#define CHUNK ((size_t)4096)

static int read_all(int fd, size_t max, struct buf *ret)
{
    size_t before = ret->len;

    for (;;) {
        int r = buf_reserve(ret, CHUNK);
        if (r < 0)
            return r;
        ssize_t n = RETRY_EINTR(read(fd, ret->data + ret->len, CHUNK));
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        ret->len += (size_t)n;
        ret->data[ret->len] = '\0';
        if (ret->len - before > max)
            return -EFBIG;
    }
}

int file_read(const char *path, size_t max, bool regular_only, struct buf *ret)
{
    struct stat st;

    /* O_NONBLOCK: a FIFO in the place of a file must not hold us up; regular files do not care */
    SCOPED_FD fd =
        RETRY_EINTR(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (regular_only ? O_NONBLOCK : 0)));
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (regular_only && !S_ISREG(st.st_mode))
        return -EINVAL;
    return read_all(fd, max, ret);
}

int file_write_all(int fd, const void *bytes, size_t len)
{
    for (const char *at = bytes; len > 0;) {
        ssize_t n = RETRY_EINTR(write(fd, at, len));
        if (n < 0 && errno == EAGAIN) {
            (void)poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1);
            continue;
        }
        if (n < 0)
            return -errno;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

int file_make_parents(const char *path, mode_t mode, size_t *made, struct mandor_err *err)
{
    const char *last = strrchr(path, '/');
    SCOPED_FREE char *dir = strndup(path, last == NULL ? 0 : (size_t)(last - path) + 1);
    size_t topmost = 0;

    if (dir == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "make directory for '%s'", path);
    if (last == NULL || access(dir, F_OK) == 0)
        return 0;

    for (char *slash = strchr(dir + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool is_new = mkdir(dir, mode) == 0;
        if (!is_new && errno != EEXIST)
            return err_set(err, -errno, FAULT_HOST, "make directory '%s'", dir);
        if (is_new && topmost == 0)
            topmost = (size_t)(slash - dir);
        *slash = '/';
    }
    if (made != NULL && topmost != 0)
        *made = *made == 0 ? topmost : MIN(*made, topmost);
    return 0;
}

int file_sync_dir(const char *dir, struct mandor_err *err)
{
    SCOPED_FD fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 && errno == EACCES)
        return 0;
    if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL && errno != EROFS))
        return err_set(err, -errno, FAULT_HOST, "make directory '%s' durable", dir);
    return 0;
}

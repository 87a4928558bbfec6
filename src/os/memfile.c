/* memfile.c - contract in memfile.h. */
#include "os/memfile.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include "base/file.h"

int memfile_make(const char *name, const void *bytes, size_t len)
{
    SCOPED_FD fd = memfd_create(name, MFD_CLOEXEC);

    if (fd < 0)
        return -errno;
    int r = file_write_all(fd, bytes, len);
    if (r < 0)
        return r;
    return lseek(fd, 0, SEEK_SET) < 0 ? -errno : STEAL_FD(fd);
}

int memfile_read(int fd, size_t most, struct buf *buf)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size > (off_t)most)
        return -EFBIG;
    for (off_t at = 0; at < st.st_size;) {
        size_t left = (size_t)(st.st_size - at);
        int r = buf_reserve(buf, left);
        if (r < 0)
            return r;
        ssize_t n = RETRY_EINTR(pread(fd, buf->data + buf->len, left, at));
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        buf->len += (size_t)n;
        buf->data[buf->len] = '\0';
        at += n;
    }
    return 0;
}

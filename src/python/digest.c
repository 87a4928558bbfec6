/* digest.c - contract in digest.h. */
#include "python/digest.h"

#include <sha2.h>

#define CHUNK ((size_t)256 << 10) /* bytes a read */

static int write_all(int fd, const unsigned char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = RETRY_EINTR(write(fd, bytes, len));
        if (n < 0)
            return -errno;
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

int64_t digest_fd(int fd, int copy, char hex[static DIGEST_TEXT_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA2_CTX sha;
    int64_t total = 0;
    SCOPED_FREE unsigned char *chunk = malloc(CHUNK);

    if (chunk == NULL)
        return -ENOMEM;
    SHA256Init(&sha);
    for (;;) {
        ssize_t n = RETRY_EINTR(read(fd, chunk, CHUNK));
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        SHA256Update(&sha, chunk, (size_t)n);
        int r = copy >= 0 ? write_all(copy, chunk, (size_t)n) : 0;
        if (r < 0)
            return r;
        total += n;
    }
    SHA256Final(hash, &sha);
    for (size_t i = 0; i < sizeof hash; i++) {
        hex[2 * i] = digits[hash[i] >> 4];
        hex[2 * i + 1] = digits[hash[i] & 15];
    }
    hex[2 * sizeof hash] = '\0';
    return total;
}

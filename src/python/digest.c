/* digest.c - contract in digest.h. */
#include "python/digest.h"

#include <sha2.h>

#include "base/file.h"
#include "base/hex.h"

#define CHUNK ((size_t)256 << 10) /* bytes a read */

int64_t digest_fd(int fd, int copy, char hex[static DIGEST_TEXT_SIZE])
{
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
        int r = copy >= 0 ? file_write_all(copy, chunk, (size_t)n) : 0;
        if (r < 0)
            return r;
        total += n;
    }
    SHA256Final(hash, &sha);
    (void)hex_encode(hash, sizeof hash, hex);
    return total;
}

/* digest.h - sha256 of a file's bytes.  Any thread; blocks. */
#ifndef PYTHON_DIGEST_H
#define PYTHON_DIGEST_H

#include "base/macro.h"

#define DIGEST_TEXT_SIZE 65 /* 64 hexadecimal digits and a NUL */

/* Read fd from where it is to its end, and write what was read to `copy` (-1 = nowhere).
 * Returns the number of bytes or -errno. */
MUST_CHECK int64_t digest_fd(int fd, int copy, char hex[static DIGEST_TEXT_SIZE]);

#endif

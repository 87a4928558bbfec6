/* hex.h - bytes as hexadecimal digits. */
#ifndef BASE_HEX_H
#define BASE_HEX_H

#include <stddef.h>

/* ret: 2 * len + 1 bytes.  Lower case, NUL-terminated.  Returns ret. */
char *hex_encode(const void *bytes, size_t len, char *ret);

#endif

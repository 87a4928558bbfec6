/* hex.c - contract in hex.h. */
#include "base/hex.h"

char *hex_encode(const void *bytes, size_t len, char *ret)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *at = bytes;

    for (size_t i = 0; i < len; i++) {
        ret[2 * i] = digits[at[i] >> 4];
        ret[2 * i + 1] = digits[at[i] & 15];
    }
    ret[2 * len] = '\0';
    return ret;
}

/* utf8.h - one step through bytes that may or may not be UTF-8.  Any thread. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include "base/macro.h"

/* Look at the sequence that starts at bytes[0]; len >= 1.
 *
 * ret_len: its length when it is well-formed, else the length of the longest ill-formed part (>= 1) that stands for one
 * U+FFFD (Unicode 15, section 3.9, table 3-7; what Python and browsers do).
 * Returns whether it is well-formed. */
bool utf8_step(const void *bytes, size_t len, size_t *ret_len);

/* Are all bytes well-formed UTF-8 without NUL? */
bool utf8_clean(const void *bytes, size_t len);

#endif

/* utf8.c - contract in utf8.h. */
#include "base/utf8.h"

/* What a lead byte announces: length of the sequence and the range of its second byte. */
struct lead {
    size_t len; /* 0 = no lead byte */
    unsigned char low, high;
};

static struct lead classify(unsigned char first)
{
    if (first < 0x80)
        return (struct lead){ 1, 0, 0 };
    if (first < 0xc2 || first > 0xf4)
        return (struct lead){ 0, 0, 0 };
    if (first < 0xe0)
        return (struct lead){ 2, 0x80, 0xbf };
    if (first < 0xf0) /* no overlong forms, no surrogates */
        return (struct lead){ 3, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf };
    return (struct lead){ 4, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf };
}

bool utf8_step(const void *bytes, size_t len, size_t *ret_len)
{
    const unsigned char *s = bytes;
    struct lead lead = classify(s[0]);
    size_t n = 1;

    for (; n < lead.len && n < len; n++) {
        unsigned char low = n == 1 ? lead.low : 0x80, high = n == 1 ? lead.high : 0xbf;
        if (s[n] < low || s[n] > high)
            break;
    }

    *ret_len = n;
    return n == lead.len;
}

bool utf8_clean(const void *bytes, size_t len)
{
    const unsigned char *s = bytes;

    for (size_t at = 0, n; at < len; at += n)
        if (s[at] == '\0' || !utf8_step(s + at, len - at, &n))
            return false;
    return true;
}

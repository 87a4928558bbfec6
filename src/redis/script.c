/* script.c - a script's name at the server: the SHA-1 of its text (FIPS 180-4).  Not for secrets: Redis chose it. */
#include <stdio.h>

#include "redis/redis_int.h"

static uint32_t rotate(uint32_t word, unsigned by)
{
    return word << by | word >> (32 - by);
}

static void mix(uint32_t state[5], const unsigned char block[64])
{
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];

    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (unsigned i = 0; i < 80; i++) {
        uint32_t f = i < 20              ? (b & c) | (~b & d)
                     : i < 40 || i >= 60 ? b ^ c ^ d
                                         : (b & c) | (b & d) | (c & d);
        uint32_t k = i < 20   ? 0x5a827999u
                     : i < 40 ? 0x6ed9eba1u
                     : i < 60 ? 0x8f1bbcdcu
                              : 0xca62c1d6u;
        uint32_t t = rotate(a, 5) + f + e + k + w[i];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = t;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

void redis_script_sha(struct redis_script *script)
{
    uint32_t state[5] = { 0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u };
    size_t len = strlen(script->text), at = 0;
    unsigned char last[128] = { 0 };

    if (script->sha[0] != '\0')
        return;
    for (; len - at >= 64; at += 64)
        mix(state, (const unsigned char *)script->text + at);
    memcpy(last, script->text + at, len - at);
    last[len - at] = 0x80;
    size_t size = len - at < 56 ? 64 : 128;
    for (unsigned i = 0; i < 8; i++)
        last[size - 1 - i] = (unsigned char)((uint64_t)len * 8 >> (8 * i));
    for (size_t i = 0; i < size; i += 64)
        mix(state, last + i);
    for (unsigned i = 0; i < 5; i++)
        (void)snprintf(script->sha + (size_t)8 * i, 9, "%08x", state[i]);
}

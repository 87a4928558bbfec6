/* The captured tail against the end of a plain array. */
#include "lib/unit.h"
#include "stream/capture.h"

TEST_EACH(capture_keeps_exactly_the_last_bytes_however_they_came, 10)
{
    static unsigned char all[400000];
    uint32_t state = (uint32_t)_i * 7919 + 1;
    size_t max = _i == 0 ? 65536 : (size_t)1000 + (size_t)_i * 777, len = 0, kept;
    struct capture capture;

    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (unsigned char)(i * 31 + i / 256);
    capture_init(&capture, max);
    while (len < sizeof all - 70000) {
        state = state * 1664525u + 1013904223u;
        size_t n = (state >> 8) % (state % 3 == 0 ? 70000 : 300);
        capture_add(&capture, all + len, n);
        len += n;
        if (state % 5 != 0)
            continue;
        const void *bytes = capture_bytes(&capture, &kept);
        ck_assert_uint_eq(kept, MIN(len, max));
        ck_assert(kept == 0 || memcmp(bytes, all + len - kept, kept) == 0);
        ck_assert_uint_le(capture.cap, max);
    }
    capture_done(&capture);
}

TEST(capture_of_little_takes_little_memory)
{
    struct capture capture;

    capture_init(&capture, 65536);
    ck_assert_uint_eq(capture.cap, 0);
    capture_add(&capture, "hello", 5);
    ck_assert_uint_le(capture.cap, 4096);
    capture_done(&capture);
}

UNIT_MAIN("capture")

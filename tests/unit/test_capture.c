/* The captured tail against the end of a plain array. */
#include <check.h>

#include "stream/capture.h"

START_TEST(capture_keeps_exactly_the_last_bytes_however_they_came)
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
END_TEST

START_TEST(capture_of_little_takes_little_memory)
{
    struct capture capture;

    capture_init(&capture, 65536);
    ck_assert_uint_eq(capture.cap, 0);
    capture_add(&capture, "hello", 5);
    ck_assert_uint_le(capture.cap, 4096);
    capture_done(&capture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("capture");
    TCase *tcase = tcase_create("capture");

    tcase_add_loop_test(tcase, capture_keeps_exactly_the_last_bytes_however_they_came, 0, 10);
    tcase_add_test(tcase, capture_of_little_takes_little_memory);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

/* unit.h - Check without lists: a TEST() registers itself, UNIT_MAIN() runs all of its file in their order.
 *
 *     TEST(ring_keeps_order_when_reader_lags) { ck_assert(…); }
 *     UNIT_MAIN("ring")
 */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H

#include <check.h>
#include <stdlib.h>

struct unit_test {
    const TTest *test;
    struct unit_test *next;
};
static struct unit_test *unit_first, **unit_last = &unit_first;

#define TEST(name)                                                         \
    static void name(int _i);                                              \
    static const TTest name##_check = { #name, name, __FILE__, __LINE__ }; \
    static struct unit_test name##_entry = { &name##_check, NULL };        \
    __attribute__((constructor)) static void name##_register(void)         \
    {                                                                      \
        *unit_last = &name##_entry;                                        \
        unit_last = &name##_entry.next;                                    \
    }                                                                      \
    static void name(__attribute__((unused)) int _i)

#define UNIT_MAIN(name)                                                    \
    int main(void)                                                         \
    {                                                                      \
        Suite *suite = suite_create(name);                                 \
        TCase *tcase = tcase_create(name);                                 \
        SRunner *runner = srunner_create(suite);                           \
        tcase_set_timeout(tcase, 30);                                      \
        for (struct unit_test *at = unit_first; at != NULL; at = at->next) \
            tcase_add_test(tcase, at->test);                               \
        suite_add_tcase(suite, tcase);                                     \
        srunner_run_all(runner, CK_ENV);                                   \
        int failed = srunner_ntests_failed(runner);                        \
        srunner_free(runner);                                              \
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;                  \
    }

#endif

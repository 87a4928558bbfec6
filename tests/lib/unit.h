/* unit.h - Check without lists: a TEST() registers itself, UNIT_MAIN() runs all of its file in their order.
 *
 *     TEST(ring_keeps_order_when_reader_lags) { ck_assert(…); }
 *     TEST_EACH(every_size_arrives_whole, ARRAY_LEN(sizes)) { … sizes[_i] … }
 *     UNIT_MAIN("ring", .set_up = start, .timeout_s = 60)
 */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H

#include <check.h>
#include <stdlib.h>

struct unit_test {
    const TTest *test;
    int count;
    struct unit_test *next;
};
static struct unit_test *unit_first, **unit_last = &unit_first;

struct unit_options {
    void (*set_up)(void), (*tear_down)(void); /* around each test */
    int timeout_s;                            /* of each; 0 = 120 */
};

#define TEST(name) TEST_EACH(name, 1)
/* Once for each _i in 0 … count - 1; each runs in a process of its own. */
#define TEST_EACH(name, count)                                                    \
    static void name(int _i);                                                     \
    static const TTest name##_check = { #name, name, __FILE__, __LINE__ };        \
    static struct unit_test name##_entry = { &name##_check, (int)(count), NULL }; \
    __attribute__((constructor)) static void name##_register(void)                \
    {                                                                             \
        *unit_last = &name##_entry;                                               \
        unit_last = &name##_entry.next;                                           \
    }                                                                             \
    static void name(__attribute__((unused)) int _i)

static inline int unit_run(const char *name, const struct unit_options *options)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    SRunner *runner = srunner_create(suite);

    tcase_set_timeout(tcase, options->timeout_s > 0 ? options->timeout_s : 120);
    tcase_add_checked_fixture(tcase, options->set_up, options->tear_down);
    for (struct unit_test *at = unit_first; at != NULL; at = at->next)
        tcase_add_loop_test(tcase, at->test, 0, at->count);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#define UNIT_MAIN(name, ...)                                          \
    int main(void)                                                    \
    {                                                                 \
        return unit_run(name, &(struct unit_options){ __VA_ARGS__ }); \
    }

#endif

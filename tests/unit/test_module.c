/* test_module.c - modules are found, checked and refused with a reason. */
#include <check.h>
#include <stdio.h>

#include "base/module.h"
#include "broker/broker.h"
#include "sink/sink.h"

#define TEST(name) START_TEST(name)

static void use(const char *dir)
{
    ck_assert_int_eq(setenv("MANDOR_MODULES", dir, 1), 0);
}

TEST(a_module_of_this_build_is_loaded_once)
{
    struct mandor_err err = { 0 };
    use(GOOD_DIR);
    const struct module *module = module_load("redis", &err);
    ck_assert_msg(module != NULL, "%s", err.msg);
    ck_assert_ptr_eq(module_load("redis", NULL), module);
    ck_assert_ptr_nonnull(strstr(module->libraries, "hiredis"));
}
END_TEST

TEST(a_module_that_is_not_installed_is_named_with_its_place)
{
    struct mandor_err err = { 0 };
    use("/nonexistent");
    ck_assert_ptr_null(module_load("redis", &err));
    ck_assert_int_eq(err.code, -ENOENT);
    ck_assert_int_eq(err.fault, MANDOR_FAULT_HOST);
    ck_assert_ptr_nonnull(strstr(err.msg, "mandor-redis.so"));
    ck_assert_ptr_nonnull(strstr(err.msg, "/nonexistent"));
    ck_assert_int_eq(broker_check_url("streams://h", &err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.msg, "mandor-redis.so"));
}
END_TEST

TEST(a_module_of_another_build_is_refused)
{
    struct mandor_err err = { 0 };
    use(OLD_DIR);
    ck_assert_ptr_null(module_load("redis", &err));
    ck_assert_ptr_nonnull(strstr(err.msg, "interface 77"));
    ck_assert_ptr_nonnull(strstr(err.msg, "0.0.1"));
}
END_TEST

TEST(a_file_that_is_no_module_is_refused)
{
    struct mandor_err err = { 0 };
    char dir[] = "/tmp/mandor-module-XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/mandor-redis.so", dir);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fputs("not an object", file);
    (void)fclose(file);
    use(dir);
    ck_assert_ptr_null(module_load("redis", &err));
    ck_assert_ptr_nonnull(strstr(err.msg, "cannot be loaded"));
    (void)unlink(path);
    (void)rmdir(dir);
}
END_TEST

TEST(schemes_lead_to_modules_with_and_without_what_follows_a_plus)
{
    ck_assert(module_has("broker", "streams://h"));
    ck_assert(module_has("broker", "streams+tls://h"));
    ck_assert(!module_has("broker", "streams"));
    ck_assert(!module_has("broker", "stream://h"));
    ck_assert(!module_has("broker", "streams2://h"));
    ck_assert(!module_has("sink", "streams://h"));
    ck_assert(!module_has("broker", ""));
    ck_assert_str_eq(module_name(0), "redis");
    ck_assert(broker_is_shared("streams://h"));
    ck_assert(!broker_is_shared("sqlite:/x"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("module");
    TCase *all = tcase_create("all");
    tcase_add_test(all, a_module_of_this_build_is_loaded_once);
    tcase_add_test(all, a_module_that_is_not_installed_is_named_with_its_place);
    tcase_add_test(all, a_module_of_another_build_is_refused);
    tcase_add_test(all, a_file_that_is_no_module_is_refused);
    tcase_add_test(all, schemes_lead_to_modules_with_and_without_what_follows_a_plus);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int count = srunner_ntests_failed(runner);
    srunner_free(runner);
    return count == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

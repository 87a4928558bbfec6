/* test_module.c - modules are found, checked and refused with a reason. */
#include <stdio.h>

#include "base/module.h"
#include "broker/broker.h"
#include "lib/unit.h"
#include "sink/sink.h"

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

TEST(a_module_of_another_build_is_refused)
{
    struct mandor_err err = { 0 };
    use(OLD_DIR);
    ck_assert_ptr_null(module_load("redis", &err));
    ck_assert_ptr_nonnull(strstr(err.msg, "interface 77"));
    ck_assert_ptr_nonnull(strstr(err.msg, "0.0.1"));
}

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

UNIT_MAIN("module")

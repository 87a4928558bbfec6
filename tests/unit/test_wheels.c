/* test_wheels.c - the wheel store: its lock file, the order of loading, changes that crash. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/json.h"
#include "lib/unit.h"
#include "os/tree.h"
#include "python/digest.h"
#include "python/runtime.h"
#include "python/store.h"

#define ABC_SHA256 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define ABD_SHA256 "a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9"
#define TARGET                                                                     \
    "\"format\":1,\"target\":{\"python\":\"3.14\",\"abi\":\"cp314\",\"platform\":" \
    "\"pyemscripten_2026_0_wasm32\"}"

static struct mandor_err err;
static char dir[64];

/* A package as the lock has it; its file holds `bytes`, whose sha256 is `sha256`. */
static json_t *package_of(const char *file, const char *sha256, json_t *depends, json_t *extras)
{
    return json_pack("{s:s, s:s, s:i, s:s, s:[s], s:o, s:o, s:[s]}", "version", "1.0", "file", file,
                     "size", 3, "sha256", sha256, "tags", "py3-none-any", "depends", depends,
                     "extras", extras, "imports", "m");
}

static void make_dir(void)
{
    (void)strcpy(dir, "/tmp/wheels-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

/* Write text to a file and put it in under name. */
static void put_text(const char *name, const char *text, const char *sha256, json_t *depends,
                     json_t *extras)
{
    SCOPED(store_edit_free) struct store_edit *edit = NULL;
    char from[96], file[96];

    (void)snprintf(from, sizeof from, "%s/source", dir);
    (void)snprintf(file, sizeof file, "%s-1.0-py3-none-any.whl", name);
    FILE *out = fopen(from, "w");
    ck_assert(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0);
    SCOPED_JSON *package = package_of(file, sha256, depends, extras);
    ck_assert_msg(store_edit_begin(dir, &edit, &err) == 0, "%s", err.msg);
    ck_assert_msg(store_edit_put(edit, name, package, from, &err) == 0, "%s", err.msg);
    ck_assert_msg(store_edit_commit(edit, &err) == 0, "%s", err.msg);
}

static void put(const char *name, json_t *depends, json_t *extras)
{
    put_text(name, "abc", ABC_SHA256, depends, extras);
}

static const char *order_of(char *const *packages)
{
    static char text[256];
    struct store_wheels wheels;

    text[0] = '\0';
    ck_assert_msg(store_wheels(dir, packages, &wheels, &err) == 0, "%s", err.msg);
    for (size_t i = 0; i < wheels.count; i++) {
        (void)strcat(strcat(text, i > 0 ? " " : ""), wheels.at[i].name);
        ck_assert_str_eq(wheels.at[i].sha256, ABC_SHA256);
        ck_assert_int_eq(access(wheels.at[i].path, R_OK), 0);
    }
    store_wheels_done(&wheels);
    return text;
}

TEST(names_are_brought_to_one_form_and_extras_are_taken_apart)
{
    struct requirement requirement;

    ck_assert_int_eq(requirement_parse(" Foo_.Bar [X, y_z] >=1,<2", &requirement, &err), 0);
    ck_assert_str_eq(requirement.name, "foo-bar");
    ck_assert_mem_eq(requirement.extras, "x\0y-z\0", 6);
    ck_assert_str_eq(requirement.rest, ">=1,<2");
    requirement_done(&requirement);

    static const char *const odd[] = { "",    "-a",    "a-",  "a[",      "a[]",
                                       "a[x", "a[x,]", "[x]", "\xc3\xa9" };
    for (size_t i = 0; i < ARRAY_LEN(odd); i++)
        ck_assert_msg(requirement_parse(odd[i], &requirement, &err) == -EINVAL, "'%s'", odd[i]);
}

TEST(a_runtime_offers_what_it_names_in_any_spelling)
{
    const struct python_runtime runtime = { .packages = (char *[]){ "Foo_Bar[X,y]", "b", NULL } };
    const struct python_runtime empty = { .packages = NULL };
    static const char *const offered[] = { "foo-bar", "FOO.bar[x]", "foo-bar[Y, x]", "B" };
    static const char *const other[] = { "foo", "foo-bar[z]", "b[x]", "b>=1", "", "b c" };

    for (size_t i = 0; i < ARRAY_LEN(offered); i++)
        ck_assert_msg(python_runtime_offers(&runtime, offered[i]), "%s", offered[i]);
    for (size_t i = 0; i < ARRAY_LEN(other); i++)
        ck_assert_msg(!python_runtime_offers(&runtime, other[i]), "%s", other[i]);
    ck_assert(!python_runtime_offers(&empty, "b"));
}

TEST(tags_fit_the_pinned_pyodide_or_do_not)
{
    static const struct {
        const char *tag;
        bool fits;
    } rows[] = {
        { "cp314-cp314-pyemscripten_2026_0_wasm32", true },
        { "cp39-abi3-pyemscripten_2026_0_wasm32", true },
        { "cp314-abi3-pyemscripten_2026_0_wasm32", true },
        { "py3-none-pyemscripten_2026_0_wasm32", true },
        { "py3-none-any", true },
        { "py314-none-any", true },
        { "cp314-none-any", true },
        { "py2-none-any", false },
        { "py315-none-any", false },
        { "cp313-none-any", false },
        { "cp313-cp313-pyemscripten_2026_0_wasm32", false },
        { "cp315-abi3-pyemscripten_2026_0_wasm32", false },
        { "cp314-cp314-pyodide_2025_0_wasm32", false },
        { "cp314-cp314-pyemscripten_2025_0_wasm32", false },
        { "cp314-cp314-manylinux_2_28_x86_64", false },
        { "cp314-cp314t-pyemscripten_2026_0_wasm32", false },
        { "cp314", false },
        { "", false },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        ck_assert_msg(wheel_tag_fits(rows[i].tag) == rows[i].fits, "%s", rows[i].tag);
}

TEST(a_lock_with_something_wrong_is_refused_and_the_reason_names_it)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "", "JSON" },
        { "[]", "no 'format'" },
        { "{\"format\":2,\"packages\":{}}", "format 2" },
        { "{\"format\":1,\"target\":{\"python\":\"3.13\"},\"packages\":{}}", "3.13" },
        { "{\"format\":1,\"packages\":{}}", "target.python" },
        { "{" TARGET "}", "packages" },
        { "{" TARGET ",\"packages\":{\"A_b\":{}}}", "A_b" },
        { "{" TARGET ",\"packages\":{\"a\":{\"version\":\"1\",\"file\":\"../a.whl\"}}}", "'file'" },
        { "{" TARGET ",\"packages\":{\"a\":{\"version\":\"1\",\"file\":\"a.whl\",\"size\":-1}}}",
          "'size'" },
        { "{" TARGET ",\"packages\":{\"a\":{},\"a\":{}}}", "duplicate key 'a'" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        json_t *lock = NULL;
        ck_assert_int_eq(lockfile_parse(rows[i].text, strlen(rows[i].text), &lock, &err), -EINVAL);
        ck_assert_msg(strstr(err.msg, rows[i].says) != NULL, "'%s' does not say '%s'", err.msg,
                      rows[i].says);
    }
}

TEST(a_lock_is_written_in_one_form_whatever_its_order)
{
    SCOPED_JSON *lock = lockfile_new(), *again = NULL;
    SCOPED_BUF a = { .data = NULL }, b = { .data = NULL };

    json_object_set_new(
        lockfile_packages(lock), "z",
        package_of("z-1.0-py3-none-any.whl", ABC_SHA256, json_array(), json_object()));
    json_object_set_new(lockfile_packages(lock), "a",
                        package_of("a-1.0-py3-none-any.whl", ABC_SHA256, json_pack("[s]", "z>=1"),
                                   json_pack("{s:[], s:[]}", "y", "b")));
    ck_assert_int_eq(lockfile_write(&a, lock), 0);
    ck_assert(strstr(a.data, "\"a\": {") < strstr(a.data, "\"z\": {"));
    ck_assert(strstr(a.data, "\"b\": []") < strstr(a.data, "\"y\": []"));
    ck_assert_msg(lockfile_parse(a.data, a.len, &again, &err) == 0, "%s", err.msg);
    ck_assert_int_eq(lockfile_write(&b, again), 0);
    ck_assert_str_eq(a.data, b.data);
}

/* R107, R104 */
TEST(dependencies_are_loaded_first_each_once_and_circles_end)
{
    make_dir();
    put("base", json_array(), json_object());
    put("left", json_pack("[s,s]", "Base>=1", "right"), json_object());
    put("right", json_pack("[s,s]", "base", "left"), json_object());
    put("top", json_pack("[s]", "left"),
        json_pack("{s:[s], s:[s]}", "more", "extra", "all", "top[more]"));
    put("extra", json_array(), json_object());

    ck_assert_str_eq(order_of((char *[]){ "top", "base", NULL }), "base right left top");
    ck_assert_str_eq(order_of((char *[]){ "Top[all]", NULL }), "base right left top extra");
    ck_assert_str_eq(order_of((char *[]){ NULL }), "");
    (void)tree_remove(dir);
}

TEST(what_is_missing_is_named_with_who_needs_it)
{
    struct store_wheels wheels;

    make_dir();
    put("top", json_pack("[s]", "gone>=2"), json_object());
    ck_assert_int_eq(store_wheels(dir, (char *[]){ "top", NULL }, &wheels, &err), -ENOENT);
    ck_assert_msg(strstr(err.msg, "'gone', which 'top' needs,") != NULL, "%s", err.msg);
    ck_assert_int_eq(store_wheels(dir, (char *[]){ "top[x]", NULL }, &wheels, &err), -ENOENT);
    ck_assert_int_eq(store_wheels(dir, (char *[]){ "top==1", NULL }, &wheels, &err), -EINVAL);
    ck_assert_int_eq(store_wheels(NULL, (char *[]){ "top", NULL }, &wheels, &err), -ENOENT);
    ck_assert_int_eq(store_wheels(NULL, NULL, &wheels, &err), 0);
    ck_assert_int_eq(store_wheels("/tmp/wheels-nowhere", (char *[]){ "a", NULL }, &wheels, &err),
                     -ENOENT);
    ck_assert_msg(strstr(err.msg, "no wheel store") != NULL, "%s", err.msg);
    (void)tree_remove(dir);
}

TEST(a_wheel_that_changed_or_went_is_not_loaded)
{
    struct store_wheels wheels;
    char path[160];

    make_dir();
    put("a", json_array(), json_object());
    (void)snprintf(path, sizeof path, "%s/%.16s/a-1.0-py3-none-any.whl", dir, ABC_SHA256);
    FILE *out = fopen(path, "w");
    ck_assert(out != NULL && fputs("abd", out) >= 0 && fclose(out) == 0);
    ck_assert_int_eq(store_wheels(dir, (char *[]){ "a", NULL }, &wheels, &err), -EBADMSG);
    put("a", json_array(), json_object()); /* the same wheel again mends it */
    ck_assert_str_eq(order_of((char *[]){ "a", NULL }), "a");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(store_wheels(dir, (char *[]){ "a", NULL }, &wheels, &err), -ENOENT);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* does not hang */
    ck_assert_int_eq(store_wheels(dir, (char *[]){ "a", NULL }, &wheels, &err), -EBADMSG);
    (void)tree_remove(dir);
}

TEST(a_wheel_that_is_replaced_meanwhile_is_found_in_one_form_or_the_other)
{
    int status, looks = 0;

    make_dir();
    put("a", json_array(), json_object());
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < 150; i++)
            put_text("a", i % 2 == 0 ? "abd" : "abc", i % 2 == 0 ? ABD_SHA256 : ABC_SHA256,
                     json_array(), json_object());
        _exit(0);
    }
    for (; waitpid(pid, &status, WNOHANG) == 0; looks++) {
        struct store_wheels wheels;
        int r = store_wheels(dir, (char *[]){ "a", NULL }, &wheels, &err);
        ck_assert_msg(r == 0, "look %d: %s", looks, err.msg);
        store_wheels_done(&wheels);
    }
    ck_assert(status == 0 && looks > 0);
    (void)tree_remove(dir);
}

TEST(a_file_that_is_not_what_was_looked_at_is_refused)
{
    SCOPED(store_edit_free) struct store_edit *edit = NULL;
    SCOPED_JSON *package =
        package_of("a-1.0-py3-none-any.whl", ABC_SHA256, json_array(), json_object());

    make_dir();
    ck_assert_int_eq(store_edit_begin(dir, &edit, &err), 0);
    ck_assert_int_eq(store_edit_put(edit, "a", package, "/dev/null", &err), -ESTALE);
    ck_assert_int_eq(store_edit_put(edit, "a", package, "/nowhere", &err), -ENOENT);
    ck_assert_int_eq(store_edit_remove(edit, "a", &err), -ENOENT);
    edit = store_edit_free(edit);
    (void)tree_remove(dir);
}

static void crash_while_changing(int step)
{
    struct store_edit *edit = NULL;
    SCOPED_JSON *package =
        package_of("b-1.0-py3-none-any.whl",
                   "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", json_array(),
                   json_object());

    (void)json_object_set_new(package, "size", json_integer(0));
    if (store_edit_begin(dir, &edit, NULL) < 0 ||
        (step > 0 && store_edit_put(edit, "b", package, "/dev/null", NULL) < 0) ||
        (step > 1 && store_edit_remove(edit, "a", NULL) < 0))
        _exit(1);
    _exit(0);
}

TEST(a_change_that_dies_leaves_the_store_as_it_was_and_the_next_one_sweeps)
{
    make_dir();
    put("a", json_array(), json_object());
    for (int step = 0; step < 3; step++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            crash_while_changing(step);
        ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
        ck_assert_str_eq(order_of((char *[]){ "a", NULL }), "a");
    }
    char left[128];
    (void)snprintf(left, sizeof left, "%s/e3b0c44298fc1c14", dir);
    ck_assert_int_eq(access(left, F_OK), 0);
    put("a", json_array(), json_object());
    ck_assert_int_eq(access(left, F_OK), -1);
    (void)tree_remove(dir);
}

TEST(what_is_being_fetched_is_not_swept_until_its_maker_is_gone)
{
    char *staging = NULL;
    int fd = -1;

    make_dir();
    ck_assert_int_eq(store_staging(dir, &staging, &fd, &err), 0);
    put("a", json_array(), json_object());
    ck_assert_int_eq(access(staging, F_OK), 0);
    (void)close(fd);
    put("a", json_array(), json_object());
    ck_assert_int_eq(access(staging, F_OK), -1);
    free(staging);
    (void)tree_remove(dir);
}

UNIT_MAIN("wheels")

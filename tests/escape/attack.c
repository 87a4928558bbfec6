/* attack.c - any system call, raw, for JavaScript: what code in a copy could do that has taken over the whole process.  For the
 * scenarios of test_76_escape.py alone, which put it into a fork server of their own. */
#include <errno.h>
#include <node_api.h>
#include <pthread.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARGUMENTS 6
#define TEXT_MAX  4096

static napi_value number_of(napi_env env, int64_t number)
{
    napi_value value = NULL;
    (void)napi_create_int64(env, number, &value);
    return value;
}

/* A number is itself; text is the address of a copy of it. */
static int64_t argument_of(napi_env env, napi_value value, char *text)
{
    napi_valuetype type = napi_undefined;
    int64_t number = 0;
    size_t len;

    (void)napi_typeof(env, value, &type);
    if (type == napi_string) {
        (void)napi_get_value_string_utf8(env, value, text, TEXT_MAX, &len);
        return (int64_t)(intptr_t)text;
    }
    (void)napi_get_value_int64(env, value, &number);
    return number;
}

/* call(number, a, b, c, d, e, f): what the kernel says, or -errno. */
static napi_value do_call(napi_env env, napi_callback_info info)
{
    static char text[ARGUMENTS][TEXT_MAX];
    napi_value value[ARGUMENTS + 1];
    size_t count = ARGUMENTS + 1;
    int64_t number[ARGUMENTS + 1] = { 0 };

    (void)napi_get_cb_info(env, info, &count, value, NULL, NULL);
    for (size_t i = 0; i < count && i <= ARGUMENTS; i++)
        number[i] = argument_of(env, value[i], text[i > 0 ? i - 1 : 0]);
    long r =
        syscall((long)number[0], number[1], number[2], number[3], number[4], number[5], number[6]);
    return number_of(env, r < 0 ? -errno : r);
}

/* number(name): the number of a system call here, negative where there is none. */
static napi_value do_number(napi_env env, napi_callback_info info)
{
    napi_value value[1];
    size_t count = 1;
    char name[64];

    (void)napi_get_cb_info(env, info, &count, value, NULL, NULL);
    (void)napi_get_value_string_utf8(env, value[0], name, sizeof name, &count);
    return number_of(env, seccomp_syscall_resolve_name(name));
}

/* int80(number): the 32-bit way in, where there is one.  Reads as -ENOSYS where not. */
static napi_value do_int80(napi_env env, napi_callback_info info)
{
    napi_value value[1];
    size_t count = 1;
    int64_t number = 0, r = -ENOSYS;

    (void)napi_get_cb_info(env, info, &count, value, NULL, NULL);
    (void)napi_get_value_int64(env, value[0], &number);
#if defined(__x86_64__)
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(number), "b"(0), "c"(0), "d"(0) : "memory");
    r = (int32_t)r;
#endif
    return number_of(env, r);
}

static void *idle(void *arg)
{
    return arg;
}

/* thread(): 0, or the error of pthread_create(3). */
static napi_value do_thread(napi_env env, napi_callback_info info)
{
    pthread_t thread;

    (void)info;
    int r = pthread_create(&thread, NULL, idle, NULL);
    if (r == 0)
        (void)pthread_join(thread, NULL);
    return number_of(env, r);
}

/* address(bytes): where a Uint8Array lies. */
static napi_value do_address(napi_env env, napi_callback_info info)
{
    napi_value value[1], buffer;
    size_t count = 1, offset;
    void *bytes = NULL;

    (void)napi_get_cb_info(env, info, &count, value, NULL, NULL);
    (void)napi_get_typedarray_info(env, value[0], NULL, NULL, &bytes, &buffer, &offset);
    return number_of(env, (int64_t)(intptr_t)bytes);
}

static napi_value init(napi_env env, napi_value exports)
{
    static const struct {
        const char *name;
        napi_callback fn;
    } functions[] = {
        { "call", do_call },     { "number", do_number },   { "int80", do_int80 },
        { "thread", do_thread }, { "address", do_address },
    };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        napi_value fn;
        if (napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].fn, NULL,
                                 &fn) != napi_ok ||
            napi_set_named_property(env, exports, functions[i].name, fn) != napi_ok)
            return NULL;
    }
    return exports;
}

int32_t NODE_API_MODULE_GET_API_VERSION(void);
NAPI_MODULE(attack, init)

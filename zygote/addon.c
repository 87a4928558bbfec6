/* addon.c - what JavaScript sees of the fork server: fork.c, sandbox.c and interrupt.c as functions.  JavaScript values stay in
 * this file.  A failure becomes one exception, in fail(). */
#include <errno.h>
#include <fcntl.h>
#include <node_api.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fork.h"
#include "image.h"
#include "interrupt.h"
#include "sandbox.h"

#define CONTROL_FD 3
#define FRAME_MAX  (64u << 20)

static struct sandbox sandbox;
static struct fork_fds own_fds;
static unsigned char
    frame_key[ZYGOTE_KEY_SIZE]; /* of the job that runs; JavaScript never sees it */
static struct {
    napi_env env;
    napi_ref callback, flag;
} interrupt;

/* ---- values ---- */

static napi_value fail(napi_env env, int error, const char *what)
{
    char text[200];

    (void)snprintf(text, sizeof text, "%s: %s", what, strerror(-error));
    (void)napi_throw_error(env, NULL, text);
    return NULL;
}

static napi_value number_of(napi_env env, double number)
{
    napi_value value = NULL;

    (void)napi_create_double(env, number, &value);
    return value;
}

static size_t arguments(napi_env env, napi_callback_info info, size_t count, napi_value *ret)
{
    (void)napi_get_cb_info(env, info, &count, ret, NULL, NULL);
    return count;
}

static int64_t int_of(napi_env env, napi_value value)
{
    int64_t number = -1;

    (void)napi_get_value_int64(env, value, &number);
    return number;
}

/* The bytes of a Uint8Array, or NULL. */
static unsigned char *bytes_of(napi_env env, napi_value value, size_t *ret_len)
{
    napi_typedarray_type type;
    napi_value buffer;
    size_t offset;
    void *bytes = NULL;

    *ret_len = 0;
    if (napi_get_typedarray_info(env, value, &type, ret_len, &bytes, &buffer, &offset) != napi_ok ||
        type != napi_uint8_array) {
        (void)napi_throw_type_error(env, NULL, "expected a Uint8Array");
        return NULL;
    }
    return bytes;
}

/* ---- the server ---- */

/* receive(): the worker's next message, text; null at its end. */
static napi_value do_receive(napi_env env, napi_callback_info info)
{
    static char message[ZYGOTE_MESSAGE_MAX];
    napi_value text = NULL;
    ssize_t n;

    (void)info;
    do
        n = recv(CONTROL_FD, message, sizeof message, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return fail(env, -errno, "read from the worker");
    if (n == 0)
        (void)napi_get_null(env, &text);
    else
        (void)napi_create_string_utf8(env, message, (size_t)n, &text);
    return text;
}

/* send(bytes): one message to the worker. */
static napi_value do_send(napi_env env, napi_callback_info info)
{
    napi_value value[1];
    size_t len;

    arguments(env, info, 1, value);
    const unsigned char *bytes = bytes_of(env, value[0], &len);
    if (bytes == NULL)
        return NULL;
    if (send(CONTROL_FD, bytes, len, MSG_NOSIGNAL) < 0)
        return fail(env, -errno, "write to the worker");
    return NULL;
}

/* restart(flags): become the same program with these flags before the others.  Returns only when that fails. */
static napi_value do_restart(napi_env env, napi_callback_info info)
{
    napi_value value[1], item;
    char *argv[64], text[4096];
    size_t count = 0;
    uint32_t flags = 0;

    arguments(env, info, 1, value);
    (void)napi_get_array_length(env, value[0], &flags);
    for (uint32_t i = 0; i < flags && count + 1 < sizeof argv / sizeof *argv; i++) {
        size_t len = 0;
        if (napi_get_element(env, value[0], i, &item) != napi_ok ||
            napi_get_value_string_utf8(env, item, text, sizeof text, &len) != napi_ok ||
            (argv[count] = strdup(text)) == NULL)
            return fail(env, -ENOMEM, "restart Node");
        count++;
    }
    argv[count] = NULL;
    for (int fd = 0; fd <= CONTROL_FD; fd++) /* Node has made them close-on-exec */
        (void)fcntl(fd, F_SETFD, 0);
    (void)execve("/proc/self/exe", argv, environ);
    return fail(env, -errno, "restart Node");
}

/* Names a place of this machine; read by the loader, and after a restart once more. */
static void forget_preload(void)
{
    static const char name[] = "LD_PRELOAD";
    char *value = getenv(name);

    if (value == NULL)
        return;
    (void)unsetenv(name);
    memset(value - sizeof name, 0, sizeof name + strlen(value)); /* /proc/self/environ */
}

/* withdraw(): no io_uring any more, where the kernel lets us say so; leave the network.  False where that needs a right that we
 * lack. */
static napi_value do_withdraw(napi_env env, napi_callback_info info)
{
    napi_value done = NULL;

    (void)info;
    forget_preload();
    (void)sandbox_refuse_rings();
    (void)napi_get_boolean(env, unshare(CLONE_NEWNET) == 0, &done);
    return done;
}

/* compileFilter(): make the filter ready.  Throws where there is none. */
static napi_value do_compile_filter(napi_env env, napi_callback_info info)
{
    (void)info;
    int r = sandbox_probe();
    if (r == 0)
        r = sandbox_compile(&sandbox);
    return r < 0 ? fail(env, r, "filter system calls (seccomp)") : NULL;
}

/* Around the renewal of the loop: it makes each of its descriptors anew, close-on-exec and often with the same number.  What has not
 * been made anew is the server's, and closed. */
static void mark_fds(void)
{
    for (size_t i = 0; i < own_fds.count; i++)
        (void)fcntl(own_fds.fd[i], F_SETFD, 0);
}

static void drop_marked_fds(void)
{
    for (size_t i = 0; i < own_fds.count; i++)
        if (fcntl(own_fds.fd[i], F_GETFD) == 0)
            (void)close(own_fds.fd[i]);
}

/* A copy that cannot begin says why where its words are heard, and ends. */
static void give_up(const char *step, int error)
{
    char line[200];
    int n = snprintf(line, sizeof line, "{\"failed\": \"%s: %s\"}\n", step, strerror(-error));

    (void)!write(CONTROL_FD, line, (size_t)n);
    _exit(125);
}

/* serve(often): returns only in copies: does a job wait for it?  `often`: it pays to make ready for many. */
static napi_value do_serve(napi_env env, napi_callback_info info)
{
    struct fork_copy copy;
    const char *step = "";
    uv_loop_t *loop = NULL;
    napi_value value[1], urgent = NULL;
    bool often = false;

    arguments(env, info, 1, value);
    (void)napi_get_value_bool(env, value[0], &often);
    (void)napi_get_uv_event_loop(env, &loop); /* before the first copy: it may look things up */
    int r = fork_list_fds(&own_fds);
    if (r == 0)
        r = fork_prepare();
    if (r < 0)
        return fail(env, r, "prepare to fork");
    if (often)
        (void)image_take();
    r = fork_serve(CONTROL_FD, &copy);
    if (r < 0) {
        (void)fprintf(stderr, "the fork server cannot go on: %s\n", strerror(-r));
        _exit(1);
    }
    r = fork_settle(&copy, &step);
    if (r == 0) {
        mark_fds();
        step = "renew the event loop";
        r = uv_loop_fork(loop);
    }
    if (r < 0)
        give_up(step, r);
    drop_marked_fds();
    (void)napi_get_boolean(env, (copy.request.flags & ZYGOTE_URGENT) != 0, &urgent);
    return urgent;
}

/* ---- a copy ---- */

/* lock(): from here on nothing can be opened. */
static napi_value do_lock(napi_env env, napi_callback_info info)
{
    (void)info;
    int r = sandbox_enter(&sandbox);
    return r < 0 ? fail(env, r, "enter the sandbox") : NULL;
}

static napi_value do_data_bytes(napi_env env, napi_callback_info info)
{
    (void)info;
    int64_t bytes = fork_data_bytes();
    return bytes < 0 ? fail(env, (int)bytes, "read /proc/self/status")
                     : number_of(env, (double)bytes);
}

static int lower(int resource, int64_t soft, int64_t hard)
{
    const struct rlimit limit = { (rlim_t)soft, (rlim_t)hard };

    return setrlimit(resource, &limit) < 0 ? -errno : 0;
}

/* limit(dataBytes, cpuSeconds): bounds of this process from here on; 0 = none. */
static napi_value do_limit(napi_env env, napi_callback_info info)
{
    napi_value value[2];

    arguments(env, info, 2, value);
    int64_t data = int_of(env, value[0]), cpu = int_of(env, value[1]);
    int r = data > 0 ? lower(RLIMIT_DATA, data, data) : 0;
    if (r == 0 && cpu > 0) /* a second later what ignores SIGXCPU is killed */
        r = lower(RLIMIT_CPU, cpu, cpu + 1);
    return r < 0 ? fail(env, r, "set the job's limits") : NULL;
}

static bool read_all(int fd, void *bytes, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (char *)bytes + got, len - got);
        if (n <= 0 && !(n < 0 && errno == EINTR))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* readFrame(fd): wait for one frame (u32le length, key, then UTF-8); null at end of file. */
static napi_value do_read_frame(napi_env env, napi_callback_info info)
{
    napi_value value[1], text = NULL;
    unsigned char head[4];

    arguments(env, info, 1, value);
    int fd = (int)int_of(env, value[0]);
    (void)napi_get_null(env, &text);
    if (!read_all(fd, head, sizeof head) || !read_all(fd, frame_key, sizeof frame_key))
        return text;
    size_t len =
        (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    char *bytes = len <= FRAME_MAX ? malloc(len + 1) : NULL;
    if (bytes == NULL)
        return fail(env, -EMSGSIZE, "read a job");
    if (read_all(fd, bytes, len)) {
        interrupt_arm();
        (void)napi_create_string_utf8(env, bytes, len, &text);
    }
    free(bytes);
    return text;
}

static bool write_all(int fd, const char *bytes, size_t len)
{
    for (size_t gone = 0; gone < len;) {
        ssize_t n = write(fd, bytes + gone, len - gone);
        if (n < 0 && errno != EINTR)
            return false;
        gone += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* end(code, recycle, user_us, system_us): the job is over, its process is not.  The key says that it is not the job that says so. */
static napi_value do_end(napi_env env, napi_callback_info info)
{
    napi_value value[4];
    char line[256], key[2 * ZYGOTE_KEY_SIZE + 1];
    bool recycle = true;

    arguments(env, info, 4, value);
    (void)napi_get_value_bool(env, value[1], &recycle);
    for (size_t i = 0; i < ZYGOTE_KEY_SIZE; i++)
        (void)snprintf(key + 2 * i, 3, "%02x", frame_key[i]);
    int n =
        snprintf(line, sizeof line,
                 "{\"end\": {\"key\": \"%s\", \"code\": %d, \"recycle\": %s, \"user_us\": %lld, "
                 "\"system_us\": %lld}}\n",
                 key, (int)int_of(env, value[0]), recycle ? "true" : "false",
                 (long long)int_of(env, value[2]), (long long)int_of(env, value[3]));
    memset(frame_key, 0, sizeof frame_key);
    if (!write_all(CONTROL_FD, line, (size_t)n))
        _exit(0); /* nobody hears it */
    return NULL;
}

/* write(fd, bytes): how many went, or -errno.  May wait; a signal ends the wait. */
static napi_value do_write(napi_env env, napi_callback_info info)
{
    napi_value value[2];
    size_t len;

    arguments(env, info, 2, value);
    const unsigned char *bytes = bytes_of(env, value[1], &len);
    if (bytes == NULL)
        return NULL;
    ssize_t n = write((int)int_of(env, value[0]), bytes, len);
    return number_of(env, n < 0 ? -errno : (double)n);
}

/* read(fd, bytes): how many came, 0 at the end, or -errno. */
static napi_value do_read(napi_env env, napi_callback_info info)
{
    napi_value value[2];
    size_t len;

    arguments(env, info, 2, value);
    unsigned char *bytes = bytes_of(env, value[1], &len);
    if (bytes == NULL)
        return NULL;
    ssize_t n = read((int)int_of(env, value[0]), bytes, len);
    return number_of(env, n < 0 ? -errno : (double)n);
}

static napi_value do_sleep(napi_env env, napi_callback_info info)
{
    napi_value value[1];
    double ms = 0;

    arguments(env, info, 1, value);
    (void)napi_get_value_double(env, value[0], &ms);
    return number_of(env, interrupt_sleep(ms));
}

static void on_wake(void)
{
    napi_env env = interrupt.env;
    napi_handle_scope scope;
    napi_value callback, global, result;

    if (napi_open_handle_scope(env, &scope) != napi_ok)
        return;
    if (napi_get_reference_value(env, interrupt.callback, &callback) == napi_ok &&
        napi_get_global(env, &global) == napi_ok)
        (void)napi_make_callback(env, NULL, global, callback, 0, NULL, &result);
    (void)napi_close_handle_scope(env, scope);
}

/* onInterrupt(flag, callback): SIGTERM raises flag[0] to 2, and calls back from the loop while it is up. */
static napi_value do_on_interrupt(napi_env env, napi_callback_info info)
{
    napi_value value[2];
    uv_loop_t *loop = NULL;
    size_t len;

    arguments(env, info, 2, value);
    unsigned char *flag = bytes_of(env, value[0], &len);
    if (flag == NULL || len < 1)
        return NULL;
    interrupt.env = env;
    (void)napi_create_reference(env, value[0], 1, &interrupt.flag);
    (void)napi_create_reference(env, value[1], 1, &interrupt.callback);
    (void)napi_get_uv_event_loop(env, &loop);
    int r = interrupt_start(loop, flag, on_wake);
    return r < 0 ? fail(env, r, "catch SIGTERM") : NULL;
}

/* disarm(): the job has ended; was it interrupted? */
static napi_value do_disarm(napi_env env, napi_callback_info info)
{
    napi_value asked = NULL;

    (void)info;
    (void)napi_get_boolean(env, interrupt_disarm(), &asked);
    return asked;
}

static napi_value do_exit(napi_env env, napi_callback_info info)
{
    napi_value value[1];

    arguments(env, info, 1, value);
    _exit((int)int_of(env, value[0]) & 0xff);
}

/* abort(): die of SIGABRT. */
static napi_value do_abort(napi_env env, napi_callback_info info)
{
    (void)env, (void)info;
    (void)signal(SIGABRT, SIG_DFL);
    (void)syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGABRT);
    _exit(134);
}

static napi_value init(napi_env env, napi_value exports)
{
    static const struct {
        const char *name;
        napi_callback fn;
    } functions[] = {
        { "restart", do_restart },
        { "receive", do_receive },
        { "send", do_send },
        { "withdraw", do_withdraw },
        { "compileFilter", do_compile_filter },
        { "serve", do_serve },
        { "lock", do_lock },
        { "dataBytes", do_data_bytes },
        { "readFrame", do_read_frame },
        { "end", do_end },
        { "write", do_write },
        { "read", do_read },
        { "sleep", do_sleep },
        { "onInterrupt", do_on_interrupt },
        { "disarm", do_disarm },
        { "limit", do_limit },
        { "exit", do_exit },
        { "abort", do_abort },
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

/* Node finds the add-on by a symbol that its own macro defines without having declared it. */
int32_t NODE_API_MODULE_GET_API_VERSION(void);
NAPI_MODULE(mandor_zygote, init)

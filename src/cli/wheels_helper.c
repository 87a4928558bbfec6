/* wheels_helper.c - contract in wheels_helper.h. */
#include "cli/wheels_helper.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

#include "os/memfile.h"
#include "python/lockfile.h"

#define ANSWER_MAX ((size_t)256 << 20) /* bytes */
#define SCRIPT_FD  3

extern const unsigned char wheels_helper_py[];
extern const size_t wheels_helper_py_len;
extern char **environ;

/* dup2() in the child clears close-on-exec, but not where both are the same number: out of the way of 0 to 3 first. */
static int move_up(int *fd)
{
    int up = fcntl(*fd, F_DUPFD_CLOEXEC, SCRIPT_FD + 1);
    if (up < 0)
        return -errno;
    (void)close(*fd);
    *fd = up;
    return 0;
}

static int start_python(int script, int request, int answer, pid_t *ret)
{
    char *argv[] = { "python3", "/proc/self/fd/3", NULL };
    posix_spawn_file_actions_t actions;

    int r = posix_spawn_file_actions_init(&actions);
    if (r != 0)
        return -r;
    r = posix_spawn_file_actions_adddup2(&actions, request, STDIN_FILENO);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&actions, answer, STDOUT_FILENO);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&actions, script, SCRIPT_FD);
    if (r == 0)
        r = posix_spawnp(ret, argv[0], &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return -r;
}

static int wait_for(pid_t pid, struct mandor_err *err)
{
    int status;

    if (RETRY_EINTR(waitpid(pid, &status, 0)) < 0)
        return err_set(err, -errno, FAULT_HOST, "wait for python3");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return err_set(err, -EPROTO, FAULT_CALLER, "python3 could not do it (%s %d), see above",
                   WIFEXITED(status) ? "exit code" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static int read_answer(int fd, json_t **ret, struct mandor_err *err)
{
    SCOPED_BUF text = { .data = NULL };
    json_t *answer = NULL;
    int r = memfile_read(fd, ANSWER_MAX, &text);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "read the answer of python3");

    r = json_parse(text.data, text.len, &answer, err);
    if (r == 0 && !json_is_object(answer)) {
        json_decref(answer);
        r = err_set(err, -EPROTO, FAULT_CALLER, "expected an object");
    }
    if (r < 0)
        return err_wrap(err, r, "the answer of python3");
    *ret = answer;
    return 0;
}

static int run(const char *request, json_t **ret, struct mandor_err *err)
{
    SCOPED_FD script = memfile_make("wheels.py", wheels_helper_py, wheels_helper_py_len);
    SCOPED_FD in = memfile_make("request", request, strlen(request));
    SCOPED_FD out = memfile_make("answer", "", 0);
    pid_t pid = -1;
    int r = script < 0 ? script : in < 0 ? in : out < 0 ? out : 0;

    if (r == 0)
        r = move_up(&script);
    if (r == 0)
        r = move_up(&in);
    if (r == 0)
        r = move_up(&out);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "make a file in memory");

    r = start_python(script, in, out, &pid);
    if (r == -ENOENT)
        return err_set(err, r, FAULT_HOST,
                       "no python3 in PATH, which looking into wheels takes (package python3-pip)");
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "start python3");
    r = wait_for(pid, err);
    return r < 0 ? r : read_answer(out, ret, err);
}

int wheels_helper_ask(json_t *request, json_t **ret, struct mandor_err *err)
{
    json_t *target = json_pack("{s:s, s:s, s:s, s:s}", "python", WHEEL_PYTHON, "full_version",
                               WHEEL_PYTHON_FULL, "abi", WHEEL_ABI, "platform", WHEEL_PLATFORM);
    if (target == NULL || json_object_set_new(request, "target", target) < 0 ||
        json_object_set_new(request, "parent", json_integer(getpid())) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "ask python3");

    SCOPED_FREE char *text = json_text(request);
    return text == NULL ? err_set(err, -ENOMEM, FAULT_HOST, "ask python3") : run(text, ret, err);
}

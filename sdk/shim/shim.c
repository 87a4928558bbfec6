/* mandor-shim - serves a warm pool with a program that knows nothing of the protocol.
 *
 *     pools:
 *       words: {command: [mandor-shim, --, python3, words.py], size: 4}
 *
 * CMD is started once and kept.  For each job it gets one line of JSON on stdin,
 *
 *     {"id": "17", "queue": "default", "attempt": 1, "data": …}
 *
 * and answers with one line on stdout: the result, any JSON value, or {"error": "what was wrong"}, or {"error": {"message": …,
 * "retry": false, "code": 7}}.  It must flush after each line.  Its stderr is the shim's, and so goes to mandor's log.  A CMD
 * that ends in a job fails that job and is started again for the next one; so is one whose job was cancelled: it is killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mandor/worker.h>

#define LINE_MAX_BYTES ((size_t)16 << 20)
#define LOOK_MS        50   /* between looks for a CANCEL */
#define LINGER_MS      1000 /* between the end of CMD's stdout and its exit */

struct shim {
    char **command;
    pid_t pid; /* 0 = not running */
    int in, out;
    char *bytes; /* what came from CMD behind the last line */
    size_t len, cap;
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static void exec_command(struct shim *shim, int in, int out)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)signal(SIGPIPE, SIG_DFL);
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0)
        _exit(126);
    (void)execvp(shim->command[0], shim->command);
    (void)fprintf(stderr, "mandor-shim: execute '%s': %s\n", shim->command[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

/* End CMD; sig 0: by itself, at the end of its stdin.  Returns its wait status. */
static int stop(struct shim *shim, int sig)
{
    int status = 0;

    close_fd(&shim->in);
    if (shim->pid > 0) {
        if (sig != 0)
            (void)kill(shim->pid, sig);
        while (waitpid(shim->pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    shim->pid = 0;
    close_fd(&shim->out);
    return status;
}

/* 0 or -errno. */
static int start(struct shim *shim)
{
    int in[2], out[2];

    if (pipe2(in, O_CLOEXEC) < 0)
        return -errno;
    if (pipe2(out, O_CLOEXEC) < 0) {
        int r = -errno;
        (void)close(in[0]);
        (void)close(in[1]);
        return r;
    }
    shim->pid = fork();
    if (shim->pid == 0)
        exec_command(shim, in[0], out[1]);
    int r = shim->pid < 0 ? -errno : 0;
    (void)close(in[0]);
    (void)close(out[1]);
    shim->in = in[1];
    shim->out = out[0];
    shim->len = 0;
    if (r == 0 &&
        (fcntl(shim->in, F_SETFL, O_NONBLOCK) < 0 || fcntl(shim->out, F_SETFL, O_NONBLOCK) < 0))
        r = -errno;
    if (r < 0)
        (void)stop(shim, SIGKILL);
    return r;
}
/* Its stdout has ended: its exit follows, or it is helped. */
static int reap(struct shim *shim)
{
    siginfo_t info;

    close_fd(&shim->in);
    for (int left = LINGER_MS; left > 0; left -= LOOK_MS) {
        info.si_pid = 0;
        if (waitid(P_PID, (id_t)shim->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
            info.si_pid != 0)
            return stop(shim, 0);
        (void)poll(NULL, 0, LOOK_MS);
    }
    return stop(shim, SIGKILL);
}

static int ended(struct shim *shim, struct mandor_job *job)
{
    char text[128];
    int status = reap(shim);

    if (WIFEXITED(status))
        (void)snprintf(text, sizeof text,
                       "the command ended with exit code %d instead of an answer",
                       WEXITSTATUS(status));
    else
        (void)snprintf(text, sizeof text, "the command was killed by signal %d", WTERMSIG(status));
    return mandor_worker_fail(job, text);
}

/* Wait for fd; 0, or -ECANCELED. */
static int wait_for(struct mandor_job *job, int fd, short events)
{
    struct pollfd watch = { .fd = fd, .events = events };

    while (poll(&watch, 1, LOOK_MS) <= 0)
        if (mandor_worker_cancelled(job))
            return -ECANCELED;
    return 0;
}

/* 0, -EPIPE (CMD reads no more), -ECANCELED. */
static int send_all(struct shim *shim, struct mandor_job *job, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(shim->in, bytes, len);
        if (n >= 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            int r = wait_for(job, shim->in, POLLOUT);
            if (r < 0)
                return r;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

static int make_room(struct shim *shim)
{
    if (shim->len + 1 < shim->cap)
        return 0;
    if (shim->cap >= LINE_MAX_BYTES + 2)
        return -EMSGSIZE;
    size_t cap = shim->cap == 0 ? 4096 : shim->cap * 2;
    cap = cap < LINE_MAX_BYTES + 2 ? cap : LINE_MAX_BYTES + 2;
    char *bytes = realloc(shim->bytes, cap);
    if (bytes == NULL)
        return -ENOMEM;
    shim->bytes = bytes;
    shim->cap = cap;
    return 0;
}

/* The next line is at bytes, its newline replaced; *ret_len with the NUL.  0, -EPIPE at the end of file, or -errno. */
static int read_line(struct shim *shim, struct mandor_job *job, size_t *ret_len)
{
    size_t seen = 0;

    for (;;) {
        char *newline =
            shim->len > seen ? memchr(shim->bytes + seen, '\n', shim->len - seen) : NULL;
        if (newline != NULL) {
            *newline = '\0';
            *ret_len = (size_t)(newline - shim->bytes) + 1;
            return 0;
        }
        seen = shim->len;
        int r = make_room(shim);
        if (r < 0)
            return r;
        ssize_t n = read(shim->out, shim->bytes + shim->len, shim->cap - shim->len - 1);
        if (n == 0)
            return -EPIPE;
        if (n > 0)
            shim->len += (size_t)n;
        else if (errno == EAGAIN && (r = wait_for(job, shim->out, POLLIN)) < 0)
            return r;
        else if (errno != EAGAIN && errno != EINTR)
            return -errno;
    }
}

static char *quote(const char *text)
{
    size_t size = mandor_json_quote(text, NULL, 0) + 1;
    char *quoted = malloc(size);

    if (quoted != NULL)
        (void)mandor_json_quote(text, quoted, size);
    return quoted;
}

/* The job as a line, malloc'ed. */
static char *job_line(struct mandor_job *job)
{
    char *id = quote(mandor_worker_id(job)), *queue = quote(mandor_worker_queue(job)), *line = NULL;
    const char *data = mandor_worker_data(job);

    if (id != NULL && queue != NULL &&
        asprintf(&line, "{\"id\":%s,\"queue\":%s,\"attempt\":%lld,\"data\":%s}\n", id, queue,
                 (long long)mandor_worker_attempt(job), data) < 0)
        line = NULL;
    free(id);
    free(queue);
    /* data may be written over several lines: newlines stand between its tokens alone */
    for (char *p = line; p != NULL && (p = strpbrk(p, "\r\n")) != NULL && p[1] != '\0';)
        *p = ' ';
    return line;
}

static int fail_with(struct mandor_job *job, const char *error, size_t len)
{
    char message[4096] = "", code[16] = "";
    size_t part;
    struct mandor_worker_failure failure = { .message = message };

    if (mandor_json_unquote(error, len, message, sizeof message) >= 0)
        return mandor_worker_fail(job, message);
    char *object = strndup(error, len);
    if (object == NULL)
        return -ENOMEM;
    const char *value = mandor_json_get(object, "message", &part);
    if (value == NULL || mandor_json_unquote(value, part, message, sizeof message) < 0)
        (void)snprintf(message, sizeof message, "%.*s", (int)(len < 1000 ? len : 1000), error);
    value = mandor_json_get(object, "code", &part);
    if (value != NULL && part < sizeof code) {
        memcpy(code, value, part);
        failure.code = atoi(code);
    }
    if (failure.code < 1 || failure.code > 255)
        failure.code = 0;
    value = mandor_json_get(object, "retry", &part);
    failure.no_retry = value != NULL && part == 5 && memcmp(value, "false", 5) == 0;
    free(object);
    return mandor_worker_fail_with(job, &failure);
}

static int answer(struct mandor_job *job, const char *line)
{
    size_t len;
    const char *error = mandor_json_get(line, "error", &len);

    if (error != NULL)
        return fail_with(job, error, len);
    int r = mandor_worker_result(job, line);
    return r == -EINVAL ? mandor_worker_fail(job, "the command's answer is not one line of JSON")
                        : r;
}

/* Between two jobs CMD says nothing: what it said would be taken for the next job's answer. */
static void check_silence(struct shim *shim)
{
    struct pollfd watch = { .fd = shim->out, .events = POLLIN };

    if (shim->pid == 0 || poll(&watch, 1, 0) <= 0)
        return;
    if (watch.revents & POLLIN)
        (void)fprintf(stderr, "mandor-shim: the command said something between two jobs, it is "
                              "started again\n");
    (void)stop(shim, SIGKILL);
}

static int handle(struct mandor_job *job, void *arg)
{
    struct shim *shim = arg;
    size_t len = 0;
    /* It went between two jobs: nobody's fault. */
    if (shim->pid > 0 && waitpid(shim->pid, NULL, WNOHANG) == shim->pid) {
        shim->pid = 0;
        (void)stop(shim, 0);
    }
    check_silence(shim);
    int r = shim->pid > 0 ? 0 : start(shim);
    if (r < 0)
        return r;

    char *line = job_line(job);
    if (line == NULL)
        return -ENOMEM;
    r = send_all(shim, job, line, strlen(line));
    free(line);
    if (r == 0 || r == -EPIPE) /* it may have answered before it went */
        r = read_line(shim, job, &len);
    if (r == -EPIPE)
        return ended(shim, job);
    if (r <
        0) { /* cancelled, or an endless line: what it says later would be taken for the next job's answer */
        (void)stop(shim, SIGKILL);
        return r == -EMSGSIZE
                   ? mandor_worker_fail(job, "the command's answer is longer than 16 MiB")
                   : r;
    }
    r = answer(job, shim->bytes);
    memmove(shim->bytes, shim->bytes + len, shim->len - len);
    shim->len -= len;
    if (shim->len > 0) { /* more than one line for one job: nobody can tell whose the next one is */
        (void)fprintf(
            stderr,
            "mandor-shim: the command said more than one line for a job, it is started again\n");
        (void)stop(shim, SIGKILL);
    }
    return r;
}

static int on_start(struct mandor_job *job, void *arg)
{
    (void)job;
    return start(arg);
}

int main(int argc, char **argv)
{
    int first = argc > 1 && strcmp(argv[1], "--") == 0 ? 2 : 1;

    if (argc <= first || (first == 1 && argv[1][0] == '-')) {
        (void)fprintf(stderr, "usage: mandor-shim -- CMD [ARG…]\n"
                              "Serves a warm pool of mandor: each job is a line of JSON on CMD's "
                              "stdin, and its answer a line on "
                              "stdout; see mandor-pool(7)\n");
        return argc > 1 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    struct shim shim = { .command = argv + first, .in = -1, .out = -1 };
    struct mandor_worker_options options = { .name = argv[first], .on_start = on_start };
    (void)signal(SIGPIPE, SIG_IGN);
    int r = mandor_worker_run_with(&options, handle, &shim);
    int status = stop(&shim, r < 0 ? SIGTERM : 0);
    free(shim.bytes);
    if (r < 0)
        return 1;
    return WIFEXITED(status) ? 0 : 1;
}

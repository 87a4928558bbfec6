/* supervise.c - libmandor in sixty lines: run a program, see its bytes and its end, leave nothing behind.
 *
 *     cc supervise.c $(pkg-config --cflags --libs mandor) && ./a.out '{"exec": ["sh", "-c", "echo hello; sleep 600 & exit 3"]}'
 */
#include <stdio.h>
#include <stdlib.h>

#include <mandor/mandor.h>

struct state {
    struct mandor *mandor;
    int exit_code;
};

static void on_started(struct mandor_process *process, pid_t pid, void *arg)
{
    (void)process;
    (void)arg;
    fprintf(stderr, "started as %d\n", (int)pid);
}

/* The filter: bytes, exactly as the program wrote them. */
static void on_output(struct mandor_process *process, enum mandor_stream stream, const void *bytes,
                      size_t len, void *arg)
{
    (void)process;
    (void)arg;
    fwrite(bytes, 1, len, stream == MANDOR_STDERR ? stderr : stdout);
}

/* The sentinel: it is over, and nothing of it is alive. */
static void on_ended(struct mandor_process *process, const struct mandor_result *result, void *arg)
{
    struct state *state = arg;

    (void)process;
    fprintf(stderr, "ended: %s %d after %lld ms, %lld left-over processes killed %s\n",
            result->cause, result->exit_code, (long long)result->wall_ms,
            (long long)result->descendants_killed, result->error);
    state->exit_code = result->exit_code < 0 ? 1 : result->exit_code;
    mandor_close(state->mandor, NULL, NULL);
}

int main(int argc, char **argv)
{
    static const struct mandor_callbacks callbacks = { .on_started = on_started,
                                                       .on_output = on_output,
                                                       .on_ended = on_ended };
    struct state state = { .exit_code = 1 };
    struct mandor_err err;

    if (argc != 2) {
        fprintf(
            stderr,
            "usage: %s JOB, for example '{\"exec\": [\"echo\", \"hello\"], \"timeout\": \"5s\"}'\n",
            argv[0]);
        return 2;
    }
    if (mandor_new(uv_default_loop(), NULL, NULL, &state.mandor, &err) < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], err.msg);
        return 1;
    }
    if (mandor_spawn(state.mandor, argv[1], &callbacks, &state, NULL, &err) < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], err.msg);
        mandor_close(state.mandor, NULL, NULL);
    }
    uv_run(uv_default_loop(), UV_RUN_DEFAULT);
    return state.exit_code;
}

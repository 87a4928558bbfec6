/* bench_spawn COUNT PARALLEL PROGRAM - the least that starting programs costs.
 *
 * posix_spawn(3) with a session of its own, then waitpid(2), PARALLEL at a time.  No queue, no pipes, no supervision.
 */
#include <spawn.h>
#include <sys/wait.h>

#include "bench.h"

extern char **environ;

static void start(char *program, const posix_spawnattr_t *attr)
{
    char *argv[] = { program, NULL };
    pid_t pid;

    errno = posix_spawn(&pid, program, NULL, attr, argv, environ);
    if (errno != 0)
        give_up(program);
}

/* Wait for one child; true when it exited with 0. */
static bool finish(void)
{
    int status;

    if (waitpid(-1, &status, 0) < 0)
        give_up("waitpid");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        (void)fprintf(stderr, "usage: bench_spawn COUNT PARALLEL PROGRAM\n");
        return 2;
    }
    int64_t count = number(argv[1]), parallel = number(argv[2]);
    int64_t started = 0, ended = 0, ok = 0;

    posix_spawnattr_t attr;
    if (posix_spawnattr_init(&attr) != 0 ||
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID) != 0)
        give_up("posix_spawnattr");

    int64_t start_ns = now_ns();
    while (ended < count) {
        for (; started < count && started - ended < parallel; started++)
            start(argv[3], &attr);
        ok += finish();
        ended++;
    }

    printf("{\"seconds\": %.6f, \"ok\": %" PRId64 "}\n", seconds_since(start_ns), ok);
    (void)posix_spawnattr_destroy(&attr);
    return 0;
}

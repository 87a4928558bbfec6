/* bench_stream splice|hash SINK STREAMS PIPE CMD [ARG…] - the least that carrying the output of a command costs.
 *
 *   splice   splice(2) from the command's pipe to the sink
 *   hash     read(2), XXH3, write(2): one thread, one buffer (null: read and hash only)
 *
 * SINK is null: or the path of a file, made as mandor makes one: written beside its target, fsync'ed, renamed.  With
 * STREAMS above 1 that many processes do it at once, each with its own command, the file being SINK.0, SINK.1, …
 * PIPE: capacity of the pipe in bytes.
 */
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "bench.h"

#define BUFFER ((size_t)256 << 10)

extern char **environ;

struct stream {
    bool hash;
    bool ok; /* the command exited with 0 */
    int64_t bytes;
    uint64_t xxh3;
};

/* Start the command with its stdout in a pipe; returns the reading end. */
static int start(char **command, int pipe_size, pid_t *ret_pid)
{
    int ends[2];
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;

    if (pipe2(ends, O_CLOEXEC) < 0 || fcntl(ends[1], F_SETPIPE_SZ, pipe_size) < 0)
        give_up("pipe");
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    (void)posix_spawnattr_init(&attr);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID);

    errno = posix_spawnp(ret_pid, command[0], &actions, &attr, command, environ);
    if (errno != 0)
        give_up(command[0]);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&attr);
    (void)close(ends[1]);
    return ends[0];
}

static void write_all(int fd, const unsigned char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, bytes, len);
        if (n < 0)
            give_up("write");
        bytes += n;
        len -= (size_t)n;
    }
}

static void carry_hashed(struct stream *stream, int from, int to)
{
    static unsigned char buffer[BUFFER];
    XXH3_state_t *state = XXH3_createState();
    ssize_t n;

    if (state == NULL || XXH3_64bits_reset(state) != XXH_OK)
        give_up("xxh3");
    while ((n = read(from, buffer, sizeof buffer)) > 0) {
        (void)XXH3_64bits_update(state, buffer, (size_t)n);
        if (to >= 0)
            write_all(to, buffer, (size_t)n);
        stream->bytes += n;
    }
    if (n < 0)
        give_up("read");
    stream->xxh3 = XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
}

static void carry_spliced(struct stream *stream, int from, int to)
{
    ssize_t n;

    while ((n = splice(from, NULL, to, NULL, (size_t)1 << 20, SPLICE_F_MOVE)) > 0)
        stream->bytes += n;
    if (n < 0)
        give_up("splice");
}

static void carry(struct stream *stream, const char *sink, int pipe_size, char **command)
{
    bool null = strcmp(sink, "null:") == 0;
    char part[PATH_MAX];
    pid_t pid;
    int status, to = -1;

    (void)snprintf(part, sizeof part, "%s.part", sink);
    if (!null)
        to = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    else if (!stream->hash)
        to = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (to < 0 && !(null && stream->hash))
        give_up(sink);

    int from = start(command, pipe_size, &pid);
    (stream->hash ? carry_hashed : carry_spliced)(stream, from, to);
    if (waitpid(pid, &status, 0) < 0)
        give_up("waitpid");
    stream->ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;

    if (!null && (fsync(to) < 0 || rename(part, sink) < 0))
        give_up(sink);
}

/* One process a stream; what they counted comes back through shared memory. */
static void carry_many(struct stream *streams, int64_t count, const char *sink, int pipe_size,
                       char **command)
{
    char path[PATH_MAX];

    for (int64_t i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid < 0)
            give_up("fork");
        if (pid == 0) {
            (void)snprintf(path, sizeof path, "%s.%" PRId64, sink, i);
            carry(&streams[i], strcmp(sink, "null:") == 0 ? sink : path, pipe_size, command);
            _exit(0);
        }
    }
    while (waitpid(-1, NULL, 0) > 0)
        continue;
}

int main(int argc, char **argv)
{
    if (argc < 6 || (strcmp(argv[1], "splice") != 0 && strcmp(argv[1], "hash") != 0)) {
        (void)fprintf(stderr, "usage: bench_stream splice|hash SINK STREAMS PIPE CMD [ARG…]\n");
        return 2;
    }
    int64_t count = number(argv[3]);
    int pipe_size = (int)number(argv[4]);
    struct stream *streams = mmap(NULL, (size_t)count * sizeof *streams, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (streams == MAP_FAILED)
        give_up("mmap");
    for (int64_t i = 0; i < count; i++)
        streams[i].hash = strcmp(argv[1], "hash") == 0;

    int64_t start_ns = now_ns();
    if (count == 1)
        carry(streams, argv[2], pipe_size, argv + 5);
    else
        carry_many(streams, count, argv[2], pipe_size, argv + 5);
    double seconds = seconds_since(start_ns);

    printf("{\"seconds\": %.6f, \"streams\": [", seconds);
    for (int64_t i = 0; i < count; i++)
        printf("%s{\"ok\": %s, \"bytes\": %" PRId64 ", \"xxh3\": \"%016" PRIx64 "\"}",
               i > 0 ? ", " : "", streams[i].ok ? "true" : "false", streams[i].bytes,
               streams[i].xxh3);
    printf("]}\n");
    return 0;
}

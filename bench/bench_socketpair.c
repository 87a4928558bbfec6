/* bench_socketpair pingpong COUNT THERE BACK | copy|hash BYTES CHUNK - the least that a Unix socket costs between two processes.
 *
 *   pingpong   COUNT times THERE bytes to the other process and BACK bytes from it, each read whole; prints the times in µs
 *   copy       the other process writes the pattern in writes of CHUNK bytes, this one reads it and drops it
 *   hash       the same with XXH3 of what comes
 *
 * Blocking reads and writes, one thread a side, no poll.
 */
#include <sys/socket.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "bench.h"
#include "pattern.h"

#define FRAME_MAX 65536
#define READ_SIZE ((size_t)256 << 10)

static unsigned char block[PATTERN_SIZE];

static void read_all(int fd, unsigned char *bytes, size_t len)
{
    for (ssize_t n; len > 0; bytes += n, len -= (size_t)n)
        if ((n = read(fd, bytes, len)) <= 0)
            give_up("read");
}

static void write_all(int fd, const unsigned char *bytes, size_t len)
{
    for (ssize_t n; len > 0; bytes += n, len -= (size_t)n)
        if ((n = write(fd, bytes, len)) < 0)
            give_up("write");
}

static void pong(int fd, int64_t count, size_t there, size_t back)
{
    for (int64_t i = 0; i < count; i++) {
        read_all(fd, block, there);
        write_all(fd, block, back);
    }
}

static void ping(int fd, int64_t count, size_t there, size_t back)
{
    printf("[");
    for (int64_t i = 0; i < count; i++) {
        int64_t start_ns = now_ns();
        write_all(fd, block, there);
        read_all(fd, block, back);
        printf("%s%.2f", i > 0 ? ", " : "", (double)(now_ns() - start_ns) / 1000);
    }
    printf("]\n");
}

static void send_pattern(int fd, int64_t left, size_t chunk)
{
    pattern_fill(block);
    for (size_t at = 0; left > 0; at = (at + chunk) % PATTERN_SIZE, left -= (int64_t)chunk)
        write_all(fd, block + at, (int64_t)chunk < left ? chunk : (size_t)left);
}

static void take(int fd, bool hash)
{
    static unsigned char buffer[READ_SIZE];
    XXH3_state_t *state = XXH3_createState();
    int64_t start_ns = now_ns(), bytes = 0;
    ssize_t n;

    if (state == NULL || XXH3_64bits_reset(state) != XXH_OK)
        give_up("xxh3");
    while ((n = read(fd, buffer, sizeof buffer)) > 0) {
        if (hash)
            (void)XXH3_64bits_update(state, buffer, (size_t)n);
        bytes += n;
    }
    if (n < 0)
        give_up("read");
    printf("{\"seconds\": %.6f, \"bytes\": %" PRId64 ", \"xxh3\": \"%016" PRIx64 "\"}\n",
           seconds_since(start_ns), bytes, XXH3_64bits_digest(state));
    (void)XXH3_freeState(state);
}

int main(int argc, char **argv)
{
    bool pingpong = argc == 5 && strcmp(argv[1], "pingpong") == 0,
         hash = argc == 4 && strcmp(argv[1], "hash") == 0;
    int ends[2], status;

    if (!pingpong && !hash && (argc != 4 || strcmp(argv[1], "copy") != 0)) {
        (void)fprintf(
            stderr, "usage: bench_socketpair pingpong COUNT THERE BACK | copy|hash BYTES CHUNK\n");
        return 2;
    }
    int64_t count = number(argv[2]);
    size_t there = (size_t)number(argv[3]), back = pingpong ? (size_t)number(argv[4]) : 1;
    if (there > FRAME_MAX || back > FRAME_MAX || (!pingpong && PATTERN_SIZE % there != 0)) {
        (void)fprintf(stderr,
                      "bench_socketpair: expected sizes up to %d, and a CHUNK that divides %d\n",
                      FRAME_MAX, PATTERN_SIZE);
        return 2;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        give_up("socketpair");

    pid_t pid = fork();
    if (pid < 0)
        give_up("fork");
    if (pid == 0) {
        (void)close(ends[0]);
        if (pingpong)
            pong(ends[1], count, there, back);
        else
            send_pattern(ends[1], count, there);
        _exit(0);
    }
    (void)close(ends[1]);
    if (pingpong)
        ping(ends[0], count, there, back);
    else
        take(ends[0], hash);
    if (waitpid(pid, &status, 0) < 0 || status != 0)
        give_up("the other process");
    return 0;
}

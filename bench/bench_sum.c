/* bench_sum [FILE…] - size and XXH3 of files (or of stdin): what the delivery checks compare. */
#include <fcntl.h>
#include <xxhash.h>

#include "bench.h"

static void sum(const char *name, int fd)
{
    static unsigned char buffer[1 << 20];
    XXH3_state_t *state = XXH3_createState();
    int64_t bytes = 0;
    ssize_t n;

    if (state == NULL || XXH3_64bits_reset(state) != XXH_OK)
        give_up("xxh3");
    while ((n = read(fd, buffer, sizeof buffer)) > 0) {
        (void)XXH3_64bits_update(state, buffer, (size_t)n);
        bytes += n;
    }
    if (n < 0)
        give_up(name);
    printf("%" PRId64 " %016" PRIx64 "\n", bytes, (uint64_t)XXH3_64bits_digest(state));
    (void)XXH3_freeState(state);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        sum("stdin", STDIN_FILENO);
    for (int i = 1; i < argc; i++) {
        int fd = open(argv[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            give_up(argv[i]);
        sum(argv[i], fd);
        (void)close(fd);
    }
    return 0;
}

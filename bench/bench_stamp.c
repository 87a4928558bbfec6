/* bench_stamp SOCKET [hold] - a job that says when it began: CLOCK_MONOTONIC in ns, as 8 bytes, over a Unix socket.
 *
 * hold: goes on until it is killed; the other side of the socket sees the end of file when it is dead.
 */
#include <sys/socket.h>
#include <sys/un.h>

#include "bench.h"

int main(int argc, char **argv)
{
    int64_t born_ns = now_ns();
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (argc < 2 || strlen(argv[1]) >= sizeof address.sun_path)
        return 2;
    (void)strcpy(address.sun_path, argv[1]);

    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        give_up(argv[1]);
    if (write(fd, &born_ns, sizeof born_ns) != sizeof born_ns)
        give_up("write");
    while (argc > 2)
        (void)pause();
    return 0;
}

/* notify.c - contract in notify.h. */
#include "os/notify.h"

#include <sys/socket.h>
#include <sys/un.h>

int notify_send(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (path == NULL || path[0] == '\0')
        return 0;
    size_t len = strlen(path);
    if (len >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, len);
    if (path[0] == '@') /* abstract name space, unix(7) */
        address.sun_path[0] = '\0';

    SCOPED_FD fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, size) < 0)
        return -errno;
    return 0;
}

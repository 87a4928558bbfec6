/* gate.c - preloaded into a program, it holds calls that change directories until a test lets them go: harness.Gate is the other end.
 *
 * MANDOR_GATE names the test's Unix socket, MANDOR_GATE_CALLS the calls ("mkdir,unlink").  One connection is one call: "NAME\n" comes,
 * and the call is held while the connection is open.  Removals are held before they happen, creations after it. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int is_gated(const char *call)
{
    const char *calls = getenv("MANDOR_GATE_CALLS");
    size_t len = strlen(call);

    for (const char *at = calls; at != NULL && (at = strstr(at, call)) != NULL; at += len)
        if ((at == calls || at[-1] == ',') && (at[len] == ',' || at[len] == '\0'))
            return 1;
    return 0;
}

static void hold(const char *call)
{
    const char *place = getenv("MANDOR_GATE");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int kept = errno;
    char line[40];

    if (place == NULL || strlen(place) >= sizeof address.sun_path || !is_gated(call))
        return;
    memcpy(address.sun_path, place, strlen(place));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        ssize_t n = send(fd, line, (size_t)snprintf(line, sizeof line, "%s\n", call), MSG_NOSIGNAL);
        while (n > 0 || (n < 0 && errno == EINTR))
            n = read(fd, line, sizeof line);
    }
    if (fd >= 0)
        (void)close(fd);
    errno = kept;
}

#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

int unlink(const char *path)
{
    hold("unlink");
    return REAL(unlink)(path);
}

int unlinkat(int dir, const char *path, int flags)
{
    hold("unlinkat");
    return REAL(unlinkat)(dir, path, flags);
}

int rmdir(const char *path)
{
    hold("rmdir");
    return REAL(rmdir)(path);
}

int mkdir(const char *path, mode_t mode)
{
    int r = REAL(mkdir)(path, mode);

    hold("mkdir");
    return r;
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    int r = REAL(mkdirat)(dir, path, mode);

    hold("mkdirat");
    return r;
}

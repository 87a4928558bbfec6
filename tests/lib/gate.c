/* gate.c - preloaded into a program, it holds calls that change files until a test lets them go: harness.Gate is the other end.
 *
 * MANDOR_GATE names the test's Unix socket, MANDOR_GATE_CALLS the calls ("mkdir,unlink").  One connection is one call: "NAME\n" comes
 * ("fsync PATH\n" for that one), and the call is held while the connection is open.  Removals and syncs are held before they happen,
 * creations after it. */
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

static void hold(const char *call, int of)
{
    const char *place = getenv("MANDOR_GATE");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int kept = errno;
    char line[400], link[40], path[300];
    ssize_t len = 0;

    if (place == NULL || strlen(place) >= sizeof address.sun_path || !is_gated(call))
        return;
    memcpy(address.sun_path, place, strlen(place));
    if (of >= 0) {
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", of);
        len = readlink(link, path, sizeof path);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        int size = snprintf(line, sizeof line, "%s%s%.*s\n", call, len > 0 ? " " : "",
                            len > 0 ? (int)len : 0, path);
        ssize_t n = send(fd, line, (size_t)size, MSG_NOSIGNAL);
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
    hold("unlink", -1);
    return REAL(unlink)(path);
}

int unlinkat(int dir, const char *path, int flags)
{
    hold("unlinkat", -1);
    return REAL(unlinkat)(dir, path, flags);
}

int rmdir(const char *path)
{
    hold("rmdir", -1);
    return REAL(rmdir)(path);
}

int mkdir(const char *path, mode_t mode)
{
    int r = REAL(mkdir)(path, mode);

    hold("mkdir", -1);
    return r;
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    int r = REAL(mkdirat)(dir, path, mode);

    hold("mkdirat", -1);
    return r;
}

int fsync(int fd)
{
    hold("fsync", fd);
    return REAL(fsync)(fd);
}

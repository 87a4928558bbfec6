/* wake.c - contract in wake.h. */
#include "broker/wake.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

int wake_open(struct wake *wake, const char *run_dir, struct mandor_err *err)
{
    *wake = (struct wake)WAKE_INIT;
    wake->dir_fd = RETRY_EINTR(open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (wake->dir_fd < 0)
        return err_set(err, -errno, FAULT_HOST, "open directory '%s'", run_dir);

    wake->sock_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (wake->sock_fd < 0) {
        int r = err_set(err, -errno, FAULT_HOST, "make a socket");
        wake_done(wake);
        return r;
    }
    return 0;
}

void wake_done(struct wake *wake)
{
    if (wake->dir_fd >= 0)
        (void)close(wake->dir_fd);
    if (wake->sock_fd >= 0)
        (void)close(wake->sock_fd);
    *wake = (struct wake)WAKE_INIT;
}

/* The path always goes through the directory's descriptor: sun_path holds 107 bytes, and data directories may be deeper. */
static bool address(int dir_fd, const char *name, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
    int n = snprintf(ret->sun_path, sizeof ret->sun_path, "/proc/self/fd/%d/%s", dir_fd, name);
    return n > 0 && (size_t)n < sizeof ret->sun_path;
}

static bool is_socket_name(const char *name)
{
    size_t len = strlen(name);
    return name[0] != '.' && len > 5 && str_eq(name + len - 5, ".sock");
}

void wake_send(struct wake *wake)
{
    int fd = openat(wake->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct sockaddr_un addr;
        if (is_socket_name(entry->d_name) && !str_eq(entry->d_name, wake->own) &&
            address(wake->dir_fd, entry->d_name, &addr))
            /* EAGAIN: it has wake-ups enough.  ECONNREFUSED: dead, its file goes when its worker is recovered. */
            (void)sendto(wake->sock_fd, "", 0, MSG_NOSIGNAL | MSG_DONTWAIT,
                         (struct sockaddr *)&addr, sizeof addr);
    }
    (void)closedir(dir);
}

static int bind_at(int fd, int dir_fd, const char *file)
{
    struct sockaddr_un addr;
    if (!address(dir_fd, file, &addr))
        return -ENAMETOOLONG;
    if (unlinkat(dir_fd, file, 0) < 0 && errno != ENOENT)
        return -errno;
    if (bind(fd, (struct sockaddr *)&addr, sizeof addr) < 0)
        return -errno;
    if (fchmodat(dir_fd, file, 0600, 0) < 0)
        return -errno;
    return 0;
}

int wake_bind(const char *run_dir, const char *name, struct mandor_err *err)
{
    char file[80];
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL ||
        (size_t)snprintf(file, sizeof file, "%s.sock", name) >= sizeof file)
        return err_set(err, -EINVAL, FAULT_CALLER, "worker name '%s' cannot name a socket", name);

    SCOPED_FD dir_fd = RETRY_EINTR(open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (dir_fd < 0)
        return err_set(err, -errno, FAULT_HOST, "open directory '%s'", run_dir);
    SCOPED_FD fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(err, -errno, FAULT_HOST, "make a socket");

    int r = bind_at(fd, dir_fd, file);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "bind '%s/%s'", run_dir, file);
    return STEAL_FD(fd);
}

bool wake_drain(int fd)
{
    bool any = false;
    char byte;

    while (RETRY_EINTR(recv(fd, &byte, 1, MSG_DONTWAIT)) >= 0)
        any = true;
    return any;
}

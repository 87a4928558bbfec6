/* redis_rig.c - contract in redis_rig.h. */
#include "redis_rig.h"

#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

bool redis_rig_possible(void)
{
    return system("command -v redis-server >/dev/null 2>&1") == 0;
}

/* A cluster's nodes listen 10000 above as well. */
static int free_port(void)
{
    for (;;) {
        struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
        socklen_t len = sizeof at;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, len), 0);
        ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
        (void)close(fd);
        if (ntohs(at.sin_port) < 55000)
            return ntohs(at.sin_port);
    }
}

static bool answers(const struct redis_rig *rig)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char reply[64] = "";

    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s", rig->socket);
    bool up = connect(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
              write(fd, "PING\r\n", 6) == 6 && read(fd, reply, sizeof reply - 1) > 0 &&
              strncmp(reply, "-LOADING", 8) != 0;
    (void)close(fd);
    return up;
}

static void run(struct redis_rig *rig, const char *file, const char *const *extra)
{
    char port[16];
    const char *argv[48] = { "redis-server" };
    const char *const common[] = { "--port",       port,        "--bind",      "127.0.0.1",
                                   "--unixsocket", rig->socket, "--save",      "",
                                   "--dir",        rig->dir,    "--daemonize", "no" };
    size_t argc = 1;

    if (file != NULL)
        argv[argc++] = file;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        argv[argc++] = common[i];
    (void)snprintf(port, sizeof port, "%d", rig->port);
    for (size_t i = 0; extra != NULL && extra[i] != NULL; i++)
        argv[argc++] = extra[i];
    rig->pid = fork();
    ck_assert_int_ge(rig->pid, 0);
    if (rig->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_RDWR);
        (void)dup2(null, 0);
        (void)dup2(null, 1);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    for (int i = 0; !answers(rig); i++) {
        struct timespec moment = { .tv_nsec = 10000000 };
        ck_assert_msg(i < 1500, "redis-server does not start");
        ck_assert_int_eq(waitpid(rig->pid, NULL, WNOHANG), 0);
        (void)nanosleep(&moment, NULL);
    }
}

void redis_rig_start(struct redis_rig *rig, const char *const *extra)
{
    redis_rig_start_file(rig, NULL, extra);
}

void redis_rig_start_file(struct redis_rig *rig, const char *file, const char *const *extra)
{
    strcpy(rig->dir, "/tmp/mandor-redis-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(rig->dir));
    (void)snprintf(rig->socket, sizeof rig->socket, "%s/s", rig->dir);
    rig->port = free_port();
    run(rig, file, extra);
}

void redis_rig_stop(struct redis_rig *rig)
{
    if (rig->pid <= 0)
        return;
    (void)kill(rig->pid, SIGKILL);
    (void)waitpid(rig->pid, NULL, 0);
    rig->pid = 0;
}

void redis_rig_again(struct redis_rig *rig, const char *const *extra)
{
    redis_rig_stop(rig);
    run(rig, NULL, extra);
}

void redis_rig_done(struct redis_rig *rig)
{
    char command[128];

    redis_rig_stop(rig);
    if (rig->dir[0] == '\0')
        return;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", rig->dir);
    ck_assert_int_eq(system(command), 0);
}

bool redis_rig_cli(const struct redis_rig *rig, const char *args)
{
    char command[1024];

    (void)snprintf(command, sizeof command, "redis-cli -s %s %s >/dev/null 2>&1", rig->socket,
                   args);
    return system(command) == 0;
}

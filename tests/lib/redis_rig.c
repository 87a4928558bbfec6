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

static const char *program(void)
{
    const char *given = getenv("MANDOR_TEST_REDIS");
    return given != NULL && given[0] != '\0' ? given : "redis-server";
}

bool redis_rig_possible(void)
{
    char command[256];

    (void)snprintf(command, sizeof command, "command -v '%s' >/dev/null 2>&1", program());
    return system(command) == 0;
}

/* A port on which nothing listens.  A test that runs beside this one gets another, until this process ends: the name that is bound
 * for it is taken.  It, and 10000 above, where a cluster's nodes listen too, are lower than those that the kernel gives to connections. */
static int free_port(void)
{
    for (;;) {
        int port = 12000 + (int)(arc4random() % 10000);
        struct sockaddr_un name = { .sun_family = AF_UNIX };
        struct sockaddr_in at = { .sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = { htonl(INADDR_LOOPBACK) } };
        int kept = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        ck_assert(kept >= 0 && fd >= 0);
        int len =
            snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "mandor-test-port-%d", port);
        bool ours =
            bind(kept, (struct sockaddr *)&name,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len)) == 0 &&
            bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
        (void)close(fd);
        if (ours)
            return port;
        (void)close(kept);
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
    const char *argv[48] = { program() };
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
        ck_assert_msg(i < 6000, "%s does not start", program());
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

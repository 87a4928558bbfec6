/* nasty.c - a child as nobody wants it, for tests: `nasty MODE [NUMBER]`.  Kept small and static in behaviour: each mode does one
 * unpleasant thing that field reports tell of. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* If a test dies before its nasty child does, the machine must not suffer for ever. */
#define LIFE_S 60

#define COMET_LIFE_S 10

static time_t born;

static int too_old(void)
{
    return time(NULL) - born > LIFE_S;
}

/* Double fork, new session, all descriptors closed, environment gone from /proc only if asked. */
static void daemonise(void)
{
    if (fork() != 0)
        _exit(0);
    (void)setsid();
    if (fork() != 0)
        _exit(0);
    for (int fd = 0; fd < 64; fd++)
        (void)close(fd);
}

static void sleep_for_ever(void)
{
    while (!too_old())
        (void)sleep(1);
    _exit(0);
}

static void *sleeper(void *arg)
{
    (void)arg;
    sleep_for_ever();
    return NULL;
}

/* Alive, and yet /proc says Z: the first thread has ended, another one has not. */
static void headless(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleeper, NULL) != 0)
        _exit(3);
    pthread_exit(NULL);
}

/* Always somebody else: a new process in a new session takes over and the old one leaves.  Each leaves a zombie to whoever
 * adopts it, and an init that reaps slowly fills the process table: so not for long, and not without end. */
static void comet(void)
{
    while (time(NULL) - born <= COMET_LIFE_S) {
        (void)usleep(500);
        pid_t pid = fork();
        if (pid > 0)
            _exit(0);
        if (pid == 0)
            (void)setsid();
    }
}

/* n children that fork again, each in a group of its own, and outlive us. */
static void helpers(int n)
{
    for (int i = 0; i < n; i++)
        if (fork() == 0) {
            (void)setpgid(0, 0);
            (void)fork();
            sleep_for_ever();
        }
}

static char *volatile last_page; /* so that no compiler thinks the memory unused */

static void eat(size_t megabytes)
{
    for (size_t i = 0; i < megabytes; i++) {
        char *page = malloc(1 << 20);
        if (page == NULL)
            _exit(3);
        memset(page, (int)i | 1, 1 << 20);
        last_page = page;
    }
}

int main(int argc, char **argv)
{
    born = time(NULL);
    const char *mode = argc > 1 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    if (strcmp(mode, "daemon") == 0) {
        daemonise();
        sleep_for_ever();
    } else if (strcmp(mode, "headless") == 0) {
        daemonise();
        headless();
    } else if (strcmp(mode, "comet") == 0) {
        if (fork() == 0)
            comet();
        (void)usleep(20000);
    } else if (strcmp(mode, "helpers") == 0) {
        helpers(number);
    } else if (strcmp(mode, "bomb") == 0) {
        while (!too_old())
            (void)fork();
    } else if (strcmp(mode, "eat") == 0) {
        if (fork() == 0)
            sleep_for_ever(); /* an innocent member of the job */
        if (fork() == 0)
            eat((size_t)number);
        (void)wait(NULL);
        sleep_for_ever();
    } else if (strcmp(mode, "spin") == 0) {
        for (volatile unsigned long i = 0; i % 4096 != 0 || !too_old(); i++)
            continue;
    } else if (strcmp(mode, "stubborn") == 0) {
        for (int sig = 1; sig < 32; sig++)
            (void)signal(sig, SIG_IGN);
        (void)!write(1, "up\n", 3);
        sleep_for_ever();
    } else if (strcmp(mode, "exit") == 0) {
        return number;
    }
    return 0;
}

/* slow_fsync.so - LD_PRELOAD: a disk whose every fsync takes $SLOW_FSYNC_US longer (default 5000).
 *
 * On a fast disk the wait for durability hides behind the other work; with this it shows.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void delay(void)
{
    const char *text = getenv("SLOW_FSYNC_US");
    long us = text != NULL ? strtol(text, NULL, 10) : 5000;
    struct timespec left = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

    while (nanosleep(&left, &left) < 0)
        continue;
}

static int slowly(const char *name, int fd)
{
    int (*real)(int);

    *(void **)&real = dlsym(RTLD_NEXT, name); /* POSIX: a function's address fits in a void * */
    delay();
    return real(fd);
}

int fsync(int fd)
{
    return slowly("fsync", fd);
}

int fdatasync(int fd)
{
    return slowly("fdatasync", fd);
}

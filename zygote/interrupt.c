/* interrupt.c - contract in interrupt.h.
 *
 *   in Python bytecode   the flag is up: the interpreter raises KeyboardInterrupt
 *   in a system call     no SA_RESTART: the call returns EINTR, whoever made it looks at the flag
 *   in an await          the loop wakes up, and the harness cancels the tasks
 *
 * A signal can come between a look at the flag and the system call after it.  So SIGALRM comes again and again, which raises
 * nothing anew; it only wakes what sleeps. */
#include "interrupt.h"

#include <errno.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REPEAT_US 50000

static volatile unsigned char *interrupt_flag;
static uv_async_t wake;
static void (*woken)(void);
static volatile sig_atomic_t armed, asked;

static void on_signal(int number)
{
    static const struct itimerval repeat = { .it_interval = { .tv_usec = REPEAT_US },
                                             .it_value = { .tv_usec = REPEAT_US } };
    int before = errno;

    if (number == SIGTERM) {
        if (!armed)
            _exit(143); /* no job was begun: nothing to tidy up */
        asked = 1;
        *interrupt_flag = 2;
        (void)setitimer(ITIMER_REAL, &repeat, NULL);
    }
    if (*interrupt_flag == 2)
        (void)uv_async_send(&wake);
    errno = before;
}

static void on_async(uv_async_t *handle)
{
    (void)handle;
    if (*interrupt_flag == 2)
        woken();
}

int interrupt_start(uv_loop_t *loop, volatile unsigned char *flag, void (*on_wake)(void))
{
    struct sigaction action = { .sa_handler = on_signal };

    interrupt_flag = flag;
    woken = on_wake;
    int r = uv_async_init(loop, &wake, on_async);
    if (r < 0)
        return r;
    uv_unref((uv_handle_t *)&wake);
    if (sigaction(SIGTERM, &action, NULL) < 0 || sigaction(SIGALRM, &action, NULL) < 0)
        return -errno;
    return 0;
}

void interrupt_arm(void)
{
    armed = 1;
}

bool interrupt_disarm(void)
{
    armed = 0;
    return asked != 0;
}

double interrupt_sleep(double ms)
{
    struct timespec want = { .tv_sec = (time_t)(ms / 1000) }, left = { 0 };

    want.tv_nsec = (long)((ms - (double)want.tv_sec * 1000) * 1e6);
    if (clock_nanosleep(CLOCK_MONOTONIC, 0, &want, &left) != EINTR)
        return 0;
    return (double)left.tv_sec * 1000 + (double)left.tv_nsec / 1e6;
}

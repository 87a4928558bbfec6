/* sigpipe.c - contract in sigpipe.h.
 *
 * A write to a pipe has no MSG_NOSIGNAL.  SIGPIPE is sent to the thread that wrote, so it is blocked in this thread for that moment and
 * taken back when it came (signal(7)).  One that was pending before is the host's.
 */
#include "os/sigpipe.h"

#include <pthread.h>
#include <signal.h>

static bool is_pending(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

ssize_t sigpipe_write(int fd, const void *bytes, size_t len)
{
    sigset_t sigpipe, old;
    (void)sigemptyset(&sigpipe);
    (void)sigaddset(&sigpipe, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &sigpipe, &old);

    bool hosts_own = is_pending();
    ssize_t n = RETRY_EINTR(write(fd, bytes, len));
    int error = errno;
    if (n < 0 && error == EPIPE && !hosts_own)
        (void)RETRY_EINTR(sigtimedwait(&sigpipe, NULL, &(struct timespec){ 0 }));

    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return n < 0 ? -error : n;
}

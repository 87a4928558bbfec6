/* wake.h - tell workers on this machine that something changed: an empty datagram to every socket in a directory.
 *
 * A wake-up is a hint: it may be lost (the receiver's buffer is full: it is awake then) and workers poll once a second anyway.
 */
#ifndef BROKER_WAKE_H
#define BROKER_WAKE_H

#include "base/err.h"
#include "base/macro.h"

/* The sending side.  One thread. */
struct wake {
    int dir_fd, sock_fd; /* -1 = not open */
    char own[80];        /* name of our own socket, which is left out; "" = none */
};
#define WAKE_INIT                   \
    {                               \
        .dir_fd = -1, .sock_fd = -1 \
    }

MUST_CHECK int wake_open(struct wake *wake, const char *run_dir, struct mandor_err *err);
void wake_done(struct wake *wake);
/* Never blocks, never fails: who cannot be told will poll. */
void wake_send(struct wake *wake);

/* The receiving side: bind <run_dir>/<name>.sock (mode 0600, O_NONBLOCK).  A file of that name is replaced: the caller holds the
 * lock that makes the name its own.  Returns the descriptor or -errno. */
MUST_CHECK int wake_bind(const char *run_dir, const char *name, struct mandor_err *err);
/* Take all datagrams that wait; returns whether there were any. */
bool wake_drain(int fd);

#endif

/* turnstile.c - contract in turnstile.h.
 *
 * Unlocked with LOCK_UN, never by close(2) alone: a child between clone and exec shares the open file description for a
 * moment and would keep the lock with it.
 */
#include "broker/turnstile.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>

static int open_lock(const char *db_path, const char *suffix, struct mandor_err *err)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s.%s", db_path, suffix) >= sizeof path)
        return err_set(err, -ENAMETOOLONG, FAULT_CALLER, "path of the queue '%s' is too long",
                       db_path);

    int fd = RETRY_EINTR(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd < 0)
        return err_set(err, -errno, FAULT_HOST, "open lock file '%s'", path);
    return fd;
}

int turnstile_open(struct turnstile *turnstile, const char *db_path, struct mandor_err *err)
{
    *turnstile = (struct turnstile)TURNSTILE_INIT;
    int r = turnstile->next_fd = open_lock(db_path, "next", err);
    if (r >= 0)
        r = turnstile->turn_fd = open_lock(db_path, "turn", err);
    if (r >= 0)
        return 0;

    turnstile_done(turnstile);
    return r;
}

void turnstile_done(struct turnstile *turnstile)
{
    if (turnstile->next_fd >= 0)
        (void)close(turnstile->next_fd);
    if (turnstile->turn_fd >= 0)
        (void)close(turnstile->turn_fd);
    *turnstile = (struct turnstile)TURNSTILE_INIT;
}

int turnstile_enter(struct turnstile *turnstile)
{
    if (RETRY_EINTR(flock(turnstile->next_fd, LOCK_EX)) < 0)
        return -errno;

    int r = RETRY_EINTR(flock(turnstile->turn_fd, LOCK_EX)) < 0 ? -errno : 0;
    (void)flock(turnstile->next_fd, LOCK_UN);
    return r;
}

void turnstile_leave(struct turnstile *turnstile)
{
    (void)flock(turnstile->turn_fd, LOCK_UN);
}

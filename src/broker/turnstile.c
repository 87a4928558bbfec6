/* turnstile.c - contract in turnstile.h.
 *
 * Unlocked with LOCK_UN, never by close(2) alone: a child between clone and exec shares the open file description for a
 * moment and would keep the lock with it.
 *
 * flock(2) knows no time limit.  Who has to wait sets a timer whose signal, to this thread alone, breaks the call off.
 */
#include "broker/turnstile.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "base/clock.h"
#include "os/proc.h"

#define ALARM_SIGNAL   (SIGRTMIN + 1)
/* One that comes between a look at the clock and flock(2) breaks nothing off: then the next. */
#define ALARM_AGAIN_NS 50000000

int64_t turnstile_test_patience_ms = 10000;

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

/* ---- the alarm ---- */

struct alarm {
    timer_t timer;
    bool set;
    sigset_t old_mask;
};

static void on_alarm(int number)
{
    (void)number; /* flock(2) returns EINTR, that is all */
}

static void install_handler(void)
{
    struct sigaction action = { .sa_handler = on_alarm }; /* without SA_RESTART */
    (void)sigaction(ALARM_SIGNAL, &action, NULL);
}

/* Without an alarm (no timer is left) the wait has no end, as flock(2) has none. */
static void alarm_set(struct alarm *alarm)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = ALARM_SIGNAL };
    struct itimerspec when = {
        .it_value = { .tv_sec = turnstile_test_patience_ms / 1000,
                      .tv_nsec = turnstile_test_patience_ms % 1000 * 1000000 },
        .it_interval = { .tv_nsec = ALARM_AGAIN_NS },
    };
    sigset_t mask;

    (void)pthread_once(&once, install_handler);
    event._sigev_un._tid = gettid(); /* glibc 2.36 has no name for it */
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, ALARM_SIGNAL);
    (void)pthread_sigmask(SIG_UNBLOCK, &mask, &alarm->old_mask);
    alarm->set = timer_create(CLOCK_MONOTONIC, &event, &alarm->timer) == 0;
    if (alarm->set)
        (void)timer_settime(alarm->timer, 0, &when, NULL);
}

static void alarm_clear(struct alarm *alarm)
{
    if (alarm->set)
        (void)timer_delete(alarm->timer);
    (void)pthread_sigmask(SIG_SETMASK, &alarm->old_mask, NULL);
}

/* ---- the turn ---- */

static int lock_until(int fd, int64_t until_ms)
{
    while (flock(fd, LOCK_EX) < 0) {
        if (errno != EINTR)
            return -errno;
        if (clock_mono_ms() >= until_ms)
            return -ETIMEDOUT;
    }
    return 0;
}

static bool try_lock(int fd)
{
    return RETRY_EINTR(flock(fd, LOCK_EX | LOCK_NB)) == 0;
}

int turnstile_enter(struct turnstile *turnstile)
{
    bool first = try_lock(turnstile->next_fd);
    if (first && try_lock(turnstile->turn_fd)) {
        (void)flock(turnstile->next_fd, LOCK_UN);
        return 0;
    }

    struct alarm alarm;
    int64_t until_ms = clock_mono_ms() + turnstile_test_patience_ms;
    alarm_set(&alarm);
    int r = first ? 0 : lock_until(turnstile->next_fd, until_ms);
    first = r == 0;
    if (first)
        r = lock_until(turnstile->turn_fd, until_ms);
    if (first)
        (void)flock(turnstile->next_fd, LOCK_UN);
    alarm_clear(&alarm);
    return r;
}

void turnstile_leave(struct turnstile *turnstile)
{
    (void)flock(turnstile->turn_fd, LOCK_UN);
}

/* ---- who is at it? ---- */

/* Whoever holds a flock(2) on fd, from /proc/locks ("1: FLOCK  ADVISORY  WRITE 4711 08:01:42 0 EOF", waiters have "->"); 0 = not to be
 * seen from here. */
static pid_t holder_of(int fd)
{
    struct stat st;
    FILE *file = fopen("/proc/locks", "re");
    char line[256];
    pid_t found = 0;

    if (file == NULL)
        return 0;
    if (fstat(fd, &st) == 0)
        while (found == 0 && fgets(line, sizeof line, file) != NULL) {
            int pid;
            unsigned major, minor;
            unsigned long long inode;
            if (sscanf(line, "%*d: FLOCK ADVISORY WRITE %d %x:%x:%llu", &pid, &major, &minor,
                       &inode) == 4 &&
                inode == st.st_ino && makedev(major, minor) == st.st_dev)
                found = pid;
        }
    (void)fclose(file);
    return found;
}

static void name_of(pid_t pid, char *name, size_t size)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(name, (int)size, file) == NULL)
        (void)snprintf(name, size, "?");
    name[strcspn(name, "\n")] = '\0';
    if (file != NULL)
        (void)fclose(file);
}

int turnstile_complain(const struct turnstile *turnstile, const char *db_path, int error,
                       struct mandor_err *err)
{
    if (error != -ETIMEDOUT)
        return err_set(err, error, FAULT_HOST, "lock '%s.turn'", db_path);

    pid_t pid = holder_of(turnstile->turn_fd);
    struct proc_stat stat = { 0 };
    char name[32];
    if (pid <= 0)
        return err_set(err, -EBUSY, FAULT_HOST,
                       "queue file '%s': another process does not let go of '%s.turn'", db_path,
                       db_path);
    name_of(pid, name, sizeof name);
    bool stopped = proc_stat_read(pid, &stat) == 0 && (stat.state == 'T' || stat.state == 't');
    return err_set(err, -EBUSY, FAULT_HOST,
                   "queue file '%s': process %d (%s%s) does not let go of it: %s", db_path, pid,
                   name, stopped ? ", stopped" : "", stopped ? "continue or end it" : "end it");
}

/* clock.c - contract in clock.h. */
#include "base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define NS_PER_S  INT64_C(1000000000)
#define NS_PER_MS INT64_C(1000000)

static int64_t read_ns(clockid_t id)
{
    struct timespec ts;

    BUG_ON(clock_gettime(id, &ts) != 0); /* these three clocks are always there */
    return (int64_t)ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

int64_t clock_mono_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

int64_t clock_mono_ms(void)
{
    return read_ns(CLOCK_MONOTONIC) / NS_PER_MS;
}

int64_t clock_boot_ms(void)
{
    return read_ns(CLOCK_BOOTTIME) / NS_PER_MS;
}

int64_t clock_wall_ms(void)
{
    return read_ns(CLOCK_REALTIME) / NS_PER_MS;
}

char *clock_rfc3339(int64_t wall_ms, char buf[static CLOCK_RFC3339_SIZE])
{
    int64_t ms = (wall_ms % 1000 + 1000) % 1000; /* also before 1970 */
    time_t seconds = (time_t)((wall_ms - ms) / 1000);
    struct tm tm;

    if (gmtime_r(&seconds, &tm) == NULL || tm.tm_year > 9999 - 1900 || tm.tm_year < -1900) {
        /* RFC 3339 ends with the year 9999 */
        memcpy(buf, "9999-12-31T23:59:59.999Z", sizeof "9999-12-31T23:59:59.999Z");
        return buf;
    }
    size_t n = strftime(buf, CLOCK_RFC3339_SIZE, "%Y-%m-%dT%H:%M:%S", &tm);
    if (tm.tm_year < 1000 - 1900) /* %Y does not pad */
        n = (size_t)snprintf(buf, CLOCK_RFC3339_SIZE, "%04u-%02u-%02uT%02u:%02u:%02u",
                             (unsigned)(tm.tm_year + 1900) % 10000u,
                             (unsigned)(tm.tm_mon + 1) % 100u, (unsigned)tm.tm_mday % 100u,
                             (unsigned)tm.tm_hour % 100u, (unsigned)tm.tm_min % 100u,
                             (unsigned)tm.tm_sec % 100u);
    (void)snprintf(buf + n, CLOCK_RFC3339_SIZE - n, ".%03uZ", (unsigned)ms % 1000u);
    return buf;
}

static char boot_id[40];

static void read_boot_id(void)
{
    SCOPED_FD fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;

    ssize_t n = RETRY_EINTR(read(fd, boot_id, sizeof boot_id - 1));
    boot_id[n > 0 ? n : 0] = '\0';
    boot_id[strcspn(boot_id, "\n")] = '\0';
}

const char *clock_boot_id(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, read_boot_id);
    return boot_id;
}

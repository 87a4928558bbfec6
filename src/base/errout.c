/* errout.c - contract in errout.h. */
#include "base/errout.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/file.h"

#define CHUNK_BYTES ((size_t)PIPE_BUF)
/* A first line waits so long for others: a write for each costs more than what it says. */
#define GATHER_NS   1000000

/* head and tail count every byte that ever came and went. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t more, hurry;
    pthread_t thread;
    bool running, stopping; /* under lock */
    bool idle, hurried;     /* under lock: the writer waits for a line; somebody waits for it */
    size_t head, tail;      /* under lock */
    char bytes[ERROUT_BYTES];
} ring = { .lock = PTHREAD_MUTEX_INITIALIZER,
           .more = PTHREAD_COND_INITIALIZER,
           .hurry = PTHREAD_COND_INITIALIZER };

static atomic_size_t pending; /* bytes that are not written yet */
static atomic_bool stuck;     /* errout_stop() gave up */
static atomic_uint lost;

unsigned errout_take_lost(void)
{
    return atomic_exchange(&lost, 0);
}

void errout_add_lost(unsigned count)
{
    atomic_fetch_add(&lost, count);
}

/* ---- the writer thread ---- */

/* Under lock.  There is something to write, or no more is to come. */
static void wait_for_lines(void)
{
    struct timespec until;

    if (ring.head != ring.tail)
        return;
    ring.idle = true;
    while (ring.head == ring.tail && !ring.stopping)
        (void)pthread_cond_wait(&ring.more, &ring.lock);
    ring.idle = false;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += GATHER_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (!ring.hurried && !ring.stopping)
        (void)pthread_cond_clockwait(&ring.hurry, &ring.lock, CLOCK_MONOTONIC, &until);
}

/* Take what one write can carry, whole lines if there is one.  Returns its length; 0 = the end. */
static size_t take(char chunk[static CHUNK_BYTES])
{
    (void)pthread_mutex_lock(&ring.lock);
    wait_for_lines();
    size_t len = MIN(ring.head - ring.tail, CHUNK_BYTES), at = ring.tail % ERROUT_BYTES;
    size_t first = MIN(len, ERROUT_BYTES - at);
    memcpy(chunk, ring.bytes + at, first);
    memcpy(chunk + first, ring.bytes, len - first);
    const char *newline = memrchr(chunk, '\n', len);
    if (newline != NULL && ring.head - ring.tail > len)
        len = (size_t)(newline - chunk) + 1;
    ring.tail += len;
    (void)pthread_mutex_unlock(&ring.lock);
    return len;
}

static unsigned lines_of(const char *chunk, size_t len)
{
    unsigned lines = 0;

    for (size_t i = 0; i < len; i++)
        lines += chunk[i] == '\n';
    return lines;
}

static void *run(void *arg)
{
    char chunk[CHUNK_BYTES];

    for (size_t len; (len = take(chunk)) > 0; atomic_fetch_sub(&pending, len))
        if (file_write_all(STDERR_FILENO, chunk, len) < 0) /* nobody reads any more, a full disk */
            errout_add_lost(lines_of(chunk, len));
    return arg;
}

/* ---- everybody else ---- */

int errout_start(void)
{
    sigset_t all, old;

    (void)pthread_mutex_lock(&ring.lock);
    int r = 0;
    if (!ring.running) {
        (void)sigfillset(&all); /* signals are for the others */
        (void)pthread_sigmask(SIG_SETMASK, &all, &old);
        ring.stopping = false;
        r = -pthread_create(&ring.thread, NULL, run, NULL);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
        ring.running = r == 0;
    }
    (void)pthread_mutex_unlock(&ring.lock);
    return r;
}

static void set_hurry(bool hurried)
{
    (void)pthread_mutex_lock(&ring.lock);
    ring.hurried = hurried;
    (void)pthread_cond_signal(&ring.hurry);
    (void)pthread_mutex_unlock(&ring.lock);
}

void errout_flush(int ms)
{
    set_hurry(true);
    for (int64_t end = clock_mono_ms() + ms; atomic_load(&pending) > 0 && clock_mono_ms() < end;
         (void)poll(NULL, 0, 1))
        continue;
    set_hurry(false);
}

void errout_stop(int ms)
{
    (void)pthread_mutex_lock(&ring.lock);
    bool running = ring.running;
    (void)pthread_mutex_unlock(&ring.lock);
    if (!running || atomic_load(&stuck))
        return;

    errout_flush(ms);
    if (atomic_load(&pending) > 0) {
        atomic_store(&stuck, true);
        return;
    }
    (void)pthread_mutex_lock(&ring.lock);
    ring.stopping = true;
    ring.running = false;
    (void)pthread_cond_signal(&ring.more);
    (void)pthread_mutex_unlock(&ring.lock);
    (void)pthread_join(ring.thread, NULL);
}

/* false: there is no room. */
static bool enqueue(const char *bytes, size_t len)
{
    if (len > ERROUT_BYTES - (ring.head - ring.tail))
        return false;
    size_t at = ring.head % ERROUT_BYTES, first = MIN(len, ERROUT_BYTES - at);
    memcpy(ring.bytes + at, bytes, first);
    memcpy(ring.bytes, bytes + first, len - first);
    ring.head += len;
    atomic_fetch_add(&pending, len);
    if (ring.idle)
        (void)pthread_cond_signal(&ring.more);
    return true;
}

bool errout_put(const char *bytes, size_t len)
{
    bool put = false;

    (void)pthread_mutex_lock(&ring.lock);
    bool running = ring.running;
    if (running && !atomic_load(&stuck))
        put = enqueue(bytes, len);
    (void)pthread_mutex_unlock(&ring.lock);
    if (!running)
        put = RETRY_EINTR(write(STDERR_FILENO, bytes, len)) >= 0;
    if (!put)
        errout_add_lost(1);
    return put;
}

bool errout_putf(const char *fmt, ...)
{
    va_list args;
    char *text = NULL;

    va_start(args, fmt);
    int len = vasprintf(&text, fmt, args);
    va_end(args);
    bool put = len >= 0 && errout_put(text, (size_t)len);
    if (len < 0)
        errout_add_lost(1);
    else
        free(text);
    return put;
}

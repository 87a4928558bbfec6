/* pump.c - contract in pump.h. */
#include "stream/pump.h"

#include <fcntl.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"

#define SPLICE_MAX ((size_t)1 << 20) /* bytes a call: a whole pipe of the largest size */

static int stop(struct pump *pump, enum pump_end end, int error)
{
    pump->end = end;
    pump->error = error;
    return -1;
}

/* Frame, hash and write what was just read.  0, or -1: the slice is over. */
static int carry_on(struct pump *pump, const unsigned char *bytes, size_t len)
{
    size_t take = (size_t)MIN((int64_t)len, pump->keep_max - pump->kept);

    pump->bytes += (int64_t)len;
    if (pump->framer != NULL && framer_push(pump->framer, bytes, len, NULL) < 0)
        (void)stop(pump, PUMP_FRAME, -EPROTO); /* what came with it is still stored */
    if (pump->hash != NULL)
        XXH3_64bits_update(pump->hash, bytes, take);
    if (pump->to != PUMP_NOWHERE) {
        int r = file_write_all(pump->to, bytes, take);
        if (r < 0)
            return stop(pump, PUMP_WRITE_FAILED, r);
    }
    pump->kept += (int64_t)take;
    if (take < len && !pump->discard)
        return stop(pump, PUMP_OVER, -EFBIG);
    return pump->end == PUMP_FRAME ? -1 : 0;
}

/* The pipe is empty: nap once in a row.  True: look again. */
static bool nap(const struct pump *pump, bool *napped)
{
    const struct timespec time = { .tv_nsec = PUMP_NAP_NS };

    if (!pump->patient || *napped || atomic_load_explicit(&pump->stop, memory_order_relaxed))
        return false;
    *napped = true;
    (void)nanosleep(&time, NULL); /* shorter is fine */
    return true;
}

static int end_of_read(struct pump *pump, ssize_t n, int error)
{
    if (n == 0)
        return stop(pump, PUMP_EOF, 0);
    if (error == EAGAIN)
        return stop(pump, PUMP_EMPTY, 0);
    return stop(pump, PUMP_READ_FAILED, -error);
}

/* Memory is used as a ring when the tail is wanted: whatever is not overwritten yet are the newest bytes.  Otherwise each
 * read starts at its front, which is in the cache. */
static void copy_slice(struct pump *pump, int64_t end_ns)
{
    size_t at = 0;
    bool napped = false;

    do {
        if (at == pump->memory_len || !pump->tail_wanted)
            at = 0;
        ssize_t n = RETRY_EINTR(read(pump->from, pump->memory + at, pump->memory_len - at));
        if (n < 0 && errno == EAGAIN && nap(pump, &napped))
            continue;
        if (n <= 0) {
            (void)end_of_read(pump, n, errno);
            break;
        }
        napped = false;
        at += (size_t)n;
        if (carry_on(pump, pump->memory + at - n, (size_t)n) < 0)
            break;
    } while (clock_mono_ns() < end_ns && !atomic_load_explicit(&pump->stop, memory_order_relaxed));

    if (pump->tail_wanted) {
        pump->tail[1] = (struct tail_piece){ pump->memory, at };
        if (pump->bytes > (int64_t)at)
            pump->tail[0] = (struct tail_piece){ pump->memory + at, pump->memory_len - at };
    }
}

static void splice_slice(struct pump *pump, int64_t end_ns)
{
    bool napped = false;

    do {
        ssize_t n = RETRY_EINTR(splice(pump->from, NULL, pump->to, NULL, SPLICE_MAX,
                                       SPLICE_F_MOVE | SPLICE_F_NONBLOCK));
        if (n < 0 && errno == EAGAIN && nap(pump, &napped))
            continue;
        if (n <= 0) {
            int error = n < 0 ? errno : 0;
            if (error == EINVAL && pump->bytes == 0)
                (void)stop(pump, PUMP_NO_SPLICE, 0);
            else if (n == 0 || error == EAGAIN)
                (void)end_of_read(pump, n, error);
            else /* a pipe's read end does not fail: it was the other side */
                (void)stop(pump, PUMP_WRITE_FAILED, -error);
            break;
        }
        napped = false;
        pump->bytes += n;
        pump->kept += n;
    } while (clock_mono_ns() < end_ns && !atomic_load_explicit(&pump->stop, memory_order_relaxed));
}

void pump_slice(struct pump *pump)
{
    int64_t end_ns = clock_mono_ns() + PUMP_SLICE_NS;

    pump->end = PUMP_MORE;
    pump->error = 0;
    pump->bytes = pump->kept = 0;
    pump->tail[0] = pump->tail[1] = (struct tail_piece){ NULL, 0 };
    if (pump->splice)
        splice_slice(pump, end_ns);
    else
        copy_slice(pump, end_ns);
}

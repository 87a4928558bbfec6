/* ring.h - fixed-size byte ring between one producer and one consumer.
 *
 * Every stream has one while it holds bytes.  Bytes enter with ring_fill() or ring_put() and leave with ring_consume().
 * A full ring is the backpressure signal: the owner stops polling the source until ring_room() > 0.  Nothing is dropped.
 * Not thread-safe: it belongs to its loop's thread (bytes that a write has pinned may be read by another).
 *
 *      rpos             wpos
 *        v                v
 *    ....[== used bytes ==]... room ...        0 <= wpos - rpos <= capacity
 */
#ifndef STREAM_RING_H
#define STREAM_RING_H

#include <sys/types.h>
#include <sys/uio.h>

#include "base/macro.h"

#define RING_CAPACITY_MIN ((size_t)4 << 10)  /* bytes */
#define RING_CAPACITY_MAX ((size_t)64 << 20) /* bytes */

struct ring;

/* Make an empty ring.
 *
 * capacity: bytes, a power of two in [RING_CAPACITY_MIN, RING_CAPACITY_MAX].
 * ret_ring: owned by the caller on success, ended by ring_free(); untouched on failure.
 * Returns 0, -EINVAL (capacity) or -ENOMEM.
 */
MUST_CHECK int ring_new(size_t capacity, struct ring **ret_ring);

/* Free a ring and the bytes still in it.  NULL is a no-op.  Returns NULL. */
struct ring *ring_free(struct ring *ring);
DEFINE_CLEANUP(struct ring *, ring_free)

size_t ring_capacity(const struct ring *ring);
size_t ring_used(const struct ring *ring); /* bytes waiting to be consumed */
size_t ring_room(const struct ring *ring); /* bytes that still fit; used + room == capacity */

/* One readv(2) of at most max (> 0) bytes from fd (non-blocking, borrowed) into the free space.
 *
 * Returns bytes read (> 0); 0 at end of file; -ENOBUFS when full (fd was not touched: stop
 * polling it); -EAGAIN when fd has nothing now; otherwise readv's -errno.
 */
MUST_CHECK ssize_t ring_fill(struct ring *ring, int fd, size_t max);

/* Copy bytes in; returns how many fitted. */
MUST_CHECK size_t ring_put(struct ring *ring, const void *bytes, size_t len);

/* Describe the oldest len bytes, or the newest (len <= ring_used()).  They stay in place until consumed or trimmed,
 * whatever is filled in behind them.  Returns the iovecs used: 0, 1 or 2. */
int ring_oldest(struct ring *ring, size_t len, struct iovec iov[static 2]);
int ring_newest(struct ring *ring, size_t len, struct iovec iov[static 2]);

void ring_consume(struct ring *ring, size_t len); /* forget the oldest len bytes */
void ring_trim(struct ring *ring, size_t len);    /* take back the newest len bytes */

/* All memory of an empty ring, ring_capacity() bytes, as one piece for the owner's use; valid until the next fill. */
unsigned char *ring_scratch(struct ring *ring);

#endif

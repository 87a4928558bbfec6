/* ring.c - contract in ring.h.
 *
 * rpos and wpos count every byte ever drained and filled; they only grow.  A counter turns
 * into an address in one place, segments().  Empty (0) and full (capacity) are then different
 * values and no spare byte has to tell them apart.  Overflow of the counters is harmless:
 * capacity is a power of two, so it divides SIZE_MAX + 1.
 */
#include "stream/ring.h"

#define RING_MAGIC 0x52494e47u

struct ring {
    uint32_t magic;
    size_t mask;           /* capacity - 1 */
    size_t rpos, wpos;     /* bytes consumed, filled since the ring was last empty */
    unsigned char bytes[]; /* capacity of them */
};

/* Describe the len bytes that start at counter pos; returns the iovecs used: 0, 1 or 2. */
static int segments(struct ring *ring, size_t pos, size_t len, struct iovec iov[2])
{
    size_t start = pos & ring->mask;
    size_t first = MIN(len, ring->mask + 1 - start);

    iov[0] = (struct iovec){ .iov_base = ring->bytes + start, .iov_len = first };
    iov[1] = (struct iovec){ .iov_base = ring->bytes, .iov_len = len - first };
    return len == 0 ? 0 : len > first ? 2 : 1;
}

int ring_new(size_t capacity, struct ring **ret_ring)
{
    if (capacity < RING_CAPACITY_MIN || capacity > RING_CAPACITY_MAX || !is_pow2(capacity))
        return -EINVAL;

    struct ring *ring = malloc(sizeof *ring + capacity);
    if (ring == NULL)
        return -ENOMEM;

    *ring = (struct ring){ .magic = RING_MAGIC, .mask = capacity - 1 };
    *ret_ring = ring;
    return 0;
}

struct ring *ring_free(struct ring *ring)
{
    if (ring != NULL)
        OBJ_FINI(ring); /* a late callback now trips OBJ_CHECK */
    free(ring);
    return NULL;
}

size_t ring_capacity(const struct ring *ring)
{
    OBJ_CHECK(ring, RING_MAGIC);
    return ring->mask + 1;
}

size_t ring_used(const struct ring *ring)
{
    OBJ_CHECK(ring, RING_MAGIC);
    return ring->wpos - ring->rpos;
}

size_t ring_room(const struct ring *ring)
{
    return ring->mask + 1 - ring_used(ring);
}

ssize_t ring_fill(struct ring *ring, int fd, size_t max)
{
    struct iovec iov[2];
    size_t room = ring_room(ring);
    if (room == 0)
        return -ENOBUFS;

    int count = segments(ring, ring->wpos, MIN(room, max), iov);
    ssize_t n = RETRY_EINTR(readv(fd, iov, count));
    if (n < 0)
        return -errno;

    ring->wpos += (size_t)n;
    return n;
}

size_t ring_put(struct ring *ring, const void *bytes, size_t len)
{
    struct iovec iov[2];
    size_t n = MIN(len, ring_room(ring));
    const unsigned char *from = bytes;

    int count = segments(ring, ring->wpos, n, iov);
    for (int i = 0; i < count; from += iov[i].iov_len, i++)
        memcpy(iov[i].iov_base, from, iov[i].iov_len);

    ring->wpos += n;
    return n;
}

int ring_oldest(struct ring *ring, size_t len, struct iovec iov[static 2])
{
    BUG_ON(len > ring_used(ring));
    return segments(ring, ring->rpos, len, iov);
}

int ring_newest(struct ring *ring, size_t len, struct iovec iov[static 2])
{
    BUG_ON(len > ring_used(ring));
    return segments(ring, ring->wpos - len, len, iov);
}

void ring_consume(struct ring *ring, size_t len)
{
    BUG_ON(len > ring_used(ring));
    ring->rpos += len;
    /* Start over at the front: one segment instead of two, warm cache lines. */
    if (ring->rpos == ring->wpos)
        ring->rpos = ring->wpos = 0;
}

void ring_trim(struct ring *ring, size_t len)
{
    BUG_ON(len > ring_used(ring));
    ring->wpos -= len;
}

unsigned char *ring_scratch(struct ring *ring)
{
    BUG_ON(ring_used(ring) != 0);
    return ring->bytes;
}

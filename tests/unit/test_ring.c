/* The ring against a naive model: a plain array of the bytes that are in it. */
#include <fcntl.h>

#include "lib/unit.h"
#include "stream/ring.h"

struct model {
    unsigned char bytes[1 << 16];
    size_t len;
};

static unsigned char next_byte;

/* A little generator of our own: the same walk on every machine. */
static uint32_t random_state;
static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static void check_same(struct ring *ring, const struct model *model, size_t len, int count,
                       const struct iovec iov[2], size_t from)
{
    size_t at = from;

    for (int i = 0; i < count; i++) {
        ck_assert(memcmp(iov[i].iov_base, model->bytes + at, iov[i].iov_len) == 0);
        at += iov[i].iov_len;
    }
    ck_assert_uint_eq(at - from, len);
}

static void check_all(struct ring *ring, const struct model *model)
{
    struct iovec iov[2];
    size_t some = model->len == 0 ? 0 : random_below((uint32_t)model->len + 1);

    ck_assert_uint_eq(ring_used(ring), model->len);
    ck_assert_uint_eq(ring_room(ring), ring_capacity(ring) - model->len);
    check_same(ring, model, model->len, ring_oldest(ring, model->len, iov), iov, 0);
    check_same(ring, model, some, ring_oldest(ring, some, iov), iov, 0);
    check_same(ring, model, some, ring_newest(ring, some, iov), iov, model->len - some);
}

static void put(struct ring *ring, struct model *model)
{
    unsigned char bytes[9000];
    size_t len = random_below(sizeof bytes);

    for (size_t i = 0; i < len; i++)
        bytes[i] = next_byte++;
    size_t n = ring_put(ring, bytes, len);
    ck_assert_uint_eq(n, MIN(len, ring_capacity(ring) - model->len));
    memcpy(model->bytes + model->len, bytes, n);
    model->len += n;
    next_byte = (unsigned char)(next_byte - (len - n));
}

static void fill(struct ring *ring, struct model *model, int fds[2])
{
    unsigned char bytes[5000];
    size_t len = 1 + random_below(sizeof bytes - 1), max = 1 + random_below(6000);
    size_t room = ring_room(ring);

    for (size_t i = 0; i < len; i++)
        bytes[i] = (unsigned char)random_below(256);
    ck_assert_int_eq(write(fds[1], bytes, len), (ssize_t)len);
    ssize_t n = ring_fill(ring, fds[0], max);
    if (room == 0)
        ck_assert_int_eq(n, -ENOBUFS);
    else
        ck_assert_int_eq(n, (ssize_t)MIN(MIN(len, max), room));
    if (n > 0) {
        memcpy(model->bytes + model->len, bytes, (size_t)n);
        model->len += (size_t)n;
    }
    while (read(fds[0], bytes, sizeof bytes) > 0) /* what did not fit */
        ;
}

static void leave(struct ring *ring, struct model *model, bool newest)
{
    size_t len = model->len == 0 ? 0 : random_below((uint32_t)model->len + 1);

    if (newest) {
        ring_trim(ring, len);
    } else {
        ring_consume(ring, len);
        memmove(model->bytes, model->bytes + len, model->len - len);
    }
    model->len -= len;
}

TEST_EACH(ring_holds_what_a_plain_array_would, 6)
{
    struct model *model = calloc(1, sizeof *model);
    SCOPED(ring_free) struct ring *ring = NULL;
    int fds[2];

    random_state = (uint32_t)_i + 1;
    ck_assert_int_eq(ring_new(RING_CAPACITY_MIN << (_i % 3), &ring), 0);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    for (int step = 0; step < 3000; step++) {
        switch (random_below(5)) {
        case 0:
            put(ring, model);
            break;
        case 1:
            fill(ring, model, fds);
            break;
        case 2:
            leave(ring, model, true);
            break;
        default:
            leave(ring, model, false);
        }
        check_all(ring, model);
    }
    (void)close(fds[0]);
    (void)close(fds[1]);
    free(model);
}

TEST(ring_new_refuses_what_is_no_power_of_two_or_out_of_range)
{
    struct ring *ring = NULL;

    ck_assert_int_eq(ring_new(0, &ring), -EINVAL);
    ck_assert_int_eq(ring_new(RING_CAPACITY_MIN + 1, &ring), -EINVAL);
    ck_assert_int_eq(ring_new(RING_CAPACITY_MIN / 2, &ring), -EINVAL);
    ck_assert_int_eq(ring_new(RING_CAPACITY_MAX * 2, &ring), -EINVAL);
    ck_assert_ptr_null(ring);
    ck_assert_ptr_null(ring_free(NULL));
}

TEST(ring_fill_tells_empty_ended_and_full_apart)
{
    SCOPED(ring_free) struct ring *ring = NULL;
    static unsigned char bytes[RING_CAPACITY_MIN + 1];
    int fds[2];

    ck_assert_int_eq(ring_new(RING_CAPACITY_MIN, &ring), 0);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    ck_assert_int_eq(ring_fill(ring, fds[0], 10), -EAGAIN);
    ck_assert_int_eq(write(fds[1], bytes, sizeof bytes), (ssize_t)sizeof bytes);
    ck_assert_int_eq(ring_fill(ring, fds[0], SIZE_MAX), (ssize_t)RING_CAPACITY_MIN);
    ck_assert_int_eq(ring_fill(ring, fds[0], 1), -ENOBUFS);
    ring_consume(ring, 1);
    ck_assert_int_eq(ring_fill(ring, fds[0], SIZE_MAX), 1);
    (void)close(fds[1]);
    ring_consume(ring, RING_CAPACITY_MIN);
    ck_assert_int_eq(ring_fill(ring, fds[0], 1), 0);
    (void)close(fds[0]);
    ck_assert_int_eq(ring_fill(ring, fds[0], 1), -EBADF);
}

UNIT_MAIN("ring")

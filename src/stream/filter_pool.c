/* filter_pool.c - contract in filter_pool.h and filter.h.
 *
 * Streams that want to read stand in one line.  The check handle, which libuv runs right after it has polled, serves the
 * line until FILTER_POOL_TURN_NS are used; who is left stays at its head for the next turn.  That bounds what all streams
 * together add to one turn, however many flood, and shares it out round robin (I6).
 */
#include "stream/filter_pool.h"

#include "base/clock.h"

#define POOL_MAGIC 0x66706f6cu
#define KEEP_FIRST 64 /* unused rings kept: 1 MiB */
#define KEEP_HIGH  8  /* 2 MiB */

struct ring_store {
    size_t count, max;
    struct ring *rings[KEEP_FIRST];
};

struct filter_pool {
    uint32_t magic;
    unsigned refs; /* the owner, each filter, each open handle */
    uv_loop_t *loop;
    size_t buffer_max, in_use; /* bytes of rings, and of what filter_pool_count() was told */
    struct list line;
    uv_check_t check;
    uv_idle_t idle; /* active while the line is not empty: the loop must not sleep */
    struct ring_store first, high;
};

static void store_done(struct ring_store *store)
{
    while (store->count > 0)
        (void)ring_free(store->rings[--store->count]);
}

struct filter_pool *filter_pool_ref(struct filter_pool *pool)
{
    OBJ_CHECK(pool, POOL_MAGIC);
    pool->refs++;
    return pool;
}

void filter_pool_unref(struct filter_pool *pool)
{
    OBJ_CHECK(pool, POOL_MAGIC);
    if (--pool->refs > 0)
        return;
    store_done(&pool->first);
    store_done(&pool->high);
    OBJ_FINI(pool);
    free(pool);
}

uv_loop_t *filter_pool_loop(const struct filter_pool *pool)
{
    return pool->loop;
}

static void on_idle(uv_idle_t *idle)
{
    /* Its being active is all that counts. */
}

static void on_check(uv_check_t *check)
{
    struct filter_pool *pool = CONTAINER_OF(check, struct filter_pool, check);
    OBJ_CHECK(pool, POOL_MAGIC);
    if (list_empty(&pool->line))
        return;

    /* Who wakes up again while being served waits for the next turn. */
    struct list turn = LIST_INIT(turn);
    int64_t end_ns = clock_mono_ns() + FILTER_POOL_TURN_NS;
    list_splice_back(&turn, &pool->line);
    do {
        filter_serve(list_pop_front(&turn));
    } while (!list_empty(&turn) && clock_mono_ns() < end_ns);

    list_splice_back(&turn, &pool->line);
    list_splice_back(&pool->line, &turn);
    if (list_empty(&pool->line))
        (void)uv_idle_stop(&pool->idle);
    else
        (void)uv_idle_start(&pool->idle, on_idle);
}

void filter_pool_wake(struct filter_pool *pool, struct list *node)
{
    if (!list_empty(node))
        return;
    list_push_back(&pool->line, node);
    (void)uv_idle_start(&pool->idle, on_idle);
}

int filter_pool_new(uv_loop_t *loop, size_t buffer_max, struct filter_pool **ret)
{
    struct filter_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return -ENOMEM;

    pool->magic = POOL_MAGIC;
    pool->refs = 3; /* the owner and two handles */
    pool->loop = loop;
    pool->buffer_max = buffer_max;
    pool->first.max = KEEP_FIRST;
    pool->high.max = KEEP_HIGH;
    list_init(&pool->line);
    (void)uv_check_init(loop, &pool->check); /* these four cannot fail */
    (void)uv_check_start(&pool->check, on_check);
    uv_unref((uv_handle_t *)&pool->check);
    (void)uv_idle_init(loop, &pool->idle);
    *ret = pool;
    return 0;
}

static void on_check_closed(uv_handle_t *handle)
{
    filter_pool_unref(CONTAINER_OF(handle, struct filter_pool, check));
}

static void on_idle_closed(uv_handle_t *handle)
{
    filter_pool_unref(CONTAINER_OF(handle, struct filter_pool, idle));
}

void filter_pool_close(struct filter_pool *pool)
{
    if (pool == NULL)
        return;
    OBJ_CHECK(pool, POOL_MAGIC);
    uv_close((uv_handle_t *)&pool->check, on_check_closed);
    uv_close((uv_handle_t *)&pool->idle, on_idle_closed);
    filter_pool_unref(pool);
}

static struct ring_store *store_for(struct filter_pool *pool, size_t capacity)
{
    return capacity == FILTER_HIGH ? &pool->high : &pool->first;
}

struct ring *filter_pool_ring(struct filter_pool *pool, size_t capacity)
{
    struct ring_store *store = store_for(pool, capacity);
    struct ring *ring = NULL;

    if (store->count > 0)
        ring = store->rings[--store->count];
    else if (ring_new(capacity, &ring) < 0)
        return NULL;
    pool->in_use += capacity;
    return ring;
}

void filter_pool_put(struct filter_pool *pool, struct ring *ring)
{
    if (ring == NULL)
        return;

    struct ring_store *store = store_for(pool, ring_capacity(ring));
    pool->in_use -= ring_capacity(ring);
    ring_consume(ring, ring_used(ring));
    if (store->count < store->max)
        store->rings[store->count++] = ring;
    else
        (void)ring_free(ring);
}

void filter_pool_count(struct filter_pool *pool, ssize_t bytes)
{
    OBJ_CHECK(pool, POOL_MAGIC);
    pool->in_use += (size_t)bytes;
}

bool filter_pool_tight(const struct filter_pool *pool)
{
    return pool->in_use > pool->buffer_max;
}

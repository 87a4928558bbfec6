/* filter_pool.h - what the filters of a process share: turns, ring memory, the budget.  Used by filter.c, and by fan.c for the budget. */
#ifndef STREAM_FILTER_POOL_H
#define STREAM_FILTER_POOL_H

#include "base/list.h"
#include "stream/filter.h"
#include "stream/ring.h"

#define FILTER_FIRST        ((size_t)16 << 10) /* a stream's first ring; most jobs never need more */
#define FILTER_POOL_TURN_NS ((int64_t)2000000) /* all streams together, a loop turn */

struct filter_pool *filter_pool_ref(struct filter_pool *pool);
void filter_pool_unref(struct filter_pool *pool);
uv_loop_t *filter_pool_loop(const struct filter_pool *pool);

/* Have filter_serve(node) called in this loop turn, or a later one when the turn is used up: first come, first served.
 * Harmless while node is in line already; list_remove() takes it out. */
void filter_pool_wake(struct filter_pool *pool, struct list *node);
void filter_serve(struct list *node); /* filter.c */

/* An empty ring of FILTER_FIRST or FILTER_HIGH bytes, or NULL when out of memory. */
struct ring *filter_pool_ring(struct filter_pool *pool, size_t capacity);
/* Its bytes are dropped; NULL is a no-op. */
void filter_pool_put(struct filter_pool *pool, struct ring *ring);
/* Other memory that streams hold: so many bytes more, or less. */
void filter_pool_count(struct filter_pool *pool, ssize_t bytes);
/* Does all of that memory exceed buffer_max? */
bool filter_pool_tight(const struct filter_pool *pool);

#endif

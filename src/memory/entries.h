/* entries.h - the sink redis:…?stream=KEY: one entry a frame, or a chunk, and a last one that is the commit. */
#ifndef MEMORY_ENTRIES_H
#define MEMORY_ENTRIES_H

#include "memory/sink_redis.h"

struct redis_sink *entries_new(void); /* NULL: no memory */
int entries_open(struct redis_sink *base, struct sink *sink, const struct sink_target *target,
                 struct mandor_err *err);
void entries_write(struct redis_sink *base, const struct iovec *iov, int count, XXH3_state_t *hash);
void entries_prepare(struct redis_sink *base);
void entries_commit(struct redis_sink *base);
void entries_abort(struct redis_sink *base);
void entries_interrupt(struct redis_sink *base);

#endif

/* value.h - the sinks redis:…?key=KEY and ?hash=KEY&field=F: staged under a key of our own, published by one script. */
#ifndef MEMORY_VALUE_H
#define MEMORY_VALUE_H

#include "memory/sink_redis.h"

#define VALUE_MAX (INT64_C(512) << 20) /* bytes; what Redis takes as one string */

struct redis_sink *value_new(void); /* NULL: no memory */
int value_open(struct redis_sink *base, struct sink *sink, const struct sink_target *target,
               struct mandor_err *err);
void value_write(struct redis_sink *base, const struct iovec *iov, int count, XXH3_state_t *hash);
void value_prepare(struct redis_sink *base);
void value_commit(struct redis_sink *base);
void value_abort(struct redis_sink *base);
void value_interrupt(struct redis_sink *base);

#endif

/* parts.h - what this folder offers to the registries. */
#ifndef MEMORY_PARTS_H
#define MEMORY_PARTS_H

#include "sink/sink_ops.h"
#include "stream/source.h"

extern const struct sink_ops sink_redis;
extern const struct source_ops source_redis;

#endif

/* broker_streams.h - the broker streams://, for the module's table. */
#ifndef BROKER_BROKER_STREAMS_H
#define BROKER_BROKER_STREAMS_H

#include "broker/broker_ops.h"

extern const struct broker_ops broker_streams;

#endif

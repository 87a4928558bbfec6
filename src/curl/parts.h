/* parts.h - what this module offers to the registries. */
#ifndef CURL_PARTS_H
#define CURL_PARTS_H

#include <curl/curlver.h>

#include "sink/sink_ops.h"
#include "sink/sweeper.h"
#include "stream/source.h"

extern const struct sink_ops sink_s3, sink_http, sink_https;
extern const struct sweeper_ops sweeper_s3;
extern const struct source_ops source_web;

#endif

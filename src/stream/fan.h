/* fan.h - one stream to several sinks (job/sink_list.h): a sink of sinks.
 *
 *    write ─┬─▶ [ buffer ] ─▶ sink        each member has a buffer and a pace of its own; the stream waits only for the buffers of
 *           └─▶ [ buffer ] ─▶ sink        those that block
 *
 * Made by outputs.c with sink_open_with(); one sink alone never comes here.  Loop thread only. */
#ifndef STREAM_FAN_H
#define STREAM_FAN_H

#include <jansson.h>

#include "sink/sink_ops.h"

/* rest, and the target's url: the members as spec_expand() left them, "fan:\n…".  The target's context: the struct filter_pool in which their
 * buffers are counted, or NULL. */
extern const struct sink_ops sink_fan;

/* Before prepare or commit, or as soon as it is known: does every member commit, or only those that always do (auto:)?  The others get nothing
 * more, hold nobody up, and are aborted at the end. */
void fan_commit_all(struct sink *fan, bool all);
/* Is there one that commits on every outcome (auto:)? */
bool fan_commits_some(const struct sink *fan);
/* [{"sink", "target", "policy", "committed", "bytes", "paused_ms", "dropped_bytes", "dropped_frames", "spilled_bytes"}] or NULL. */
json_t *fan_record(const struct sink *fan);

#endif

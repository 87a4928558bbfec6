/* frame_model.h - the frames of a whole stream, found the naive way: what a framer must find in any chunking. */
#ifndef TESTS_FRAME_MODEL_H
#define TESTS_FRAME_MODEL_H

#include "base/buf.h"
#include "stream/framer.h"

/* Append to log, for each frame, "<payload bytes>|<flags>;"; at an error or torn end "!".  frame as spec_frame.
 * Also usable as the log of a framer, with frame_log_* as its events. */
void frame_model(enum spec_frame frame, size_t frame_max, const unsigned char *bytes, size_t len,
                 struct buf *log);

/* Run the framer over bytes in chunks of `chunk` (0 = random sizes by seed) and log the same. */
void frame_walk(enum spec_frame frame, size_t frame_max, const unsigned char *bytes, size_t len,
                size_t chunk, uint32_t seed, struct buf *log);

#endif

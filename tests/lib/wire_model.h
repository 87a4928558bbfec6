/* wire_model.h - the frames of a whole connection, found the naive way; and wire.c's, in any chunking, told alike. */
#ifndef TESTS_WIRE_MODEL_H
#define TESTS_WIRE_MODEL_H

#include "base/buf.h"
#include "pool/wire.h"

/* Append to log "<type>.<stream>.<last>.<job>.<length>:<payload>;" for each frame, and at the end "!<fault>@<byte>" unless
 * the connection ended well. */
void wire_model(enum wire_side sender, const unsigned char *bytes, size_t len, struct buf *log);

/* Run wire.c over bytes and log the same.  chunk: bytes a call; 0: random sizes by seed.  pieces: as in wire_decoder_init;
 * the pieces of a CHUNK are joined in the log. */
void wire_walk(enum wire_side sender, const unsigned char *bytes, size_t len, size_t chunk,
               uint32_t seed, bool pieces, struct buf *log);

#endif

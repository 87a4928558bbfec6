/* wire.h - frames between mandor and a warm worker: encode headers, decode a stream of bytes.
 *
 *     0        4      5       6         8              16
 *     | length | type | flags | version | job number   | payload ...      little-endian
 *
 * Pure code: no I/O, no clock, libc alone.  mandor's pool and the C worker library compile the same file.
 * What one side of a connection may send is checked here (wire_msgs.def, order, job numbers that grow); what
 * needs both sides (is this job running? was there credit?) is its owner's.  doc/pool-protocol.md is the contract.
 */
#ifndef POOL_WIRE_H
#define POOL_WIRE_H

#include "base/macro.h"

#define WIRE_VERSION     1
#define WIRE_HEADER_SIZE 16
#define WIRE_PAYLOAD_MAX ((uint32_t)16 << 20)  /* bytes: CHUNK, JOB, RESULT */
#define WIRE_TEXT_MAX    ((uint32_t)1 << 20)   /* bytes: ERROR, PROGRESS, LOG */
#define WIRE_CONTROL_MAX ((uint32_t)4 << 10)   /* bytes: the others */
#define WIRE_CREDIT_MAX  ((uint64_t)INT32_MAX) /* bytes that one stream's credit may reach */
/* Of job numbers and all numbers in JSON: exact in a double. */
#define WIRE_NUMBER_MAX  (((uint64_t)1 << 53) - 1)
#define WIRE_TYPES       13 /* one more than the highest type */

enum wire_type {
#define MSG(number, NAME, ...) WIRE_##NAME = number,
#include "pool/wire_msgs.def"
#undef MSG
};

/* Bits: who sends, who may send. */
enum wire_side { WIRE_MANDOR = 1, WIRE_WORKER = 2, WIRE_EITHER = 3 };

enum wire_stream { WIRE_STDIN, WIRE_STDOUT, WIRE_STDERR };

/* Why a connection was given up; wire_fault_name() says them as the test vectors do. */
enum wire_fault {
    WIRE_FAULT_NONE,
    WIRE_FAULT_LENGTH,    /* longer or shorter than its type allows */
    WIRE_FAULT_TYPE,      /* no such type */
    WIRE_FAULT_VERSION,   /* not WIRE_VERSION */
    WIRE_FAULT_DIRECTION, /* that side may not send it */
    WIRE_FAULT_ORDER,     /* no HELLO first, a second HELLO, a JOB after BYE */
    WIRE_FAULT_FLAGS,     /* a bit that has no meaning there */
    WIRE_FAULT_STREAM,    /* a stream that side does not send or grant */
    WIRE_FAULT_JOB,  /* 0 where a job is named, the reverse, or a JOB whose number did not grow */
    WIRE_FAULT_TORN, /* the connection ended inside a frame */
};

/* One frame, or one piece of a CHUNK. */
struct wire_frame {
    enum wire_type type;
    enum wire_stream stream; /* CHUNK and CREDIT; 0 otherwise */
    bool last;               /* CHUNK: with this byte, or without one, the stream has ended */
    uint64_t job;
    uint64_t offset;              /* byte of the connection at which its header begins */
    const unsigned char *payload; /* borrowed: from the input or the decoder, until the next call */
    size_t len;                   /* bytes at payload */
    size_t at, total; /* payload is bytes at..at+len of total; whole frames: 0 and len */
};

/* Read it through the functions below; error is for people. */
struct wire_decoder {
    enum wire_side sender; /* whose bytes these are */
    bool pieces;
    enum wire_fault fault;
    uint64_t fault_at;  /* byte of the connection that was wrong */
    uint64_t offset;    /* bytes of the connection before the frame in work */
    uint64_t last_job;  /* number of the newest JOB */
    unsigned seen;      /* bit 1 << type */
    unsigned have;      /* bytes in header */
    size_t got;         /* payload bytes taken */
    unsigned char *buf; /* payload that came in parts */
    size_t cap;
    struct wire_frame frame;
    unsigned char header[WIRE_HEADER_SIZE];
    char error[256]; /* "byte 36: expected ..., found ..." */
};

/* sender: who wrote the bytes that will be given.
 * pieces: hand CHUNK payloads out as they come, never copied: wire_frame.at > 0 marks a further piece and `last` stands
 * on the final one alone.  Credit is due for `total` when at == 0. */
void wire_decoder_init(struct wire_decoder *decoder, enum wire_side sender, bool pieces);
void wire_decoder_done(struct wire_decoder *decoder);

/* Take one frame from the *len bytes at *bytes, and move both past what was taken.  Call until it returns 0.
 *
 * A frame that lies whole in the input is not copied.  Memory grows with the bytes that came, never with a length that
 * was only claimed.
 * Returns 1 (*ret is set), 0 (all bytes are taken, more are needed), -EPROTO (decoder->fault and ->error say why; the
 * connection is of no more use and every further call says the same) or -ENOMEM (may be called again). */
MUST_CHECK int wire_decode(struct wire_decoder *decoder, const unsigned char **bytes, size_t *len,
                           struct wire_frame *ret);

/* The connection has ended.  Returns 0 between two frames, -EPROTO inside one (fault TORN). */
MUST_CHECK int wire_decoder_end(struct wire_decoder *decoder);

/* Write the header of a frame that `sender` sends.  stream and last: CHUNK and CREDIT, else 0 and false.
 * Returns 0; -EMSGSIZE when the payload is too long for its type; -EINVAL when that side may send no such frame. */
MUST_CHECK int wire_encode(unsigned char out[WIRE_HEADER_SIZE], enum wire_side sender,
                           enum wire_type type, enum wire_stream stream, bool last, uint64_t job,
                           size_t payload_len);

/* Credit of one stream of one job: bytes that may still be sent.
 * wire_credit_grant: -EPROTO when bytes is 0 or the sum would pass WIRE_CREDIT_MAX; wire_credit_spend: -EPROTO when there
 * is less.  The credit is unchanged then. */
MUST_CHECK int wire_credit_grant(uint64_t *credit, uint64_t bytes);
MUST_CHECK int wire_credit_spend(uint64_t *credit, uint64_t bytes);

/* "HELLO", …; "?" for a number that is none. */
const char *wire_type_name(unsigned type);
const char *wire_fault_name(enum wire_fault fault); /* "length", "type", … */

#endif

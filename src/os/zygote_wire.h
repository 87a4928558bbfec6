/* zygote_wire.h - what worker and fork server say to each other.  Both are of one build and one machine: native integers.
 *
 *   worker ─ JSON: what to load ──────────────▶ server      one message of a SOCK_SEQPACKET socket each
 *   worker ◀─ JSON: {"ready": …}, {"failed": …} ─ server
 *   worker ─ zygote_request + descriptors ────▶ server      clones: the copy is the worker's own child
 *   worker ◀─────── zygote_reply + pidfd ─────── server
 *
 * The descriptors of a request, in this order: the copy's stdin, stdout, stderr and channel, with ZYGOTE_IN_CGROUP a version 2
 * directory, then `join_count` cgroup.procs files of version 1. */
#ifndef OS_ZYGOTE_WIRE_H
#define OS_ZYGOTE_WIRE_H

#include <stdint.h>

#define ZYGOTE_MAGIC       0x7a79676fu
#define ZYGOTE_MESSAGE_MAX ((size_t)128 << 10)
#define ZYGOTE_STDIO       4
#define ZYGOTE_JOINS_MAX   4
#define ZYGOTE_KEY_SIZE \
    16 /* bytes that open a job's frame; what ends the job says them back, which the job cannot */
#define ZYGOTE_FDS_MAX (ZYGOTE_STDIO + 1 + ZYGOTE_JOINS_MAX)

enum {
    ZYGOTE_IN_CGROUP = 1 << 0,
    ZYGOTE_SET_USER = 1 << 1,
    ZYGOTE_URGENT = 1 << 2, /* a job waits for it: no warming up */
};

struct zygote_request {
    uint32_t magic, number; /* number: of the asker's choice, comes back */
    uint32_t flags, join_count;
    int32_t parent;    /* what getppid() must say in the copy; 0: it is in another PID namespace */
    uint32_t uid, gid; /* ZYGOTE_SET_USER */
    int32_t oom_score_adj; /* raised to this; 0 = leave */
};

struct zygote_reply {
    uint32_t magic, number;
    int32_t error; /* 0: a pidfd comes along; or -errno */
};

#endif

/* fan_int.h - what fan.c (the whole: frames, ends) and fan_member.c (the buffers of one member) share.  Loop thread only. */
#ifndef STREAM_FAN_INT_H
#define STREAM_FAN_INT_H

#include "job/sink_list.h"
#include "stream/fan.h"
#include "stream/filter_pool.h"
#include "stream/framer.h"
#include "stream/spill.h"

enum fan_stage {
    STAGE_OPENING,
    STAGE_RUNNING,
    STAGE_FLUSHING,
    STAGE_PREPARING,
    STAGE_PREPARED,
    STAGE_COMMITTING,
    STAGE_ABORTING,
    STAGE_ENDED
};

struct fan_member {
    struct fan *fan;
    struct sink *sink;
    enum sink_policy policy;
    int64_t buffer_bytes;
    struct buf filling, sending;
    struct iovec iov;
    bool writing, committed, ended;
    bool forgone;   /* it is not to commit, and has not had all */
    size_t counted; /* bytes of memory that the pool knows of */
    size_t taken;   /* bytes of the write in flight that it has, or has dropped */
    size_t whole;   /* drop: bytes of `filling` that are complete frames */
    bool skipping;  /* drop: the rest of the open frame is left out */
    struct spill spill;
    int64_t bytes, dropped_bytes, dropped_frames, spilled_bytes, paused_ms;
    int64_t full_since_ms; /* 0 = not full */
};

struct fan {
    struct sink *sink;
    enum fan_stage stage;
    struct fan_member *members;
    size_t count, waiting; /* waiting: answers of members that are due */
    struct filter_pool *pool;
    char *data_dir;
    struct framer framer; /* where frames end, for those that drop */
    bool framed, commit_all, commit_asked;
    size_t *ends; /* of frames, in the write in flight */
    size_t end_count, end_cap;
    int64_t write_off; /* stream offset of the write in flight */
    const struct iovec *iov;
    int iov_count;
    size_t write_len;
    bool writing;
    int result;
    struct mandor_err err;
};

/* ---- the whole (fan.c) ---- */

/* The first failure counts. */
void fan_fail(struct fan *fan, int result, const struct mandor_err *err);
void fan_fail_memory(struct fan *fan);
/* A member has got further: what comes next. */
void fan_advance(struct fan *fan);

/* ---- a member (fan_member.c) ---- */

/* parsed: copied, but for its url; the sink is the caller's to open and to close. */
void fan_member_init(struct fan_member *member, struct fan *fan, const struct sink_member *parsed);
/* When no write and no work on the disk is under way. */
void fan_member_done(struct fan_member *member);

/* Copy of the write in flight what the policy allows. */
void fan_member_take(struct fan_member *member);
/* Start whatever can go from the buffers to the sink, or to and from the disk. */
void fan_member_move(struct fan_member *member);
/* Has its sink had everything (or is it not to)? */
bool fan_member_is_drained(const struct fan_member *member);
/* Tell the pool what the buffers hold, and give back what an idle member does not need. */
void fan_member_count(struct fan_member *member);
/* The record's entry (fan_record()), or NULL. */
json_t *fan_member_json(const struct fan_member *member);

#endif

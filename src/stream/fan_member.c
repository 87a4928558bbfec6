/* fan_member.c - one member of a fan, contract in fan_int.h.
 *
 * It takes of a write what its policy and its room allow.  What it has goes to its sink in one write at a time, from a second buffer, so that the
 * first can be filled meanwhile; one that spills puts on disk what comes after a full buffer.
 */
#include "base/clock.h"
#include "stream/fan_int.h"

#define SPILL_OUT_MAX ((size_t)1 << 20) /* waiting for the disk: more blocks */

/* ---- from the buffers to the sink ---- */

static void on_member_written(void *arg, int result, const struct mandor_err *err)
{
    struct fan_member *member = arg;

    member->writing = false;
    buf_clear(&member->sending);
    if (member->forgone)
        buf_done(&member->sending);
    else if (result < 0)
        fan_fail(member->fan, result, err);
    else
        member->bytes += (int64_t)member->iov.iov_len;
    fan_advance(member->fan);
}

/* How much of `filling` may go: those that drop keep the open frame back, it may have to be left out yet. */
static size_t ready(const struct fan_member *member)
{
    return member->policy == SINK_DROP ? member->whole : member->filling.len;
}

static void pass_on(struct fan_member *member)
{
    if (member->writing || member->forgone || member->spill.in != NULL || member->fan->result < 0)
        return; /* in: the pool is filling the buffer */
    size_t len = ready(member);
    if (len == 0)
        return;
    if (len == member->filling.len) {
        struct buf empty = member->sending;
        member->sending = member->filling;
        member->filling = empty;
    } else {
        if (buf_add(&member->sending, member->filling.data, len) < 0) {
            fan_fail_memory(member->fan);
            return;
        }
        buf_consume(&member->filling, len);
    }
    member->whole = 0;
    member->writing = true;
    member->iov = (struct iovec){ .iov_base = member->sending.data, .iov_len = len };
    sink_write(member->sink, &member->iov, 1, NULL, on_member_written, member);
}

static void after_spill(struct spill *spill)
{
    struct fan_member *member = CONTAINER_OF(spill, struct fan_member, spill);

    if (spill->result < 0)
        fan_fail(member->fan, spill->result, &spill->err);
    fan_advance(member->fan);
}

/* Disk: what waits to be written first, else what is to be read back. */
static void serve_spill(struct fan_member *member)
{
    struct spill *spill = &member->spill;
    uv_loop_t *loop = sink_loop(member->fan->sink);

    if (member->policy != SINK_SPILL || member->forgone || spill->busy || member->fan->result < 0)
        return;
    if (spill->to > spill->from && member->filling.len == 0)
        spill_read(spill, loop, &member->filling);
    else if (spill->out.len > 0)
        spill_append(spill, loop);
}

void fan_member_move(struct fan_member *member)
{
    serve_spill(member);
    pass_on(member);
}

bool fan_member_is_drained(const struct fan_member *member)
{
    return member->forgone || (!member->writing && !member->spill.busy &&
                               member->filling.len == 0 && spill_waiting(&member->spill) == 0);
}

void fan_member_count(struct fan_member *member)
{
    if (member->spill.busy || member->fan->pool == NULL)
        return; /* they are the pool thread's */
    if (fan_member_is_drained(member) && !member->writing) {
        buf_done(&member->filling);
        buf_done(&member->sending);
        buf_done(&member->spill.out);
    }
    size_t bytes = member->filling.cap + member->sending.cap + member->spill.out.cap;
    filter_pool_count(member->fan->pool, (ssize_t)bytes - (ssize_t)member->counted);
    member->counted = bytes;
}

/* ---- from the stream into the buffers ---- */

/* Copy bytes [at, at + len) of the write in flight. */
static int copy(struct fan *fan, size_t at, size_t len, struct buf *to)
{
    for (int i = 0; i < fan->iov_count && len > 0; i++) {
        size_t here = fan->iov[i].iov_len;
        if (at >= here) {
            at -= here;
            continue;
        }
        size_t n = MIN(len, here - at);
        if (buf_add(to, (const char *)fan->iov[i].iov_base + at, n) < 0)
            return -ENOMEM;
        at = 0;
        len -= n;
    }
    return 0;
}

static size_t room(const struct fan_member *member)
{
    const struct filter_pool *pool = member->fan->pool;
    size_t used = member->filling.len + member->sending.len;
    size_t most = (size_t)member->buffer_bytes;

    if (pool != NULL && filter_pool_tight(pool))
        most = MIN(most, FILTER_TIGHT);
    return used >= most ? 0 : most - used;
}

static void take_blocking(struct fan_member *member)
{
    struct fan *fan = member->fan;
    size_t len = MIN(room(member), fan->write_len - member->taken);

    if (copy(fan, member->taken, len, &member->filling) < 0)
        fan_fail_memory(fan);
    member->taken += len;
}

static void take_spilling(struct fan_member *member)
{
    struct fan *fan = member->fan;
    struct spill *spill = &member->spill;

    if (!spill->busy && spill_waiting(spill) == 0)
        take_blocking(member);
    size_t len = fan->write_len - member->taken;
    if (len == 0 || spill->busy || spill->out.len + len > SPILL_OUT_MAX)
        return; /* the disk is slower: it blocks */
    if (copy(fan, member->taken, len, &spill->out) < 0)
        fan_fail_memory(fan);
    member->taken += len;
    member->spilled_bytes += (int64_t)len;
}

/* The open frame does not fit: it is left out, what is here of it too. */
static void give_frame_up(struct fan_member *member)
{
    member->dropped_bytes += (int64_t)(member->filling.len - member->whole);
    member->filling.len = member->whole;
    member->dropped_frames++;
    member->skipping = true;
}

/* Bytes up to `end` of the write, which ends a frame or not. */
static void take_piece(struct fan_member *member, size_t end, bool ends_frame)
{
    size_t len = end - member->taken;

    if (!member->skipping && len > room(member))
        give_frame_up(member);
    if (member->skipping)
        member->dropped_bytes += (int64_t)len;
    else if (copy(member->fan, member->taken, len, &member->filling) < 0)
        fan_fail_memory(member->fan);
    member->taken = end;
    if (ends_frame) {
        member->skipping = false;
        member->whole = member->filling.len;
    }
}

static void take_dropping(struct fan_member *member)
{
    struct fan *fan = member->fan;

    for (size_t i = 0; i < fan->end_count; i++)
        if (fan->ends[i] > member->taken)
            take_piece(member, fan->ends[i], true);
    if (member->taken < fan->write_len)
        take_piece(member, fan->write_len, !fan->framed);
}

static void note_full(struct fan_member *member)
{
    bool full = member->taken < member->fan->write_len;

    if (full && member->full_since_ms == 0)
        member->full_since_ms = clock_mono_ms();
    if (!full && member->full_since_ms != 0) {
        member->paused_ms += clock_mono_ms() - member->full_since_ms;
        member->full_since_ms = 0;
    }
}

void fan_member_take(struct fan_member *member)
{
    if (member->forgone)
        member->taken = member->fan->write_len;
    if (member->taken == member->fan->write_len)
        return;
    if (member->policy == SINK_BLOCK)
        take_blocking(member);
    else if (member->policy == SINK_SPILL)
        take_spilling(member);
    else
        take_dropping(member);
    note_full(member);
}

/* ---- whole life ---- */

void fan_member_init(struct fan_member *member, struct fan *fan, const struct sink_member *parsed)
{
    *member = (struct fan_member){ .fan = fan,
                                   .policy = parsed->policy,
                                   .buffer_bytes = parsed->buffer_bytes };
    spill_init(&member->spill, fan->data_dir == NULL ? "/tmp" : fan->data_dir, after_spill);
}

void fan_member_done(struct fan_member *member)
{
    spill_done(&member->spill);
    buf_done(&member->filling);
    buf_done(&member->sending);
    if (member->fan->pool != NULL)
        filter_pool_count(member->fan->pool, -(ssize_t)member->counted);
}

json_t *fan_member_json(const struct fan_member *member)
{
    return json_pack("{s:s, s:s*, s:s, s:b, s:I, s:I, s:I, s:I, s:I}", "sink",
                     sink_kind(member->sink), "target", sink_target_text(member->sink), "policy",
                     sink_policy_name(member->policy), "committed", member->committed, "bytes",
                     (json_int_t)member->bytes, "paused_ms", (json_int_t)member->paused_ms,
                     "dropped_bytes", (json_int_t)member->dropped_bytes, "dropped_frames",
                     (json_int_t)member->dropped_frames, "spilled_bytes",
                     (json_int_t)member->spilled_bytes);
}

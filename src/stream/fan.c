/* fan.c - contract in fan.h.
 *
 * A write is copied into each member's buffer as far as the member's policy takes it, and answered when all have taken all of it.  What a
 * member has goes to its sink in one write at a time, from a second buffer, so that the first can be filled meanwhile.
 *
 *    OPENING ─▶ RUNNING ─▶ FLUSHING (buffers empty) ─▶ PREPARING ─▶ PREPARED ─▶ COMMITTING ─▶ ENDED
 *                   └──────────── ABORTING ──────────────────────────────────────────────────▶ ENDED
 */
#include "stream/fan.h"

#include <stdio.h>

#include "base/clock.h"
#include "job/sink_list.h"
#include "stream/framer.h"
#include "stream/spill.h"

#define SPILL_OUT_MAX ((size_t)1 << 20) /* waiting for the disk: more blocks */

enum stage {
    STAGE_OPENING,
    STAGE_RUNNING,
    STAGE_FLUSHING,
    STAGE_PREPARING,
    STAGE_PREPARED,
    STAGE_COMMITTING,
    STAGE_ABORTING,
    STAGE_ENDED
};

struct member {
    struct fan *fan;
    struct sink *sink;
    enum sink_policy policy;
    int64_t buffer_bytes;
    struct buf filling, sending;
    struct iovec iov;
    bool writing, committed;
    size_t taken;  /* bytes of the write in flight that it has, or has dropped */
    size_t whole;  /* drop: bytes of `filling` that are complete frames */
    bool skipping; /* drop: the rest of the open frame is left out */
    struct spill spill;
    int64_t bytes, dropped_bytes, dropped_frames, spilled_bytes, paused_ms;
    int64_t full_since_ms; /* 0 = not full */
};

struct fan {
    struct sink *sink;
    enum stage stage;
    struct member *members;
    size_t count, waiting; /* waiting: answers of members that are due */
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

static struct fan *fan_of(const struct sink *sink)
{
    return sink_state(sink);
}

static void advance(struct fan *fan);

static void fail(struct fan *fan, int result, const struct mandor_err *err)
{
    if (fan->result < 0)
        return;
    fan->result = result;
    fan->err = *err;
}

static void fail_memory(struct fan *fan)
{
    struct mandor_err err;

    fail(fan, err_set(&err, -ENOMEM, FAULT_HOST, "write to several sinks"), &err);
}

/* ---- from the buffers to the sinks ---- */

static void on_member_written(void *arg, int result, const struct mandor_err *err)
{
    struct member *member = arg;

    member->writing = false;
    buf_clear(&member->sending);
    if (result < 0)
        fail(member->fan, result, err);
    else
        member->bytes += (int64_t)member->iov.iov_len;
    advance(member->fan);
}

/* How much of `filling` may go: those that drop keep the open frame back, it may have to be left out yet. */
static size_t ready(const struct member *member)
{
    return member->policy == SINK_DROP ? member->whole : member->filling.len;
}

static void pass_on(struct member *member)
{
    if (member->writing || member->spill.in != NULL || member->fan->result < 0)
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
            fail_memory(member->fan);
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
    struct member *member = CONTAINER_OF(spill, struct member, spill);

    if (spill->result < 0)
        fail(member->fan, spill->result, &spill->err);
    advance(member->fan);
}

/* Disk: what waits to be written first, else what is to be read back. */
static void serve_spill(struct member *member)
{
    struct spill *spill = &member->spill;
    uv_loop_t *loop = sink_loop(member->fan->sink);

    if (member->policy != SINK_SPILL || spill->busy || member->fan->result < 0)
        return;
    if (spill->to > spill->from && member->filling.len == 0)
        spill_read(spill, loop, &member->filling);
    else if (spill->out.len > 0)
        spill_append(spill, loop);
}

static bool is_drained(const struct member *member)
{
    return !member->writing && !member->spill.busy && member->filling.len == 0 &&
           spill_waiting(&member->spill) == 0;
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

static size_t room(const struct member *member)
{
    size_t used = member->filling.len + member->sending.len;

    return used >= (size_t)member->buffer_bytes ? 0 : (size_t)member->buffer_bytes - used;
}

static void take_blocking(struct member *member)
{
    struct fan *fan = member->fan;
    size_t len = MIN(room(member), fan->write_len - member->taken);

    if (copy(fan, member->taken, len, &member->filling) < 0)
        fail_memory(fan);
    member->taken += len;
}

static void take_spilling(struct member *member)
{
    struct fan *fan = member->fan;
    struct spill *spill = &member->spill;

    if (!spill->busy && spill_waiting(spill) == 0)
        take_blocking(member);
    size_t len = fan->write_len - member->taken;
    if (len == 0 || spill->busy || spill->out.len + len > SPILL_OUT_MAX)
        return; /* the disk is slower: it blocks */
    if (copy(fan, member->taken, len, &spill->out) < 0)
        fail_memory(fan);
    member->taken += len;
    member->spilled_bytes += (int64_t)len;
}

/* The open frame does not fit: it is left out, what is here of it too. */
static void give_frame_up(struct member *member)
{
    member->dropped_bytes += (int64_t)(member->filling.len - member->whole);
    member->filling.len = member->whole;
    member->dropped_frames++;
    member->skipping = true;
}

/* Bytes up to `end` of the write, which ends a frame or not. */
static void take_piece(struct member *member, size_t end, bool ends_frame)
{
    size_t len = end - member->taken;

    if (!member->skipping && len > room(member))
        give_frame_up(member);
    if (member->skipping)
        member->dropped_bytes += (int64_t)len;
    else if (copy(member->fan, member->taken, len, &member->filling) < 0)
        fail_memory(member->fan);
    member->taken = end;
    if (ends_frame) {
        member->skipping = false;
        member->whole = member->filling.len;
    }
}

static void take_dropping(struct member *member)
{
    struct fan *fan = member->fan;

    for (size_t i = 0; i < fan->end_count; i++)
        if (fan->ends[i] > member->taken)
            take_piece(member, fan->ends[i], true);
    if (member->taken < fan->write_len)
        take_piece(member, fan->write_len, !fan->framed);
}

static void note_full(struct member *member)
{
    bool full = member->taken < member->fan->write_len;

    if (full && member->full_since_ms == 0)
        member->full_since_ms = clock_mono_ms();
    if (!full && member->full_since_ms != 0) {
        member->paused_ms += clock_mono_ms() - member->full_since_ms;
        member->full_since_ms = 0;
    }
}

static void take(struct member *member)
{
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

/* ---- frames ---- */

static void on_frame(void *arg, unsigned flags)
{
    struct fan *fan = arg;
    const struct framer *framer = &fan->framer;
    int64_t end =
        framer->header_len > 0 ? framer->offset : framer->frame_start + (int64_t)framer->frame_len;

    if (fan->end_count == fan->end_cap) {
        size_t cap = MAX(fan->end_cap * 2, (size_t)64);
        size_t *ends = realloc(fan->ends, cap * sizeof *ends);
        if (ends == NULL) {
            fail_memory(fan);
            return;
        }
        fan->ends = ends;
        fan->end_cap = cap;
    }
    fan->ends[fan->end_count++] = (size_t)(end - fan->write_off);
}

/* Where frames end in this write.  A bad one is for the filter to report. */
static void find_frames(struct fan *fan)
{
    const struct framer_events events = { .on_frame = on_frame, .arg = fan };
    int r = 0;

    fan->end_count = 0;
    for (int i = 0; fan->framed && r == 0 && i < fan->iov_count; i++)
        r = framer_push(&fan->framer, fan->iov[i].iov_base, fan->iov[i].iov_len, &events);
    if (r < 0)
        fan->framed = false;
}

static void fan_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct fan *fan = fan_of(sink);

    fan->write_off += (int64_t)fan->write_len;
    fan->iov = iov;
    fan->iov_count = count;
    fan->write_len = 0;
    for (int i = 0; i < count; i++) {
        fan->write_len += iov[i].iov_len;
        if (hash != NULL && iov[i].iov_len > 0)
            (void)XXH3_64bits_update(hash, iov[i].iov_base, iov[i].iov_len);
    }
    find_frames(fan);
    for (size_t i = 0; i < fan->count; i++)
        fan->members[i].taken = 0;
    fan->writing = true;
    advance(fan);
}

/* ---- ends ---- */

static void answer(struct fan *fan)
{
    struct mandor_err err = fan->err;

    fan->writing = false;
    sink_answer(fan->sink, fan->result, &err);
}

static bool wants_commit(const struct fan *fan, const struct member *member)
{
    return fan->commit_all || sink_commits_always(member->sink);
}

/* One member has answered what all were asked. */
static void on_step(void *arg, int result, const struct mandor_err *err)
{
    struct member *member = arg;
    struct fan *fan = member->fan;

    fan->waiting--;
    if (result < 0 && fan->stage != STAGE_ABORTING)
        fail(fan, result, err);
    advance(fan);
}

static void on_committed(void *arg, int result, const struct mandor_err *err)
{
    struct member *member = arg;

    member->committed = result == 0;
    on_step(arg, result, err);
}

static void prepare_all(struct fan *fan)
{
    fan->stage = STAGE_PREPARING;
    fan->waiting =
        1; /* ours: nobody answers from inside, but all may be told to wait for nothing */
    for (size_t i = 0; i < fan->count; i++) {
        if (!wants_commit(fan, &fan->members[i]))
            continue;
        fan->waiting++;
        sink_prepare(fan->members[i].sink, on_step, &fan->members[i]);
    }
    fan->waiting--;
}

static void abort_all(struct fan *fan)
{
    fan->stage = STAGE_ABORTING;
    fan->waiting = fan->count;
    for (size_t i = 0; i < fan->count; i++)
        sink_abort(fan->members[i].sink, on_step, &fan->members[i]);
}

static void commit_all(struct fan *fan)
{
    struct mandor_err err;

    if (!sink_may_publish(fan->sink, &err)) {
        fail(fan, err.code, &err);
        abort_all(fan);
        return;
    }
    int64_t left = sink_commit_left_ms(fan->sink);
    int64_t until = left == INT64_MAX ? SINK_NO_DEADLINE : clock_boot_ms() + left;
    fan->stage = STAGE_COMMITTING;
    fan->waiting = fan->count;
    for (size_t i = 0; i < fan->count; i++) {
        struct member *member = &fan->members[i];
        if (wants_commit(fan, member))
            sink_commit(member->sink, until, on_committed, member);
        else
            sink_abort(member->sink, on_step, member);
    }
}

static bool all_drained(const struct fan *fan)
{
    for (size_t i = 0; i < fan->count; i++)
        if (!is_drained(&fan->members[i]))
            return false;
    return true;
}

static bool disk_is_busy(const struct fan *fan)
{
    for (size_t i = 0; i < fan->count; i++)
        if (fan->members[i].spill.busy)
            return true;
    return false;
}

/* ---- what comes next ---- */

static void advance_running(struct fan *fan)
{
    bool all = true;

    for (size_t i = 0; i < fan->count; i++) {
        struct member *member = &fan->members[i];
        if (fan->writing && fan->result == 0)
            take(member);
        serve_spill(member);
        pass_on(member);
        if (fan->writing && fan->result == 0)
            take(member); /* sending made room */
        all = all && member->taken == fan->write_len;
    }
    if (fan->writing && (all || fan->result < 0))
        answer(fan);
}

static void advance_flushing(struct fan *fan)
{
    for (size_t i = 0; i < fan->count && fan->result == 0; i++) {
        serve_spill(&fan->members[i]);
        pass_on(&fan->members[i]);
    }
    if (fan->result == 0 && all_drained(fan))
        prepare_all(fan);
}

static void advance_ends(struct fan *fan)
{
    bool failed = fan->result < 0;

    if (fan->stage == STAGE_PREPARING && fan->waiting == 0)
        fan->stage = STAGE_PREPARED;
    if (failed && fan->stage < STAGE_COMMITTING && fan->stage != STAGE_PREPARING) {
        if (fan->commit_asked)
            abort_all(fan); /* a failed commit cleans up after itself */
        else
            answer(fan); /* of prepare: abort follows */
        return;
    }
    if (fan->stage == STAGE_PREPARED) {
        if (fan->commit_asked)
            commit_all(fan);
        else
            answer(fan);
        return;
    }
    if ((fan->stage == STAGE_COMMITTING || fan->stage == STAGE_ABORTING) && fan->waiting == 0 &&
        !disk_is_busy(fan)) {
        fan->stage = STAGE_ENDED;
        if (!fan->commit_asked) /* an abort succeeds */
            fan->result = 0;
        answer(fan);
    }
}

static void advance(struct fan *fan)
{
    if (fan->stage == STAGE_RUNNING) {
        advance_running(fan);
        return;
    }
    if (fan->stage == STAGE_FLUSHING)
        advance_flushing(fan);
    if (fan->stage != STAGE_OPENING && fan->stage != STAGE_ENDED)
        advance_ends(fan);
}

/* The stream is over: the last frame of those that drop has no end of its own. */
static void begin_flush(struct fan *fan)
{
    fan->stage = STAGE_FLUSHING;
    for (size_t i = 0; i < fan->count; i++)
        fan->members[i].whole = fan->members[i].filling.len;
}

static void fan_prepare(struct sink *sink)
{
    struct fan *fan = fan_of(sink);

    begin_flush(fan);
    advance(fan);
}

static void fan_commit(struct sink *sink)
{
    struct fan *fan = fan_of(sink);

    fan->commit_asked = true;
    if (fan->stage == STAGE_RUNNING)
        begin_flush(fan);
    advance(fan);
}

static void fan_abort(struct sink *sink)
{
    struct fan *fan = fan_of(sink);

    fan->commit_asked = false;
    abort_all(fan);
}

void fan_commit_all(struct sink *sink, bool all)
{
    fan_of(sink)->commit_all = all;
}

/* ---- opening and closing ---- */

static void close_members(struct fan *fan)
{
    for (size_t i = 0; i < fan->count; i++)
        if (fan->members[i].sink != NULL)
            sink_close(STEAL(fan->members[i].sink));
}

static void opened(struct fan *fan)
{
    if (fan->result < 0)
        close_members(fan);
    else
        fan->stage = STAGE_RUNNING;
    answer(fan);
}

static void on_member_opened(void *arg, int result, const struct mandor_err *err)
{
    struct member *member = arg;
    struct fan *fan = member->fan;

    if (result < 0)
        fail(fan, result, err);
    if (--fan->waiting == 0)
        opened(fan);
}

struct opening {
    struct fan *fan;
    const struct sink_target *target;
};

static int open_member(void *arg, const char *text)
{
    const struct opening *opening = arg;
    struct fan *fan = opening->fan;
    struct member *member = &fan->members[fan->count];
    struct sink_member parsed;
    char trace[64];
    struct sink_target target = *opening->target;

    if (fan->count == SINK_LIST_MAX)
        return err_set(&fan->err, -EINVAL, FAULT_CALLER, "more than %d sinks", SINK_LIST_MAX);
    int r = sink_member_parse(text, &parsed, &fan->err);
    if (r < 0)
        return r;
    *member =
        (struct member){ .fan = fan, .policy = parsed.policy, .buffer_bytes = parsed.buffer_bytes };
    spill_init(&member->spill, fan->data_dir == NULL ? "/tmp" : fan->data_dir, after_spill);
    (void)snprintf(trace, sizeof trace, "%s.%zu",
                   target.trace == NULL ? target.stream : target.trace, fan->count);
    target.url = parsed.url;
    if (fan->count > 0)
        target.trace = trace;
    r = sink_open(sink_loop(fan->sink), &target, on_member_opened, member, &member->sink,
                  &fan->err);
    if (r == 0) {
        fan->count++;
        fan->waiting++;
    }
    return r;
}

static void fan_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct fan *fan = fan_of(sink);
    struct opening opening = { .fan = fan, .target = target };

    fan->sink = sink;
    fan->commit_all = true;
    fan->members = calloc(SINK_LIST_MAX, sizeof *fan->members);
    fan->data_dir = target->data_dir == NULL ? NULL : strdup(target->data_dir);
    fan->framed = target->frame != FRAME_RAW && target->frame_max > 0;
    framer_init(&fan->framer, target->frame, MAX(target->frame_max, (size_t)1));
    int r = fan->members == NULL || (target->data_dir != NULL && fan->data_dir == NULL)
                ? err_set(&fan->err, -ENOMEM, FAULT_HOST, "open several sinks")
                : sink_list_each(rest, open_member, &opening);
    if (r < 0)
        fan->result = r;
    if (fan->waiting == 0) /* else the last of them answers */
        opened(fan);
}

static void fan_done(struct sink *sink)
{
    struct fan *fan = fan_of(sink);

    close_members(fan);
    for (size_t i = 0; i < fan->count; i++) {
        spill_done(&fan->members[i].spill);
        buf_done(&fan->members[i].filling);
        buf_done(&fan->members[i].sending);
    }
    free(fan->members);
    free(fan->ends);
    free(fan->data_dir);
}

/* ---- questions ---- */

static int fan_check(const char *rest, struct mandor_err *err)
{
    return 0; /* each member is checked when it is opened */
}

static bool fan_publishes(const struct sink *sink)
{
    const struct fan *fan = fan_of(sink);

    for (size_t i = 0; i < fan->count; i++)
        if (fan->members[i].sink != NULL && sink_publishes(fan->members[i].sink))
            return true;
    return false;
}

static const char *fan_target_text(const struct sink *sink)
{
    const struct fan *fan = fan_of(sink);
    const char *found = NULL;

    for (size_t i = 0; i < fan->count; i++) {
        const char *text =
            fan->members[i].sink == NULL ? NULL : sink_target_text(fan->members[i].sink);
        if (found == NULL || (text != NULL && text[0] == '/' && found[0] != '/'))
            found = text; /* a file can be read back by who asks for the output */
    }
    return found;
}

static const void *fan_inline(const struct sink *sink, size_t *ret_len)
{
    const struct fan *fan = fan_of(sink);
    const void *found = NULL;

    for (size_t i = 0; i < fan->count && found == NULL; i++)
        if (fan->members[i].sink != NULL)
            found = sink_inline(fan->members[i].sink, ret_len);
    return found;
}

bool fan_commits_some(const struct sink *sink)
{
    const struct fan *fan = fan_of(sink);

    for (size_t i = 0; i < fan->count; i++)
        if (fan->members[i].sink != NULL && sink_commits_always(fan->members[i].sink))
            return true;
    return false;
}

static json_t *member_json(const struct member *member)
{
    return json_pack("{s:s, s:s*, s:s, s:b, s:I, s:I, s:I, s:I, s:I}", "sink",
                     sink_kind(member->sink), "target", sink_target_text(member->sink), "policy",
                     sink_policy_name(member->policy), "committed", member->committed, "bytes",
                     (json_int_t)member->bytes, "paused_ms", (json_int_t)member->paused_ms,
                     "dropped_bytes", (json_int_t)member->dropped_bytes, "dropped_frames",
                     (json_int_t)member->dropped_frames, "spilled_bytes",
                     (json_int_t)member->spilled_bytes);
}

json_t *fan_record(const struct sink *sink)
{
    const struct fan *fan = fan_of(sink);
    json_t *list = json_array();

    for (size_t i = 0; list != NULL && i < fan->count; i++)
        if (fan->members[i].sink != NULL)
            (void)json_array_append_new(list, member_json(&fan->members[i]));
    return list;
}

const struct sink_ops sink_fan = {
    .scheme = "fan",
    .state_size = sizeof(struct fan),
    .publishes = true,
    .check = fan_check,
    .open = fan_open,
    .write = fan_write,
    .prepare = fan_prepare,
    .commit = fan_commit,
    .abort = fan_abort,
    .done = fan_done,
    .publishes_now = fan_publishes,
    .target_text = fan_target_text,
    .inline_bytes = fan_inline,
};

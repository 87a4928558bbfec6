/* fan.c - contract in fan.h.
 *
 * A write is copied into each member's buffer as far as the member's policy takes it (fan_member.c), and answered when all have taken all of it.
 *
 * Members commit one after the other, those on other machines first: the first that fails keeps the later ones from being published, and what
 * is here hardly fails once it has been prepared.
 *
 *    OPENING ─▶ RUNNING ─▶ FLUSHING (buffers empty) ─▶ PREPARING ─▶ PREPARED ─▶ COMMITTING ─▶ ENDED
 *                   └──────────── ABORTING ──────────────────────────────────────────────────▶ ENDED
 */
#include <stdio.h>

#include "base/clock.h"
#include "stream/fan_int.h"

static struct fan *fan_of(const struct sink *sink)
{
    return sink_state(sink);
}

void fan_fail(struct fan *fan, int result, const struct mandor_err *err)
{
    if (fan->result < 0)
        return;
    fan->result = result;
    fan->err = *err;
}

void fan_fail_memory(struct fan *fan)
{
    struct mandor_err err;

    fan_fail(fan, err_set(&err, -ENOMEM, FAULT_HOST, "write to several sinks"), &err);
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
            fan_fail_memory(fan);
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
    fan_advance(fan);
}

/* ---- ends ---- */

static void answer(struct fan *fan)
{
    struct mandor_err err = fan->err;

    fan->writing = false;
    sink_answer(fan->sink, fan->result, &err);
}

static bool wants_commit(const struct fan *fan, const struct fan_member *member)
{
    return fan->commit_all || sink_commits_always(member->sink);
}

/* One member has answered what all were asked. */
static void on_step(void *arg, int result, const struct mandor_err *err)
{
    struct fan_member *member = arg;
    struct fan *fan = member->fan;

    fan->waiting--;
    if (result < 0 && fan->stage != STAGE_ABORTING)
        fan_fail(fan, result, err);
    fan_advance(fan);
}

static void prepare_all(struct fan *fan)
{
    fan->stage = STAGE_PREPARING;
    /* Ours: nobody answers from inside, but all may be told to wait for nothing. */
    fan->waiting = 1;
    for (size_t i = 0; i < fan->count; i++) {
        if (!wants_commit(fan, &fan->members[i]))
            continue;
        fan->waiting++;
        sink_prepare(fan->members[i].sink, on_step, &fan->members[i]);
    }
    fan->waiting--;
}

static void abort_member(struct fan_member *member)
{
    member->ended = true;
    member->fan->waiting++;
    sink_abort(member->sink, on_step, member);
}

static void abort_all(struct fan *fan)
{
    fan->stage = STAGE_ABORTING;
    for (size_t i = 0; i < fan->count; i++)
        abort_member(&fan->members[i]);
}

static void on_committed(void *arg, int result, const struct mandor_err *err)
{
    struct fan_member *member = arg;

    member->committed = result == 0;
    on_step(arg, result, err);
}

/* Whose turn it is: those on other machines come first. */
static struct fan_member *next_member(const struct fan *fan)
{
    struct fan_member *found = NULL;

    for (size_t i = 0; i < fan->count; i++) {
        struct fan_member *member = &fan->members[i];
        if (!member->ended &&
            (found == NULL || (sink_is_remote(member->sink) && !sink_is_remote(found->sink))))
            found = member;
    }
    return found;
}

/* Ends the next member.  false: all have been. */
static bool end_next(struct fan *fan)
{
    struct fan_member *member = next_member(fan);

    if (member == NULL)
        return false;
    if (fan->result < 0) {
        abort_member(member);
        return true;
    }
    int64_t left = sink_commit_left_ms(fan->sink);
    member->ended = true;
    fan->waiting++;
    sink_commit(member->sink, left == INT64_MAX ? SINK_NO_DEADLINE : clock_boot_ms() + left,
                on_committed, member);
    return true;
}

static void commit_all(struct fan *fan)
{
    fan->stage = STAGE_COMMITTING;
    for (size_t i = 0; i < fan->count; i++)
        if (!wants_commit(fan, &fan->members[i]))
            abort_member(&fan->members[i]);
    if (fan->waiting == 0)
        (void)end_next(fan);
}

static bool all_drained(const struct fan *fan)
{
    for (size_t i = 0; i < fan->count; i++)
        if (!fan_member_is_drained(&fan->members[i]))
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
        struct fan_member *member = &fan->members[i];
        if (fan->writing && fan->result == 0)
            fan_member_take(member);
        fan_member_move(member);
        if (fan->writing && fan->result == 0)
            fan_member_take(member); /* sending made room */
        all = all && member->taken == fan->write_len;
        fan_member_count(member);
    }
    if (fan->writing && (all || fan->result < 0))
        answer(fan);
}

static void advance_flushing(struct fan *fan)
{
    for (size_t i = 0; i < fan->count && fan->result == 0; i++) {
        fan_member_move(&fan->members[i]);
        fan_member_count(&fan->members[i]);
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
    if (fan->stage == STAGE_COMMITTING && fan->waiting == 0 && end_next(fan))
        return;
    if ((fan->stage == STAGE_COMMITTING || fan->stage == STAGE_ABORTING) && fan->waiting == 0 &&
        !disk_is_busy(fan)) {
        fan->stage = STAGE_ENDED;
        if (!fan->commit_asked) /* an abort succeeds */
            fan->result = 0;
        answer(fan);
    }
}

void fan_advance(struct fan *fan)
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
    struct mandor_err err;

    fan->stage = STAGE_FLUSHING;
    for (size_t i = 0; i < fan->count; i++) {
        struct fan_member *member = &fan->members[i];
        member->whole = member->filling.len;
        if (member->forgone && wants_commit(fan, member))
            fan_fail(fan,
                     err_set(&err, -ECANCELED, FAULT_REMOTE, "sink '%s' was given up",
                             sink_kind(member->sink)),
                     &err);
    }
}

static void fan_prepare(struct sink *sink)
{
    struct fan *fan = fan_of(sink);

    begin_flush(fan);
    fan_advance(fan);
}

static void fan_commit(struct sink *sink)
{
    struct fan *fan = fan_of(sink);

    fan->commit_asked = true;
    if (fan->stage == STAGE_RUNNING)
        begin_flush(fan);
    fan_advance(fan);
}

static void fan_abort(struct sink *sink)
{
    struct fan *fan = fan_of(sink);

    fan->commit_asked = false;
    abort_all(fan);
}

/* The filter's sink_timeout, or an abort: what does not answer now is not waited for. */
static void fan_interrupt(struct sink *sink)
{
    struct fan *fan = fan_of(sink);
    struct mandor_err err;

    (void)err_set(&err, -ETIMEDOUT, FAULT_REMOTE, "a sink does not answer");
    fan_fail(fan, err.code, &err);
    for (size_t i = 0; i < fan->count; i++)
        if (fan->members[i].writing || fan->stage == STAGE_OPENING)
            sink_give_up(fan->members[i].sink);
    fan_advance(fan);
}

static void fan_extend(struct sink *sink, int64_t until_boot_ms)
{
    struct fan *fan = fan_of(sink);

    for (size_t i = 0; i < fan->count; i++)
        if (fan->members[i].ended)
            sink_extend(fan->members[i].sink, until_boot_ms);
}

/* The member whose last step is under way says how that went; all others are kept from theirs. */
static void fan_revoke(struct sink *sink, int code)
{
    struct fan *fan = fan_of(sink);
    struct mandor_err err;

    if (fan->stage == STAGE_ENDED)
        return;
    if (fan->stage < STAGE_COMMITTING) {
        (void)err_set(&err, code, FAULT_REMOTE, "%s before the output could be published",
                      code == -ETIME ? "the lease ran out" : "the job was stopped");
        fan_fail(fan, code, &err);
    }
    for (size_t i = 0; i < fan->count; i++)
        sink_revoke(fan->members[i].sink, code);
    fan_advance(fan);
}

void fan_commit_all(struct sink *sink, bool all)
{
    struct fan *fan = fan_of(sink);

    fan->commit_all = all;
    if (fan->stage != STAGE_RUNNING)
        return;
    for (size_t i = 0; i < fan->count; i++) {
        struct fan_member *member = &fan->members[i];
        member->forgone |= !wants_commit(fan, member);
    }
    fan_advance(fan);
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
    struct fan_member *member = arg;
    struct fan *fan = member->fan;

    if (result < 0)
        fan_fail(fan, result, err);
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
    struct fan_member *member = &fan->members[fan->count];
    struct sink_member parsed;
    char trace[64];
    struct sink_target target = *opening->target;

    target.context = NULL;
    if (fan->count == SINK_LIST_MAX)
        return err_set(&fan->err, -EINVAL, FAULT_CALLER, "more than %d sinks", SINK_LIST_MAX);
    int r = sink_member_parse(text, &parsed, &fan->err);
    if (r < 0)
        return r;
    fan_member_init(member, fan, &parsed);
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
    fan->pool = target->context == NULL ? NULL : filter_pool_ref(target->context);
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
    for (size_t i = 0; i < fan->count; i++)
        fan_member_done(&fan->members[i]);
    if (fan->pool != NULL)
        filter_pool_unref(fan->pool);
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

json_t *fan_record(const struct sink *sink)
{
    const struct fan *fan = fan_of(sink);
    json_t *list = json_array();

    for (size_t i = 0; list != NULL && i < fan->count; i++)
        if (fan->members[i].sink != NULL)
            (void)json_array_append_new(list, fan_member_json(&fan->members[i]));
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
    .interrupt = fan_interrupt,
    .revoke = fan_revoke,
    .extend = fan_extend,
    .done = fan_done,
    .publishes_now = fan_publishes,
    .target_text = fan_target_text,
    .inline_bytes = fan_inline,
};

/* entries.c - contract in entries.h.
 *
 *    write ─▶ pieces (one a frame) ─▶ a transaction, many pieces a call ─▶ … answered      commit: script_last with totals and checksum
 *                                       at most REDIS_WINDOW bytes unconfirmed
 *
 * A transaction and no script: Lua would copy the bytes twice more on their way.  With max_pending it is script_add, which counts what is
 * unread as well; one call at a time, and what the bound left over waits for the readers. */
#include "memory/entries.h"

#include <stdio.h>

#include "memory/pieces.h"

#define BATCH_PIECES 128  /* in one script call */
#define TXN_PIECES   1024 /* in one transaction */
#define BATCH_BYTES  ((size_t)512 << 10)
#define CALLS_MAX    2 /* transactions under way: one is read by the server, one is being written */
#define POLL_MIN_MS  10
#define POLL_MAX_MS  200
#define ABORT_MS     2000

struct entries {
    struct redis_sink base;
    struct pieces pieces;
    uint64_t seq;           /* of the first piece that waits */
    int64_t bytes;          /* of the stream so far */
    XXH3_state_t *own_hash; /* where the filter has none */
    uint64_t digest;
    uv_timer_t timer; /* at the bound: look again */
    bool timer_open, waiting;
    unsigned poll_ms;
    bool bounded, writing, preparing, committing, aborting, ended;
};

struct batch {
    struct entries *entries;
    size_t bytes;
    size_t count;
    uint64_t first;
};

static struct entries *of(struct redis_sink *base)
{
    return CONTAINER_OF(base, struct entries, base);
}

static void advance(struct entries *entries);

/* ---- sending ---- */

static void on_added(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct batch *batch = arg;
    struct entries *entries = batch->entries;
    struct redis_sink *base = &entries->base;
    uint64_t next = batch->first + batch->count;

    base->flying -= batch->bytes;
    base->calls--;
    if (result < 0)
        redis_sink_fail(base, result, err);
    else if (entries->bounded && reply->type == REDIS_REPLY_INTEGER)
        next = (uint64_t)reply->integer;
    if (entries->bounded && result == 0) {
        size_t added = (size_t)MIN(next - batch->first, (uint64_t)batch->count);
        pieces_drop(&entries->pieces, added);
        entries->seq += added;
        entries->waiting = added < batch->count;
        entries->poll_ms =
            added > 0 ? POLL_MIN_MS : MIN(entries->poll_ms * 2, (unsigned)POLL_MAX_MS);
    }
    free(batch);
    advance(entries);
}

/* How many pieces go into the next call. */
static size_t batch_size(const struct entries *entries, size_t *ret_bytes)
{
    size_t n = 0, bytes = 0, most = entries->bounded ? BATCH_PIECES : TXN_PIECES;
    const void *unused;

    while (n < entries->pieces.count && n < most && (n == 0 || bytes < BATCH_BYTES))
        bytes += pieces_at(&entries->pieces, n++, &unused)->len;
    *ret_bytes = bytes;
    return n;
}

static const char *flag_text(unsigned flags)
{
    return flags & FRAME_CONT ? "cont" : flags & FRAME_PARTIAL ? "partial" : "";
}

static void send_bounded(struct entries *entries, struct batch *batch)
{
    struct redis_sink *base = &entries->base;
    const struct target *target = &base->target;
    static char numbers[BATCH_PIECES][2][24]; /* copied by redis_eval(); loop thread only */
    char seq[24], maxlen[24], bound[24];
    const char *argv[8 + 4 * BATCH_PIECES];
    size_t lens[ARRAY_LEN(argv)], n = 0;

    (void)snprintf(seq, sizeof seq, "%" PRIu64, entries->seq);
    (void)snprintf(maxlen, sizeof maxlen, "%" PRId64, target->maxlen);
    (void)snprintf(bound, sizeof bound, "%" PRId64, target->max_pending);
    const char *head[] = { target->key,
                           base->fence,
                           base->owner,
                           seq,
                           base->job,
                           maxlen,
                           target->group == NULL ? "" : target->group,
                           bound };
    for (; n < ARRAY_LEN(head); n++) {
        argv[n] = head[n];
        lens[n] = strlen(head[n]);
    }
    for (size_t i = 0; i < batch->count; i++) {
        const void *bytes;
        const struct piece *piece = pieces_at(&entries->pieces, i, &bytes);
        (void)snprintf(numbers[i][0], 24, "%" PRId64, piece->off);
        (void)snprintf(numbers[i][1], 24, "%zu", piece->head);
        const char *each[] = { numbers[i][0], numbers[i][1], flag_text(piece->flags) };
        for (size_t k = 0; k < ARRAY_LEN(each); k++, n++) {
            argv[n] = each[k];
            lens[n] = strlen(each[k]);
        }
        argv[n] = bytes;
        lens[n++] = piece->len;
    }
    redis_eval(base->redis, &script_add, REDIS_AGAIN, REDIS_SINK_MS, 2, n, argv, lens, on_added,
               batch);
}

/* What the fence says of the batch: scripts.h has its form. */
static int check_fence(void *arg, const char *value, struct mandor_err *err)
{
    const struct batch *batch = arg;
    const struct redis_sink *base = &batch->entries->base;
    size_t len = strlen(base->owner);
    uint64_t have;

    if (value != NULL && strncmp(value, base->owner, len) == 0 && value[len] == ':') {
        have = strtoull(value + len + 1, NULL, 10);
        if (have <= batch->first)
            return have == batch->first ? REDIS_EXEC : REDIS_EARLY;
        if (have >= batch->first + batch->count)
            return REDIS_DONE;
        return err_set(err, -EIO, FAULT_REMOTE, "its fence counts %" PRIu64 " entries", have);
    }
    if (value == NULL || strtoll(value, NULL, 10) < strtoll(base->attempt, NULL, 10))
        return batch->first == 0 ? REDIS_EXEC
                                 : err_set(err, -EIO, FAULT_REMOTE, "GAP entry 0 is missing");
    return err_say(err, -ESTALE, FAULT_REMOTE, "STALE attempt %.*s of this job has begun since",
                   (int)strcspn(value, "."), value);
}

static void add_entry(struct entries *entries, struct redis_transaction *txn, size_t n,
                      const char *maxlen)
{
    const struct redis_sink *base = &entries->base;
    const void *bytes;
    const struct piece *piece = pieces_at(&entries->pieces, n, &bytes);
    char seq[24], off[24], head[24];
    const char *argv[20] = { "XADD", base->target.key, "MAXLEN", "~", maxlen };
    size_t lens[ARRAY_LEN(argv)], argc = base->target.maxlen > 0 ? 5 : 2;

    (void)snprintf(seq, sizeof seq, "%" PRIu64, entries->seq + n);
    (void)snprintf(off, sizeof off, "%" PRId64, piece->off);
    (void)snprintf(head, sizeof head, "%zu", piece->head);
    const char *fields[] = { "*",   "job", base->job, "attempt", base->attempt, "seq", seq,
                             "off", off,   "data",    "" };
    memcpy(argv + argc, fields, sizeof fields);
    argc += ARRAY_LEN(fields);
    size_t data_at = argc - 1;
    if (piece->head > 0) {
        argv[argc++] = "head";
        argv[argc++] = head;
    }
    if (flag_text(piece->flags)[0] != '\0') {
        argv[argc++] = "flags";
        argv[argc++] = flag_text(piece->flags);
    }
    for (size_t i = 0; i < argc; i++)
        lens[i] = strlen(argv[i]);
    argv[data_at] = bytes;
    lens[data_at] = piece->len;
    redis_transaction_add(txn, argc, argv, lens);
}

static void send_unbounded(struct entries *entries, struct batch *batch)
{
    struct redis_sink *base = &entries->base;
    struct redis_transaction *txn = redis_transaction_new(base->fence);
    char maxlen[24], fence[80];
    const char *set[] = { "SET", base->fence, fence, "EX", FENCE_SECONDS };

    if (txn == NULL) {
        struct mandor_err err;
        int r = err_set(&err, -ENOMEM, FAULT_HOST, "send");
        on_added(batch, r, NULL, &err);
        return;
    }
    (void)snprintf(maxlen, sizeof maxlen, "%" PRId64, base->target.maxlen);
    for (size_t i = 0; i < batch->count; i++)
        add_entry(entries, txn, i, maxlen);
    entries->seq += batch->count;
    pieces_drop(&entries->pieces, batch->count); /* copied */
    (void)snprintf(fence, sizeof fence, "%s:%" PRIu64, base->owner, entries->seq);
    redis_transaction_add(txn, ARRAY_LEN(set), set, NULL);
    redis_transact(base->redis, txn, REDIS_SINK_MS, check_fence, on_added, batch);
}

static void send_batch(struct entries *entries)
{
    struct redis_sink *base = &entries->base;
    struct batch *batch = calloc(1, sizeof *batch);

    if (batch == NULL) {
        struct mandor_err err;
        redis_sink_fail(base, err_set(&err, -ENOMEM, FAULT_HOST, "send"), &err);
        return;
    }
    *batch = (struct batch){ .entries = entries, .first = entries->seq };
    batch->count = batch_size(entries, &batch->bytes);
    base->flying += batch->bytes;
    base->calls++;
    if (entries->bounded)
        send_bounded(entries, batch);
    else
        send_unbounded(entries, batch);
}

static void on_timer(uv_timer_t *timer)
{
    struct entries *entries = CONTAINER_OF(timer, struct entries, timer);

    entries->waiting = false;
    if (entries->aborting)
        redis_sink_drop_calls(&entries->base);
    advance(entries);
}

static void send_pieces(struct entries *entries)
{
    struct redis_sink *base = &entries->base;

    if (entries->waiting) {
        if (!uv_is_active((uv_handle_t *)&entries->timer))
            (void)uv_timer_start(&entries->timer, on_timer, entries->poll_ms, 0);
        return;
    }
    while (base->result == 0 && entries->pieces.count > 0 &&
           base->calls < (entries->bounded ? 1 : CALLS_MAX) && base->flying < REDIS_WINDOW)
        send_batch(entries);
}

/* ---- the last entry ---- */

static void on_last(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct entries *entries = arg;
    struct redis_sink *base = &entries->base;

    base->calls--;
    if (result < 0)
        redis_sink_fail(base, result, err);
    entries->ended = true;
    sink_answer(base->sink, entries->committing ? base->result : 0, &base->err);
}

static void send_last(struct entries *entries, const char *what, int64_t timeout_ms)
{
    struct redis_sink *base = &entries->base;
    char seq[24], bytes[24], frames[24], hash[24];

    (void)snprintf(seq, sizeof seq, "%" PRIu64, entries->seq);
    (void)snprintf(bytes, sizeof bytes, "%" PRId64, entries->bytes);
    (void)snprintf(frames, sizeof frames, "%" PRIu64, entries->seq);
    (void)snprintf(hash, sizeof hash, "%016" PRIx64, entries->digest);
    const char *argv[] = { base->target.key, base->fence, base->owner, seq,    base->job, what, "1",
                           "bytes",          bytes,       "entries",   frames, "xxh3",    hash };
    base->calls++;
    redis_eval(base->redis, &script_last, REDIS_AGAIN | REDIS_IN_TIME, timeout_ms, 2,
               ARRAY_LEN(argv), argv, NULL, on_last, entries);
}

/* ---- what comes next ---- */

static void answer(struct entries *entries)
{
    struct mandor_err err = entries->base.err;

    entries->writing = entries->preparing = false;
    sink_answer(entries->base.sink, entries->base.result, &err);
}

static void commit_now(struct entries *entries)
{
    struct redis_sink *base = &entries->base;
    struct mandor_err err;

    if (base->result == 0 && !sink_may_publish(base->sink, &err))
        redis_sink_fail(base, err.code, &err);
    entries->ended = true;
    if (base->result == 0)
        send_last(entries, "eof", redis_sink_commit_ms(base));
    else
        sink_answer(base->sink, base->result, &base->err);
}

/* What was added stays; readers pass over an attempt without its end.  Who follows it live is told. */
static void abort_now(struct entries *entries)
{
    struct redis_sink *base = &entries->base;

    entries->ended = true;
    if (base->result == 0 && base->redis != NULL && redis_is_up(base->redis))
        send_last(entries, "aborted", ABORT_MS);
    else
        sink_answer(base->sink, 0, NULL);
}

static void advance(struct entries *entries)
{
    struct redis_sink *base = &entries->base;

    if (entries->ended || (entries->aborting && base->calls > 0))
        return;
    if (entries->aborting) {
        abort_now(entries);
        return;
    }
    send_pieces(entries);
    bool sent = entries->pieces.count == 0, confirmed = sent && base->calls == 0;
    bool failed = base->result < 0;
    if (entries->writing && (failed || (sent && base->flying < REDIS_WINDOW)))
        answer(entries);
    else if (entries->preparing && (failed || confirmed))
        answer(entries);
    else if (entries->committing && (failed || confirmed))
        commit_now(entries);
}

/* ---- the sink's calls ---- */

static int take(struct entries *entries, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    int r = 0;

    for (int i = 0; r == 0 && i < count; i++) {
        if (iov[i].iov_len == 0)
            continue;
        (void)XXH3_64bits_update(hash, iov[i].iov_base, iov[i].iov_len);
        entries->bytes += (int64_t)iov[i].iov_len;
        r = pieces_add(&entries->pieces, iov[i].iov_base, iov[i].iov_len);
    }
    entries->digest = XXH3_64bits_digest(hash);
    return r;
}

static void note_failure(struct entries *entries, int result)
{
    struct mandor_err err;

    (void)err_set(&err, result, FAULT_HOST, "send");
    redis_sink_fail(&entries->base, result, &err);
}

void entries_write(struct redis_sink *base, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct entries *entries = of(base);

    int r = take(entries, iov, count, hash != NULL ? hash : entries->own_hash);
    if (r < 0 && r != -EPROTO) /* the filter sees a bad frame itself; the pieces before it count */
        note_failure(entries, r);
    entries->writing = true;
    advance(entries);
}

/* The unterminated end of the stream. */
static void finish_pieces(struct entries *entries)
{
    int r = pieces_end(&entries->pieces);

    if (r < 0 && r != -EPROTO)
        note_failure(entries, r);
}

void entries_prepare(struct redis_sink *base)
{
    struct entries *entries = of(base);

    finish_pieces(entries);
    entries->preparing = true;
    advance(entries);
}

void entries_commit(struct redis_sink *base)
{
    struct entries *entries = of(base);

    finish_pieces(entries); /* a second time it finds nothing */
    entries->committing = true;
    advance(entries);
}

void entries_abort(struct redis_sink *base)
{
    struct entries *entries = of(base);

    entries->aborting = true;
    (void)uv_timer_stop(&entries->timer);
    if (base->calls > 0 && (base->result < 0 || !redis_is_up(base->redis)))
        redis_sink_drop_calls(base); /* nobody waits for a server that is away */
    else if (base->calls > 0)
        (void)uv_timer_start(&entries->timer, on_timer, ABORT_MS, 0);
    advance(entries);
}

void entries_interrupt(struct redis_sink *base)
{
    redis_sink_given_up(base);
    advance(of(base));
}

/* ---- opening and closing ---- */

static void on_timer_closed(uv_handle_t *handle)
{
    struct entries *entries = CONTAINER_OF(handle, struct entries, timer);

    pieces_done(&entries->pieces);
    (void)XXH3_freeState(entries->own_hash);
    free(entries);
}

static void done(struct redis_sink *base)
{
    struct entries *entries = of(base);

    if (entries->timer_open)
        uv_close((uv_handle_t *)&entries->timer, on_timer_closed);
    else
        on_timer_closed((uv_handle_t *)&entries->timer);
}

struct redis_sink *entries_new(void)
{
    struct entries *entries = calloc(1, sizeof *entries);

    if (entries == NULL)
        return NULL;
    entries->base.done = done;
    entries->own_hash = XXH3_createState();
    if (entries->own_hash == NULL) {
        free(entries);
        return NULL;
    }
    (void)XXH3_64bits_reset(entries->own_hash);
    entries->digest = XXH3_64bits_digest(entries->own_hash);
    return &entries->base;
}

int entries_open(struct redis_sink *base, struct sink *sink, const struct sink_target *target,
                 struct mandor_err *err)
{
    struct entries *entries = of(base);

    (void)uv_timer_init(sink_loop(sink), &entries->timer);
    entries->timer_open = true;
    entries->poll_ms = POLL_MIN_MS;
    pieces_init(&entries->pieces, target->frame_max == 0 ? FRAME_RAW : target->frame,
                MAX(target->frame_max, (size_t)1));
    int r = redis_sink_open(base, sink, target, err);
    entries->bounded = base->target.max_pending > 0;
    return r;
}

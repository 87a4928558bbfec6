/* filter.c - contract in filter.h.
 *
 * Every callback notes what happened and ends in turn_end(): advance() starts whatever may run now, notify() then tells the
 * owner.  So nobody is called back from inside of a call, and a callback may close the filter.
 *
 * Bytes move in one of two ways, never both at once, so their order needs no care:
 *
 *    loop   serve() reads into the ring, one sink_write() at a time takes what is there.
 *    pool   a busy stream's slices (pump.h) move bytes from the pipe to the sink's descriptor.  Needs an empty ring, no write
 *           in flight, no follower.  Streams that splice(2) go this way from their first byte.
 *
 * A write or slice that hangs pins the ring, the hash and the pipe.  filter_close() leaves such a filter behind; it frees
 * itself when the call returns.
 */
#include "stream/filter.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "base/metrics.h"
#include "loop/work.h"
#include "stream/capture.h"
#include "stream/filter_pool.h"
#include "stream/framer.h"
#include "stream/pump.h"

#define FILTER_MAGIC   0x66696c74u
#define BUSY_BYTES     ((size_t)32 << 10) /* a turn that moves so much counts as busy */
#define BUSY_TURNS     2  /* so many more busy turns than others make a busy stream */
#define BUSY_TURNS_MAX 8  /* … and so many others end it at the latest */
#define STALL_MS       50 /* a slice (5 ms) or write that takes so long is backpressure */
/* Of a busy stream's pipe: the most that everyone may ask for, pipe(7). */
#define PIPE_SIZE      (1 << 20)

struct filter {
    uint32_t magic;
    struct filter_pool *pool;
    struct filter_options options;
    struct sink *sink;
    struct filter_events events;
    void *arg;
    struct list turn; /* in the pool's line */

    /* Source. */
    enum { SOURCE_NONE, SOURCE_PIPE, SOURCE_FEED } source;
    int fd; /* -1 = not open */
    uv_poll_t poll;
    bool poll_open, polling;
    bool dry;    /* the pipe was empty when last looked at: the next slice waits for poll */
    bool paused; /* at the high watermark; until the low one is reached */
    bool source_ended;
    bool feed_refused; /* filter_feed() took less than all: on_room is due at the low watermark */
    void (*on_room)(void *arg);
    unsigned busy_turns;
    bool pipe_enlarged;

    /* On the way. */
    struct ring *ring; /* NULL while empty */
    struct framer framer;
    struct capture capture;
    XXH3_state_t *hash; /* NULL = no checksum */
    struct list followers, joining;

    /* Sink. */
    bool sink_ready, writing, pumping, no_splice;
    struct iovec iov[2];
    size_t write_len;
    int64_t waiting_since_ms; /* for the sink: an open, a write or a slice */
    int64_t patience_ms;      /* how long it may; 0 = for ever */
    bool hurried;
    struct pump pump;
    struct work work;

    /* Time. */
    uv_timer_t timer;
    int64_t timer_due_ms; /* while it is active */
    int64_t quiet_since_ms, drain_since_ms, drain_idle_ms, drain_cap_ms;
    uint64_t paused_at_ns;

    /* End. */
    bool draining, drained_due;
    void (*on_drained)(void *arg);
    bool finishing;
    int64_t finish_left; /* bytes that the pipe held at filter_finish() */
    int result;          /* of the stream, first failure */
    struct mandor_err err;
    bool dead; /* the sink failed: nothing more goes there */
    bool ended_due, ended;
    bool activity;
    bool closing;
    void (*on_closed)(void *arg);
    void *closed_arg;
    int handles; /* open */

    struct filter_stats stats;
};

static size_t used(const struct filter *filter)
{
    return filter->ring == NULL ? 0 : ring_used(filter->ring);
}

static bool in_flight(const struct filter *filter)
{
    return filter->writing || filter->pumping;
}

static void wake(struct filter *filter)
{
    if (!filter->closing)
        filter_pool_wake(filter->pool, &filter->turn);
}

/* ---- end of things ---- */

static void maybe_free(struct filter *filter)
{
    if (!filter->closing || filter->handles > 0 || in_flight(filter))
        return;
    filter_pool_put(filter->pool, filter->ring);
    capture_done(&filter->capture);
    (void)XXH3_freeState(filter->hash);
    filter_pool_unref(filter->pool);
    OBJ_FINI(filter);
    free(filter);
}

static void handle_closed(struct filter *filter)
{
    filter->handles--;
    if (!filter->closing || filter->handles > 0)
        return;
    if (filter->on_closed != NULL)
        filter->on_closed(filter->closed_arg);
    maybe_free(filter);
}

static void on_poll_closed(uv_handle_t *handle)
{
    handle_closed(CONTAINER_OF(handle, struct filter, poll));
}

static void on_timer_closed(uv_handle_t *handle)
{
    handle_closed(CONTAINER_OF(handle, struct filter, timer));
}

/* Let go of the pipe; a slice in flight still holds it. */
static void close_pipe(struct filter *filter)
{
    if (filter->poll_open) {
        uv_close((uv_handle_t *)&filter->poll, on_poll_closed);
        filter->poll_open = filter->polling = false;
    }
    if (filter->pumping)
        atomic_store_explicit(&filter->pump.stop, true, memory_order_relaxed);
    else if (filter->fd >= 0)
        (void)close(STEAL_FD(filter->fd));
}

static void resume(struct filter *filter)
{
    if (!filter->paused)
        return;
    filter->paused = false;
    uint64_t ns = uv_hrtime() - filter->paused_at_ns;
    filter->stats.paused_ms += (int64_t)(ns / 1000000);
    filter->quiet_since_ms = clock_mono_ms();
    metric_observe(METRIC_paused_us, (int64_t)(ns / 1000));
}

static void end_source(struct filter *filter)
{
    if (filter->source_ended)
        return;
    filter->source_ended = true;
    resume(filter);
    close_pipe(filter);
    if (filter->result == 0 && framer_end(&filter->framer, NULL) < 0)
        filter->result = framer_error(&filter->framer, &filter->err);
    if (filter->draining)
        filter->drained_due = true;
}

/* The stream is wrong: nothing more is read, what was read still goes to the sink. */
static void fail(struct filter *filter, int result, const struct mandor_err *err)
{
    if (filter->result == 0) {
        filter->result = result;
        filter->err = *err;
    }
    end_source(filter);
}

/* The sink is broken: what was read has nowhere to go. */
static void fail_sink(struct filter *filter, int result, const struct mandor_err *err)
{
    filter->dead = true;
    fail(filter, result, err);
    filter->ended_due = true;
}

/* ---- bytes ---- */

static void follow_bytes(struct filter *filter, const void *bytes, size_t len)
{
    LIST_FOREACH(follower, &filter->followers, struct follower, node)
        follower->on_bytes(follower, bytes, len);
}

static int over_max(const struct filter *filter, struct mandor_err *err)
{
    return err_set(err, -EFBIG, FAULT_JOB, "wrote more than output_max, %" PRId64 " bytes",
                   filter->options.output_max);
}

static int64_t keep_max(const struct filter *filter)
{
    if (filter->options.output_max == 0)
        return INT64_MAX;
    return filter->options.output_max - (filter->stats.bytes - filter->stats.discarded_bytes);
}

static void count(struct filter *filter, int64_t bytes, int64_t kept)
{
    filter->stats.bytes += bytes;
    filter->stats.discarded_bytes += bytes - kept;
    filter->finish_left -= bytes;
    filter->quiet_since_ms = clock_mono_ms();
    filter->activity = true;
    metric_add(METRIC_stream_bytes, bytes);
}

/* Look at the newest len bytes of the ring and drop what goes beyond output_max. */
static void take(struct filter *filter, size_t len)
{
    struct iovec iov[2];
    struct mandor_err err;
    size_t kept = (size_t)MIN((int64_t)len, keep_max(filter));
    int n = ring_newest(filter->ring, len, iov);
    int framed = 0;

    for (int i = 0; i < n; i++) {
        if (filter->options.capture)
            capture_add(&filter->capture, iov[i].iov_base, iov[i].iov_len);
        follow_bytes(filter, iov[i].iov_base, iov[i].iov_len);
        if (framed == 0)
            framed = framer_push(&filter->framer, iov[i].iov_base, iov[i].iov_len, NULL);
    }
    count(filter, (int64_t)len, (int64_t)kept);
    ring_trim(filter->ring, len - kept);

    if (framed < 0)
        fail(filter, framer_error(&filter->framer, &err), &err);
    else if (kept < len && filter->options.output_policy == OUTPUT_KILL)
        fail(filter, over_max(filter, &err), &err);
}

static size_t high_watermark(const struct filter *filter)
{
    return filter_pool_tight(filter->pool) ? FILTER_TIGHT : FILTER_HIGH;
}

/* Make the ring able to take bytes; want: how many there are, if that is known.  Returns how many, 0 = none now, or -ENOMEM. */
static ssize_t make_room(struct filter *filter, size_t want)
{
    size_t high = high_watermark(filter);

    if (filter->ring == NULL) {
        size_t capacity = (filter->busy_turns > 0 || want > FILTER_FIRST) && high == FILTER_HIGH
                              ? FILTER_HIGH
                              : FILTER_FIRST;
        filter->ring = filter_pool_ring(filter->pool, capacity);
        if (filter->ring == NULL)
            return -ENOMEM;
    } else if (ring_room(filter->ring) == 0 && ring_capacity(filter->ring) < high &&
               !filter->writing) {
        struct ring *larger = filter_pool_ring(filter->pool, FILTER_HIGH);
        struct iovec iov[2];
        if (larger == NULL)
            return 0; /* the small one does, slowly */
        int n = ring_oldest(filter->ring, ring_used(filter->ring), iov);
        for (int i = 0; i < n; i++)
            BUG_ON(ring_put(larger, iov[i].iov_base, iov[i].iov_len) != iov[i].iov_len);
        filter_pool_put(filter->pool, filter->ring);
        filter->ring = larger;
    }
    size_t fill = ring_used(filter->ring);
    return fill >= high ? 0 : (ssize_t)MIN(ring_room(filter->ring), high - fill);
}

/* Does the job's choice allow splice(2)?  Then the sink's answer is waited for before the first byte is read. */
static bool may_splice(const struct filter *filter)
{
    const struct filter_options *options = &filter->options;

    return options->frame == FRAME_RAW && !options->checksum && !options->capture &&
           options->output_max == 0 && !filter->no_splice && !filter->finishing;
}

static bool splices(const struct filter *filter)
{
    return may_splice(filter) && sink_splice_fd(filter->sink) >= 0;
}

/* Should the pool move this stream's bytes (as soon as the ring is empty)? */
static bool wants_pump(const struct filter *filter)
{
    if (filter->source != SOURCE_PIPE || filter->source_ended || filter->finishing ||
        !filter->sink_ready || !list_empty(&filter->followers) || filter_pool_tight(filter->pool))
        return false;
    if (splices(filter))
        return true;
    return filter->busy_turns >= BUSY_TURNS && sink_write_fd(filter->sink) != -1;
}

static bool may_read(const struct filter *filter)
{
    return filter->source == SOURCE_PIPE && !filter->source_ended && !filter->paused &&
           !filter->pumping && !wants_pump(filter) && (filter->sink_ready || !may_splice(filter));
}

static void note_busy(struct filter *filter, size_t bytes)
{
    if (bytes >= BUSY_BYTES)
        filter->busy_turns = MIN(filter->busy_turns + 1, (unsigned)BUSY_TURNS_MAX);
    else if (filter->busy_turns > 0)
        filter->busy_turns--;
    if (filter->busy_turns == BUSY_TURNS && !filter->pipe_enlarged && filter->fd >= 0) {
        filter->pipe_enlarged = true;
        /* EPERM: the user's share is used up, ignoring. */
        (void)fcntl(filter->fd, F_SETPIPE_SZ, PIPE_SIZE);
    }
}

static void read_failed(struct filter *filter, int result)
{
    struct mandor_err err;

    (void)err_set(&err, result, FAULT_HOST, "read the job's output");
    fail(filter, result, &err);
}

/* One read.  Returns the bytes it took; 0 when there is no more to do in this turn. */
static size_t read_once(struct filter *filter, size_t budget)
{
    ssize_t room = make_room(filter, 0);
    if (room < 0)
        read_failed(filter, (int)room);
    if (room <= 0)
        return 0;

    size_t want = MIN((size_t)room, budget);
    ssize_t n = ring_fill(filter->ring, filter->fd, want);
    if (n > 0) {
        take(filter, (size_t)n);
        /* A short read emptied the pipe.  Looking again is for those who wait for the end of file. */
        filter->dry = (size_t)n < want && !filter->draining && !filter->finishing;
        return (size_t)n;
    }
    filter->dry = true;
    if (n == 0 || (n == -EAGAIN && filter->finishing))
        end_source(filter);
    else if (n != -EAGAIN)
        read_failed(filter, (int)n);
    return 0;
}

static void read_turn(struct filter *filter)
{
    size_t total = 0, n;

    if (!may_read(filter))
        return;
    do {
        n = read_once(filter, FILTER_TURN_MAX - total);
        total += n;
        if (filter->finishing && filter->finish_left <= 0)
            end_source(filter);
    } while (n > 0 && total < FILTER_TURN_MAX && !filter->dry && may_read(filter));
    if (n > 0 || total > 0)
        note_busy(filter, total);
}

/* ---- to the sink ---- */

static void turn_end(struct filter *filter);

static void on_written(void *arg, int result, const struct mandor_err *err)
{
    struct filter *filter = arg;
    OBJ_CHECK(filter, FILTER_MAGIC);

    filter->writing = false;
    if (filter->closing) {
        maybe_free(filter);
        return;
    }
    if (result < 0 && !filter->dead) /* dead: it came back after it had been given up */
        fail_sink(filter, result, err);
    else
        ring_consume(filter->ring, filter->write_len);
    turn_end(filter);
}

static void start_write(struct filter *filter)
{
    filter->write_len = ring_used(filter->ring);
    filter->writing = true;
    filter->waiting_since_ms = clock_mono_ms();
    metric_observe(METRIC_ring_fill_bytes, (int64_t)filter->write_len);
    int n = ring_oldest(filter->ring, filter->write_len, filter->iov);
    sink_write(filter->sink, filter->iov, n, filter->hash, on_written, filter);
}

static void run_pump(struct work *work)
{
    pump_slice(&CONTAINER_OF(work, struct filter, work)->pump);
}

static void pump_write_failed(struct filter *filter)
{
    const char *target = sink_target_text(filter->sink);
    struct mandor_err err;

    (void)err_set(&err, filter->pump.error, FAULT_HOST, "write output file '%s'",
                  target == NULL ? "/dev/null" : target);
    fail_sink(filter, filter->pump.error, &err);
}

static void pump_result(struct filter *filter)
{
    struct mandor_err err;

    switch (filter->pump.end) {
    case PUMP_MORE:
        break;
    case PUMP_EMPTY:
        filter->dry = true;
        break;
    case PUMP_EOF:
        end_source(filter);
        break;
    case PUMP_OVER:
        fail(filter, over_max(filter, &err), &err);
        break;
    case PUMP_FRAME:
        fail(filter, framer_error(&filter->framer, &err), &err);
        break;
    case PUMP_READ_FAILED:
        read_failed(filter, filter->pump.error);
        break;
    case PUMP_WRITE_FAILED:
        pump_write_failed(filter);
        break;
    case PUMP_NO_SPLICE:
        filter->no_splice = true;
        filter->dry = true;
        break;
    }
}

static void join(struct filter *filter, struct follower *follower)
{
    size_t len;
    const void *tail = capture_bytes(&filter->capture, &len);

    list_push_back(&filter->followers, &follower->node);
    if (len > 0)
        follower->on_bytes(follower, tail, len);
}

static int64_t fionread(int fd)
{
    int bytes = 0;

    return ioctl(fd, FIONREAD, &bytes) < 0 ? INT64_MAX : bytes;
}

static void after_pump(struct work *work)
{
    struct filter *filter = CONTAINER_OF(work, struct filter, work);
    struct pump *pump = &filter->pump;
    OBJ_CHECK(filter, FILTER_MAGIC);

    filter->pumping = false;
    int64_t took_ms = clock_mono_ms() - filter->waiting_since_ms;
    if (took_ms >= STALL_MS) { /* the disk, or the line before it, held the job up */
        filter->stats.pauses++;
        filter->stats.paused_ms += took_ms;
    }
    sink_spliced(filter->sink, pump->kept, pump->end == PUMP_WRITE_FAILED ? pump->error : 0);
    if (filter->closing || filter->source_ended) { /* it was given up, or failed, meanwhile */
        close_pipe(filter);
        if (filter->closing)
            maybe_free(filter);
        else
            turn_end(filter);
        return;
    }
    if (pump->bytes > 0) {
        count(filter, pump->bytes, pump->kept);
        filter->stats.spliced |= pump->splice;
    }
    for (int i = 0; i < 2 && filter->options.capture; i++)
        capture_add(&filter->capture, pump->tail[i].bytes, pump->tail[i].len);
    if (filter->finishing)
        filter->finish_left = fionread(filter->fd);
    pump_result(filter);
    if (pump->end == PUMP_MORE || pump->bytes >= (int64_t)BUSY_BYTES)
        note_busy(filter, BUSY_BYTES);
    else
        note_busy(filter, (size_t)pump->bytes);
    for (struct list *node; (node = list_pop_front(&filter->joining)) != NULL;)
        join(filter, LIST_ENTRY(node, struct follower, node));
    turn_end(filter);
}

static void start_pump(struct filter *filter)
{
    struct pump *pump = &filter->pump;
    uv_loop_t *loop = filter_pool_loop(filter->pool);
    uint64_t device = sink_device(filter->sink);
    bool splice = splices(filter);

    if (!splice && filter->ring != NULL && ring_capacity(filter->ring) < FILTER_HIGH) {
        filter_pool_put(filter->pool, filter->ring);
        filter->ring = NULL;
    }
    if (!splice && filter->ring == NULL &&
        (filter->ring = filter_pool_ring(filter->pool, FILTER_HIGH)) == NULL) {
        read_failed(filter, -ENOMEM);
        return;
    }
    *pump = (struct pump){
        .from = filter->fd,
        .to = splice ? sink_splice_fd(filter->sink) : sink_write_fd(filter->sink),
        .splice = splice,
        .hash = filter->hash,
        .framer = filter->options.frame == FRAME_RAW ? NULL : &filter->framer,
        .memory = splice ? NULL : ring_scratch(filter->ring),
        .memory_len = FILTER_HIGH,
        .keep_max = keep_max(filter),
        .discard = filter->options.output_policy == OUTPUT_DISCARD,
        .tail_wanted = filter->options.capture,
        .patient = filter->busy_turns >= BUSY_TURNS && !filter->draining && work_free(loop, device),
    };
    filter->pumping = true;
    filter->waiting_since_ms = clock_mono_ms();
    sink_lend(filter->sink);
    work_submit(loop, &filter->work, device, run_pump, after_pump);
}

/* ---- what may happen next ---- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct filter *filter = CONTAINER_OF(poll, struct filter, poll);
    OBJ_CHECK(filter, FILTER_MAGIC);

    filter->dry = false; /* an error too: the read will name it */
    filter_pool_wake(filter->pool, &filter->turn);
}

static void update_pause(struct filter *filter)
{
    size_t fill = used(filter);

    if (filter->paused && fill <= MIN(FILTER_LOW, high_watermark(filter) / 2))
        resume(filter);
    if (!filter->paused && !filter->source_ended && filter->source == SOURCE_PIPE && fill > 0 &&
        make_room(filter, 0) == 0) {
        filter->paused = true;
        filter->paused_at_ns = uv_hrtime();
        filter->stats.pauses++;
        metric_add(METRIC_stream_pauses, 1);
    }
}

/* Poll exactly while a byte that arrives could be used.  uv_poll_stop() takes the pipe out of epoll at once, so that a hang-up
 * behind a full ring does not spin (R51). */
static void update_poll(struct filter *filter)
{
    bool want = filter->poll_open && !filter->paused && !filter->pumping && !filter->source_ended &&
                !(wants_pump(filter) && filter->writing) &&
                (filter->sink_ready || !may_splice(filter));
    if (want && filter->finishing) {
        wake(filter); /* a pipe that an outsider holds open, and empty, never polls readable */
        want = false;
    }
    if (want == filter->polling)
        return;
    filter->polling = want;
    if (want) {
        filter->quiet_since_ms = clock_mono_ms();
        (void)uv_poll_start(&filter->poll, UV_READABLE, on_poll); /* fails when closing only */
    } else {
        (void)uv_poll_stop(&filter->poll);
    }
}

static void on_timer(uv_timer_t *timer);

static int64_t sink_deadline(const struct filter *filter)
{
    bool waiting = in_flight(filter) || !filter->sink_ready;

    return filter->patience_ms > 0 && waiting && !filter->dead
               ? filter->waiting_since_ms + filter->patience_ms
               : INT64_MAX;
}

static int64_t drain_deadline(const struct filter *filter)
{
    if (!filter->draining || filter->drained_due || filter->on_drained == NULL)
        return INT64_MAX;
    int64_t cap = filter->drain_since_ms + filter->drain_cap_ms;
    return filter->polling ? MIN(cap, filter->quiet_since_ms + filter->drain_idle_ms) : cap;
}

/* A timer that fires too early looks again and is set anew: cheaper than moving it at every write. */
static void update_timer(struct filter *filter)
{
    int64_t due = MIN(sink_deadline(filter), drain_deadline(filter));
    bool active = uv_is_active((uv_handle_t *)&filter->timer);

    if (due == INT64_MAX) {
        if (active)
            (void)uv_timer_stop(&filter->timer);
    } else if (!active || due < filter->timer_due_ms) {
        filter->timer_due_ms = due;
        deadline_start(&filter->timer, on_timer, due - clock_mono_ms());
    }
}

static void advance(struct filter *filter)
{
    bool idle = filter->sink_ready && !in_flight(filter) && !filter->dead && !filter->ended;

    if (idle && used(filter) > 0)
        start_write(filter);
    else if (idle && !filter->dry && wants_pump(filter))
        start_pump(filter);
    if (!filter->dead)
        update_pause(filter);
    update_poll(filter);
    if (filter->source_ended && filter->sink_ready && !in_flight(filter) && used(filter) == 0)
        filter->ended_due = true;
    if (filter->ring != NULL && !in_flight(filter) && (used(filter) == 0 || filter->dead)) {
        filter_pool_put(filter->pool, filter->ring);
        filter->ring = NULL;
    }
    update_timer(filter);
}

/* ---- telling the owner ---- */

static void end_followers(struct filter *filter)
{
    list_splice_back(&filter->followers, &filter->joining);
    for (struct list *node; (node = list_pop_front(&filter->followers)) != NULL;) {
        struct follower *follower = LIST_ENTRY(node, struct follower, node);
        follower->on_end(follower);
    }
}

static void notify_progress(struct filter *filter)
{
    if (!filter->framer.progress_new || filter->pumping)
        return;
    filter->framer.progress_new = false;
    if (filter->events.on_progress != NULL)
        filter->events.on_progress(filter->arg, filter->framer.progress,
                                   filter->framer.progress_len);
}

/* Each callback may close the filter; its memory is there until its handles have closed, which is later. */
static void notify(struct filter *filter)
{
    if (filter->activity && !filter->closing) {
        filter->activity = false;
        if (filter->events.on_activity != NULL)
            filter->events.on_activity(filter->arg);
    }
    if (!filter->closing)
        notify_progress(filter);
    if (!filter->closing && filter->feed_refused && used(filter) <= FILTER_LOW) {
        filter->feed_refused = false;
        if (filter->on_room != NULL)
            filter->on_room(filter->arg);
    }
    if (!filter->closing && filter->drained_due && filter->on_drained != NULL) {
        void (*on_drained)(void *arg) = STEAL(filter->on_drained);
        on_drained(filter->arg);
    }
    if (!filter->closing && filter->ended_due) {
        bool first = !filter->ended;
        filter->ended = true;
        end_followers(filter);
        if (first && !filter->closing)
            filter->events.on_ended(filter->arg, filter->result,
                                    filter->result < 0 ? &filter->err : NULL);
    }
}

static void turn_end(struct filter *filter)
{
    advance(filter);
    notify(filter);
}

void filter_serve(struct list *node)
{
    struct filter *filter = CONTAINER_OF(node, struct filter, turn);
    OBJ_CHECK(filter, FILTER_MAGIC);

    read_turn(filter);
    turn_end(filter);
}

static void on_timer(uv_timer_t *timer)
{
    struct filter *filter = CONTAINER_OF(timer, struct filter, timer);
    struct mandor_err err;
    int64_t now = clock_mono_ms();
    OBJ_CHECK(filter, FILTER_MAGIC);

    if (now >= sink_deadline(filter)) {
        (void)err_set(&err, -ETIMEDOUT, FAULT_REMOTE,
                      "sink '%s' took no byte for %" PRId64 " ms (%s)", sink_kind(filter->sink),
                      filter->patience_ms,
                      filter->hurried ? "the job was stopped" : "sink_timeout");
        sink_give_up(filter->sink);
        fail_sink(filter, -ETIMEDOUT, &err);
    }
    if (now >= drain_deadline(filter))
        filter->drained_due = true;
    turn_end(filter);
}

/* ---- the owner's calls ---- */

int filter_new(struct filter_pool *pool, const struct filter_options *options, struct sink *sink,
               const struct filter_events *events, void *arg, struct filter **ret)
{
    struct filter *filter = calloc(1, sizeof *filter);
    if (filter == NULL)
        return -ENOMEM;
    if (options->checksum) {
        filter->hash = XXH3_createState();
        if (filter->hash == NULL) {
            free(filter);
            return -ENOMEM;
        }
        (void)XXH3_64bits_reset(filter->hash);
    }

    filter->magic = FILTER_MAGIC;
    filter->pool = filter_pool_ref(pool);
    filter->options = *options;
    filter->sink = sink;
    filter->events = *events;
    filter->arg = arg;
    filter->fd = -1;
    filter->dry = true;
    list_init(&filter->turn);
    list_init(&filter->followers);
    list_init(&filter->joining);
    framer_init(&filter->framer, options->frame, options->frame_max);
    capture_init(&filter->capture, FILTER_CAPTURE);
    (void)uv_timer_init(filter_pool_loop(pool), &filter->timer);
    filter->handles = 1;
    filter->waiting_since_ms = clock_mono_ms();
    filter->patience_ms = options->sink_timeout_ms;
    update_timer(filter);
    *ret = filter;
    return 0;
}

int filter_adopt_pipe(struct filter *filter, int adopt_fd)
{
    SCOPED_FD fd = adopt_fd;
    OBJ_CHECK(filter, FILTER_MAGIC);
    BUG_ON(filter->source != SOURCE_NONE || filter->closing);

    int r = uv_poll_init(filter_pool_loop(filter->pool), &filter->poll, fd); /* sets O_NONBLOCK */
    if (r < 0)
        return r;

    filter->source = SOURCE_PIPE;
    filter->fd = STEAL_FD(fd);
    filter->poll_open = true;
    filter->handles++;
    update_poll(filter);
    return 0;
}

size_t filter_feed(struct filter *filter, const void *bytes, size_t len)
{
    size_t done = 0;
    OBJ_CHECK(filter, FILTER_MAGIC);
    BUG_ON(filter->source == SOURCE_PIPE);

    filter->source = SOURCE_FEED;
    while (done < len && !filter->source_ended) {
        ssize_t room = make_room(filter, len - done);
        if (room < 0)
            read_failed(filter, (int)room);
        if (room <= 0)
            break;
        size_t n =
            ring_put(filter->ring, (const char *)bytes + done, MIN((size_t)room, len - done));
        take(filter, n);
        done += n;
    }
    if (filter->source_ended) /* failed: the rest is dropped, on_ended says why */
        done = len;
    filter->feed_refused = done < len;
    advance(filter);
    wake(filter);
    return done;
}

void filter_feed_end(struct filter *filter)
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    BUG_ON(filter->source == SOURCE_PIPE);
    filter->source = SOURCE_FEED;
    end_source(filter);
    wake(filter);
}

void filter_on_room(struct filter *filter, void (*on_room)(void *arg))
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    filter->on_room = on_room;
}

void filter_sink_ready(struct filter *filter)
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    filter->sink_ready = true;
    if (filter->source == SOURCE_PIPE && splices(filter))
        filter->dry = true; /* poll decides */
    advance(filter);
    wake(filter);
}

void filter_fail(struct filter *filter, int result, const struct mandor_err *err)
{
    struct mandor_err unknown;
    OBJ_CHECK(filter, FILTER_MAGIC);

    if (err == NULL) {
        (void)err_set(&unknown, result, FAULT_HOST, "stream ended");
        err = &unknown;
    }
    fail_sink(filter, result, err);
    advance(filter);
    wake(filter);
}

void filter_hurry(struct filter *filter, int64_t ms)
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    if (filter->closing || (filter->patience_ms > 0 && filter->patience_ms <= ms))
        return;
    filter->patience_ms = ms;
    filter->hurried = true;
    update_timer(filter);
}

void filter_drain(struct filter *filter, int64_t idle_ms, int64_t cap_ms,
                  void (*on_drained)(void *arg))
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    BUG_ON(filter->draining);
    filter->draining = true;
    filter->on_drained = on_drained;
    filter->drain_idle_ms = idle_ms;
    filter->drain_cap_ms = cap_ms;
    filter->drain_since_ms = filter->quiet_since_ms = clock_mono_ms();
    filter->drained_due = filter->source_ended || filter->source == SOURCE_NONE;
    filter->dry = false; /* the end of file is probably there already */
    advance(filter);
    wake(filter);
}

void filter_finish(struct filter *filter)
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    filter->finishing = true;
    if (filter->pumping) /* after_pump() goes on */
        atomic_store_explicit(&filter->pump.stop, true, memory_order_relaxed);
    else if (filter->source == SOURCE_PIPE && !filter->source_ended)
        filter->finish_left = fionread(filter->fd);
    else
        end_source(filter);
    advance(filter);
    wake(filter);
}

void filter_follow(struct filter *filter, struct follower *follower)
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    if (filter->pumping) { /* the slice must end first: it holds the newest bytes */
        list_push_back(&filter->joining, &follower->node);
        atomic_store_explicit(&filter->pump.stop, true, memory_order_relaxed);
        return;
    }
    join(filter, follower);
    wake(filter);
}

void filter_unfollow(struct follower *follower)
{
    list_remove(&follower->node);
}

void filter_stats(struct filter *filter, struct filter_stats *ret)
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    *ret = filter->stats;
    ret->frames = filter->pumping ? filter->stats.frames : filter->framer.frames;
    filter->stats.frames = ret->frames;
    if (filter->paused)
        ret->paused_ms += (int64_t)((uv_hrtime() - filter->paused_at_ns) / 1000000);
    ret->has_xxh3 = filter->hash != NULL && filter->ended_due && !filter->dead;
    ret->xxh3 = ret->has_xxh3 ? XXH3_64bits_digest(filter->hash) : 0;
    ret->tail = capture_bytes(&filter->capture, &ret->tail_len);
}

bool filter_paused(const struct filter *filter)
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    return filter->paused ||
           (in_flight(filter) && clock_mono_ms() - filter->waiting_since_ms >= STALL_MS);
}

void filter_close(struct filter *filter, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(filter, FILTER_MAGIC);
    BUG_ON(filter->closing);
    filter->closing = true;
    filter->on_closed = on_closed;
    filter->closed_arg = arg;
    filter->source_ended = true;
    list_remove(&filter->turn);
    close_pipe(filter);
    uv_close((uv_handle_t *)&filter->timer, on_timer_closed);
    end_followers(filter);
}

/* attempt.c - contract in attempt.h; the moves are in attempt_moves.def. */
#include "worker/attempt.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/units.h"
#include "job/record.h"
#include "sink/sink.h"
#include "worker/progress.h"
#include "worker/scheduler.h"

#define ATTEMPT_MAGIC    0x61747470u
#define BACKOFF_FIRST_MS 50
#define BACKOFF_LAST_MS  2000
#define COMMIT_BUDGET_MS 10000
#define STOP_WAIT_MS     5000 /* for what is committed on every outcome, once the job was stopped */

/* ---- the state machine ---- */

static const struct {
    enum attempt_state from;
    enum attempt_event event;
    enum attempt_state to;
} moves[] = {
#define MOVE(from, event, to) { ATTEMPT_##from, ATTEMPT_##event, ATTEMPT_##to },
#include "worker/attempt_moves.def"
#undef MOVE
};

static const char *const state_names[ATTEMPT_STATES] = {
    [ATTEMPT_LEASED] = "LEASED",         [ATTEMPT_STARTING] = "STARTING",
    [ATTEMPT_RUNNING] = "RUNNING",       [ATTEMPT_SETTLING] = "SETTLING",
    [ATTEMPT_COMMITTING] = "COMMITTING", [ATTEMPT_DONE] = "DONE",
    [ATTEMPT_DROPPED] = "DROPPED",
};
static const char *const event_names[ATTEMPT_EVENTS] = {
    [ATTEMPT_START] = "START",         [ATTEMPT_STARTED] = "STARTED", [ATTEMPT_ENDED] = "ENDED",
    [ATTEMPT_COMMITTED] = "COMMITTED", [ATTEMPT_SETTLED] = "SETTLED", [ATTEMPT_LOST] = "LOST",
};

int attempt_next(enum attempt_state state, enum attempt_event event)
{
    for (size_t i = 0; i < ARRAY_LEN(moves); i++)
        if (moves[i].from == state && moves[i].event == event)
            return (int)moves[i].to;
    return -1;
}

const char *attempt_state_name(enum attempt_state state)
{
    return state_names[state];
}

bool attempt_holds_slot(const struct attempt *attempt)
{
    return attempt->state == ATTEMPT_STARTING || attempt->state == ATTEMPT_RUNNING ||
           attempt->state == ATTEMPT_COMMITTING;
}

static void finish(struct attempt *attempt);

/* Alone writes attempt->state, and keeps every count that follows from it. */
static void move(struct attempt *attempt, enum attempt_event event)
{
    struct worker *worker = attempt->worker;
    enum attempt_state from = attempt->state;
    bool held = attempt_holds_slot(attempt);
    int next = attempt_next(from, event);

    BUG_ON(next < 0);
    log_debug("attempt", "job %s: %s -%s-> %s", attempt->lease.id, state_names[from],
              event_names[event], state_names[next]);
    attempt->state = (enum attempt_state)next;
    worker->settling += (next == ATTEMPT_SETTLING);
    worker->settling -= (from == ATTEMPT_SETTLING);
    if (from == ATTEMPT_LEASED)
        scheduler_unleased(worker->scheduler, attempt);
    if (!held && attempt_holds_slot(attempt))
        scheduler_taken(worker->scheduler, attempt);
    if (held && !attempt_holds_slot(attempt))
        scheduler_freed(worker->scheduler, attempt);
    if (next == ATTEMPT_DONE || next == ATTEMPT_DROPPED)
        finish(attempt);
}

void attempt_command(const struct attempt *attempt, char *text, size_t size)
{
    size_t used = 0;

    if (attempt->spec != NULL && attempt->spec->kind == SPEC_POOL) {
        (void)snprintf(text, size, "pool:%s", attempt->spec->pool);
        return;
    }
    for (size_t i = 0; attempt->spec != NULL && i < attempt->spec->argc && used + 2 < size; i++) {
        if (i > 0)
            text[used++] = ' ';
        for (const char *p = attempt->spec->argv[i].bytes; *p != '\0' && used + 1 < size; p++)
            text[used++] = (unsigned char)*p < ' ' || *p == 127 ? '?' : *p;
    }
    text[used] = '\0';
}

/* ---- requests to the broker, repeated while they fail for a passing reason ---- */

static void submit(struct attempt *attempt)
{
    attempt->req_busy = true;
    attempt->asked_boot_ms = clock_boot_ms();
    broker_submit(attempt->source->broker, &attempt->req);
}

static void on_backoff(uv_timer_t *timer)
{
    submit(timer->data);
}

/* The result is kept and the request repeated until the broker takes it (R64); renewals decide when it is too late. */
static void retry_later(struct attempt *attempt)
{
    struct worker *worker = attempt->worker;

    log_event(LOG_WARN, attempt->lease.id, attempt->lease.attempt,
              "%s, trying again in %" PRId64 " ms", attempt->req.err.msg, attempt->backoff_ms);
    if (!attempt->timer_open) {
        (void)uv_timer_init(&worker->loop, &attempt->timer);
        attempt->timer.data = attempt;
        attempt->timer_open = true;
    }
    (void)uv_timer_start(&attempt->timer, on_backoff, (uint64_t)attempt->backoff_ms, 0);
    attempt->backoff_ms = MIN(attempt->backoff_ms * 2, (int64_t)BACKOFF_LAST_MS);
}

static void ask(struct attempt *attempt, enum broker_op op, void (*done)(struct broker_req *req))
{
    attempt->req = (struct broker_req){ .op = op, .done = done, .data = attempt };
    attempt->backoff_ms = BACKOFF_FIRST_MS;
}

static struct attempt *answered(struct broker_req *req)
{
    struct attempt *attempt = req->data;

    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    attempt->req_busy = false;
    return attempt;
}

static void lost(struct attempt *attempt, const char *why)
{
    metric_add(METRIC_jobs_lost_lease, 1);
    log_event(LOG_WARN, attempt->lease.id, attempt->lease.attempt, "lease lost: %s", why);
    move(attempt, ATTEMPT_LOST);
}

/* ---- life ---- */

/* A job may be leased again before the answer to the settling of its last attempt is here: that one waits for the disk, a lease
 * does not.  Then the new attempt is the one that its id means. */
static void supersede(struct source *source, const char *id)
{
    const struct attempt *before = hash_gets(source->by_id, id);

    if (before != NULL && before->state == ATTEMPT_SETTLING)
        (void)hash_takes(source->by_id, id);
}

bool attempt_is_here(const struct source *source, const struct lease *lease)
{
    struct attempt *before = hash_gets(source->by_id, lease->id);

    if (before == NULL)
        return false;
    /* Of a number that was given out twice the end that is under way is the end. */
    bool twice = lease->started && before->lease.attempt == lease->attempt;
    if (before->state == ATTEMPT_SETTLING && !twice)
        return false;
    if (before->lease.attempt == lease->attempt)
        log_event(LOG_WARN, lease->id, lease->attempt,
                  "leased once more while it is here: the queue has forgotten that it was");
    else
        log_event(LOG_WARN, lease->id, lease->attempt,
                  "attempt %" PRId64 " has not ended here: this one waits until %s",
                  before->lease.attempt, lease->started ? "its lease expires" : "it has");
    if (!lease->started) {
        before->leased_again = true;
        before->leased_as = lease->attempt;
    }
    return true;
}

struct hand_back {
    struct broker_req req;
    struct lease_ref ref;
    struct source *source;
    char *id;
};

static void on_handed_back(struct broker_req *req)
{
    struct hand_back *back = req->data;
    struct source *source = back->source;

    free(back->id);
    free(back);
    if (!source->worker->closing)
        scheduler_wake(source->worker->scheduler, source);
    worker_check_done(source->worker);
}

/* What was leased while it was here: now it may run.  Without memory its lease has to expire. */
static void hand_back(const struct attempt *attempt)
{
    struct hand_back *back = calloc(1, sizeof *back);

    if (back == NULL || (back->id = strdup(attempt->lease.id)) == NULL) {
        free(back);
        return;
    }
    back->source = attempt->source;
    back->ref = (struct lease_ref){ .id = back->id, .attempt = attempt->leased_as };
    back->req = (struct broker_req){ .op = BROKER_GIVE_BACK, .done = on_handed_back, .data = back };
    back->req.give_back.refs = &back->ref;
    back->req.give_back.count = 1;
    broker_submit(back->source->broker, &back->req);
}

struct attempt *attempt_new(struct source *source, struct lease *adopt)
{
    struct attempt *attempt = calloc(1, sizeof *attempt);
    struct worker *worker = source->worker;

    supersede(source, adopt->id);
    if (attempt == NULL || hash_puts(source->by_id, adopt->id, attempt) < 0) {
        free(attempt);
        lease_done(adopt);
        return NULL;
    }
    attempt->magic = ATTEMPT_MAGIC;
    attempt->worker = worker;
    attempt->source = source;
    attempt->lease = *adopt;
    *adopt = (struct lease){ 0 };
    attempt->leased_mono_ms = clock_mono_ms();
    list_init(&attempt->queue_node);
    list_push_back(&worker->attempts, &attempt->node);
    return attempt;
}

static void free_attempt(struct attempt *attempt)
{
    struct worker *worker = attempt->worker;

    lease_done(&attempt->lease);
    attempt->spec = spec_free(attempt->spec);
    json_decref(attempt->again);
    buf_done(&attempt->record);
    OBJ_FINI(attempt);
    free(attempt);
    worker_check_done(worker);
}

static void on_part_closed(void *arg)
{
    struct attempt *attempt = arg;

    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    if (--attempt->closing == 0)
        free_attempt(attempt);
}

void attempt_phase_done(struct attempt *attempt)
{
    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    if (attempt->state == ATTEMPT_DONE || attempt->state == ATTEMPT_DROPPED)
        on_part_closed(attempt);
}

static void on_timer_closed(uv_handle_t *handle)
{
    on_part_closed(handle->data);
}

/* DONE or DROPPED: nothing is asked of anybody any more. */
static void finish(struct attempt *attempt)
{
    list_remove(&attempt->node);
    if (hash_gets(attempt->source->by_id, attempt->lease.id) == attempt)
        (void)hash_takes(attempt->source->by_id, attempt->lease.id);
    if (attempt->leased_again)
        hand_back(attempt);

    attempt->closing =
        1u + (attempt->execution != NULL) + attempt->timer_open + attempt->phase_busy;
    if (attempt->timer_open)
        uv_close((uv_handle_t *)&attempt->timer, on_timer_closed);
    if (attempt->execution != NULL)
        execution_close(attempt->execution, on_part_closed, attempt);
    outputs_close(&attempt->outputs);
    on_part_closed(attempt);
}

void attempt_drop(struct attempt *attempt)
{
    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    move(attempt, ATTEMPT_LOST);
}

/* ---- settle ---- */

static void count_outcome(enum outcome outcome, enum job_state state)
{
    switch (state) {
    case JOB_COMPLETED:
        metric_add(METRIC_jobs_completed, 1);
        break;
    case JOB_FAILED:
        metric_add(METRIC_jobs_failed, 1);
        break;
    case JOB_CANCELLED:
        metric_add(METRIC_jobs_cancelled, 1);
        break;
    default:
        metric_add(outcome == OUTCOME_RETRY ? METRIC_jobs_retried : METRIC_jobs_put_back, 1);
    }
}

static void on_settled(struct broker_req *req)
{
    struct attempt *attempt = answered(req);
    char text[VERDICT_TEXT_SIZE];

    if (req->status == -ESTALE) {
        lost(attempt, req->err.msg[0] != '\0' ? req->err.msg
                                              : "the queue had given the job to somebody else");
        return;
    }
    if (req->status < 0) {
        retry_later(attempt);
        return;
    }
    count_outcome(verdict_outcome(&attempt->verdict, attempt->spec), attempt->plan.state);
    progress_settled(attempt->worker->progress, attempt);
    log_event(LOG_INFO, attempt->lease.id, attempt->lease.attempt, "%s: %s",
              job_state_name(attempt->plan.state), verdict_text(&attempt->verdict, text));
    if (attempt->plan.state == JOB_DELAYED)
        scheduler_due(attempt->worker->scheduler, attempt->plan.delay_ms);
    else if (attempt->plan.state == JOB_WAITING || attempt->worker->setup.drain)
        scheduler_look(attempt->worker->scheduler, attempt->source);
    move(attempt, ATTEMPT_SETTLED);
}

/* Without memory the job is settled all the same, and its record says less. */
static const char *make_record(struct attempt *attempt)
{
    struct record_stream out, err;
    SCOPED_JSON *limits = NULL;
    struct record_attempt record = { .verdict = &attempt->verdict };

    if (attempt->outputs.out.sink != NULL && attempt->outputs.err.sink != NULL) {
        outputs_record(&attempt->outputs, false, &out);
        outputs_record(&attempt->outputs, true, &err);
        record.out = &out;
        record.err = &err;
    }
    if (attempt->execution != NULL) {
        limits = execution_limits_enforced(attempt->execution);
        record.containment = execution_containment(attempt->execution);
        record.limits_enforced = limits;
        record.result = execution_result(attempt->execution);
        record.error = execution_error(attempt->execution);
        record.progress = execution_progress(attempt->execution);
    }
    buf_clear(&attempt->record);
    if (record_attempt_text(&record, &attempt->record) == 0)
        return attempt->record.data;
    log_event(LOG_WARN, attempt->lease.id, attempt->lease.attempt, "no memory for its record");
    return NULL;
}

static void retention(struct attempt *attempt, enum job_state state, int64_t *ret_ms,
                      int64_t *ret_count)
{
    const struct config_queue *queue = config_queue(attempt->worker->config, attempt->lease.queue);

    *ret_ms = state == JOB_COMPLETED ? queue->keep_completed_ms : queue->keep_failed_ms;
    *ret_count = state == JOB_COMPLETED ? queue->keep_completed_count : queue->keep_failed_count;
}

static void settle(struct attempt *attempt)
{
    ask(attempt, BROKER_SETTLE, on_settled);
    attempt->finished_ms = clock_wall_ms();
    attempt->req.settle.id = attempt->lease.id;
    attempt->req.settle.queue = attempt->lease.queue;
    attempt->req.settle.attempt = attempt->lease.attempt;
    attempt->req.settle.plan = attempt->plan;
    attempt->req.settle.record = make_record(attempt);
    attempt->req.settle.verdict = &attempt->verdict;
    attempt->req.settle.again = attempt->verdict.cause == CAUSE_AGAIN ? attempt->again : NULL;
    if (attempt->execution != NULL)
        attempt->req.settle.result = execution_result(attempt->execution);
    attempt->req.settle.started_ms = attempt->started_ms;
    attempt->req.settle.finished_ms = attempt->finished_ms;
    if (attempt->outputs.out.committed)
        attempt->req.settle.out =
            sink_inline(attempt->outputs.out.sink, &attempt->req.settle.out_len);
    if (attempt->outputs.err.committed)
        attempt->req.settle.errout =
            sink_inline(attempt->outputs.err.sink, &attempt->req.settle.errout_len);
    retention(attempt, attempt->plan.state, &attempt->req.settle.keep_ms,
              &attempt->req.settle.keep_count);
    submit(attempt);
    move(attempt, ATTEMPT_COMMITTED);
}

/* ---- commit ---- */

/* "200ms", or {"delay" or "rate_limit": "200ms"}; a number is milliseconds.  What says no time means at once. */
static int64_t again_ms(const json_t *again)
{
    const json_t *when = again;
    int64_t ms = 0;

    if (json_is_object(again)) {
        when = json_object_get(again, "delay");
        if (when == NULL)
            when = json_object_get(again, "rate_limit");
    }
    if (json_is_integer(when))
        ms = json_integer_value(when);
    else if (json_is_string(when) && units_parse_duration(json_string_value(when), &ms, NULL) < 0)
        ms = 0;
    return MIN(MAX(ms, INT64_C(0)), INT64_C(36500) * 86400000);
}

static void plan(struct attempt *attempt)
{
    enum outcome outcome = verdict_outcome(&attempt->verdict, attempt->spec);

    /* A lease that ran out here may have been taken by nobody: then the job goes back, or it would stay ours for ever.  When
     * somebody has it, the fence refuses this and nothing is written. */
    if (outcome == OUTCOME_NOTHING)
        outcome = OUTCOME_PUT_BACK;
    attempt->plan = retry_plan(outcome, attempt->spec, attempt->lease.attempts_used,
                               attempt->lease.put_backs, random_01(&attempt->worker->random));
    if (attempt->verdict.cause != CAUSE_AGAIN)
        return;
    attempt->plan.delay_ms = again_ms(attempt->again);
    attempt->plan.state = attempt->plan.delay_ms > 0 ? JOB_DELAYED : JOB_WAITING;
}

static void on_outputs_ended(void *arg)
{
    struct attempt *attempt = arg;

    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    attempt->commit_until_boot_ms = 0;
    attempt->outputs_ending = false;
    plan(attempt);
    settle(attempt);
}

static void end_outputs(struct attempt *attempt, int64_t until_boot_ms)
{
    if (until_boot_ms != SINK_NO_DEADLINE)
        attempt->commit_until_boot_ms = until_boot_ms;
    attempt->outputs_ending = true;
    outputs_end(&attempt->outputs, &attempt->verdict, until_boot_ms, on_outputs_ended, attempt);
}

static void expire(struct attempt *attempt)
{
    attempt->commit_until_boot_ms = 0;
    log_event(LOG_WARN, attempt->lease.id, attempt->lease.attempt,
              "the lease ended before its output was published");
    outputs_expire(&attempt->outputs);
}

void attempt_renewed(struct attempt *attempt, int64_t until_boot_ms)
{
    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    if (attempt->commit_until_boot_ms == 0)
        return;
    attempt->commit_until_boot_ms = MAX(attempt->commit_until_boot_ms, until_boot_ms);
    outputs_extend(&attempt->outputs, attempt->commit_until_boot_ms);
}

/* Its processes have ended, its sinks have not. */
static void stop_committing(struct attempt *attempt, enum cause cause)
{
    if (attempt->commit_stop_ms == 0) {
        attempt->commit_stop_ms = clock_mono_ms() + STOP_WAIT_MS;
        attempt->stop_cause = cause;
    }
    if (cause == CAUSE_CANCELLED && attempt->outputs_ending)
        outputs_stop(&attempt->outputs, cause, false);
    else if (cause == CAUSE_CANCELLED && attempt->verdict.cause != CAUSE_LOST_LEASE)
        attempt->verdict.cause = cause;
}

void attempt_check_expiry(struct attempt *attempt)
{
    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    if (attempt->outputs_ending && attempt->commit_stop_ms != 0 &&
        clock_mono_ms() >= attempt->commit_stop_ms)
        outputs_stop(&attempt->outputs, attempt->stop_cause, true);
    if (attempt->commit_until_boot_ms != 0 && clock_boot_ms() >= attempt->commit_until_boot_ms)
        expire(attempt);
}

/* A commit does not begin with less of the lease left.  lease_ms: its broker's, which may have one of its own. */
static int64_t commit_budget(int64_t lease_ms)
{
    return MIN((int64_t)COMMIT_BUDGET_MS, lease_ms / 3);
}

static void on_begin_settle(struct broker_req *req)
{
    struct attempt *attempt = answered(req);

    if (req->status == -ESTALE) {
        attempt->verdict.cause = CAUSE_LOST_LEASE; /* abort everything, write nothing */
        end_outputs(attempt, SINK_NO_DEADLINE);
        return;
    }
    int64_t until = attempt->asked_boot_ms + req->begin_settle.left_ms;
    if (req->status == 0 && until - clock_boot_ms() <= commit_budget(req->begin_settle.left_ms)) {
        req->status =
            err_set(&req->err, -EAGAIN, FAULT_HOST,
                    "too little of the lease was left for a commit when it was confirmed");
    }
    if (req->status < 0)
        retry_later(attempt);
    else
        end_outputs(attempt, until);
}

/* The fence stands before anything becomes visible outside of the record (I7). */
static void commit(struct attempt *attempt)
{
    if (!outputs_publish(&attempt->outputs, &attempt->verdict)) {
        end_outputs(attempt, SINK_NO_DEADLINE);
        return;
    }
    ask(attempt, BROKER_BEGIN_SETTLE, on_begin_settle);
    attempt->req.begin_settle.id = attempt->lease.id;
    attempt->req.begin_settle.attempt = attempt->lease.attempt;
    submit(attempt);
}

static void ended(struct attempt *attempt)
{
    attempt->outputs.spec = attempt->spec;
    attempt->phase = "settling";
    move(attempt, ATTEMPT_ENDED);
    commit(attempt);
}

/* It never ran: a verdict of our own. */
static void end_unrun(struct attempt *attempt, enum cause cause, int code, const char *why)
{
    attempt->verdict = (struct verdict){ .cause = cause, .exit_code = -1 };
    if (cause == CAUSE_SPAWN) {
        attempt->verdict.stage = STAGE_PREPARE;
        attempt->verdict.spawn_errno = -code;
    }
    (void)snprintf(attempt->verdict.error, sizeof attempt->verdict.error, "%s", why);
    ended(attempt);
}

/* ---- the executor's events ---- */

static void on_running(void *arg, pid_t pid, const char *slot, const char *containment)
{
    struct attempt *attempt = arg;

    attempt->pid = pid;
    attempt->containment = containment;
    (void)snprintf(attempt->slot, sizeof attempt->slot, "%s", slot != NULL ? slot : "");
    attempt->phase = "running";
    worker_note_phases(attempt->worker);
}

static void on_phase(void *arg, const char *phase)
{
    struct attempt *attempt = arg;

    attempt->phase = phase;
    if (str_eq(phase, "kill_pending"))
        log_event(LOG_WARN, attempt->lease.id, attempt->lease.attempt,
                  "its processes do not die (uninterruptible); other jobs go on");
    worker_note_phases(attempt->worker);
}

static void on_noted(struct broker_req *req)
{
    free((void *)(uintptr_t)req->note.id);
    free((void *)(uintptr_t)req->note.value);
    free(req);
}

/* Tell the broker, where its other clients listen.  adopt_value: text of its own, NULL = out of memory. */
static void note(struct attempt *attempt, const char *kind, char *adopt_value)
{
    struct broker_req *req = adopt_value != NULL ? calloc(1, sizeof *req) : NULL;
    char *id = req != NULL ? strdup(attempt->lease.id) : NULL;

    if (id == NULL) {
        free(adopt_value);
        free(req);
        return;
    }
    *req = (struct broker_req){ .op = BROKER_NOTE, .done = on_noted };
    req->note.id = id;
    req->note.kind = kind;
    req->note.value = adopt_value;
    broker_submit(attempt->source->broker, req);
}

static void on_progress(void *arg, const json_t *progress)
{
    struct attempt *attempt = arg;
    if (broker_takes_notes(attempt->source->broker))
        note(attempt, "progress", json_text(progress));
}

static void on_again(void *arg, const json_t *when)
{
    struct attempt *attempt = arg;

    json_decref(attempt->again);
    attempt->again = json_incref((json_t *)(uintptr_t)when);
}

static void on_data(void *arg, const json_t *data)
{
    struct attempt *attempt = arg;
    if (broker_takes_notes(attempt->source->broker))
        note(attempt, "data", json_text(data));
}

static void on_log(void *arg, const char *text)
{
    struct attempt *attempt = arg;
    log_event(LOG_INFO, attempt->lease.id, attempt->lease.attempt, "job says: %s", text);
    if (broker_takes_notes(attempt->source->broker))
        note(attempt, "log", strdup(text));
}

static void on_ended(void *arg, const struct verdict *verdict)
{
    struct attempt *attempt = arg;

    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    attempt->verdict = *verdict;
    attempt->verdict.wall_ms = clock_mono_ms() - attempt->started_mono_ms;
    if (attempt->again != NULL && verdict->cause == CAUSE_EXIT && verdict->exit_code == 0)
        attempt->verdict.cause = CAUSE_AGAIN;
    ended(attempt);
}

/* ---- start ---- */

/* What the job is called where it comes from. */
static const char *own_id(const struct attempt *attempt)
{
    return attempt->lease.own_id != NULL ? attempt->lease.own_id : attempt->lease.id;
}

static int open_outputs(struct attempt *attempt, struct mandor_err *err)
{
    const struct worker_setup *setup = &attempt->worker->setup;
    char journal[4096];
    struct outputs_place place = {
        .id = attempt->lease.id,
        .own_id = own_id(attempt),
        .queue = attempt->lease.queue,
        .attempt = attempt->lease.attempt,
        .data_dir = attempt->source->data_dir, /* ids are the broker's */
        .journal_dir = journal,
        .filters = attempt->worker->env.filters,
    };

    (void)snprintf(journal, sizeof journal, "%s/journal/%s", setup->data_dir, setup->name);
    return outputs_open(&attempt->outputs, &attempt->worker->loop, attempt->spec, &place, err);
}

static int execute(struct attempt *attempt, struct mandor_err *err)
{
    static const struct execution_events events = { .on_running = on_running,
                                                    .on_phase = on_phase,
                                                    .on_log = on_log,
                                                    .on_progress = on_progress,
                                                    .on_data = on_data,
                                                    .on_again = on_again,
                                                    .on_ended = on_ended };
    struct execution_request request = {
        .env = &attempt->worker->env,
        .spec = attempt->spec,
        .id = own_id(attempt),
        .queue = attempt->lease.queue,
        .attempt = attempt->lease.attempt,
        .out = attempt->outputs.out.sink,
        .err = attempt->outputs.err.sink,
    };

    int r = executor_start(&request, &events, attempt, &attempt->execution, err);
    if (r == 0)
        outputs_attach(&attempt->outputs, attempt->execution);
    return r;
}

/* Data of another system's job: any JSON at all, as its producer wrote it. */
static int parse_bare(const char *text, json_t **ret, struct mandor_err *err)
{
    json_error_t why;

    *ret = json_load_foreign(text, strlen(text), &why);
    return *ret != NULL
               ? 0
               : err_set(err, -EINVAL, FAULT_JOB, "the job's data are no JSON: %s, byte %d",
                         why.text, why.position);
}

static int make_job(struct attempt *attempt, const struct config_queue *queue, json_t **ret,
                    struct mandor_err *err)
{
    const struct lease *lease = &attempt->lease;
    const struct binding binding = config_binding(attempt->worker->config, queue);
    const struct binding_place place = { .id = own_id(attempt),
                                         .queue = lease->queue,
                                         .name = lease->name,
                                         .data_text = lease->bare ? lease->spec_text : NULL };
    SCOPED_JSON *json = NULL;
    int r = lease->bare ? parse_bare(lease->spec_text, &json, err)
                        : json_parse(lease->spec_text, strlen(lease->spec_text), &json, err);

    if (r < 0)
        return r;
    return lease->bare ? binding_data(&binding, json, &place, ret, err)
                       : binding_job(&binding, json, attempt->source->shared, &place, ret, err);
}

static int parse_spec(struct attempt *attempt, struct mandor_err *err)
{
    const struct config_queue *queue = config_queue(attempt->worker->config, attempt->lease.queue);
    SCOPED_JSON *job = NULL;

    int r = make_job(attempt, queue, &job, err);
    if (r == 0)
        r = spec_from_json(job, queue->defaults, &attempt->spec, err);
    if (r == 0 && !attempt->lease.bare)
        r = broker_check_spec(attempt->source->broker, attempt->spec, err);
    if (r == 0 && attempt->lease.attempts > 0)
        attempt->spec->attempts = attempt->lease.attempts;
    return r;
}

/* A job whose text cannot be read (a broker's other client wrote it) fails with the reason, like a program that is missing.
 * What follows asks the job for its options, so it gets those of one that says nothing. */
static void invalid(struct attempt *attempt, const struct mandor_err *err)
{
    SCOPED_JSON *json = json_pack("{s:[s]}", "exec", "invalid");

    if (json == NULL || spec_from_json(json, NULL, &attempt->spec, NULL) < 0)
        BUG("the stand-in job must be valid");
    attempt->invalid = *err;
}

static void run(struct attempt *attempt)
{
    struct mandor_err err = { 0 };

    attempt->phase = "starting";
    attempt->started_ms = clock_wall_ms();
    attempt->started_mono_ms = clock_mono_ms();
    if (attempt->req.start.cancelled) {
        end_unrun(attempt, CAUSE_CANCELLED, 0, "cancelled before it ran");
        return;
    }
    if (attempt->stop_asked) {
        end_unrun(attempt, attempt->stop_cause, 0, "stopped before it ran");
        return;
    }
    if (attempt->invalid.code < 0) {
        end_unrun(attempt, CAUSE_SPAWN, attempt->invalid.code, attempt->invalid.msg);
        return;
    }
    if (open_outputs(attempt, &err) < 0) {
        end_unrun(attempt, CAUSE_SINK, err.code, err.msg);
        return;
    }
    if (execute(attempt, &err) < 0) {
        end_unrun(attempt, CAUSE_SPAWN, err.code, err.msg);
        return;
    }
    move(attempt, ATTEMPT_STARTED);
}

static void on_started(struct broker_req *req)
{
    struct attempt *attempt = answered(req);

    if (req->status == -ESTALE) {
        lost(attempt, "somebody else took the job before it was started");
        return;
    }
    if (req->status < 0) {
        retry_later(attempt);
        return;
    }
    attempt->lease.attempt = req->start.attempt;
    run(attempt);
}

static void take_slot(struct attempt *attempt)
{
    struct mandor_err err;

    if (parse_spec(attempt, &err) < 0)
        invalid(attempt, &err);
    move(attempt, ATTEMPT_START);
}

void attempt_run_started(struct attempt *attempt)
{
    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    take_slot(attempt);
    if (attempt->worker->stopping) {
        attempt->stop_asked = true;
        attempt->stop_cause = CAUSE_SHUTDOWN;
    }
    run(attempt);
}

void attempt_start(struct attempt *attempt)
{
    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    take_slot(attempt);
    ask(attempt, BROKER_START, on_started);
    attempt->req.start.id = attempt->lease.id;
    attempt->req.start.attempt = attempt->lease.attempt;
    attempt->req.start.attempts = attempt->invalid.code < 0 ? 0 : attempt->spec->attempts;
    submit(attempt);
}

void attempt_stop(struct attempt *attempt, enum cause cause, int64_t grace_ms, const char *why)
{
    OBJ_CHECK(attempt, ATTEMPT_MAGIC);
    if (attempt->state == ATTEMPT_RUNNING) {
        execution_stop(attempt->execution, cause, grace_ms, why);
    } else if (attempt->state == ATTEMPT_STARTING && !attempt->stop_asked) {
        attempt->stop_asked = true;
        attempt->stop_cause = cause;
    } else if (attempt->state == ATTEMPT_LEASED && cause == CAUSE_LOST_LEASE) {
        attempt_drop(attempt);
    } else if (attempt->commit_until_boot_ms != 0 && cause == CAUSE_LOST_LEASE) {
        expire(attempt);
    } else if (attempt->state == ATTEMPT_COMMITTING && cause != CAUSE_LOST_LEASE) {
        stop_committing(attempt, cause);
    }
}

/* bullmq_step.c - jobs leave a queue and others are taken, in one call of bullmq_step.lua. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "broker/bullmq.h"
#include "broker/lua_scripts.h"

#define OWN_TRIES       5 /* of an end that no request of the worker stands behind */
#define TAKEN_MS        60000
#define TAKEN_BYTES_MAX ((size_t)4 << 20)

/* ---- what is held ---- */

struct bullmq_held *bullmq_held_free(struct bullmq_held *held)
{
    if (held == NULL)
        return NULL;
    free(held->id);
    free(held->stack);
    free(held->record);
    bullmq_opts_done(&held->opts);
    free(held);
    return NULL;
}

void bullmq_end_free(struct bullmq_end *end)
{
    free(end->lease_id);
    free(end->id);
    free(end->value);
    free(end->stack);
    free(end->record);
    free(end);
}

static struct bullmq_held *let_go(struct bullmq *mq, const char *lease_id)
{
    return hash_takes(mq->held, lease_id);
}

/* ---- ends ---- */

static struct bullmq_end *new_end(const struct bullmq_held *held, const char *lease_id,
                                  const char *what)
{
    struct bullmq_end *end = calloc(1, sizeof *end);

    if (end == NULL)
        return NULL;
    end->queue = held->queue;
    end->what = what;
    end->attempt = held->attempt;
    end->doubtful = held->doubtful;
    end->attempts = held->opts.attempts;
    end->lifo = held->opts.lifo;
    end->keep = (struct bullmq_keep){ .count = -1, .limit = BULLMQ_KEEP_LIMIT };
    end->lease_id = strdup(lease_id);
    end->id = strdup(held->id);
    end->value = strdup("");
    end->stack = strdup("");
    end->record = strdup("");
    if (end->lease_id == NULL || end->id == NULL || end->value == NULL || end->stack == NULL ||
        end->record == NULL) {
        bullmq_end_free(end);
        return NULL;
    }
    return end;
}

static void replace(char **text, char *adopt)
{
    if (adopt == NULL)
        return;
    free(*text);
    *text = adopt;
}

static void push_end(struct bullmq_queue *queue, struct bullmq_end *end)
{
    list_push_back(&queue->ends, &end->node);
    queue->end_count++;
    bullmq_turn(queue->mq);
}

static struct bullmq_keep keep_of(const struct bullmq *mq, const struct bullmq_held *held,
                                  bool completed)
{
    const struct bullmq_keep *own = completed ? &held->opts.completed : &held->opts.failed;
    const struct bullmq_keep *worker = completed ? &mq->settings.completed : &mq->settings.failed;

    if (own->given)
        return *own;
    return worker->given ? *worker
                         : (struct bullmq_keep){ .count = -1, .limit = BULLMQ_KEEP_LIMIT };
}

/* The job failed in this attempt for `reason`: again, or for good. */
static void set_failure(struct bullmq *mq, const struct bullmq_held *held, struct bullmq_end *end,
                        const char *reason, const char *record, bool final)
{
    SCOPED_FREE char *trace = bullmq_trace(reason, record);
    int64_t made = held->made + 1;
    int64_t delay_ms = 0;

    replace(&end->value, strdup(reason));
    if (trace != NULL)
        replace(&end->stack, bullmq_stack(held->stack, trace, held->opts.stack_limit));
    final = final || made >= held->opts.attempts || held->last_try;
    if (!final && (delay_ms = bullmq_backoff_ms(&held->opts, made, random_01(&mq->random))) < 0) {
        SCOPED_BUF text = { 0 };
        final = true;
        if (buf_addf(&text, "%s (not tried again: this worker does not know backoff '%s')", reason,
                     held->opts.backoff_type) == 0)
            replace(&end->value, buf_steal(&text));
    }
    end->what = final ? "failed" : delay_ms > 0 ? "delay" : "retry";
    end->delay_ms = delay_ms;
    if (final)
        end->keep = keep_of(mq, held, false);
}

static void set_completed(struct bullmq *mq, const struct bullmq_held *held, struct bullmq_end *end,
                          const json_t *result)
{
    end->what = "completed";
    end->keep = keep_of(mq, held, true);
    replace(&end->value, result != NULL ? json_text(result) : strdup("null"));
}

/* A job that the worker gives up without blame goes back to the head of its line, or waits a little. */
static void set_put_back(struct bullmq_end *end, const struct retry_plan *plan, enum cause cause,
                         const json_t *again)
{
    const char *word = json_string_value(again);

    if (word != NULL && str_eq(word, "children")) {
        end->what = "children";
        return;
    }
    if (json_object_get(again, "rate_limit") != NULL) {
        end->what = "limit";
        end->delay_ms = plan->delay_ms;
        return;
    }
    bool wait = plan->state == JOB_DELAYED && plan->delay_ms > 0 && cause != CAUSE_SHUTDOWN;

    end->what = wait ? "delay" : "wait";
    end->delay_ms = plan->delay_ms;
}

static void set_record(struct bullmq *mq, const struct bullmq_held *held, struct bullmq_end *end,
                       const struct broker_req *req, bool put_back)
{
    SCOPED_JSON *before = bullmq_record_parse(held->record, strlen(held->record));
    bool kept = !str_eq(end->what, "completed") && !str_eq(end->what, "failed");

    if (!kept && end->keep.count == 0)
        return; /* it goes at once */
    struct bullmq_record record = {
        .worker = mq->worker,
        .attempt = held->attempt,
        .state = req->settle.plan.state,
        .started_ms = req->settle.started_ms,
        .finished_ms = req->settle.finished_ms,
        .put_backs = put_back ? bullmq_number(before, "put_backs", 0) + 1 : 0,
        .last = req->settle.record,
        .before = held->record,
        .out = req->settle.out,
        .errout = req->settle.errout,
        .out_len = req->settle.out_len,
        .errout_len = req->settle.errout_len,
    };
    replace(&end->record, bullmq_record_text(&record));
}

void bullmq_settle(struct bullmq *mq, struct broker_req *req)
{
    struct bullmq_held *held = hash_gets(mq->held, req->settle.id);
    struct retry_plan *plan = &req->settle.plan;

    if (held == NULL || held->lost || held->attempt != req->settle.attempt) {
        if (held != NULL && held->attempt == req->settle.attempt)
            bullmq_held_free(let_go(mq, req->settle.id));
        bullmq_answer(mq, req, -ESTALE);
        return;
    }
    struct bullmq_end *end = new_end(held, req->settle.id, "wait");
    if (end == NULL) {
        bullmq_answer(mq, req, err_set(&req->err, -ENOMEM, FAULT_HOST, "settle job %s", held->id));
        return;
    }
    end->req = req;
    const struct verdict *verdict = req->settle.verdict;
    bool again = plan->state == JOB_WAITING || plan->state == JOB_DELAYED;
    /* It ended otherwise meanwhile, and is not tried again. */
    bool cancelled = held->cancel && again;
    char reason[VERDICT_TEXT_SIZE];

    if (cancelled)
        *plan = (struct retry_plan){ .state = JOB_CANCELLED, .charged = true };
    again = again && !cancelled;
    bool put_back = again && !plan->charged;

    if (plan->state == JOB_COMPLETED)
        set_completed(mq, held, end, req->settle.result);
    else if (put_back)
        set_put_back(end, plan, verdict->cause, req->settle.again);
    else
        set_failure(mq, held, end, cancelled ? "cancelled" : verdict_text(verdict, reason),
                    req->settle.record, !again);
    set_record(mq, held, end, req, put_back);
    push_end(held->queue, end);
}

/* Fail it without running it. */
static void refuse(struct bullmq_queue *queue, struct bullmq_held *held, const char *lease_id,
                   const char *reason)
{
    struct bullmq_end *end = new_end(held, lease_id, "failed");

    if (end == NULL) { /* its lock runs out, and somebody else gets to refuse it */
        bullmq_held_free(let_go(queue->mq, lease_id));
        return;
    }
    set_failure(queue->mq, held, end, reason, NULL, true);
    push_end(queue, end);
}

void bullmq_give_back(struct bullmq *mq, struct broker_req *req)
{
    for (size_t i = 0; i < req->give_back.count; i++) {
        const char *lease_id = req->give_back.refs[i].id;
        struct bullmq_held *held = hash_gets(mq->held, lease_id);
        struct bullmq_end *end = held != NULL ? new_end(held, lease_id, "wait") : NULL;
        if (end == NULL)
            continue;
        push_end(held->queue, end);
    }
    bullmq_answer(mq, req, 0);
}

/* ---- ends that the server took lately ---- */

static size_t size_of(const struct bullmq_end *end)
{
    return sizeof *end + strlen(end->value) + strlen(end->stack) + strlen(end->record);
}

static struct bullmq_end *untake(struct bullmq *mq, struct bullmq_end *end)
{
    list_remove(&end->node);
    (void)hash_takes(mq->taken_by_id, end->lease_id);
    mq->taken_bytes -= size_of(end);
    return end;
}

static void forget_old(struct bullmq *mq)
{
    while (!list_empty(&mq->taken)) {
        struct bullmq_end *oldest = LIST_ENTRY(mq->taken.next, struct bullmq_end, node);
        if (mq->taken_bytes <= TAKEN_BYTES_MAX && clock_mono_ms() - oldest->taken_ms < TAKEN_MS)
            return;
        bullmq_end_free(untake(mq, oldest));
    }
}

static void forget_taken(struct bullmq *mq, const char *lease_id)
{
    struct bullmq_end *end = hash_gets(mq->taken_by_id, lease_id);

    if (end != NULL)
        bullmq_end_free(untake(mq, end));
}

/* Without memory it is not kept. */
static void keep(struct bullmq *mq, struct bullmq_end *adopt)
{
    forget_taken(mq, adopt->lease_id);
    if (hash_puts(mq->taken_by_id, adopt->lease_id, adopt) < 0) {
        bullmq_end_free(adopt);
        return;
    }
    if (!adopt->again)
        adopt->taken_ms = clock_mono_ms();
    adopt->again = true;
    adopt->doubtful = adopt->alone = false;
    adopt->req = NULL;
    list_push_back(&mq->taken, &adopt->node);
    mq->taken_bytes += size_of(adopt);
    forget_old(mq);
}

void bullmq_settle_again(struct bullmq *mq)
{
    forget_old(mq);
    while (!list_empty(&mq->taken)) {
        struct bullmq_end *end = LIST_ENTRY(mq->taken.next, struct bullmq_end, node);
        push_end(end->queue, untake(mq, end));
    }
}

/* Among those that wait to be written again. */
static struct bullmq_end *find_again(struct list *ends, const char *lease_id)
{
    LIST_FOREACH(end, ends, struct bullmq_end, node)
        if (end->again && str_eq(end->lease_id, lease_id))
            return end;
    return NULL;
}

/* The job is run again: what was is no more. */
static void forget_end(struct bullmq_queue *queue, const char *lease_id)
{
    struct bullmq_end *end;

    forget_taken(queue->mq, lease_id);
    while ((end = find_again(&queue->ends, lease_id)) != NULL) {
        list_remove(&end->node);
        queue->end_count--;
        bullmq_end_free(end);
    }
}

static void answered_again(struct bullmq_queue *queue, struct bullmq_end *end, int64_t code)
{
    if (code == 0)
        log_warn("Redis at %s had lost the end of job %s of BullMQ's queue '%s' (a restart, or a "
                 "failover, without its last writes): it is written again",
                 redis_text(queue->mq->calls), end->id, queue->name);
    if (code >= 0)
        keep(queue->mq, end);
    else
        bullmq_end_free(end); /* it has gone on, or away */
}

/* ---- the answer of a call: ends ---- */

static const char *refusal(int64_t code)
{
    switch (code) {
    case -1:
        return "the job was removed";
    case -2:
        return "its lock is gone";
    case -3:
        return "the job is not active any more";
    default:
        return "somebody else has its lock";
    }
}

/* It ended well, but its children say otherwise: then it has failed (BullMQ does the same, with these words). */
static void contradict(struct bullmq_queue *queue, struct bullmq_end *end, struct bullmq_held *held,
                       int64_t code)
{
    SCOPED_BUF reason = { 0 };

    int r = code == -4
                ? buf_addf(&reason, "Job %s has pending dependencies. moveToFinished", held->id)
                : buf_addf(&reason,
                           "Cannot complete job %s because it has at least one failed "
                           "child. moveToFinished",
                           held->id);
    set_failure(queue->mq, held, end, r == 0 ? reason.data : "pending dependencies", NULL,
                code == -9);
    push_end(queue, end);
}

static void end_answered(struct bullmq_queue *queue, struct bullmq_end *end, int64_t code)
{
    struct bullmq *mq = queue->mq;
    struct bullmq_held *held = hash_gets(mq->held, end->lease_id);

    if (end->again) {
        answered_again(queue, end, code);
        return;
    }
    if ((code == -4 || code == -9) && held != NULL) {
        contradict(queue, end, held, code);
        return;
    }
    if (code < 0)
        log_warn("job %s of BullMQ's queue '%s' was not written: %s", end->id, queue->name,
                 refusal(code));
    if (held != NULL && held->attempt == end->attempt)
        bullmq_held_free(let_go(mq, end->lease_id));
    if (end->req != NULL)
        bullmq_answer(mq, end->req, code < 0 ? -ESTALE : 0);
    queue->dry = false;
    if (code < 0)
        bullmq_end_free(end);
    else
        keep(mq, end);
}

/* ---- … jobs ---- */

enum {
    JOB_NAME,
    JOB_DATA,
    JOB_OPTS,
    JOB_STAMP,
    JOB_RJK,
    JOB_DEFA,
    JOB_ATM,
    JOB_MADE,
    JOB_STACK,
    JOB_RECORD,
    JOB_ID,
    JOB_ATS
};

static char *dup_element(const redisReply *job, size_t index)
{
    size_t len;
    const char *text = bullmq_reply_text(job, index, &len);
    char *copy = malloc(len + 1);

    if (copy != NULL) {
        memcpy(copy, text, len);
        copy[len] = '\0';
    }
    return copy;
}

static struct bullmq_held *new_held(struct bullmq_queue *queue, const redisReply *job)
{
    struct bullmq_held *held = calloc(1, sizeof *held);

    if (held == NULL)
        return NULL;
    held->queue = queue;
    held->renewed_ms = clock_mono_ms();
    held->id = dup_element(job, JOB_ID);
    held->stack = dup_element(job, JOB_STACK);
    held->record = dup_element(job, JOB_RECORD);
    held->attempt = bullmq_reply_int(job, JOB_ATS);
    bool old_name = bullmq_reply_text(job, JOB_MADE, NULL)[0] != '\0';
    held->made = bullmq_reply_int(job, old_name ? JOB_MADE : JOB_ATM);
    return held->id != NULL && held->stack != NULL && held->record != NULL ? held
                                                                           : bullmq_held_free(held);
}

static int fill_lease(struct lease *lease, const struct bullmq_held *held, const redisReply *job,
                      char *adopt_id)
{
    SCOPED_JSON *record = bullmq_record_parse(held->record, strlen(held->record));

    *lease = (struct lease){
        .id = adopt_id,
        .queue = strdup(held->queue->name),
        .spec_text = dup_element(job, JOB_DATA),
        .bare = true,
        .own_id = strdup(held->id),
        .name = dup_element(job, JOB_NAME),
        .attempt = held->attempt,
        .attempts_used = held->made,
        .put_backs = bullmq_number(record, "put_backs", 0),
        .attempts = MAX(held->opts.attempts, (int64_t)1),
        .created_ms = bullmq_reply_int(job, JOB_STAMP),
    };
    if (lease->queue != NULL && lease->spec_text != NULL && lease->own_id != NULL &&
        lease->name != NULL)
        return 0;
    lease_done(lease);
    return -ENOMEM;
}

char *bullmq_lease_id(const struct bullmq_queue *queue, const char *id)
{
    SCOPED_BUF text = { 0 };
    return buf_addf(&text, "%s:%s", queue->name, id) < 0 ? NULL : buf_steal(&text);
}

/* Returns true when the job is one for the worker. */
static bool take(struct bullmq_queue *queue, const redisReply *job, struct lease *lease)
{
    struct bullmq *mq = queue->mq;
    struct bullmq_held *held = new_held(queue, job);
    char *id = held != NULL ? bullmq_lease_id(queue, held->id) : NULL;
    struct mandor_err err;
    size_t len;

    /* A lock of ours that is lost may have led it straight back to us. */
    if (id != NULL) {
        bullmq_held_free(let_go(mq, id));
        forget_end(queue, id);
    }
    if (id == NULL || hash_puts(mq->held, id, held) < 0) {
        log_error("out of memory: a job of BullMQ's queue '%s' stalls", queue->name);
        bullmq_held_free(held);
        free(id);
        return false;
    }
    const char *opts = bullmq_reply_text(job, JOB_OPTS, &len);
    int r = bullmq_opts_parse(opts, len, &held->opts, &err);
    const char *rjk = bullmq_reply_text(job, JOB_RJK, NULL);
    const char *defa = bullmq_reply_text(job, JOB_DEFA, NULL);
    int64_t bound = mq->settings.max_started;

    if (r == 0 && rjk[0] != '\0')
        bullmq_repeat(queue, held, rjk);
    held->last_try = bound > 0 && held->attempt >= bound;
    if (defa[0] != '\0')
        refuse(queue, held, id, defa);
    else if (r < 0)
        refuse(queue, held, id, err.msg);
    else if (bound > 0 && held->attempt > bound)
        refuse(queue, held, id, "job started more than allowable limit");
    else if (fill_lease(lease, held, job, id) == 0)
        return true;
    free(id);
    return false;
}

/* The fetch has counted the start.  A job whose cancel was asked for is left to BROKER_START, which says so. */
static void start(struct bullmq *mq, struct broker_req *req)
{
    struct lease *lease = &req->lease.leases[req->lease.count++];
    const struct bullmq_held *held = hash_gets(mq->held, lease->id);
    const struct lease_queue *asked = &req->lease.queues[mq->lease_at];

    lease->started = req->lease.count <= req->lease.start && mq->started < asked->start &&
                     !bullmq_cancel_asked(held);
    mq->started += lease->started;
}

static void jobs_answered(struct bullmq_step *step, const redisReply *reply)
{
    struct bullmq_queue *queue = step->queue;
    struct broker_req *lease = step->lease;
    const redisReply *jobs = reply->element[1], *thrown = reply->element[4];
    int64_t limit_ms = bullmq_reply_int(reply, 2);

    for (size_t i = 0; i < thrown->elements; i++)
        log_warn("BullMQ's queue '%s' named a job '%s' that is none: thrown away", queue->name,
                 bullmq_reply_text(thrown, i, NULL));
    for (size_t i = 0; i < jobs->elements; i++)
        if (jobs->element[i]->elements > JOB_ATS && lease->lease.count < lease->lease.want &&
            take(queue, jobs->element[i], &lease->lease.leases[lease->lease.count]))
            start(queue->mq, lease);

    queue->due_ms = bullmq_reply_int(reply, 3);
    queue->dry = jobs->elements < step->wanted;
    queue->drained = jobs->elements == 0 && bullmq_reply_int(reply, 5) == 0;
    if (queue->dry)
        bullmq_wait(queue, limit_ms);
}

/* ---- the call ---- */

/* What waits for this call goes out at once. */
static void step_over(struct bullmq_step *step)
{
    struct bullmq_queue *queue = step->queue;
    struct bullmq *mq = queue->mq;

    if (step->lease != NULL) {
        mq->lease_at++;
        mq->started = 0;
    }
    queue->step = NULL;
    free(step);
    if (!list_empty(&mq->leases))
        (void)bullmq_flush(mq);
    bullmq_turn(mq);
}

/* What failed because of one of several jobs is tried with each alone. */
static void step_failed(struct bullmq_step *step, int result, const struct mandor_err *err)
{
    struct bullmq_queue *queue = step->queue;
    bool transient = redis_is_transient(result);
    bool doubtful = result == -ECONNRESET || result == -ETIMEDOUT;

    LIST_FOREACH(end, &step->ends, struct bullmq_end, node) {
        struct bullmq_held *held = hash_gets(queue->mq->held, end->lease_id);
        list_remove(&end->node);
        if (end->again && transient) { /* the next connection has it as well */
            keep(queue->mq, end);
            continue;
        }
        end->doubtful = end->doubtful || doubtful;
        if (held != NULL)
            held->doubtful = held->doubtful || doubtful;
        bool shared = step->end_count > 1 || step->lease != NULL;
        bool again = transient ? end->req == NULL && end->tries++ < OWN_TRIES : shared;
        if (again && !(transient || end->alone)) {
            end->alone = true;
            push_end(queue, end);
            continue;
        }
        if (again && transient) { /* nobody else would: the job would stay locked */
            push_end(queue, end);
            continue;
        }
        if (end->req != NULL && transient) {
            bullmq_fail(queue->mq, end->req, result, err);
        } else {
            log_error("job %s of BullMQ's queue '%s' cannot be written: %s", end->id, queue->name,
                      err->msg);
            if (held != NULL && held->attempt == end->attempt)
                bullmq_held_free(let_go(queue->mq, end->lease_id)); /* its lock runs out */
            if (end->req != NULL)
                bullmq_answer(queue->mq, end->req, -ESTALE);
        }
        bullmq_end_free(end);
    }
    if (step->lease != NULL) {
        queue->lost_answer = true;
        step->lease->status = result;
        step->lease->err = *err;
    }
}

static void on_stepped(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct bullmq_step *step = arg;
    struct bullmq_queue *queue = step->queue;

    if (result < 0 || reply->elements < 6 || reply->element[0]->elements < step->end_count) {
        struct mandor_err odd;
        if (result == 0) {
            result = err_set(&odd, -EPROTO, FAULT_REMOTE, "an answer of another form");
            err = &odd;
        }
        step_failed(step, result, err);
        step_over(step);
        return;
    }
    size_t i = 0;
    bool look = step->lease == NULL;
    LIST_FOREACH(end, &step->ends, struct bullmq_end, node) {
        list_remove(&end->node);
        end_answered(queue, end, bullmq_reply_int(reply->element[0], i++));
    }
    if (step->lease != NULL)
        jobs_answered(step, reply);
    step_over(step);
    if (look) /* what the ends set free may be ours to take */
        broker_woken(queue->mq->broker);
}

static void add_end(struct bullmq_args *args, const struct bullmq_end *end)
{
    bullmq_args_text(args, end->what);
    bullmq_args_text(args, end->id);
    bullmq_arg_int(args, end->attempt);
    bullmq_args_text(args, end->value);
    bullmq_args_text(args, end->stack);
    bullmq_args_text(args, end->record);

    char how[128];
    (void)snprintf(how, sizeof how,
                   "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %d",
                   end->attempts, end->delay_ms, end->keep.count, end->keep.age_s, end->keep.limit,
                   end->lifo, end->doubtful);
    bullmq_args_text(args, how);
}

/* Which of the waiting ends go together. */
static void gather(struct bullmq_queue *queue, struct bullmq_step *step)
{
    LIST_FOREACH(end, &queue->ends, struct bullmq_end, node) {
        if (step->end_count == BULLMQ_ENDS_MAX || (end->alone && step->end_count > 0))
            break;
        list_remove(&end->node);
        list_push_back(&step->ends, &end->node);
        queue->end_count--;
        step->end_count++;
        if (end->alone)
            break;
    }
}

static bool call(struct bullmq_queue *queue, size_t wanted, struct broker_req *lease)
{
    struct bullmq *mq = queue->mq;
    const struct bullmq_settings *settings = &mq->settings;
    struct bullmq_step *step = calloc(1, sizeof *step);
    struct bullmq_args args;

    if (step == NULL)
        return false; /* the next turn tries again */
    step->queue = queue;
    step->wanted = wanted;
    step->lease = lease;
    if (lease != NULL && queue->owed) {
        queue->owed = false;
        (void)uv_timer_stop(&queue->timer);
    }
    list_init(&step->ends);
    gather(queue, step);
    queue->step = step;

    bullmq_args_init(&args, queue);
    bullmq_args_text(&args, mq->stem);
    bullmq_arg_int(&args, (int64_t)wanted);
    bullmq_arg_int(&args, mq->lock_ms);
    bullmq_args_text(&args, settings->name != NULL ? settings->name : "");
    bullmq_arg_int(&args, settings->limit_max);
    bullmq_arg_int(&args, settings->limit_ms);
    bullmq_arg_int(&args, settings->metrics_points);
    bullmq_arg_int(&args, (int64_t)step->end_count);
    LIST_FOREACH(end, &step->ends, struct bullmq_end, node)
        add_end(&args, end);
    bullmq_call(queue, &args, &lua_bullmq_step, 0, on_stepped, step);
    return true;
}

/* ---- jobs that an answer which was lost gave to us ---- */

static void on_orphans(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct bullmq_queue *queue = arg;

    if (result < 0) {
        queue->lost_answer = true;
        log_debug("broker", "look for jobs of a lost answer: %s", err->msg);
        return;
    }
    for (size_t i = 0; i + 1 < reply->elements; i += 2) {
        const char *id = bullmq_reply_text(reply, i, NULL);
        SCOPED_FREE char *lease = bullmq_lease_id(queue, id);
        if (lease == NULL || hash_gets(queue->mq->held, lease) != NULL ||
            find_again(&queue->ends, lease) != NULL ||
            (queue->step != NULL && find_again(&queue->step->ends, lease) != NULL))
            continue; /* it is ours, or its end was lost and is being written again */
        struct bullmq_held nobody = { .queue = queue,
                                      .id = (char *)id,
                                      .attempt = bullmq_reply_int(reply, i + 1) };
        struct bullmq_end *end = new_end(&nobody, lease, "wait");
        if (end != NULL)
            push_end(queue, end);
    }
}

static void look_for_orphans(struct bullmq_queue *queue)
{
    struct bullmq_args args;

    queue->lost_answer = false;
    bullmq_args_init(&args, queue);
    bullmq_args_text(&args, queue->mq->stem);
    bullmq_call(queue, &args, &lua_bullmq_orphans, REDIS_AGAIN, on_orphans, queue);
}

/* ---- leases, one request after the other ---- */

void bullmq_lease(struct bullmq *mq, struct broker_req *req)
{
    req->lease.count = 0;
    req->lease.next_due_ms = -1;
    list_push_back(&mq->leases, &req->node);
    bullmq_turn(mq);
}

static void lease_over(struct bullmq *mq, struct broker_req *req)
{
    bool drained = true;

    list_remove(&req->node);
    mq->lease_at = 0;
    for (size_t i = 0; i < mq->queue_count; i++)
        drained = drained && (!mq->queues[i]->served || mq->queues[i]->drained);
    req->lease.drained = drained && req->lease.count == 0;
    /* Jobs that came before the call failed are the worker's all the same. */
    bullmq_answer(mq, req, req->lease.count > 0 ? 0 : req->status);
}

static bool first_is_alone(const struct bullmq_queue *queue)
{
    return queue->end_count > 0 && LIST_ENTRY(queue->ends.next, struct bullmq_end, node)->alone;
}

enum ask {
    ASK_SENT,  /* a call was made */
    ASK_WAITS, /* until the one that is under way is answered */
    ASK_OVER,  /* nothing more is to be asked: it is answered */
};

/* Ask the next queue of a request that may have something. */
static enum ask ask_next(struct bullmq *mq, struct broker_req *req)
{
    while (req->status == 0 && mq->lease_at < req->lease.queue_count) {
        const struct lease_queue *asked = &req->lease.queues[mq->lease_at];
        struct bullmq_queue *queue = bullmq_queue(mq, asked->name);
        size_t wanted = MIN(asked->max, req->lease.want - req->lease.count);

        if (queue != NULL && queue->step != NULL)
            return ASK_WAITS;
        if (queue != NULL && first_is_alone(queue) && call(queue, 0, NULL))
            return ASK_SENT;
        if (queue != NULL && wanted > 0 && !(queue->dry && clock_mono_ms() < queue->dry_until_ms)) {
            if (queue->lost_answer)
                look_for_orphans(queue);
            if (call(queue, wanted, req))
                return ASK_SENT;
        }
        mq->lease_at++;
    }
    lease_over(mq, req);
    return ASK_OVER;
}

bool bullmq_flush(struct bullmq *mq)
{
    enum ask ask = ASK_OVER;

    while (ask == ASK_OVER && !list_empty(&mq->leases))
        ask = ask_next(mq, LIST_ENTRY(mq->leases.next, struct broker_req, node));
    bool sent = ask == ASK_SENT;
    for (size_t i = 0; i < mq->queue_count; i++) {
        struct bullmq_queue *queue = mq->queues[i];
        if (queue->step == NULL && queue->end_count > 0)
            sent = call(queue, 0, NULL) || sent;
    }
    return sent;
}

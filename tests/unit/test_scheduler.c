/* test_scheduler.c - what the scheduler counts, whatever becomes of a lease.  The broker is this file: the linker sends its calls
 * here (--wrap), and each test gives the answers. */
#include "worker/scheduler.h"

#include "base/clock.h"
#include "config/config.h"
#include "lib/fake_sink.h"
#include "lib/unit.h"
#include "worker/attempt.h"

static struct broker_req
    *asked[BROKER_OPS];              /* the last request of each kind that has no answer yet */
static struct broker_req *leases[3]; /* all that were asked for, oldest first */
static size_t lease_count;

void __wrap_broker_submit(struct broker *broker, struct broker_req *req);
void __wrap_broker_submit(struct broker *broker, struct broker_req *req)
{
    (void)broker;
    asked[req->op] = req;
    if (req->op == BROKER_LEASE)
        leases[lease_count++ % ARRAY_LEN(leases)] = req;
}

static bool starts;   /* does a lease start what it may? */
static bool overlaps; /* are two leases under way at once? */

bool __wrap_broker_leases_overlap(const struct broker *broker);
bool __wrap_broker_leases_overlap(const struct broker *broker)
{
    (void)broker;
    return overlaps;
}

bool __wrap_broker_starts_leases(const struct broker *broker);
bool __wrap_broker_starts_leases(const struct broker *broker)
{
    (void)broker;
    return starts;
}

int __wrap_broker_check_spec(const struct broker *broker, const struct spec *spec,
                             struct mandor_err *err);
int __wrap_broker_check_spec(const struct broker *broker, const struct spec *spec,
                             struct mandor_err *err)
{
    (void)broker, (void)spec, (void)err;
    return 0;
}

static void answer_req(struct broker_req *req, int status)
{
    ck_assert_ptr_nonnull(req);
    if (asked[req->op] == req)
        asked[req->op] = NULL;
    req->status = status;
    req->done(req);
}

static void answer(enum broker_op op, int status)
{
    answer_req(asked[op], status);
}

static void init(struct worker *worker)
{
    struct mandor_err err;

    memset(asked, 0, sizeof asked);
    lease_count = 0;
    starts = false;
    *worker = (struct worker){ .setup.concurrency = 1 };
    ck_assert_int_eq(config_parse("test", "", 0, &worker->config, &err), 0);
    ck_assert_int_eq(uv_loop_init(&worker->loop), 0);
    static struct source source;
    source = (struct source){ .worker = worker, .url = "sqlite:", .registered = true };
    ck_assert_int_eq(hash_new(&source.by_id), 0);
    worker->sources = &source;
    worker->source_count = 1;
    worker->setup.main_url = "sqlite:";
    list_init(&worker->attempts);
    ck_assert_int_eq(scheduler_new(worker, &worker->scheduler), 0);
}

static void done(struct worker *worker)
{
    scheduler_close(worker->scheduler);
    (void)uv_run(&worker->loop, UV_RUN_DEFAULT);
    worker->scheduler = scheduler_free(worker->scheduler);
    ck_assert_int_eq(uv_loop_close(&worker->loop), 0);
    worker->sources[0].by_id = hash_free(worker->sources[0].by_id);
    worker->config = config_free(worker->config);
}

/* The request for leases that is due at the end of this turn, or NULL. */
static struct broker_req *lease_request(struct worker *worker)
{
    (void)uv_run(&worker->loop, UV_RUN_NOWAIT);
    return asked[BROKER_LEASE];
}

/* Answer the request for leases with these jobs of queue `default`; the first `started` of them are started, and cannot be run: their
 * text is none. */
static void lease_some(struct worker *worker, size_t count, const char *const *ids, size_t started)
{
    scheduler_wake(worker->scheduler, NULL);
    struct broker_req *req = lease_request(worker);
    ck_assert_ptr_nonnull(req);
    for (size_t i = 0; i < count; i++)
        req->lease.leases[i] =
            (struct lease){ .id = strdup(ids[i]),
                            .queue = strdup("default"),
                            .started = i < started,
                            .attempt = i < started,
                            .spec_text = strdup(i < started ? "?" : "{\"exec\": [\"true\"]}") };
    req->lease.count = count;
    req->lease.next_due_ms = -1;
    answer(BROKER_LEASE, 0);
}

static void lease(struct worker *worker, size_t count, const char *const *ids)
{
    lease_some(worker, count, ids, 0);
}

static struct attempt *attempt_of(struct worker *worker, const char *id)
{
    struct attempt *attempt = hash_gets(worker->sources[0].by_id, id);

    ck_assert_ptr_nonnull(attempt);
    return attempt;
}

TEST(a_lease_that_is_lost_before_its_start_is_not_started_later)
{
    struct worker worker;

    init(&worker);
    lease(&worker, 2, (const char *const[]){ "1", "2" });
    ck_assert_int_eq(attempt_of(&worker, "1")->state, ATTEMPT_STARTING);
    ck_assert_int_eq(attempt_of(&worker, "2")->state, ATTEMPT_LEASED);

    attempt_stop(attempt_of(&worker, "2"), CAUSE_LOST_LEASE, 0, "lease lost");
    ck_assert_ptr_null(hash_gets(worker.sources[0].by_id, "2"));
    answer(BROKER_START, -ESTALE); /* a slot is free: there is nobody to take it */
    ck_assert_uint_eq(scheduler_active(worker.scheduler), 0);
    ck_assert(list_empty(&worker.attempts));

    lease(&worker, 1, (const char *const[]){ "3" });
    ck_assert_int_eq(attempt_of(&worker, "3")->state, ATTEMPT_STARTING);
    answer(BROKER_START, -ESTALE);
    done(&worker);
}

TEST(what_waits_too_long_is_given_back_once)
{
    struct worker worker;

    init(&worker);
    lease(&worker, 2, (const char *const[]){ "1", "2" });
    scheduler_give_back(worker.scheduler, NULL, 0);
    struct broker_req *req = asked[BROKER_GIVE_BACK];
    ck_assert_ptr_nonnull(req);
    ck_assert_uint_eq(req->give_back.count, 1);
    ck_assert_str_eq(req->give_back.refs[0].id, "2");
    answer(BROKER_GIVE_BACK, 0);

    scheduler_give_back(worker.scheduler, NULL, 0);
    ck_assert_ptr_null(asked[BROKER_GIVE_BACK]);
    answer(BROKER_START, -ESTALE);
    ck_assert_uint_eq(scheduler_active(worker.scheduler), 0);
    done(&worker);
}

TEST(what_a_lease_has_started_runs_at_once_and_makes_room_for_the_next_request)
{
    struct worker worker;

    init(&worker);
    starts = true;
    scheduler_wake(worker.scheduler, NULL);
    struct broker_req *req = lease_request(&worker);
    ck_assert_ptr_nonnull(req);
    ck_assert_uint_eq(req->lease.want, 1); /* one slot, and nothing ahead of it */
    ck_assert_uint_eq(req->lease.start, 1);

    lease_some(&worker, 1, (const char *const[]){ "1" }, 1);
    ck_assert_ptr_null(asked[BROKER_START]);
    /* Its text could not be read: it has failed. */
    struct broker_req *settle = asked[BROKER_SETTLE];
    ck_assert_ptr_nonnull(settle);
    ck_assert_int_eq(settle->settle.attempt, 1);
    ck_assert_int_eq(settle->settle.plan.state, JOB_FAILED);
    ck_assert_uint_eq(scheduler_active(worker.scheduler), 0);
    ck_assert_ptr_null(asked[BROKER_LEASE]); /* not from inside: others may make room too */
    ck_assert_ptr_nonnull(lease_request(&worker));

    answer(BROKER_SETTLE, 0);
    ck_assert(list_empty(&worker.attempts));
    done(&worker);
}

TEST(an_attempt_that_is_given_out_twice_ends_once)
{
    struct worker worker;

    init(&worker);
    starts = true;
    lease_some(&worker, 1, (const char *const[]){ "1" }, 1);
    ck_assert_ptr_nonnull(asked[BROKER_SETTLE]); /* its text could not be read */
    /* A queue that was restarted without its last writes starts it again, and then hears of its end. */
    lease_some(&worker, 1, (const char *const[]){ "1" }, 1);
    ck_assert_ptr_eq(worker.attempts.next->next, &worker.attempts);
    answer(BROKER_SETTLE, 0);
    ck_assert(list_empty(&worker.attempts));
    done(&worker);
}

/* By a queue that has forgotten its lease: it waits for the end of the attempt that is here, and goes back. */
TEST_EACH(what_is_leased_while_it_is_here_goes_back_when_that_has_ended, 2)
{
    struct worker worker;

    init(&worker);
    worker.setup.concurrency = 2;
    scheduler_configure(worker.scheduler);
    lease(&worker, 1, (const char *const[]){ "1" });
    ck_assert_int_eq(attempt_of(&worker, "1")->state, ATTEMPT_STARTING);
    const struct attempt *here = attempt_of(&worker, "1");

    scheduler_wake(worker.scheduler, NULL);
    struct broker_req *req = lease_request(&worker);
    ck_assert_ptr_nonnull(req);
    req->lease.leases[0] = (struct lease){ .id = strdup("1"),
                                           .queue = strdup("default"),
                                           .attempt = _i,
                                           .spec_text = strdup("{\"exec\": [\"true\"]}") };
    req->lease.count = 1;
    req->lease.next_due_ms = -1;
    answer(BROKER_LEASE, 0);
    ck_assert_ptr_eq(attempt_of(&worker, "1"), here); /* nothing beside it */
    ck_assert_ptr_null(asked[BROKER_GIVE_BACK]);      /* and it does not come again at once */

    answer(BROKER_START, -ESTALE);
    req = asked[BROKER_GIVE_BACK];
    ck_assert_ptr_nonnull(req);
    ck_assert_uint_eq(req->give_back.count, 1);
    ck_assert_str_eq(req->give_back.refs[0].id, "1");
    ck_assert_int_eq(req->give_back.refs[0].attempt, _i);
    ck_assert(list_empty(&worker.attempts));

    asked[BROKER_LEASE] = NULL;
    answer(BROKER_GIVE_BACK, 0);
    ck_assert_ptr_nonnull(lease_request(&worker)); /* now it may run */
    lease(&worker, 1, (const char *const[]){ "1" });
    ck_assert_int_eq(attempt_of(&worker, "1")->state, ATTEMPT_STARTING);
    answer(BROKER_START, -ESTALE);
    done(&worker);
}

TEST(a_wake_up_while_a_lease_is_under_way_is_asked_about_for_what_the_lease_brings)
{
    struct worker worker;

    init(&worker);
    scheduler_wake(worker.scheduler, NULL);
    ck_assert_ptr_nonnull(lease_request(&worker));
    /* Wakes it once more, before the answer. */
    lease(&worker, 2, (const char *const[]){ "1", "2" });
    struct broker_req *req = asked[BROKER_RENEW];
    ck_assert_ptr_nonnull(req);
    ck_assert_uint_eq(req->renew.count, 2);

    renew_ask(&worker.sources[0]); /* asked while that is under way: again behind it */
    answer(BROKER_RENEW, 0);
    ck_assert_ptr_nonnull(asked[BROKER_RENEW]);
    answer(BROKER_RENEW, 0);
    ck_assert_ptr_null(asked[BROKER_RENEW]);
    attempt_stop(attempt_of(&worker, "2"), CAUSE_LOST_LEASE, 0, "lease lost");
    answer(BROKER_START, -ESTALE);
    ck_assert(list_empty(&worker.attempts));
    done(&worker);
}

TEST(no_slot_is_promised_twice)
{
    struct worker worker;

    init(&worker);
    worker.setup.concurrency = 3;
    scheduler_configure(worker.scheduler);
    starts = true;
    lease(&worker, 2, (const char *const[]){ "1", "2" }); /* a broker that started none of them */
    ck_assert_uint_eq(scheduler_active(worker.scheduler), 2);
    scheduler_wake(worker.scheduler, NULL);
    struct broker_req *req = lease_request(&worker);
    ck_assert_ptr_nonnull(req);
    ck_assert_uint_eq(req->lease.want, 1);
    ck_assert_uint_eq(req->lease.start, 1);
    answer(BROKER_LEASE, -EIO);

    answer_req(&attempt_of(&worker, "1")->req, -ESTALE);
    answer_req(&attempt_of(&worker, "2")->req, -ESTALE);
    ck_assert(list_empty(&worker.attempts));
    done(&worker);
}

static void answer_lease(struct broker_req *req, const char *id)
{
    if (id != NULL)
        req->lease.leases[0] = (struct lease){ .id = strdup(id),
                                               .queue = strdup("default"),
                                               .started = true,
                                               .attempt = 1,
                                               .spec_text = strdup("?") };
    req->lease.count = id != NULL;
    req->lease.next_due_ms = -1;
    answer_req(req, 0);
}

TEST(a_broker_elsewhere_is_asked_for_half_of_the_slots_while_it_works_for_the_other_half)
{
    struct worker worker;

    overlaps = true;
    init(&worker);
    overlaps = false;
    starts = true;
    worker.setup.concurrency = 8;
    scheduler_configure(worker.scheduler);
    scheduler_wake(worker.scheduler, NULL);
    (void)lease_request(&worker);
    ck_assert_uint_eq(lease_count, 2);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(leases[i]->lease.want, 4);
        ck_assert_uint_eq(leases[i]->lease.start, 4);
    }

    /* A wake-up counts for both, whatever the first one brings. */
    scheduler_wake(worker.scheduler, NULL);
    answer_lease(leases[0], "1"); /* it fails at once, and its end is under way */
    ck_assert_ptr_nonnull(asked[BROKER_SETTLE]);
    (void)lease_request(&worker);
    ck_assert_uint_eq(lease_count, 3);
    ck_assert_uint_eq(leases[2]->lease.want, 4);
    answer_lease(leases[1], NULL);
    (void)lease_request(&worker);
    ck_assert_uint_eq(lease_count, 4);
    struct broker_req *last = leases[0];
    answer_lease(leases[2], NULL); /* nothing is there: no more of them */
    answer_lease(last, NULL);
    (void)lease_request(&worker);
    ck_assert_uint_eq(lease_count, 4);
    ck_assert(!scheduler_asking(worker.scheduler));

    answer(BROKER_SETTLE, 0);
    ck_assert(list_empty(&worker.attempts));
    done(&worker);
}

/* A worker of all queues sees names without end. */
TEST(a_queue_that_holds_nothing_is_forgotten)
{
    struct worker worker;

    init(&worker);
    size_t most = 0;
    for (int i = 0; i < 3000; i++) {
        char name[32], id[32];
        (void)snprintf(name, sizeof name, "queue-%d", i);
        (void)snprintf(id, sizeof id, "%d", i);
        scheduler_wake(worker.scheduler, NULL);
        struct broker_req *req = lease_request(&worker);
        ck_assert_ptr_nonnull(req);
        req->lease.leases[0] = (struct lease){ .id = strdup(id),
                                               .queue = strdup(name),
                                               .spec_text = strdup("{\"exec\": [\"true\"]}") };
        req->lease.count = 1;
        req->lease.next_due_ms = -1;
        answer(BROKER_LEASE, 0);
        answer(BROKER_START, -ESTALE);
        ck_assert(list_empty(&worker.attempts));
        most = MAX(most, scheduler_queues(worker.scheduler));
    }
    ck_assert_uint_ge(most, 100);
    ck_assert_uint_le(most, 300);
    done(&worker);
}

/* ---- a commit and its lease (I7) ---- */

struct commit {
    struct worker worker;
    struct fake_sink fake;
    struct attempt *attempt;
    struct sink *sink;
};

static void turn(struct worker *worker)
{
    for (int i = 0; i < 3; i++)
        (void)uv_run(&worker->loop, UV_RUN_NOWAIT);
}

static void on_opened(void *arg, int result, const struct mandor_err *err)
{
    (void)err;
    ck_assert_int_eq(result, 0);
    *(bool *)arg = true;
}

/* A job that was cancelled before it ran, with a standard error to publish: its commit is next, and hangs. */
static void commit_begin(struct commit *commit)
{
    struct worker *worker = &commit->worker;
    bool opened = false;

    init(worker);
    fake_sink_init(&commit->fake);
    commit->fake.hold_commit = true;
    lease(worker, 1, (const char *const[]){ "1" });
    commit->attempt = attempt_of(worker, "1");
    commit->sink = fake_sink_open(&worker->loop, &commit->fake, "stderr", on_opened, &opened);
    turn(worker);
    ck_assert(opened);
    commit->attempt->outputs.err.outputs = commit->attempt->outputs.out.outputs =
        &commit->attempt->outputs;
    commit->attempt->outputs.err.is_stderr = true;
    commit->attempt->outputs.err.sink = commit->sink;
    commit->attempt->outputs.err.opened = true;
    asked[BROKER_START]->start.cancelled = true;
    asked[BROKER_START]->start.attempt = 1;
    answer(BROKER_START, 0);
    ck_assert_int_eq(commit->attempt->state, ATTEMPT_COMMITTING);
    ck_assert_ptr_nonnull(asked[BROKER_BEGIN_SETTLE]);
}

static void confirm(int64_t left_ms)
{
    asked[BROKER_BEGIN_SETTLE]->begin_settle.left_ms = left_ms;
    answer(BROKER_BEGIN_SETTLE, 0);
}

/* The fence refuses what is settled; then all is over. */
static void commit_done(struct commit *commit)
{
    answer(BROKER_SETTLE, -ESTALE);
    ck_assert(list_empty(&commit->worker.attempts));
    turn(&commit->worker);
    done(&commit->worker);
    fake_sink_done(&commit->fake);
}

TEST(a_commit_does_not_begin_with_little_of_the_lease_left)
{
    struct commit commit = { 0 };

    commit_begin(&commit);
    commit.attempt->asked_boot_ms -= 21000; /* the answer took so long */
    confirm(30000);
    ck_assert_int_eq(commit.fake.held_commit, false);
    ck_assert_ptr_null(asked[BROKER_BEGIN_SETTLE]);
    while (asked[BROKER_BEGIN_SETTLE] == NULL) /* asked again in a moment */
        (void)uv_run(&commit.worker.loop, UV_RUN_ONCE);
    confirm(30000);
    ck_assert_int_eq(commit.fake.held_commit, true);
    fake_sink_release(&commit.fake);
    turn(&commit.worker);
    ck_assert(commit.fake.committed);
    ck_assert_int_eq(asked[BROKER_SETTLE]->settle.plan.state, JOB_CANCELLED);
    commit_done(&commit);
}

TEST(a_commit_that_outlasts_its_lease_is_broken_off_and_the_job_goes_back)
{
    struct commit commit = { 0 };

    commit_begin(&commit);
    confirm(30000);
    attempt_check_expiry(commit.attempt);
    turn(&commit.worker);
    ck_assert_ptr_null(asked[BROKER_SETTLE]);
    commit.attempt->commit_until_boot_ms = clock_boot_ms(); /* thirty seconds later */
    attempt_check_expiry(commit.attempt);
    turn(&commit.worker);
    ck_assert_ptr_nonnull(asked[BROKER_SETTLE]);
    ck_assert_int_eq(asked[BROKER_SETTLE]->settle.plan.state, JOB_DELAYED);
    ck_assert(!asked[BROKER_SETTLE]->settle.plan.charged);
    fake_sink_release(&commit.fake);
    ck_assert(!commit.fake.committed);
    commit_done(&commit);
}

TEST(a_commit_whose_lease_another_worker_has_is_broken_off_at_once)
{
    struct commit commit = { 0 };

    commit_begin(&commit);
    confirm(30000);
    attempt_stop(commit.attempt, CAUSE_LOST_LEASE, 0, "lease lost");
    turn(&commit.worker);
    ck_assert_ptr_nonnull(asked[BROKER_SETTLE]);
    fake_sink_release(&commit.fake);
    ck_assert(!commit.fake.committed);
    commit_done(&commit);
}

TEST(a_renewal_gives_a_commit_more_time)
{
    struct commit commit = { 0 };

    commit_begin(&commit);
    confirm(30000);
    attempt_renewed(commit.attempt, clock_boot_ms() + 90000);
    ck_assert_int_gt(sink_commit_left_ms(commit.sink), 80000);
    fake_sink_release(&commit.fake);
    turn(&commit.worker);
    ck_assert(commit.fake.committed);
    ck_assert_int_eq(asked[BROKER_SETTLE]->settle.plan.state, JOB_CANCELLED);
    commit_done(&commit);
}

UNIT_MAIN("scheduler")

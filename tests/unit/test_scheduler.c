/* test_scheduler.c - what the scheduler counts, whatever becomes of a lease.  The broker is this file: the linker sends
 * broker_submit() here (--wrap), and each test gives the answers. */
#include "worker/scheduler.h"

#include "config/config.h"
#include "lib/unit.h"
#include "worker/attempt.h"

static struct broker_req
    *asked[BROKER_OPS]; /* the last request of each kind that has no answer yet */

void __wrap_broker_submit(struct broker *broker, struct broker_req *req);
void __wrap_broker_submit(struct broker *broker, struct broker_req *req)
{
    (void)broker;
    asked[req->op] = req;
}

static void answer(enum broker_op op, int status)
{
    struct broker_req *req = asked[op];

    ck_assert_ptr_nonnull(req);
    asked[op] = NULL;
    req->status = status;
    req->done(req);
}

static void init(struct worker *worker)
{
    struct mandor_err err;

    memset(asked, 0, sizeof asked);
    *worker = (struct worker){ .setup.concurrency = 1 };
    ck_assert_int_eq(config_parse("test", "", 0, &worker->config, &err), 0);
    ck_assert_int_eq(uv_loop_init(&worker->loop), 0);
    ck_assert_int_eq(hash_new(&worker->by_id), 0);
    list_init(&worker->attempts);
    ck_assert_int_eq(scheduler_new(worker, &worker->scheduler), 0);
}

static void done(struct worker *worker)
{
    scheduler_close(worker->scheduler);
    (void)uv_run(&worker->loop, UV_RUN_DEFAULT);
    worker->scheduler = scheduler_free(worker->scheduler);
    ck_assert_int_eq(uv_loop_close(&worker->loop), 0);
    worker->by_id = hash_free(worker->by_id);
    worker->config = config_free(worker->config);
}

/* Answer the request for leases with these jobs of queue `default`. */
static void lease(struct worker *worker, size_t count, const char *const *ids)
{
    scheduler_wake(worker->scheduler);
    struct broker_req *req = asked[BROKER_LEASE];
    ck_assert_ptr_nonnull(req);
    for (size_t i = 0; i < count; i++)
        req->lease.leases[i] = (struct lease){ .id = strdup(ids[i]),
                                               .queue = strdup("default"),
                                               .spec_text = strdup("{\"exec\": [\"true\"]}") };
    req->lease.count = count;
    req->lease.next_due_ms = -1;
    answer(BROKER_LEASE, 0);
}

static struct attempt *attempt_of(struct worker *worker, const char *id)
{
    struct attempt *attempt = hash_gets(worker->by_id, id);

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
    ck_assert_ptr_null(hash_gets(worker.by_id, "2"));
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
    scheduler_give_back(worker.scheduler, 0);
    struct broker_req *req = asked[BROKER_GIVE_BACK];
    ck_assert_ptr_nonnull(req);
    ck_assert_uint_eq(req->give_back.count, 1);
    ck_assert_str_eq(req->give_back.refs[0].id, "2");
    answer(BROKER_GIVE_BACK, 0);

    scheduler_give_back(worker.scheduler, 0);
    ck_assert_ptr_null(asked[BROKER_GIVE_BACK]);
    answer(BROKER_START, -ESTALE);
    ck_assert_uint_eq(scheduler_active(worker.scheduler), 0);
    done(&worker);
}

UNIT_MAIN("scheduler")

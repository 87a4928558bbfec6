/* test_broker.c - what every broker promises, whatever it is made of.  Written against broker.h alone.
 *
 * MANDOR_TEST_BROKER names the kind to test, each test on a fresh one: "sqlite" (default), or a scheme on a Redis of the test's own.
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "broker/broker.h"
#ifdef HAVE_REDIS
#include "redis_rig.h"
#endif

/* ---- a world: a directory, a loop, some brokers ---- */

static char dir[64], url[160];
static uv_loop_t loop;
#ifdef HAVE_REDIS
static struct redis_rig rig;
#endif

static const char *kind(void)
{
    const char *given = getenv("MANDOR_TEST_BROKER");
    return given != NULL ? given : "sqlite";
}

/* BullMQ knows no lease without a start: a job that is taken has begun. */
static bool starts_only(void)
{
    return strcmp(kind(), "bullmq") == 0;
}

static void make_url(void)
{
    if (strcmp(kind(), "sqlite") == 0) {
        (void)snprintf(url, sizeof url, "sqlite:%s/q.db", dir);
        return;
    }
#ifdef HAVE_REDIS
    redis_rig_start(&rig, NULL);
    (void)snprintf(url, sizeof url, "%s://127.0.0.1:%d", kind(), rig.port);
    ck_assert_int_eq(setenv("XDG_STATE_HOME", dir, 1), 0);
#else
    ck_abort_msg("built without Redis");
#endif
}

static void setup(void)
{
    strcpy(dir, "/tmp/mandor-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    make_url();
    ck_assert_int_eq(uv_loop_init(&loop), 0);
}

static void teardown(void)
{
    char command[128];
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
#ifdef HAVE_REDIS
    if (rig.pid > 0)
        redis_rig_done(&rig);
#endif
}

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

static void close_broker(struct broker *broker)
{
    bool closed = false;
    broker_close(broker, on_closed, &closed);
    while (!closed)
        (void)uv_run(&loop, UV_RUN_ONCE);
}

static struct broker *open_client(void)
{
    struct broker *broker = NULL;
    struct mandor_err err = { 0 };
    int r = broker_open(url, &loop, false, &broker, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    return broker;
}

static void nothing(struct broker_req *req)
{
}

static int ask(struct broker *broker, struct broker_req *req)
{
    req->done = nothing;
    int r = broker_wait(broker, req);
    ck_assert_int_eq(r, req->status);
    if (r < 0)
        ck_assert_msg(req->err.msg[0] != '\0' && req->err.code == r, "no reason for %d", r);
    return r;
}

#define ask_ok(broker, req)                                          \
    do {                                                             \
        int r_ = ask(broker, req);                                   \
        ck_assert_msg(r_ == 0, "status %d: %s", r_, (req)->err.msg); \
    } while (0)

/* A worker with its liveness lock held. */
struct worker {
    struct broker *broker;
    int lock_fd;
    char name[32], lock_path[160];
};

static void worker_lock(struct worker *worker)
{
    (void)snprintf(worker->lock_path, sizeof worker->lock_path, "%s/%s.lock", dir, worker->name);
    worker->lock_fd = open(worker->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(worker->lock_fd, 0);
    ck_assert_int_eq(flock(worker->lock_fd, LOCK_EX | LOCK_NB), 0);
}

static void worker_open_as(struct worker *worker, const char *name, const char *queues)
{
    struct mandor_err err = { 0 };
    *worker = (struct worker){ 0 };
    (void)snprintf(worker->name, sizeof worker->name, "%s", name);
    worker_lock(worker);
    int r = broker_open(url, &loop, true, &worker->broker, &err);
    ck_assert_msg(r == 0, "%s", err.msg);

    struct broker_req req = { .op = BROKER_REGISTER };
    req.reg.worker = worker->name;
    req.reg.lock_path = worker->lock_path;
    req.reg.containment = "base";
    req.reg.queues = queues;
    ask_ok(worker->broker, &req);
}

static void worker_open(struct worker *worker, const char *name)
{
    worker_open_as(worker, name, "[\"default\"]");
}

/* Without a word, as after SIGKILL: the row stays, the lock is free. */
static void worker_die(struct worker *worker)
{
    close_broker(worker->broker);
    ck_assert_int_eq(close(worker->lock_fd), 0);
}

static void worker_close(struct worker *worker)
{
    struct broker_req req = { .op = BROKER_UNREGISTER };
    ask_ok(worker->broker, &req);
    worker_die(worker);
}

/* For tests of one worker that lives until their end. */
static struct broker *client;
static struct worker served;

static void setup_served(void)
{
    setup();
    client = open_client();
    worker_open(&served, "w");
}

static void teardown_served(void)
{
    worker_close(&served);
    close_broker(client);
    teardown();
}

/* Add one job given as JSON text; returns its id. */
static const char *add(struct broker *broker, const char *text)
{
    static char ids[16][64];
    static int turn;
    struct mandor_err err = { 0 };
    SCOPED_JSON *json = NULL;
    SCOPED(spec_free) struct spec *spec = NULL;
    ck_assert_int_eq(json_parse(text, strlen(text), &json, &err), 0);
    int r = spec_from_json(json, NULL, &spec, &err);
    ck_assert_msg(r == 0, "%s", err.msg);

    struct broker_added added = { 0 };
    struct broker_req req = { .op = BROKER_ADD };
    req.add.specs = (const struct spec *const[]){ spec };
    req.add.count = 1;
    req.add.added = &added;
    ask_ok(broker, &req);
    char *id = ids[turn++ % 16];
    strcpy(id, added.id);
    return id;
}

/* BullMQ's ids are QUEUE:NUMBER. */
static int64_t id_number(const char *id)
{
    const char *colon = strrchr(id, ':');
    return atoll(colon != NULL ? colon + 1 : id);
}

#define TRUE_JOB "{\"exec\": [\"true\"]}"

/* Lease up to want jobs of all queues into leases; returns how many. */
static size_t lease_from(struct worker *worker, const struct lease_queue *queues,
                         size_t queue_count, struct lease *leases, size_t want,
                         struct broker_req *ret)
{
    struct broker_req req = { .op = BROKER_LEASE };
    struct lease_queue own[4] = { { .name = "default", .max = want } };
    if (starts_only()) { /* and no lease of whatever there is */
        for (size_t i = 0; i < queue_count; i++)
            own[i] = queues[i];
        queue_count = MAX(queue_count, (size_t)1);
        for (size_t i = 0; i < queue_count; i++)
            own[i].start = own[i].max;
        req.lease.start = want;
        queues = own;
    }
    req.lease.want = want;
    req.lease.queues = queues;
    req.lease.queue_count = queue_count;
    req.lease.leases = leases;
    ask_ok(worker->broker, &req);
    for (size_t i = 0; starts_only() && i < req.lease.count; i++) {
        ck_assert(leases[i].started);
        leases[i].attempt--; /* as before the start(), which says so */
    }
    if (ret != NULL)
        *ret = req;
    return req.lease.count;
}

static size_t lease(struct worker *worker, struct lease *leases, size_t want)
{
    return lease_from(worker, NULL, 0, leases, want, NULL);
}

static int64_t start(struct worker *worker, const char *id, int64_t attempt)
{
    if (starts_only())
        return attempt + 1;
    struct broker_req req = { .op = BROKER_START };
    req.start.id = id;
    req.start.attempt = attempt;
    ask_ok(worker->broker, &req);
    ck_assert(!req.start.cancelled);
    return req.start.attempt;
}

static int settle(struct worker *worker, const char *id, int64_t attempt, struct retry_plan plan)
{
    struct verdict verdict = { .cause = CAUSE_EXIT,
                               .exit_code = plan.state == JOB_COMPLETED ? 0 : 7 };
    SCOPED_BUF record = { 0 };
    ck_assert_int_eq(record_attempt_text(&(struct record_attempt){ .verdict = &verdict }, &record),
                     0);
    struct broker_req req = { .op = BROKER_SETTLE };
    req.settle.id = id;
    req.settle.queue = "default";
    req.settle.attempt = attempt;
    req.settle.plan = plan;
    req.settle.record = record.data;
    req.settle.verdict = &verdict;
    req.settle.started_ms = req.settle.finished_ms = clock_wall_ms();
    return ask(worker->broker, &req);
}

static const struct retry_plan completed = { .state = JOB_COMPLETED, .charged = true };
static const struct retry_plan failed = { .state = JOB_FAILED, .charged = true };
static const struct retry_plan again = { .state = JOB_WAITING, .charged = true };

static json_t *show(struct broker *broker, const char *id)
{
    struct broker_req req = { .op = BROKER_SHOW };
    req.show.id = id;
    ask_ok(broker, &req);
    ck_assert_ptr_nonnull(req.show.record);
    return req.show.record;
}

static void expect_state(struct broker *broker, const char *id, const char *state)
{
    SCOPED_JSON *record = show(broker, id);
    ck_assert_str_eq(json_string_value(json_object_get(record, "state")), state);
}

static int64_t number(struct broker *broker, const char *id, const char *key)
{
    SCOPED_JSON *record = show(broker, id);
    ck_assert_msg(json_is_integer(json_object_get(record, key)), "'%s' is no number", key);
    return json_integer_value(json_object_get(record, key));
}

static int change(struct broker *broker, enum broker_op op, const char *id, struct broker_req *ret)
{
    struct broker_req req = { .op = op };
    req.change.id = id;
    req.change.state = -1;
    int r = ask(broker, &req);
    if (ret != NULL)
        *ret = req;
    return r;
}

static int empty_answer = 0, empty_calls = 0;
static char empty_asked[64];
static int on_empty(const char *containment, void *arg)
{
    (void)snprintf(empty_asked, sizeof empty_asked, "%s", containment);
    empty_calls++;
    return empty_answer;
}

static struct broker_req recover(struct worker *worker)
{
    struct broker_req req = { .op = BROKER_RECOVER };
    req.recover.empty = on_empty;
    ask_ok(worker->broker, &req);
    return req;
}

#define TEST(name) START_TEST(name)

/* ---- adding ---- */

TEST(an_unknown_broker_is_refused_by_name)
{
    struct broker *broker = NULL;
    struct mandor_err err = { 0 };
    ck_assert_int_eq(broker_open("carrier-pigeon:home", &loop, false, &broker, &err), -EINVAL);
    ck_assert_int_eq(err.fault, MANDOR_FAULT_CALLER);
    ck_assert_ptr_nonnull(strstr(err.msg, "carrier-pigeon:home"));
}
END_TEST

TEST(an_added_job_is_seen_by_another_client_as_waiting)
{
    struct broker *one = open_client(), *two = open_client();
    const char *id =
        add(one, "{\"exec\": [\"true\"], \"priority\": 3, \"attempts\": 4, \"queue\": \"q\"}");
    SCOPED_JSON *record = show(two, id);
    ck_assert_str_eq(json_string_value(json_object_get(record, "state")), "waiting");
    ck_assert_str_eq(json_string_value(json_object_get(record, "queue")), "q");
    ck_assert_str_eq(json_string_value(json_object_get(record, "id")), id);
    ck_assert_int_eq(json_integer_value(json_object_get(record, "priority")), 3);
    ck_assert_int_eq(json_integer_value(json_object_get(record, "attempts")), 4);
    ck_assert_int_eq(json_integer_value(json_object_get(record, "attempt")), 0);
    ck_assert(json_is_null(json_object_get(record, "started_at")));
    ck_assert(json_is_object(json_object_get(record, "spec")));
    close_broker(one);
    close_broker(two);
}
END_TEST

TEST(a_job_that_does_not_exist_is_not_found)
{
    struct broker *broker = open_client();
    const char *const ids[] = { "999999", "0", "-1", "x", "", "1x", "99999999999999999999999" };
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        struct broker_req req = { .op = BROKER_SHOW };
        req.show.id = ids[i];
        ck_assert_int_eq(ask(broker, &req), -ENOENT);
        ck_assert_int_eq(req.err.fault, MANDOR_FAULT_CALLER);
        ck_assert_int_eq(change(broker, BROKER_CANCEL, ids[i], NULL), -ENOENT);
        ck_assert_int_eq(change(broker, BROKER_REMOVE, ids[i], NULL), -ENOENT);
    }
    close_broker(broker);
}
END_TEST

TEST(a_unique_key_holds_until_its_job_is_final)
{
    SCOPED_JSON *json = NULL;
    SCOPED(spec_free) struct spec *spec = NULL;
    const char *text = "{\"exec\": [\"true\"], \"unique\": \"u\"}";
    ck_assert_int_eq(json_parse(text, strlen(text), &json, NULL), 0);
    ck_assert_int_eq(spec_from_json(json, NULL, &spec, NULL), 0);

    struct broker_added added[3] = { 0 };
    struct broker_req req = { .op = BROKER_ADD };
    req.add.specs = (const struct spec *const[]){ spec, spec, spec };
    req.add.count = 2;
    req.add.added = added;
    ask_ok(client, &req);
    ck_assert(!added[0].existing);
    ck_assert(added[1].existing);
    ck_assert_str_eq(added[0].id, added[1].id);

    const char *other_queue =
        add(client, "{\"exec\": [\"true\"], \"unique\": \"u\", \"queue\": \"other\"}");
    ck_assert_str_ne(other_queue, added[0].id);

    struct lease leases[2];
    struct lease_queue queue = { .name = "default", .max = 1 };
    ck_assert_uint_eq(lease_from(&served, &queue, 1, leases, 1, NULL), 1);
    int64_t token = start(&served, added[0].id, 0);
    req.add.count = 1;
    req.add.added = added + 1;
    ask_ok(client, &req);
    ck_assert_msg(added[1].existing, "active holds the key as well");
    ck_assert_int_eq(settle(&served, added[0].id, token, failed), 0);
    ask_ok(client, &req);
    ck_assert_msg(!added[1].existing, "final lets go of the key");
    ck_assert_int_eq(change(client, BROKER_RETRY, added[0].id, NULL), -EBUSY);
    lease_done(&leases[0]);
}
END_TEST

TEST(an_id_of_its_own_and_lifo_are_refused_where_the_broker_has_neither)
{
    static const char *const own[][2] = { { "id", "{\"exec\": [\"true\"], \"id\": \"a\"}" },
                                          { "lifo", "{\"exec\": [\"true\"], \"lifo\": true}" } };
    struct broker *broker = open_client();

    for (size_t i = 0; i < ARRAY_LEN(own); i++) {
        SCOPED_JSON *json = json_loads(own[i][1], 0, NULL);
        SCOPED(spec_free) struct spec *spec = NULL;
        struct mandor_err err = { 0 };
        ck_assert_int_eq(spec_from_json(json, NULL, &spec, NULL), 0);
        int r = broker_check_spec(broker, spec, &err);
        ck_assert_int_eq(r, strcmp(kind(), "bullmq") == 0 ? 0 : -EINVAL);
        ck_assert(r == 0 || strstr(err.msg, own[i][0]) != NULL);
    }
    close_broker(broker);
}
END_TEST

TEST(two_thousand_five_hundred_jobs_in_one_request_get_distinct_growing_ids)
{
    enum { COUNT = 2500 };
    struct broker *broker = open_client();
    SCOPED_JSON *json = json_pack("{s:[s]}", "exec", "true");
    SCOPED(spec_free) struct spec *spec = NULL;
    ck_assert_int_eq(spec_from_json(json, NULL, &spec, NULL), 0);
    static struct broker_added added[COUNT];
    static const struct spec *specs[COUNT];
    for (int i = 0; i < COUNT; i++)
        specs[i] = spec;
    struct broker_req req = { .op = BROKER_ADD };
    req.add.specs = specs;
    req.add.count = COUNT;
    req.add.added = added;
    ask_ok(broker, &req);
    for (int i = 1; i < COUNT; i++)
        ck_assert_int_gt(id_number(added[i].id), id_number(added[i - 1].id));

    struct broker_req stats = { .op = BROKER_STATS };
    ask_ok(broker, &stats);
    SCOPED_JSON *owned = stats.stats.stats;
    json_t *queue = json_object_get(json_object_get(owned, "queues"), "default");
    ck_assert_int_eq(json_integer_value(json_object_get(queue, "waiting")), COUNT);
    close_broker(broker);
}
END_TEST

TEST(add_says_whether_a_live_worker_serves_the_queue)
{
    struct broker *broker = open_client();
    struct worker worker;
    worker_open_as(&worker, "w", "[\"served\"]");
    SCOPED_JSON *json = json_pack("{s:[s], s:s}", "exec", "true", "queue", "served");
    SCOPED_JSON *other = json_pack("{s:[s], s:s}", "exec", "true", "queue", "other");
    SCOPED(spec_free) struct spec *spec = NULL, *other_spec = NULL;
    ck_assert_int_eq(spec_from_json(json, NULL, &spec, NULL), 0);
    ck_assert_int_eq(spec_from_json(other, NULL, &other_spec, NULL), 0);

    struct broker_added added[2] = { 0 };
    struct broker_req req = { .op = BROKER_ADD };
    req.add.specs = (const struct spec *const[]){ spec, other_spec };
    req.add.added = added;
    req.add.count = 1;
    ask_ok(broker, &req);
    ck_assert(req.add.served);
    req.add.count = 2;
    ask_ok(broker, &req);
    ck_assert_msg(!req.add.served, "one of the two queues has nobody");
    worker_die(&worker);
    req.add.count = 1;
    ask_ok(broker, &req);
    ck_assert_msg(!req.add.served, "a dead worker serves nothing");
    close_broker(broker);
}
END_TEST

/* ---- leasing ---- */

TEST(lower_priority_comes_first_and_then_the_older)
{
    const char *order[4];
    order[2] = add(client, "{\"exec\": [\"true\"], \"priority\": 5}");
    order[0] = add(client, TRUE_JOB);
    order[3] = add(client, "{\"exec\": [\"true\"], \"priority\": 5}");
    order[1] = add(client, TRUE_JOB);

    struct lease leases[4];
    ck_assert_uint_eq(lease(&served, leases, 4), 4);
    for (int i = 0; i < 4; i++) {
        ck_assert_str_eq(leases[i].id, order[i]);
        ck_assert_int_eq(leases[i].attempt, 0);
        lease_done(&leases[i]);
    }
}
END_TEST

TEST(no_job_is_leased_twice)
{
    struct broker *broker = open_client();
    struct worker one, two;
    worker_open(&one, "one");
    worker_open(&two, "two");
    (void)add(broker, TRUE_JOB);
    (void)add(broker, TRUE_JOB);
    struct lease a, b, c;
    ck_assert_uint_eq(lease(&one, &a, 1), 1);
    ck_assert_uint_eq(lease(&two, &b, 1), 1);
    ck_assert_uint_eq(lease(&one, &c, 1), 0);
    ck_assert_str_ne(a.id, b.id);
    lease_done(&a);
    lease_done(&b);
    worker_close(&one);
    worker_close(&two);
    close_broker(broker);
}
END_TEST

TEST(queues_are_served_in_the_order_asked_each_up_to_its_bound)
{
    for (int i = 0; i < 3; i++) {
        (void)add(client, "{\"exec\": [\"true\"], \"queue\": \"a\"}");
        (void)add(client, "{\"exec\": [\"true\"], \"queue\": \"b\"}");
    }
    struct lease leases[5];
    const struct lease_queue queues[] = { { .name = "b", .max = 2 }, { .name = "a", .max = 5 } };
    ck_assert_uint_eq(lease_from(&served, queues, 2, leases, 4, NULL), 4);
    const char *expected[] = { "b", "b", "a", "a" };
    for (int i = 0; i < 4; i++) {
        ck_assert_str_eq(leases[i].queue, expected[i]);
        lease_done(&leases[i]);
    }
}
END_TEST

/* Lease from one queue with `start` free slots. */
static size_t lease_and_start(struct worker *worker, const struct lease_queue *queue, size_t start,
                              struct lease *leases, size_t want)
{
    struct broker_req req = { .op = BROKER_LEASE };
    req.lease.want = want;
    req.lease.start = start;
    req.lease.queues = queue;
    req.lease.queue_count = queue != NULL ? 1 : 0;
    req.lease.leases = leases;
    ask_ok(worker->broker, &req);
    return req.lease.count;
}

static void on_counted(struct broker_req *req)
{
    ++*(size_t *)req->data;
}

TEST(ends_that_are_submitted_at_once_are_answered_each_for_itself_and_come_before_what_follows)
{
    struct lease leases[3];
    struct broker_req ends[3], look = { .op = BROKER_SHOW, .done = on_counted };
    const struct verdict verdict = { .cause = CAUSE_EXIT };
    size_t answers = 0;
    for (int i = 0; i < 3; i++)
        (void)add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, leases, 3), 3);
    for (size_t i = 0; i < 3; i++) {
        int64_t attempt = start(&served, leases[i].id, leases[i].attempt);
        ends[i] = (struct broker_req){ .op = BROKER_SETTLE, .done = on_counted, .data = &answers };
        ends[i].settle.id = leases[i].id;
        ends[i].settle.queue = "default";
        ends[i].settle.attempt = i == 1 ? attempt + 1 : attempt;
        ends[i].settle.plan = completed;
        ends[i].settle.record = "{}";
        ends[i].settle.verdict = &verdict;
        ends[i].settle.started_ms = ends[i].settle.finished_ms = clock_wall_ms();
        broker_submit(served.broker, &ends[i]);
    }
    look.data = &answers;
    look.show.id = leases[0].id;
    broker_submit(served.broker, &look);
    while (answers < 4)
        (void)uv_run(&loop, UV_RUN_ONCE);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(ends[i].status, i == 1 ? -ESTALE : 0);
        expect_state(client, leases[i].id, i == 1 ? "active" : "completed");
        lease_done(&leases[i]);
    }
    ck_assert_str_eq(json_string_value(json_object_get(look.show.record, "state")), "completed");
    json_decref(look.show.record);
}
END_TEST

/* A broker may start fewer than it is allowed to, never more; one that starts leases at all starts all of these. */
TEST(a_lease_starts_as_many_as_there_are_slots_and_what_it_started_is_as_if_started_by_itself)
{
    struct worker other;
    struct lease leases[4];
    struct broker_req again_req = { .op = BROKER_START };
    worker_open(&other, "x");
    for (int i = 0; i < 4; i++)
        (void)add(client, TRUE_JOB);
    size_t starts = broker_starts_leases(served.broker) ? 2 : 0;

    ck_assert_uint_eq(lease_and_start(&served, NULL, 2, leases, 3), 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(leases[i].started, i < starts);
        ck_assert_int_eq(leases[i].attempt, i < starts ? 1 : 0);
    }
    if (starts > 0) {
        ck_assert_int_eq(number(client, leases[0].id, "attempt"), 1);
        again_req.start.id = leases[0].id;
        again_req.start.attempt = 1;
        ck_assert_int_eq(ask(served.broker, &again_req), -ESTALE); /* once is enough */
        ck_assert_int_eq(settle(&other, leases[0].id, 1, completed), -ESTALE);
        ck_assert_int_eq(settle(&served, leases[0].id, 0, completed), -ESTALE);
        ck_assert_int_eq(settle(&served, leases[0].id, 1, again), 0);
        expect_state(client, leases[0].id, "waiting");
        ck_assert_int_eq(number(client, leases[0].id, "attempts_used"), 1);

        struct lease second;
        ck_assert_uint_eq(lease_and_start(&served, NULL, 1, &second, 1), 1);
        ck_assert_str_eq(second.id, leases[0].id);
        ck_assert(second.started && second.attempt == 2 && second.attempts_used == 1);
        ck_assert_int_eq(settle(&served, second.id, 1, completed), -ESTALE); /* the old token */
        ck_assert_int_eq(settle(&served, second.id, 2, completed), 0);
        expect_state(client, second.id, "completed");
        lease_done(&second);
    }
    ck_assert_int_eq(start(&served, leases[2].id, 0), 1); /* the one without a slot */
    for (size_t i = 0; i < 3; i++)
        lease_done(&leases[i]);
    worker_close(&other);
}
END_TEST

TEST(a_job_that_a_lease_started_has_as_many_attempts_as_its_queue_gives_it_unless_it_says_itself)
{
    struct lease leases[2];
    const struct lease_queue queue = { .name = "default", .max = 2, .start = 2, .attempts = 7 };
    (void)add(client, TRUE_JOB);
    (void)add(client, "{\"exec\": [\"true\"], \"attempts\": 2}");

    ck_assert_uint_eq(lease_and_start(&served, &queue, 2, leases, 2), 2);
    for (size_t i = 0; i < 2; i++) {
        struct broker_req req = { .op = BROKER_START };
        req.start.id = leases[i].id;
        req.start.attempt = 0;
        req.start.attempts = i == 0 ? 7 : 2;
        if (!leases[i].started)
            ask_ok(served.broker, &req);
        ck_assert_int_eq(number(client, leases[i].id, "attempts"), i == 0 ? 7 : 2);
        ck_assert_int_eq(number(client, leases[i].id, "attempt"), 1);
        lease_done(&leases[i]);
    }
}
END_TEST

TEST(a_job_that_a_lease_started_is_put_through_its_verdict_when_its_worker_dies)
{
    struct broker *broker = open_client();
    struct worker worker, successor;
    struct lease leases[2];
    const char *first = add(broker, TRUE_JOB), *second = add(broker, TRUE_JOB);
    worker_open(&worker, "w");
    bool starts = broker_starts_leases(worker.broker);
    ck_assert_uint_eq(lease_and_start(&worker, NULL, 1, leases, 2), 2);
    worker_die(&worker);

    worker_open(&successor, "x");
    (void)recover(&successor);
    expect_state(broker, first, starts ? "failed" : "waiting");
    expect_state(broker, second, "waiting"); /* leased, and never started */
    ck_assert_int_eq(number(broker, second, "attempts_used"), 0);
    lease_done(&leases[0]);
    lease_done(&leases[1]);
    worker_close(&successor);
    close_broker(broker);
}
END_TEST

TEST(a_paused_queue_gives_nothing_and_does_not_hold_up_a_drain)
{
    struct broker_req answer, pause = { .op = BROKER_PAUSE };
    struct lease got;
    const struct lease_queue queue = { .name = "default", .max = 9 };
    (void)add(client, TRUE_JOB);
    pause.pause.queue = "default";
    pause.pause.paused = true;
    ask_ok(client, &pause);
    ck_assert_uint_eq(lease_from(&served, &queue, 1, &got, 1, &answer), 0);
    ck_assert(answer.lease.drained);
    ck_assert_uint_eq(lease(&served, &got, 1), 0);
    pause.pause.paused = false;
    ask_ok(client, &pause);
    ck_assert_uint_eq(lease_from(&served, &queue, 1, &got, 1, &answer), 1);
    lease_done(&got);
}
END_TEST

TEST(drained_means_nothing_waiting_active_or_due_for_retry)
{
    struct broker_req answer;
    struct lease got, none;
    ck_assert_uint_eq(lease_from(&served, NULL, 0, &none, 1, &answer), 0);
    ck_assert(answer.lease.drained);

    (void)add(client, "{\"exec\": [\"true\"], \"delay\": \"1h\"}");
    ck_assert_uint_eq(lease_from(&served, NULL, 0, &none, 1, &answer), 0);
    ck_assert_msg(answer.lease.drained, "a delay that the user asked for is not waited for");
    ck_assert_int_gt(answer.lease.next_due_ms, 3500 * 1000);
    ck_assert_int_le(answer.lease.next_due_ms, 3600 * 1000);

    const char *id = add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    ck_assert_uint_eq(lease_from(&served, NULL, 0, &none, 1, &answer), 0);
    ck_assert_msg(!answer.lease.drained, "active");
    int64_t token = start(&served, id, 0);
    ck_assert_int_eq(settle(&served, id, token, (struct retry_plan){ JOB_DELAYED, true, 60000 }),
                     0);
    ck_assert_uint_eq(lease_from(&served, NULL, 0, &none, 1, &answer), 0);
    ck_assert_msg(!answer.lease.drained, "due for retry");
    ck_assert_int_gt(answer.lease.next_due_ms, 50000);
    ck_assert_int_le(answer.lease.next_due_ms, 60000);
    lease_done(&got);
}
END_TEST

TEST(a_delayed_job_comes_when_it_is_due)
{
    struct broker_req answer;
    struct lease got;
    int64_t began = clock_mono_ms();
    const char *id = add(client, "{\"exec\": [\"true\"], \"delay\": \"150ms\"}");
    expect_state(client, id, "delayed"); /* until somebody leases it */
    while (lease_from(&served, NULL, 0, &got, 1, &answer) == 0) {
        ck_assert_int_lt(clock_mono_ms() - began, 60000);
        if (starts_only()) /* which wakes by itself when something is due */
            continue;
        ck_assert_int_ge(answer.lease.next_due_ms, 0);
        ck_assert_int_le(answer.lease.next_due_ms, 150);
    }
    ck_assert_int_ge(clock_mono_ms() - began, 140); /* two clocks, in whole milliseconds */
    ck_assert_str_eq(got.id, id);
    lease_done(&got);
}
END_TEST

/* ---- attempts and the fence (I2, I7) ---- */

/* The phase is written when there is time: a broker may answer before. */
static void runs(struct worker *worker, struct broker *broker, const char *id, int64_t attempt)
{
    struct broker_req phase = { .op = BROKER_PHASE };
    int64_t deadline = clock_mono_ms() + 60000;
    phase.phase.id = id;
    phase.phase.attempt = attempt;
    phase.phase.phase = "running";
    phase.phase.containment = "slot-3";
    ask_ok(worker->broker, &phase);
    for (bool noted = false; !noted;) {
        SCOPED_JSON *record = show(broker, id);
        const char *text = json_string_value(json_object_get(record, "phase"));
        noted = text != NULL && strcmp(text, "running") == 0;
        ck_assert_msg(clock_mono_ms() < deadline, "job %s is not seen to run", id);
    }
}

TEST(a_job_goes_from_waiting_to_completed)
{
    struct lease got;
    const char *id = add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    ck_assert_int_eq(got.attempt, 0);
    expect_state(client, id, "active");
    ck_assert_int_eq(number(client, id, "attempt"), starts_only());
    ck_assert_int_eq(start(&served, id, 0), 1);
    ck_assert_int_eq(number(client, id, "attempt"), 1);

    runs(&served, client, id, 1);
    SCOPED_JSON *running = show(client, id);
    ck_assert_str_eq(json_string_value(json_object_get(running, "phase")), "running");
    ck_assert_str_eq(json_string_value(json_object_get(running, "worker")), "w");

    struct broker_req begin = { .op = BROKER_BEGIN_SETTLE };
    begin.begin_settle.id = id;
    begin.begin_settle.attempt = 1;
    ask_ok(served.broker, &begin);
    ck_assert_int_gt(begin.begin_settle.left_ms, 0); /* what the commit has */
    ck_assert_int_eq(settle(&served, id, 1, completed), 0);
    SCOPED_JSON *record = show(client, id);
    ck_assert_str_eq(json_string_value(json_object_get(record, "state")), "completed");
    ck_assert_str_eq(json_string_value(json_object_get(record, "cause")), "exit");
    ck_assert_int_eq(json_integer_value(json_object_get(record, "attempts_used")), 1);
    ck_assert(json_is_null(json_object_get(record, "phase")));
    ck_assert(json_is_string(json_object_get(record, "finished_at")));
    lease_done(&got);
}
END_TEST

TEST(a_wrong_token_is_refused_and_writes_nothing)
{
    struct broker *broker = open_client();
    struct worker one, two;
    struct lease got;
    worker_open(&one, "one");
    worker_open(&two, "two");
    const char *id = add(broker, TRUE_JOB);
    ck_assert_uint_eq(lease(&one, &got, 1), 1);
    struct broker_req start_again = { .op = BROKER_START };
    if (!starts_only()) {
        ck_assert_int_eq(settle(&one, id, 0, completed), -ESTALE); /* never started */
        ck_assert_int_eq(start(&one, id, 0), 1);
        start_again.start.id = id;
        start_again.start.attempt = 1;
        ck_assert_int_eq(ask(one.broker, &start_again), -ESTALE);
    }
    struct broker_req begin = { .op = BROKER_BEGIN_SETTLE };
    begin.begin_settle.id = id;
    begin.begin_settle.attempt = 1;
    ck_assert_int_eq(ask(two.broker, &begin), -ESTALE);
    ck_assert_int_eq(settle(&two, id, 1, completed), -ESTALE);
    ck_assert_int_eq(settle(&one, id, 2, completed), -ESTALE);
    ck_assert_int_eq(settle(&one, id, 0, completed), -ESTALE);
    ck_assert_int_eq(settle(&one, "77777", 1, completed), -ESTALE);
    expect_state(broker, id, "active");
    ck_assert_int_eq(settle(&one, id, 1, completed), 0);
    expect_state(broker, id, "completed");
    lease_done(&got);
    worker_close(&one);
    worker_close(&two);
    close_broker(broker);
}
END_TEST

TEST(settling_again_after_a_lost_answer_succeeds_and_changes_nothing)
{
    struct lease got;
    const char *id = add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    int64_t token = start(&served, id, 0);
    ck_assert_int_eq(settle(&served, id, token, failed), 0);
    ck_assert_int_eq(settle(&served, id, token, completed), 0);
    expect_state(client, id, "failed");
    ck_assert_int_eq(number(client, id, "attempts_used"), 1);
    lease_done(&got);
}
END_TEST

TEST(attempts_grow_and_earlier_ones_stay_in_the_history)
{
    const char *id =
        add(client, "{\"exec\": [\"true\"], \"attempts\": 3, \"backoff\": {\"delay\": 0}}");
    for (int64_t i = 0; i < 3; i++) {
        struct lease got;
        ck_assert_uint_eq(lease(&served, &got, 1), 1);
        ck_assert_int_eq(got.attempt, i);
        ck_assert_int_eq(got.attempts_used, i);
        ck_assert_int_eq(start(&served, id, i), i + 1);
        ck_assert_int_eq(settle(&served, id, i + 1, i < 2 ? again : failed), 0);
        lease_done(&got);
    }
    SCOPED_JSON *record = show(client, id);
    json_t *history = json_object_get(record, "history");
    ck_assert_uint_eq(json_array_size(history), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *entry = json_array_get(history, i);
        ck_assert_int_eq(json_integer_value(json_object_get(entry, "attempt")), (int64_t)i + 1);
        ck_assert_str_eq(json_string_value(json_object_get(entry, "cause")), "exit");
        ck_assert_int_eq(json_integer_value(json_object_get(entry, "exit_code")), 7);
    }
}
END_TEST

TEST(put_backs_are_counted_but_not_charged)
{
    struct lease got;
    const char *id = add(client, TRUE_JOB);
    for (int64_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(lease(&served, &got, 1), 1);
        ck_assert_int_eq(got.put_backs, i);
        ck_assert_int_eq(got.attempts_used, 0);
        int64_t token = start(&served, id, got.attempt);
        ck_assert_int_eq(settle(&served, id, token, (struct retry_plan){ .state = JOB_WAITING }),
                         0);
        lease_done(&got);
    }
    ck_assert_int_eq(number(client, id, "attempts_used"), 0);
    ck_assert_int_eq(number(client, id, "attempt"), 3);
}
END_TEST

TEST(what_was_leased_and_never_started_is_given_back_as_if_nothing_happened)
{
    struct lease got;
    const char *id = add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    struct broker_req back = { .op = BROKER_GIVE_BACK };
    struct lease_ref ref = { id, 0 };
    back.give_back.refs = &ref;
    back.give_back.count = 1;
    ask_ok(served.broker, &back);
    expect_state(client, id, "waiting");
    ck_assert_int_eq(number(client, id, "attempt"), 0);
    lease_done(&got);

    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    ref.attempt = start(&served, id, 0);
    ask_ok(served.broker, &back);
    expect_state(client, id, "active"); /* what runs cannot be given back */
    lease_done(&got);
}
END_TEST

/* It may come over another connection. */
static void hears_cancel(struct worker *worker, const char *id)
{
    const struct lease_ref ref = { id, 1 };
    int64_t deadline = clock_mono_ms() + 60000;
    for (unsigned char flag = 0; !(flag & RENEW_CANCEL);) {
        struct broker_req renew = { .op = BROKER_RENEW };
        renew.renew.refs = &ref;
        renew.renew.count = 1;
        renew.renew.flags = &flag;
        ask_ok(worker->broker, &renew);
        ck_assert_int_lt(clock_mono_ms(), deadline);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
}

TEST(renew_tells_of_lost_leases_and_of_cancels)
{
    struct lease got[2];
    struct broker_req cancel;
    const char *a = add(client, TRUE_JOB), *b = add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, got, 2), 2);
    ck_assert_int_eq(start(&served, a, 0), 1);
    ck_assert_int_eq(start(&served, b, 0), 1);
    ck_assert_int_eq(change(client, BROKER_CANCEL, b, &cancel), 0);
    if (!starts_only()) /* there the worker has heard of it already */
        ck_assert_str_eq(cancel.change.worker, "w");
    hears_cancel(&served, b);

    const struct lease_ref refs[] = { { a, 1 }, { b, 1 }, { a, 9 }, { "4242", 1 } };
    unsigned char flags[4] = { 9, 9, 9, 9 };
    struct broker_req renew = { .op = BROKER_RENEW };
    renew.renew.refs = refs;
    renew.renew.count = 4;
    renew.renew.flags = flags;
    ask_ok(served.broker, &renew);
    ck_assert_int_eq(flags[0], 0);
    ck_assert_int_eq(flags[1], RENEW_CANCEL);
    ck_assert_int_eq(flags[2], RENEW_LOST);
    ck_assert_int_eq(flags[3], RENEW_LOST);
    ck_assert(renew.renew.left_ms > 0 && renew.renew.left_ms <= 30000);
    lease_done(&got[0]);
    lease_done(&got[1]);
}
END_TEST

/* ---- cancel, retry, remove ---- */

TEST(cancelling_what_does_not_run_is_final_at_once)
{
    struct broker *broker = open_client();
    const char *waiting = add(broker, TRUE_JOB),
               *delayed = add(broker, "{\"exec\": [\"true\"], \"delay\": \"1h\"}");
    ck_assert_int_eq(change(broker, BROKER_CANCEL, waiting, NULL), 0);
    ck_assert_int_eq(change(broker, BROKER_CANCEL, delayed, NULL), 0);
    expect_state(broker, waiting, "cancelled");
    expect_state(broker, delayed, "cancelled");
    ck_assert_int_eq(change(broker, BROKER_CANCEL, waiting, NULL), -EBUSY);
    close_broker(broker);
}
END_TEST

TEST(a_cancel_between_lease_and_start_is_seen_by_the_start)
{
    struct lease got;
    const char *id = add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    ck_assert_int_eq(change(client, BROKER_CANCEL, id, NULL), 0);
    struct broker_req req = { .op = BROKER_START };
    req.start.id = id;
    ask_ok(served.broker, &req);
    ck_assert(req.start.cancelled);
    ck_assert_int_eq(
        settle(&served, id, req.start.attempt, (struct retry_plan){ .state = JOB_CANCELLED }), 0);
    expect_state(client, id, "cancelled");
    lease_done(&got);
}
END_TEST

TEST(a_cancelled_job_whose_attempt_ends_otherwise_is_not_retried)
{
    struct lease got;
    const char *id = add(client, "{\"exec\": [\"true\"], \"attempts\": 3}");
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    int64_t token = start(&served, id, 0);
    ck_assert_int_eq(change(client, BROKER_CANCEL, id, NULL), 0);
    hears_cancel(&served, id);
    ck_assert_int_eq(settle(&served, id, token, again), 0);
    expect_state(client, id, "cancelled");
    lease_done(&got);
}
END_TEST

TEST(retry_keeps_the_attempt_number_and_resets_the_charge)
{
    struct lease got;
    const char *id = add(client, TRUE_JOB);
    ck_assert_int_eq(change(client, BROKER_RETRY, id, NULL), -EBUSY);
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    int64_t token = start(&served, id, 0);
    ck_assert_int_eq(settle(&served, id, token, failed), 0);
    lease_done(&got);
    ck_assert_int_eq(change(client, BROKER_RETRY, id, NULL), 0);
    expect_state(client, id, "waiting");
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    ck_assert_int_eq(got.attempt, 1);
    ck_assert_int_eq(got.attempts_used, 0);
    ck_assert_int_eq(start(&served, id, 1), 2);
    lease_done(&got);
}
END_TEST

TEST(an_active_job_cannot_be_removed_and_a_final_one_can)
{
    struct lease got;
    const char *id = add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    int64_t token = start(&served, id, 0);
    ck_assert_int_eq(change(client, BROKER_REMOVE, id, NULL), -EBUSY);
    ck_assert_int_eq(settle(&served, id, token, completed), 0);
    ck_assert_int_eq(change(client, BROKER_REMOVE, id, NULL), 0);
    ck_assert_int_eq(change(client, BROKER_REMOVE, id, NULL), -ENOENT);
    const char *next = add(client, TRUE_JOB);
    ck_assert_str_ne(next, id);
    lease_done(&got);
}
END_TEST

TEST(whole_states_can_be_cancelled_retried_and_removed)
{
    struct broker *broker = open_client();
    for (int i = 0; i < 700; i++)
        (void)add(broker, TRUE_JOB);
    const char *other = add(broker, "{\"exec\": [\"true\"], \"queue\": \"other\"}");
    struct broker_req req = { .op = BROKER_CANCEL };
    req.change.queue = "default";
    req.change.state = JOB_WAITING;
    ask_ok(broker, &req);
    ck_assert_uint_eq(req.change.count, 700);
    expect_state(broker, other, "waiting");
    req.op = BROKER_RETRY;
    req.change.state = JOB_CANCELLED;
    req.change.queue = NULL;
    ask_ok(broker, &req);
    ck_assert_uint_eq(req.change.count, 700);
    req.op = BROKER_REMOVE;
    req.change.state = JOB_WAITING;
    ask_ok(broker, &req);
    ck_assert_uint_eq(req.change.count, 701);
    ask_ok(broker, &req);
    ck_assert_uint_eq(req.change.count, 0);
    close_broker(broker);
}
END_TEST

/* ---- listing and output ---- */

TEST(lists_page_from_the_newest_to_the_oldest)
{
    struct broker *broker = open_client();
    char last[64] = "";
    size_t seen = 0;
    for (int i = 0; i < 10; i++)
        (void)add(broker, i % 2 ? "{\"exec\": [\"true\"], \"queue\": \"odd\"}" : TRUE_JOB);
    for (;;) {
        struct broker_req req = { .op = BROKER_LIST };
        req.list.state = -1;
        req.list.limit = 3;
        req.list.after = last[0] != '\0' ? last : NULL;
        ask_ok(broker, &req);
        SCOPED_JSON *page = req.list.records;
        for (size_t i = 0; i < json_array_size(page); i++) {
            const char *id = json_string_value(json_object_get(json_array_get(page, i), "id"));
            ck_assert(last[0] == '\0' || atoll(id) < atoll(last));
            strcpy(last, id);
            seen++;
        }
        if (json_array_size(page) == 0)
            break;
    }
    ck_assert_uint_eq(seen, 10);

    struct broker_req odd = { .op = BROKER_LIST };
    odd.list.queue = "odd";
    odd.list.state = JOB_WAITING;
    odd.list.limit = 100;
    ask_ok(broker, &odd);
    SCOPED_JSON *records = odd.list.records;
    ck_assert_uint_eq(json_array_size(records), 5);
    struct broker_req done = { .op = BROKER_LIST };
    done.list.state = JOB_COMPLETED;
    done.list.limit = 100;
    ask_ok(broker, &done);
    SCOPED_JSON *none = done.list.records;
    ck_assert_uint_eq(json_array_size(none), 0);
    close_broker(broker);
}
END_TEST

TEST(inline_output_is_kept_for_each_attempt_byte_for_byte)
{
    const char *id =
        add(client, "{\"exec\": [\"true\"], \"attempts\": 2, \"backoff\": {\"delay\": 0}}");
    const struct verdict verdict = { .cause = CAUSE_EXIT };
    char bytes[2][5] = { "a\0\xff\n1", "b\0\xfe\n2" };
    for (int i = 0; i < 2; i++) {
        struct lease got;
        ck_assert_uint_eq(lease(&served, &got, 1), 1);
        struct broker_req req = { .op = BROKER_SETTLE };
        req.settle.id = id;
        req.settle.attempt = start(&served, id, i);
        req.settle.queue = "default";
        req.settle.plan = i == 0 ? again : completed;
        req.settle.verdict = &verdict;
        req.settle.out = bytes[i];
        req.settle.out_len = 5;
        req.settle.errout = "e";
        req.settle.errout_len = 1;
        ask_ok(served.broker, &req);
        lease_done(&got);
    }
    for (int64_t attempt = 0; attempt <= 2; attempt++) {
        struct broker_req req = { .op = BROKER_OUTPUT };
        req.output.id = id;
        req.output.attempt = attempt;
        if (starts_only() && attempt == 1) { /* its record keeps the newest one's */
            ck_assert_int_eq(ask(client, &req), -ENOENT);
            continue;
        }
        ask_ok(client, &req);
        ck_assert_int_eq(req.output.attempt_out, attempt == 0 ? 2 : attempt);
        ck_assert_uint_eq(req.output.len, 5);
        ck_assert_mem_eq(req.output.bytes, bytes[attempt == 1 ? 0 : 1], 5);
        ck_assert(!req.output.active);
        free(req.output.bytes);
    }
    struct broker_req err = { .op = BROKER_OUTPUT };
    err.output.id = id;
    err.output.want_stderr = true;
    ask_ok(client, &err);
    ck_assert_uint_eq(err.output.len, 1);
    free(err.output.bytes);
    struct broker_req third = { .op = BROKER_OUTPUT };
    third.output.id = id;
    third.output.attempt = 3;
    ck_assert_int_eq(ask(client, &third), -ENOENT);
}
END_TEST

TEST(output_names_the_worker_while_the_attempt_runs)
{
    struct lease got;
    const char *id = add(client, TRUE_JOB);
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    runs(&served, client, id, start(&served, id, 0));
    struct broker_req req = { .op = BROKER_OUTPUT };
    req.output.id = id;
    ask_ok(client, &req);
    ck_assert(req.output.active);
    ck_assert_str_eq(req.output.worker, "w");
    ck_assert_int_eq(req.output.attempt_out, 1);
    ck_assert_ptr_null(req.output.bytes);
    lease_done(&got);
}
END_TEST

/* ---- recovery (I8, R56, R60, R66) ---- */

TEST(a_dead_workers_started_job_is_charged_and_its_leased_one_is_not)
{
    struct broker *broker = open_client();
    struct worker dead, alive;
    struct lease got[2];
    worker_open(&dead, "dead");
    worker_open(&alive, "alive");
    const char *started =
        add(broker, "{\"exec\": [\"true\"], \"attempts\": 2, \"backoff\": {\"delay\": \"1h\"}}");
    const char *leased = add(broker, TRUE_JOB);
    const char *last = add(broker, TRUE_JOB);
    ck_assert_uint_eq(lease(&dead, got, 2), 2);
    (void)start(&dead, started, 0);
    struct lease third;
    ck_assert_uint_eq(lease(&dead, &third, 1), 1);
    (void)start(&dead, last, 0);
    worker_die(&dead);

    struct broker_req req = recover(&alive);
    ck_assert_uint_eq(req.recover.recovered, 3);
    ck_assert_str_eq(empty_asked, "base");
    expect_state(broker, started, "delayed");
    ck_assert_int_eq(number(broker, started, "attempts_used"), 1);
    expect_state(broker, leased, "waiting");
    ck_assert_int_eq(number(broker, leased, "attempts_used"), 0);
    expect_state(broker, last, "failed");
    SCOPED_JSON *record = show(broker, last);
    ck_assert_str_eq(json_string_value(json_object_get(record, "cause")), "worker_died");
    ck_assert_int_eq(access(dead.lock_path, F_OK), -1);
    ck_assert_uint_eq(recover(&alive).recover.recovered, 0);
    lease_done(&got[0]);
    lease_done(&got[1]);
    lease_done(&third);
    worker_close(&alive);
    close_broker(broker);
}
END_TEST

TEST(nothing_is_taken_over_while_the_liveness_lock_is_held)
{
    struct broker *broker = open_client();
    struct worker one, two;
    struct lease got;
    worker_open(&one, "one");
    worker_open(&two, "two");
    const char *id = add(broker, TRUE_JOB);
    ck_assert_uint_eq(lease(&one, &got, 1), 1);
    close_broker(one.broker); /* its guard still holds the lock */
    ck_assert_uint_eq(recover(&two).recover.recovered, 0);
    ck_assert_int_eq(empty_calls, 0);
    expect_state(broker, id, "active");
    ck_assert_int_eq(close(one.lock_fd), 0);
    ck_assert_uint_eq(recover(&two).recover.recovered, 1);
    expect_state(broker, id, "waiting");
    lease_done(&got);
    worker_close(&two);
    close_broker(broker);
}
END_TEST

TEST(nothing_is_taken_over_before_its_containment_is_empty)
{
    struct broker *broker = open_client();
    struct worker one, two;
    struct lease got;
    worker_open(&one, "one");
    worker_open(&two, "two");
    const char *id = add(broker, TRUE_JOB);
    ck_assert_uint_eq(lease(&one, &got, 1), 1);
    worker_die(&one);
    empty_answer = -EAGAIN;
    ck_assert_uint_eq(recover(&two).recover.recovered, 0);
    ck_assert_int_eq(empty_calls, 1);
    expect_state(broker, id, "active");
    empty_answer = 0;
    ck_assert_uint_eq(recover(&two).recover.recovered, 1);
    expect_state(broker, id, "waiting");
    lease_done(&got);
    worker_close(&two);
    close_broker(broker);
}
END_TEST

TEST(a_cancel_outlives_the_death_of_the_worker)
{
    struct broker *broker = open_client();
    struct worker one, two;
    struct lease got[2];
    worker_open(&one, "one");
    worker_open(&two, "two");
    const char *a = add(broker, "{\"exec\": [\"true\"], \"attempts\": 5}"),
               *b = add(broker, TRUE_JOB);
    ck_assert_uint_eq(lease(&one, got, 2), 2);
    (void)start(&one, a, 0);
    ck_assert_int_eq(change(broker, BROKER_CANCEL, a, NULL), 0);
    ck_assert_int_eq(change(broker, BROKER_CANCEL, b, NULL), 0);
    worker_die(&one);
    ck_assert_uint_eq(recover(&two).recover.recovered, 2);
    expect_state(broker, a, "cancelled");
    expect_state(broker, b, "cancelled");
    lease_done(&got[0]);
    lease_done(&got[1]);
    worker_close(&two);
    close_broker(broker);
}
END_TEST

TEST(a_worker_that_signs_off_gives_its_unstarted_jobs_back)
{
    struct broker *broker = open_client();
    struct worker worker;
    struct lease got;
    worker_open(&worker, "w");
    const char *id = add(broker, TRUE_JOB);
    ck_assert_uint_eq(lease(&worker, &got, 1), 1);
    worker_close(&worker);
    expect_state(broker, id, "waiting");
    lease_done(&got);
    close_broker(broker);
}
END_TEST

/* ---- wake-ups ---- */

static int wakes;
static void on_wake(void *arg)
{
    wakes++;
}

static void expect_wake(const char *what)
{
    int64_t deadline = clock_mono_ms() + 60000;
    while (wakes == 0) {
        ck_assert_msg(clock_mono_ms() < deadline, "no wake-up after %s", what);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    wakes = 0;
}

TEST(workers_are_woken_by_add_cancel_resume_and_retry)
{
    struct lease got;
    ck_assert_int_eq(broker_listen(served.broker, "w", on_wake, NULL, NULL), 0);
    const char *id = add(client, TRUE_JOB);
    expect_wake("add");
    ck_assert_uint_eq(lease(&served, &got, 1), 1);
    ck_assert_int_eq(change(client, BROKER_CANCEL, id, NULL), 0);
    expect_wake("cancel");
    struct broker_req resume = { .op = BROKER_PAUSE };
    resume.pause.queue = "default";
    ask_ok(client, &resume);
    expect_wake("resume");
    int64_t attempt = 0;
    ck_assert_int_eq(settle(&served, id, attempt, (struct retry_plan){ .state = JOB_CANCELLED }),
                     0);
    ck_assert_int_eq(change(client, BROKER_RETRY, id, NULL), 0);
    expect_wake("retry");
    lease_done(&got);
}
END_TEST

/* ---- order and closing ---- */

static int order_seen[64], order_count;
static void note_order(struct broker_req *req)
{
    order_seen[order_count++] = (int)(intptr_t)req->data;
}

TEST(everything_submitted_is_carried_out_before_the_broker_closes)
{
    struct broker *broker = open_client();
    const char *id = add(broker, TRUE_JOB);
    static struct broker_req reqs[20];
    for (int i = 0; i < 20; i++) {
        reqs[i] = (struct broker_req){ .op = BROKER_PAUSE,
                                       .done = note_order,
                                       .data = (void *)(intptr_t)i };
        reqs[i].pause.queue = "default";
        reqs[i].pause.paused = i % 2;
        broker_submit(broker, &reqs[i]);
    }
    close_broker(broker);
    ck_assert_int_eq(order_count, 20);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(order_seen[i], i);
        ck_assert_int_eq(reqs[i].status, 0);
    }
    broker = open_client();
    struct broker_req stats = { .op = BROKER_STATS };
    ask_ok(broker, &stats);
    SCOPED_JSON *owned = stats.stats.stats;
    ck_assert(json_is_true(
        json_object_get(json_object_get(json_object_get(owned, "queues"), "default"), "paused")));
    expect_state(broker, id, "waiting");
    close_broker(broker);
}
END_TEST

/* What BullMQ's protocol, which is not ours to change, does otherwise.  tests/scenario/test_67_bullmq.py has what it does there. */
static const struct {
    const char *test, *why;
} not_bullmq[] = {
    { "a_unique_key_holds_until_its_job_is_final", "a retry does not ask who has the key now" },
    { "add_says_whether_a_live_worker_serves_the_queue", "workers of others may serve it" },
    { "a_lease_starts_as_many_as_there_are_slots_and_what_it_started_is_as_if_started_by_itself",
      "nothing is leased without being started" },
    { "a_job_that_a_lease_started_has_as_many_attempts_as_its_queue_gives_it_unless_it_says_itself",
      "the job's own options alone say how many" },
    { "a_job_that_a_lease_started_is_put_through_its_verdict_when_its_worker_dies",
      "jobs of the dead are recovered as stalled when their locks are over" },
    { "drained_means_nothing_waiting_active_or_due_for_retry",
      "it wakes by itself when something is due, and does not say when" },
    { "settling_again_after_a_lost_answer_succeeds_and_changes_nothing",
      "what was lost is asked again inside; an answer ends the lease" },
    { "what_was_leased_and_never_started_is_given_back_as_if_nothing_happened",
      "nothing is leased without being started" },
    { "a_cancel_between_lease_and_start_is_seen_by_the_start",
      "nothing is leased without being started" },
    { "ends_that_are_submitted_at_once_are_answered_each_for_itself_and_come_before_what_follows",
      "ends go out together, once a turn: a look of the same turn comes before them" },
    { "lists_page_from_the_newest_to_the_oldest", "ids count within their queue" },
    { "a_dead_workers_started_job_is_charged_and_its_leased_one_is_not",
      "jobs of the dead are recovered as stalled when their locks are over" },
    { "nothing_is_taken_over_while_the_liveness_lock_is_held", "only the job's lock counts" },
    { "nothing_is_taken_over_before_its_containment_is_empty", "only the job's lock counts" },
    { "a_cancel_outlives_the_death_of_the_worker", "a cancel is a word to the worker" },
    { "a_worker_that_signs_off_gives_its_unstarted_jobs_back",
      "nothing is leased without being started" },
    { "workers_are_woken_by_add_cancel_resume_and_retry",
      "it waits at the queue's marker once it has found nothing" },
};

static bool applies(const TTest *test)
{
    for (size_t i = 0; starts_only() && i < ARRAY_LEN(not_bullmq); i++)
        if (strcmp(test->name, not_bullmq[i].test) == 0) {
            printf("left out: %s: %s\n", not_bullmq[i].test, not_bullmq[i].why);
            return false;
        }
    return true;
}

static void add_tests(Suite *suite, TCase *tcase, const TTest *const *tests, size_t count)
{
    tcase_set_timeout(tcase, 300);
    for (size_t i = 0; i < count; i++)
        if (applies(tests[i]))
            tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
}

int main(void)
{
#ifdef HAVE_REDIS
    if (strcmp(kind(), "sqlite") != 0 && !redis_rig_possible())
        return 77; /* skipped */
#endif
    Suite *suite = suite_create("broker");
    TCase *all = tcase_create("contract"), *one = tcase_create("one worker");
    const TTest *const tests[] = {
        an_unknown_broker_is_refused_by_name,
        an_added_job_is_seen_by_another_client_as_waiting,
        a_job_that_does_not_exist_is_not_found,
        an_id_of_its_own_and_lifo_are_refused_where_the_broker_has_neither,
        two_thousand_five_hundred_jobs_in_one_request_get_distinct_growing_ids,
        add_says_whether_a_live_worker_serves_the_queue,
        no_job_is_leased_twice,
        a_job_that_a_lease_started_is_put_through_its_verdict_when_its_worker_dies,
        a_wrong_token_is_refused_and_writes_nothing,
        cancelling_what_does_not_run_is_final_at_once,
        whole_states_can_be_cancelled_retried_and_removed,
        lists_page_from_the_newest_to_the_oldest,
        a_dead_workers_started_job_is_charged_and_its_leased_one_is_not,
        nothing_is_taken_over_while_the_liveness_lock_is_held,
        nothing_is_taken_over_before_its_containment_is_empty,
        a_cancel_outlives_the_death_of_the_worker,
        a_worker_that_signs_off_gives_its_unstarted_jobs_back,
        everything_submitted_is_carried_out_before_the_broker_closes,
    };
    const TTest *const served_tests[] = {
        a_unique_key_holds_until_its_job_is_final,
        lower_priority_comes_first_and_then_the_older,
        queues_are_served_in_the_order_asked_each_up_to_its_bound,
        a_lease_starts_as_many_as_there_are_slots_and_what_it_started_is_as_if_started_by_itself,
        a_job_that_a_lease_started_has_as_many_attempts_as_its_queue_gives_it_unless_it_says_itself,
        a_paused_queue_gives_nothing_and_does_not_hold_up_a_drain,
        drained_means_nothing_waiting_active_or_due_for_retry,
        a_delayed_job_comes_when_it_is_due,
        a_job_goes_from_waiting_to_completed,
        ends_that_are_submitted_at_once_are_answered_each_for_itself_and_come_before_what_follows,
        settling_again_after_a_lost_answer_succeeds_and_changes_nothing,
        attempts_grow_and_earlier_ones_stay_in_the_history,
        put_backs_are_counted_but_not_charged,
        what_was_leased_and_never_started_is_given_back_as_if_nothing_happened,
        renew_tells_of_lost_leases_and_of_cancels,
        a_cancel_between_lease_and_start_is_seen_by_the_start,
        a_cancelled_job_whose_attempt_ends_otherwise_is_not_retried,
        retry_keeps_the_attempt_number_and_resets_the_charge,
        an_active_job_cannot_be_removed_and_a_final_one_can,
        inline_output_is_kept_for_each_attempt_byte_for_byte,
        output_names_the_worker_while_the_attempt_runs,
        workers_are_woken_by_add_cancel_resume_and_retry,
    };

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_checked_fixture(one, setup_served, teardown_served);
    add_tests(suite, all, tests, ARRAY_LEN(tests));
    add_tests(suite, one, served_tests, ARRAY_LEN(served_tests));
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int count = srunner_ntests_failed(runner);
    srunner_free(runner);
    return count == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* bench_broker BROKER COUNT WINDOW - what a broker alone does: COUNT jobs added, leased and started, and settled, WINDOW requests under way.
 * Nothing runs.  Prints {"add": jobs a second, "lease": …, "settle": …, "ok": settled}. */
#include "bench.h"
#include "broker/broker.h"

#define ADD_BATCH 200
#define LEASE_MAX 256

static uv_loop_t loop;
static struct broker *broker;

static _Noreturn void refuse(const struct mandor_err *err)
{
    (void)fprintf(stderr, "bench_broker: %s\n", err->msg);
    exit(1);
}

static void ask(struct broker_req *req)
{
    if (broker_wait(broker, req) < 0)
        refuse(&req->err);
}

/* ---- add: requests of many jobs, as `mandor add --from` makes them ---- */

struct batch {
    struct broker_req req;
    struct broker_added added[ADD_BATCH];
    const struct spec *specs[ADD_BATCH];
};

static int64_t adding;

static void on_added(struct broker_req *req)
{
    if (req->status < 0)
        refuse(&req->err);
    adding -= (int64_t)req->add.count;
    free(req->data);
}

static double add(const struct spec *spec, int64_t count)
{
    int64_t start_ns = now_ns();

    for (int64_t left = count; left > 0;) {
        struct batch *batch = calloc(1, sizeof *batch);
        size_t n = left < ADD_BATCH ? (size_t)left : ADD_BATCH;
        for (size_t i = 0; i < n; i++)
            batch->specs[i] = spec;
        batch->req = (struct broker_req){ .op = BROKER_ADD, .done = on_added, .data = batch };
        batch->req.add.specs = batch->specs;
        batch->req.add.count = n;
        batch->req.add.added = batch->added;
        adding += (int64_t)n;
        left -= (int64_t)n;
        broker_submit(broker, &batch->req);
        while (adding >= 4 * ADD_BATCH)
            (void)uv_run(&loop, UV_RUN_ONCE);
    }
    while (adding > 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    return (double)count / seconds_since(start_ns);
}

/* ---- lease, and settle as a worker does ---- */

struct job {
    struct broker_req req;
    struct lease lease;
};

static int64_t settling, settled;

static void on_settled(struct broker_req *req)
{
    if (req->status < 0)
        refuse(&req->err);
    settling--;
    settled++;
}

static double lease(struct job *jobs, int64_t count)
{
    static struct lease leases[LEASE_MAX];
    int64_t start_ns = now_ns(), have = 0;

    while (have < count) {
        struct broker_req req = { .op = BROKER_LEASE };
        req.lease.want = req.lease.start = LEASE_MAX;
        req.lease.leases = leases;
        ask(&req);
        for (size_t i = 0; i < req.lease.count && have < count; i++)
            jobs[have++].lease = leases[i];
        if (req.lease.count == 0)
            exit(1);
    }
    return (double)count / seconds_since(start_ns);
}

static double settle(struct job *jobs, int64_t count, int64_t window)
{
    static const char record[] = "{\"cause\":\"exit\",\"exit_code\":0,\"usage\":{\"user_ms\":1,"
                                 "\"system_ms\":1,\"wall_ms\":3}}";
    int64_t start_ns = now_ns();

    for (int64_t i = 0; i < count; i++) {
        struct broker_req *req = &jobs[i].req;
        *req = (struct broker_req){ .op = BROKER_SETTLE, .done = on_settled };
        req->settle.id = jobs[i].lease.id;
        req->settle.queue = "default";
        req->settle.attempt = jobs[i].lease.attempt;
        req->settle.plan = (struct retry_plan){ .state = JOB_COMPLETED, .charged = true };
        req->settle.record = record;
        req->settle.started_ms = req->settle.finished_ms = 1;
        settling++;
        broker_submit(broker, req);
        while (settling >= window)
            (void)uv_run(&loop, UV_RUN_ONCE);
    }
    while (settling > 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    return (double)count / seconds_since(start_ns);
}

int main(int argc, char **argv)
{
    struct mandor_err err = { 0 };
    struct spec *spec;

    if (argc != 4) {
        (void)fprintf(stderr, "usage: bench_broker BROKER COUNT WINDOW\n");
        return 2;
    }
    int64_t count = number(argv[2]), window = number(argv[3]);
    json_t *text = json_pack("{s:[s]}", "exec", "/bin/true");
    if (uv_loop_init(&loop) != 0 || broker_open(argv[1], &loop, true, &broker, &err) < 0 ||
        spec_from_json(text, NULL, &spec, &err) < 0)
        refuse(&err);
    struct broker_req reg = { .op = BROKER_REGISTER };
    reg.reg.worker = "bench";
    reg.reg.lock_path = "";
    reg.reg.containment = "";
    reg.reg.queues = "[]";
    reg.reg.lease_ms = 600000;
    ask(&reg);

    struct job *jobs = calloc((size_t)count, sizeof *jobs);
    double added = add(spec, count), leased = lease(jobs, count),
           ended = settle(jobs, count, window);
    printf("{\"add\": %.0f, \"lease\": %.0f, \"settle\": %.0f, \"ok\": %" PRId64 "}\n", added,
           leased, ended, settled);
    for (int64_t i = 0; i < count; i++)
        lease_done(&jobs[i].lease);
    free(jobs);
    broker_close(broker, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    json_decref(text);
    (void)spec_free(spec);
    return 0;
}

/* bench_add BROKER COUNT JSON - COUNT durable adds by one process, one job a request, each waited for. */
#include "bench.h"
#include "broker/broker.h"

static _Noreturn void refuse(const struct mandor_err *err)
{
    (void)fprintf(stderr, "bench_add: %s\n", err->msg);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        (void)fprintf(stderr, "usage: bench_add BROKER COUNT JSON\n");
        return 2;
    }
    int64_t count = number(argv[2]), ok = 0;
    struct mandor_err err = { 0 };
    struct broker *broker;
    struct spec *spec;
    uv_loop_t loop;

    json_t *job = json_loads(argv[3], 0, NULL);
    if (uv_loop_init(&loop) != 0 || broker_open(argv[1], &loop, false, &broker, &err) < 0 ||
        spec_from_json(job, NULL, &spec, &err) < 0)
        refuse(&err);

    int64_t start_ns = now_ns();
    for (int64_t i = 0; i < count; i++) {
        struct broker_added added = { 0 };
        struct broker_req req = { .op = BROKER_ADD };
        req.add.specs = (const struct spec *const *)&spec;
        req.add.count = 1;
        req.add.added = &added;
        if (broker_wait(broker, &req) < 0)
            refuse(&req.err);
        ok += added.id[0] != '\0';
    }
    printf("{\"seconds\": %.6f, \"ok\": %" PRId64 "}\n", seconds_since(start_ns), ok);

    broker_close(broker, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    json_decref(job);
    (void)spec_free(spec);
    return 0;
}

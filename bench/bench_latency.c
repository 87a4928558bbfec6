/* bench_latency BROKER SOCKET COUNT STAMP [cancel] - how soon an idle worker acts.
 *
 * Adds one job at a time that runs STAMP (bench_stamp) and prints, as a JSON array in µs, the time from the call of add to
 * the job's first instruction.  With cancel: from the call of cancel to the moment when the kernel has closed the job's
 * socket, that is, to its death.
 */
#include <sys/socket.h>
#include <sys/un.h>

#include "bench.h"
#include "broker/broker.h"

struct probe {
    struct broker *broker;
    int listener;
    struct spec *spec;
    char id[BROKER_ID_SIZE]; /* of the job added last */
};

static _Noreturn void refuse(const struct mandor_err *err)
{
    (void)fprintf(stderr, "bench_latency: %s\n", err->msg);
    exit(1);
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 8) < 0)
        give_up(path);
    return fd;
}

static void add(struct probe *probe)
{
    struct broker_added added = { 0 };
    struct broker_req req = { .op = BROKER_ADD };

    req.add.specs = (const struct spec *const *)&probe->spec;
    req.add.count = 1;
    req.add.added = &added;
    if (broker_wait(probe->broker, &req) < 0)
        refuse(&req.err);
    (void)snprintf(probe->id, sizeof probe->id, "%s", added.id);
}

static void cancel(struct probe *probe)
{
    struct broker_req req = { .op = BROKER_CANCEL };

    req.change.id = probe->id;
    if (broker_wait(probe->broker, &req) < 0)
        refuse(&req.err);
}

/* The job has come: its connection, and when it was born. */
static int meet(struct probe *probe, int64_t *ret_born_ns)
{
    int fd = accept(probe->listener, NULL, NULL);

    if (fd < 0 || read(fd, ret_born_ns, sizeof *ret_born_ns) != sizeof *ret_born_ns)
        give_up("meeting the job");
    return fd;
}

/* Let the worker settle and become idle again; not part of what is measured. */
static void rest(void)
{
    (void)usleep(30000);
}

static int64_t sample(struct probe *probe, bool cancelling)
{
    int64_t start_ns = now_ns(), born_ns;
    char byte;

    add(probe);
    int fd = meet(probe, &born_ns);
    if (cancelling) {
        rest();
        start_ns = now_ns();
        cancel(probe);
        while (read(fd, &byte, 1) > 0)
            continue;
        born_ns = now_ns();
    }
    (void)close(fd);
    rest();
    return born_ns - start_ns;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        (void)fprintf(stderr, "usage: bench_latency BROKER SOCKET COUNT STAMP [cancel]\n");
        return 2;
    }
    bool cancelling = argc > 5;
    int64_t count = number(argv[3]);
    struct probe probe = { .listener = listen_at(argv[2]) };
    struct mandor_err err = { 0 };
    uv_loop_t loop;

    json_t *job = cancelling ? json_pack("{s:[sss]}", "exec", argv[4], argv[2], "hold")
                             : json_pack("{s:[ss]}", "exec", argv[4], argv[2]);
    if (uv_loop_init(&loop) != 0 || broker_open(argv[1], &loop, false, &probe.broker, &err) < 0 ||
        spec_from_json(job, NULL, &probe.spec, &err) < 0)
        refuse(&err);

    printf("[");
    for (int64_t i = 0; i < count; i++)
        printf("%s%.1f", i > 0 ? ", " : "", (double)sample(&probe, cancelling) / 1000);
    printf("]\n");

    broker_close(probe.broker, NULL, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&loop);
    (void)close(probe.listener);
    (void)unlink(argv[2]);
    json_decref(job);
    (void)spec_free(probe.spec);
    return 0;
}

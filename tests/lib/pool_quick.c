/* pool_quick.c - a warm worker that starts at once, for tests that need thousands of starts: {"sleep_ms": N} sleeps, and the result is
 * the job's data. */
#include <stdlib.h>
#include <time.h>

#include <mandor/worker.h>

static int handle(struct mandor_job *job, void *arg)
{
    size_t len;
    const char *ms = mandor_json_get(mandor_worker_data(job), "sleep_ms", &len);
    long sleep_ms = ms != NULL ? strtol(ms, NULL, 10) : 0;
    struct timespec nap = { .tv_sec = sleep_ms / 1000, .tv_nsec = sleep_ms % 1000 * 1000000 };

    (void)arg;
    (void)nanosleep(&nap, NULL);
    return mandor_worker_result(job, mandor_worker_data(job));
}

int main(void)
{
    return mandor_worker_run(handle, NULL) == 0 ? 0 : 1;
}

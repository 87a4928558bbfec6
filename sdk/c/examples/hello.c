/* hello.c - the smallest worker: mandor add --pool hello --data '"world"' */
#include <stdio.h>

#include <mandor/worker.h>

static int handle(struct mandor_job *job, void *arg)
{
    char text[256], result[1024];

    (void)arg;
    (void)snprintf(text, sizeof text, "hello, your data is %.200s", mandor_worker_data(job));
    if (mandor_json_quote(text, result, sizeof result) >= sizeof result)
        return mandor_worker_fail(job, "too long");
    return mandor_worker_result(job, result);
}

int main(void)
{
    return mandor_worker_run(handle, NULL) == 0 ? 0 : 1;
}

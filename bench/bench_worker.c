/* bench_worker.c - a warm worker for the rows of pools, on the C library: what a job asks for and nothing else.
 *
 *   any data           result null
 *   {"bytes": N}       N bytes on stdout, in writes of 1 MiB, from a pattern that shows an exchange of blocks
 */
#include <mandor/worker.h>

#include "bench.h"
#include "pattern.h"

static int handle(struct mandor_job *job, void *arg)
{
    static unsigned char block[PATTERN_SIZE];
    size_t len;
    const char *bytes = mandor_json_get(mandor_worker_data(job), "bytes", &len);
    int64_t left = bytes != NULL ? strtoll(bytes, NULL, 10) : 0;

    (void)arg;
    if (left > 0)
        pattern_fill(block);
    for (int r; left > 0; left -= PATTERN_SIZE) {
        size_t part = left < PATTERN_SIZE ? (size_t)left : (size_t)PATTERN_SIZE;
        if ((r = mandor_worker_write(job, MANDOR_WORKER_STDOUT, block, part)) < 0)
            return r;
    }
    return 0;
}

int main(void)
{
    return mandor_worker_run(handle, NULL) == 0 ? 0 : 1;
}

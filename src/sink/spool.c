/* spool.c - contract in spool.h.
 *
 * Work is queued by device, and the device of a path is known only after something on it answered.  So a small table
 * remembers it for each directory; a path that is not in it waits in the line of unknown ones.
 */
#include "sink/spool.h"

#include <pthread.h>

#define KNOWN_DIRS 64

static struct {
    uint64_t dir_hash, device;
} known[KNOWN_DIRS];
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t device_of(const char *dir)
{
    uint64_t hash = XXH3_64bits(dir, strlen(dir)), device = WORK_UNKNOWN;

    pthread_mutex_lock(&known_lock);
    if (known[hash % KNOWN_DIRS].dir_hash == hash)
        device = known[hash % KNOWN_DIRS].device;
    pthread_mutex_unlock(&known_lock);
    return device;
}

static void learn(const char *dir, uint64_t device)
{
    uint64_t hash = XXH3_64bits(dir, strlen(dir));

    pthread_mutex_lock(&known_lock);
    known[hash % KNOWN_DIRS].dir_hash = hash;
    known[hash % KNOWN_DIRS].device = device;
    pthread_mutex_unlock(&known_lock);
}

int spool_init(struct spool *spool, struct sink *sink, const struct sink_target *target,
               const char *path, const char *known_dir)
{
    spool->sink = sink;
    spool->file.fd = -1;
    spool->known_dir = strdup(known_dir);
    if (spool->known_dir == NULL)
        return -ENOMEM;
    return tempfile_init(&spool->file, path, target->job_id == NULL ? "run" : target->job_id,
                         target->attempt, target->trace == NULL ? target->stream : target->trace,
                         target->journal_dir);
}

void spool_done(struct spool *spool)
{
    if (spool->sink == NULL) /* never initialised: its file's fd is 0 then */
        return;
    tempfile_done(&spool->file);
    free(STEAL(spool->known_dir));
}

static bool may_publish(void *arg, struct mandor_err *err)
{
    const struct spool *spool = arg;

    return sink_may_publish(spool->sink, err);
}

static int steps(struct spool *spool)
{
    struct tempfile *file = &spool->file;
    int r = 0;

    if (spool->steps & SPOOL_OPEN)
        r = tempfile_open(file, &spool->err);
    if (r == 0 && (spool->steps & SPOOL_WRITE))
        r = tempfile_write(file, &spool->head, 1, NULL, &spool->err);
    if (r == 0 && (spool->steps & SPOOL_WRITE))
        r = tempfile_write(file, spool->iov, spool->count, spool->hash, &spool->err);
    if (r == 0 && (spool->steps & SPOOL_PREPARE))
        r = tempfile_prepare(file, &spool->err);
    if (r == 0 && (spool->steps & SPOOL_COMMIT))
        r = tempfile_commit(file, may_publish, spool, &spool->err);
    if (spool->steps & SPOOL_ABORT)
        tempfile_abort(file);
    return r;
}

static void run(struct work *work)
{
    struct spool *spool = CONTAINER_OF(work, struct spool, work);

    spool->result = steps(spool);
}

static void after(struct work *work)
{
    struct spool *spool = CONTAINER_OF(work, struct spool, work);

    if ((spool->steps & SPOOL_OPEN) && spool->file.fd >= 0)
        learn(spool->known_dir, spool->file.device);
    spool->head = (struct iovec){ 0 };
    if (spool->after != NULL)
        spool->after(spool);
    else
        sink_answer(spool->sink, spool->result, &spool->err);
}

void spool_run(struct spool *spool, unsigned todo)
{
    uint64_t device = spool->file.fd >= 0 ? spool->file.device : device_of(spool->known_dir);

    spool->steps = todo;
    work_submit(sink_loop(spool->sink), &spool->work, device, run, after);
}

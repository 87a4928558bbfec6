/* Work on the pool: a device that hangs takes two threads and no more. */
#include <semaphore.h>

#include "lib/unit.h"
#include "loop/work.h"

struct piece {
    struct work work;
    sem_t *gate; /* waited for when not NULL */
    bool ran, done;
};

static uv_loop_t loop;
static int order[64], finished;

static void run(struct work *work)
{
    struct piece *piece = CONTAINER_OF(work, struct piece, work);

    if (piece->gate != NULL)
        while (sem_wait(piece->gate) < 0)
            ;
    piece->ran = true;
}

static struct piece pieces[64];

static void after(struct work *work)
{
    struct piece *piece = CONTAINER_OF(work, struct piece, work);

    ck_assert(piece->ran && !piece->done);
    piece->done = true;
    order[finished++] = (int)(piece - pieces);
}

static void submit(int i, uint64_t device, sem_t *gate)
{
    pieces[i].gate = gate;
    work_submit(&loop, &pieces[i].work, device, run, after);
    ck_assert(!pieces[i].done);
}

TEST(a_device_that_hangs_leaves_threads_to_the_others)
{
    sem_t gate;

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(sem_init(&gate, 0, 0), 0);
    for (int i = 0; i < 8; i++)
        submit(i, 1, &gate); /* hangs */
    submit(8, WORK_UNKNOWN, &gate);
    submit(9, WORK_UNKNOWN, &gate);
    ck_assert(!work_free(&loop, 1));
    ck_assert(work_free(&loop, 2));
    for (int i = 10; i < 40; i++)
        submit(i, 2 + (uint64_t)i % 3, NULL);
    while (finished < 30) /* hangs here if all threads are taken; the suite's time limit says so */
        (void)uv_run(&loop, UV_RUN_ONCE);
    for (int i = 0; i < 10; i++)
        ck_assert(!pieces[i].ran);

    for (int i = 0; i < 10; i++)
        (void)sem_post(&gate);
    while (finished < 40)
        (void)uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    (void)sem_destroy(&gate);
}

TEST(work_for_one_device_starts_in_the_order_it_came)
{
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    for (int i = 0; i < 20; i++)
        submit(i, WORK_UNKNOWN, NULL); /* one at a time */
    while (finished < 20)
        (void)uv_run(&loop, UV_RUN_ONCE);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(order[i], i);
    ck_assert(work_free(&loop, WORK_UNKNOWN));
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

UNIT_MAIN("work")

/* test_deadline.c - what must not happen early does not, on a loop whose clock is behind. */
#include "base/deadline.h"

#include <time.h>

#include "base/clock.h"
#include "lib/unit.h"

/* libuv asks here and takes the coarse clock, which may be a whole tick (1 to 10 ms) behind. */
int clock_getres(clockid_t id, struct timespec *res)
{
    *res = (struct timespec){ .tv_nsec = id == CLOCK_MONOTONIC_COARSE ? 1000000 : 1 };
    return 0;
}

struct wait {
    uv_timer_t timer;
    int64_t since_ns, took_ns;
};

static void on_due(uv_timer_t *timer)
{
    struct wait *wait = timer->data;

    wait->took_ns = clock_mono_ns() - wait->since_ns;
    uv_close((uv_handle_t *)timer, NULL);
}

/* A turn that takes longer and longer, and what is started at its end. */
TEST(it_is_never_early)
{
    static struct wait waits[200];
    int64_t until_ns = clock_mono_ns();
    uv_loop_t loop;

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    for (int i = 0; i < (int)ARRAY_LEN(waits); i++) {
        for (until_ns += 100000; clock_mono_ns() < until_ns;)
            continue;
        ck_assert_int_eq(uv_timer_init(&loop, &waits[i].timer), 0);
        waits[i].timer.data = &waits[i];
        waits[i].since_ns = clock_mono_ns();
        deadline_start(&waits[i].timer, on_due, i % 20 - 1);
    }
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    for (int i = 0; i < (int)ARRAY_LEN(waits); i++)
        ck_assert_int_ge(waits[i].took_ns, (i % 20 - 1) * INT64_C(1000000));
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* The one that was started last. */
TEST(it_is_started_anew)
{
    struct wait wait = { .since_ns = clock_mono_ns() };
    uv_loop_t loop;

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(uv_timer_init(&loop, &wait.timer), 0);
    wait.timer.data = &wait;
    deadline_start(&wait.timer, on_due, 0);
    deadline_start(&wait.timer, on_due, 50);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_ge(wait.took_ns, 50000000);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

UNIT_MAIN("deadline")

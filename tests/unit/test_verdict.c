/* test_verdict.c - the table of outcomes, walked whole, and what follows from an outcome. */
#include "job/verdict.h"

#include "lib/unit.h"

static int codes[] = { 100, 7 };
static const struct spec spec = {
    .attempts = 3,
    .backoff = BACKOFF_EXPONENTIAL,
    .backoff_delay_ms = 1000,
    .backoff_max_ms = 300000,
    .no_retry_exit_codes = codes,
    .no_retry_count = 2,
};

/* The contract's table. */
static const struct {
    struct verdict verdict;
    enum outcome outcome;
} rows[] = {
    { { .cause = CAUSE_EXIT, .exit_code = 0 }, OUTCOME_COMPLETED },
    { { .cause = CAUSE_EXIT, .exit_code = 1 }, OUTCOME_RETRY },
    { { .cause = CAUSE_EXIT, .exit_code = 255 }, OUTCOME_RETRY },
    { { .cause = CAUSE_EXIT, .exit_code = 100 }, OUTCOME_FAILED },
    { { .cause = CAUSE_EXIT, .exit_code = 7 }, OUTCOME_FAILED },
    { { .cause = CAUSE_SIGNAL, .exit_code = -1, .signal = 11 }, OUTCOME_RETRY },
    { { .cause = CAUSE_TIMEOUT, .exit_code = -1 }, OUTCOME_RETRY },
    { { .cause = CAUSE_TIMEOUT, .exit_code = 0 },
      OUTCOME_RETRY }, /* exits 0 on the SIGTERM: has timed out all the same */
    { { .cause = CAUSE_TIMEOUT, .exit_code = 100 }, OUTCOME_RETRY },
    { { .cause = CAUSE_IDLE_TIMEOUT, .exit_code = 0 }, OUTCOME_RETRY },
    { { .cause = CAUSE_CANCELLED, .exit_code = 0 }, OUTCOME_CANCELLED },
    { { .cause = CAUSE_OOM, .exit_code = -1 }, OUTCOME_RETRY },
    { { .cause = CAUSE_LIMIT, .exit_code = 0 }, OUTCOME_RETRY },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENOENT, .stage = STAGE_LOOKUP }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENOENT, .stage = STAGE_EXEC }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = EACCES, .stage = STAGE_EXEC }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENOEXEC, .stage = STAGE_EXEC }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = E2BIG, .stage = STAGE_EXEC }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENOENT, .stage = STAGE_CHDIR }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENOTDIR, .stage = STAGE_CHDIR }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = EPERM, .stage = STAGE_USER }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = EOPNOTSUPP, .stage = STAGE_PREPARE }, OUTCOME_FAILED },
    { { .cause = CAUSE_SPAWN, .spawn_errno = EAGAIN, .stage = STAGE_CLONE }, OUTCOME_PUT_BACK },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENOMEM, .stage = STAGE_EXEC }, OUTCOME_PUT_BACK },
    { { .cause = CAUSE_SPAWN, .spawn_errno = EMFILE, .stage = STAGE_PREPARE }, OUTCOME_PUT_BACK },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENFILE, .stage = STAGE_PREPARE }, OUTCOME_PUT_BACK },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENOENT, .stage = STAGE_CGROUP }, OUTCOME_RETRY },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ENOENT, .stage = STAGE_PREPARE }, OUTCOME_RETRY },
    { { .cause = CAUSE_SPAWN, .spawn_errno = EIO, .stage = STAGE_EXEC }, OUTCOME_RETRY },
    { { .cause = CAUSE_SPAWN, .spawn_errno = ETXTBSY, .stage = STAGE_EXEC }, OUTCOME_RETRY },
    { { .cause = CAUSE_SINK, .exit_code = 0 }, OUTCOME_RETRY },
    { { .cause = CAUSE_PROTOCOL, .exit_code = 0 }, OUTCOME_RETRY },
    { { .cause = CAUSE_LOST_LEASE, .exit_code = 0 }, OUTCOME_NOTHING },
    { { .cause = CAUSE_SHUTDOWN, .exit_code = 0 }, OUTCOME_PUT_BACK },
    { { .cause = CAUSE_WORKER_DIED, .exit_code = -1 }, OUTCOME_RETRY },
    { { .cause = CAUSE_AGAIN, .exit_code = 0 }, OUTCOME_PUT_BACK },
};

TEST(every_verdict_has_the_outcome_of_the_contract)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        ck_assert_msg(verdict_outcome(&rows[i].verdict, &spec) == rows[i].outcome,
                      "row %zu: %s → outcome %d, expected %d", i, cause_name(rows[i].verdict.cause),
                      (int)verdict_outcome(&rows[i].verdict, &spec), (int)rows[i].outcome);
}

TEST(no_cause_exit_code_or_errno_falls_through_the_table)
{
    int wrong = 0;

    for (int cause = 0; cause < CAUSE_COUNT; cause++)
        for (int code = -1; code < 256; code++)
            for (int stage = 0; stage < STAGE_COUNT; stage++) {
                struct verdict verdict = { .cause = (enum cause)cause,
                                           .exit_code = code,
                                           .spawn_errno = code,
                                           .stage = (enum spawn_stage)stage };
                enum outcome outcome =
                    verdict_outcome(&verdict, &spec); /* aborts on a hole in the table */
                wrong += (outcome == OUTCOME_COMPLETED) != (cause == CAUSE_EXIT && code == 0);
                wrong += (outcome == OUTCOME_NOTHING) != (cause == CAUSE_LOST_LEASE);
            }
    ck_assert_int_eq(wrong, 0);
}

TEST(names_lead_back_to_their_values)
{
    for (int i = 0; i < CAUSE_COUNT; i++)
        ck_assert_str_ne(cause_name((enum cause)i), "?");
    for (int i = 0; i < JOB_STATES; i++)
        ck_assert_int_eq(job_state_from_name(job_state_name((enum job_state)i)), i);
    for (int i = 0; i < STAGE_COUNT; i++)
        ck_assert_str_ne(spawn_stage_name((enum spawn_stage)i), "?");
    ck_assert_int_eq(job_state_from_name("done"), -ENOENT);
    ck_assert_str_eq(cause_name(CAUSE_COUNT), "?");
}

/* ---- retry ---- */

static void check_plan(struct retry_plan plan, enum job_state state, bool charged, int64_t delay_ms)
{
    ck_assert_str_eq(job_state_name(plan.state), job_state_name(state));
    ck_assert_int_eq(plan.charged, charged);
    ck_assert_int_eq(plan.delay_ms, delay_ms);
}

TEST(a_retry_is_charged_until_the_attempts_are_used)
{
    check_plan(retry_plan(OUTCOME_RETRY, &spec, 0, 0, 0.5), JOB_DELAYED, true, 1000);
    check_plan(retry_plan(OUTCOME_RETRY, &spec, 1, 9, 0.5), JOB_DELAYED, true, 2000);
    check_plan(retry_plan(OUTCOME_RETRY, &spec, 2, 0, 0.5), JOB_FAILED, true, 0);
    check_plan(retry_plan(OUTCOME_RETRY, &spec, 99, 0, 0.5), JOB_FAILED, true, 0);
    check_plan(retry_plan(OUTCOME_FAILED, &spec, 0, 0, 0.5), JOB_FAILED, true, 0);
    check_plan(retry_plan(OUTCOME_COMPLETED, &spec, 0, 0, 0.5), JOB_COMPLETED, true, 0);
    check_plan(retry_plan(OUTCOME_CANCELLED, &spec, 0, 0, 0.5), JOB_CANCELLED, false, 0);
}

TEST(a_put_back_is_not_charged_and_doubles_up_to_a_minute)
{
    static const int64_t delays[] = { 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000 };

    for (size_t i = 0; i < ARRAY_LEN(delays); i++)
        check_plan(retry_plan(OUTCOME_PUT_BACK, &spec, 2, (int64_t)i, 0.9), JOB_DELAYED, false,
                   delays[i]);
    check_plan(retry_plan(OUTCOME_PUT_BACK, &spec, 0, INT64_MAX, 0), JOB_DELAYED, false, 60000);
}

TEST(the_delay_doubles_up_to_its_maximum)
{
    struct spec s = spec;

    s.attempts = 1000000;
    for (int64_t used = 0; used < 100; used++) {
        int64_t want = used < 9 ? INT64_C(1000) << used : 300000;
        check_plan(retry_plan(OUTCOME_RETRY, &s, used, 0, 0.3), JOB_DELAYED, true,
                   MIN(want, INT64_C(300000)));
    }
    s.backoff = BACKOFF_FIXED;
    check_plan(retry_plan(OUTCOME_RETRY, &s, 50, 0, 0.3), JOB_DELAYED, true, 1000);
    s.backoff_delay_ms = 0;
    check_plan(retry_plan(OUTCOME_RETRY, &s, 0, 0, 0.3), JOB_WAITING, true, 0);
    s.backoff = BACKOFF_EXPONENTIAL;
    check_plan(retry_plan(OUTCOME_RETRY, &s, 60, 0, 0.3), JOB_WAITING, true, 0);
    /* A hundred years do not overflow. */
    s.backoff_delay_ms = s.backoff_max_ms = INT64_C(36500) * 86400000;
    check_plan(retry_plan(OUTCOME_RETRY, &s, 999, 0, 0.3), JOB_DELAYED, true, s.backoff_max_ms);
}

TEST(jitter_spreads_both_ways_and_never_passes_the_maximum)
{
    struct spec s = spec;

    s.attempts = 1000000;
    s.backoff_jitter = 0.2;
    check_plan(retry_plan(OUTCOME_RETRY, &s, 0, 0, 0), JOB_DELAYED, true, 800);
    check_plan(retry_plan(OUTCOME_RETRY, &s, 0, 0, 0.5), JOB_DELAYED, true, 1000);
    check_plan(retry_plan(OUTCOME_RETRY, &s, 0, 0, 0.75), JOB_DELAYED, true, 1100);
    int64_t low = retry_plan(OUTCOME_RETRY, &s, 40, 0, 0).delay_ms;
    int64_t high = retry_plan(OUTCOME_RETRY, &s, 40, 0, 0.999999).delay_ms;
    ck_assert_int_le(high, 300000);
    ck_assert_int_ge(high, 299990);
    /* At the cap they are still spread: no burst comes back as one. */
    ck_assert_int_eq(low, 200000);
    s.backoff_jitter = 1;
    check_plan(retry_plan(OUTCOME_RETRY, &s, 0, 0, 0), JOB_WAITING, true, 0);
}

UNIT_MAIN("verdict")

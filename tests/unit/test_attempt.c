/* The moves of an attempt: every pair of state and event, and that each life ends. */
#include "lib/unit.h"
#include "worker/attempt.h"

static bool final(enum attempt_state state)
{
    return state == ATTEMPT_DONE || state == ATTEMPT_DROPPED;
}

TEST(final_states_have_no_moves)
{
    for (int state = 0; state < ATTEMPT_STATES; state++)
        for (int event = 0; event < ATTEMPT_EVENTS; event++)
            if (final((enum attempt_state)state))
                ck_assert_int_eq(attempt_next((enum attempt_state)state, (enum attempt_event)event),
                                 -1);
}

static bool reaches_end(enum attempt_state state, int depth)
{
    if (final(state))
        return true;
    for (int event = 0; event < ATTEMPT_EVENTS && depth > 0; event++) {
        int next = attempt_next(state, (enum attempt_event)event);
        if (next >= 0 && reaches_end((enum attempt_state)next, depth - 1))
            return true;
    }
    return false;
}

TEST(every_state_can_end)
{
    for (int state = 0; state < ATTEMPT_STATES; state++)
        ck_assert_msg(reaches_end((enum attempt_state)state, ATTEMPT_STATES), "%s never ends",
                      attempt_state_name((enum attempt_state)state));
}

TEST(nothing_settles_before_its_outputs_have_ended)
{
    for (int state = 0; state < ATTEMPT_STATES; state++) {
        int next = attempt_next((enum attempt_state)state, ATTEMPT_SETTLED);
        ck_assert_int_eq(next, state == ATTEMPT_SETTLING ? ATTEMPT_DONE : -1);
        next = attempt_next((enum attempt_state)state, ATTEMPT_COMMITTED);
        ck_assert_int_eq(next, state == ATTEMPT_COMMITTING ? ATTEMPT_SETTLING : -1);
    }
}

TEST(a_running_attempt_only_leaves_by_ending)
{
    for (int event = 0; event < ATTEMPT_EVENTS; event++)
        ck_assert_int_eq(attempt_next(ATTEMPT_RUNNING, (enum attempt_event)event),
                         event == ATTEMPT_ENDED ? ATTEMPT_COMMITTING : -1);
}

UNIT_MAIN("attempt")

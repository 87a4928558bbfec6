/* child.c - one child's life from request to empty; contract in child.h, moves in child_moves.def.
 *
 * on_exited and on_empty come from the loop, never from inside a call of the owner: on_exited from the sentinel or the
 * spawner's answer, on_empty from the nursery's turn.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "child/child_int.h"

static const struct move {
    enum child_state from;
    enum child_event event;
    enum child_state to;
} moves[] = {
#define MOVE(from, event, to) { CHILD_##from, CHILD_##event, CHILD_##to },
#include "child/child_moves.def"
#undef MOVE
};

static const char *const state_names[CHILD_STATES] = { "STARTING", "RUNNING", "EXITED", "HOLLOW",
                                                       "EMPTYING", "DUE",     "EMPTY",  "GONE" };
static const char *const event_names[CHILD_EVENTS] = { "SPAWNED",    "SPAWN_FAILED", "REAPED",
                                                       "TREE_EMPTY", "EMPTY_ASKED",  "TOLD",
                                                       "CLOSED" };

int child_next(enum child_state state, enum child_event event)
{
    for (size_t i = 0; i < ARRAY_LEN(moves); i++)
        if (moves[i].from == state && moves[i].event == event)
            return (int)moves[i].to;
    return -EPROTO;
}

void child_move(struct child *child, enum child_event event)
{
    int next = child_next(child->state, event);
    BUG_ON(next < 0);
    log_debug("child", "child %s: %s -%s-> %s", child->label, state_names[child->state],
              event_names[event], state_names[next]);
    child->state = (enum child_state)next;
}

/* ---- start ---- */

static void free_child(struct child *child)
{
    free(child->label);
    free(child->tmp_dir);
    free(child->work_dir);
    OBJ_FINI(child);
    free(child);
}

void child_refuse(struct child *child, enum spawn_stage stage, int error, const char *why)
{
    struct mandor_err err;

    (void)err_say(&err, error, FAULT_HOST, "%s", why);
    (void)launch_note(child, stage, &err);
    nursery_due(child->nursery, child);
}

/* Duplicate what the launch lends.  0 or -errno. */
static int borrow(struct child *child)
{
    const struct child_launch *launch = &child->launch;
    const int lent[] = { launch->stdout_fd, launch->stderr_fd,
                         launch->channel_fd > 0 ? launch->channel_fd : -1,
                         launch->zygote_fd > 0 ? launch->zygote_fd : -1 };
    for (size_t i = 0; i < ARRAY_LEN(lent); i++)
        if (lent[i] >= 0 && (child->given[i] = fcntl(lent[i], F_DUPFD_CLOEXEC, 10)) < 0)
            return -errno;
    return 0;
}

int child_start(struct nursery *nursery, const struct child_launch *launch,
                const struct child_events *events, void *arg, struct child **ret)
{
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    struct child *child = calloc(1, sizeof *child);
    char *label = child == NULL ? NULL : strdup(launch->label);
    if (label == NULL) {
        free(child);
        return -ENOMEM;
    }

    *child = (struct child){
        .magic = CHILD_MAGIC,
        .nursery = nursery,
        .launch = *launch,
        .label = label,
        .events = events,
        .arg = arg,
        .launch_task = { .run = launch_run, .done = child_launched },
        .pidfd = -1,
        .pipes = { -1, -1, -1, -1 },
        .given = { -1, -1, -1, -1 },
        .cpu_limited = launch->limits.cpu_time_ms > 0,
        .file_limited = launch->limits.file_size_bytes > 0,
        .as_ourselves = launch->user == NULL && launch->group == NULL,
        .asked_at_ns = clock_mono_ns(),
        .rung = launch->containment,
    };
    child->launch.label = child->label;
    list_init(&child->due);
    stop_init(child);
    list_push_back(&nursery->children, &child->node);
    nursery->alive++;
    int r = borrow(child);
    if (nursery->guard_lost) /* the end has begun: nothing may be born into it */
        child_refuse(child, STAGE_NONE, -ECANCELED,
                     "the guard is lost, nothing is started any more");
    else if (r < 0)
        child_refuse(child, STAGE_PREPARE, r, "duplicate the descriptors for the job");
    else
        lane_push(nursery->spawner, &child->launch_task);
    *ret = child;
    return 0;
}

/* ---- the verdict ---- */

static void say(struct verdict *verdict, const char *text)
{
    (void)snprintf(verdict->error, sizeof verdict->error, "%s", text);
}

static void say_how_it_ended(struct verdict *verdict)
{
    char how[80] = "";
    if (verdict->exit_code >= 0)
        (void)snprintf(how, sizeof how, "exit code %d", verdict->exit_code);
    else if (verdict->signal > 0) {
        const char *name = sigabbrev_np(verdict->signal);
        (void)snprintf(how, sizeof how, "killed by signal %d%s%s%s", verdict->signal,
                       name == NULL ? "" : " (SIG", name == NULL ? "" : name,
                       name == NULL ? "" : ")");
    }

    switch (verdict->cause) {
    case CAUSE_EXIT:
        say(verdict, verdict->exit_code == 0 ? "" : how);
        break;
    case CAUSE_SIGNAL:
        (void)snprintf(verdict->error, sizeof verdict->error, "%s%s", how,
                       verdict->core_dumped ? ", core dumped" : "");
        break;
    case CAUSE_OOM:
        (void)snprintf(verdict->error, sizeof verdict->error,
                       "memory limit exceeded, all of the job was killed (%s)", how);
        break;
    case CAUSE_LIMIT:
        (void)snprintf(verdict->error, sizeof verdict->error, "%s limit exceeded (%s)",
                       verdict->signal == SIGXFSZ ? "file_size" : "cpu_time", how);
        break;
    default: /* something that mandor did */
        (void)snprintf(verdict->error, sizeof verdict->error, "%s%s (%s)",
                       cause_name(verdict->cause), verdict->forced ? ", had to be killed" : "",
                       how);
    }
}

/* What mandor did decides first, then what the limits did, then the leader's own end. */
static enum cause find_cause(const struct child *child, const struct verdict *verdict)
{
    if (child->stop_asked)
        return child->stop_cause;
    if (child->slot != NULL && slot_oom_killed(child->slot))
        return CAUSE_OOM;
    if (child->file_limited && verdict->signal == SIGXFSZ)
        return CAUSE_LIMIT;
    bool cpu_spent =
        (verdict->user_us + verdict->system_us) / 1000 >= child->launch.limits.cpu_time_ms;
    if (child->cpu_limited &&
        (verdict->signal == SIGXCPU || (verdict->signal == SIGKILL && cpu_spent)))
        return CAUSE_LIMIT;
    return verdict->signal > 0 ? CAUSE_SIGNAL : CAUSE_EXIT;
}

static int64_t us_of(struct timeval t)
{
    return (int64_t)t.tv_sec * 1000000 + t.tv_usec;
}

/* ru_maxrss is never less than this process's own size was at the clone: exec(2) counts the memory it leaves (Linux
 * fs/exec.c, exec_mmap).  It is exact for any job that is larger than the worker. */
static void freeze_verdict(struct child *child, const siginfo_t *info, const struct rusage *usage)
{
    struct verdict *verdict = &child->verdict;
    bool exited = info->si_code == CLD_EXITED;
    *verdict = (struct verdict){
        .exit_code = exited ? info->si_status : -1,
        .signal = exited ? 0 : info->si_status,
        .core_dumped = info->si_code == CLD_DUMPED,
        .user_us = us_of(usage->ru_utime),
        .system_us = us_of(usage->ru_stime),
        .max_rss_bytes = (int64_t)usage->ru_maxrss * 1024,
        .wall_ms = (clock_mono_ns() - child->started_at_ns) / 1000000,
    };
    verdict->forced = child->ladder == LADDER_KILL && verdict->signal == SIGKILL;
    verdict->cause = find_cause(child, verdict);
    say_how_it_ended(verdict);
}

/* ---- the sentinel's side ---- */

static void watch_closed(uv_handle_t *handle)
{
    struct child *child = handle->data;
    OBJ_CHECK(child, CHILD_MAGIC);
    if (--child->open_handles == 0)
        free_child(child);
}

static void on_exit_ready(uv_poll_t *watch, int status, int events)
{
    struct child *child = watch->data;
    OBJ_CHECK(child, CHILD_MAGIC);
    (void)status, (void)events;
    child_reap(child);
}

static void on_oom(uv_poll_t *watch, int status, int events)
{
    struct child *child = watch->data;
    OBJ_CHECK(child, CHILD_MAGIC);
    (void)status, (void)events;
    (void)uv_poll_stop(watch);
    child_stop(child, CAUSE_OOM, 0);
}

void child_unwatch_oom(struct child *child)
{
    if (child->oom_watched)
        uv_close((uv_handle_t *)&child->oom_watch, watch_closed);
    child->oom_watched = false;
}

static bool watch(struct child *child, uv_poll_t *handle, int fd, uv_poll_cb on_ready)
{
    if (uv_poll_init(child->nursery->loop, handle, fd) != 0)
        return false;
    handle->data = child;
    child->open_handles++;
    (void)uv_poll_start(handle, UV_READABLE, on_ready);
    return true;
}

bool child_unwatched(const struct child *child)
{
    return child->state == CHILD_RUNNING && !child->nursery->adopt_orphans && !child->exit_watched;
}

void child_reap(struct child *child)
{
    siginfo_t info;
    struct rusage usage;
    int r = kin_reap(&child->nursery->kinship, &child->kin, child->pidfd, &info, &usage);
    if (r == 0)
        return; /* stopped or continued, not dead (R17) */
    /* -ECHILD: somebody else waited for our child; what it left as is not known to us */
    if (r < 0) {
        log_warn("child %s: wait for process %d: %s", child->label, child->kin.pid, strerror(-r));
        info = (siginfo_t){ .si_code = CLD_KILLED, .si_status = SIGKILL };
        usage = (struct rusage){ 0 };
    }

    freeze_verdict(child, &info, &usage);
    /* With its descriptor: later it would take another one of that number out of epoll. */
    if (child->exit_watched)
        uv_close((uv_handle_t *)&child->exit_watch, watch_closed);
    child->exit_watched = false;
    (void)close(child->pidfd);
    child->pidfd = -1;
    child_move(child, CHILD_REAPED);
    /* Before the owner hears of it: a tree that is empty now needs no look later. */
    child_pulse(child);
    child->events->on_exited(child, &child->verdict, child->arg);
}

/* ---- the spawner's answer ---- */

static void launch_failed(struct child *child)
{
    struct verdict *verdict = &child->verdict;
    metric_add(METRIC_spawn_failures, 1);
    *verdict = (struct verdict){
        .cause = child->stop_asked ? child->stop_cause : CAUSE_SPAWN,
        .exit_code = -1,
        .stage = child->failed_stage,
        .spawn_errno = -child->failed,
    };
    memcpy(verdict->error, child->error, sizeof verdict->error);
    child_move(child, CHILD_SPAWN_FAILED);
    child->tree_empty = true;
    child->nursery->alive--;
    child_move(child, CHILD_TREE_EMPTY);
    nursery_tidy(child->nursery, child);
    child->events->on_exited(child, verdict, child->arg);
}

void child_launched(struct lane_task *task)
{
    struct child *child = CONTAINER_OF(task, struct child, launch_task);
    OBJ_CHECK(child, CHILD_MAGIC);
    struct nursery *nursery = child->nursery;
    if (child->slot != NULL) {
        child->rung = child->slot->rung;
        memcpy(child->slot_name, child->slot->name, sizeof child->slot_name);
    }
    if (child->failed < 0) {
        launch_release(child);
        launch_failed(child);
        return;
    }

    child->started_at_ns = clock_mono_ns();
    child->kill_began_at_ms = 0; /* a start that had to be broken off is over */
    metric_add(METRIC_spawns, 1);
    metric_observe(METRIC_spawn_us, (child->started_at_ns - child->asked_at_ns) / 1000);
    if (child->slot->keeper != NULL)
        child->slot->keeper->owner = child;
    if (child->slot->oom_event >= 0)
        child->oom_watched = watch(child, &child->oom_watch, child->slot->oom_event, on_oom);
    child_move(child, CHILD_SPAWNED);
    if (!nursery->adopt_orphans)
        child->exit_watched = watch(child, &child->exit_watch, child->pidfd, on_exit_ready);

    struct child_pipes pipes = child->pipes; /* the owner's from here on */
    child->pipes = (struct child_pipes){ -1, -1, -1, -1 };
    child->events->on_spawned(child, child->kin.pid, &pipes, child->arg);
    if (child_unwatched(child)) {
        log_error("child %s: process %d cannot be watched, killing it", child->label,
                  child->kin.pid);
        child_stop(child, CAUSE_SPAWN, 0);
    }
    child_pulse(child); /* a stop may have been asked for meanwhile */
}

/* ---- the end ---- */

void child_empty(struct child *child)
{
    OBJ_CHECK(child, CHILD_MAGIC);
    if (child->empty_asked)
        return;
    child->empty_asked = true;
    child_move(child, CHILD_EMPTY_ASKED);
    if (child->state == CHILD_DUE)
        nursery_due(child->nursery, child);
    else
        child_pulse(child);
}

void child_tell_empty(struct child *child)
{
    child_move(child, CHILD_TOLD);
    child->verdict.descendants_killed = child->descendants_killed;
    child->events->on_empty(child, child->arg);
}

void child_close(struct child *child)
{
    OBJ_CHECK(child, CHILD_MAGIC);
    child_move(child, CHILD_CLOSED);
    list_remove(&child->node);
    if (child->exit_watched)
        uv_close((uv_handle_t *)&child->exit_watch, watch_closed);
    child_unwatch_oom(child);
    uv_close((uv_handle_t *)&child->timer, watch_closed);
}

void child_suspend(struct child *child, bool on)
{
    OBJ_CHECK(child, CHILD_MAGIC);
    /* Unreaped, so the group is still its own. */
    if (child->state == CHILD_RUNNING)
        (void)kill(-child->kin.pid, on ? SIGSTOP : SIGCONT);
}

void child_note_cpu_time(struct child *child, int64_t cpu_time_ms)
{
    OBJ_CHECK(child, CHILD_MAGIC);
    child->cpu_limited = cpu_time_ms > 0;
    child->launch.limits.cpu_time_ms = cpu_time_ms;
}

/* ---- queries ---- */

pid_t child_pid(const struct child *child)
{
    return child->state == CHILD_STARTING ? 0 : child->kin.pid;
}

const char *child_slot(const struct child *child)
{
    return child->slot_name;
}

enum spec_containment child_containment(const struct child *child)
{
    return child->rung;
}

json_t *child_limits_enforced(const struct child *child)
{
    if (child->limits_asked == 0)
        return NULL;
    json_t *limits = json_object();
    for (unsigned i = 0; limits != NULL && i < ARRAY_LEN(limit_names); i++)
        if ((child->limits_asked & 1u << i) != 0)
            (void)json_object_set_new(limits, limit_names[i],
                                      json_boolean((child->limits_enforced & 1u << i) != 0));
    return limits;
}

int64_t child_descendants_killed(const struct child *child)
{
    return child->descendants_killed;
}

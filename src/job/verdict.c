/* verdict.c - names of causes, stages, outcomes and states, and the walk through outcome.def. */
#include "job/verdict.h"

#include <stdio.h>

static const char *const cause_names[CAUSE_COUNT] = {
    [CAUSE_EXIT] = "exit",
    [CAUSE_SIGNAL] = "signal",
    [CAUSE_TIMEOUT] = "timeout",
    [CAUSE_IDLE_TIMEOUT] = "idle_timeout",
    [CAUSE_CANCELLED] = "cancelled",
    [CAUSE_OOM] = "oom",
    [CAUSE_LIMIT] = "limit",
    [CAUSE_SPAWN] = "spawn",
    [CAUSE_SINK] = "sink",
    [CAUSE_PROTOCOL] = "protocol",
    [CAUSE_LOST_LEASE] = "lost_lease",
    [CAUSE_SHUTDOWN] = "shutdown",
    [CAUSE_WORKER_DIED] = "worker_died",
    [CAUSE_AGAIN] = "again",
};

static const char *const stage_names[STAGE_COUNT] = {
    [STAGE_NONE] = "none",       [STAGE_PREPARE] = "prepare", [STAGE_LOOKUP] = "lookup",
    [STAGE_CLONE] = "clone",     [STAGE_CGROUP] = "cgroup",   [STAGE_NAMESPACE] = "namespace",
    [STAGE_SESSION] = "session", [STAGE_STDIO] = "stdio",     [STAGE_RLIMIT] = "rlimit",
    [STAGE_USER] = "user",       [STAGE_CHDIR] = "chdir",     [STAGE_EXEC] = "exec",
};

static const char *const state_names[JOB_STATES] = {
    [JOB_WAITING] = "waiting",     [JOB_DELAYED] = "delayed", [JOB_ACTIVE] = "active",
    [JOB_COMPLETED] = "completed", [JOB_FAILED] = "failed",   [JOB_CANCELLED] = "cancelled",
};

static const char *name_of(const char *const *names, size_t count, size_t value)
{
    return value < count ? names[value] : "?";
}

static int value_of(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(names[i], name))
            return (int)i;
    return -ENOENT;
}

const char *cause_name(enum cause cause)
{
    return name_of(cause_names, CAUSE_COUNT, cause);
}

const char *verdict_text(const struct verdict *verdict, char buf[static VERDICT_TEXT_SIZE])
{
    const char *cause = cause_name(verdict->cause), *error = verdict->error;

    if (error[0] == '\0' && verdict->cause == CAUSE_EXIT)
        (void)snprintf(buf, VERDICT_TEXT_SIZE, "exit code %d", verdict->exit_code);
    else if (error[0] == '\0')
        (void)snprintf(buf, VERDICT_TEXT_SIZE, "%s", cause);
    else if (strncmp(error, cause, strlen(cause)) == 0)
        (void)snprintf(buf, VERDICT_TEXT_SIZE, "%s", error);
    else
        (void)snprintf(buf, VERDICT_TEXT_SIZE, "%s: %s", cause, error);
    return buf;
}

const char *spawn_stage_name(enum spawn_stage stage)
{
    return name_of(stage_names, STAGE_COUNT, stage);
}

const char *job_state_name(enum job_state state)
{
    return name_of(state_names, JOB_STATES, state);
}

int job_state_from_name(const char *name)
{
    return value_of(state_names, JOB_STATES, name);
}

bool spawn_errno_permanent(int errno_value, enum spawn_stage stage)
{
    switch (stage) {
    case STAGE_CLONE: /* what these work on is mandor's, so the next attempt may well succeed */
    case STAGE_CGROUP:
    case STAGE_NAMESPACE:
    case STAGE_SESSION:
        return false;
    case STAGE_PREPARE: /* likewise, but for a limit that this machine cannot enforce */
        return errno_value == EOPNOTSUPP || errno_value == E2BIG;
    default:
        break;
    }
    switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOEXEC:
    case E2BIG:
    case EISDIR:
    case EINVAL: /* an ELF file with two interpreters, execve(2); a limit above the hard one */
    case ELIBBAD:
    case EOPNOTSUPP:
        return true;
    default:
        return false;
    }
}

static bool always(const struct verdict *verdict, const struct spec *spec)
{
    return true;
}

static bool exited_zero(const struct verdict *verdict, const struct spec *spec)
{
    return verdict->exit_code == 0;
}

static bool exit_code_is_final(const struct verdict *verdict, const struct spec *spec)
{
    for (size_t i = 0; spec != NULL && i < spec->no_retry_count; i++)
        if (spec->no_retry_exit_codes[i] == verdict->exit_code)
            return true;
    return false;
}

static bool spawn_cannot_ever(const struct verdict *verdict, const struct spec *spec)
{
    return spawn_errno_permanent(verdict->spawn_errno, verdict->stage);
}

static bool spawn_is_short_of(const struct verdict *verdict, const struct spec *spec)
{
    int e = verdict->spawn_errno;

    return e == EAGAIN || e == ENOMEM || e == EMFILE || e == ENFILE;
}

static const struct row {
    enum cause cause;
    bool (*when)(const struct verdict *verdict, const struct spec *spec);
    enum outcome outcome;
} rows[] = {
#define ROW(cause_, when_, outcome_) { CAUSE_##cause_, when_, OUTCOME_##outcome_ },
#include "job/outcome.def"
#undef ROW
};

enum outcome verdict_outcome(const struct verdict *verdict, const struct spec *spec)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].cause == verdict->cause && rows[i].when(verdict, spec))
            return rows[i].outcome;
    BUG("a cause is missing in outcome.def");
}

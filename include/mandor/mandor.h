/* mandor.h - libmandor: run a program under full supervision inside your own process, on your own uv loop.
 *
 * What `mandor run` does, as a library: spawn, contain, filter (bytes), sentinel (state changes).
 *
 *     mandor_new ─▶ mandor_spawn ─▶ on_started ─▶ on_output … ─▶ on_ended ─▶ mandor_close ─▶ on_closed
 *
 * What it never does to its host: it sets no subreaper, no SIGCHLD handler, no signal mask and no signal disposition, and it waits for
 * no child that is not its own (each is watched and reaped through its pidfd, pidfd_open(2), Linux 5.4).  It starts two threads, which live as
 * long as the context: one clones, because PR_SET_PDEATHSIG follows the thread that forked (prctl(2)), the other kills, so that no kill waits for a clone.
 *
 * Containment: `cgroup` and `pidns` end everything that a program has left behind, however it daemonised.  `group`, the last resort where neither
 * can be had, finds a session and its descendants only: without a subreaper, what double-forks out of the session escapes; mandor_containment() says which
 * one is in force.
 *
 * Everything here is called on the thread that runs the loop, and every callback comes on it, never from inside a call (but on_output may come
 * from inside mandor_resume()).
 */
#ifndef MANDOR_MANDOR_H
#define MANDOR_MANDOR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include <mandor/err.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MANDOR_EXPORT __attribute__((visibility("default")))
#else
#define MANDOR_EXPORT
#endif

struct mandor;         /* a context: one a loop */
struct mandor_process; /* one supervised process tree */

enum mandor_stream { MANDOR_STDOUT = 1, MANDOR_STDERR = 2 };

/* How it ended.  All text lives until the callback returns. */
struct mandor_result {
    /* "exit", "signal", "timeout", "idle_timeout", "cancelled", "oom", "limit", "spawn", "sink", "protocol". */
    const char *cause;
    int exit_code;           /* -1 unless the leader exited by itself */
    int signal;              /* 0 unless a signal ended the leader */
    int core_dumped, forced; /* forced: SIGKILL was needed after the grace period */
    int64_t user_ms, system_ms, wall_ms, max_rss_bytes;
    int64_t descendants_killed; /* processes that the leader had left behind */
    int64_t stdout_bytes, stderr_bytes;
    const char *error;  /* one sentence, "" after exit 0 */
    const char *result; /* JSON that the program wrote as {"result": …} to descriptor 3, or NULL */
};

struct mandor_callbacks {
    /* The program runs.  May be NULL. */
    void (*on_started)(struct mandor_process *process, pid_t pid, void *arg);
    /* The filter: bytes of one stream, in order, exactly as they were written.  They are yours during the call only.  No more come on
     * this stream until you have returned, and after mandor_pause() until mandor_resume(): then the pipe fills and the kernel
     * blocks the program, and memory stays bounded.  NULL: output goes where the job's "stdout" and "stderr" say, else to null: */
    void (*on_output)(struct mandor_process *process, enum mandor_stream stream, const void *bytes,
                      size_t len, void *arg);
    /* {"progress": …} on descriptor 3, as JSON text.  May be NULL. */
    void (*on_progress)(struct mandor_process *process, const char *json, void *arg);
    /* The sentinel: leader reaped, nothing of the tree alive, streams ended.  Once, also when it could not be started (cause
     * "spawn").  The process is gone when the call returns. */
    void (*on_ended)(struct mandor_process *process, const struct mandor_result *result, void *arg);
};

/* Make a context on loop (borrowed; it must outlive the context).
 * name: stands in cgroup names, unique on this machine; NULL makes one.  scratch_dir: where fresh directories of programs are made, created when absent; NULL:
 * below $TMPDIR.  Output that goes to auto: and is longer than 64 KiB goes to mandor-NAME/output/ID/1.STREAM there, and stays.  Returns 0, or -errno with *err (NULL allowed). */
MANDOR_EXPORT int mandor_new(uv_loop_t *loop, const char *name, const char *scratch_dir,
                             struct mandor **ret, struct mandor_err *err);

/* Ends the context: no process may be left.  on_closed (NULL allowed) is the last callback; the context is freed by then. */
MANDOR_EXPORT void mandor_close(struct mandor *mandor, void (*on_closed)(void *arg), void *arg);

/* "cgroup", "pidns" or "group": what `containment: auto` means on this host. */
MANDOR_EXPORT const char *mandor_containment(const struct mandor *mandor);

/* Start a program.  job: one JSON object, as `mandor add --from` takes it (mandor(1)): exec, env, cwd, stdin, stdout, stderr, frame, timeout,
 * idle_timeout, kill_after, limits, …; what only means something in a queue is ignored.  stdin, stdout and stderr are on this machine: file:, auto:,
 * null:, inline:; those that lead to other machines (s3:, http:, redis:, …) are the program's alone and refused.
 * callbacks: copied; on_ended must be there.  ret: may be NULL; valid until on_ended returns.
 * Returns 0 (on_ended will come), or -EINVAL with *err naming what is wrong in the job, -ENOSYS (a pool or python job) or another -errno. */
MANDOR_EXPORT int mandor_spawn(struct mandor *mandor, const char *job,
                               const struct mandor_callbacks *callbacks, void *arg,
                               struct mandor_process **ret, struct mandor_err *err);

/* End the tree: SIGTERM to each process, SIGKILL when grace_ms (0 = at once, -1 = the job's kill_after) are over.  on_ended follows, with cause "cancelled". */
MANDOR_EXPORT void mandor_stop(struct mandor_process *process, int64_t grace_ms);

/* No more on_output on this stream until mandor_resume(), which hands over at once what was held back.  Both may be called from on_output. */
MANDOR_EXPORT void mandor_pause(struct mandor_process *process, enum mandor_stream stream);
MANDOR_EXPORT void mandor_resume(struct mandor_process *process, enum mandor_stream stream);

/* What a caller hangs on a process. */
MANDOR_EXPORT void mandor_set_data(struct mandor_process *process, void *data);
MANDOR_EXPORT void *mandor_data(const struct mandor_process *process);

/* "0.1.0" */
MANDOR_EXPORT const char *mandor_version(void);

#ifdef __cplusplus
}
#endif
#endif

/* mandor/worker.h - a warm worker of a mandor pool in C: one handler, called for one job after the other.
 *
 *     static int handle(struct mandor_job *job, void *arg)
 *     {
 *         return mandor_worker_result(job, "{\"hello\": \"world\"}");
 *     }
 *     int main(void)
 *     {
 *         return mandor_worker_run(handle, NULL) == 0 ? 0 : 1;
 *     }
 *
 * The library needs libc alone.  It speaks the protocol of mandor-pool(7) on the socket that mandor passes as
 * descriptor MANDOR_FD; descriptors 0, 1 and 2 stay the program's: prints go to mandor's log, never into a frame.
 *
 * One job at a time (concurrency 1; more jobs: more workers, `size` of the pool) and one thread: everything here is called
 * from the handler's thread, inside the handler.  Calls block while credit or bytes are missing, and read on meanwhile.  A
 * handler that makes no call for long answers no PING and sees no CANCEL; mandor judges a busy worker by its job's
 * timeout alone, and kills it after the grace of a CANCEL.
 *
 * Results: 0 or a count; a negative errno otherwise.  These end the work and a handler should return them:
 * -ECANCELED (the job is to end: see mandor_worker_cancelled), -EPIPE (mandor has gone), -EPROTO (what came was no frame),
 * -ENOMEM.  JSON is passed as text, UTF-8.
 */
#ifndef MANDOR_WORKER_H
#define MANDOR_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MANDOR_WORKER_API __attribute__((visibility("default")))
#else
#define MANDOR_WORKER_API
#endif

struct mandor_job;

/* Does one job.  Returns 0: done, with the result of mandor_worker_result(), or null.  Anything else: failed, with what
 * mandor_worker_fail() said, or else "the handler returned N" (a negative errno is put into words). */
typedef int mandor_handler(struct mandor_job *job, void *arg);

struct mandor_worker_options {
    const char *name; /* in mandor's log and `mandor pools`; NULL: the program's name */
    uint32_t credit;  /* bytes of stdin that are held for a job unread; 0: 65536 */
    int fd;           /* the socket; 0 or less: the number in $MANDOR_FD */
    /* Before HELLO, job NULL: load models here; not 0 ends the run with it.  May be NULL. */
    mandor_handler *on_start;
};

/* Serve jobs until mandor says BYE.  options: NULL for the defaults.  At most one run at a time in a process.
 *
 * The socket is made close-on-exec and MANDOR_FD is taken out of the environment, so that children of the handler cannot
 * reach it.  The descriptor is closed at the end.  What went wrong is also said on stderr, which is mandor's log.
 * Returns 0 (BYE came and all was done: exit 0); -EINVAL (no MANDOR_FD: not started by mandor); -EPROTONOSUPPORT
 * (mandor speaks no version that this library does); -EPIPE (mandor went without BYE); -EPROTO; -ENOMEM; or what on_start
 * returned. */
MANDOR_WORKER_API int mandor_worker_run(mandor_handler *handler, void *arg);
MANDOR_WORKER_API int mandor_worker_run_with(const struct mandor_worker_options *options,
                                             mandor_handler *handler, void *arg);

/* --- the job; text is valid until the handler returns */

MANDOR_WORKER_API const char *mandor_worker_id(const struct mandor_job *job);
MANDOR_WORKER_API const char *mandor_worker_queue(const struct mandor_job *job);
MANDOR_WORKER_API int64_t mandor_worker_attempt(const struct mandor_job *job); /* 1 and up */
MANDOR_WORKER_API int64_t
mandor_worker_timeout_ms(const struct mandor_job *job); /* of the whole attempt; 0: none */

/* What the job was added with (--data), as valid JSON text ended by NUL; "null" when there was nothing. */
MANDOR_WORKER_API const char *mandor_worker_data(const struct mandor_job *job);

/* Read up to size (> 0) bytes of the job's stdin; waits for at least one.
 * Returns bytes; 0 at the end, or when the job has no stdin; -ECANCELED, -EPIPE, -EPROTO. */
MANDOR_WORKER_API ssize_t mandor_worker_read(struct mandor_job *job, void *bytes, size_t size);

/* Has mandor asked for the job's end?  Looks at the socket; never waits.  Also true when mandor has gone. */
MANDOR_WORKER_API bool mandor_worker_cancelled(struct mandor_job *job);

/* Why: "timeout", "cancelled", "shutdown", "lost_lease" (or a later mandor's word); NULL when it has not asked. */
MANDOR_WORKER_API const char *mandor_worker_cancel_reason(const struct mandor_job *job);

/* --- what the job gives */

enum mandor_worker_stream { MANDOR_WORKER_STDOUT = 1, MANDOR_WORKER_STDERR = 2 };

/* Write all of len bytes to an output stream of the job; they go to its sink (file, S3, ...), in order and exactly.
 * Waits while mandor gives no credit: a slow sink slows the worker, memory stays flat.
 * Returns 0; -EINVAL (behind mandor_worker_end); -ECANCELED (some bytes may have gone), -EPIPE, -EPROTO. */
MANDOR_WORKER_API int mandor_worker_write(struct mandor_job *job, enum mandor_worker_stream stream,
                                          const void *bytes, size_t len);

/* End one output stream early.  The end of the job ends both. */
MANDOR_WORKER_API int mandor_worker_end(struct mandor_job *job, enum mandor_worker_stream stream);

/* Set the result: one JSON value as text, copied, sent when the handler returns 0; the last call counts.
 * Returns 0; -EINVAL (not JSON); -EMSGSIZE (over 16 MiB). */
MANDOR_WORKER_API int mandor_worker_result(struct mandor_job *job, const char *json);

/* Set the reason of a failure, copied.  message is for people.  Long texts are cut.
 * Returns -EBADMSG always, so that a handler can end with `return mandor_worker_fail(job, "no such image");` */
MANDOR_WORKER_API int mandor_worker_fail(struct mandor_job *job, const char *message);

struct mandor_worker_failure {
    const char *message;
    const char *traceback; /* or NULL */
    int code;              /* exit code in the job's record, 1-255; 0: 1, or 100 with no_retry */
    bool no_retry;         /* another attempt would fail likewise */
};
MANDOR_WORKER_API int mandor_worker_fail_with(struct mandor_job *job,
                                              const struct mandor_worker_failure *failure);

/* Tell how far the job is: any JSON value, such as "42" or "{\"frame\": 12}".
 * Returns 0; -EINVAL (not JSON); -EMSGSIZE (over 1 MiB); -EPIPE, -EPROTO. */
MANDOR_WORKER_API int mandor_worker_progress(struct mandor_job *job, const char *json);

/* A line for the log of the job, or with job NULL (inside a run) of the worker.  level: "debug", "info", "warn", "error",
 * or NULL.  Long text is cut. */
MANDOR_WORKER_API int mandor_worker_log(struct mandor_job *job, const char *level,
                                        const char *text);

/* Ask for no further jobs, for example because memory was lost; the run ends once mandor has agreed.  reason: or NULL. */
MANDOR_WORKER_API int mandor_worker_bye(const char *reason);

/* --- JSON strings; for more take a JSON library */

/* Write text as a JSON string, with its quotes, ended by NUL.  Bytes that are no UTF-8 become U+FFFD.
 * Returns the length of the whole: it fitted when that is < size (out may be NULL with size 0 to measure). */
MANDOR_WORKER_API size_t mandor_json_quote(const char *text, char *out, size_t size);

/* Find the value of a key in a JSON object.  Returns where its text starts in json and sets *ret_len; NULL when there is
 * none or json is no object. */
MANDOR_WORKER_API const char *mandor_json_get(const char *json, const char *key, size_t *ret_len);

/* Decode a JSON string (len bytes from mandor_json_get) into out, ended by NUL.
 * Returns its length: it fitted when that is < size; -EINVAL when it is no string. */
MANDOR_WORKER_API ssize_t mandor_json_unquote(const char *json, size_t len, char *out, size_t size);

#ifdef __cplusplus
}
#endif

#endif

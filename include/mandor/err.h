/* err.h - the one error value of mandor, held by value so that reporting cannot fail.
 *
 * A function that can fail returns 0 (or a useful value >= 0) or -errno.  Where a person will read
 * the reason its last argument is a `struct mandor_err *` (NULL allowed).
 */
#ifndef MANDOR_ERR_H
#define MANDOR_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

/* Who must act.  Decides retry, HTTP status and exit code. */
enum mandor_fault {
    MANDOR_FAULT_NONE,   /* no error */
    MANDOR_FAULT_CALLER, /* bad input: usage, JSON, configuration (exit 2) */
    MANDOR_FAULT_JOB,    /* the job itself: its program, its limits (exit 1) */
    MANDOR_FAULT_REMOTE, /* a broker or store that is not this machine (exit 125) */
    MANDOR_FAULT_HOST,   /* this machine: disk, permissions, kernel (exit 125) */
    MANDOR_FAULT_BUG,    /* mandor broke its own rules (exit 125) */
};

struct mandor_err {
    int code; /* -errno, 0 = none */
    enum mandor_fault fault;
    char msg[240]; /* UTF-8, NUL-terminated; a cut message ends in "..." */
};

#ifdef __cplusplus
}
#endif
#endif

/* family.h - fixture for tests that start real children: a nursery on a loop, children whose ends are recorded, waits with deadlines. */
#ifndef TESTS_FAMILY_H
#define TESTS_FAMILY_H

#include <check.h>
#include <uv.h>

#include "child/child.h"

struct family {
    uv_loop_t loop;
    struct nursery *nursery;
    struct contain_host host;
    char dir[64];
    bool closed, timed_out;
    uv_timer_t deadline;
};

struct member {
    struct family *family;
    struct child *child;
    char *argv[8];
    char *envp[8];
    char mark[64]; /* "FAMILY=…", in the environment of all of its processes */
    struct child_launch launch;
    struct child_pipes pipes;
    struct verdict verdict;
    pid_t pid;
    bool spawned, exited, empty, kill_pending;
    bool keep; /* the test itself calls child_empty() */
    char out[65536];
    size_t out_len;
};

/* In this process, which becomes a subreaper.  adopt: see nursery.h. */
void family_open(struct family *family, const char *name, bool adopt);
void family_close(struct family *family);

/* A member that would run `argv` in this rung; change launch, then start. */
void member_init(struct member *member, struct family *family, enum spec_containment rung,
                 char *const *argv);
void member_sh(struct member *member, struct family *family, enum spec_containment rung,
               const char *script);
void member_start(struct member *member);

/* Run the loop until *flag, or fail the test after a minute: for what comes, however slow the machine is. */
void family_until(struct family *family, const bool *flag, const char *what);
#define UNTIL(family, flag) family_until(family, flag, #flag)
/* Run the loop until it is so, or fail the test: what a child has yet to do itself after it was spawned.
 * alive: `count` processes of this mark (whose name is comm, unless NULL).  said: the member wrote something.
 * state: the leader is in this state of /proc/PID/stat.  reaped: no zombie is ours. */
void family_until_alive(struct family *family, const char *mark, const char *comm, int count);
void member_until_said(struct member *member);
void member_until_state(struct member *member, char state);
void family_until_reaped(struct family *family);
/* Run the loop for so long. */
void family_pass(struct family *family, int ms);
/* Start, wait until empty, check that no process of it is alive. */
void member_run(struct member *member);
void member_done(struct member *member); /* child_close */

/* Processes alive (no zombies) that carry this mark in their first environment. */
int marked_alive(const char *mark);
/* The same, without a loop to run: waits until there are so many, or fails the test. */
void until_alive(const char *mark, int count);
int open_fds(void);
int own_zombies(void);
/* Directories below the version 2 cgroup of this process. */
int own_cgroups(const struct family *family);

#endif

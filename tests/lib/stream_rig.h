/* stream_rig.h - one stream from a forked child through a filter into a sink, driven by the test. */
#ifndef TESTS_STREAM_RIG_H
#define TESTS_STREAM_RIG_H

#include "fake_sink.h"
#include "stream/filter.h"

struct rig {
    uv_loop_t loop;
    struct filter_pool *pool;
    struct filter *filter;
    struct sink *sink;
    struct fake_sink fake;
    char dir[64]; /* private, removed by rig_done() */
    uv_timer_t watchdog;
    int ticks;
    pid_t child;
    /* what happened */
    bool opened, ended, drained, finished, closed, room;
    int open_result, result, finish_result;
    struct mandor_err err;
    int activity;
    int progress_events;
    char progress[1100];
};

/* Everything but source and sink; dies after 60 s. */
void rig_init(struct rig *rig);
void rig_done(struct rig *rig);

extern const struct filter_options rig_defaults; /* raw, xxh3, no cap */

/* url: a real sink (NULL = the fake one; set it up before).  Opens it and makes the filter. */
void rig_open(struct rig *rig, const char *url, const char *stream,
              const struct filter_options *options);
/* Fork a child that runs body(fd, arg) with the pipe's writing end, then exits; the filter reads it. */
void rig_child(struct rig *rig, void (*body)(int fd, const void *arg), const void *arg);
/* The same with the pipe's writing end in the test's own hand. */
int rig_pipe(struct rig *rig);
/* Run the loop until *flag; a test that hangs is ended by the watchdog. */
void rig_until(struct rig *rig, const bool *flag);
void rig_turns(struct rig *rig, int ms); /* run the loop for so long */
void rig_reap(struct rig *rig);          /* wait for the child */
/* For filter_drain() and filter_on_room(): set the flag of that name. */
void rig_on_drained(void *arg);
void rig_on_room(void *arg);
/* drain, finish, until ended. */
void rig_end(struct rig *rig);
/* Commit or abort, close filter and sink, run until all handles are closed. */
void rig_settle(struct rig *rig, bool commit);

/* Deterministic bytes: byte i of every stream made by `seed`. */
void rig_bytes(unsigned seed, int64_t offset, unsigned char *bytes, size_t len);
uint64_t rig_hash(unsigned seed, int64_t len);         /* xxh3 of the first len of them */
void rig_write(int fd, const void *bytes, size_t len); /* all of it, blocking; dies on errors */
void rig_write_stream(int fd, unsigned seed, int64_t len);
char *rig_read_file(const char *path, size_t *ret_len);
/* Number of entries below dir, however deep (directories not counted). */
int rig_count_files(const char *dir);

#endif

/* python_int.h - struct python, struct server and struct copy, for pythons.c (all runtimes), python.c (one runtime: who comes, who
 * goes), server.c (the life of a fork server) and copy.c (the life of a copy) alone. */
#ifndef PYTHON_PYTHON_INT_H
#define PYTHON_PYTHON_INT_H

#include "loop/work.h"
#include "pool/prints.h"
#include "python/python.h"
#include "python/store.h"

#define PYTHON_MAGIC 0x70797468u
#define SERVER_MAGIC 0x73727672u
#define COPY_MAGIC   0x636f7079u

enum server_state {
    SERVER_RESOLVING,
    SERVER_SPAWNING,
    SERVER_LOADING,
    SERVER_READY,
    SERVER_LEAVING,
    SERVER_ENDING,
    SERVER_GONE,
    SERVER_STATES
};
enum server_event {
    SERVER_RESOLVED,
    SERVER_SPAWNED,
    SERVER_SAID_READY,
    SERVER_LEAVE,
    SERVER_EXITED,
    SERVER_EMPTY,
    SERVER_EVENTS
};

/* One Node process with Pyodide in it. */
struct server {
    uint32_t magic;
    struct python *python;
    struct list node; /* python->servers */
    enum server_state state;
    uint64_t number;
    struct python_runtime runtime; /* what it was started with */
    char *store;
    unsigned version;
    struct work resolve;
    struct store_wheels wheels;
    struct mandor_err resolve_err;
    int resolve_result;
    char *node_program, *harness;
    char **argv, **envp;
    struct child *child;
    pid_t pid;
    int socket; /* our end */
    uv_poll_t poll;
    bool poll_open;
    struct prints *out, *err;
    uv_timer_t timer; /* start_timeout */
    unsigned parts;   /* what must still close */
    int64_t started_ms, ready_ms, age_max_ms;
    int64_t asked, forks; /* copies: asked for, made */
    json_t *ready;        /* what it said of itself */
    const char *due;      /* why it should be replaced; static text, NULL = it should not */
    bool was_ready, expected, looking;
    int64_t memory_bytes;
    bool refused; /* it said itself why it cannot: trying again helps nobody */
    char why[240];
};

enum copy_state {
    COPY_SPAWNING,
    COPY_WARMING,
    COPY_READY,
    COPY_TAKEN,
    COPY_STOPPING,
    COPY_ENDING,
    COPY_GONE,
    COPY_STATES
};
enum copy_event {
    COPY_SPAWNED,
    COPY_SAID_READY,
    COPY_TAKE,
    COPY_RELEASE,
    COPY_STOP,
    COPY_EXITED,
    COPY_EMPTY,
    COPY_EVENTS
};

struct copy {
    uint32_t magic;
    struct python *python;
    struct server *server; /* NULL: it has gone */
    struct list node;      /* python->copies */
    enum copy_state state;
    unsigned version;
    struct python_ask *ask; /* it is made for this one */
    struct child *child;
    struct child_pipes pipes; /* until it is adopted */
    uv_poll_t poll;           /* of the channel, until READY */
    bool poll_open;
    uv_timer_t timer;
    unsigned parts;
    int64_t asked_ms, spawned_ms;
    int64_t patience_ms; /* from the clone to READY at most */
    char line[256];      /* its first words */
    size_t line_len;
    bool was_ready, was_slow, expected;
    bool lasting; /* isolation scope: it takes job after job */
    struct verdict verdict;
    char why[240];                    /* why it was stopped by us, or what it said */
    const struct copy_events *events; /* of its owner; NULL = none yet */
    void *arg;
};

struct python {
    uint32_t magic;
    struct pythons *pythons;
    struct list node; /* pythons->list */
    struct python_runtime runtime;
    unsigned version;
    bool wanted; /* a server should be there: somebody has asked, or mandor.yaml names it */
    bool leaving, closing;
    struct list servers, copies, asks;
    size_t server_count, copy_count, ask_count;
    uint64_t next_number, next_copy;
    uv_idle_t turn;
    uv_timer_t tick;
    unsigned handles;

    int failures; /* servers in a row that did not start, or made no copy that became ready */
    int64_t next_start_ms; /* monotonic: not before */
    int64_t refill_ms; /* monotonic: a job was given a spare, whose place is filled from then on */
    int copy_failures; /* copies that failed in a row */
    int64_t next_copy_ms; /* monotonic: not before */
    int64_t patience_ms;  /* for a copy to become ready: more on a busy machine */
    bool refused;         /* the last start: last_error is a sentence that stays true */
    char last_error[240];
    int64_t jobs, recycles, deaths, failed_starts;
};

struct pythons {
    uv_loop_t *loop;
    struct nursery *nursery;
    struct list list;
    char *store, *node_program;
    bool closing;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

/* ---- server.c ---- */

MUST_CHECK int server_start(struct python *python); /* 0 or -errno: nothing is left of it */
/* No more copies; it ends.  Those that it made live on. */
void server_leave(struct server *server, const char *why);
void server_kill(struct server *server, const char *why);
/* See whether it has more memory than it should. */
void server_look(struct server *server);
json_t *server_json(const struct server *server);

/* ---- copy.c ---- */

/* ask: for this one alone, NULL = for anybody.  0 or -ENOMEM. */
MUST_CHECK int copy_start(struct server *server, struct python_ask *ask);
/* Give it to somebody who waits. */
void copy_hand(struct copy *copy, struct python_ask *ask);
/* Nobody needs it: it ends by itself. */
void copy_leave(struct copy *copy);
void copy_stop(struct copy *copy, enum cause cause, const char *why);

/* ---- python.c ---- */

MUST_CHECK int python_new(struct pythons *pythons, const struct python_runtime *runtime,
                          struct python **ret);
MUST_CHECK int python_change(struct python *python, const struct python_runtime *runtime);
void python_tend(struct python *python);
void python_turn(struct python *python); /* tend, but not from inside the caller's call */

/* A job has got a spare: its place is filled a little later, unless it was the last one. */
void python_refill_later(struct python *python);
void python_leave(struct python *python);
void python_close(struct python *python);
/* A server's process has gone. */
void python_note_server(struct python *python, struct server *server);
/* A copy has become ready. */
void python_note_ready_copy(struct python *python, struct copy *copy);
/* A copy that nobody had yet has gone. */
void python_note_copy(struct python *python, struct copy *copy);
json_t *python_json(const struct python *python);

/* ---- pythons.c ---- */

/* What holds servers and copies.  No PID namespace: a copy is born in its server's, and must see the worker as its parent. */
enum spec_containment pythons_containment(const struct pythons *pythons);
void pythons_forget(struct pythons *pythons, struct python *python);

#endif

/* redis_int.h - what the files of this folder share of struct redis. */
#ifndef REDIS_REDIS_INT_H
#define REDIS_REDIS_INT_H

#include "base/list.h"
#include "redis/link.h"
#include "redis/redis.h"

#define REDIS_MAGIC       0x72656469u
#define REDIS_SCRIPTS_MAX 128

struct call {
    struct list node;
    struct redis *redis;
    int flags;
    int64_t deadline_ms; /* monotonic */
    char *wire;          /* redisFormatCommand's */
    long long len;
    struct redis_script *script; /* or NULL */
    redis_reply_fn *fn;
    void *arg;
    unsigned tries, waits;
    int64_t wait_until_ms;         /* with waits > 0 */
    bool written;                  /* over the present connection, or the one that was lost */
    bool sent_away;                /* the server has said that it was not carried out */
    unsigned in_wire;              /* so many callbacks has hiredis for it */
    bool dead;                     /* answered, to be freed by the last of these */
    struct redis_transaction *txn; /* or NULL: then it is one command, `wire` */
};

enum redis_state {
    REDIS_IDLE,     /* nobody asked yet (once), or closed */
    REDIS_WAITING,  /* for the time of the next attempt */
    REDIS_FINDING,  /* sentinel asked, name looked up, connecting */
    REDIS_GREETING, /* AUTH, SELECT, ROLE … under way */
    REDIS_UP,
};

struct redis {
    uint32_t magic;
    uv_loop_t *loop;
    struct redis_url url;
    struct redis_options options;
    char client_name[128];
    int64_t connect_ms;
    enum redis_state state;
    int64_t state_until_ms, backoff_ms;
    uv_timer_t timer;
    int64_t armed_ms;
    struct link *link;
    size_t host_turn;  /* which of the URL's hosts is next */
    bool at_sentinel;  /* the link is to a sentinel */
    char *target_host; /* where MOVED or the sentinel sent us; NULL = the URL's host */
    int target_port;
    unsigned greetings;    /* replies that the handshake still waits for */
    struct mandor_err err; /* why there is no connection */
    struct list queue, flying, again;
    bool holding, reconnect, moved, closing, asking;
    int64_t hold_ms, resume_ms;
    unsigned depth;    /* callbacks of callers on the stack */
    struct call *open; /* the transaction whose end is not written yet, or NULL */
    const struct redis_script *loaded[REDIS_SCRIPTS_MAX];
    size_t loaded_count;
    struct redis *ask; /* the node that ASK pointed to */
    char **channels;
    size_t channel_count;
    int version;
    char software[48]; /* "Valkey 9.1.2" */
    char *evicts;
    uint64_t random;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

/* ---- redis.c ---- */
void redis_ready(struct redis *redis);                              /* greeted */
void redis_lost(struct redis *redis, const struct mandor_err *err); /* err NULL: as noted before */
void redis_submit_call(struct redis *redis, struct call *call);
struct call *redis_new_call(struct redis *redis, int flags, int64_t timeout_ms, redis_reply_fn *fn,
                            void *arg); /* NULL: out of memory, fn has heard of it */
/* Around what a reply leads to.  False: the call has its answer already, or the connection is gone. */
bool redis_begin_reply(struct call *call, const redisReply *reply);
void redis_end_reply(struct redis *redis);
void redis_answer(struct call *call, int result, const redisReply *reply,
                  const struct mandor_err *err);
/* The server's error: the call is made again where that makes sense, else answered with it. */
void redis_refused(struct redis *redis, struct call *call, const redisReply *error);
/* A half-written call: the connection is of no use any more, and is given up by the timer. */
void redis_spoiled(struct redis *redis, struct call *call);
/* What it depends on is not so yet: it is made again, though not for ever. */
void redis_call_again(struct redis *redis, struct call *call);

/* ---- transact.c ---- */
void redis_transaction_write(struct redis *redis, struct call *call);

/* ---- find.c: from the URL to a greeted connection ---- */
void redis_find(struct redis *redis);
void redis_send_subscribe(struct redis *redis, size_t index);

/* ---- cluster.c ---- */
void redis_note_moved(struct redis *redis, const char *text); /* "MOVED 866 10.0.0.7:6379" */
bool redis_ask_elsewhere(struct redis *redis, struct call *call, const char *text);

/* ---- script.c ---- */
void redis_script_sha(struct redis_script *script);

#endif

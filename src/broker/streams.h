/* streams.h - what the files of the broker streams:// share.  Loop thread only.
 *
 *     broker_req ── ops[] ──▶ arguments ── one Lua script, atomically ──▶ reply ── ops[] ──▶ answer
 *
 * The scripts (lua/streams_*.lua, keys in lua/_streams.lua) are the broker: leases are deadlines by the server's clock, every write about an
 * attempt is fenced by its worker and number inside of the script.  Requests are written in their order over one connection.  A request whose answer was lost is made again when the connection is
 * back: every script can be carried out twice. */
#ifndef BROKER_STREAMS_H
#define BROKER_STREAMS_H

#include "base/hash.h"
#include "broker/broker_ops.h"
#include "redis/redis.h"

#define STREAMS_NONCE_SIZE 33

struct streams {
    struct broker *broker;
    struct redis_url url;
    struct redis *redis,
        *wake;       /* wake: blocked in XREAD; NULL unless this is a worker that listens */
    char *prefix;    /* "{mandor}": KEYS[1] of every script */
    char worker[64]; /* "" before REGISTER */
    char host[65];
    int64_t lease_ms;
    unsigned turn;
    uint64_t random;
    char lost[STREAMS_NONCE_SIZE]; /* of a lease whose answer never came; "" = none */
    int64_t up_since_ms;           /* monotonic; 0 = down */
    bool was_up, warned;           /* warned: of eviction */
    size_t outstanding;            /* requests without an answer */
    unsigned handles;              /* that are open while closing */
    bool closing;
    struct list ends;  /* BROKER_SETTLE of this turn of the loop */
    struct list taken; /* those that the server took lately */
    struct hash *taken_by_id;
    size_t taken_bytes;
    uv_idle_t turn_over;
    uv_timer_t pause;  /* between two XREADs */
    char event_id[48]; /* the last event that was seen */
    bool sweeping;
    unsigned sweep_skip;
    int64_t swept_ms;
    char **queues; /* whose streams are watched; NULL-terminated */
};

/* ---- arguments ---- */

struct args {
    struct buf text; /* what is not the caller's */
    struct arg {
        const char *at; /* NULL: text.data + offset */
        size_t offset, len;
    } * list;
    size_t count, cap;
    bool failed; /* out of memory */
};

void args_s(struct args *args, const char *text); /* borrowed until the call is made; NULL = "" */
void args_b(struct args *args, const void *bytes, size_t len);
void args_i(struct args *args, int64_t number);
void args_copy(struct args *args, const char *text);          /* copied */
void args_own(struct args *args);                             /* what is borrowed is copied */
void args_again(struct args *args, const struct args *those); /* borrowed */
void args_done(struct args *args);

/* Make the call; fn as in redis.h.  The prefix goes in front.  args is done afterwards. */
void streams_eval(struct streams *s, struct redis_script *script, int flags, int64_t timeout_ms,
                  struct args *args, redis_reply_fn *fn, void *arg);
void streams_nonce(struct streams *s, char nonce[static STREAMS_NONCE_SIZE]);

/* ---- replies ---- */

int64_t reply_int(const redisReply *reply);      /* an integer, or text that is one; else 0 */
const char *reply_text(const redisReply *reply); /* "" when it is none */
const redisReply *reply_at(const redisReply *reply, size_t index); /* NULL when there is none */
const char *field_of(const redisReply *fields,
                     const char *name); /* of HGETALL; NULL when missing or "" */
int64_t field_int(const redisReply *fields, const char *name);

/* ---- the requests; each answers for itself ---- */

/* End a request: status is 0, or -errno with req->err set. */
void streams_answer(struct streams *s, struct broker_req *req, int status);
/* err NULL: req->err is set already. */
void streams_fail(struct streams *s, struct broker_req *req, int status,
                  const struct mandor_err *err);

#define STREAMS_CALL_MS 10000
#define STREAMS_REFUSED INT64_C(-116) /* ESTALE, as the scripts say it */
#define STREAMS_UNDONE  INT64_C(-117) /* the server has lost what came before */

/* streams_worker.c */
void streams_lease(struct streams *s, struct broker_req *req);
void streams_start(struct streams *s, struct broker_req *req);
void streams_renew(struct streams *s, struct broker_req *req);
void streams_begin_settle(struct streams *s, struct broker_req *req);
void streams_give_back(struct streams *s, struct broker_req *req);
void streams_phase(struct streams *s, struct broker_req *req);
void streams_register(struct streams *s, struct broker_req *req);
void streams_unregister(struct streams *s, struct broker_req *req);
/* -ESTALE, and why.  code: the script's. */
int streams_stale(struct broker_req *req, const char *id, int64_t attempt, int64_t code);

/* streams_settle.c */
void streams_settle(struct streams *s, struct broker_req *req);
void streams_send_ends(struct streams *s); /* what has been gathered */
/* The connection is back, perhaps to a server that has lost its last writes: what it took lately is written again where it is missing. */
void streams_settle_again(struct streams *s);
void streams_forget_end(struct streams *s, const char *id); /* the job is run again */
void streams_forget_ends(struct streams *s);

/* streams_client.c */
void streams_add(struct streams *s, struct broker_req *req);
void streams_show(struct streams *s, struct broker_req *req);
void streams_list(struct streams *s, struct broker_req *req);
void streams_output(struct streams *s, struct broker_req *req);
void streams_change(struct streams *s, struct broker_req *req);
void streams_pause(struct streams *s, struct broker_req *req);
void streams_stats(struct streams *s, struct broker_req *req);
/* Where a worker's lock lies, as it registers it and as others find it: this boot, and the directory's device and number.  Two containers may
 * share host name and boot and see different files under one path: they are strangers to each other then.  Blocks on a local file. */
#define STREAMS_PLACE_SIZE 96
void streams_place(const char *lock_path, char place[static STREAMS_PLACE_SIZE]);

/* streams_recover.c */
void streams_recover(struct streams *s, struct broker_req *req);

/* streams_sweep.c: remove output files of jobs that are gone, at most once a minute. */
void streams_sweep(struct streams *s);
/* What counted as outstanding besides requests is over. */
void streams_part_done(struct streams *s);

#endif

/* broker_ops.h - for those who write a broker.  The contract suite in tests/contract/test_broker.c must pass. */
#ifndef BROKER_BROKER_OPS_H
#define BROKER_BROKER_OPS_H

#include "broker/broker.h"

struct broker_ops {
    const char *scheme; /* "sqlite" */
    int (*check)(const char *url,
                 struct mandor_err *err); /* more than the scheme; NULL = nothing.  No I/O */
    /* A lease starts what it may (broker.h).  Then nothing is leased ahead of the slots: what that saves is saved already. */
    bool starts_leases;
    bool takes_notes; /* BROKER_NOTE is submitted only then */
    size_t
        state_size; /* bytes of private state behind broker_state(); zeroed and freed by the core */
    int (*prepare)(const char *url, char **ret_data_dir,
                   struct mandor_err *err); /* broker_prepare() */
    int (*open)(struct broker *broker, const char *url, struct mandor_err *err);
    void (*submit)(struct broker *broker,
                   struct broker_req *req); /* answers with broker_answer() */
    int (*listen)(struct broker *broker, const char *name, struct mandor_err *err);
    void (*close)(struct broker *broker); /* ends with broker_closed() */
};

/* What a back end sees of the core's struct broker. */
void *broker_state(struct broker *broker);
uv_loop_t *broker_loop(struct broker *broker);
bool broker_is_worker(const struct broker *broker);
void broker_set_data_dir(struct broker *broker, char *adopt_path);
/* Loop thread only: fills metrics and runs req->done. */
void broker_answer(struct broker *broker, struct broker_req *req);
void broker_woken(struct broker *broker);
void broker_closed(struct broker *broker);

extern const struct broker_ops broker_sqlite;

#endif

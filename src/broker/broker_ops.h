/* broker_ops.h - for those who write a broker.  The contract suite in tests/contract/test_broker.c must pass. */
#ifndef BROKER_BROKER_OPS_H
#define BROKER_BROKER_OPS_H

#include "broker/broker.h"

struct broker_ops {
    const char *scheme; /* "sqlite" */
    /* More than the scheme; NULL = nothing.  No I/O. */
    int (*check)(const char *url, struct mandor_err *err);
    /* broker_check_spec(); NULL = nothing but what all brokers have */
    int (*check_spec)(const struct spec *spec, struct mandor_err *err);
    /* A lease starts what it may (broker.h).  Then nothing is leased ahead of the slots: what that saves is saved already. */
    bool starts_leases;
    bool leases_overlap; /* broker_leases_overlap() */
    bool bare_data;      /* broker_has_bare_data() */
    bool takes_notes;    /* BROKER_NOTE is submitted only then */
    /* Bytes of private state behind broker_state(); zeroed and freed by the core. */
    size_t state_size;
    /* broker_prepare() */
    int (*prepare)(const char *url, char **ret_data_dir, struct mandor_err *err);
    int (*open)(struct broker *broker, const char *url, struct mandor_err *err);
    /* Answers with broker_answer(). */
    void (*submit)(struct broker *broker, struct broker_req *req);
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

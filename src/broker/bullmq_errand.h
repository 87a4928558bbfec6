/* bullmq_errand.h - a request of the command line that takes several calls, over one queue of BullMQ's or all of them. */
#ifndef BROKER_BULLMQ_ERRAND_H
#define BROKER_BULLMQ_ERRAND_H

#include "broker/bullmq.h"

/* Over when `pending` is 0; the answer is the first error that there was. */
struct errand {
    struct bullmq *mq;
    struct broker_req *req;
    size_t pending;
    int status;
    struct mandor_err err;
    json_t *queues;                     /* array of names, sorted */
    size_t queue_at, state_at, changed; /* where a walk over queues and states has come */
    bool full;                          /* the page was as long as one may be */
    char *after;                        /* BullMQ's id */
    struct bullmq_queue *queue;
    void (*found)(struct errand *errand); /* the queues are known */
};

/* NULL when out of memory: req is answered then. */
struct errand *errand_new(struct bullmq *mq, struct broker_req *req);
/* Answer its request, and free it. */
void errand_over(struct errand *errand);
/* The result of a call; err is looked at when that is < 0. */
void errand_note(struct errand *errand, int result, const struct mandor_err *err);
void errand_no_memory(struct errand *errand);

/* found() runs with errand->queues: the one that is named, or (NULL) all; not when they cannot be read, then the errand is over. */
void errand_find_queues(struct errand *errand, const char *name,
                        void (*found)(struct errand *errand));
/* The index-th of errand->queues; NULL behind the last, or when out of memory, which is noted. */
struct bullmq_queue *errand_queue_at(struct errand *errand, size_t index);

/* The queue and BullMQ's id that mandor's id names.  NULL: there is none, and req is answered. */
struct bullmq_queue *bullmq_queue_of_id(struct bullmq *mq, struct broker_req *req, const char *text,
                                        const char **ret_id);

#endif

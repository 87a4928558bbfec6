/* broker_sqlite.c - the embedded broker: a queue in one SQLite file, used by any number of processes of one machine.
 *
 *                 inbox                    commit                      outbox
 *   loop thread ─────────▶ broker thread ─────────┬─ needs no sync ──────────────▶ loop thread (uv_async)
 *                          (struct store)         └─ durable ─▶ sync thread ─────▶
 *                                                              (struct wal)
 *
 * What one turn of the loop submits enters the inbox together (a settle, the start and the lease that follow it), and the
 * broker thread takes whatever waits there and carries it out in order, many requests in one transaction.  In a
 * worker a second thread syncs the log and checkpoints, so that a slow disk delays the answers that promise durability and
 * nothing else; in a client the broker thread does that itself.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/log.h"
#include "broker/broker_ops.h"
#include "broker/data_dir.h"
#include "broker/store.h"
#include "broker/wake.h"
#include "broker/wal.h"

#define QUIET_NS      1000000000ull /* no commit for so long: time to tidy the log */
/* Between the beginnings of two syncs, so that many answers share one where the disk is faster.  A sync of a virtual disk that
 * answers in 0.07 ms took 77 of a job's 1,500 us of CPU time when each job had its own. */
#define SYNC_EVERY_NS 5000000

struct sqlite {
    struct broker *broker;
    uv_async_t async; /* something is in the outbox, or a thread has ended */
    uv_poll_t poll;   /* the wake-up socket */
    /* Active while something is submitted: at the end of the loop's turn it enters the inbox. */
    uv_prepare_t turn;
    struct list submitted;
    int wake_fd;   /* -1 = not listening */
    int handles;   /* still open */
    char name[80]; /* "<worker>.sock"; lock */

    uv_mutex_t lock; /* guards what is marked so */
    uv_cond_t inbox_filled, sync_wanted;
    struct list inbox, unsynced, outbox;  /* lock */
    bool closing, broker_over, sync_over; /* lock */
    bool checkpoint_wanted, dirty;        /* lock; dirty: committed since the last tidy */
    int pages, checkpoint_pages; /* lock; length of the log, and the length at which to copy it */
    uv_thread_t broker_thread, sync_thread;

    struct store *store; /* broker thread */
    struct wake wake;    /* broker thread */
    struct wal wal;      /* sync thread; in a client the broker thread */
    bool threaded_sync;
};

static struct sqlite *self(struct broker *broker)
{
    return *(struct sqlite **)broker_state(broker);
}

/* ---- what each operation is ---- */

enum kind { READ, WRITE, OWN /* makes its own transactions */ };

static const struct op {
    enum kind kind;
    bool durable; /* its answer promises that it survives a crash of the machine */
    int (*run)(struct store *store, struct broker_req *req);
} ops[BROKER_OPS] = {
    [BROKER_ADD] = { WRITE, true, store_add },
    [BROKER_LEASE] = { WRITE, false, store_lease },
    [BROKER_START] = { WRITE, false, store_start },
    [BROKER_RENEW] = { WRITE, false, store_renew },
    [BROKER_BEGIN_SETTLE] = { WRITE, false, store_begin_settle },
    [BROKER_SETTLE] = { WRITE, true, store_settle },
    [BROKER_GIVE_BACK] = { WRITE, false, store_give_back },
    [BROKER_PHASE] = { WRITE, false, store_phase },
    [BROKER_RECOVER] = { OWN, false, store_recover },
    [BROKER_REGISTER] = { WRITE, false, store_register },
    [BROKER_UNREGISTER] = { WRITE, false, store_unregister },
    [BROKER_SHOW] = { READ, false, store_show },
    [BROKER_LIST] = { READ, false, store_list },
    [BROKER_OUTPUT] = { READ, false, store_output },
    [BROKER_CANCEL] = { WRITE, true, store_change },
    [BROKER_RETRY] = { WRITE, true, store_change },
    [BROKER_REMOVE] = { WRITE, true, store_change },
    [BROKER_PAUSE] = { WRITE, true, store_pause },
    [BROKER_STATS] = { READ, false, store_stats },
};

static bool changes_all(const struct broker_req *req)
{
    bool change = req->op == BROKER_CANCEL || req->op == BROKER_RETRY || req->op == BROKER_REMOVE;
    return change && req->change.id == NULL;
}

static enum kind kind_of(const struct broker_req *req)
{
    return changes_all(req) ? OWN : ops[req->op].kind;
}

/* Take back what a request was told, since its transaction was rolled back. */
static void take_back(struct broker_req *req)
{
    if (req->op == BROKER_LEASE) {
        for (size_t i = 0; i < req->lease.count; i++)
            lease_done(&req->lease.leases[i]);
        req->lease.count = 0;
    } else if (req->op == BROKER_START && req->status == 0 && !req->start.cancelled) {
        req->start.attempt--;
    }
}

/* ---- answers ---- */

static void answer(struct sqlite *sq, struct list *reqs)
{
    if (list_empty(reqs))
        return;
    uv_mutex_lock(&sq->lock);
    list_splice_back(&sq->outbox, reqs);
    uv_mutex_unlock(&sq->lock);
    (void)uv_async_send(&sq->async);
}

static void sync_and_answer(struct sqlite *sq, struct list *reqs)
{
    struct mandor_err err = { 0 };
    int r = wal_sync(&sq->wal, &err);
    if (r < 0)
        LIST_FOREACH(req, reqs, struct broker_req, node) {
            req->status = r;
            req->err = err;
        }
    answer(sq, reqs);
}

static void hand_to_sync(struct sqlite *sq, struct list *reqs)
{
    uv_mutex_lock(&sq->lock);
    bool first = list_empty(&sq->unsynced);
    list_splice_back(&sq->unsynced, reqs);
    uv_mutex_unlock(&sq->lock);
    if (first)
        uv_cond_signal(&sq->sync_wanted);
}

/* The transaction that all of reqs were part of is committed. */
static void committed(struct sqlite *sq, struct list *reqs)
{
    struct list durable = LIST_INIT(durable), others = LIST_INIT(others);

    LIST_FOREACH(req, reqs, struct broker_req, node) {
        bool sync = req->status == 0 && ops[req->op].durable;
        list_remove(&req->node);
        list_push_back(sync ? &durable : &others, &req->node);
    }
    answer(sq, &others);
    if (list_empty(&durable))
        return;
    if (sq->threaded_sync)
        hand_to_sync(sq, &durable);
    else
        sync_and_answer(sq, &durable);
}

static void answer_one(struct sqlite *sq, struct broker_req *req, int status)
{
    struct list one = LIST_INIT(one);
    req->status = status;
    list_push_back(&one, &req->node);
    committed(sq, &one);
}

/* ---- the broker thread ---- */

static void send_wakes(struct sqlite *sq)
{
    if (!sq->store->wake)
        return;
    sq->store->wake = false;
    uv_mutex_lock(&sq->lock);
    memcpy(sq->wake.own, sq->name, sizeof sq->wake.own);
    uv_mutex_unlock(&sq->lock);
    wake_send(&sq->wake);
}

/* Copy the log into the database.  Where a reader is in the way it goes on growing: then again when it is longer by as much. */
static void checkpoint(struct sqlite *sq)
{
    struct mandor_err err = { 0 };
    int r = wal_checkpoint(&sq->wal, &err);
    if (r < 0)
        log_debug("broker", "%s, ignoring: the log is kept", err.msg);

    uv_mutex_lock(&sq->lock);
    sq->checkpoint_wanted = false;
    if (r != 1)
        sq->checkpoint_pages = sq->pages + WAL_PAGES;
    uv_mutex_unlock(&sq->lock);
}

/* After each commit: is the log long? */
static void mind_log(struct sqlite *sq)
{
    if (!sq->store->written) /* a poll that found nothing leaves no trace in the log */
        return;
    sq->store->written = false;
    uv_mutex_lock(&sq->lock);
    sq->dirty = true;
    sq->pages = sq->store->wal_pages;
    if (sq->pages < WAL_PAGES) /* it has started over */
        sq->checkpoint_pages = WAL_PAGES;
    bool wanted = sq->checkpoint_wanted = sq->pages >= sq->checkpoint_pages;
    if (wanted && sq->threaded_sync)
        uv_cond_signal(&sq->sync_wanted);
    uv_mutex_unlock(&sq->lock);

    if (wanted && !sq->threaded_sync)
        checkpoint(sq);
}

static void after_commit(struct sqlite *sq)
{
    send_wakes(sq);
    store_remove_doomed(sq->store, 16);
    mind_log(sq);
}

/* One transaction's worth of requests from the front of batch. */
struct group {
    struct list reqs; /* carried out, in order */
    size_t count;
    struct broker_req *more; /* has to go on in the next transaction */
};

static bool joins(const struct sqlite *sq, const struct list *batch, const struct group *group,
                  size_t solo, int64_t until_ns)
{
    if (list_empty(batch) || group->more != NULL)
        return false;
    if (group->count > 0 &&
        (solo > 0 || sq->store->rows >= STORE_TX_ROWS || clock_mono_ns() >= until_ns))
        return false;
    return kind_of(LIST_ENTRY(batch->next, struct broker_req, node)) == WRITE;
}

/* Carry out requests until the transaction is full; stops early with store->rc set when SQLite fails. */
static void fill_group(struct sqlite *sq, struct list *batch, struct group *group, size_t solo)
{
    int64_t until_ns = clock_mono_ns() + STORE_TX_NS;

    while (joins(sq, batch, group, solo, until_ns)) {
        struct broker_req *req = LIST_ENTRY(list_pop_front(batch), struct broker_req, node);
        int r = ops[req->op].run(sq->store, req);
        list_push_back(&group->reqs, &req->node);
        group->count++;
        req->status = MIN(r, 0);
        if (r == STORE_MORE)
            group->more = req;
        else
            sq->store->cursor = 0;
        if (sq->store->rc != SQLITE_OK)
            return;
    }
}

/* req, the first that waits, has failed for good.  The cursor tells how far an earlier transaction had brought it. */
static void fail_req(struct sqlite *sq, struct broker_req *req, const struct mandor_err *err)
{
    req->status = err->code;
    req->err = *err;
    if (sq->store->cursor > 0)
        (void)err_wrap(&req->err, req->status, "after %zu jobs were added", sq->store->cursor);
    sq->store->cursor = 0;
}

/* The transaction is gone.  Alone in it: the request has failed.  Otherwise each of them gets one of its own, so that nobody
 * fails for another's sake.  Returns how many at the front of batch have to go alone. */
static size_t ungroup(struct sqlite *sq, struct list *batch, struct group *group,
                      const struct mandor_err *err)
{
    LIST_FOREACH(req, &group->reqs, struct broker_req, node)
        take_back(req);
    if (group->count == 1) {
        fail_req(sq, LIST_ENTRY(group->reqs.next, struct broker_req, node), err);
        answer(sq, &group->reqs);
        return 0;
    }
    list_splice_back(&group->reqs, batch);
    list_splice_back(batch, &group->reqs);
    return group->count;
}

/* When not even a transaction can be had, every write that waits gets to hear why. */
static void fail_writes(struct sqlite *sq, struct list *batch, const struct mandor_err *err)
{
    struct list failed = LIST_INIT(failed);

    LIST_FOREACH(req, batch, struct broker_req, node) {
        if (kind_of(req) != WRITE)
            break;
        list_remove(&req->node);
        list_push_back(&failed, &req->node);
        fail_req(sq, req, err);
    }
    answer(sq, &failed);
}

/* solo: how many of the first requests must have a transaction each.  Returns what is left of that. */
static size_t write_group(struct sqlite *sq, struct list *batch, size_t solo)
{
    struct mandor_err err = { 0 };
    struct group group = { .reqs = LIST_INIT(group.reqs) };

    if (store_begin(sq->store, &err) < 0) {
        fail_writes(sq, batch, &err);
        return 0;
    }
    fill_group(sq, batch, &group, solo);
    if (sq->store->rc != SQLITE_OK) {
        (void)store_error(sq->store, &err);
        store_rollback(sq->store);
        size_t alone = ungroup(sq, batch, &group, &err);
        return MAX(alone, solo > 0 ? solo - 1 : 0);
    }
    if (store_commit(sq->store, &err) < 0) {
        size_t alone = ungroup(sq, batch, &group, &err);
        return MAX(alone, solo > 0 ? solo - 1 : 0);
    }

    if (group.more != NULL) {
        list_remove(&group.more->node);
        list_push_front(batch, &group.more->node);
    }
    committed(sq, &group.reqs);
    after_commit(sq);
    return solo > 0 && group.more == NULL ? solo - 1 : solo;
}

static void run_alone(struct sqlite *sq, struct broker_req *req)
{
    sq->store->rc = SQLITE_OK;
    int r = ops[req->op].run == store_change ? store_change_all(sq->store, req)
                                             : ops[req->op].run(sq->store, req);
    bool own = kind_of(req) == OWN;
    answer_one(sq, req, r);
    if (own)
        after_commit(sq);
}

static void carry_out(struct sqlite *sq, struct list *batch)
{
    size_t solo = 0;

    while (!list_empty(batch)) {
        struct broker_req *req = LIST_ENTRY(batch->next, struct broker_req, node);
        if (kind_of(req) == WRITE) {
            solo = write_group(sq, batch, solo);
        } else {
            list_remove(&req->node);
            run_alone(sq, req);
        }
    }
}

/* ^Z stops a client only between transactions: whoever sleeps with the turn holds up everybody.  It works because clients block
 * the signal in their other threads (cli/client.c). */
static void let_stop(const struct sqlite *sq, int how)
{
    sigset_t stop;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTSTP);
    if (!sq->threaded_sync)
        (void)pthread_sigmask(how, &stop, NULL);
}

/* Wait for requests; false when there are none and none will come. */
static bool take_inbox(struct sqlite *sq, struct list *batch)
{
    let_stop(sq, SIG_UNBLOCK);
    uv_mutex_lock(&sq->lock);
    while (list_empty(&sq->inbox) && !sq->closing)
        uv_cond_wait(&sq->inbox_filled, &sq->lock);
    list_splice_back(batch, &sq->inbox);
    uv_mutex_unlock(&sq->lock);
    let_stop(sq, SIG_BLOCK);
    return !list_empty(batch);
}

/* Signals are the loop thread's. */
static void block_signals(void)
{
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, NULL);
}

static void broker_main(void *arg)
{
    struct sqlite *sq = arg;
    struct list batch = LIST_INIT(batch);

    block_signals();
    while (take_inbox(sq, &batch))
        carry_out(sq, &batch);

    uv_mutex_lock(&sq->lock);
    sq->broker_over = true;
    uv_cond_signal(&sq->sync_wanted);
    uv_mutex_unlock(&sq->lock);
    (void)uv_async_send(&sq->async);
}

/* ---- the sync thread of a worker ---- */

struct sync_work {
    struct list reqs;
    bool checkpoint, tidy;
};

/* Let others join a sync until it is due; lock is held. */
static void gather(struct sqlite *sq, int64_t due_ns)
{
    int64_t left_ns;

    while (!sq->broker_over && (left_ns = due_ns - clock_mono_ns()) > 0)
        (void)uv_cond_timedwait(&sq->sync_wanted, &sq->lock, (uint64_t)left_ns);
}

/* Wait for work; false when all is done and none will come. */
static bool take_unsynced(struct sqlite *sq, struct sync_work *work, int64_t sync_due_ns)
{
    uv_mutex_lock(&sq->lock);
    while (list_empty(&sq->unsynced) && !sq->checkpoint_wanted && !sq->broker_over) {
        if (!sq->dirty) {
            uv_cond_wait(&sq->sync_wanted, &sq->lock);
        } else {
            sq->dirty = false; /* set again by a commit while we wait */
            if (uv_cond_timedwait(&sq->sync_wanted, &sq->lock, QUIET_NS) == UV_ETIMEDOUT &&
                !sq->dirty) {
                work->tidy = true;
                break;
            }
            sq->dirty = true;
        }
    }
    if (!list_empty(&sq->unsynced))
        gather(sq, sync_due_ns);
    list_splice_back(&work->reqs, &sq->unsynced);
    work->checkpoint = sq->checkpoint_wanted;
    bool go_on = !list_empty(&work->reqs) || work->checkpoint || work->tidy;
    uv_mutex_unlock(&sq->lock);
    return go_on;
}

static void sync_main(void *arg)
{
    struct sqlite *sq = arg;
    int64_t sync_due_ns = 0;

    block_signals();
    for (;;) {
        struct sync_work work = { .reqs = LIST_INIT(work.reqs) };
        if (!take_unsynced(sq, &work, sync_due_ns))
            break;
        if (!list_empty(&work.reqs)) {
            sync_due_ns = clock_mono_ns() + SYNC_EVERY_NS;
            sync_and_answer(sq, &work.reqs);
        }
        if (work.checkpoint)
            checkpoint(sq);
        if (work.tidy)
            wal_tidy(&sq->wal);
    }
    uv_mutex_lock(&sq->lock);
    sq->sync_over = true;
    uv_mutex_unlock(&sq->lock);
    (void)uv_async_send(&sq->async);
}

/* ---- the loop thread ---- */

static void sqlite_free(struct sqlite *sq)
{
    wal_done(&sq->wal);
    (void)store_free(sq->store);
    wake_done(&sq->wake);
    uv_cond_destroy(&sq->inbox_filled);
    uv_cond_destroy(&sq->sync_wanted);
    uv_mutex_destroy(&sq->lock);
    free(sq);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct sqlite *sq = handle->data;
    if (--sq->handles > 0)
        return;

    struct broker *broker = sq->broker;
    if (sq->wake_fd >= 0)
        (void)close(sq->wake_fd);
    sqlite_free(sq);
    if (broker != NULL)
        broker_closed(broker);
}

static void stop_listening(struct sqlite *sq)
{
    char path[PATH_MAX];
    if (sq->wake_fd < 0)
        return;
    if ((size_t)snprintf(path, sizeof path, "%s/run/%s", sq->store->data_dir, sq->name) <
        sizeof path)
        (void)unlink(path);
    uv_close((uv_handle_t *)&sq->poll, on_handle_closed);
}

static void end(struct sqlite *sq)
{
    (void)uv_thread_join(&sq->broker_thread);
    if (sq->threaded_sync)
        (void)uv_thread_join(&sq->sync_thread);
    stop_listening(sq);
    uv_close((uv_handle_t *)&sq->async, on_handle_closed);
    uv_close((uv_handle_t *)&sq->turn, on_handle_closed);
}

static void on_async(uv_async_t *async)
{
    struct sqlite *sq = async->data;
    struct list answers = LIST_INIT(answers);

    uv_mutex_lock(&sq->lock);
    list_splice_back(&answers, &sq->outbox);
    bool over = sq->broker_over && (sq->sync_over || !sq->threaded_sync);
    uv_mutex_unlock(&sq->lock);

    for (struct list *node; (node = list_pop_front(&answers)) != NULL;)
        broker_answer(sq->broker, LIST_ENTRY(node, struct broker_req, node));
    if (over)
        end(sq); /* a thread's last answers precede its end, so nothing is left in the outbox */
}

/* Signalled without the lock: who is woken takes it at once. */
static void fill_inbox(struct sqlite *sq)
{
    uv_mutex_lock(&sq->lock);
    list_splice_back(&sq->inbox, &sq->submitted);
    uv_mutex_unlock(&sq->lock);
    uv_cond_signal(&sq->inbox_filled);
}

static void on_turn(uv_prepare_t *turn)
{
    (void)uv_prepare_stop(turn);
    fill_inbox(turn->data);
}

static void sqlite_submit(struct broker *broker, struct broker_req *req)
{
    struct sqlite *sq = self(broker);

    list_push_back(&sq->submitted, &req->node);
    (void)uv_prepare_start(&sq->turn, on_turn);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct sqlite *sq = poll->data;
    if (wake_drain(sq->wake_fd))
        broker_woken(sq->broker);
}

static int sqlite_listen(struct broker *broker, const char *name, struct mandor_err *err)
{
    struct sqlite *sq = self(broker);
    char run_dir[PATH_MAX];

    BUG_ON(sq->wake_fd >= 0);
    (void)snprintf(run_dir, sizeof run_dir, "%s/run", sq->store->data_dir);
    int fd = wake_bind(run_dir, name, err);
    if (fd < 0)
        return fd;
    int r = uv_poll_init(broker_loop(broker), &sq->poll, fd);
    if (r < 0) {
        (void)close(fd);
        return err_set(err, r, FAULT_HOST, "watch the wake-up socket of worker '%s'", name);
    }
    sq->poll.data = sq;
    sq->wake_fd = fd;
    sq->handles++;
    uv_mutex_lock(&sq->lock);
    (void)snprintf(sq->name, sizeof sq->name, "%s.sock", name);
    uv_mutex_unlock(&sq->lock);
    r = uv_poll_start(&sq->poll, UV_READABLE, on_readable);
    return r < 0 ? err_set(err, r, FAULT_HOST, "watch the wake-up socket of worker '%s'", name) : 0;
}

static void sqlite_close(struct broker *broker)
{
    struct sqlite *sq = self(broker);

    (void)uv_prepare_stop(&sq->turn);
    uv_mutex_lock(&sq->lock);
    sq->closing = true;
    uv_mutex_unlock(&sq->lock);
    fill_inbox(sq);
}

/* ---- opening ---- */

/* One name for one file, however it was spelled: locks, log and data directory are named after it. */
static int absolute_path(const char *given, char **ret, struct mandor_err *err)
{
    *ret = realpath(given, NULL);
    if (*ret != NULL)
        return 0;
    if (errno != ENOENT)
        return err_set(err, -errno, FAULT_HOST, "queue '%s'", given);

    const char *slash = strrchr(given, '/');
    const char *base = slash != NULL ? slash + 1 : given;
    SCOPED_FREE char *dir =
        slash != NULL ? strndup(given, (size_t)MAX(slash - given, (ptrdiff_t)1)) : strdup(".");
    if (base[0] == '\0')
        return err_set(err, -EINVAL, FAULT_CALLER, "queue '%s' must be a file, not a directory",
                       given);
    SCOPED_FREE char *real = dir != NULL ? realpath(dir, NULL) : NULL;
    if (real == NULL)
        return err_set(err, -errno, FAULT_HOST, "directory '%s' of queue '%s'", dir, given);
    if (asprintf(ret, "%s/%s", str_eq(real, "/") ? "" : real, base) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "queue '%s'", given);
    return 0;
}

static int url_path(const char *url, char **ret, struct mandor_err *err)
{
    SCOPED_FREE char *fallback = NULL;
    const char *path = url + strlen("sqlite:");

    if (path[0] == '\0') {
        int r = data_dir_standard("queue.db", &fallback, err);
        if (r == -ENODATA)
            return err_set(err, -EINVAL, FAULT_CALLER,
                           "no place for the queue: neither XDG_STATE_HOME nor HOME is set, "
                           "expected one of them or a broker 'sqlite:PATH'");
        if (r < 0)
            return r;
        path = fallback;
    }
    return absolute_path(path, ret, err);
}

static int prepare(const char *url, char **ret_data_dir, struct mandor_err *err)
{
    SCOPED_FREE char *path = NULL;
    int r = url_path(url, &path, err);

    return r < 0 ? r : data_dir_make(path, ret_data_dir, err);
}

static int open_parts(struct sqlite *sq, const char *url, struct mandor_err *err)
{
    SCOPED_FREE char *path = NULL;
    char run_dir[PATH_MAX];

    int r = url_path(url, &path, err);
    if (r == 0)
        r = store_open(path, sq->threaded_sync, &sq->store, err);
    if (r < 0)
        return r;
    (void)snprintf(run_dir, sizeof run_dir, "%s/run", sq->store->data_dir);
    r = wake_open(&sq->wake, run_dir, err);
    if (r == 0)
        r = wal_open(&sq->wal, path, err);
    if (r < 0)
        return r;

    char *dir = strdup(sq->store->data_dir);
    if (dir == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open queue '%s'", path);
    broker_set_data_dir(sq->broker, dir);
    return 0;
}

static int start_threads(struct sqlite *sq)
{
    /* address space, not memory: only JSON that is nested as deeply as jansson reads it (2048) goes down far */
    const uv_thread_options_t options = { .flags = UV_THREAD_HAS_STACK_SIZE,
                                          .stack_size = (size_t)8 << 20 };

    if (sq->threaded_sync) {
        int r = uv_thread_create_ex(&sq->sync_thread, &options, sync_main, sq);
        if (r < 0)
            return r;
    }
    int r = uv_thread_create_ex(&sq->broker_thread, &options, broker_main, sq);
    if (r < 0 && sq->threaded_sync) {
        uv_mutex_lock(&sq->lock);
        sq->broker_over = true;
        uv_cond_signal(&sq->sync_wanted);
        uv_mutex_unlock(&sq->lock);
        (void)uv_thread_join(&sq->sync_thread);
    }
    return r;
}

static int start(struct sqlite *sq, struct mandor_err *err)
{
    int r = uv_async_init(broker_loop(sq->broker), &sq->async, on_async);
    if (r < 0) {
        sqlite_free(sq);
        return err_set(err, r, FAULT_HOST, "open the queue's event handle");
    }
    (void)uv_prepare_init(broker_loop(sq->broker), &sq->turn);
    sq->async.data = sq->turn.data = sq;
    sq->handles = 2;
    r = start_threads(sq);
    if (r < 0) {
        sq->broker = NULL; /* it is freed by the caller, this when the handle has closed */
        uv_close((uv_handle_t *)&sq->async, on_handle_closed);
        uv_close((uv_handle_t *)&sq->turn, on_handle_closed);
        return err_set(err, r, FAULT_HOST, "start the queue's thread");
    }
    return 0;
}

static int sqlite_open(struct broker *broker, const char *url, struct mandor_err *err)
{
    struct sqlite *sq = calloc(1, sizeof *sq);
    if (sq == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open queue '%s'", url);
    sq->broker = broker;
    sq->wake_fd = -1;
    sq->wake = (struct wake)WAKE_INIT;
    sq->wal = (struct wal){ .fd = -1, .turnstile = TURNSTILE_INIT };
    sq->threaded_sync = broker_is_worker(broker);
    sq->checkpoint_pages = WAL_PAGES;
    list_init(&sq->submitted);
    list_init(&sq->inbox);
    list_init(&sq->unsynced);
    list_init(&sq->outbox);
    if (uv_mutex_init(&sq->lock) < 0 || uv_cond_init(&sq->inbox_filled) < 0 ||
        uv_cond_init(&sq->sync_wanted) < 0)
        bug_at(__FILE__, __LINE__, "mutex or condition"); /* they allocate nothing on Linux */

    int r = open_parts(sq, url, err);
    if (r < 0) {
        sqlite_free(sq);
        return r;
    }
    *(struct sqlite **)broker_state(broker) = sq;
    return start(sq, err);
}

const struct broker_ops broker_sqlite = {
    .scheme = "sqlite",
    .starts_leases = true,
    .state_size = sizeof(struct sqlite *),
    .prepare = prepare,
    .open = sqlite_open,
    .submit = sqlite_submit,
    .listen = sqlite_listen,
    .close = sqlite_close,
};

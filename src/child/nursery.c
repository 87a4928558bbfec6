/* nursery.c - contract in nursery.h.
 *
 * With adopt_orphans SIGCHLD leads to scan(), the only place in the process that waits for "any child"; without it
 * each child's pidfd is polled and nobody else's children are ever touched.
 */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "child/child_int.h"
#include "child/guard.h"
#include "loop/work.h"
#include "os/pidfd.h"
#include "os/tree.h"

#define REAP_BUDGET        256 /* a turn */
#define JANITOR_MS         20  /* between tries to remove what was busy */
#define CLOSE_TRIES        50
#define GUARD_LOST_WAIT_MS 2000

/* ---- the sentinel ---- */

/* A leader.  false: it is registered, but the spawner's answer is still on its way. */
static bool reap_leader(struct child *child)
{
    if (child->state == CHILD_STARTING)
        return false;
    child_reap(child);
    return true;
}

static void reap_keeper(struct nursery *nursery, pid_t pid)
{
    struct child *owner = keeper_reap_pid(&nursery->kinship, pid);
    if (owner != NULL)
        child_pulse(owner);
}

static void reap_orphan(pid_t pid)
{
    if (os_reap_pid(pid) == 1)
        metric_add(METRIC_orphans_reaped, 1);
}

/* One dead child.  true: look for the next one; false: this one must wait for the spawner's answer. */
static bool reap_one(struct nursery *nursery, pid_t pid)
{
    struct kin *kin;
    switch (kin_find(&nursery->kinship, pid, &kin)) {
    case KIN_NEWBORN:
        return false;
    case KIN_CHILD:
        return reap_leader(CONTAINER_OF(kin, struct child, kin));
    case KIN_KEEPER:
        reap_keeper(nursery, pid);
        return true;
    case KIN_NONE:
        break;
    }
    reap_orphan(pid);
    return true;
}

/* Reap all that is dead. */
static void scan(struct nursery *nursery)
{
    (void)lane_drain(nursery->spawner); /* newborns that died at once become known first */
    nursery->rescan = false;
    for (int i = 0; i < REAP_BUDGET; i++) {
        pid_t pid = os_find_dead_child();
        if (pid <= 0)
            return;
        if (!reap_one(nursery, pid)) {
            nursery->rescan = true;
            return;
        }
    }
    nursery->rescan = true;
    (void)uv_async_send(&nursery->answers);
}

static void on_sigchld(uv_signal_t *signal, int number)
{
    struct nursery *nursery = signal->data;
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    (void)number;
    scan(nursery);
}

static void on_answers(uv_async_t *async)
{
    struct nursery *nursery = async->data;
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    (void)lane_drain(nursery->spawner);
    (void)lane_drain(nursery->killer);
    if (nursery->rescan)
        scan(nursery);
}

/* ---- turns: callbacks that must not come from inside a call ---- */

static void on_turn(uv_idle_t *idle)
{
    struct nursery *nursery = idle->data;
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    struct list now = LIST_INIT(now);
    list_splice_back(&now, &nursery->due);
    for (struct list *node; (node = list_pop_front(&now)) != NULL;) {
        struct child *child = LIST_ENTRY(node, struct child, due);
        if (child->state == CHILD_STARTING)
            child_launched(&child->launch_task); /* its start was taken back */
        else
            child_tell_empty(child);
    }
    if (list_empty(&nursery->due))
        (void)uv_idle_stop(idle);
}

void nursery_due(struct nursery *nursery, struct child *child)
{
    list_push_back(&nursery->due, &child->due);
    (void)uv_idle_start(&nursery->turn, on_turn);
}

/* ---- chores: what remains of an attempt ---- */

struct chore {
    struct lane_task task;
    struct work work;
    struct nursery *nursery;
    char *dirs[2];
    bool reuse;    /* scratch_give() */
    bool can_wait; /* when nothing is left, the loop may hear of it later */
    bool left[2];  /* a directory that is not empty: a longer walk */
    int result;
    struct slot *slot;
};

static void try_close(struct nursery *nursery);

static void chore_over(struct chore *chore)
{
    struct nursery *nursery = chore->nursery;
    for (int i = 0; i < 2; i++)
        free(chore->dirs[i]);
    free(chore);
    nursery->chores--;
    try_close(nursery);
}

static void walk_trees(struct work *work)
{
    struct chore *chore = CONTAINER_OF(work, struct chore, work);
    for (int i = 0; i < 2; i++) {
        int r = chore->left[i] ? tree_remove(chore->dirs[i]) : 0;
        chore->result = chore->result < 0 ? chore->result : r;
    }
}

static void trees_walked(struct work *work)
{
    struct chore *chore = CONTAINER_OF(work, struct chore, work);
    if (chore->result < 0) /* names are never used again, so the next job does not meet it */
        log_warn("remove scratch directories of '%s': %s, ignoring",
                 chore->dirs[0] != NULL ? chore->dirs[0] : chore->dirs[1],
                 strerror(-chore->result));
    chore_over(chore);
}

static void chore_run(struct lane_task *task)
{
    struct chore *chore = CONTAINER_OF(task, struct chore, task);
    for (int i = 0; i < 2; i++)
        chore->left[i] = chore->dirs[i] != NULL &&
                         !scratch_give(&chore->nursery->scratch, chore->dirs[i], chore->reuse);
    if (chore->slot != NULL && slot_destroy(&chore->nursery->yard, chore->slot) == 0)
        chore->slot = NULL;
    chore->task.quiet =
        chore->can_wait && chore->slot == NULL && !chore->left[0] && !chore->left[1];
}

static void on_janitor(uv_timer_t *timer);

/* Try to destroy it (again) in a moment. */
static void throw_away(struct nursery *nursery, struct slot *slot)
{
    list_push_back(&nursery->trash, &slot->node);
    if (!uv_is_active((uv_handle_t *)&nursery->janitor))
        (void)uv_timer_start(&nursery->janitor, on_janitor, JANITOR_MS, 0);
}

static void chore_done(struct lane_task *task)
{
    struct chore *chore = CONTAINER_OF(task, struct chore, task);
    struct nursery *nursery = chore->nursery;
    if (chore->slot != NULL)
        throw_away(nursery, chore->slot);
    if (chore->left[0] || chore->left[1])
        work_submit(nursery->loop, &chore->work, nursery->scratch.device, walk_trees, trees_walked);
    else
        chore_over(chore);
}

static void push_chore(struct nursery *nursery, struct slot *slot, char *tmp_dir, char *work_dir,
                       bool reuse)
{
    struct chore *chore = calloc(1, sizeof *chore);
    if (chore == NULL) {
        if (slot != NULL)
            throw_away(nursery, slot);
        if (tmp_dir != NULL || work_dir != NULL) /* they go with all of scratch in the end */
            log_warn("no memory to remove a job's scratch directories, ignoring");
        free(tmp_dir);
        free(work_dir);
        return;
    }
    *chore = (struct chore){ .task = { .run = chore_run, .done = chore_done },
                             .nursery = nursery,
                             .dirs = { tmp_dir, work_dir },
                             .reuse = reuse,
                             .can_wait = !nursery->closing,
                             .slot = slot };
    nursery->chores++;
    lane_push(nursery->spawner, &chore->task);
}

static void on_janitor(uv_timer_t *timer)
{
    struct nursery *nursery = timer->data;
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    struct list now = LIST_INIT(now);
    list_splice_back(&now, &nursery->trash);
    for (struct list *node; (node = list_pop_front(&now)) != NULL;)
        push_chore(nursery, LIST_ENTRY(node, struct slot, node), NULL, NULL, false);
}

void nursery_tidy(struct nursery *nursery, struct child *child)
{
    struct slot *rest = NULL;
    child_unwatch_oom(child);
    if (child->slot != NULL)
        rest = slot_give(&nursery->yard, STEAL(child->slot), !child->killed);
    if (rest != NULL || child->tmp_dir != NULL || child->work_dir != NULL)
        push_chore(nursery, rest, STEAL(child->tmp_dir), STEAL(child->work_dir),
                   !child->killed && child->as_ourselves);
}

/* ---- the guard ---- */

static void guard_lost_over(struct nursery *nursery)
{
    (void)uv_timer_stop(&nursery->last_wait);
    SCOPED_FD base = nursery->yard.base[0] == 0
                         ? -1
                         : open(nursery->yard.base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* The caller exits now: also what could not be stopped one by one. */
    if (base >= 0)
        (void)cgroup_kill(base);
    struct mandor_err err;
    if (nursery->base_text != NULL && nursery_empty_dead(nursery->base_text, &err) < 0)
        log_warn("%s, the next start sweeps", err.msg);
    if (nursery->on_guard_lost != NULL)
        nursery->on_guard_lost(nursery->arg);
}

static void on_last_wait(uv_timer_t *timer)
{
    struct nursery *nursery = timer->data;
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    if (nursery->alive == 0 || clock_mono_ms() >= nursery->last_wait_until_ms)
        guard_lost_over(nursery);
}

/* Without its guard this process is the only one that can keep I3: nothing may outlive it.  What blocks may block now. */
static void on_guard(uv_poll_t *watch, int status, int events)
{
    struct nursery *nursery = watch->data;
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    (void)events;
    char byte;
    ssize_t n = status < 0 ? 0 : recv(nursery->guard_fd, &byte, 1, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return;

    (void)uv_poll_stop(watch);
    nursery->guard_lost = true;
    LIST_FOREACH(child, &nursery->children, struct child, node)
        child_stop(child, CAUSE_WORKER_DIED, 0);
    nursery->last_wait_until_ms = clock_mono_ms() + GUARD_LOST_WAIT_MS;
    (void)uv_timer_start(&nursery->last_wait, on_last_wait, 0, 2);
}

/* ---- life cycle ---- */

const struct contain_host *nursery_host(const struct nursery *nursery)
{
    return &nursery->yard.host;
}

const char *nursery_base_text(const struct nursery *nursery)
{
    return nursery->base_text;
}

static int make_base_text(struct nursery *nursery)
{
    const struct yard *yard = &nursery->yard;
    SCOPED_JSON *limits = json_array();
    for (int i = 0; i < SLOT_LIMITS; i++)
        if (yard->limit_base[i][0] != 0)
            (void)json_array_append_new(limits, json_string(yard->limit_base[i]));
    SCOPED_JSON *base = json_pack("{s:i s:s s:s s:i s:s s:s s:s s:O}", "v", 1, "boot",
                                  clock_boot_id(), "name", nursery->name, "pid", (int)getpid(),
                                  "rung", spec_containment_name(yard->host.automatic), "cgroup",
                                  yard->base, "scratch", nursery->scratch.dir, "limits", limits);
    nursery->base_text = base == NULL ? NULL : json_text(base);
    return nursery->base_text == NULL ? -ENOMEM : 0;
}

static int make_scratch(struct nursery *nursery, const struct nursery_options *options,
                        struct mandor_err *err)
{
    const char *dir = options->scratch_dir;

    SCOPED_FREE char *full = dir[0] == '/' ? strdup(dir) : NULL;
    if (full == NULL && dir[0] != '/') {
        char cwd[4096];
        if (getcwd(cwd, sizeof cwd) == NULL || asprintf(&full, "%s/%s", cwd, dir) < 0)
            return err_set(err, -errno, FAULT_HOST, "find the current directory");
    }
    SCOPED_FREE char *own = NULL;
    if (full == NULL ||
        asprintf(&own, options->own_scratch ? "%s" : "%s/%s", full, nursery->name) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "name the scratch directory");
    int r = scratch_init(&nursery->scratch, own);
    return r < 0 ? err_set(err, r, FAULT_HOST, "make scratch directory '%s'", own) : 0;
}

/* Many jobs need many descriptors.  The jobs get the limit that we were started with. */
static void raise_nofile(struct nursery *nursery)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
        return;
    nursery->nofile = limit;
    limit.rlim_cur = limit.rlim_max;
    nursery->own_nofile = setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

static void init_handles(struct nursery *nursery)
{
    uv_loop_t *loop = nursery->loop;
    (void)uv_idle_init(loop, &nursery->turn);
    (void)uv_timer_init(loop, &nursery->janitor);
    (void)uv_timer_init(loop, &nursery->last_wait);
    nursery->turn.data = nursery->janitor.data = nursery->last_wait.data = nursery;
    nursery->open_handles += 3;
}

static int watch_events(struct nursery *nursery)
{
    int r = uv_async_init(nursery->loop, &nursery->answers, on_answers);
    if (r < 0)
        return r;
    nursery->answers.data = nursery;
    nursery->open_handles++;
    nursery->have_answers = true;

    if (nursery->adopt_orphans) {
        (void)uv_signal_init(nursery->loop, &nursery->sigchld);
        nursery->sigchld.data = nursery;
        nursery->open_handles++;
        nursery->have_sigchld = true;
        r = uv_signal_start(&nursery->sigchld, on_sigchld, SIGCHLD);
    }
    if (r == 0 && nursery->guard_fd >= 0) {
        r = uv_poll_init(nursery->loop, &nursery->guard_watch, nursery->guard_fd);
        if (r < 0)
            return r;
        nursery->guard_watch.data = nursery;
        nursery->open_handles++;
        nursery->have_guard = true;
        r = uv_poll_start(&nursery->guard_watch, UV_READABLE | UV_DISCONNECT, on_guard);
    }
    return r;
}

static int start_threads(struct nursery *nursery)
{
    int r = spawn_memory_new(&nursery->memory);
    if (r == 0)
        r = lane_new("mandor-spawn", &nursery->answers, &nursery->spawner);
    return r < 0 ? r : lane_new("mandor-kill", &nursery->answers, &nursery->killer);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct nursery *nursery = handle->data;
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    if (--nursery->open_handles > 0)
        return;

    void (*on_closed)(void *arg) = nursery->on_closed;
    void *arg = nursery->closed_arg;
    (void)spawn_memory_free(nursery->memory);
    kinship_done(&nursery->kinship);
    if (nursery->dev_null >= 0)
        (void)close(nursery->dev_null);
    free(nursery->name);
    scratch_done(&nursery->scratch);
    free(nursery->base_text);
    OBJ_FINI(nursery);
    free(nursery);
    if (on_closed != NULL)
        on_closed(arg);
}

/* Everything else is over: threads, then handles. */
static void close_handles(struct nursery *nursery)
{
    nursery->spawner = lane_free(nursery->spawner);
    nursery->killer = lane_free(nursery->killer);
    if (nursery->have_answers)
        uv_close((uv_handle_t *)&nursery->answers, on_handle_closed);
    if (nursery->have_sigchld)
        uv_close((uv_handle_t *)&nursery->sigchld, on_handle_closed);
    if (nursery->have_guard)
        uv_close((uv_handle_t *)&nursery->guard_watch, on_handle_closed);
    uv_close((uv_handle_t *)&nursery->turn, on_handle_closed);
    uv_close((uv_handle_t *)&nursery->janitor, on_handle_closed);
    uv_close((uv_handle_t *)&nursery->last_wait, on_handle_closed);
}

static struct nursery *nursery_alloc(uv_loop_t *loop, const struct nursery_options *options)
{
    struct nursery *nursery = calloc(1, sizeof *nursery);
    if (nursery == NULL)
        return NULL;
    nursery->magic = NURSERY_MAGIC;
    nursery->loop = loop;
    nursery->adopt_orphans = options->adopt_orphans;
    nursery->own_scratch = options->own_scratch;
    nursery->guard_fd = options->guard_fd;
    nursery->on_guard_lost = options->on_guard_lost;
    nursery->arg = options->arg;
    nursery->dev_null = -1;
    list_init(&nursery->children);
    list_init(&nursery->due);
    list_init(&nursery->trash);
    init_handles(nursery);
    return nursery;
}

/* Clear of the child's 0..3. */
static int open_dev_null(struct nursery *nursery, struct mandor_err *err)
{
    SCOPED_FD fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    nursery->dev_null = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 10);
    return nursery->dev_null < 0 ? err_set(err, -errno, FAULT_HOST, "open /dev/null") : 0;
}

/* What a job is born into, registered with the guard before anything can be cloned into it. */
static int make_place(struct nursery *nursery, const struct nursery_options *options,
                      struct mandor_err *err)
{
    int r = kinship_init(&nursery->kinship);

    nursery->name = strdup(options->name);
    if (r < 0 || nursery->name == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "make the nursery");
    if ((r = yard_init(&nursery->yard, options->name, &nursery->kinship, err)) < 0)
        return r;
    nursery->have_yard = true;
    if ((r = make_scratch(nursery, options, err)) < 0 || (r = open_dev_null(nursery, err)) < 0)
        return r;
    if ((r = make_base_text(nursery)) < 0)
        return err_set(err, r, FAULT_HOST, "name the base containments");
    if (nursery->guard_fd >= 0 && (r = guard_register(nursery->guard_fd, nursery->base_text)) < 0)
        return err_set(err, r, FAULT_HOST, "register with the guard");
    return 0;
}

int nursery_new(uv_loop_t *loop, const struct nursery_options *options, struct nursery **ret,
                struct mandor_err *err)
{
    struct nursery *nursery = nursery_alloc(loop, options);
    if (nursery == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "make the nursery");

    int r = make_place(nursery, options, err);
    if (r == 0 && (r = watch_events(nursery)) < 0)
        (void)err_set(err, r, FAULT_HOST, "watch for the ends of children");
    if (r == 0 && (r = start_threads(nursery)) < 0)
        (void)err_set(err, r, FAULT_HOST, "start the spawner thread");
    if (r < 0) {
        if (nursery->have_yard)
            yard_done(&nursery->yard);
        close_handles(nursery);
        return r;
    }

    if (nursery->adopt_orphans) { /* then the process is ours, and so are its signals */
        nursery->not_ignored = spawn_not_ignored() & ~(UINT64_C(1) << (SIGPIPE - 1));
        raise_nofile(nursery);
        scan(nursery); /* what died before the handler was there */
    }
    *ret = nursery;
    return 0;
}

/* The last thing that the spawner thread does. */
static void last_run(struct lane_task *task)
{
    struct nursery *nursery = CONTAINER_OF(task, struct nursery, last_task);
    yard_done(&nursery->yard);
    if (nursery->own_scratch)
        scratch_empty(&nursery->scratch);
    else
        (void)tree_remove(nursery->scratch.dir);
}

/* Not from inside lane_drain(): the lanes end here. */
static void on_close_turn(uv_idle_t *idle)
{
    struct nursery *nursery = idle->data;
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    (void)uv_idle_stop(idle);
    if (nursery->guard_fd >= 0 && !nursery->guard_lost)
        (void)!guard_unregister(nursery->guard_fd, nursery->base_text);
    close_handles(nursery);
}

static void last_done(struct lane_task *task)
{
    struct nursery *nursery = CONTAINER_OF(task, struct nursery, last_task);
    (void)uv_idle_start(&nursery->turn, on_close_turn);
}

/* Does nothing but wake the loop: chores that ended quietly are over then. */
static void no_work(struct lane_task *task)
{
    (void)task;
}

/* Slots that stay busy are left to nursery_empty_dead() of the next start. */
static void drop_trash(struct nursery *nursery)
{
    for (struct list *node; (node = list_pop_front(&nursery->trash)) != NULL;)
        slot_abandon(LIST_ENTRY(node, struct slot, node));
}

static void try_close(struct nursery *nursery)
{
    if (!nursery->closing || nursery->chores > 0)
        return;
    if (!list_empty(&nursery->trash)) {
        if (nursery->close_tries++ < CLOSE_TRIES) {
            if (!uv_is_active((uv_handle_t *)&nursery->janitor))
                (void)uv_timer_start(&nursery->janitor, on_janitor, JANITOR_MS, 0);
            return;
        }
        drop_trash(nursery);
    }

    nursery->closing = false; /* once */
    nursery->last_task = (struct lane_task){ .run = last_run, .done = last_done };
    lane_push(nursery->spawner, &nursery->last_task);
}

void nursery_close(struct nursery *nursery, void (*on_closed)(void *arg), void *arg)
{
    OBJ_CHECK(nursery, NURSERY_MAGIC);
    BUG_ON(!list_empty(&nursery->children));
    nursery->on_closed = on_closed;
    nursery->closed_arg = arg;
    nursery->closing = true;
    nursery->nudge = (struct lane_task){ .run = no_work, .done = no_work };
    if (nursery->chores > 0)
        lane_push(nursery->spawner, &nursery->nudge);
    else
        try_close(nursery);
}

/* bullmq_add.c - jobs that the command line adds to BullMQ's queues. */
#include <stdio.h>

#include "base/json.h"
#include "broker/bullmq_errand.h"
#include "broker/lua_scripts.h"

#define PRIORITY_MAX 2097151 /* 2^21 - 1: scores stay exact in a double */

/* ---- what can be added ---- */

/* One that the counter of ids may come to: the job that gets it then would be taken for this one. */
static bool is_integer(const char *id)
{
    const int64_t exact = INT64_C(1) << 53;
    int64_t number = strtoll(id, NULL, 10);
    char text[32];

    (void)snprintf(text, sizeof text, "%" PRId64, number);
    return str_eq(text, id) && number <= exact && number >= -exact;
}

static size_t count_of(const char *text, char c)
{
    size_t count = 0;

    while ((text = strchr(text, c)) != NULL) {
        count++;
        text++;
    }
    return count;
}

/* A job with such an id would be in the place of what the queue is made of. */
static bool is_own_key(const char *id)
{
    static const char *const keys[] = {
        "wait",      "paused", "active",  "prioritized",   "pc",      "delayed", "waiting-children",
        "completed", "failed", "stalled", "stalled-check", "limiter", "meta",    "events",
        "id",        "marker", "repeat",  "priority",
    };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (str_eq(keys[i], id))
            return true;
    return false;
}

/* What stock producers refuse, and names of the queue's own keys, which they do not. */
static int check_id(const char *id, const char *queue, struct mandor_err *err)
{
    const char *why =
        is_integer(id)   ? "an integer, and those are BullMQ's to give"
        : is_own_key(id) ? "the name of one of the queue's own keys"
        : count_of(id, ':') != 0 && (count_of(id, ':') != 2 || strncmp(id, "0:", 2) == 0)
            ? "BullMQ takes none with ':', but of the form A:B:C, where A is not 0"
            : NULL;

    if (why != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, "'id': '%.60s' is refused: %s", id, why);
    size_t room = BROKER_ID_SIZE - strlen(queue) - strlen(":") - 1;
    return strlen(id) <= room ? 0
                              : err_set(err, -EINVAL, FAULT_CALLER,
                                        "'id': %zu bytes long, expected at most %zu in this queue",
                                        strlen(id), room);
}

int bullmq_check_spec(const struct spec *spec, struct mandor_err *err)
{
    if (strchr(spec->queue, ':') != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'queue': '%.60s' has a ':', which BullMQ's queues have not", spec->queue);
    if (spec->priority > PRIORITY_MAX)
        return err_set(err, -EINVAL, FAULT_CALLER, "'priority': %" PRId64 ", BullMQ has 0 to %d",
                       spec->priority, PRIORITY_MAX);
    return spec->id == NULL ? 0 : check_id(spec->id, spec->queue, err);
}

/* ---- its form ---- */

static bool given(const struct spec *spec, const char *key)
{
    size_t count;
    const struct spec_option *options = spec_options(&count);

    for (size_t i = 0; i < count; i++)
        if (str_eq(options[i].key, key))
            return (spec->given >> i & 1) != 0;
    return false;
}

static json_t *backoff_json(const struct spec *spec)
{
    bool said = given(spec, "backoff.type") || given(spec, "backoff.delay") ||
                given(spec, "backoff.jitter");
    if (!said && spec->attempts < 2)
        return NULL;
    json_t *backoff =
        json_pack("{s:s, s:I}", "type", spec->backoff == BACKOFF_FIXED ? "fixed" : "exponential",
                  "delay", (json_int_t)spec->backoff_delay_ms);
    if (spec->backoff_jitter > 0 && (!said || given(spec, "backoff.jitter")))
        (void)json_object_set_new(backoff, "jitter", json_real(spec->backoff_jitter));
    return backoff;
}

static char *opts_text(const struct spec *spec)
{
    SCOPED_JSON *opts = json_pack("{s:I}", "attempts", (json_int_t)spec->attempts);
    json_t *backoff = backoff_json(spec);

    if (spec->delay_ms > 0)
        (void)json_object_set_new(opts, "delay", json_integer(spec->delay_ms));
    if (spec->priority > 0)
        (void)json_object_set_new(opts, "priority", json_integer(spec->priority));
    if (backoff != NULL)
        (void)json_object_set_new(opts, "backoff", backoff);
    if (spec->id != NULL)
        (void)json_object_set_new(opts, "jobId", json_string(spec->id));
    if (spec->lifo)
        (void)json_object_set_new(opts, "lifo", json_true());
    if (spec->unique != NULL)
        (void)json_object_set_new(opts, "de", json_pack("{s:s}", "id", spec->unique));
    return json_text(opts);
}

/* What the job's runner reads; the rest is BullMQ's business.  A queue that is bound takes bare data. */
static char *data_text(const struct spec *spec)
{
    if (spec->kind == SPEC_DATA || spec->kind == SPEC_POOL)
        return spec->data != NULL ? json_text(spec->data) : strdup("{}");
    if (spec->kind == SPEC_PYTHON)
        return json_text(spec->python);

    SCOPED_FREE char *text = spec_to_text(spec);
    SCOPED_JSON *data = text != NULL ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
    const char *key;
    json_t *value;
    void *next;

    json_object_foreach_safe(data, next, key, value)
        if (spec_is_place(key))
            (void)json_object_del(data, key);
    return data != NULL ? json_text(data) : NULL;
}

/* What lists of jobs show first. */
static const char *name_of(const struct spec *spec)
{
    if (spec->kind != SPEC_EXEC)
        return spec->kind == SPEC_POOL ? spec->pool : spec->kind == SPEC_PYTHON ? "python" : "data";
    const char *slash = strrchr(spec->argv[0].bytes, '/');
    const char *name = slash != NULL && slash[1] != '\0' ? slash + 1 : spec->argv[0].bytes;
    return name[0] != '\0' ? name : "exec";
}

/* ---- the call ---- */

struct added {
    struct errand *errand;
    size_t index;
    char *queue;
};

static void on_added(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct added *added = arg;
    struct errand *errand = added->errand;
    struct broker_added *slot = &errand->req->add.added[added->index];

    errand_note(errand, result, err);
    if (result == 0) {
        int len = snprintf(slot->id, sizeof slot->id, "%s:%s", added->queue,
                           bullmq_reply_text(reply, 0, NULL));
        slot->existing = bullmq_reply_int(reply, 1) != 0;
        if (len >= (int)sizeof slot->id) {
            struct mandor_err cut;
            errand_note(errand,
                        err_set(&cut, -ENAMETOOLONG, FAULT_CALLER,
                                "the job was added, but its id is longer than %zu bytes",
                                sizeof slot->id - 1),
                        &cut);
        }
    }
    free(added->queue);
    free(added);
    if (--errand->pending == 0)
        errand_over(errand);
}

static void add_one(struct errand *errand, const struct spec *spec, size_t index)
{
    struct bullmq_queue *queue = bullmq_queue(errand->mq, spec->queue);
    struct added *added = calloc(1, sizeof *added);
    SCOPED_FREE char *data = data_text(spec), *opts = opts_text(spec);
    SCOPED_FREE char *name = json_utf8_lossy(name_of(spec), strlen(name_of(spec)), NULL);

    if (queue == NULL || added == NULL || data == NULL || opts == NULL || name == NULL ||
        (added->queue = strdup(spec->queue)) == NULL) {
        free(added);
        errand_no_memory(errand);
        return;
    }
    added->errand = errand;
    added->index = index;
    errand->pending++;

    struct bullmq_args args;
    bullmq_args_init(&args, queue);
    bullmq_args_text(&args, name);
    bullmq_args_text(&args, data);
    bullmq_args_text(&args, opts);
    bullmq_args_text(&args, spec->id != NULL ? spec->id : "");
    bullmq_arg_int(&args, spec->delay_ms);
    bullmq_arg_int(&args, spec->priority);
    bullmq_arg_int(&args, spec->lifo);
    bullmq_args_text(&args, spec->unique != NULL ? spec->unique : "");
    bullmq_arg_int(&args, 0);
    bullmq_args_text(&args, BULLMQ_VERSION);
    bullmq_call(queue, &args, &lua_bullmq_add, 0, on_added, added);
}

void bullmq_add(struct bullmq *mq, struct broker_req *req)
{
    struct errand *errand = errand_new(mq, req);

    if (errand == NULL)
        return;
    req->add.served = true; /* whoever serves the queue need not be ours */
    errand->pending = 1;
    for (size_t i = 0; i < req->add.count; i++)
        add_one(errand, req->add.specs[i], i);
    if (--errand->pending == 0)
        errand_over(errand);
}

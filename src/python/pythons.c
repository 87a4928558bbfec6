/* pythons.c - all runtimes of a worker, by name; contract in python.h. */
#include "base/buf.h"
#include "child/nursery.h"
#include "python/python_int.h"

int pythons_new(uv_loop_t *loop, struct nursery *nursery, struct pythons **ret)
{
    struct pythons *pythons = calloc(1, sizeof *pythons);

    if (pythons == NULL)
        return -ENOMEM;
    *pythons = (struct pythons){ .loop = loop, .nursery = nursery };
    list_init(&pythons->list);
    *ret = pythons;
    return 0;
}

static struct python *find(const struct pythons *pythons, const char *name)
{
    LIST_FOREACH(python, &pythons->list, struct python, node)
        if (!python->closing && str_eq(python->runtime.name, name))
            return python;
    return NULL;
}

static bool is_named(const struct python *python, const struct python_options *options)
{
    for (size_t i = 0; i < options->runtime_count; i++)
        if (str_eq(options->runtimes[i].name, python->runtime.name))
            return true;
    return false;
}

/* Servers that are started from now on take these; *ret_changed: they are others than before. */
static int set_places(struct pythons *pythons, const struct python_options *options,
                      bool *ret_changed)
{
    char *store = options->store != NULL ? strdup(options->store) : NULL;
    char *node = options->node != NULL ? strdup(options->node) : NULL;

    if ((options->store != NULL && store == NULL) || (options->node != NULL && node == NULL)) {
        free(store);
        free(node);
        return -ENOMEM;
    }
    *ret_changed =
        !str_eq(store != NULL ? store : "", pythons->store != NULL ? pythons->store : "") ||
        !str_eq(node != NULL ? node : "",
                pythons->node_program != NULL ? pythons->node_program : "");
    free(pythons->store);
    free(pythons->node_program);
    pythons->store = store;
    pythons->node_program = node;
    return 0;
}

int pythons_configure(struct pythons *pythons, const struct python_options *options)
{
    bool moved = false;
    int r = set_places(pythons, options, &moved);

    if (r < 0)
        return r;
    for (size_t i = 0; i < options->runtime_count; i++) {
        const struct python_runtime *runtime = &options->runtimes[i];
        struct python *python = find(pythons, runtime->name);
        if (python != NULL && moved)
            python->version++;
        r = python != NULL ? python_change(python, runtime) : python_new(pythons, runtime, &python);
        if (r < 0)
            return r;
    }
    LIST_FOREACH(python, &pythons->list, struct python, node)
        if (!is_named(python, options) && !python->closing)
            python_leave(python);
    return 0;
}

struct python *pythons_find(struct pythons *pythons, const char *name, struct mandor_err *err)
{
    struct python *python = pythons != NULL ? find(pythons, name) : NULL;
    SCOPED_BUF names = { 0 };

    if (python != NULL && !python->leaving)
        return python;
    if (pythons == NULL) {
        (void)err_set(err, -EOPNOTSUPP, FAULT_CALLER, "Python jobs run in a worker only");
        return NULL;
    }
    LIST_FOREACH(other, &pythons->list, struct python, node)
        if (!other->leaving && !other->closing)
            (void)!buf_addf(&names, "%s'%s'", names.len > 0 ? ", " : "", other->runtime.name);
    (void)err_set(err, -EOPNOTSUPP, FAULT_CALLER, "no runtime '%.60s' here, expected one of %s",
                  name, names.data != NULL ? names.data : "none");
    return NULL;
}

json_t *pythons_json(const struct pythons *pythons)
{
    json_t *list = json_array();

    LIST_FOREACH(python, &pythons->list, struct python, node)
        (void)json_array_append_new(list, python_json(python));
    return list;
}

static void try_end(struct pythons *pythons)
{
    if (!pythons->closing || !list_empty(&pythons->list))
        return;
    void (*on_closed)(void *arg) = pythons->on_closed;
    void *arg = pythons->closed_arg;
    free(pythons->store);
    free(pythons->node_program);
    free(pythons);
    if (on_closed != NULL)
        on_closed(arg);
}

enum spec_containment pythons_containment(const struct pythons *pythons)
{
    return nursery_host(pythons->nursery)->v2.usable ? CONTAIN_CGROUP : CONTAIN_GROUP;
}

void pythons_forget(struct pythons *pythons, struct python *python)
{
    list_remove(&python->node);
    python_runtime_done(&python->runtime);
    OBJ_FINI(python);
    free(python);
    try_end(pythons);
}

void pythons_close(struct pythons *pythons, void (*on_closed)(void *arg), void *arg)
{
    pythons->closing = true;
    pythons->on_closed = on_closed;
    pythons->closed_arg = arg;
    LIST_FOREACH(python, &pythons->list, struct python, node)
        python_close(python);
    try_end(pythons);
}

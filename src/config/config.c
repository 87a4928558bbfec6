/* config.c - contract in config.h.
 *
 *     file ──tree──▶ tree with lines ──param: params.def, types.def──▶ struct config
 *                                      ├─ value: one value into one field
 *                                      ├─ section: queues, pools, python, sinks
 *                                      └─ job_option: job/options.def on a queue
 *
 * `struct place` walks along, so that every message can say where.
 */
#include "config/config.h"

#include <sched.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/words.h"
#include "config/section.h"
#include "config/tree.h"
#include "config/value.h"

static int64_t cpu_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    return MAX((int64_t)sysconf(_SC_NPROCESSORS_ONLN), (int64_t)1); /* more than 1024 CPUs */
}

static int set_defaults(struct config *config, struct mandor_err *err)
{
    config->concurrency = cpu_count();
    config->env_pass = calloc(1, sizeof *config->env_pass);
    if (config->env_pass == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");

    int r = param_set_defaults(SECTION_TOP, config, err);
    if (r == 0)
        r = param_set_defaults(SECTION_S3, &config->sinks.s3, err);
    return r < 0 ? r : section_python_default(&config->python, err);
}

static const struct python_runtime *runtime_of(const struct config *config, const char *name)
{
    for (size_t i = 0; i < config->python.runtime_count; i++)
        if (str_eq(config->python.runtimes[i].name, name != NULL ? name : "default"))
            return &config->python.runtimes[i];
    return NULL;
}

struct binding config_binding(const struct config *config, const struct config_queue *queue)
{
    const struct python_runtime *runtime = runtime_of(config, queue->runtime);

    return (struct binding){
        .executor = queue->executor,
        .command = (const char *const *)queue->command,
        .pool = json_string_value(json_object_get(queue->defaults, "pool")),
        .runtime = queue->runtime,
        .code = queue->code,
        .allow_exec = queue->allow_exec,
        .python_open = runtime != NULL && !str_eq(runtime->sandbox, "strict"),
    };
}

/* What holds between the keys of a queue and other parts of the file; the file's end is where all of it is known. */
static int check_queues(const struct place *place, const struct config *config)
{
    struct mandor_err why = { 0 };

    for (size_t i = 0; i < config->queue_count; i++) {
        const struct config_queue *queue = &config->queues[i];
        const struct binding binding = config_binding(config, queue);
        struct place inner = place_below(place, "queues", queue->line);
        inner = place_below(&inner, queue->name, queue->line);
        int r = binding_check(&binding, &why);
        if (r < 0)
            return place_failed(&inner, r, &why);
        if (queue->runtime != NULL && runtime_of(config, queue->runtime) == NULL)
            return place_bad(&inner, "runtime: there is no '%.60s' below python.runtimes",
                             queue->runtime);
    }
    return 0;
}

static int read_top(const struct place *place, const struct tree *tree, struct config *config)
{
    if (tree->kind != TREE_MAP)
        return place_bad(place, "expected a mapping of keys at the top");
    int r = param_read_all(place, SECTION_TOP, tree, config);
    return r < 0 ? r : check_queues(place, config);
}

static int config_new(struct config **ret, struct mandor_err *err)
{
    SCOPED(config_free) struct config *config = calloc(1, sizeof *config);
    if (config == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");

    int r = set_defaults(config, err);
    if (r < 0)
        return r;
    *ret = STEAL(config);
    return 0;
}

int config_parse(const char *name, const char *text, size_t len, struct config **ret,
                 struct mandor_err *err)
{
    SCOPED(config_free) struct config *config = NULL;
    SCOPED(tree_free) struct tree *tree = NULL;
    const char *slash = strrchr(name, '/');

    SCOPED_FREE char *dir = slash == NULL ? strdup(".") : strndup(name, (size_t)(slash - name) + 1);
    if (dir == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    int r = config_new(&config, err);
    if (r < 0)
        return r;
    config->path = strdup(name);
    if (config->path == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
    r = tree_parse(name, text, len, &tree, err);
    if (r < 0)
        return r;
    r = read_top(&(struct place){ .file = name, .dir = dir, .line = tree->line, .err = err }, tree,
                 config);
    if (r < 0)
        return r;

    *ret = STEAL(config);
    return 0;
}

static int load_file(const char *path, struct config **ret, struct mandor_err *err)
{
    SCOPED_BUF text = { 0 };

    int r = file_read(path, VALUE_FILE_MAX, false, &text);
    if (r == -EFBIG)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "configuration '%.120s' is longer than %zu bytes, is it the right file?",
                       path, VALUE_FILE_MAX);
    /* Whoever named the file is to act, so not FAULT_HOST; the reason is said all the same. */
    if (r < 0)
        return err_set(err, r == -ENOMEM ? r : -EINVAL, FAULT_CALLER, "configuration '%.120s': %s",
                       path, strerrordesc_np(-r));
    return config_parse(path, text.data, text.len, ret, err);
}

/* The n-th place to look in, malloc'ed; NULL where there is none of that kind. */
static char *standard_path(int n)
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    SCOPED_BUF path = { 0 };
    int r = -ENOENT;

    if (n == 1)
        r = buf_adds(&path, "/etc/mandor/mandor.yaml");
    else if (xdg != NULL && xdg[0] == '/')
        r = buf_addf(&path, "%s/mandor/mandor.yaml", xdg);
    else if (home != NULL && home[0] == '/')
        r = buf_addf(&path, "%s/.config/mandor/mandor.yaml", home);
    return r == 0 ? buf_steal(&path) : NULL;
}

int config_load(const char *path, struct config **ret, struct mandor_err *err)
{
    const char *named = path != NULL ? path : getenv("MANDOR_CONFIG");
    if (named != NULL && named[0] != '\0')
        return load_file(named, ret, err);

    for (int n = 0; n < 2; n++) {
        SCOPED_FREE char *standard = standard_path(n);
        if (standard == NULL ||
            (access(standard, F_OK) < 0 && (errno == ENOENT || errno == ENOTDIR)))
            continue;
        return load_file(standard, ret, err);
    }
    return config_new(ret, err);
}

struct config *config_free(struct config *config)
{
    if (config == NULL)
        return NULL;

    for (size_t i = 0; i < config->queue_count; i++) {
        free(config->queues[i].name);
        json_decref(config->queues[i].defaults);
        free(config->queues[i].broker);
        free(config->queues[i].executor);
        words_free(config->queues[i].command);
        free(config->queues[i].runtime);
        free(config->queues[i].code);
    }
    free(config->queues);
    for (size_t i = 0; i < config->pool_count; i++)
        pool_options_done(&config->pools[i]);
    free(config->pools);
    python_options_done(&config->python);
    s3_settings_done(&config->sinks.s3);
    words_free(config->env_pass);
    free(config->containment);
    free(config->log_format);
    free(config->broker);
    free(config->path);
    free(config);
    return NULL;
}

const struct config_queue *config_queue(const struct config *config, const char *name)
{
    for (size_t i = 0; i < config->queue_count; i++)
        if (str_eq(config->queues[i].name, name))
            return &config->queues[i];
    return &section_queue_default;
}

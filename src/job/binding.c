/* binding.c - contract in binding.h. */
#include "job/binding.h"

#include "base/buf.h"
#include "base/json.h"
#include "job/spec.h"

/* Job options that a message from a shared broker may bring: they say when and how often, never what, where or as whom. */
static const char *const harmless[] = {
    "queue",        "priority", "delay",
    "unique",       "attempts", "backoff",
    "idle_timeout", "timeout",  "no_retry_exit_codes",
};

static bool is_among(const char *const *list, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (str_eq(list[i], key))
            return true;
    return false;
}

static int no_memory(struct mandor_err *err)
{
    return err_set(err, -ENOMEM, FAULT_HOST, "make a job");
}

/* ---- templates ---- */

/* Member or element `name` (len bytes) of json; NULL when it has none. */
static const json_t *member(const json_t *json, const char *name, size_t len)
{
    char key[256];

    if (len == 0 || len >= sizeof key)
        return NULL;
    memcpy(key, name, len);
    key[len] = '\0';
    if (json_is_object(json))
        return json_object_get(json, key);
    if (!json_is_array(json) || strspn(key, "0123456789") != len || len > 9)
        return NULL;
    return json_array_get(json, (size_t)strtoul(key, NULL, 10));
}

/* path: what follows "data", as ".a.b" or "". */
static const json_t *find(const json_t *data, const char *path, size_t len)
{
    const json_t *at = data;

    for (size_t i = 0; at != NULL && i < len;) {
        size_t end = ++i; /* the dot */
        while (end < len && path[end] != '.')
            end++;
        at = member(at, path + i, end - i);
        i = end;
    }
    return at;
}

static int add_json(struct buf *buf, const json_t *value)
{
    SCOPED_FREE char *text = json_text(value);

    return text == NULL ? -ENOMEM : buf_adds(buf, text);
}

/* Append value, whose text is given or NULL; *ret_safe: it cannot be taken for an option. */
static int add_value(struct buf *buf, const json_t *value, const char *text, bool *ret_safe,
                     struct mandor_err *err)
{
    int r;

    *ret_safe = false;
    if (json_is_string(value)) {
        r = buf_add(buf, json_string_value(value), json_string_length(value));
    } else if (json_is_object(value) && json_object_size(value) == 1 &&
               json_object_get(value, "b64") != NULL) {
        SCOPED_FREE char *bytes = NULL;
        size_t len;
        r = json_bytes_get(value, &bytes, &len, err);
        if (r < 0)
            return r;
        if (memchr(bytes, '\0', len) != NULL)
            return err_set(err, -EINVAL, FAULT_JOB, "a NUL byte, which no argument can hold");
        r = buf_add(buf, bytes, len);
    } else {
        *ret_safe = true;
        r = text != NULL ? buf_adds(buf, text) : add_json(buf, value);
    }
    return r < 0 ? no_memory(err) : 0;
}

static bool is_data(const char *name, size_t len)
{
    return len >= 4 && memcmp(name, "data", 4) == 0 && (len == 4 || name[4] == '.');
}

static const char *own_value(const struct binding_place *place, const char *name, size_t len)
{
    if (len == 2 && memcmp(name, "id", 2) == 0)
        return place->id;
    if (len == 5 && memcmp(name, "queue", 5) == 0)
        return place->queue;
    if (len == 4 && memcmp(name, "name", 4) == 0)
        return place->name != NULL ? place->name : "";
    return NULL;
}

/* Append what {name} stands for. */
static int add_placeholder(struct buf *buf, const char *name, size_t len, const json_t *data,
                           const struct binding_place *place, bool *ret_safe,
                           struct mandor_err *err)
{
    const char *own = own_value(place, name, len);

    if (own != NULL) {
        *ret_safe = false;
        return buf_adds(buf, own) < 0 ? no_memory(err) : 0;
    }
    const json_t *value = find(data, name + 4, len - 4);
    if (value == NULL || json_is_null(value))
        return err_set(err, -EINVAL, FAULT_JOB,
                       "the job's data have no '%.*s', which the command of its queue asks for",
                       (int)MIN(len > 5 ? len - 5 : strlen("value"), (size_t)80),
                       len > 5 ? name + 5 : "value");
    int r = add_value(buf, value, len == 4 ? place->data_text : NULL, ret_safe, err);
    return r < 0 ? err_wrap(err, r, "{%.*s}", (int)MIN(len, (size_t)80), name) : 0;
}

/* The length of the placeholder's name at text ("{name}"); -EINVAL when it is none. */
static int placeholder(const char *text, size_t *ret_len, struct mandor_err *err)
{
    size_t len = strcspn(text + 1, "{}");
    const char *name = text + 1;

    *ret_len = len;
    if (name[len] != '}')
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'%.40s' has no end, expected {data.NAME}, or {{ for a brace", text);
    bool dots = len > 4 && (name[len - 1] == '.' || memmem(name, len, "..", 2) != NULL);
    const struct binding_place any = { .id = "", .queue = "", .name = "" };
    if (dots || (!is_data(name, len) && own_value(&any, name, len) == NULL))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "unknown placeholder '%.*s', expected {data}, {data.NAME}, {id}, {queue} or "
                       "{name}, or {{ for a brace",
                       (int)MIN(len + 2, (size_t)60), text);
    return 0;
}

/* One argument.  after_dashes: "--" stood before it. */
static int fill_word(const char *word, const json_t *data, const struct binding_place *place,
                     bool after_dashes, struct buf *ret, struct mandor_err *err)
{
    bool first_safe = true;

    if (buf_adds(ret, "") < 0)
        return no_memory(err);
    for (const char *at = word; *at != '\0';) {
        size_t len = 0;
        bool safe = true;
        int r;
        if (*at != '{' || at[1] == '{') {
            r = buf_add(ret, at, 1);
            at += *at == '{' ? 2 : 1;
            if (r < 0)
                return no_memory(err);
            continue;
        }
        bool first = ret->len == 0;
        r = placeholder(at, &len, err);
        if (r == 0)
            r = add_placeholder(ret, at + 1, len, data, place, &safe, err);
        if (r < 0)
            return r;
        if (first)
            first_safe = safe;
        at += len + 2;
    }
    if (!first_safe && !after_dashes && ret->data[0] == '-' && ret->len > 1)
        return err_set(err, -EINVAL, FAULT_JOB,
                       "'%.60s' would be taken for an option: a value may not begin with '-' where "
                       "'%.60s' begins",
                       ret->data, word);
    return 0;
}

int binding_fill(const char *const *command, const json_t *data, const struct binding_place *place,
                 json_t **ret, struct mandor_err *err)
{
    SCOPED_JSON *argv = json_array();
    bool after_dashes = false;

    for (size_t i = 0; command[i] != NULL; i++) {
        SCOPED_BUF word = { 0 };
        int r = fill_word(command[i], data, place, after_dashes, &word, err);
        if (r < 0)
            return r;
        if (json_array_append_new(argv, json_bytes(word.data, word.len)) < 0)
            return no_memory(err);
        after_dashes |= str_eq(command[i], "--");
    }
    *ret = STEAL(argv);
    return 0;
}

static int check_template(const char *const *command, struct mandor_err *err)
{
    for (size_t i = 0; command[i] != NULL; i++)
        for (const char *at = command[i]; *at != '\0'; at++) {
            size_t len = 0;
            if (*at != '{')
                continue;
            if (at[1] == '{') {
                at++;
                continue;
            }
            int r = placeholder(at, &len, err);
            if (r < 0)
                return err_wrap(err, r, "command");
            at += len + 1;
        }
    return command[0][0] == '{' && command[0][1] != '{'
               ? err_set(err, -EINVAL, FAULT_CALLER,
                         "command: the program itself cannot come from a message, expected its "
                         "name first")
               : 0;
}

/* ---- bindings ---- */

static bool is_executor(const struct binding *binding, const char *name)
{
    return binding->executor != NULL && str_eq(binding->executor, name);
}

static bool runs_python(const struct binding *binding)
{
    return is_executor(binding, "python") ||
           (binding->executor == NULL && (binding->code != NULL || binding->runtime != NULL));
}

bool binding_is_bound(const struct binding *binding)
{
    return binding->command != NULL || binding->pool != NULL || runs_python(binding);
}

int binding_check(const struct binding *binding, struct mandor_err *err)
{
    bool python = binding->code != NULL || binding->runtime != NULL;
    unsigned kinds = (binding->command != NULL) + (binding->pool != NULL) + python;

    if (kinds > 1)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "more than one thing to run, expected one of 'command', 'pool', and 'code' "
                       "or 'runtime'");
    if (is_executor(binding, "exec") && (kinds - (binding->command != NULL) > 0 ||
                                         (binding->command == NULL && !binding->allow_exec)))
        return err_set(
            err, -EINVAL, FAULT_CALLER,
            "executor: exec needs 'command' (or 'allow_exec: true') and neither pool nor code");
    if (is_executor(binding, "pool") && binding->pool == NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, "executor: pool needs 'pool', the name of one");
    if (is_executor(binding, "python") && (binding->command != NULL || binding->pool != NULL))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "executor: python goes with neither command nor pool");
    if (runs_python(binding) && binding->python_open && binding->code == NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "runtime: it has no sandbox, so its code cannot come from messages: "
                       "expected 'code: FILE', or a runtime with "
                       "sandbox: strict");
    return binding->command != NULL ? check_template(binding->command, err) : 0;
}

/* {code, params, packages, runtime}: program and runtime are the queue's where it names them. */
static int python_job(const struct binding *binding, const json_t *given, const json_t *data,
                      json_t **ret, struct mandor_err *err)
{
    const json_t *code = json_object_get(given, "code"),
                 *runtime = json_object_get(given, "runtime");
    const json_t *params = given != NULL ? json_object_get(given, "params") : NULL;
    SCOPED_JSON *python = json_object();

    if (binding->code != NULL && code != NULL && data == NULL)
        return err_set(
            err, -EINVAL, FAULT_JOB,
            "python.code: the queue has a program of its own ('code' in its configuration)");
    if (binding->code == NULL && !json_is_string(code))
        return err_set(err, -EINVAL, FAULT_JOB,
                       "no program: expected 'code' in the job's data, a text");
    if (binding->runtime != NULL && json_is_string(runtime) &&
        !str_eq(json_string_value(runtime), binding->runtime))
        return err_set(err, -EINVAL, FAULT_JOB,
                       "python.runtime: jobs of this queue run in '%s', not in '%.60s'",
                       binding->runtime, json_string_value(runtime));
    if (binding->code != NULL && data != NULL) /* all of the data are the program's */
        params = data;
    json_t *own = binding->runtime != NULL ? json_string(binding->runtime)
                                           : json_incref((json_t *)(uintptr_t)runtime);
    json_t *packages = binding->code == NULL ? json_object_get(given, "packages") : NULL;
    int r = json_object_set_new(python, "code",
                                binding->code != NULL ? json_string(binding->code)
                                                      : json_incref((json_t *)(uintptr_t)code));
    if (r == 0 && params != NULL)
        r = json_object_set(python, "params", (json_t *)(uintptr_t)params);
    if (r == 0 && packages != NULL)
        r = json_object_set(python, "packages", packages);
    if (own != NULL && json_object_set_new(python, "runtime", own) < 0)
        r = -1;
    if (r < 0)
        return no_memory(err);
    *ret = STEAL(python);
    return 0;
}

/* Put into job what the queue says is to be run with data. */
static int bind(const struct binding *binding, json_t *job, const json_t *data,
                const struct binding_place *place, struct mandor_err *err)
{
    json_t *what = NULL;
    int r = 0;

    if (binding->command != NULL) {
        r = binding_fill(binding->command, data, place, &what, err);
        if (r == 0 && json_object_set_new(job, "exec", what) < 0)
            r = no_memory(err);
    } else if (binding->pool != NULL) {
        r = json_object_set_new(job, "pool", json_string(binding->pool));
        if (r == 0 && data != NULL)
            r = json_object_set(job, "data", (json_t *)(uintptr_t)data);
        if (r < 0)
            r = no_memory(err);
    } else if (runs_python(binding)) {
        r = python_job(binding, data, data, &what, err);
        if (r == 0 && json_object_set_new(job, "python", what) < 0)
            r = no_memory(err);
    } else {
        r = err_set(err, -EINVAL, FAULT_JOB,
                    "queue '%s' is not bound: its configuration must say what its jobs run "
                    "('command', 'pool' or 'code')%s",
                    place->queue, binding->allow_exec ? ", or the job must ('exec')" : "");
    }
    return r;
}

/* ---- messages ---- */

static int refuse_exec(const struct binding_place *place, struct mandor_err *err)
{
    return err_set(err, -EACCES, FAULT_CALLER,
                   "queue '%s' takes no command from a shared broker: bind it with 'command', or "
                   "set 'allow_exec: true'",
                   place->queue);
}

/* Everything harmless of job, without what to run. */
static int copy_harmless(const json_t *job, json_t *ret, struct mandor_err *err)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)job, key, value) {
        if (str_eq(key, "data") || str_eq(key, "pool") || str_eq(key, "python"))
            continue;
        int r = spec_check_key(key, err);
        if (r < 0)
            return r;
        if (!is_among(harmless, ARRAY_LEN(harmless), key))
            return err_set(err, -EINVAL, FAULT_JOB,
                           "'%.60s' cannot come from a shared broker: set it on the queue in the "
                           "worker's configuration, or 'allow_exec: true' there",
                           key);
        if (json_object_set(ret, key, value) < 0)
            return no_memory(err);
    }
    return 0;
}

json_t *binding_harmless(const json_t *defaults)
{
    json_t *kept = json_object(), *value;
    const char *key;

    json_object_foreach((json_t *)(uintptr_t)defaults, key, value) {
        if (is_among(harmless, ARRAY_LEN(harmless), key) && json_object_set(kept, key, value) < 0) {
            json_decref(kept);
            return NULL;
        }
    }
    return kept;
}

static int shared_job(const struct binding *binding, const json_t *job, const json_t *data,
                      const struct binding_place *place, json_t *ret, struct mandor_err *err)
{
    const char *pool = json_string_value(json_object_get(job, "pool"));
    const json_t *python = json_object_get(job, "python");
    json_t *what = NULL;

    int r = copy_harmless(job, ret, err);
    if (r < 0)
        return r;
    if (pool != NULL && (binding->pool == NULL || !str_eq(pool, binding->pool)))
        return err_set(err, -EACCES, FAULT_CALLER,
                       "queue '%s' does not hand jobs to pool '%.60s': its configuration must say "
                       "'pool: %.60s'",
                       place->queue, pool, pool);
    if (python == NULL)
        return bind(binding, ret, data, place, err);
    if (!runs_python(binding))
        return err_set(err, -EACCES, FAULT_CALLER,
                       "queue '%s' runs no Python: its configuration must say 'executor: python'",
                       place->queue);
    r = python_job(binding, python, NULL, &what, err);
    return r < 0 ? r : json_object_set_new(ret, "python", what) < 0 ? no_memory(err) : 0;
}

int binding_job(const struct binding *binding, const json_t *job, bool shared,
                const struct binding_place *place, json_t **ret, struct mandor_err *err)
{
    const json_t *data = json_object_get(job, "data");
    bool says = json_object_get(job, "exec") != NULL || json_object_get(job, "pool") != NULL ||
                json_object_get(job, "python") != NULL;
    SCOPED_JSON *made = NULL;
    int r;

    if (!json_is_object(job))
        return err_set(err, -EINVAL, FAULT_JOB, "a job must be a JSON object");
    if ((!shared || binding->allow_exec) && (says || !binding_is_bound(binding))) {
        *ret = json_incref((json_t *)(uintptr_t)job);
        return 0;
    }
    if (json_object_get(job, "exec") != NULL)
        return refuse_exec(place, err);
    if (shared && !binding->allow_exec) {
        made = json_object();
        r = made == NULL ? no_memory(err) : shared_job(binding, job, data, place, made, err);
    } else {
        made = json_copy((json_t *)(uintptr_t)job);
        if (made != NULL)
            (void)json_object_del(made, "data"); /* it goes into what is to be run */
        r = made == NULL ? no_memory(err) : bind(binding, made, data, place, err);
    }
    if (r == 0)
        *ret = STEAL(made);
    return r;
}

int binding_data(const struct binding *binding, const json_t *data,
                 const struct binding_place *place, json_t **ret, struct mandor_err *err)
{
    SCOPED_JSON *job = json_object();
    bool exec = json_object_get(data, "exec") != NULL;
    size_t count;
    const struct spec_option *options = spec_options(&count);
    int r = job == NULL ? no_memory(err) : 0;

    if (r == 0 && exec && !binding_is_bound(binding)) {
        if (!binding->allow_exec)
            return refuse_exec(place, err);
        for (size_t i = 0; i < count && r == 0; i++) { /* "backoff.delay": the group's name */
            SCOPED_FREE char *key = strndup(options[i].key, strcspn(options[i].key, "."));
            json_t *value = key != NULL && !spec_is_place(key) ? json_object_get(data, key) : NULL;
            if (key == NULL || (value != NULL && json_object_set(job, key, value) < 0))
                r = no_memory(err);
        }
    } else if (r == 0) {
        r = bind(binding, job, data, place, err);
    }
    if (r == 0)
        *ret = STEAL(job);
    return r;
}

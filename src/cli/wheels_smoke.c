/* wheels_smoke.c - contract in wheels_smoke.h.
 *
 *     a directory: mandor.yaml, with one runtime that has the packages, and a queue ─▶ mandor add ─▶ mandor work --drain ─▶ mandor show
 *
 * mandor calls itself: what is tried is what jobs will get, isolation and sandbox included, and a package that crashes the interpreter
 * takes only its own job with it.
 */
#include "cli/wheels_smoke.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/client.h"
#include "os/memfile.h"
#include "os/tree.h"
#include "python/store.h"

#define JOB_TIMEOUT  "60s"
#define START_MS     INT64_C(120000) /* for the server's start */
#define PACKAGE_MS   INT64_C(65000)  /* for each package's job */
#define STOP_GRACE   INT64_C(20000)
#define ANSWER_BYTES ((size_t)64 << 20)

extern char **environ;

static const char code[] = "import importlib\n"
                           "for module in params['modules']:\n"
                           "    importlib.import_module(module)\n";

struct smoke {
    const struct wheels *wheels;
    char *dir, *config, *broker;
    struct mandor_err *err;
};

static int failed(const struct smoke *smoke, int code_, const char *what)
{
    return err_set(smoke->err, code_, FAULT_HOST, "%s", what);
}

/* ---- calling ourselves ---- */

static int start_self(char *const *argv, int in, int out, int err_fd, pid_t *ret)
{
    posix_spawn_file_actions_t actions;

    int r = posix_spawn_file_actions_init(&actions);
    if (r != 0)
        return -r;
    r = posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&actions, err_fd, STDERR_FILENO);
    if (r == 0)
        r = posix_spawn(ret, "/proc/self/exe", &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return -r;
}

/* Wait until deadline, then end it.  The wait status, or -errno. */
static int wait_until(pid_t pid, int64_t deadline_ms)
{
    for (bool asked = false, killed = false;;) {
        int status;
        pid_t got = waitpid(pid, &status, killed ? 0 : WNOHANG);
        if (got == pid)
            return status;
        if (got < 0 && errno != EINTR)
            return -errno;
        if (clock_mono_ms() > deadline_ms) {
            killed = asked;
            (void)kill(pid, asked ? SIGKILL : SIGTERM);
            deadline_ms = clock_mono_ms() + STOP_GRACE;
            asked = true;
        }
        if (!killed)
            client_pause(20);
    }
}

/* `mandor WORDS…` on the queue of smoke; *out gets what it prints. */
static int call(struct smoke *smoke, const char *const *words, const char *input, int64_t limit_ms,
                struct buf *out)
{
    char *argv[64] = { "mandor",      (char *)words[0], "--config",
                       smoke->config, "--broker",       smoke->broker };
    size_t count = 6;
    SCOPED_BUF said = { .data = NULL };
    SCOPED_FD in = memfile_make("in", input, strlen(input)), to = memfile_make("out", "", 0),
              log = memfile_make("log", "", 0);
    pid_t pid = -1;

    for (size_t i = 1; words[i] != NULL && count + 1 < ARRAY_LEN(argv); i++)
        argv[count++] = (char *)words[i];
    int r = in < 0 ? in : to < 0 ? to : log < 0 ? log : start_self(argv, in, to, log, &pid);
    if (r < 0)
        return failed(smoke, r, "try the packages");

    int status = wait_until(pid, clock_mono_ms() + limit_ms);
    r = status < 0 ? status : memfile_read(to, ANSWER_BYTES, out);
    if (r == 0)
        r = memfile_read(log, ANSWER_BYTES, &said);
    if (r < 0)
        return failed(smoke, r, "try the packages");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    size_t skip = said.len > 150 ? said.len - 150 : 0;
    return err_set(smoke->err, -EPROTO, FAULT_JOB, "try the packages: 'mandor %s' failed: …%s",
                   words[0], said.data != NULL ? said.data + skip : "");
}

/* ---- the queue ---- */

static int write_config(struct smoke *smoke, const json_t *names)
{
    const struct config *config = smoke->wheels->config;
    const char *node = config != NULL ? config->python.node : NULL;
    SCOPED_JSON *json =
        json_pack("{s:{s:s, s:s*, s:{s:{s:O, s:i}}}}", "python", "store", smoke->wheels->store,
                  "node", node, "runtimes", "default", "packages", names, "spare", 0);
    SCOPED_FREE char *text = json != NULL ? json_text(json) : NULL;
    if (text == NULL)
        return failed(smoke, -ENOMEM, "try the packages");

    FILE *file = fopen(smoke->config, "we");
    if (file == NULL)
        return failed(smoke, -errno, "try the packages");
    bool good = fputs(text, file) >= 0;
    good &= fclose(file) == 0;
    return good ? 0 : failed(smoke, -EIO, "try the packages");
}

/* One job a package, a line each. */
static int jobs_of(struct smoke *smoke, const json_t *lock, const json_t *names, struct buf *lines)
{
    size_t i;
    json_t *name;

    json_array_foreach((json_t *)names, i, name) {
        const json_t *package = json_object_get(lockfile_packages(lock), json_string_value(name));
        SCOPED_JSON *job =
            json_pack("{s:{s:s, s:{s:O}}, s:s}", "python", "code", code, "params", "modules",
                      json_object_get(package, "imports"), "timeout", JOB_TIMEOUT);
        if (json_write(lines, job) < 0 || buf_adds(lines, "\n") < 0)
            return failed(smoke, -ENOMEM, "try the packages");
    }
    return 0;
}

/* The last line of an error, which in Python is what happened. */
static json_t *last_line(const char *text)
{
    size_t end = strlen(text);

    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == ' '))
        end--;
    size_t start = end;
    while (start > 0 && text[start - 1] != '\n')
        start--;
    return json_stringn(text + start, end - start);
}

/* What became of one package's job: null, or why it failed. */
static int judge(struct smoke *smoke, const char *text, size_t len, json_t **ret)
{
    SCOPED_JSON *record = NULL;
    int r = json_parse(text, len, &record, smoke->err);
    if (r < 0)
        return r;

    const char *state = json_string_value(json_object_get(record, "state"));
    const char *cause = json_string_value(json_object_get(record, "cause"));
    const char *why = json_string_value(json_object_get(record, "error"));
    if (state != NULL && str_eq(state, "completed"))
        *ret = json_null();
    else if (state == NULL || !str_eq(state, "failed") || (cause != NULL && str_eq(cause, "spawn")))
        return err_set(smoke->err, -EPROTO, FAULT_JOB, "no package could be imported: %.180s",
                       why != NULL ? why : "the worker did not get to it in time");
    else
        *ret = last_line(why != NULL ? why : cause != NULL ? cause : "it failed");
    return *ret != NULL ? 0 : failed(smoke, -ENOMEM, "try the packages");
}

/* ids: one a line, in the order of names. */
static int gather(struct smoke *smoke, char *ids, const json_t *names, json_t *found)
{
    char *rest = ids;
    size_t i;
    json_t *name;

    json_array_foreach((json_t *)names, i, name) {
        SCOPED_BUF shown = { .data = NULL };
        json_t *verdict = NULL;
        const char *id = strsep(&rest, "\n");
        if (id == NULL || id[0] == '\0')
            return failed(smoke, -EPROTO, "try the packages");
        int r = call(smoke, (const char *[]){ "show", id, "--json", NULL }, "", START_MS, &shown);
        if (r == 0)
            r = judge(smoke, shown.data, shown.len, &verdict);
        if (r < 0)
            return r;
        if (json_object_set_new(found, json_string_value(name), verdict) < 0)
            return failed(smoke, -ENOMEM, "try the packages");
    }
    return 0;
}

static int run(struct smoke *smoke, const json_t *lock, const json_t *names, json_t *found)
{
    SCOPED_BUF jobs = { .data = NULL }, ids = { .data = NULL }, nothing = { .data = NULL };
    int64_t limit = START_MS + PACKAGE_MS * (int64_t)json_array_size(names);

    int r = write_config(smoke, names);
    if (r == 0)
        r = jobs_of(smoke, lock, names, &jobs);
    if (r == 0)
        r = call(smoke, (const char *[]){ "add", "--from", "-", NULL }, jobs.data, START_MS, &ids);
    if (r == 0)
        r = call(smoke, (const char *[]){ "work", "--drain", "--concurrency", "2", NULL }, "",
                 limit, &nothing);
    return r == 0 ? gather(smoke, ids.data, names, found) : r;
}

static char *temp_dir(void)
{
    const char *parent = getenv("TMPDIR");
    SCOPED_FREE char *path = NULL;

    if (asprintf(&path, "%s/mandor-verify-XXXXXX",
                 parent != NULL && parent[0] == '/' ? parent : "/tmp") < 0) {
        path = NULL;
        return NULL;
    }
    return mkdtemp(path) != NULL ? STEAL(path) : NULL;
}

static int make_names(struct smoke *smoke)
{
    smoke->dir = temp_dir();
    if (smoke->dir == NULL)
        return failed(smoke, -errno, "make a directory to try the packages in");
    if (asprintf(&smoke->config, "%s/mandor.yaml", smoke->dir) < 0)
        smoke->config = NULL;
    if (asprintf(&smoke->broker, "sqlite:%s/queue.db", smoke->dir) < 0)
        smoke->broker = NULL;
    return smoke->config != NULL && smoke->broker != NULL
               ? 0
               : failed(smoke, -ENOMEM, "try the packages");
}

int wheels_smoke(const struct wheels *wheels, const json_t *lock, const json_t *names, json_t **ret,
                 struct mandor_err *err)
{
    struct smoke smoke = { .wheels = wheels, .err = err };
    SCOPED_JSON *found = json_object();

    int r = found != NULL ? make_names(&smoke) : failed(&smoke, -ENOMEM, "try the packages");
    if (r == 0)
        r = run(&smoke, lock, names, found);
    if (smoke.dir != NULL)
        (void)tree_remove(smoke.dir);
    free(smoke.dir);
    free(smoke.config);
    free(smoke.broker);
    if (r == 0)
        *ret = STEAL(found);
    return r;
}

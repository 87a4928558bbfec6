/* wheels_fill.c - `mandor wheels add` and `import`: what comes into the store.
 *
 *     add      pip fetches into a directory of the store that nobody reads ──┐
 *     import   files that somebody fetched elsewhere ────────────────────────┴─▶ every byte looked at ─▶ copied, synced ─▶ lock file
 *
 * Fetching takes no turn; looking and taking happen in one turn, so that what fits together still does when it is written down.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "base/utf8.h"
#include "cli/out.h"
#include "cli/wheels.h"
#include "cli/wheels_helper.h"
#include "os/tree.h"
#include "python/locate.h"
#include "python/store.h"

static int no_memory(struct mandor_err *err)
{
    return err_set(err, -ENOMEM, FAULT_HOST, "fill the wheel store");
}

/* ---- requests ---- */

/* Append a word or path to a list. */
static int add_text(json_t *array, const char *text, struct mandor_err *err)
{
    if (!utf8_clean(text, strlen(text)))
        return err_set(err, -EINVAL, FAULT_CALLER, "'%.100s' is not UTF-8", text);
    return json_array_append_new(array, json_string(text)) < 0 ? no_memory(err) : 0;
}

/* {name: path of its wheel} */
static json_t *paths_of(const char *store, const json_t *lock)
{
    SCOPED_JSON *paths = json_object();
    const char *name;
    json_t *package;

    json_object_foreach(lockfile_packages(lock), name, package) {
        SCOPED_FREE char *path = store_path(store, package);
        if (path == NULL || json_object_set_new(paths, name, json_string(path)) < 0)
            return NULL;
    }
    return STEAL(paths);
}

/* "packages" of the file that --lock names; JSON null without --lock. */
static int wanted(const struct wheels *wheels, json_t **ret, struct mandor_err *err)
{
    const char *path = cli_text(wheels->cli, "lock");
    SCOPED_JSON *lock = NULL;

    if (path == NULL) {
        *ret = json_null();
        return 0;
    }
    int r = store_read_file(path, &lock, err);
    if (r == 0)
        *ret = json_incref(lockfile_packages(lock));
    else if (r == -ENOENT)
        err->fault = FAULT_CALLER; /* who named it, not the machine */
    return r;
}

/* Print why it was refused; the exit code. */
static int refused(const struct wheels *wheels, const json_t *answer)
{
    size_t i;
    json_t *reason;

    json_array_foreach(json_object_get(answer, "refused"), i, reason) {
        const char *text = json_string_value(reason);
        cli_warn(wheels->cli, "refused: %s", text != NULL ? text : "no reason given");
    }
    return EXIT_FAILED;
}

/* ---- taking ---- */

/* Note what happens to one package. */
static int note(json_t *changes, const char *name, const json_t *package, const json_t *old)
{
    const char *what = old == NULL ? "added" : json_equal(old, package) ? "kept" : "replaced";
    const char *was = old != NULL ? lockfile_text(old, "version") : NULL;
    json_t *change = json_pack("{s:s, s:s, s:s, s:s, s:s*}", "name", name, "version",
                               lockfile_text(package, "version"), "file",
                               lockfile_text(package, "file"), "change", what, "was", was);

    return json_array_append_new(changes, change);
}

static int take_one(struct store_edit *edit, const char *name, json_t *package,
                    const json_t *sources, json_t *changes, struct mandor_err *err)
{
    const char *from = json_string_value(json_object_get(sources, name));
    if (from == NULL)
        return err_set(err, -EPROTO, FAULT_BUG, "python3 did not say where the wheel of '%s' is",
                       name);

    SCOPED_JSON *old = json_incref(json_object_get(lockfile_packages(store_edit_lock(edit)), name));
    int r = store_edit_put(edit, name, package, from, err);
    if (r < 0)
        return err_wrap(err, r, "package '%s'", name);
    return note(changes, name, package, old) < 0 ? no_memory(err) : 0;
}

static int take(struct store_edit *edit, const json_t *answer, json_t *changes,
                struct mandor_err *err)
{
    const json_t *sources = json_object_get(answer, "sources");
    const char *name;
    json_t *package;

    if (!json_is_object(json_object_get(answer, "packages")))
        return err_set(err, -EPROTO, FAULT_BUG, "python3 did not say what the wheels are");
    json_object_foreach(json_object_get(answer, "packages"), name, package) {
        int r = take_one(edit, name, package, sources, changes, err);
        if (r < 0)
            return r;
    }
    return store_edit_commit(edit, err);
}

/* What happened, for people and programs. */
static int report(const struct wheels *wheels, const json_t *changes)
{
    size_t i;
    json_t *change;

    json_array_foreach((json_t *)changes, i, change) {
        const char *what = lockfile_text(change, "change");
        const char *was = json_string_value(json_object_get(change, "was"));
        bool replaced = was != NULL && str_eq(what, "replaced");
        if (!wheels->cli->json)
            out_line("%-8s %s %s%s%s", what, lockfile_text(change, "name"),
                     lockfile_text(change, "version"), replaced ? ", was " : "",
                     replaced ? was : "");
        else if (out_json(change) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* Look into files and take them when all is well.  The exit code. */
static int look_and_take(const struct wheels *wheels, json_t *files, const json_t *asked,
                         const json_t *want, bool no_deps)
{
    SCOPED(store_edit_free) struct store_edit *edit = NULL;
    SCOPED_JSON *answer = NULL, *request = NULL, *changes = json_array();
    struct mandor_err err = { .code = 0 };

    int r = store_edit_begin(wheels->store, &edit, &err);
    if (r == 0) {
        request = json_pack("{s:s, s:O, s:O, s:O, s:O, s:b}", "do", "inspect", "files", files,
                            "packages", lockfile_packages(store_edit_lock(edit)), "asked", asked,
                            "wanted", want, "no_deps", (int)no_deps);
        r = request != NULL ? wheels_helper_ask(request, &answer, &err) : no_memory(&err);
    }
    if (r == 0 && json_object_get(answer, "refused") != NULL)
        return refused(wheels, answer);
    if (r == 0)
        r = take(edit, answer, changes, &err);
    if (r == 0 && report(wheels, changes) < 0)
        r = no_memory(&err);
    return r < 0 ? cli_fail(wheels->cli, &err) : EXIT_OK;
}

/* ---- import ---- */

int wheels_import(struct wheels *wheels)
{
    SCOPED_JSON *files = json_array(), *asked = json_array(), *want = NULL;
    struct mandor_err err = { .code = 0 };

    if (wheels->arg_count == 0)
        return cli_usage(wheels->cli, "import: no wheels, expected directories or files");
    for (size_t i = 0; i < wheels->arg_count; i++) {
        SCOPED_FREE char *path = realpath(wheels->args[i], NULL);
        if (path == NULL) {
            (void)err_set(&err, errno == ENOENT ? -ENOENT : -EINVAL, FAULT_CALLER, "'%s': %s",
                          wheels->args[i], strerror(errno));
            return cli_fail(wheels->cli, &err);
        }
        if (add_text(files, path, &err) < 0)
            return cli_fail(wheels->cli, &err);
    }
    if (wanted(wheels, &want, &err) < 0)
        return cli_fail(wheels->cli, &err);
    return look_and_take(wheels, files, asked, want, cli_flag(wheels->cli, "no-deps"));
}

/* ---- add ---- */

/* Where the wheels of Pyodide's lock file are; NULL: where its loader gets them. */
static const char *pyodide_url(const struct wheels *wheels)
{
    const char *url = cli_text(wheels->cli, "pyodide-url");

    return url != NULL ? url : getenv("MANDOR_PYODIDE_URL");
}

/* The directory of Pyodide's npm package, malloc'ed; NULL: its versions are not asked for, or not known here. */
static char *pyodide_dir(const struct wheels *wheels)
{
    const char *given = cli_text(wheels->cli, "pyodide"), *url = pyodide_url(wheels);
    SCOPED_FREE char *harness = NULL;
    char *dir = NULL;

    if (url != NULL && str_eq(url, "none"))
        return NULL;
    if (given != NULL)
        return strdup(given);
    if (locate_harness(&harness, NULL) < 0) {
        cli_warn(wheels->cli, "Pyodide is not installed here, so that its own versions are not "
                              "known; taking those of the package index");
        return NULL;
    }
    return asprintf(&dir, "%s/node_modules/pyodide", harness) < 0 ? NULL : dir;
}

/* A word that is no URL would only send us to the index, as a server that is away does. */
static int check_pyodide_url(const struct wheels *wheels, struct mandor_err *err)
{
    const char *url = pyodide_url(wheels);

    if (url == NULL || str_eq(url, "none") || strncmp(url, "https://", 8) == 0 ||
        strncmp(url, "http://", 7) == 0 || strncmp(url, "file:///", 8) == 0)
        return 0;
    return err_set(
        err, -EINVAL, FAULT_CALLER, "%s: '%.100s', expected https://…, file:///DIR/ or none",
        cli_text(wheels->cli, "pyodide-url") != NULL ? "--pyodide-url" : "MANDOR_PYODIDE_URL", url);
}

/* *ret: its path, malloc'ed. */
static int make_dir(const char *parent, const char *name, char **ret, struct mandor_err *err)
{
    if (asprintf(ret, "%s/%s", parent, name) < 0) {
        *ret = NULL;
        return no_memory(err);
    }
    return mkdir(*ret, 0777) < 0 ? err_set(err, -errno, FAULT_HOST, "make directory '%s'", *ret)
                                 : 0;
}

static int make_request(const struct wheels *wheels, const char *staging, const json_t *want,
                        json_t *asked, json_t **ret, struct mandor_err *err)
{
    SCOPED_FREE char *into = NULL, *scratch = NULL, *pyodide = pyodide_dir(wheels);
    SCOPED_JSON *lock = NULL, *paths = NULL;
    int r = store_read(wheels->store, &lock, err);
    if (r == -ENOENT)
        r = (lock = lockfile_new()) != NULL ? 0 : -ENOMEM;
    if (r < 0)
        return r;

    r = make_dir(staging, "wheels", &into, err);
    if (r == 0)
        r = make_dir(staging, "scratch", &scratch, err);
    if (r < 0)
        return r;
    paths = paths_of(wheels->store, lock);
    *ret = json_pack("{s:s, s:O, s:O, s:O, s:O, s:b, s:s, s:s, s:s?, s:s?}", "do", "fetch", "asked",
                     asked, "packages", lockfile_packages(lock), "paths", paths, "wanted", want,
                     "upgrade", (int)cli_flag(wheels->cli, "upgrade"), "into", into, "scratch",
                     scratch, "pyodide", pyodide, "pyodide_url", pyodide_url(wheels));
    return *ret != NULL ? 0 : no_memory(err);
}

/* With a directory to fetch into: the exit code. */
static int fetch_and_take(const struct wheels *wheels, const char *staging)
{
    SCOPED_JSON *asked = json_array(), *want = NULL, *request = NULL;
    SCOPED_JSON *answer = NULL, *files = NULL;
    struct mandor_err err = { .code = 0 };

    int r = wanted(wheels, &want, &err);
    for (size_t i = 0; r == 0 && i < wheels->arg_count; i++)
        r = add_text(asked, wheels->args[i], &err);
    if (r == 0)
        r = make_request(wheels, staging, want, asked, &request, &err);
    if (r == 0)
        r = wheels_helper_ask(request, &answer, &err);
    if (r < 0)
        return cli_fail(wheels->cli, &err);
    if (json_object_get(answer, "refused") != NULL)
        return refused(wheels, answer);
    if (json_array_size(json_object_get(answer, "files")) == 0)
        return EXIT_OK; /* a lock file without packages */

    files = json_pack("[O]", json_object_get(request, "into"));
    return files != NULL ? look_and_take(wheels, files, asked, want, false)
                         : cli_fail(wheels->cli, (no_memory(&err), &err));
}

int wheels_add(struct wheels *wheels)
{
    SCOPED_FREE char *staging = NULL;
    SCOPED_FD held = -1;
    struct mandor_err err = { .code = 0 };
    bool locked = cli_text(wheels->cli, "lock") != NULL;

    if (wheels->arg_count == 0 && !locked)
        return cli_usage(wheels->cli, "add: no package named, expected names such as pandas");
    if (wheels->arg_count > 0 && locked)
        return cli_usage(wheels->cli, "add: '%s' beside --lock, expected one of them",
                         wheels->args[0]);
    if (check_pyodide_url(wheels, &err) < 0 ||
        store_staging(wheels->store, &staging, &held, &err) < 0)
        return cli_fail(wheels->cli, &err);

    int code = fetch_and_take(wheels, staging);
    (void)tree_remove(staging);
    return code;
}

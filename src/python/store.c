/* store.c - the reading half of store.h: which wheels a set of packages takes, and are their bytes right? */
#include "python/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "python/digest.h"

#define DEPTH_MAX 500 /* packages that need each other in a row */

char *store_path(const char *dir, const json_t *package)
{
    char *path = NULL;
    int n = asprintf(&path, "%s/%.16s/%s", dir, lockfile_text(package, "sha256"),
                     lockfile_text(package, "file"));

    return n < 0 ? NULL : path;
}

/* ---- the lock file ---- */

int store_read_file(const char *path, json_t **ret, struct mandor_err *err)
{
    SCOPED_BUF text = { .data = NULL };

    int r = file_read(path, LOCKFILE_SIZE_MAX, false, &text);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "read '%s'", path);
    r = lockfile_parse(text.data, text.len, ret, err);
    return r < 0 ? err_wrap(err, r, "'%s'", path) : 0;
}

int store_read(const char *dir, json_t **ret, struct mandor_err *err)
{
    SCOPED_FREE char *path = NULL;

    if (asprintf(&path, "%s/" STORE_LOCK_NAME, dir) < 0) {
        path = NULL;
        return err_set(err, -ENOMEM, FAULT_HOST, "open the wheel store");
    }
    int r = store_read_file(path, ret, err);
    if (r == -ENOENT || r == -ENOTDIR)
        return err_set(err, -ENOENT, FAULT_CALLER,
                       "there is no wheel store at '%s': 'mandor wheels add' makes one", dir);
    return r;
}

/* ---- which wheels ---- */

struct walk {
    const json_t *packages;
    const char *dir;
    json_t *seen;  /* "pandas", "pandas[excel]" */
    json_t *order; /* names */
    struct mandor_err *err;
};

static int no_memory(struct mandor_err *err)
{
    return err_set(err, -ENOMEM, FAULT_HOST, "work out the packages to load");
}

/* Note key; 1 when it was there before. */
static int see(struct walk *walk, const char *key)
{
    if (json_object_get(walk->seen, key) != NULL)
        return 1;
    return json_object_set_new(walk->seen, key, json_true()) < 0 ? no_memory(walk->err) : 0;
}

static int visit(struct walk *walk, const char *text, const char *needed_by, int depth);

static int visit_all(struct walk *walk, const json_t *depends, const char *needed_by, int depth)
{
    size_t i;
    json_t *item;

    json_array_foreach((json_t *)depends, i, item) {
        int r = visit(walk, json_string_value(item), needed_by, depth + 1);
        if (r < 0)
            return r;
    }
    return 0;
}

static int visit_package(struct walk *walk, const char *name, const json_t *package, int depth)
{
    int r = see(walk, name);
    if (r != 0)
        return MIN(r, 0);

    r = visit_all(walk, json_object_get(package, "depends"), name, depth);
    if (r < 0)
        return r;
    return json_array_append_new(walk->order, json_string(name)) < 0 ? no_memory(walk->err) : 0;
}

static int visit_extra(struct walk *walk, const char *name, const json_t *package,
                       const char *extra, int depth)
{
    SCOPED_FREE char *key = NULL;

    if (asprintf(&key, "%s[%s]", name, extra) < 0) {
        key = NULL;
        return no_memory(walk->err);
    }
    int r = see(walk, key);
    if (r != 0)
        return MIN(r, 0);
    const json_t *depends = json_object_get(json_object_get(package, "extras"), extra);
    if (depends == NULL)
        return err_set(walk->err, -ENOENT, FAULT_CALLER, "package '%s' %s has no extra '%s'", name,
                       lockfile_text(package, "version"), extra);
    return visit_all(walk, depends, key, depth);
}

static int absent(struct walk *walk, const char *name, const char *needed_by)
{
    return err_set(walk->err, -ENOENT, FAULT_CALLER,
                   "package '%s'%s%s%s is not in the wheel store '%s': 'mandor wheels add %s' puts "
                   "it there",
                   name, needed_by != NULL ? ", which '" : "", needed_by != NULL ? needed_by : "",
                   needed_by != NULL ? "' needs," : "", walk->dir, name);
}

/* Dependencies first; a circle is cut where it closes. */
static int visit(struct walk *walk, const char *text, const char *needed_by, int depth)
{
    struct requirement requirement;
    int r = requirement_parse(text, &requirement, walk->err);
    if (r < 0)
        return r;

    const json_t *package = json_object_get(walk->packages, requirement.name);
    if (depth > DEPTH_MAX)
        r = err_set(walk->err, -ELOOP, FAULT_CALLER,
                    "more than %d packages need each other in a row, the last is '%s'", DEPTH_MAX,
                    requirement.name);
    else if (needed_by == NULL && requirement.rest[0] != '\0')
        r = err_set(
            walk->err, -EINVAL, FAULT_CALLER,
            "'%.80s': expected a package's name, extras at most: the store decides the version",
            text);
    else if (package == NULL)
        r = absent(walk, requirement.name, needed_by);
    else
        r = visit_package(walk, requirement.name, package, depth);
    for (const char *extra = requirement.extras; r == 0 && extra[0] != '\0';
         extra += strlen(extra) + 1)
        r = visit_extra(walk, requirement.name, package, extra, depth);
    requirement_done(&requirement);
    return r;
}

int store_order(const json_t *lock, const char *dir, char *const *packages, json_t **ret_names,
                struct mandor_err *err)
{
    SCOPED_JSON *seen = json_object(), *order = json_array();
    struct walk walk = {
        .packages = lockfile_packages(lock), .dir = dir, .seen = seen, .order = order, .err = err
    };

    if (seen == NULL || order == NULL)
        return no_memory(err);
    for (; packages != NULL && *packages != NULL; packages++) {
        int r = visit(&walk, *packages, NULL, 0);
        if (r < 0)
            return r;
    }
    *ret_names = STEAL(order);
    return 0;
}

/* ---- are their bytes right? ---- */

int store_check_file(const char *dir, const char *name, const json_t *package,
                     struct mandor_err *err)
{
    SCOPED_FREE char *path = store_path(dir, package);
    char hex[DIGEST_TEXT_SIZE];
    struct stat st;
    if (path == NULL)
        return no_memory(err);

    SCOPED_FD fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return err_set(err, -ENOENT, FAULT_CALLER,
                       "the wheel of package '%s' has gone from the store: no file '%s'", name,
                       path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, -errno, FAULT_HOST, "open '%s'", path);

    int64_t n = S_ISREG(st.st_mode) ? digest_fd(fd, -1, hex) : -EBADMSG;
    if (n < 0 && n != -EBADMSG)
        return err_set(err, (int)n, FAULT_HOST, "read '%s'", path);
    if (n != json_integer_value(json_object_get(package, "size")) ||
        !str_eq(hex, lockfile_text(package, "sha256")))
        return err_set(
            err, -EBADMSG, FAULT_CALLER,
            "the wheel of package '%s' is not the file that was put into the store, '%s'", name,
            path);
    return 0;
}

static int fill(const char *dir, const char *name, const json_t *package, struct store_wheel *wheel)
{
    *wheel = (struct store_wheel){
        .name = strdup(name),
        .version = strdup(lockfile_text(package, "version")),
        .path = store_path(dir, package),
        .sha256 = strdup(lockfile_text(package, "sha256")),
        .size_bytes = json_integer_value(json_object_get(package, "size")),
    };
    return wheel->name != NULL && wheel->version != NULL && wheel->path != NULL &&
                   wheel->sha256 != NULL
               ? 0
               : -ENOMEM;
}

static int gather(const char *dir, const json_t *lock, const json_t *names,
                  struct store_wheels *wheels, struct mandor_err *err)
{
    size_t i;
    json_t *item;

    wheels->at = calloc(json_array_size(names) + 1, sizeof *wheels->at);
    if (wheels->at == NULL)
        return no_memory(err);
    json_array_foreach((json_t *)names, i, item) {
        const char *name = json_string_value(item);
        const json_t *package = json_object_get(lockfile_packages(lock), name);
        wheels->count++;
        if (fill(dir, name, package, &wheels->at[i]) < 0)
            return no_memory(err);
        int r = store_check_file(dir, name, package, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* From one reading of the lock; *ret_lock is what it was. */
static int try_wheels(const char *dir, char *const *packages, struct store_wheels *wheels,
                      json_t **ret_lock, struct mandor_err *err)
{
    SCOPED_JSON *lock = NULL, *names = NULL;

    int r = store_read(dir, &lock, err);
    if (r == 0)
        r = store_order(lock, dir, packages, &names, err);
    if (r == 0)
        r = gather(dir, lock, names, wheels, err);
    if (r < 0)
        store_wheels_done(wheels);
    *ret_lock = STEAL(lock);
    return r;
}

int store_wheels(const char *dir, char *const *packages, struct store_wheels *ret,
                 struct mandor_err *err)
{
    SCOPED_JSON *before = NULL;

    *ret = (struct store_wheels){ .at = NULL };
    if (packages == NULL || packages[0] == NULL)
        return 0;
    if (dir == NULL)
        return err_set(err, -ENOENT, FAULT_CALLER,
                       "package '%.80s' is asked for, but no wheel store is configured: 'python: "
                       "{store: DIR}'",
                       packages[0]);
    for (int turn = 0;; turn++) {
        json_t *lock = NULL;
        int r = try_wheels(dir, packages, ret, &lock, err);
        bool changed = lock != NULL && (before == NULL || !json_equal(lock, before));
        json_decref(before);
        before = lock;
        /* A file that has gone may have been replaced since the lock was read: it is read once more, until it stays the same. */
        if (r != -ENOENT || !changed || turn == STORE_RACES_MAX)
            return r;
    }
}

void store_wheels_done(struct store_wheels *wheels)
{
    for (size_t i = 0; i < wheels->count; i++) {
        free(wheels->at[i].name);
        free(wheels->at[i].version);
        free(wheels->at[i].path);
        free(wheels->at[i].sha256);
    }
    free(wheels->at);
    *wheels = (struct store_wheels){ .at = NULL };
}

/* store_edit.c - the changing half of store.h. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/file.h"
#include "os/tree.h"
#include "python/digest.h"
#include "python/store.h"

#define EDIT_MAGIC  0x73746564u
#define TEMP_PREFIX ".tmp-"
#define KEY_LEN     ((size_t)16) /* digits of sha256 that name a directory */

struct store_edit {
    uint32_t magic;
    char *dir;
    int turn; /* flock */
    json_t *lock;
};

/* ---- temporary files ---- */

static int join(const char *dir, const char *name, char **ret, struct mandor_err *err)
{
    if (asprintf(ret, "%s/%s", dir, name) >= 0)
        return 0;
    *ret = NULL;
    return err_set(err, -ENOMEM, FAULT_HOST, "change the wheel store");
}

/* A new file in the store that no reader looks at; *ret_path is malloc'ed. */
static int make_temp(const char *dir, char **ret_path, struct mandor_err *err)
{
    mode_t mask = umask(0);
    (void)umask(mask);
    SCOPED_FREE char *path = NULL;
    int r = join(dir, TEMP_PREFIX "XXXXXX", &path, err);
    if (r < 0)
        return r;

    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return err_set(err, -errno, FAULT_HOST, "make a file in '%s'", dir);
    (void)fchmod(fd, 0666 & ~mask); /* others may start runtimes from this store */
    *ret_path = STEAL(path);
    return fd;
}

/* ---- sweeping ---- */

/* Does a directory of this name hold a wheel that the lock names? */
static bool is_named(const json_t *lock, const char *key)
{
    const char *name;
    json_t *package;

    json_object_foreach(lockfile_packages(lock), name, package) {
        if (strncmp(lockfile_text(package, "sha256"), key, KEY_LEN) == 0)
            return true;
    }
    return false;
}

static bool is_key(const char *name)
{
    return strlen(name) == KEY_LEN && strspn(name, "0123456789abcdef") == KEY_LEN;
}

/* Is somebody alive who makes this? */
static bool is_held(const char *path)
{
    SCOPED_FD fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

/* Remove what crashes left, and wheels that the lock does not name.  What cannot be removed does no harm: the next change tries again. */
static void sweep(const char *dir, const json_t *lock)
{
    DIR *stream = opendir(dir);
    struct dirent *entry;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        bool temp = strncmp(entry->d_name, TEMP_PREFIX, strlen(TEMP_PREFIX)) == 0;
        char *path = NULL;
        if (!temp && !(is_key(entry->d_name) && !is_named(lock, entry->d_name)))
            continue;
        if (join(dir, entry->d_name, &path, NULL) == 0 && !(temp && is_held(path)))
            (void)tree_remove(path);
        free(path);
    }
    if (stream != NULL)
        (void)closedir(stream);
}

/* ---- the turn ---- */

/* Wait for it.  The store is made where it is missing. */
static int take_turn(const char *dir, int *ret_fd, struct mandor_err *err)
{
    SCOPED_FREE char *path = NULL;
    int r = join(dir, ".turn", &path, err);
    if (r == 0)
        r = file_make_parents(path, 0777, NULL, err);
    if (r < 0)
        return r;

    SCOPED_FD fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return err_set(err, -errno, FAULT_HOST, "open '%s'", path);
    if (RETRY_EINTR(flock(fd, LOCK_EX)) < 0)
        return err_set(err, -errno, FAULT_HOST, "lock '%s'", path);
    *ret_fd = STEAL_FD(fd);
    return 0;
}

static int read_lock(const char *dir, json_t **ret, struct mandor_err *err)
{
    int r = store_read(dir, ret, err);
    if (r != -ENOENT)
        return r;

    *ret = lockfile_new();
    return *ret != NULL ? 0 : err_set(err, -ENOMEM, FAULT_HOST, "read the wheel store");
}

static int open_edit(struct store_edit *edit, struct mandor_err *err)
{
    if (edit->dir == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open the wheel store");
    int r = take_turn(edit->dir, &edit->turn, err);
    return r == 0 ? read_lock(edit->dir, &edit->lock, err) : r;
}

int store_edit_begin(const char *dir, struct store_edit **ret, struct mandor_err *err)
{
    struct store_edit *edit = calloc(1, sizeof *edit);
    if (edit == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "open the wheel store");

    *edit = (struct store_edit){ .magic = EDIT_MAGIC, .turn = -1, .dir = strdup(dir) };
    int r = open_edit(edit, err);
    if (r < 0) {
        (void)store_edit_free(edit);
        return r;
    }
    sweep(dir, edit->lock);
    *ret = edit;
    return 0;
}

struct store_edit *store_edit_free(struct store_edit *edit)
{
    if (edit == NULL)
        return NULL;
    if (edit->turn >= 0)
        (void)close(edit->turn);
    json_decref(edit->lock);
    free(edit->dir);
    OBJ_FINI(edit);
    free(edit);
    return NULL;
}

json_t *store_edit_lock(const struct store_edit *edit)
{
    OBJ_CHECK(edit, EDIT_MAGIC);
    return edit->lock;
}

/* ---- changes ---- */

/* Copy `from` into the temporary fd, durable, and see that it is what package says. */
static int copy_in(const char *from, int fd, const json_t *package, struct mandor_err *err)
{
    char hex[DIGEST_TEXT_SIZE];
    SCOPED_FD source = open(from, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (source < 0)
        return err_set(err, -errno, FAULT_HOST, "open '%s'", from);

    int64_t n = digest_fd(source, fd, hex);
    if (n < 0)
        return err_set(err, (int)n, FAULT_HOST, "copy '%s' into the store", from);
    if (n != json_integer_value(json_object_get(package, "size")) ||
        !str_eq(hex, lockfile_text(package, "sha256")))
        return err_set(err, -ESTALE, FAULT_CALLER,
                       "'%s' is not the file that was looked at: it changed meanwhile", from);
    return fsync(fd) < 0 ? err_set(err, -errno, FAULT_HOST, "make '%s' durable", from) : 0;
}

/* Bring a whole copy to where the lock will look for it. */
static int place(const struct store_edit *edit, const json_t *package, const char *temp,
                 struct mandor_err *err)
{
    SCOPED_FREE char *path = store_path(edit->dir, package), *dir = NULL;
    if (path == NULL || (dir = strndup(path, (size_t)(strrchr(path, '/') - path))) == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "change the wheel store");

    if (mkdir(dir, 0777) < 0 && errno != EEXIST)
        return err_set(err, -errno, FAULT_HOST, "make directory '%s'", dir);
    if (rename(temp, path) < 0)
        return err_set(err, -errno, FAULT_HOST, "rename '%s' to '%s'", temp, path);
    return file_sync_dir(dir, err);
}

int store_edit_put(struct store_edit *edit, const char *name, json_t *package, const char *from,
                   struct mandor_err *err)
{
    SCOPED_FREE char *temp = NULL;
    OBJ_CHECK(edit, EDIT_MAGIC);
    int r = lockfile_check_package(name, package, err);
    if (r < 0)
        return r;

    if (store_check_file(edit->dir, name, package, NULL) < 0) {
        SCOPED_FD fd = make_temp(edit->dir, &temp, err);
        if (fd < 0)
            return fd;
        r = copy_in(from, fd, package, err);
        if (r == 0)
            r = place(edit, package, temp, err);
        if (r < 0) {
            (void)unlink(temp);
            return r;
        }
    }
    if (json_object_set(lockfile_packages(edit->lock), name, package) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "change the wheel store");
    return 0;
}

int store_edit_remove(struct store_edit *edit, const char *name, struct mandor_err *err)
{
    OBJ_CHECK(edit, EDIT_MAGIC);
    if (json_object_del(lockfile_packages(edit->lock), name) < 0)
        return err_set(err, -ENOENT, FAULT_CALLER, "package '%.80s' is not in the wheel store '%s'",
                       name, edit->dir);
    return 0;
}

static int write_durably(int fd, const struct buf *text)
{
    int r = file_write_all(fd, text->data, text->len);

    return r == 0 && fsync(fd) < 0 ? -errno : r;
}

int store_edit_commit(struct store_edit *edit, struct mandor_err *err)
{
    SCOPED_BUF text = { .data = NULL };
    SCOPED_FREE char *temp = NULL, *path = NULL;
    OBJ_CHECK(edit, EDIT_MAGIC);
    int r = join(edit->dir, STORE_LOCK_NAME, &path, err);
    if (r < 0)
        return r;
    if (lockfile_write(&text, edit->lock) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "write '%s'", path);

    SCOPED_FD fd = make_temp(edit->dir, &temp, err);
    if (fd < 0)
        return fd;
    r = file_sync_dir(edit->dir, err); /* the wheels' directories, before the lock names them */
    if (r == 0 && (r = write_durably(fd, &text)) < 0)
        r = err_set(err, r, FAULT_HOST, "write '%s'", temp);
    if (r == 0 && rename(temp, path) < 0)
        r = err_set(err, -errno, FAULT_HOST, "rename '%s' to '%s'", temp, path);
    if (r < 0) {
        (void)unlink(temp);
        return r;
    }
    r = file_sync_dir(edit->dir, err);
    sweep(edit->dir, edit->lock);
    return r;
}

/* ---- staging ---- */

int store_staging(const char *dir, char **ret_path, int *ret_fd, struct mandor_err *err)
{
    SCOPED_FREE char *path = NULL;
    SCOPED_FD turn = -1, fd = -1;
    int r = take_turn(dir, &turn, err); /* nobody sweeps between mkdtemp and flock */
    if (r == 0)
        r = join(dir, TEMP_PREFIX "XXXXXX", &path, err);
    if (r < 0)
        return r;

    if (mkdtemp(path) == NULL)
        return err_set(err, -errno, FAULT_HOST, "make a directory in '%s'", dir);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        return err_set(err, -errno, FAULT_HOST, "open '%s'", path);
    *ret_path = STEAL(path);
    *ret_fd = STEAL_FD(fd);
    return 0;
}

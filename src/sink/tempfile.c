/* tempfile.c - contract in tempfile.h, and sink_sweep() of sink.h.
 *
 * The journal is a directory of symbolic links whose text is the temporary's path: one system call makes an entry whole.
 */
#include "sink/tempfile.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/file.h"
#include "sink/sink.h"

#define TEMP_PREFIX ".mandor."
/* Encoded characters of an id that stay, so that all names fit in NAME_MAX. */
#define NAME_KEEP   ((size_t)120)
/* The directory may be removed between mkdir and open, by an abort next door. */
#define OPEN_TRIES  8

char *tempfile_encode(const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t len = strlen(text), at = 0;
    char *name = malloc(len * 3 + 24);

    if (name == NULL)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '/' || c == '%' || c < 0x20 || c == 0x7f || (c == '.' && i == 0)) {
            name[at++] = '%';
            name[at++] = hex[c >> 4];
            name[at++] = hex[c & 15];
        } else {
            name[at++] = (char)c;
        }
    }
    name[at] = '\0';
    if (at > NAME_KEEP)
        (void)snprintf(name + NAME_KEEP, 18, "~%016" PRIx64, (uint64_t)XXH3_64bits(text, len));
    return name;
}

/* Length of path's directory with its slash. */
static int dir_len(const char *path)
{
    return (int)(strrchr(path, '/') - path) + 1;
}

int tempfile_init(struct tempfile *file, const char *target, const char *job_id, int64_t attempt,
                  const char *stream, const char *journal_dir)
{
    SCOPED_FREE char *id = tempfile_encode(job_id);

    *file = (struct tempfile){ .fd = -1, .target = strdup(target) };
    if (id == NULL || file->target == NULL)
        goto fail;
    if (asprintf(&file->temp, "%.*s" TEMP_PREFIX "%s.%" PRId64 ".%s", dir_len(target), target, id,
                 attempt, stream) < 0) {
        file->temp = NULL;
        goto fail;
    }
    if (journal_dir != NULL &&
        asprintf(&file->journal, "%s/%s.%" PRId64 ".%s", journal_dir, id, attempt, stream) < 0) {
        file->journal = NULL;
        goto fail;
    }
    return 0;

fail:
    tempfile_done(file);
    return -ENOMEM;
}

void tempfile_done(struct tempfile *file)
{
    if (file->fd >= 0)
        (void)close(file->fd);
    free(file->target);
    free(file->temp);
    free(file->journal);
    *file = (struct tempfile){ .fd = -1 };
}

static int check_target(const struct tempfile *file, struct mandor_err *err)
{
    struct stat st;

    if (lstat(file->target, &st) < 0) {
        if (errno == ENOENT)
            return 0;
        return err_set(err, -errno, FAULT_HOST, "look at output file '%s'", file->target);
    }
    if (S_ISREG(st.st_mode))
        return 0;
    const char *kind = S_ISDIR(st.st_mode)    ? "a directory"
                       : S_ISLNK(st.st_mode)  ? "a symbolic link"
                       : S_ISFIFO(st.st_mode) ? "a named pipe"
                       : S_ISSOCK(st.st_mode) ? "a socket"
                                              : "a device";
    return err_set(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, FAULT_JOB,
                   "output file '%s' is %s: expected nothing there, or a regular file to replace",
                   file->target, kind);
}

static int journal_add(struct tempfile *file, struct mandor_err *err)
{
    if (file->journal == NULL)
        return 0;
    if (symlink(file->temp, file->journal) == 0)
        return 0;
    if (errno == ENOENT) {
        /* not made durable: the journal is for crashes of mandor, not of the machine */
        int r = file_make_parents(file->journal, 0777, NULL, err);
        if (r < 0)
            return r;
    } else if (errno == EEXIST) { /* of a crashed attempt */
        (void)unlink(file->journal);
    }
    if (symlink(file->temp, file->journal) == 0)
        return 0;
    return err_set(err, -errno, FAULT_HOST, "note '%s' in the journal as '%s'", file->temp,
                   file->journal);
}

static void journal_remove(struct tempfile *file)
{
    if (file->journal != NULL)
        (void)unlink(file->journal);
}

/* Take the lock of a temporary.  0, or -EBUSY: a living process holds it.  A file system without locks lets everyone in. */
static int lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK ? -EBUSY : 0;
}

/* Remove a temporary of this name that nobody holds.  0 or -errno. */
static int remove_stale(const char *temp)
{
    SCOPED_FD fd = open(temp, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd >= 0 && lock(fd) < 0)
        return -EBUSY;
    return unlink(temp) < 0 && errno != ENOENT ? -errno : 0;
}

static int create(struct tempfile *file, struct mandor_err *err)
{
    int r = 0;

    for (int i = 0; i < OPEN_TRIES; i++) {
        if ((r = file_make_parents(file->target, 0777, &file->made, err)) < 0)
            return r;
        file->fd = open(file->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->fd >= 0)
            return lock(file->fd); /* ours alone: just made */
        r = -errno;
        if (r == -EEXIST)
            r = remove_stale(file->temp);
        if (r == -EBUSY)
            return err_set(
                err, r, FAULT_CALLER,
                "output file '%s' is being written as '%s' by another attempt of this job",
                file->target, file->temp);
        if (r < 0 && r != -ENOENT)
            break;
    }
    return err_set(err, r == 0 ? -EEXIST : r, FAULT_HOST, "create '%s'", file->temp);
}

static void look(struct tempfile *file)
{
    struct stat st;
    struct statfs fs;

    if (fstat(file->fd, &st) == 0)
        file->device = (uint64_t)st.st_dev;
    file->in_memory =
        fstatfs(file->fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

int tempfile_open(struct tempfile *file, struct mandor_err *err)
{
    int r = check_target(file, err);
    if (r < 0)
        return r;
    if ((r = journal_add(file, err)) < 0)
        return r;
    if ((r = create(file, err)) < 0) {
        if (r != -EBUSY) /* that one's entry has the same name */
            journal_remove(file);
        return r;
    }
    look(file);
    return 0;
}

int tempfile_write(struct tempfile *file, const struct iovec *iov, int count, XXH3_state_t *hash,
                   struct mandor_err *err)
{
    for (int i = 0; i < count; i++) {
        if (hash != NULL)
            XXH3_64bits_update(hash, iov[i].iov_base, iov[i].iov_len);
        int r = file_write_all(file->fd, iov[i].iov_base, iov[i].iov_len);
        if (r < 0)
            return err_set(err, r, FAULT_HOST, "write output file '%s'", file->target);
    }
    return 0;
}

/* The name, and the names of the directories that were made for it. */
static int sync_names(const struct tempfile *file, struct mandor_err *err)
{
    SCOPED_FREE char *dir = strndup(file->target, (size_t)dir_len(file->target) - 1);
    if (dir == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "sync directory of '%s'", file->target);

    int r = file_sync_dir(dir[0] != '\0' ? dir : "/", err);
    while (r == 0 && file->made > 0 && strlen(dir) >= file->made) {
        *strrchr(dir, '/') = '\0';
        r = file_sync_dir(dir[0] != '\0' ? dir : "/", err);
    }
    return r;
}

/* A job that may write into the directory may have put something else in the place of what we wrote. */
static int check_temp(const struct tempfile *file, struct mandor_err *err)
{
    struct stat named, written;

    if (fstat(file->fd, &written) < 0 || lstat(file->temp, &named) < 0)
        return err_set(err, -errno, FAULT_HOST, "look at '%s'", file->temp);
    if (named.st_ino != written.st_ino || named.st_dev != written.st_dev)
        return err_set(err, -ESTALE, FAULT_JOB,
                       "'%s' is not the file that the output was written to: somebody replaced it",
                       file->temp);
    return 0;
}

static int check_names(const struct tempfile *file, struct mandor_err *err)
{
    int r = check_target(file, err);

    return r == 0 ? check_temp(file, err) : r;
}

int tempfile_prepare(struct tempfile *file, struct mandor_err *err)
{
    if (!file->synced && fsync(file->fd) < 0 && errno != EINVAL)
        return err_set(err, -errno, FAULT_HOST, "sync output file '%s'", file->target);
    file->synced = true;
    return check_names(file, err);
}

static int publish(struct tempfile *file, bool (*may)(void *arg, struct mandor_err *err), void *arg,
                   struct mandor_err *err)
{
    int r = tempfile_prepare(file, err);
    if (r < 0)
        return r;
    if (!may(arg, err))
        return err->code;
    if (rename(file->temp, file->target) < 0)
        return err_set(err, -errno, FAULT_HOST, "rename '%s' to '%s'", file->temp, file->target);
    return 0;
}

int tempfile_commit(struct tempfile *file, bool (*may)(void *arg, struct mandor_err *err),
                    void *arg, struct mandor_err *err)
{
    int r = publish(file, may, arg, err);
    if (r < 0) {
        tempfile_abort(file);
        return r;
    }
    journal_remove(file);
    (void)close(STEAL_FD(file->fd));
    return sync_names(file, err);
}

/* The abort of the last one empties the directory that was made for it. */
static void remove_own_dir(const struct tempfile *file)
{
    SCOPED_FREE char *dir = strndup(file->target, (size_t)dir_len(file->target));

    if (dir != NULL)
        (void)rmdir(dir); /* fails while another stream or attempt has something in it */
}

void tempfile_abort(struct tempfile *file)
{
    if (file->fd < 0)
        return;
    (void)unlink(file->temp); /* first: whoever gets the lock next finds nothing */
    (void)close(STEAL_FD(file->fd));
    journal_remove(file);
    if (file->own_dir)
        remove_own_dir(file);
}

/* Carry out one journal entry.  1 = a temporary was removed, 0 = there was none or it is in use, or -errno. */
static int sweep_entry(int dir_fd, const char *name)
{
    char temp[PATH_MAX];
    ssize_t len = readlinkat(dir_fd, name, temp, sizeof temp - 1);
    if (len < 0)
        return errno == EINVAL ? 0 : -errno; /* EINVAL: not a link, so not ours */
    temp[len] = '\0';

    const char *base = strrchr(temp, '/');
    if (base == NULL || strncmp(base + 1, TEMP_PREFIX, strlen(TEMP_PREFIX)) != 0)
        return 0; /* whatever made this, it was not the journal */
    bool there = access(temp, F_OK) == 0;
    int r = remove_stale(temp);
    if (r == -EBUSY)
        return 0;
    if (r < 0 && r != -ENOENT && r != -ENOTDIR)
        return r;
    if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
        return -errno;
    return there;
}

int sink_sweep(const char *journal_dir, struct mandor_err *err)
{
    DIR *dir = opendir(journal_dir);
    if (dir == NULL)
        return errno == ENOENT ? 0
                               : err_set(err, -errno, FAULT_HOST, "open journal '%s'", journal_dir);

    int removed = 0, failed = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue; /* encoded names never start with a dot */
        int r = sweep_entry(dirfd(dir), entry->d_name);
        if (r < 0)
            failed = err_set(err, r, FAULT_HOST, "remove what '%s/%s' names", journal_dir,
                             entry->d_name);
        else
            removed += r;
    }
    (void)closedir(dir);
    if (failed < 0)
        return failed;
    (void)rmdir(journal_dir); /* stays when an entry is still in use */
    return removed;
}

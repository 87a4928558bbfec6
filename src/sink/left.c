/* left.c - contract in left.h. */
#include "sink/left.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "sink/tempfile.h"

char *left_path(const struct sink_target *target, int *ret_result)
{
    char *path = NULL;

    *ret_result = 0;
    if (target->journal_dir == NULL)
        return NULL;
    SCOPED_FREE char *id = tempfile_encode(target->job_id == NULL ? "run" : target->job_id);
    if (id != NULL &&
        asprintf(&path, "%s/%s.%" PRId64 ".%s" LEFT_SUFFIX, target->journal_dir, id,
                 target->attempt, target->trace == NULL ? target->stream : target->trace) < 0)
        path = NULL;
    if (path == NULL)
        *ret_result = -ENOMEM;
    return path;
}

char *left_dir(const char *data_dir)
{
    char *path = NULL;

    return asprintf(&path, "%s/left", data_dir) < 0 ? NULL : path;
}

static int write_durably(const char *path, const char *text, size_t len)
{
    SCOPED_FD fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0)
        return -errno;
    int r = file_write_all(fd, text, len);
    return r == 0 && fsync(fd) < 0 ? -errno : r;
}

int left_note(const char *path, const json_t *what, struct mandor_err *err)
{
    SCOPED_FREE char *dir = strndup(path, (size_t)(strrchr(path, '/') - path));
    SCOPED_FREE char *text = json_text(what);
    SCOPED_FREE char *temp = NULL;

    if (asprintf(&temp, "%s.new", path) < 0)
        temp = NULL;
    if (dir == NULL || text == NULL || temp == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "note an upload");
    int r = file_make_parents(path, 0777, NULL, NULL);
    if (r == 0)
        r = write_durably(temp, text, strlen(text));
    if (r == 0 && rename(temp, path) < 0)
        r = -errno;
    if (r == 0)
        r = file_sync_dir(dir, NULL);
    return r < 0 ? err_set(err, r, FAULT_HOST, "note an upload in '%s'", path) : 0;
}

void left_forget(const char *path)
{
    (void)unlink(path);
}

int left_hand_over(const char *path, const char *dir, struct mandor_err *err)
{
    SCOPED_FREE char *to = NULL;

    if (asprintf(&to, "%s%s", dir, strrchr(path, '/')) < 0)
        to = NULL;
    int r = to == NULL ? -ENOMEM : file_make_parents(to, 0777, NULL, NULL);
    if (r == 0 && rename(path, to) < 0)
        r = -errno;
    return r < 0 ? err_set(err, r, FAULT_HOST, "move '%s' to '%s'", path, dir) : 0;
}

static bool has_suffix(const char *name)
{
    size_t len = strlen(name), suffix = strlen(LEFT_SUFFIX);

    return len > suffix && str_eq(name + len - suffix, LEFT_SUFFIX);
}

int left_hand_over_all(const char *journal_dir, const char *dir, struct mandor_err *err)
{
    DIR *journal = opendir(journal_dir);
    int moved = 0, failed = 0;

    if (journal == NULL)
        return errno == ENOENT ? 0
                               : err_set(err, -errno, FAULT_HOST, "open journal '%s'", journal_dir);
    for (struct dirent *entry; (entry = readdir(journal)) != NULL;) {
        SCOPED_FREE char *path = NULL;
        if (!has_suffix(entry->d_name) || entry->d_type == DT_LNK)
            continue;
        if (asprintf(&path, "%s/%s", journal_dir, entry->d_name) < 0)
            path = NULL;
        int r = path == NULL ? err_set(err, -ENOMEM, FAULT_HOST, "sweep '%s'", journal_dir)
                             : left_hand_over(path, dir, err);
        failed = r < 0 ? r : failed;
        moved += r == 0;
    }
    (void)closedir(journal);
    return failed < 0 ? failed : moved;
}

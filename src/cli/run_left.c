/* run_left.c - contract in run_left.h. */
#include "cli/run_left.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/log.h"
#include "broker/data_dir.h"
#include "sink/left.h"
#include "sink/sink.h"

static int make_dir(const char *path, struct mandor_err *err)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return 0;
    return err_set(err, -errno, FAULT_HOST, "make directory '%s'", path);
}

/* The directory, locked; -EWOULDBLOCK: its run lives (with LOCK_NB in how); -ENOENT: it is gone, or was just removed. */
static int lock_dir(const char *path, int how)
{
    SCOPED_FD fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat held, found;

    if (fd < 0 || RETRY_EINTR(flock(fd, how)) < 0 || fstat(fd, &held) < 0 || stat(path, &found) < 0)
        return -errno;
    return held.st_ino == found.st_ino ? STEAL_FD(fd) : -ENOENT;
}

static void take_over(const struct run_left *left, const char *path)
{
    struct mandor_err err;
    SCOPED_FD lock = lock_dir(path, LOCK_EX | LOCK_NB);

    if (lock < 0)
        return;
    if (left_hand_over_all(path, left->left, &err) < 0 || sink_sweep(path, &err) < 0)
        log_warn("%s", err.msg);
    (void)rmdir(path); /* what could not be swept stays for the next */
}

static void take_over_all(const struct run_left *left, const char *journals)
{
    DIR *dir = opendir(journals);

    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        SCOPED_FREE char *path = NULL;
        if (entry->d_name[0] == '.' || asprintf(&path, "%s/%s", journals, entry->d_name) < 0)
            continue;
        take_over(left, path);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

/* A sweep of somebody else's may have the directory before we do, and remove it: it is waited for. */
static int make_journal(struct run_left *left, struct mandor_err *err)
{
    int fd = -ENOENT;

    for (int i = 0; i < 10 && fd == -ENOENT; i++) {
        int r = make_dir(left->journal, err);
        if (r < 0)
            return r;
        fd = lock_dir(left->journal, LOCK_EX);
    }
    if (fd < 0)
        return err_set(err, fd, FAULT_HOST, "lock '%s'", left->journal);
    left->lock = fd;
    return 0;
}

int run_left_open(struct run_left *left, const char *id, struct mandor_err *err)
{
    SCOPED_FREE char *top = NULL, *journals = NULL;

    *left = (struct run_left){ .lock = -1 };
    int r = data_dir_standard("run", &top, err);
    if (r < 0)
        return r == -ENODATA ? 0 : r;
    if (asprintf(&journals, "%s/journal", top) < 0)
        journals = NULL;
    left->left = left_dir(top);
    if (journals == NULL || left->left == NULL ||
        asprintf(&left->journal, "%s/%s", journals, id) < 0) {
        left->journal = NULL;
        return err_set(err, -ENOMEM, FAULT_HOST, "note what is sent elsewhere");
    }
    if ((r = make_dir(top, err)) < 0 || (r = make_dir(journals, err)) < 0)
        return r;
    take_over_all(left, journals);
    return make_journal(left, err);
}

void run_left_close(struct run_left *left)
{
    /* While it is locked; notes that are still there are for the next. */
    if (left->lock >= 0)
        (void)rmdir(left->journal);
    if (left->lock >= 0)
        (void)close(STEAL_FD(left->lock));
    free(STEAL(left->journal));
    free(STEAL(left->left));
}

/* test_data_dir.c - a broker's directory on this machine: which traces of workers are swept, and when. */
#include "broker/data_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "lib/unit.h"
#include "os/tree.h"

static struct mandor_err err;
static char *dir;        /* the directory, <base>.d */
static char texts[4096]; /* what empty() was asked for, each on a line */

static void open_dir(void)
{
    char base[64];

    (void)snprintf(base, sizeof base, "/tmp/mandor-data-%d", getpid());
    (void)tree_remove(base);
    ck_assert_int_eq(data_dir_make(base, &dir, &err), 0);
}

static void close_dir(void)
{
    ck_assert_int_eq(tree_remove(dir), 0);
    free(dir);
}

static const char *path_of(const char *file)
{
    static char path[256];

    (void)snprintf(path, sizeof path, "%s/run/%s", dir, file);
    return path;
}

static bool there(const char *file)
{
    struct stat st;

    return lstat(path_of(file), &st) == 0;
}

/* A file of a worker, so old; its descriptor. */
static int leave(const char *file, const char *text, int age_s)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT } };
    int fd = open(path_of(file), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (int)strlen(text));
    ck_assert_int_eq(clock_gettime(CLOCK_REALTIME, &times[1]), 0);
    times[1].tv_sec -= age_s;
    ck_assert_int_eq(futimens(fd, times), 0);
    return fd;
}

static void leave_dead(const char *file, const char *text, int age_s)
{
    (void)close(leave(file, text, age_s));
}

static int empty(const char *text, void *arg)
{
    size_t len = strlen(texts);

    (void)snprintf(texts + len, sizeof texts - len, "%s", text);
    return arg != NULL ? -EAGAIN : 0;
}

static void sweep(void)
{
    ck_assert_int_eq(data_dir_sweep(dir, "own", NULL, NULL, empty, NULL), 0);
}

TEST(what_a_dead_worker_wrote_down_is_emptied_however_young_its_lock)
{
    open_dir();
    leave_dead("dead.lock", "cgroup /x\n", 0);
    leave_dead("dead.live", "", 0);
    sweep();
    ck_assert_str_eq(texts, "cgroup /x\n");
    ck_assert(!there("dead.lock") && !there("dead.live"));
    close_dir();
}

TEST(a_lock_that_is_being_made_is_left_alone)
{
    open_dir();
    leave_dead("new.lock", "", 0);
    leave_dead("old.lock", "", 60);
    sweep();
    ck_assert_str_eq(texts, "old\n"); /* known by name alone */
    ck_assert(there("new.lock") && !there("old.lock"));
    close_dir();
}

TEST(a_worker_whose_lock_is_held_lives)
{
    open_dir();
    int fd = leave("alive.lock", "cgroup /x\n", 60);
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    leave_dead("alive.live", "", 60);
    leave_dead("own.lock", "cgroup /own\n", 60);
    sweep();
    ck_assert_str_eq(texts, "");
    ck_assert(there("alive.lock") && there("alive.live") && there("own.lock"));
    (void)close(fd);
    close_dir();
}

TEST(what_cannot_be_emptied_yet_stays)
{
    int fail = 1;

    open_dir();
    leave_dead("dead.lock", "cgroup /x\n", 60);
    ck_assert_int_eq(data_dir_sweep(dir, "own", NULL, NULL, empty, &fail), 0);
    ck_assert(there("dead.lock"));
    ck_assert_int_eq(data_dir_sweep(dir, "own", NULL, NULL, NULL, NULL), 0);
    ck_assert(there("dead.lock"));
    close_dir();
}

static int known(const char *name, void *arg)
{
    return str_eq(name, arg);
}

static int fails(const char *name, void *arg)
{
    return -EIO;
}

TEST(known_workers_are_left_alone)
{
    open_dir();
    leave_dead("a.lock", "a\n", 60);
    leave_dead("b.lock", "b\n", 60);
    ck_assert_int_eq(data_dir_sweep(dir, "own", known, (char[]){ "a" }, empty, NULL), 0);
    ck_assert_str_eq(texts, "b\n");
    ck_assert(there("a.lock") && !there("b.lock"));
    ck_assert_int_eq(data_dir_sweep(dir, "own", fails, NULL, empty, NULL), -EIO);
    ck_assert(there("a.lock"));
    close_dir();
}

TEST(a_sign_without_a_lock_goes_unless_it_leads_to_another_broker)
{
    open_dir();
    leave_dead("over.live", "", 60);
    leave_dead("over.sock", "", 60);
    leave_dead("socket", "", 60);
    char target[256];
    (void)snprintf(target, sizeof target, "%s", path_of("socket"));
    ck_assert_int_eq(symlink(target, path_of("elsewhere.live")), 0);
    ck_assert_int_eq(symlink("/nonexistent", path_of("gone.live")), 0);
    sweep();
    ck_assert_str_eq(texts, "");
    ck_assert(!there("over.live") && !there("over.sock") && !there("gone.live"));
    ck_assert(there("elsewhere.live") && there("socket"));
    close_dir();
}

TEST(what_is_no_plain_file_is_no_lock)
{
    open_dir();
    leave_dead("file", "x\n", 60);
    ck_assert_int_eq(symlink("file", path_of("link.lock")), 0);
    ck_assert_int_eq(mkfifo(path_of("fifo.lock"), 0600), 0);
    ck_assert_int_eq(mkdir(path_of("dir.lock"), 0700), 0);
    sweep();
    ck_assert_str_eq(texts, "");
    ck_assert(there("link.lock") && there("fifo.lock") && there("dir.lock"));
    close_dir();
}

TEST(a_registered_worker_lives_as_long_as_its_lock_is_held)
{
    int held;

    open_dir();
    int fd = leave("a.lock", "", 0);
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    ck_assert_int_eq(data_dir_worker_alive(path_of("a.lock"), &held), 1);
    ck_assert_int_eq(held, -1);
    (void)close(fd);
    ck_assert_int_eq(data_dir_worker_alive(path_of("a.lock"), &held), 0);
    ck_assert_int_ge(held, 0);

    ck_assert_int_eq(unlink(path_of("a.lock")), 0);
    leave_dead("a.lock", "", 0); /* a successor's: not the one that is held */
    data_dir_remove_lock(path_of("a.lock"), held);
    ck_assert(there("a.lock"));
    (void)close(held);
    ck_assert_int_eq(data_dir_worker_alive(path_of("a.lock"), &held), 0);
    data_dir_remove_lock(path_of("a.lock"), held);
    ck_assert(!there("a.lock"));
    (void)close(held);

    ck_assert_int_eq(data_dir_worker_alive(path_of("a.lock"), &held), 0);
    ck_assert_int_eq(held, -1);
    ck_assert_int_eq(data_dir_worker_alive("", &held), 0);
    close_dir();
}

TEST(the_standard_place_is_below_the_state_directory)
{
    char *path = NULL;

    open_dir();
    ck_assert_int_eq(setenv("HOME", dir, 1), 0);
    ck_assert_int_eq(setenv("XDG_STATE_HOME", "relative", 1), 0);
    ck_assert_int_eq(data_dir_standard("queue.db", &path, &err), 0);
    ck_assert(strncmp(path, dir, strlen(dir)) == 0);
    ck_assert_str_eq(path + strlen(dir), "/.local/state/mandor/queue.db");
    *strrchr(path, '/') = '\0';
    ck_assert_int_eq(access(path, W_OK), 0);
    free(path);

    ck_assert_int_eq(unsetenv("HOME"), 0);
    ck_assert_int_eq(data_dir_standard("queue.db", &path, &err), -ENODATA);
    close_dir();
}

UNIT_MAIN("data_dir")

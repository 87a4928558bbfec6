/* What every sink promises in sink.h, asked of each; then what is particular to files. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "stream_rig.h"

struct ask {
    bool opened, written, prepared, done;
    int result;
    struct mandor_err err;
    bool in_call; /* set around each request: no callback may come from inside of it */
};

static struct rig rig; /* its loop and directory */
static struct ask ask;
static struct sink *sink;
static int inherited[2]; /* a pipe that stands for mandor's own output */

static void setup(void)
{
    rig_init(&rig);
    ask = (struct ask){ 0 };
    sink = NULL;
    ck_assert_int_eq(pipe2(inherited, O_CLOEXEC), 0);
}

static void teardown(void)
{
    (void)close(inherited[0]);
    (void)close(inherited[1]);
    rig_done(&rig);
}

static void note(bool *flag, int result, const struct mandor_err *err)
{
    ck_assert(!ask.in_call);
    ck_assert(!*flag);
    *flag = true;
    ask.result = result;
    if (result < 0)
        ask.err = *err;
}

static void on_opened(void *arg, int result, const struct mandor_err *err)
{
    note(&ask.opened, result, err);
}

static void on_written(void *arg, int result, const struct mandor_err *err)
{
    note(&ask.written, result, err);
}

static void on_done(void *arg, int result, const struct mandor_err *err)
{
    note(&ask.done, result, err);
}

static char journal[80];

/* Start opening, as job `id`. */
static void begin_open(const char *url, const char *id, const char *stream)
{
    char data[80];
    (void)snprintf(data, sizeof data, "%s/data", rig.dir);
    (void)snprintf(journal, sizeof journal, "%s/journal", rig.dir);
    struct sink_target target = { .url = url,
                                  .job_id = id,
                                  .attempt = 3,
                                  .stream = stream,
                                  .data_dir = data,
                                  .journal_dir = journal,
                                  .inherit_fd = inherited[1] };

    ask.opened = false;
    ask.in_call = true;
    int r = sink_open(&rig.loop, &target, on_opened, NULL, &sink, &ask.err);
    ask.in_call = false;
    ck_assert_msg(r == 0, "%s", ask.err.msg);
}

static int open_sink(const char *url)
{
    begin_open(url, "job/1", "stdout");
    rig_until(&rig, &ask.opened);
    return ask.result;
}

static int write_bytes(const void *bytes, size_t len, XXH3_state_t *hash)
{
    struct iovec iov[2] = { { (void *)(uintptr_t)bytes, len / 2 },
                            { (char *)(uintptr_t)bytes + len / 2, len - len / 2 } };

    ask.written = false;
    ask.in_call = true;
    sink_write(sink, iov, 2, hash, on_written, NULL);
    ask.in_call = false;
    rig_until(&rig, &ask.written);
    return ask.result;
}

static void on_prepared(void *arg, int result, const struct mandor_err *err)
{
    note(&ask.prepared, result, err);
}

static int prepare_sink(void)
{
    ask.prepared = false;
    ask.in_call = true;
    sink_prepare(sink, on_prepared, NULL);
    ask.in_call = false;
    rig_until(&rig, &ask.prepared);
    return ask.result;
}

static void begin_commit(int64_t until_boot_ms)
{
    ask.done = false;
    ask.in_call = true;
    sink_commit(sink, until_boot_ms, on_done, NULL);
    ask.in_call = false;
}

static int end_sink(bool commit)
{
    ask.done = false;
    ask.in_call = true;
    if (commit)
        sink_commit(sink, SINK_NO_DEADLINE, on_done, NULL);
    else
        sink_abort(sink, on_done, NULL);
    ask.in_call = false;
    rig_until(&rig, &ask.done);
    sink_close(sink);
    return ask.result;
}

static char file_url[100], file_path[90];
#define KINDS_LOCAL 4
static const char *kinds[16] = { "auto:", "file", "null:", "inherit:" };
static int kind_count = KINDS_LOCAL;

/* Servers that somebody has started for us: tests/lib/with_servers.py. */
static void add_remote_kinds(void)
{
    static char urls[2000];
    const char *given = getenv("MANDOR_TEST_SINKS");

    (void)snprintf(urls, sizeof urls, "%s", given == NULL ? "" : given);
    for (char *at = strtok(urls, " "); at != NULL && kind_count < (int)ARRAY_LEN(kinds);
         at = strtok(NULL, " "))
        kinds[kind_count++] = at;
}

static const char *url_of(int kind)
{
    (void)snprintf(file_path, sizeof file_path, "%s/out/file", rig.dir);
    (void)snprintf(file_url, sizeof file_url, "file:%s", file_path);
    return kind == 1 ? file_url : kinds[kind];
}

/* ---- every sink ---- */

START_TEST(each_call_is_answered_once_and_never_from_inside)
{
    const char text[] = "some bytes";

    ck_assert_int_eq(open_sink(url_of(_i)), 0);
    ck_assert_int_eq(write_bytes(text, sizeof text, NULL), 0);
    ck_assert_int_eq(write_bytes(text, sizeof text, NULL), 0);
    ck_assert_int_eq(end_sink(true), 0);
}
END_TEST

START_TEST(the_hash_is_that_of_the_bytes_in_order)
{
    static unsigned char bytes[200000]; /* small and large ways, and auto spills in between */
    XXH3_state_t *hash = XXH3_createState();
    size_t at = 0;

    (void)XXH3_64bits_reset(hash);
    rig_bytes(9, 0, bytes, sizeof bytes);
    ck_assert_int_eq(open_sink(url_of(_i)), 0);
    static const size_t lens[] = { 1, 0, 4000, 65536, 1000, 129463 };
    for (size_t i = 0; i < ARRAY_LEN(lens); at += lens[i], i++) {
        size_t len = MIN(lens[i], kinds[_i][0] == 'i' ? (size_t)4000
                                                      : lens[i]); /* a pipe that nobody reads */
        ck_assert_int_eq(write_bytes(bytes + at, len, hash), 0);
        if (kinds[_i][0] == 'i')
            at = at + len - lens[i];
    }
    ck_assert_uint_eq(XXH3_64bits_digest(hash), rig_hash(9, (int64_t)at));
    (void)XXH3_freeState(hash);
    ck_assert_int_eq(end_sink(true), 0);
}
END_TEST

START_TEST(abort_leaves_nothing)
{
    static char bytes[100000];

    ck_assert_int_eq(open_sink(url_of(_i)), 0);
    ck_assert_int_eq(write_bytes(bytes, kinds[_i][0] == 'i' ? 10 : sizeof bytes, NULL), 0);
    ck_assert_int_eq(end_sink(false), 0);
    ck_assert_int_eq(rig_count_files(rig.dir), 0);
}
END_TEST

START_TEST(abort_may_come_before_it_has_opened)
{
    begin_open(url_of(_i), "job", "stdout");
    ck_assert_int_eq(end_sink(false), 0);
    ck_assert(ask.opened);
    rig_turns(&rig, 10);
    ck_assert_int_eq(rig_count_files(rig.dir), 0);
}
END_TEST

START_TEST(close_at_any_time_is_an_abort)
{
    begin_open(url_of(_i), "job", "stdout");
    if (_i % 2 == 0)
        rig_until(&rig, &ask.opened);
    sink_close(sink);
    rig_turns(&rig, 50);
    for (int i = 0; i < 5000 && rig_count_files(rig.dir) > 0; i++) { /* the pool has it */
        (void)usleep(1000);
        rig_turns(&rig, 1);
    }
    ck_assert_int_eq(rig_count_files(rig.dir), 0);
}
END_TEST

START_TEST(an_empty_stream_commits)
{
    ck_assert_int_eq(open_sink(url_of(_i)), 0);
    ck_assert_int_eq(end_sink(true), 0);
    if (_i == 1) {
        size_t len = 1;
        free(rig_read_file(file_path, &len));
        ck_assert_uint_eq(len, 0);
    }
}
END_TEST

START_TEST(what_was_prepared_commits_or_aborts)
{
    for (int commit = 0; commit < 2; commit++) {
        ck_assert_int_eq(open_sink(url_of(_i)), 0);
        ck_assert_int_eq(write_bytes("some bytes", 10, NULL), 0);
        ck_assert_int_eq(prepare_sink(), 0);
        ck_assert_int_eq(end_sink(commit == 1), 0);
        ck_assert_int_eq(rig_count_files(rig.dir), commit == 1 && _i == 1);
    }
}
END_TEST

START_TEST(within_its_lease_a_commit_is_a_commit)
{
    ck_assert_int_eq(open_sink(url_of(_i)), 0);
    ck_assert_int_eq(write_bytes("some bytes", 10, NULL), 0);
    begin_commit(clock_boot_ms() + 60000);
    rig_until(&rig, &ask.done);
    ck_assert_int_eq(ask.result, 0);
    sink_close(sink);
    ck_assert_int_eq(rig_count_files(rig.dir), _i == 1);
}
END_TEST

START_TEST(after_its_lease_a_commit_publishes_nothing)
{
    if (kinds[_i][0] != 'f' && _i < KINDS_LOCAL)
        return; /* there is nothing to publish */
    ck_assert_int_eq(open_sink(url_of(_i)), 0);
    ck_assert_int_eq(write_bytes("too late", 8, NULL), 0);
    ask.done = false;
    sink_commit(sink, 1, on_done, NULL);
    rig_until(&rig, &ask.done);
    ck_assert_int_eq(ask.result, -ETIME);
    sink_close(sink);
    rig_turns(&rig, 20);
    ck_assert_int_eq(rig_count_files(rig.dir), 0);
}
END_TEST

START_TEST(stderr_commits_always_and_stdout_as_the_kind_says)
{
    begin_open(url_of(_i), "job", "stderr");
    rig_until(&rig, &ask.opened);
    ck_assert(sink_commits_always(sink));
    ck_assert_int_eq(end_sink(false), 0);
    ck_assert_int_eq(open_sink(url_of(_i)), 0);
    ck_assert(sink_commits_always(sink) == (_i == 0 || _i == 3));
    ck_assert_int_eq(strncmp(sink_kind(sink), url_of(_i), strlen(sink_kind(sink))), 0);
    ck_assert_int_eq(end_sink(false), 0);
}
END_TEST

START_TEST(urls_are_checked_without_a_look_at_the_disk)
{
    static const struct {
        const char *url;
        int result;
    } cases[] = {
        { "auto:", 0 },           { "null:", 0 },          { "inherit:", 0 },
        { "file:/a", 0 },         { "file:///a/b", 0 },    { "auto:x", -EINVAL },
        { "null:x", -EINVAL },    { "file:", -EINVAL },    { "file:a", -EINVAL },
        { "file:/", -EINVAL },    { "file:/a/", -EINVAL }, { "auto", -EINVAL },
        { "", -EINVAL },          { ":", -EINVAL },        { "nul:", -EINVAL },
        { "inherit:1", -EINVAL }, { "http//x", -EINVAL },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        err_clear(&ask.err);
        ck_assert_msg(sink_check_url(cases[i].url, &ask.err) == cases[i].result, "%s",
                      cases[i].url);
        ck_assert((ask.err.msg[0] != '\0') == (cases[i].result < 0));
    }
}
END_TEST

/* ---- files ---- */

static void make(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    ck_assert_int_ge(fd, 0);
    rig_write(fd, text, strlen(text));
    (void)close(fd);
}

static char *path_of(const char *name)
{
    static char path[4][200];
    static unsigned next;
    char *to = path[next++ % 4];

    (void)snprintf(to, 200, "%s/%s", rig.dir, name);
    return to;
}

static void check_content(const char *path, const char *text)
{
    size_t len = 0;
    char *bytes = rig_read_file(path, &len);

    ck_assert_msg(bytes != NULL, "no '%s'", path);
    ck_assert_str_eq(bytes, text);
    free(bytes);
}

START_TEST(r111_nothing_is_under_the_final_name_before_commit_and_the_old_file_stays_whole)
{
    (void)url_of(1);
    ck_assert_int_eq(mkdir(path_of("out"), 0755), 0);
    make(file_path, "old");
    ck_assert_int_eq(open_sink(file_url), 0);
    ck_assert_int_eq(write_bytes("new", 3, NULL), 0);
    check_content(file_path, "old");
    struct stat st;
    /* The id in the name, encoded. */
    ck_assert_int_eq(stat(path_of("out/.mandor.job%2F1.3.stdout"), &st), 0);
    ck_assert_int_eq(rig_count_files(journal), 1);
    ck_assert_int_eq(end_sink(true), 0);
    check_content(file_path, "new");
    ck_assert_int_eq(rig_count_files(rig.dir), 1);
}
END_TEST

static const struct {
    const char *name;
    int result;
    const char *says;
} bad_targets[] = {
    { "dir", -EISDIR, "a directory" },
    { "fifo", -EINVAL, "a named pipe" },
    { "link", -EINVAL, "a symbolic link" },
    { "file/x", -ENOTDIR, "file/x" },
};

static void make_bad_targets(void)
{
    ck_assert_int_eq(mkdir(path_of("dir"), 0755), 0);
    ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0);
    ck_assert_int_eq(symlink("/dev/null", path_of("link")), 0);
    make(path_of("file"), "");
}

START_TEST(a_target_that_is_no_regular_file_is_refused_at_open)
{
    char url[220];

    make_bad_targets();
    int before = rig_count_files(rig.dir);
    (void)snprintf(url, sizeof url, "file:%s", path_of(bad_targets[_i].name));
    ck_assert_int_eq(open_sink(url), bad_targets[_i].result);
    ck_assert_msg(strstr(ask.err.msg, bad_targets[_i].says) != NULL, "%s", ask.err.msg);
    sink_close(sink);
    rig_turns(&rig, 10);
    ck_assert_int_eq(rig_count_files(rig.dir), before);
}
END_TEST

START_TEST(a_directory_that_appears_under_the_name_meanwhile_is_refused_at_commit)
{
    (void)url_of(1);
    ck_assert_int_eq(open_sink(file_url), 0);
    ck_assert_int_eq(write_bytes("new", 3, NULL), 0);
    ck_assert_int_eq(mkdir(file_path, 0755), 0);
    ck_assert_int_eq(end_sink(true), -EISDIR);
    ck_assert_int_eq(rig_count_files(rig.dir), 0);
}
END_TEST

START_TEST(a_file_is_not_published_after_its_lease)
{
    static char bytes[100000]; /* auto: spills */
    const char *const urls[] = { url_of(1), "auto:" };

    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        ck_assert_int_eq(open_sink(urls[i]), 0);
        ck_assert_int_eq(write_bytes(bytes, sizeof bytes, NULL), 0);
        begin_commit(clock_boot_ms());
        rig_until(&rig, &ask.done);
        ck_assert_int_eq(ask.result, -ETIME);
        ck_assert_msg(strstr(ask.err.msg, "lease") != NULL, "%s", ask.err.msg);
        sink_close(sink);
        ck_assert_int_eq(rig_count_files(rig.dir), 0);
    }
}
END_TEST

START_TEST(a_file_that_cannot_be_committed_cannot_be_prepared)
{
    (void)url_of(1);
    ck_assert_int_eq(open_sink(file_url), 0);
    ck_assert_int_eq(write_bytes("new", 3, NULL), 0);
    ck_assert_int_eq(mkdir(file_path, 0755), 0);
    ck_assert_int_eq(prepare_sink(), -EISDIR);
    ck_assert_int_eq(end_sink(true), -EISDIR);
    ck_assert_int_eq(rig_count_files(rig.dir), 0);
}
END_TEST

/* ---- a commit and its lease, step by step ---- */

static void open_fake(void)
{
    sink = fake_sink_open(&rig.loop, &rig.fake, "stdout", on_opened, NULL);
    rig_until(&rig, &ask.opened);
}

static void close_fake(void)
{
    sink_close(sink);
    rig_turns(&rig, 10);
    ck_assert(rig.fake.freed);
}

START_TEST(a_commit_that_hangs_is_let_go_when_the_lease_is_over_and_publishes_never)
{
    open_fake();
    rig.fake.hold_commit = true;
    begin_commit(clock_boot_ms() + 60000);
    rig_turns(&rig, 10);
    ck_assert(!ask.done);
    ask.in_call = true;
    sink_revoke(sink, -ETIME);
    ask.in_call = false;
    rig_until(&rig, &ask.done);
    ck_assert_int_eq(ask.result, -ETIME);
    if (_i == 0) { /* it comes back after its owner has gone, or before */
        sink_close(sink);
        rig_turns(&rig, 10);
        ck_assert(!rig.fake.freed);
        fake_sink_release(&rig.fake);
        rig_turns(&rig, 10);
        ck_assert(rig.fake.freed && !rig.fake.committed);
    } else {
        fake_sink_release(&rig.fake);
        ck_assert(!rig.fake.committed);
        close_fake();
    }
}
END_TEST

START_TEST(a_last_step_that_was_begun_is_waited_for)
{
    open_fake();
    rig.fake.hold_publish = true;
    begin_commit(clock_boot_ms() + 60000);
    sink_revoke(sink, -ETIME);
    rig_turns(&rig, 20);
    ck_assert(!ask.done);
    fake_sink_release(&rig.fake);
    rig_until(&rig, &ask.done);
    ck_assert_int_eq(ask.result, 0);
    close_fake();
}
END_TEST

START_TEST(a_renewed_lease_gives_a_commit_more_time)
{
    open_fake();
    rig.fake.hold_commit = true;
    begin_commit(clock_boot_ms() - 1);
    ck_assert_int_le(sink_commit_left_ms(sink), 0);
    sink_extend(sink, clock_boot_ms() + 60000);
    ck_assert_int_gt(sink_commit_left_ms(sink), 50000);
    fake_sink_release(&rig.fake);
    rig_until(&rig, &ask.done);
    ck_assert_int_eq(ask.result, 0);
    ck_assert(rig.fake.committed);
    close_fake();
}
END_TEST

START_TEST(what_expired_before_its_commit_is_only_aborted)
{
    open_fake();
    sink_revoke(sink, -ETIME);
    ck_assert_int_eq(prepare_sink(), -ETIME);
    begin_commit(SINK_NO_DEADLINE);
    rig_until(&rig, &ask.done);
    ck_assert_int_eq(ask.result, -ETIME);
    ck_assert(rig.fake.aborted && !rig.fake.committed && !rig.fake.prepared);
    close_fake();
}
END_TEST

START_TEST(what_failed_to_prepare_is_only_aborted)
{
    open_fake();
    rig.fake.fail_prepare_with = -ENOSPC;
    ck_assert_int_eq(prepare_sink(), -ENOSPC);
    begin_commit(SINK_NO_DEADLINE);
    rig_until(&rig, &ask.done);
    ck_assert_int_eq(ask.result, -ENOSPC);
    ck_assert(rig.fake.aborted && !rig.fake.committed);
    close_fake();
}
END_TEST

START_TEST(two_streams_of_a_job_may_go_to_one_directory)
{
    char url[220];
    struct sink *first;

    (void)url_of(1);
    ck_assert_int_eq(open_sink(file_url), 0);
    ck_assert_int_eq(write_bytes("out", 3, NULL), 0);
    first = sink;
    (void)snprintf(url, sizeof url, "file:%s", path_of("out/other"));
    begin_open(url, "job/1", "stderr");
    rig_until(&rig, &ask.opened);
    ck_assert_int_eq(ask.result, 0);
    ck_assert_int_eq(write_bytes("err", 3, NULL), 0);
    ck_assert_int_eq(end_sink(true), 0);
    sink = first;
    ck_assert_int_eq(end_sink(true), 0);
    check_content(file_path, "out");
    check_content(path_of("out/other"), "err");
}
END_TEST

START_TEST(a_temporary_of_a_crashed_attempt_is_replaced_and_a_living_ones_is_not)
{
    (void)url_of(1);
    ck_assert_int_eq(mkdir(path_of("out"), 0755), 0);
    const char *temp = path_of("out/.mandor.job%2F1.3.stdout");
    make(temp, "rest of a crash");
    ck_assert_int_eq(open_sink(file_url), 0);
    ck_assert_int_eq(write_bytes("new", 3, NULL), 0);
    ck_assert_int_eq(end_sink(true), 0);
    check_content(file_path, "new");

    make(path_of("out/.mandor.job%2F1.3.stdout"), "being written");
    int fd = open(path_of("out/.mandor.job%2F1.3.stdout"), O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(open_sink(file_url), -EBUSY);
    sink_close(sink);
    check_content(path_of("out/.mandor.job%2F1.3.stdout"), "being written");
    (void)close(fd);
}
END_TEST

START_TEST(odd_ids_make_one_file_name)
{
    static const char *const ids[] = { "..", "a/b", ".x", "%2F", "a\nb", "\xff\xfe", "" };
    char longest[2000];

    memset(longest, 'y', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    for (size_t i = 0; i <= ARRAY_LEN(ids); i++) {
        (void)url_of(1);
        begin_open(file_url, i == ARRAY_LEN(ids) ? longest : ids[i], "stdout");
        rig_until(&rig, &ask.opened);
        ck_assert_msg(ask.result == 0, "%s", ask.err.msg);
        ck_assert_int_eq(rig_count_files(path_of("out")), 1);
        ck_assert_int_eq(end_sink(false), 0);
    }
}
END_TEST

START_TEST(sweep_removes_what_a_dead_worker_left_and_nothing_else)
{
    (void)snprintf(journal, sizeof journal, "%s/journal", rig.dir);
    ck_assert_int_eq(sink_sweep(journal, &ask.err), 0); /* there is none */

    ck_assert_int_eq(mkdir(path_of("out"), 0755) + mkdir(journal, 0755), 0);
    make(path_of("out/.mandor.a.1.stdout"), "left");
    make(path_of("out/.mandor.b.1.stdout"), "in use");
    make(path_of("out/precious"), "not ours");
    ck_assert_int_eq(symlink(path_of("out/.mandor.a.1.stdout"), path_of("journal/a.1.stdout")), 0);
    ck_assert_int_eq(symlink(path_of("out/.mandor.b.1.stdout"), path_of("journal/b.1.stdout")), 0);
    ck_assert_int_eq(symlink(path_of("out/.mandor.gone.1.stdout"), path_of("journal/c.1.stdout")),
                     0);
    ck_assert_int_eq(symlink(path_of("out/precious"), path_of("journal/d.1.stdout")), 0);
    int fd = open(path_of("out/.mandor.b.1.stdout"), O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);

    ck_assert_int_eq(sink_sweep(journal, &ask.err), 1);
    ck_assert_int_eq(access(path_of("out/.mandor.a.1.stdout"), F_OK), -1);
    check_content(path_of("out/.mandor.b.1.stdout"), "in use");
    check_content(path_of("out/precious"), "not ours");
    (void)close(fd);
    ck_assert_int_eq(unlink(path_of("journal/d.1.stdout")), 0);
    ck_assert_int_eq(sink_sweep(journal, &ask.err), 1);
    ck_assert_int_eq(access(journal, F_OK), -1);
}
END_TEST

START_TEST(a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing)
{
    static char bytes[300000];
    char url[220];

    ck_assert_int_eq(mkdir(path_of("small"), 0755), 0);
    if (mount("none", path_of("small"), "tmpfs", 0, "size=128k") < 0) {
        (void)fprintf(stderr, "not checked: cannot mount a tmpfs here\n");
        return;
    }
    (void)snprintf(url, sizeof url, "file:%s", path_of("small/file"));
    ck_assert_int_eq(open_sink(url), 0);
    ck_assert_int_eq(sink_splice_fd(sink), -1); /* in memory */
    ck_assert_int_eq(write_bytes(bytes, sizeof bytes, NULL), -ENOSPC);
    ck_assert(strstr(ask.err.msg, "small/file") != NULL);
    ck_assert_int_eq(end_sink(true), -ENOSPC); /* what failed is not published */
    rig_turns(&rig, 10);
    ck_assert_int_eq(rig_count_files(path_of("small")), 0);
    ck_assert_int_eq(umount(path_of("small")), 0);
}
END_TEST

static void write_to_slow_reader(int flags)
{
    static unsigned char bytes[300000];
    struct iovec iov = { bytes, sizeof bytes };
    size_t got = 0;
    static unsigned char back[sizeof bytes];

    rig_bytes(9, 0, bytes, sizeof bytes);
    ck_assert_int_eq(open_sink("inherit:"), 0);
    sink_write(sink, &iov, 1, NULL, on_written, NULL);
    rig_turns(&rig, 50);
    ck_assert(!ask.written);
    ck_assert_int_eq(fcntl(inherited[1], F_GETFL) & O_NONBLOCK, flags);
    while (got < sizeof bytes) {
        ssize_t n = read(inherited[0], back + got, 5000);
        ck_assert_int_gt(n, 0);
        got += (size_t)n;
    }
    rig_until(&rig, &ask.written);
    ck_assert_mem_eq(back, bytes, sizeof bytes);
    ck_assert_int_eq(end_sink(true), 0);
}

START_TEST(inherit_writes_all_to_a_slow_reader_and_leaves_the_descriptor_blocking)
{
    write_to_slow_reader(0);
}
END_TEST

START_TEST(inherit_copes_with_a_descriptor_that_is_non_blocking_already)
{
    ck_assert_int_eq(fcntl(inherited[1], F_SETFL, O_NONBLOCK), 0);
    write_to_slow_reader(O_NONBLOCK);
}
END_TEST

START_TEST(inherit_is_given_up_although_nobody_reads)
{
    static char bytes[300000];
    struct iovec iov = { bytes, sizeof bytes };

    ck_assert_int_eq(open_sink("inherit:"), 0);
    sink_write(sink, &iov, 1, NULL, on_written, NULL);
    rig_turns(&rig, 20);
    sink_abort(sink, on_done, NULL); /* ends the write too */
    rig_until(&rig, &ask.done);
    ck_assert(ask.written);
    sink_close(sink);
}
END_TEST

START_TEST(inherit_says_that_its_reader_has_gone)
{
    ck_assert_int_eq(open_sink("inherit:"), 0);
    (void)close(inherited[0]);
    ck_assert_int_eq(write_bytes("x", 1, NULL), -EPIPE);
    ck_assert_int_eq(end_sink(false), 0);
    ck_assert_int_eq(pipe2(inherited, O_CLOEXEC), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sink");
    TCase *tcase = tcase_create("sink");

    add_remote_kinds();
    const int n = kind_count;

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, each_call_is_answered_once_and_never_from_inside, 0, n);
    tcase_add_loop_test(tcase, the_hash_is_that_of_the_bytes_in_order, 0, n);
    tcase_add_loop_test(tcase, abort_leaves_nothing, 0, n);
    tcase_add_loop_test(tcase, abort_may_come_before_it_has_opened, 0, n);
    tcase_add_loop_test(tcase, close_at_any_time_is_an_abort, 0, n);
    tcase_add_loop_test(tcase, an_empty_stream_commits, 0, n);
    tcase_add_loop_test(tcase, after_its_lease_a_commit_publishes_nothing, 0, n);
    tcase_add_loop_test(tcase, stderr_commits_always_and_stdout_as_the_kind_says, 0, n);
    tcase_add_loop_test(tcase, what_was_prepared_commits_or_aborts, 0, n);
    tcase_add_loop_test(tcase, within_its_lease_a_commit_is_a_commit, 0, n);
    tcase_add_test(tcase, a_file_is_not_published_after_its_lease);
    tcase_add_test(tcase, a_file_that_cannot_be_committed_cannot_be_prepared);
    tcase_add_loop_test(
        tcase, a_commit_that_hangs_is_let_go_when_the_lease_is_over_and_publishes_never, 0, 2);
    tcase_add_test(tcase, a_last_step_that_was_begun_is_waited_for);
    tcase_add_test(tcase, a_renewed_lease_gives_a_commit_more_time);
    tcase_add_test(tcase, what_expired_before_its_commit_is_only_aborted);
    tcase_add_test(tcase, what_failed_to_prepare_is_only_aborted);
    tcase_add_test(tcase, urls_are_checked_without_a_look_at_the_disk);
    tcase_add_test(tcase,
                   r111_nothing_is_under_the_final_name_before_commit_and_the_old_file_stays_whole);
    tcase_add_loop_test(tcase, a_target_that_is_no_regular_file_is_refused_at_open, 0,
                        (int)ARRAY_LEN(bad_targets));
    tcase_add_test(tcase, a_directory_that_appears_under_the_name_meanwhile_is_refused_at_commit);
    tcase_add_test(tcase, two_streams_of_a_job_may_go_to_one_directory);
    tcase_add_test(tcase, a_temporary_of_a_crashed_attempt_is_replaced_and_a_living_ones_is_not);
    tcase_add_test(tcase, odd_ids_make_one_file_name);
    tcase_add_test(tcase, sweep_removes_what_a_dead_worker_left_and_nothing_else);
    tcase_add_test(tcase, a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing);
    tcase_add_test(tcase, inherit_writes_all_to_a_slow_reader_and_leaves_the_descriptor_blocking);
    tcase_add_test(tcase, inherit_copes_with_a_descriptor_that_is_non_blocking_already);
    tcase_add_test(tcase, inherit_is_given_up_although_nobody_reads);
    tcase_add_test(tcase, inherit_says_that_its_reader_has_gone);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

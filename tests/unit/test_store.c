/* test_store.c - the SQLite back end from inside: clocks, faults of file and disk, several processes on one file. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/json.h"
#include "broker/store.h"
#include "broker/wal.h"

static char dir[64], db_path[128], url[192];
static uv_loop_t loop;

static void setup(void)
{
    strcpy(dir, "/tmp/mandor-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(db_path, sizeof db_path, "%s/q.db", dir);
    (void)snprintf(url, sizeof url, "sqlite:%s", db_path);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
}

static void teardown(void)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

static struct broker *open_broker(bool worker)
{
    struct broker *broker = NULL;
    struct mandor_err err = { 0 };
    int r = broker_open(url, &loop, worker, &broker, &err);
    ck_assert_msg(r == 0, "%s", err.msg);
    return broker;
}

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

static void ignore_wake(void *arg)
{
}

static void close_broker(struct broker *broker)
{
    bool closed = false;
    broker_close(broker, on_closed, &closed);
    while (!closed)
        (void)uv_run(&loop, UV_RUN_ONCE);
}

static int open_error(struct mandor_err *err)
{
    struct broker *broker = NULL;
    *err = (struct mandor_err){ 0 };
    return broker_open(url, &loop, true, &broker, err);
}

static void nothing(struct broker_req *req)
{
}

static int ask(struct broker *broker, struct broker_req *req)
{
    req->done = nothing;
    return broker_wait(broker, req);
}

#define ask_ok(broker, req)                                          \
    do {                                                             \
        int r_ = ask(broker, req);                                   \
        ck_assert_msg(r_ == 0, "status %d: %s", r_, (req)->err.msg); \
    } while (0)

/* Add one job; its id, or a negative status. */
static int64_t try_add(struct broker *broker, const char *text, struct mandor_err *err)
{
    SCOPED_JSON *json = NULL;
    SCOPED(spec_free) struct spec *spec = NULL;
    ck_assert_int_eq(json_parse(text, strlen(text), &json, NULL), 0);
    ck_assert_int_eq(spec_from_json(json, NULL, &spec, NULL), 0);
    struct broker_added added = { 0 };
    struct broker_req req = { .op = BROKER_ADD };
    req.add.specs = (const struct spec *const[]){ spec };
    req.add.count = 1;
    req.add.added = &added;
    int r = ask(broker, &req);
    if (err != NULL)
        *err = req.err;
    return r < 0 ? r : atoll(added.id);
}

#define TRUE_JOB "{\"exec\": [\"true\"]}"

static int64_t add(struct broker *broker, const char *text)
{
    struct mandor_err err;
    int64_t id = try_add(broker, text, &err);
    ck_assert_msg(id > 0, "%s", err.msg);
    return id;
}

static int lock_file(const char *name, char path[static 128])
{
    (void)snprintf(path, 128, "%s/%s.lock", dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    return fd;
}

/* A registered worker; *ret_fd holds its lock. */
static struct broker *open_worker(const char *name, int *ret_fd)
{
    char path[128];
    *ret_fd = lock_file(name, path);
    struct broker *broker = open_broker(true);
    struct broker_req req = { .op = BROKER_REGISTER };
    req.reg.worker = name;
    req.reg.lock_path = path;
    ask_ok(broker, &req);
    return broker;
}

static size_t lease(struct broker *broker, struct lease *leases, size_t want)
{
    struct broker_req req = { .op = BROKER_LEASE };
    req.lease.want = want;
    req.lease.leases = leases;
    ask_ok(broker, &req);
    return req.lease.count;
}

static int finish(struct broker *broker, const char *id, int64_t attempt, struct retry_plan plan,
                  int64_t keep_ms, int64_t keep_count)
{
    struct broker_req req = { .op = BROKER_START };
    req.start.id = id;
    req.start.attempt = attempt;
    int r = ask(broker, &req);
    if (r < 0)
        return r;
    struct broker_req settle = { .op = BROKER_SETTLE };
    settle.settle.id = id;
    settle.settle.queue = "default";
    settle.settle.attempt = req.start.attempt;
    settle.settle.plan = plan;
    settle.settle.keep_ms = keep_ms;
    settle.settle.keep_count = keep_count;
    return ask(broker, &settle);
}

static const struct retry_plan completed = { .state = JOB_COMPLETED, .charged = true };

static int on_empty(const char *containment, void *arg)
{
    return 0;
}

static struct broker_req recover(struct broker *broker)
{
    struct broker_req req = { .op = BROKER_RECOVER };
    req.recover.empty = on_empty;
    ask_ok(broker, &req);
    return req;
}

static int64_t sql(const char *text)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *stmt = NULL;
    int64_t value = -1;
    ck_assert_int_eq(sqlite3_open(db_path, &db), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, 60000);
    ck_assert_msg(sqlite3_prepare_v2(db, text, -1, &stmt, NULL) == SQLITE_OK, "%s",
                  sqlite3_errmsg(db));
    int rc = sqlite3_step(stmt);
    ck_assert_msg(rc == SQLITE_ROW || rc == SQLITE_DONE, "%s", sqlite3_errmsg(db));
    if (rc == SQLITE_ROW)
        value = sqlite3_column_int64(stmt, 0);
    ck_assert_int_eq(sqlite3_finalize(stmt), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    return value;
}

static void expect_sound(void)
{
    ck_assert_int_eq(sql("SELECT integrity_check='ok' FROM pragma_integrity_check"), 1);
}

#define TEST(name) START_TEST(name)

/* ---- opening ---- */

TEST(everything_it_makes_is_for_the_owner_only)
{
    const char *const names[] = { "",   "-wal",   "-shm",      ".next",      ".turn",
                                  ".d", ".d/run", ".d/output", ".d/journal", ".d/scratch" };
    (void)umask(0);
    struct broker *broker = open_broker(true);
    (void)add(broker, TRUE_JOB);
    ck_assert_int_eq(broker_listen(broker, "w", ignore_wake, NULL, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char path[256];
        struct stat st;
        (void)snprintf(path, sizeof path, "%s%s", db_path, names[i]);
        ck_assert_msg(stat(path, &st) == 0, "%s", path);
        /* jobs of other users pass through two directories to their own; nobody else reads or writes */
        ck_assert_msg((st.st_mode & (S_ISDIR(st.st_mode) ? 0766 : 0777)) ==
                          (S_ISDIR(st.st_mode) ? 0700 : 0600),
                      "%s has mode %o", path, st.st_mode);
    }
    char path[256];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s.d/run/w.sock", db_path);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    close_broker(broker);
    ck_assert_int_eq(stat(path, &st), -1);
}
END_TEST

TEST(no_descriptor_of_it_survives_an_exec)
{
    int fd;
    struct broker *broker = open_worker("w", &fd);
    (void)add(broker, TRUE_JOB);
    ck_assert_int_eq(broker_listen(broker, "w", ignore_wake, NULL, NULL), 0);
    DIR *fds = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(fds)) != NULL;) {
        char link[320], target[256] = "";
        (void)snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        if (readlink(link, target, sizeof target - 1) > 0 &&
            (strstr(target, dir) != NULL || strstr(target, "socket:") != NULL) &&
            atoi(entry->d_name) > 2)
            ck_assert_msg((fcntl(atoi(entry->d_name), F_GETFD) & FD_CLOEXEC) != 0,
                          "%s is inherited", target);
    }
    (void)closedir(fds);
    close_broker(broker);
}
END_TEST

TEST(a_newer_format_is_refused_with_the_versions_named)
{
    struct mandor_err err;
    close_broker(open_broker(false));
    (void)sql("PRAGMA user_version=999");
    ck_assert_int_eq(open_error(&err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "999"));
    ck_assert_ptr_nonnull(strstr(err.msg, "newer mandor"));
    ck_assert_int_eq(sql("PRAGMA user_version"), 999);
}
END_TEST

TEST(a_database_of_another_program_is_refused_and_left_alone)
{
    struct mandor_err err;
    (void)sql("CREATE TABLE theirs(x)");
    ck_assert_int_eq(open_error(&err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "another program"));
    ck_assert_int_eq(sql("SELECT count(*) FROM sqlite_schema"), 1);
    ck_assert_int_eq(sql("SELECT count(*) FROM pragma_journal_mode WHERE journal_mode='wal'"), 0);
}
END_TEST

TEST(a_file_that_is_no_database_is_refused_by_name)
{
    struct mandor_err err;
    FILE *file = fopen(db_path, "w");
    for (int i = 0; i < 500; i++)
        (void)fputs("this is a letter to my aunt\n", file);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(open_error(&err), -EBADMSG);
    ck_assert_int_eq(err.fault, MANDOR_FAULT_HOST);
    ck_assert_ptr_nonnull(strstr(err.msg, db_path));
}
END_TEST

TEST(a_damaged_page_is_found_when_a_worker_opens)
{
    struct mandor_err err;
    struct broker *broker = open_broker(false);
    for (int i = 0; i < 200; i++)
        (void)add(broker, TRUE_JOB);
    close_broker(broker);
    (void)sql("PRAGMA wal_checkpoint(TRUNCATE)");
    int fd = open(db_path, O_RDWR | O_CLOEXEC);
    char junk[4096];
    memset(junk, 0xa5, sizeof junk);
    for (off_t page = 1; page < 12; page++)
        ck_assert_int_eq(pwrite(fd, junk, sizeof junk, page * 4096), sizeof junk);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_int_eq(open_error(&err), -EBADMSG);
    ck_assert_ptr_nonnull(strstr(err.msg, ".recover"));
}
END_TEST

TEST(places_that_cannot_hold_a_queue_are_named)
{
    struct mandor_err err;
    (void)snprintf(url, sizeof url, "sqlite:%s/no/such/q.db", dir);
    ck_assert_int_eq(open_error(&err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.msg, "no/such"));
    (void)snprintf(url, sizeof url, "sqlite:%s", dir);
    ck_assert_int_eq(open_error(&err), -EISDIR);
    (void)snprintf(url, sizeof url, "sqlite:/proc/q.db");
    ck_assert_int_lt(open_error(&err), 0);
    ck_assert_ptr_nonnull(strstr(err.msg, "/proc/q.db"));
}
END_TEST

TEST(a_relative_path_and_a_symlink_lead_to_the_same_locks_and_data)
{
    char link[128], cwd_url[] = "sqlite:q.db";
    struct broker *one = open_broker(false);
    (void)snprintf(link, sizeof link, "%s/link.db", dir);
    ck_assert_int_eq(symlink(db_path, link), 0);
    (void)snprintf(url, sizeof url, "sqlite:%s", link);
    struct broker *two = open_broker(false);
    ck_assert_int_eq(chdir(dir), 0);
    strcpy(url, cwd_url);
    struct broker *three = open_broker(false);
    ck_assert_str_eq(broker_data_dir(one), broker_data_dir(two));
    ck_assert_str_eq(broker_data_dir(one), broker_data_dir(three));
    ck_assert_int_eq(chdir("/"), 0);
    close_broker(one);
    close_broker(two);
    close_broker(three);
}
END_TEST

/* ---- clocks (R36) ---- */

TEST(a_wall_clock_that_jumps_neither_hurries_nor_delays_a_job)
{
    int fd;
    struct lease got;
    struct broker *broker = open_worker("w", &fd);
    int64_t id = add(broker, "{\"exec\": [\"true\"], \"delay\": \"1h\"}");
    store_test_wall_offset_ms = 3600 * 1000 * 24;
    ck_assert_uint_eq(recover(broker).recover.due, 0);
    ck_assert_uint_eq(lease(broker, &got, 1), 0);
    store_test_wall_offset_ms = -3600 * 1000 * 24;
    store_test_boot_offset_ms = 3600 * 1000 + 1000;
    ck_assert_uint_eq(recover(broker).recover.due, 1);
    ck_assert_uint_eq(lease(broker, &got, 1), 1);
    ck_assert_int_eq(atoll(got.id), id);
    lease_done(&got);
    close_broker(broker);
}
END_TEST

TEST(after_a_reboot_the_wall_clock_decides)
{
    int fd;
    struct lease got;
    struct broker *broker = open_worker("w", &fd);
    (void)add(broker, "{\"exec\": [\"true\"], \"delay\": \"1h\"}");
    store_test_boot_id = "another-boot";
    store_test_boot_offset_ms = 10 * 3600 * 1000; /* says nothing about the other boot's clock */
    struct broker_req req = { .op = BROKER_LEASE };
    req.lease.want = 1;
    req.lease.leases = &got;
    ask_ok(broker, &req);
    ck_assert_uint_eq(req.lease.count, 0);
    ck_assert_int_eq(req.lease.next_due_ms, 1000);
    ck_assert_uint_eq(recover(broker).recover.due, 0);
    store_test_wall_offset_ms = 3600 * 1000 + 1000;
    ck_assert_uint_eq(recover(broker).recover.due, 1);
    close_broker(broker);
}
END_TEST

TEST(a_lease_that_ran_out_is_not_taken_while_its_worker_lives)
{
    int one_fd, two_fd;
    struct lease got;
    struct broker *one = open_worker("one", &one_fd), *two = open_worker("two", &two_fd);
    (void)add(one, TRUE_JOB);
    ck_assert_uint_eq(lease(one, &got, 1), 1);
    store_test_boot_offset_ms = 24 * 3600 * 1000;
    ck_assert_uint_eq(recover(two).recover.recovered, 0);
    ck_assert_int_eq(finish(one, got.id, 0, completed, 0, 0), 0);
    lease_done(&got);
    close_broker(one);
    close_broker(two);
}
END_TEST

TEST(a_job_whose_giving_back_was_lost_is_there_again_when_its_lease_is_over)
{
    int fd;
    struct lease got, again;
    struct broker *worker = open_worker("w", &fd);
    (void)add(worker, TRUE_JOB);
    ck_assert_uint_eq(lease(worker, &got, 1), 1);
    ck_assert_uint_eq(recover(worker).recover.due, 0);
    store_test_boot_offset_ms = 31000;
    ck_assert_uint_eq(recover(worker).recover.due, 1);
    ck_assert_uint_eq(lease(worker, &again, 1), 1);
    ck_assert_int_eq(finish(worker, again.id, again.attempt, completed, 0, 0), 0);
    ck_assert_int_eq(finish(worker, got.id, got.attempt, completed, 0, 0), -ESTALE);
    lease_done(&got);
    lease_done(&again);
    close_broker(worker);
}
END_TEST

TEST(a_started_job_is_never_given_back_by_the_clock)
{
    int fd;
    struct lease got;
    struct broker *worker = open_worker("w", &fd);
    (void)add(worker, TRUE_JOB);
    ck_assert_uint_eq(lease(worker, &got, 1), 1);
    struct broker_req req = { .op = BROKER_START };
    req.start.id = got.id;
    ask_ok(worker, &req);
    store_test_boot_offset_ms = 24 * 3600 * 1000;
    ck_assert_uint_eq(recover(worker).recover.due, 0);
    ck_assert_int_eq(sql("SELECT state FROM jobs"), JOB_ACTIVE);
    lease_done(&got);
    close_broker(worker);
}
END_TEST

TEST(jobs_of_a_worker_from_before_a_reboot_are_recovered)
{
    int one_fd, two_fd;
    struct lease got;
    struct broker *one = open_worker("one", &one_fd);
    (void)add(one, TRUE_JOB);
    ck_assert_uint_eq(lease(one, &got, 1), 1);
    close_broker(one);
    ck_assert_int_eq(close(one_fd), 0);
    store_test_boot_id = "another-boot";
    struct broker *two = open_worker("two", &two_fd);
    struct broker_req req = {
        .op = BROKER_RECOVER
    }; /* no way to empty anything, and nothing to empty */
    ask_ok(two, &req);
    ck_assert_uint_eq(req.recover.recovered, 1);
    lease_done(&got);
    close_broker(two);
}
END_TEST

TEST(who_signs_off_with_a_started_job_stays_known_until_that_was_put_through)
{
    int one_fd, two_fd;
    struct lease got[2];
    struct broker *one = open_worker("one", &one_fd), *two = open_worker("two", &two_fd);
    (void)add(one, TRUE_JOB);
    (void)add(one, TRUE_JOB);
    ck_assert_uint_eq(lease(one, got, 2), 2);
    struct broker_req start = { .op = BROKER_START };
    start.start.id = got[0].id;
    ask_ok(one, &start);
    struct broker_req off = { .op = BROKER_UNREGISTER };
    ask_ok(one, &off);
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs WHERE state=0"), 1);
    ck_assert_int_eq(sql("SELECT count(*) FROM workers WHERE name='one'"), 1);

    store_test_boot_offset_ms = 24 * 3600 * 1000;
    ck_assert_msg(recover(two).recover.recovered == 0, "its lock is held");
    ck_assert_int_eq(close(one_fd), 0);
    ck_assert_uint_eq(recover(two).recover.recovered, 1);
    ck_assert_int_eq(sql("SELECT count(*) FROM workers WHERE name='one'"), 0);
    lease_done(&got[0]);
    lease_done(&got[1]);
    close_broker(one);
    close_broker(two);
}
END_TEST

TEST(a_started_row_without_a_worker_waits_for_the_lock_of_that_name)
{
    int fd;
    char text[256];
    struct broker *broker = open_worker("w", &fd);
    (void)snprintf(text, sizeof text,
                   "UPDATE jobs SET state=2,worker='ghost',started=1,attempt=1,lease_boot_id='%s',"
                   "lease_until_ms=0 WHERE id=%" PRId64,
                   clock_boot_id(), add(broker, TRUE_JOB));
    (void)sql(text);
    (void)snprintf(text, sizeof text, "%s/run/ghost.lock", broker_data_dir(broker));
    int ghost_fd = open(text, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(ghost_fd, LOCK_EX | LOCK_NB), 0);
    ck_assert_uint_eq(recover(broker).recover.recovered, 0);
    ck_assert_int_eq(close(ghost_fd), 0);
    ck_assert_uint_eq(recover(broker).recover.recovered, 1);
    close_broker(broker);
}
END_TEST

TEST(a_row_left_active_by_nobody_is_recovered_when_its_lease_is_over) /* R66 */
{
    int fd;
    struct broker *broker = open_worker("w", &fd);
    int64_t bare = add(broker, TRUE_JOB), held = add(broker, TRUE_JOB);
    char text[256];
    (void)snprintf(text, sizeof text, "UPDATE jobs SET state=2 WHERE id=%" PRId64, bare);
    (void)sql(text);
    (void)snprintf(
        text, sizeof text,
        "UPDATE jobs SET "
        "state=2,worker='ghost',started=1,attempt=1,lease_boot_id='%s',lease_until_ms=%" PRId64
        " WHERE id=%" PRId64,
        clock_boot_id(), clock_boot_ms() + 20000, held);
    (void)sql(text);
    ck_assert_uint_eq(recover(broker).recover.recovered, 1);
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs WHERE state=2"), 1);
    store_test_boot_offset_ms = 21000;
    ck_assert_uint_eq(recover(broker).recover.recovered, 1);
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs WHERE state=4 AND attempts_used=1"), 1);
    close_broker(broker);
}
END_TEST

/* ---- retention ---- */

TEST(retention_keeps_the_newest_and_removes_output_with_the_job)
{
    int fd;
    struct broker *broker = open_worker("w", &fd);
    int64_t first = 0;
    for (int i = 0; i < 12; i++) {
        struct lease got;
        int64_t id = add(broker, TRUE_JOB);
        first = first == 0 ? id : first;
        char path[256];
        (void)snprintf(path, sizeof path, "%s/output/%" PRId64, broker_data_dir(broker), id);
        ck_assert_int_eq(mkdir(path, 0700), 0);
        strcat(path, "/1.stdout");
        ck_assert_int_ge(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
        ck_assert_uint_eq(lease(broker, &got, 1), 1);
        ck_assert_int_eq(finish(broker, got.id, 0, completed, 0, 5), 0);
        lease_done(&got);
    }
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs"), 5);
    char text[128];
    (void)snprintf(text, sizeof text, "SELECT min(id)=%" PRId64 " FROM jobs", first + 7);
    ck_assert_int_eq(sql(text), 1);
    (void)recover(broker);
    ck_assert_int_eq(sql("SELECT count(*) FROM doomed"), 0);
    int left = 0;
    char path[256];
    (void)snprintf(path, sizeof path, "%s/output", broker_data_dir(broker));
    DIR *output = opendir(path);
    for (struct dirent *entry; (entry = readdir(output)) != NULL;)
        left += entry->d_name[0] != '.';
    (void)closedir(output);
    ck_assert_int_eq(left, 5);
    close_broker(broker);
}
END_TEST

TEST(retention_by_age_goes_on_without_settles)
{
    int fd;
    struct broker *broker = open_worker("w", &fd);
    for (int i = 0; i < 3; i++) {
        struct lease got;
        (void)add(broker, TRUE_JOB);
        ck_assert_uint_eq(lease(broker, &got, 1), 1);
        ck_assert_int_eq(finish(broker, got.id, 0, completed, 60000, 0), 0);
        lease_done(&got);
    }
    ck_assert_uint_eq(recover(broker).recover.removed, 0);
    store_test_wall_offset_ms = 61000;
    ck_assert_uint_eq(recover(broker).recover.removed, 3);
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs"), 0);
    close_broker(broker);
}
END_TEST

TEST(retention_that_was_lifted_removes_nothing_any_more)
{
    int fd;
    struct broker *broker = open_worker("w", &fd);
    for (int i = 0; i < 3; i++) {
        struct lease got;
        (void)add(broker, TRUE_JOB);
        ck_assert_uint_eq(lease(broker, &got, 1), 1);
        ck_assert_int_eq(finish(broker, got.id, 0, completed, i < 2 ? 60000 : 0, 0), 0);
        lease_done(&got);
    }
    store_test_wall_offset_ms = 61000;
    ck_assert_uint_eq(recover(broker).recover.removed, 0);
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs"), 3);
    close_broker(broker);
}
END_TEST

TEST(a_count_without_end_is_no_bound)
{
    int fd;
    struct lease got;
    struct broker *broker = open_worker("w", &fd);
    (void)add(broker, TRUE_JOB);
    ck_assert_uint_eq(lease(broker, &got, 1), 1);
    ck_assert_int_eq(finish(broker, got.id, 0, completed, 0, INT64_MAX), 0);
    ck_assert_uint_eq(recover(broker).recover.removed, 0);
    lease_done(&got);
    close_broker(broker);
}
END_TEST

/* ---- faults of the disk ---- */

static int failing_syncs;
static int failing_fdatasync(int fd)
{
    if (failing_syncs > 0) {
        failing_syncs--;
        errno = EIO;
        return -1;
    }
    return fdatasync(fd);
}

TEST(no_add_is_acknowledged_before_a_sync_that_began_after_it) /* R84 */
{
    for (int worker = 0; worker <= 1; worker++) {
        struct broker *broker = open_broker(worker != 0);
        wal_test_fdatasync = failing_fdatasync;
        struct mandor_err err;
        /* a long reader keeps the checkpoint from carrying everything over, so that the sync cannot be made up for */
        sqlite3 *reader = NULL;
        ck_assert_int_eq(sqlite3_open(db_path, &reader), SQLITE_OK);
        ck_assert_int_eq(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM jobs", NULL, NULL, NULL),
                         SQLITE_OK);
        failing_syncs = 1;
        ck_assert_int_eq(try_add(broker, TRUE_JOB, &err), -EIO);
        ck_assert_ptr_nonnull(strstr(err.msg, "-wal"));
        ck_assert_int_eq(failing_syncs, 0);
        ck_assert_msg(try_add(broker, TRUE_JOB, &err) == -EIO,
                      "the log is suspect until it was carried over");
        ck_assert_int_eq(sqlite3_exec(reader, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
        ck_assert_int_gt(try_add(broker, TRUE_JOB, &err), 0);
        ck_assert_int_eq(sqlite3_close(reader), SQLITE_OK);
        close_broker(broker);
    }
}
END_TEST

TEST(a_sync_that_fails_before_a_checkpoint_makes_the_log_suspect) /* R84 */
{
    struct wal wal;
    struct mandor_err err = { 0 };
    struct broker *broker = open_broker(false);
    sqlite3 *reader = NULL;
    (void)add(broker, TRUE_JOB);
    ck_assert_int_eq(wal_open(&wal, db_path, &err), 0);
    ck_assert_int_eq(wal_sync(&wal, &err), 0);
    ck_assert_int_eq(sqlite3_open(db_path, &reader), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM jobs", NULL, NULL, NULL),
                     SQLITE_OK);
    (void)add(broker, TRUE_JOB);

    wal_test_fdatasync = failing_fdatasync;
    failing_syncs = 1;
    (void)wal_checkpoint(&wal, NULL);
    ck_assert_int_eq(failing_syncs, 0);
    ck_assert_msg(wal_sync(&wal, &err) == -EIO, "the kernel reports a lost page once");
    ck_assert_int_eq(sqlite3_exec(reader, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(reader), SQLITE_OK);
    ck_assert_int_eq(wal_sync(&wal, &err), 0);
    wal_done(&wal);
    close_broker(broker);
}
END_TEST

TEST(a_foreign_writer_delays_and_then_a_request_fails_with_a_reason_and_later_ones_work)
{
    struct broker *broker = open_broker(false);
    struct mandor_err err;
    sqlite3 *writer = NULL;
    ck_assert_int_eq(sqlite3_open(db_path, &writer), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(writer, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(try_add(broker, TRUE_JOB, &err), -EBUSY);
    ck_assert_int_eq(err.fault, MANDOR_FAULT_HOST);
    ck_assert_ptr_nonnull(strstr(err.msg, "another program"));
    ck_assert_int_eq(sqlite3_exec(writer, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(writer), SQLITE_OK);
    ck_assert_int_gt(try_add(broker, TRUE_JOB, &err), 0);
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs"), 1);
    close_broker(broker);
}
END_TEST

TEST(who_waits_for_the_turn_of_a_stopped_process_is_told_who_that_is)
{
    struct broker *broker = open_broker(false);
    struct mandor_err err;
    char path[160], want[64];
    int ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    (void)snprintf(path, sizeof path, "%s.turn", db_path);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)flock(fd, LOCK_EX);
        (void)!write(ready[1], "x", 1);
        for (;;)
            (void)raise(SIGSTOP);
    }
    char byte;
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    turnstile_test_patience_ms = 300;
    ck_assert_int_eq(try_add(broker, TRUE_JOB, &err), -EBUSY);
    (void)snprintf(want, sizeof want, "process %d (", pid);
    ck_assert_msg(strstr(err.msg, want) != NULL && strstr(err.msg, "stopped") != NULL, "%s",
                  err.msg);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_gt(try_add(broker, TRUE_JOB, &err), 0);
    close_broker(broker);
}
END_TEST

TEST(a_full_disk_fails_requests_whole_and_heals_when_there_is_space) /* R82 */
{
    int fd;
    char ballast_path[128], big[4096];
    if (mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0700") < 0) {
        (void)fprintf(stderr, "skipped: a tmpfs needs the right to mount\n");
        return;
    }
    struct broker *broker = open_worker("w", &fd);
    int64_t before = add(broker, TRUE_JOB);
    (void)snprintf(ballast_path, sizeof ballast_path, "%s/ballast", dir);
    int ballast = open(ballast_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    memset(big, 'x', sizeof big);
    while (write(ballast, big, sizeof big) > 0)
        ;
    struct mandor_err err = { 0 };
    int64_t acknowledged = 1, r = 0;
    for (int i = 0; i < 2000 && (r = try_add(broker, TRUE_JOB, &err)) > 0; i++)
        acknowledged++;
    ck_assert_msg(r == -ENOSPC, "%" PRId64 " %s", r, err.msg);
    ck_assert_ptr_nonnull(strstr(err.msg, db_path));
    for (int i = 0; i < 20; i++)
        ck_assert_int_lt(try_add(broker, TRUE_JOB, &err), 0);
    ck_assert_int_eq(ftruncate(ballast, 0), 0);
    for (int i = 0; i < 20; i++, acknowledged++)
        ck_assert_int_gt(add(broker, TRUE_JOB), before);
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs"), acknowledged);
    expect_sound();
    (void)close(ballast);
    close_broker(broker);
    ck_assert_int_eq(umount2(dir, MNT_DETACH), 0);
}
END_TEST

TEST(one_request_that_cannot_be_written_does_not_fail_its_neighbours)
{
    struct broker *broker = open_broker(false);
    (void)add(broker, TRUE_JOB);
    (void)sql("CREATE TRIGGER bad BEFORE INSERT ON jobs WHEN NEW.priority=13 BEGIN SELECT "
              "RAISE(FAIL,'unlucky'); END");
    static struct broker_req reqs[9];
    static struct broker_added added[9];
    struct spec *specs[9];
    for (int i = 0; i < 9; i++) {
        SCOPED_JSON *json = json_pack("{s:[s], s:i}", "exec", "true", "priority", i == 4 ? 13 : 0);
        ck_assert_int_eq(spec_from_json(json, NULL, &specs[i], NULL), 0);
        reqs[i] = (struct broker_req){ .op = BROKER_ADD, .done = nothing };
        reqs[i].add.specs = (const struct spec *const *)&specs[i];
        reqs[i].add.count = 1;
        reqs[i].add.added = &added[i];
        broker_submit(broker, &reqs[i]);
    }
    close_broker(broker);
    for (int i = 0; i < 9; i++) {
        ck_assert_msg((reqs[i].status == 0) == (i != 4), "%d: %s", i, reqs[i].err.msg);
        (void)spec_free(specs[i]);
    }
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs"), 9);
}
END_TEST

TEST(the_log_shrinks_after_a_long_reader_has_gone) /* R81 */
{
    char wal[160];
    struct stat st;
    struct broker *broker = open_broker(true);
    (void)snprintf(wal, sizeof wal, "%s-wal", db_path);
    (void)add(broker, TRUE_JOB);
    sqlite3 *reader = NULL;
    ck_assert_int_eq(sqlite3_open(db_path, &reader), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM jobs", NULL, NULL, NULL),
                     SQLITE_OK);

    enum { COUNT = 1000 };
    static struct broker_added added[COUNT];
    static const struct spec *specs[COUNT];
    char long_text[2001] = "";
    memset(long_text, 'a', 2000);
    SCOPED_JSON *json = json_pack("{s:[s, s]}", "exec", "true", long_text);
    SCOPED(spec_free) struct spec *spec = NULL;
    ck_assert_int_eq(spec_from_json(json, NULL, &spec, NULL), 0);
    for (int i = 0; i < COUNT; i++)
        specs[i] = spec;
    do {
        struct broker_req req = { .op = BROKER_ADD };
        req.add.specs = specs;
        req.add.count = COUNT;
        req.add.added = added;
        ask_ok(broker, &req);
        ck_assert_int_eq(stat(wal, &st), 0);
    } while (st.st_size < (off_t)20 << 20);
    ck_assert_int_eq(sqlite3_exec(reader, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(reader), SQLITE_OK);

    (void)add(broker, TRUE_JOB); /* then it is quiet */
    int64_t deadline = clock_mono_ms() + 60000;
    do {
        ck_assert_int_eq(stat(wal, &st), 0);
        ck_assert_msg(clock_mono_ms() < deadline, "the log still has %lld bytes",
                      (long long)st.st_size);
        (void)recover(broker); /* the polls of an idle worker do not count as writing */
    } while (st.st_size > WAL_LIMIT_BYTES);
    close_broker(broker);
}
END_TEST

/* ---- several processes on one file ---- */

static pid_t spawn(void (*run)(int number, int ack_fd), int number, int ack_fd)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        ck_assert_int_eq(uv_loop_init(&loop), 0); /* the parent's loop is never used here */
        run(number, ack_fd);
        _exit(0);
    }
    return pid;
}

static void tell(int fd, char kind, int64_t id, int64_t attempt)
{
    char line[64];
    int n = snprintf(line, sizeof line, "%c %" PRId64 " %" PRId64 "\n", kind, id, attempt);
    if (write(fd, line, (size_t)n) != n) /* shorter than PIPE_BUF: whole or not at all */
        _exit(1);
}

static void run_adder(int number, int ack_fd)
{
    struct broker *broker = open_broker(false);
    for (;;)
        tell(ack_fd, 'a', add(broker, TRUE_JOB), 0);
}

/* A live worker never loses a job: when it does, what became of the job is the clue. */
static void expect_settled(struct broker *broker, struct broker_req *settle)
{
    if (ask(broker, settle) == 0)
        return;
    struct broker_req show = { .op = BROKER_SHOW };
    show.show.id = settle->settle.id;
    ask_ok(broker, &show);
    SCOPED_JSON *record = show.show.record;
    SCOPED_FREE char *text = json_text(record);
    ck_abort_msg("%s: the job is now %s; integrity_check is %s", settle->err.msg, text,
                 sql("SELECT integrity_check='ok' FROM pragma_integrity_check") == 1 ? "ok"
                                                                                     : "NOT ok");
}

static void run_worker(int number, int ack_fd)
{
    int fd;
    char name[32];
    (void)snprintf(name, sizeof name, "w%d-%d", number, (int)getpid());
    struct broker *broker = open_worker(name, &fd);
    for (int round = 0;; round++) {
        struct lease got[4];
        size_t count = lease(broker, got, 4);
        for (size_t i = 0; i < count; i++) {
            struct broker_req req = { .op = BROKER_START };
            req.start.id = got[i].id;
            req.start.attempt = got[i].attempt;
            ask_ok(broker, &req);
            tell(ack_fd, 's', atoll(got[i].id), req.start.attempt);
            struct broker_req settle = { .op = BROKER_SETTLE };
            settle.settle.id = got[i].id;
            settle.settle.attempt = req.start.attempt;
            settle.settle.plan = completed;
            expect_settled(broker, &settle);
            tell(ack_fd, 'e', atoll(got[i].id), req.start.attempt);
            lease_done(&got[i]);
        }
        if (round % 8 == 0)
            (void)recover(broker);
    }
}

#define SEEN_MAX 200000
static unsigned char *seen_added, *seen_ended;
static int *seen_start, seen_adds, seen_ends;

/* Read what the processes told so far; no job may start twice with one token, and none may end twice. */
static void hear(FILE *acks, int64_t until_ms)
{
    char kind;
    int64_t id, attempt;
    while (clock_mono_ms() < until_ms &&
           fscanf(acks, "%c %" SCNd64 " %" SCNd64 "\n", &kind, &id, &attempt) == 3) {
        ck_assert_int_lt(id, SEEN_MAX);
        if (kind == 'a') {
            ck_assert_msg(!seen_added[id], "id %" PRId64 " was given twice", id);
            seen_added[id] = 1;
            seen_adds++;
        } else if (kind == 's') {
            ck_assert_msg(attempt > seen_start[id],
                          "token %" PRId64 " of job %" PRId64 " was given twice", attempt, id);
            seen_start[id] = (int)attempt;
        } else {
            ck_assert_msg(!seen_ended[id], "job %" PRId64 " was settled twice", id);
            seen_ended[id] = 1;
            seen_ends++;
        }
    }
}

/* R56, R60, I8. */
TEST(nothing_acknowledged_is_lost_and_nothing_runs_twice_while_processes_are_killed)
{
    enum { ADDERS = 2, WORKERS = 3, ROUNDS = 24 };
    int pipe_fds[2];
    pid_t pids[ADDERS + WORKERS];
    seen_added = calloc(SEEN_MAX, 1);
    seen_ended = calloc(SEEN_MAX, 1);
    seen_start = calloc(SEEN_MAX, sizeof *seen_start);
    close_broker(open_broker(false));
    ck_assert_int_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
    FILE *acks = fdopen(pipe_fds[0], "r");

    for (int i = 0; i < ADDERS + WORKERS; i++)
        pids[i] = spawn(i < ADDERS ? run_adder : run_worker, i, pipe_fds[1]);
    /* more rounds on a machine that is too slow to do much in one */
    for (int round = 0; round < ROUNDS || seen_adds <= 100 || seen_ends <= 20; round++) {
        hear(acks, clock_mono_ms() + 120);
        int victim = round % (ADDERS + WORKERS);
        ck_assert_int_eq(kill(pids[victim], SIGKILL), 0);
        int status;
        ck_assert_int_eq(waitpid(pids[victim], &status, 0), pids[victim]);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
                      "process %d ended by itself: %x", victim, status);
        pids[victim] = spawn(victim < ADDERS ? run_adder : run_worker, victim, pipe_fds[1]);
    }
    for (int i = 0; i < ADDERS + WORKERS; i++) {
        ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
        ck_assert_int_eq(waitpid(pids[i], NULL, 0), pids[i]);
    }
    ck_assert_int_eq(close(pipe_fds[1]), 0);
    hear(acks, INT64_MAX);

    int fd;
    struct broker *last = open_worker("last", &fd);
    (void)recover(last);
    ck_assert_int_eq(sql("SELECT count(*) FROM jobs WHERE state=2"), 0);
    ck_assert_int_eq(sql("SELECT count(*) FROM workers"), 1);
    expect_sound();
    int64_t added = 0, ended = 0;
    for (int64_t id = 0; id < SEEN_MAX; id++) {
        char text[128];
        added += seen_added[id];
        ended += seen_ended[id];
        if (!seen_added[id] && !seen_ended[id])
            continue;
        (void)snprintf(text, sizeof text, "SELECT state FROM jobs WHERE id=%" PRId64, id);
        if (id % 16 == 0 || seen_ended[id])
            ck_assert_msg(seen_ended[id] ? sql(text) == JOB_COMPLETED : sql(text) >= 0,
                          "job %" PRId64 " is lost", id);
    }
    (void)printf("%" PRId64 " added, %" PRId64 " ended in the presence of %d kills\n", added, ended,
                 ROUNDS);
    ck_assert_int_gt(added, 100);
    ck_assert_int_gt(ended, 20);
    ck_assert_int_ge(sql("SELECT count(*) FROM jobs"), added);
    (void)fclose(acks);
    close_broker(last);
    free(seen_added);
    free(seen_ended);
    free(seen_start);
}
END_TEST

static void run_flood(int number, int ack_fd)
{
    struct broker *broker = open_broker(false);
    for (;;)
        (void)add(broker, TRUE_JOB);
}

TEST(nobody_starves_beside_back_to_back_writers)
{
    pid_t pids[3];
    close_broker(open_broker(false));
    for (int i = 0; i < 3; i++)
        pids[i] = spawn(run_flood, i, -1);
    struct broker *broker = open_broker(false);
    while (sql("SELECT count(*) FROM jobs") < 10) /* they are at it */
        ;
    int64_t worst = 0;
    for (int i = 0; i < 200; i++) {
        int64_t since = clock_mono_ns();
        (void)add(broker, TRUE_JOB);
        worst = MAX(worst, clock_mono_ns() - since);
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
        ck_assert_int_eq(waitpid(pids[i], NULL, 0), pids[i]);
    }
    (void)printf("worst of 200 adds beside 3 writers: %.1f ms\n", (double)worst / 1e6);
    close_broker(broker);
    expect_sound();
}
END_TEST

static void run_first(int number, int ack_fd)
{
    (void)add(open_broker(number % 2 != 0), TRUE_JOB);
}

TEST(first_opens_at_the_same_time_make_one_queue)
{
    pid_t pids[6];
    for (int round = 0; round < 5; round++) {
        (void)snprintf(db_path, sizeof db_path, "%s/q%d.db", dir, round);
        (void)snprintf(url, sizeof url, "sqlite:%s", db_path);
        for (int i = 0; i < 6; i++)
            pids[i] = spawn(run_first, i, -1);
        for (int i = 0; i < 6; i++) {
            int status;
            ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
            ck_assert_int_eq(status, 0);
        }
        ck_assert_int_eq(sql("SELECT count(*) FROM jobs"), 6);
    }
}
END_TEST

static void add_case(Suite *suite, const char *name, const TTest *const *tests)
{
    TCase *one = tcase_create(name);
    tcase_add_checked_fixture(one, setup, teardown);
    tcase_set_timeout(one, 600);
    for (; *tests != NULL; tests++)
        tcase_add_test(one, *tests);
    suite_add_tcase(suite, one);
}

int main(void)
{
    Suite *suite = suite_create("store");
    add_case(suite, "store",
             (const TTest *const[]){
                 everything_it_makes_is_for_the_owner_only,
                 no_descriptor_of_it_survives_an_exec,
                 a_newer_format_is_refused_with_the_versions_named,
                 a_database_of_another_program_is_refused_and_left_alone,
                 a_file_that_is_no_database_is_refused_by_name,
                 a_damaged_page_is_found_when_a_worker_opens,
                 places_that_cannot_hold_a_queue_are_named,
                 a_relative_path_and_a_symlink_lead_to_the_same_locks_and_data,
                 a_wall_clock_that_jumps_neither_hurries_nor_delays_a_job,
                 after_a_reboot_the_wall_clock_decides,
                 a_lease_that_ran_out_is_not_taken_while_its_worker_lives,
                 a_job_whose_giving_back_was_lost_is_there_again_when_its_lease_is_over,
                 a_started_job_is_never_given_back_by_the_clock,
                 who_waits_for_the_turn_of_a_stopped_process_is_told_who_that_is,
                 jobs_of_a_worker_from_before_a_reboot_are_recovered,
                 who_signs_off_with_a_started_job_stays_known_until_that_was_put_through,
                 a_started_row_without_a_worker_waits_for_the_lock_of_that_name,
                 a_row_left_active_by_nobody_is_recovered_when_its_lease_is_over,
                 retention_keeps_the_newest_and_removes_output_with_the_job,
                 retention_by_age_goes_on_without_settles,
                 retention_that_was_lifted_removes_nothing_any_more,
                 a_count_without_end_is_no_bound,
                 no_add_is_acknowledged_before_a_sync_that_began_after_it,
                 a_sync_that_fails_before_a_checkpoint_makes_the_log_suspect,
                 a_foreign_writer_delays_and_then_a_request_fails_with_a_reason_and_later_ones_work,
                 a_full_disk_fails_requests_whole_and_heals_when_there_is_space,
                 one_request_that_cannot_be_written_does_not_fail_its_neighbours,
                 the_log_shrinks_after_a_long_reader_has_gone,
                 NULL,
             });
    add_case(suite, "processes",
             (const TTest *const[]){
                 nothing_acknowledged_is_lost_and_nothing_runs_twice_while_processes_are_killed,
                 nobody_starves_beside_back_to_back_writers,
                 first_opens_at_the_same_time_make_one_queue,
                 NULL,
             });
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int count = srunner_ntests_failed(runner);
    srunner_free(runner);
    return count == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

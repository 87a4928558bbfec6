/* The feeder: stdin arrives whole, and never more than a chunk of it is in memory. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "lib/unit.h"
#include "stream/feeder.h"
#include "stream_rig.h"

static struct rig rig;
static struct feeder *feeder;
static bool over;
static int over_result;
static struct mandor_err over_err;

static void setup(void)
{
    rig_init(&rig);
    feeder = NULL;
    over = false;
}

static void teardown(void)
{
    rig_done(&rig);
}

static void on_end(void *arg, int result, const struct mandor_err *err)
{
    ck_assert(!over);
    over = true;
    over_result = result;
    if (err != NULL)
        over_err = *err;
}

/* Start feeding a pipe; returns its reading end. */
static int feed(const char *url)
{
    int fds[2];

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    int r = feeder_start(&rig.loop, url, fds[1], on_end, NULL, &feeder, &over_err);
    ck_assert_msg(r == 0, "%s", over_err.msg);
    ck_assert(!over);
    return fds[0];
}

static void make_file(char *url, size_t size, unsigned seed, int64_t len)
{
    (void)snprintf(url, size, "file:%s/in", rig.dir);
    int fd = open(url + 5, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    rig_write_stream(fd, seed, len);
    (void)close(fd);
}

/* Read to the end while the loop runs. */
static uint64_t read_all(int fd, int64_t *ret_len)
{
    static unsigned char bytes[100000];
    XXH3_state_t *hash = XXH3_createState();
    ssize_t n;

    (void)XXH3_64bits_reset(hash);
    *ret_len = 0;
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    while ((n = read(fd, bytes, sizeof bytes)) != 0) {
        if (n > 0) {
            XXH3_64bits_update(hash, bytes, (size_t)n);
            *ret_len += n;
        } else {
            ck_assert_int_eq(errno, EAGAIN);
            (void)uv_run(&rig.loop, UV_RUN_ONCE);
        }
    }
    uint64_t digest = XXH3_64bits_digest(hash);
    (void)XXH3_freeState(hash);
    (void)close(fd);
    return digest;
}

static const int64_t sizes[] = { 0, 1, 65535, 65536, 65537, 10 << 20 };

TEST_EACH(a_file_arrives_whole, ARRAY_LEN(sizes))
{
    char url[100];
    int64_t len;

    make_file(url, sizeof url, 5, sizes[_i]);
    int fd = feed(url);
    ck_assert_uint_eq(read_all(fd, &len), rig_hash(5, sizes[_i]));
    ck_assert_int_eq(len, sizes[_i]);
    rig_until(&rig, &over);
    ck_assert_int_eq(over_result, 0);
    feeder_close(feeder);
}

TEST(inline_text_arrives_as_it_is)
{
    char text[32] = "";

    int fd = feed("inline:a: b\n%20{}");
    rig_until(&rig, &over);
    ck_assert_int_eq(over_result, 0);
    ck_assert_int_eq(read(fd, text, sizeof text), 10);
    ck_assert_str_eq(text, "a: b\n%20{}");
    ck_assert_int_eq(read(fd, text, sizeof text), 0);
    (void)close(fd);
    feeder_close(feeder);
}

TEST(r114_a_job_that_does_not_read_stops_the_reading_of_the_source)
{
    char url[100];
    int64_t len;
    int waiting;

    make_file(url, sizeof url, 5, 50 << 20);
    int fd = feed(url);
    ck_assert_int_eq(fcntl(fd, F_GETPIPE_SZ), 65536);
    do { /* until it is full, and the rest is in the file */
        rig_turns(&rig, 20);
        ck_assert_int_eq(ioctl(fd, FIONREAD, &waiting), 0);
    } while (waiting < 65536);
    rig_turns(&rig, 50);
    ck_assert(!over);
    ck_assert_uint_eq(read_all(fd, &len), rig_hash(5, 50 << 20));
    rig_until(&rig, &over);
    feeder_close(feeder);
}

TEST(a_job_that_closes_its_stdin_is_no_error)
{
    char url[100], byte;
    int waiting;

    make_file(url, sizeof url, 5, 10 << 20);
    int fd = feed(url);
    do /* until it has filled the pipe and waits */
        rig_turns(&rig, 5);
    while (ioctl(fd, FIONREAD, &waiting) == 0 && waiting < 65536);
    ck_assert_int_eq(read(fd, &byte, 1), 1);
    (void)close(fd);
    rig_until(&rig, &over);
    ck_assert_int_eq(over_result, 0);
    feeder_close(feeder);
}

TEST_EACH(a_source_that_cannot_be_read_is_an_error_that_names_it, 3)
{
    static const struct {
        const char *name;
        int result;
    } cases[] = { { "absent", -ENOENT }, { "", -EISDIR }, { "fifo", -EINVAL } };
    char url[100], path[90];

    (void)snprintf(path, sizeof path, "%s/fifo", rig.dir);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    (void)snprintf(url, sizeof url, "file:%s/%s", rig.dir, cases[_i].name);
    int fd = feed(url);
    rig_until(&rig, &over);
    ck_assert_int_eq(over_result, cases[_i].result);
    ck_assert(strstr(over_err.msg, url + 5) != NULL);
    char byte;
    ck_assert_int_eq(read(fd, &byte, 1), 0); /* the pipe is closed by then */
    (void)close(fd);
    feeder_close(feeder);
}

TEST_EACH(a_feeder_can_be_closed_at_any_time, 6)
{
    char url[100];

    make_file(url, sizeof url, 5, 10 << 20);
    int fd = feed(url);
    for (int i = 0; i < _i; i++)
        rig_turns(&rig, 2 * i);
    feeder_close(feeder);
    rig_turns(&rig, 20);
    ck_assert(!over);
    (void)close(fd);
}

TEST(an_unknown_source_is_refused_and_its_pipe_closed)
{
    int fds[2];
    char byte;
    struct mandor_err err;

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(feeder_start(&rig.loop, "gopher:x", fds[1], on_end, NULL, &feeder, &err),
                     -EINVAL);
    ck_assert(strstr(err.msg, "gopher:x") != NULL && strstr(err.msg, "file:") != NULL);
    ck_assert_int_eq(read(fds[0], &byte, 1), 0);
    (void)close(fds[0]);
    ck_assert_int_eq(feeder_check_url("file:relative", &err), -EINVAL);
    ck_assert_int_eq(feeder_check_url("file:/a", &err), 0);
    ck_assert_int_eq(feeder_check_url("inline:", &err), 0);
}

TEST(r42_a_payload_goes_through_cat_both_ways)
{
    const int64_t len = 64 << 20;
    char url[100];
    int in[2], out[2];
    struct filter_stats stats;

    make_file(url, sizeof url, 5, len);
    rig_open(&rig, "null:", "stdout", &rig_defaults);
    ck_assert_int_eq(pipe2(in, O_CLOEXEC) + pipe2(out, O_CLOEXEC), 0);
    rig.child = fork();
    if (rig.child == 0) {
        (void)dup2(in[0], 0);
        (void)dup2(out[1], 1);
        (void)execlp("cat", "cat", (char *)NULL);
        _exit(127);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    ck_assert_int_eq(filter_adopt_pipe(rig.filter, out[0]), 0);
    ck_assert_int_eq(feeder_start(&rig.loop, url, in[1], on_end, NULL, &feeder, &over_err), 0);
    rig_until(&rig, &rig.ended);
    rig_until(&rig, &over);
    filter_stats(rig.filter, &stats);
    ck_assert_int_eq(stats.bytes, len);
    ck_assert_uint_eq(stats.xxh3, rig_hash(5, len));
    feeder_close(feeder);
    rig_settle(&rig, true);
}

UNIT_MAIN("feeder", .set_up = setup, .tear_down = teardown, .timeout_s = 300)

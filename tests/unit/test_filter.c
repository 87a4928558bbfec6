/* The process filter: every byte, in order, in bounded memory, whatever the job and the sink do. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "lib/unit.h"
#include "stream_rig.h"

static struct rig rig;

static void setup(void)
{
    rig_init(&rig);
}

static void teardown(void)
{
    rig_done(&rig);
}

struct job {
    unsigned seed;
    int64_t len;
};

static void write_job(int fd, const void *arg)
{
    const struct job *job = arg;

    rig_write_stream(fd, job->seed, job->len);
}

/* Run job into url and check what filter and sink say about it. */
static void carry(const char *url, const struct filter_options *options, int64_t len,
                  struct filter_stats *stats)
{
    struct job job = { .seed = 7, .len = len };

    rig_open(&rig, url, "stdout", options);
    rig_child(&rig, write_job, &job);
    rig_until(&rig, &rig.ended);
    ck_assert_msg(rig.result == 0, "%s", rig.err.msg);
    filter_stats(rig.filter, stats);
    ck_assert_int_eq(stats->bytes, len);
    ck_assert_int_eq(stats->discarded_bytes, 0);
    if (options->checksum)
        ck_assert_uint_eq(stats->xxh3, rig_hash(7, len));
    ck_assert(stats->has_xxh3 == options->checksum);
    ck_assert(len == 0 || rig.activity > 0);
}

static void check_file(const char *path, unsigned seed, int64_t len)
{
    size_t got;
    char *bytes = rig_read_file(path, &got);

    ck_assert_msg(bytes != NULL, "no file '%s'", path);
    ck_assert_int_eq((int64_t)got, len);
    ck_assert_uint_eq(XXH3_64bits(bytes, got), rig_hash(seed, len));
    free(bytes);
}

static const int64_t sizes[] = { 0,     1,     4095,   16384,  16385,   65535,
                                 65536, 65537, 262144, 262145, 1000003, 20 << 20 };

TEST_EACH(every_size_arrives_whole_in_a_file, ARRAY_LEN(sizes))
{
    struct filter_stats stats;
    char url[100], path[90];

    (void)snprintf(path, sizeof path, "%s/a/b/out", rig.dir);
    (void)snprintf(url, sizeof url, "file:%s", path);
    carry(url, &rig_defaults, sizes[_i], &stats);
    ck_assert(sink_publishes(rig.sink));
    ck_assert_str_eq(sink_target_text(rig.sink), path);
    rig_settle(&rig, true);
    ck_assert_int_eq(rig.finish_result, 0);
    check_file(path, 7, sizes[_i]);
    ck_assert_int_eq(rig_count_files(rig.dir), 1);
}

TEST_EACH(every_size_arrives_whole_by_splice, ARRAY_LEN(sizes))
{
    struct filter_options options = rig_defaults;
    struct filter_stats stats;
    char url[100], path[90];

    options.checksum = false;
    (void)snprintf(path, sizeof path, "%s/out", rig.dir);
    (void)snprintf(url, sizeof url, "file:%s", path);
    carry(url, &options, sizes[_i], &stats);
    if (sink_splice_fd(rig.sink) >= 0) /* not in memory: there it is slower and not used */
        ck_assert(stats.spliced == (sizes[_i] > 0));
    rig_settle(&rig, true);
    check_file(path, 7, sizes[_i]);
}

TEST_EACH(every_size_arrives_whole_under_auto, ARRAY_LEN(sizes))
{
    struct filter_options options = rig_defaults;
    struct filter_stats stats;
    size_t len;
    unsigned char tail[FILTER_CAPTURE];

    options.capture = true;
    carry("auto:", &options, sizes[_i], &stats);
    bool spilled = sizes[_i] > (int64_t)SINK_INLINE_MAX;
    ck_assert(sink_publishes(rig.sink) == spilled);
    ck_assert(sink_commits_always(rig.sink));

    ck_assert_uint_eq(stats.tail_len, (size_t)MIN(sizes[_i], (int64_t)FILTER_CAPTURE));
    rig_bytes(7, sizes[_i] - (int64_t)stats.tail_len, tail, stats.tail_len);
    ck_assert(stats.tail_len == 0 || memcmp(stats.tail, tail, stats.tail_len) == 0);

    char path[100];
    (void)snprintf(path, sizeof path, "%s/data/output/job/1.stdout", rig.dir);
    if (spilled) {
        ck_assert_ptr_null(sink_inline(rig.sink, &len));
        ck_assert_str_eq(sink_target_text(rig.sink), path);
        ck_assert_int_eq(access(path, F_OK), -1);
        rig_settle(&rig, true);
        check_file(path, 7, sizes[_i]);
    } else {
        const void *bytes = sink_inline(rig.sink, &len);
        ck_assert_uint_eq(len, (size_t)sizes[_i]);
        ck_assert_uint_eq(XXH3_64bits(bytes, len), rig_hash(7, sizes[_i]));
        rig_settle(&rig, true);
        ck_assert_int_eq(rig_count_files(rig.dir), 0);
    }
}

TEST_EACH(every_size_arrives_whole_in_a_sink_that_is_only_written_to, ARRAY_LEN(sizes))
{
    struct filter_stats stats;

    carry(NULL, &rig_defaults, sizes[_i], &stats);
    ck_assert_int_eq(rig.fake.bytes, sizes[_i]);
    ck_assert_uint_eq(XXH3_64bits_digest(rig.fake.hash), rig_hash(7, sizes[_i]));
    ck_assert_uint_le(rig.fake.largest_write, FILTER_HIGH);
    rig_settle(&rig, true);
    ck_assert(rig.fake.committed && rig.fake.freed);
}

TEST_EACH(null_takes_all_and_the_checksum_is_that_of_the_bytes, ARRAY_LEN(sizes))
{
    struct filter_stats stats;

    carry("null:", &rig_defaults, sizes[_i], &stats);
    rig_settle(&rig, true);
}

TEST(all_byte_values_pass_unchanged)
{
    unsigned char all[256];
    size_t len;

    for (int i = 0; i < 256; i++)
        all[i] = (unsigned char)i;
    struct filter_options options = rig_defaults;
    options.frame = FRAME_LINES;
    rig_open(&rig, "auto:", "stdout", &options);
    int fd = rig_pipe(&rig);
    rig_write(fd, all, sizeof all);
    (void)close(fd);
    rig_until(&rig, &rig.ended);
    const void *bytes = sink_inline(rig.sink, &len);
    ck_assert_uint_eq(len, 256);
    ck_assert_mem_eq(bytes, all, 256);
    rig_settle(&rig, true);
}

static void until_paused(struct filter_stats *ret_stats)
{
    for (*ret_stats = (struct filter_stats){ 0 }; ret_stats->pauses == 0;) {
        (void)uv_run(&rig.loop, UV_RUN_ONCE);
        filter_stats(rig.filter, ret_stats);
    }
}

TEST(a_slow_sink_pauses_the_stream_and_blocks_the_writer)
{
    struct job job = { .seed = 7, .len = 4 << 20 };
    struct filter_stats stats;

    rig.fake.hold_writes = true;
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    rig_child(&rig, write_job, &job);
    until_paused(&stats);
    rig_turns(&rig, 200); /* more of it would come now */
    filter_stats(rig.filter, &stats);
    ck_assert_int_le(stats.bytes, (int64_t)FILTER_HIGH);
    ck_assert_int_eq(stats.pauses, 1);
    ck_assert_int_eq(rig.fake.bytes, 0);

    while (!rig.ended) { /* one write at a time, until all is through */
        if (rig.fake.held != NULL)
            fake_sink_release(&rig.fake);
        (void)uv_run(&rig.loop, UV_RUN_ONCE);
    }
    filter_stats(rig.filter, &stats);
    ck_assert_int_gt(stats.paused_ms, 0);
    ck_assert_uint_eq(XXH3_64bits_digest(rig.fake.hash), rig_hash(7, job.len));
    ck_assert_uint_le(rig.fake.largest_write, FILTER_HIGH);
    rig_settle(&rig, true);
}

static int64_t cpu_ms(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec * 1000 + usage.ru_utime.tv_usec / 1000 +
           usage.ru_stime.tv_sec * 1000 + usage.ru_stime.tv_usec / 1000;
}

TEST(r51_a_hang_up_behind_a_paused_stream_does_not_spin)
{
    struct job job = { .seed = 7,
                       .len = (int64_t)FILTER_HIGH + 60000 }; /* 60,000 stay in the pipe */

    rig.fake.hold_writes = true;
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    rig_child(&rig, write_job, &job);
    struct filter_stats stats;
    until_paused(&stats);
    rig_reap(&rig); /* it has gone: the pipe hangs up */
    int64_t cpu = cpu_ms();
    rig_turns(&rig, 500);
    ck_assert_int_lt(cpu_ms() - cpu, 100);

    rig.fake.hold_writes = false; /* R52: and what was left in the pipe is there */
    fake_sink_release(&rig.fake);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.fake.bytes, job.len);
    ck_assert_uint_eq(XXH3_64bits_digest(rig.fake.hash), rig_hash(7, job.len));
    rig_settle(&rig, true);
}

static void burst(int fd, const void *arg)
{
    rig_write_stream(fd, 7, 65536);
}

TEST(r43_the_tail_of_a_job_that_exits_at_once_is_not_lost)
{
    for (int round = 0; round < 100; round++) {
        if (round > 0)
            rig_init(&rig);
        rig.fake.hold_writes = true;
        rig_open(&rig, NULL, "stdout", &rig_defaults);
        rig_child(&rig, burst, NULL);
        rig_reap(&rig); /* exited before anything was read */
        filter_drain(rig.filter, 500, 10000, NULL);
        filter_finish(rig.filter);
        while (!rig.ended) {
            (void)uv_run(&rig.loop, UV_RUN_ONCE);
            if (rig.fake.held != NULL)
                fake_sink_release(&rig.fake);
        }
        ck_assert_int_eq(rig.fake.bytes, 65536);
        ck_assert_uint_eq(XXH3_64bits_digest(rig.fake.hash), rig_hash(7, 65536));
        rig_settle(&rig, true);
        if (round < 99)
            rig_done(&rig);
    }
}

TEST(a_descendant_that_holds_the_pipe_does_not_hold_the_stream)
{
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    int64_t begin = clock_mono_ms();
    int fd = rig_pipe(&rig); /* the test is the descendant */
    rig_write(fd, "said", 4);
    rig_end(&rig); /* long before the drain's cap, which no test outlasts */
    ck_assert_int_ge(clock_mono_ms() - begin, 500); /* it was given its idle time */
    ck_assert_int_eq(rig.result, 0);
    ck_assert_int_eq(rig.fake.bytes, 4);
    (void)close(fd);
    rig_settle(&rig, true);
}

TEST(drain_goes_on_while_bytes_come_until_its_cap)
{
    enum { IDLE_MS = 700, CAP_MS = 2000 };
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    int fd = rig_pipe(&rig);
    int64_t begin = clock_mono_ms(), last = begin, gap = 0, sent = 0;
    filter_drain(rig.filter, IDLE_MS, CAP_MS, rig_on_drained);
    while (!rig.drained) {
        rig_write(fd, "x", 1);
        sent++;
        rig_turns(&rig, 20);
        gap = MAX(gap, clock_mono_ms() - last);
        last = clock_mono_ms();
    }
    if (gap < IDLE_MS / 2) /* else the machine stood still, and that was silence */
        ck_assert_int_ge(clock_mono_ms() - begin, CAP_MS);
    filter_finish(rig.filter);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.fake.bytes, sent);
    (void)close(fd);
    rig_settle(&rig, true);
}

TEST(drain_is_over_at_once_at_end_of_file)
{
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    rig_child(&rig, burst, NULL);
    rig_reap(&rig);
    filter_drain(rig.filter, 600000, 600000, rig_on_drained); /* longer than a test may take */
    rig_until(&rig, &rig.drained);
    filter_finish(rig.filter);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.fake.bytes, 65536);
    rig_settle(&rig, true);
}

TEST(finish_reads_what_the_pipe_holds_and_does_not_wait_for_its_end)
{
    static char bytes[60000];

    rig_open(&rig, NULL, "stdout", &rig_defaults);
    int fd = rig_pipe(&rig);
    rig_write(fd, bytes, sizeof bytes);
    filter_finish(rig.filter);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.fake.bytes, (int64_t)sizeof bytes);
    (void)close(fd);
    rig_settle(&rig, true);
}

TEST_EACH(r50_over_output_max_the_stream_fails_and_keeps_the_head, 3)
{
    struct job job = { .seed = 7, .len = (int64_t)64 << 20 };
    struct filter_options options = rig_defaults;
    const char *urls[] = { NULL, "null:", "file" };
    char url[100], path[90];
    struct filter_stats stats;

    options.output_max = 1000000;
    options.output_policy = OUTPUT_KILL;
    (void)snprintf(path, sizeof path, "%s/out", rig.dir);
    (void)snprintf(url, sizeof url, "file:%s", path);
    rig_open(&rig, _i == 2 ? url : urls[_i], "stdout", &options);
    rig_child(&rig, write_job, &job);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.result, -EFBIG);
    ck_assert(strstr(rig.err.msg, "output_max") != NULL);
    rig_reap(&rig); /* killed by SIGPIPE: nobody reads on */
    filter_stats(rig.filter, &stats);
    ck_assert_int_eq(stats.bytes - stats.discarded_bytes, 1000000);
    ck_assert_uint_eq(stats.xxh3, rig_hash(7, 1000000));
    rig_settle(&rig, true);
    if (_i == 2)
        check_file(path, 7, 1000000);
}

TEST_EACH(r50_discard_reads_on_and_keeps_head_and_tail, 3)
{
    struct job job = { .seed = 7, .len = (int64_t)8 << 20 };
    struct filter_options options = rig_defaults;
    const char *urls[] = { NULL, "null:", "file" };
    char url[100], path[90];
    struct filter_stats stats;
    static unsigned char tail[FILTER_CAPTURE];

    options.output_max = 1000000;
    options.output_policy = OUTPUT_DISCARD;
    options.capture = true;
    (void)snprintf(path, sizeof path, "%s/out", rig.dir);
    (void)snprintf(url, sizeof url, "file:%s", path);
    rig_open(&rig, _i == 2 ? url : urls[_i], "stdout", &options);
    rig_child(&rig, write_job, &job);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.result, 0);
    filter_stats(rig.filter, &stats);
    ck_assert_int_eq(stats.bytes, job.len);
    ck_assert_int_eq(stats.discarded_bytes, job.len - 1000000);
    ck_assert_uint_eq(stats.xxh3, rig_hash(7, 1000000));
    ck_assert_uint_eq(stats.tail_len, FILTER_CAPTURE);
    rig_bytes(7, job.len - (int64_t)sizeof tail, tail, sizeof tail);
    ck_assert_mem_eq(stats.tail, tail, sizeof tail);
    rig_settle(&rig, true);
    if (_i == 2)
        check_file(path, 7, 1000000);
}

TEST(a_sink_that_stalls_ends_the_stream_and_frees_itself_when_it_returns)
{
    struct filter_options options = rig_defaults;

    options.sink_timeout_ms = 150;
    rig.fake.hold_writes = true;
    rig_open(&rig, NULL, "stdout", &options);
    int fd = rig_pipe(&rig);
    rig_write(fd, "x", 1);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.result, -ETIMEDOUT);
    ck_assert_int_eq(write(fd, "x", 1), -1); /* the source was closed */
    rig_settle(&rig, false);                 /* nobody waits for the write */
    ck_assert_int_eq(rig.finish_result, 0);
    ck_assert(!rig.fake.freed);

    fake_sink_release(&rig.fake); /* now it comes back */
    rig_turns(&rig, 20);
    ck_assert(rig.fake.aborted && rig.fake.freed && !rig.fake.committed);
    (void)close(fd);
}

TEST(a_sink_that_does_not_open_in_time_ends_the_stream)
{
    struct filter_options options = rig_defaults;

    options.sink_timeout_ms = 100;
    rig.fake.hold_open = true;
    rig_open(&rig, NULL, "stdout", &options);
    int fd = rig_pipe(&rig);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.result, -ETIMEDOUT);
    rig_settle(&rig, false);
    fake_sink_release(&rig.fake);
    rig_turns(&rig, 20);
    ck_assert(rig.fake.freed);
    (void)close(fd);
}

TEST(a_failed_write_ends_the_stream_with_the_sinks_error)
{
    struct job job = { .seed = 7, .len = (int64_t)4 << 20 };

    rig.fake.fail_write_with = -ENOSPC;
    rig.fake.fail_after = 100000;
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    rig_child(&rig, write_job, &job);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.result, -ENOSPC);
    rig_settle(&rig, false);
    ck_assert(rig.fake.aborted);
}

TEST(bytes_that_come_before_the_sink_is_open_wait_for_it)
{
    rig.fake.hold_open = true;
    rig.fake.keep = true;
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    int fd = rig_pipe(&rig);
    rig_write(fd, "early", 5);
    (void)close(fd);
    rig_turns(&rig, 50);
    ck_assert(!rig.ended);
    fake_sink_release(&rig.fake);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.fake.bytes, 5);
    ck_assert_mem_eq(rig.fake.got.data, "early", 5);
    rig_settle(&rig, true);
}

TEST(a_torn_binary_frame_is_an_error_that_names_its_place_and_its_bytes_are_kept)
{
    struct filter_options options = rig_defaults;
    static const char bytes[] = "\0\0\0\3abc\0\0\0\5de";

    options.frame = FRAME_U32BE;
    rig_open(&rig, NULL, "stdout", &options);
    int fd = rig_pipe(&rig);
    rig_write(fd, bytes, sizeof bytes - 1);
    (void)close(fd);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.result, -EPROTO);
    ck_assert_msg(strstr(rig.err.msg, "byte 7") != NULL, "%s", rig.err.msg);
    ck_assert_int_eq(rig.fake.bytes, (int64_t)sizeof bytes - 1);
    rig_settle(&rig, false);
}

static void write_lines(int fd, const void *arg)
{
    static char lines[64000];

    for (size_t i = 0; i < sizeof lines; i++)
        lines[i] = i % 64 == 63 ? '\n' : 'x';
    for (int i = 0; i < 300; i++)
        rig_write(fd, lines, sizeof lines);
    rig_write(fd, "tail", 4);
}

TEST_EACH(lines_are_counted_on_the_loop_and_on_the_pool, 2)
{
    struct filter_options options = rig_defaults;
    struct filter_stats stats;

    options.frame = FRAME_LINES;
    rig_open(&rig, _i == 0 ? NULL : "null:", "stdout", &options);
    rig_child(&rig, write_lines, NULL);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.result, 0);
    filter_stats(rig.filter, &stats);
    ck_assert_int_eq(stats.frames, 300 * 1000 + 1);
    ck_assert_int_eq(stats.bytes, 300 * 64000 + 4);
    rig_settle(&rig, true);
}

/* A gate of the child's: what it does before and after that somebody has seen the first of it. */
static int gate[2];

static void gate_make(void)
{
    ck_assert_int_eq(pipe2(gate, O_CLOEXEC), 0);
}

static void gate_await(void)
{
    char byte;

    (void)close(gate[1]);
    (void)!read(gate[0], &byte, 1);
}

static void gate_open(void)
{
    (void)close(gate[0]);
    (void)close(gate[1]);
}

static void draw_progress(int fd, const void *arg)
{
    char text[32];

    for (int i = 1; i <= 200000; i++) {
        if (i == 2)
            gate_await();
        int len = snprintf(text, sizeof text, "frame=%d\r", i);
        rig_write(fd, text, (size_t)len);
    }
}

TEST(r49_progress_without_newlines_is_seen_and_costs_no_memory)
{
    struct filter_options options = rig_defaults;
    struct filter_stats stats;

    options.frame = FRAME_LINES;
    rig_open(&rig, NULL, "stdout", &options);
    gate_make();
    rig_child(&rig, draw_progress, NULL);
    while (rig.progress_events == 0) /* while it draws, not at its end */
        (void)uv_run(&rig.loop, UV_RUN_ONCE);
    gate_open();
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.result, 0);
    ck_assert_int_gt(rig.progress_events, 1);
    ck_assert_str_eq(rig.progress, "frame=200000");
    filter_stats(rig.filter, &stats);
    ck_assert_uint_le(rig.fake.largest_write, FILTER_HIGH);
    rig_settle(&rig, true);
}

struct ear {
    struct follower follower;
    struct buf heard;
    int64_t bytes;
    bool over;
};

static void on_bytes(struct follower *follower, const void *bytes, size_t len)
{
    struct ear *ear = CONTAINER_OF(follower, struct ear, follower);

    ear->bytes += (int64_t)len;
    if (ear->heard.len < 1000000)
        BUG_ON(buf_add(&ear->heard, bytes, len) < 0);
}

static void on_end(struct follower *follower)
{
    CONTAINER_OF(follower, struct ear, follower)->over = true;
}

TEST(a_follower_gets_the_captured_tail_and_then_what_comes)
{
    struct filter_options options = rig_defaults;
    struct ear ear = { .follower = { .on_bytes = on_bytes, .on_end = on_end } };

    options.capture = true;
    rig_open(&rig, NULL, "stdout", &options);
    int fd = rig_pipe(&rig);
    rig_write(fd, "before ", 7);
    struct filter_stats stats = { 0 };
    while (stats.bytes < 7) {
        (void)uv_run(&rig.loop, UV_RUN_ONCE);
        filter_stats(rig.filter, &stats);
    }
    filter_follow(rig.filter, &ear.follower);
    ck_assert_uint_eq(ear.heard.len, 7);
    rig_write(fd, "after", 5);
    (void)close(fd);
    rig_until(&rig, &rig.ended);
    ck_assert(ear.over);
    ck_assert_str_eq(ear.heard.data, "before after");
    buf_done(&ear.heard);
    rig_settle(&rig, true);
}

#define FLOOD ((int64_t)64 << 20)

/* Half of it before somebody follows, as fast as it goes, however late that is; the other half afterwards. */
static void flood(int fd, const void *arg)
{
    static unsigned char bytes[65536];

    for (int64_t at = 0; at < FLOOD; at += (int64_t)sizeof bytes) {
        if (at == FLOOD / 2)
            gate_await();
        rig_bytes(7, at, bytes, sizeof bytes);
        rig_write(fd, bytes, sizeof bytes);
    }
}

TEST(a_follower_joins_a_stream_in_full_flood_without_a_gap)
{
    struct filter_options options = rig_defaults;
    struct ear ear = { .follower = { .on_bytes = on_bytes, .on_end = on_end } };
    struct filter_stats stats = { 0 };

    options.capture = true;
    rig_open(&rig, "null:", "stdout", &options);
    gate_make();
    rig_child(&rig, flood, NULL);
    while (stats.bytes < 8 << 20) {
        (void)uv_run(&rig.loop, UV_RUN_ONCE);
        filter_stats(rig.filter, &stats);
    }
    filter_follow(rig.filter, &ear.follower);
    gate_open();
    rig_until(&rig, &ear.over);
    rig_until(&rig, &rig.ended);

    int64_t first = FLOOD - ear.bytes; /* where it joined, if nothing is missing */
    unsigned char *expected = malloc(ear.heard.len);
    rig_bytes(7, first, expected, ear.heard.len);
    ck_assert_int_gt(ear.bytes, (int64_t)FILTER_CAPTURE);
    ck_assert(memcmp(ear.heard.data, expected, ear.heard.len) == 0);
    free(expected);
    buf_done(&ear.heard);
    filter_stats(rig.filter, &stats);
    ck_assert_uint_eq(stats.xxh3, rig_hash(7, FLOOD));
    rig_settle(&rig, true);
}

TEST(fed_bytes_are_taken_up_to_the_watermark_and_room_is_announced)
{
    static unsigned char bytes[1 << 20];

    rig_bytes(7, 0, bytes, sizeof bytes);
    rig.fake.hold_writes = true;
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    filter_on_room(rig.filter, rig_on_room);
    size_t at = filter_feed(rig.filter, bytes, sizeof bytes);
    ck_assert_uint_gt(at, 0);
    ck_assert_uint_le(at, FILTER_HIGH);
    while (at < sizeof bytes) {
        rig.room = false;
        while (!rig.room) {
            (void)uv_run(&rig.loop, UV_RUN_ONCE);
            if (rig.fake.held != NULL)
                fake_sink_release(&rig.fake);
        }
        size_t n = filter_feed(rig.filter, bytes + at, sizeof bytes - at);
        ck_assert_uint_gt(n, 0);
        at += n;
    }
    rig.fake.hold_writes = false;
    filter_feed_end(rig.filter);
    while (!rig.ended) {
        (void)uv_run(&rig.loop, UV_RUN_ONCE);
        if (rig.fake.held != NULL)
            fake_sink_release(&rig.fake);
    }
    ck_assert_int_eq(rig.fake.bytes, (int64_t)sizeof bytes);
    ck_assert_uint_eq(XXH3_64bits_digest(rig.fake.hash), rig_hash(7, sizeof bytes));
    rig_settle(&rig, true);
}

TEST(over_buffer_max_every_stream_keeps_to_the_tight_watermark)
{
    struct job job = { .seed = 7, .len = (int64_t)2 << 20 };
    struct filter_stats stats;

    filter_pool_close(rig.pool);
    BUG_ON(filter_pool_new(&rig.loop, 1, &rig.pool) != 0);
    rig.fake.hold_writes = true;
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    rig_child(&rig, write_job, &job);
    until_paused(&stats);
    rig_turns(&rig, 100);
    filter_stats(rig.filter, &stats);
    ck_assert_int_le(stats.bytes, (int64_t)FILTER_TIGHT);
    rig.fake.hold_writes = false;
    fake_sink_release(&rig.fake);
    rig_until(&rig, &rig.ended);
    ck_assert_int_eq(rig.fake.bytes, job.len);
    ck_assert_uint_le(rig.fake.largest_write, FILTER_TIGHT);
    rig_settle(&rig, true);
}

static bool other_first;

static void fill_one_then_the_other(int fd, const void *arg)
{
    const int *other = arg;

    rig_write_stream(other_first ? *other : fd, 7, 4 << 20);
    rig_write_stream(other_first ? fd : *other, 7, 4 << 20);
}

TEST_EACH(r41_four_mebibytes_on_one_pipe_and_then_on_the_other_both_arrive, 2)
{
    static struct rig other; /* the job's second stream, on a loop of its own */
    int fds[2];

    other_first = _i == 0;
    rig_init(&other);
    rig_open(&other, NULL, "stderr", &rig_defaults);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    rig_open(&rig, NULL, "stdout", &rig_defaults);
    rig_child(&rig, fill_one_then_the_other, &fds[1]);
    (void)close(fds[1]);
    ck_assert_int_eq(filter_adopt_pipe(other.filter, fds[0]), 0);
    while (!rig.ended || !other.ended) {
        (void)uv_run(&rig.loop, UV_RUN_NOWAIT);
        (void)uv_run(&other.loop, UV_RUN_NOWAIT);
    }
    ck_assert_uint_eq(XXH3_64bits_digest(rig.fake.hash), rig_hash(7, 4 << 20));
    ck_assert_uint_eq(XXH3_64bits_digest(other.fake.hash), rig_hash(7, 4 << 20));
    rig_settle(&rig, true);
    rig_settle(&other, true);
    rig_done(&other);
}

TEST_EACH(a_filter_can_be_closed_in_full_flood, 4)
{
    struct job job = { .seed = 7, .len = INT64_MAX / 2 };
    struct filter_options options = rig_defaults;
    struct filter_stats stats = { 0 };
    char url[100];

    options.checksum = _i % 2 == 0;
    (void)snprintf(url, sizeof url, "file:%s/out", rig.dir);
    rig_open(&rig, _i / 2 == 0 ? "null:" : url, "stdout", &options);
    rig_child(&rig, write_job, &job);
    while (stats.bytes < 4 << 20) {
        (void)uv_run(&rig.loop, UV_RUN_ONCE);
        filter_stats(rig.filter, &stats);
    }
    rig_settle(&rig, false); /* the child dies of SIGPIPE */
    ck_assert_int_eq(rig_count_files(rig.dir), 0);
}

UNIT_MAIN("filter", .set_up = setup, .tear_down = teardown, .timeout_s = 300)

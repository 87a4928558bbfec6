/* test_peer.c - one connection to a warm worker, against well-behaved and hostile ones: a socketpair whose far end is the test. */
#include <malloc.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/clock.h"
#include "lib/unit.h"
#include "pool/peer.h"
#include "pool/pool_int.h"
#include "pool/wire.h"

#define HELLO "{\"versions\":[1],\"name\":\"t\",\"sdk\":\"t/1\",\"credit\":8}"

static uv_loop_t loop;
static struct peer *peer;
static int far_end;
static struct {
    int hello, bye, ended, logs;
    int result;
    struct mandor_err err;
} seen;
static struct {
    int chunks_ended, done, rooms;
    size_t bytes;
    char error[64];
    bool take; /* at once, as a fast sink does */
} job_seen;
static struct peer_job job;

/* ---- the near side ---- */

static void on_hello(void *arg, const char *name, const char *sdk)
{
    seen.hello++;
}

static void on_log(void *arg, const char *level, const char *text)
{
    seen.logs++;
}

static void on_bye(void *arg, const char *reason)
{
    seen.bye++;
}

static void on_ended(void *arg, int result, const struct mandor_err *err)
{
    seen.ended++;
    seen.result = result;
    if (err != NULL)
        seen.err = *err;
}

static void on_chunk(void *arg, bool is_stderr, const void *bytes, size_t len)
{
    job_seen.bytes += len;
    if (job_seen.take)
        peer_job_took(&job, is_stderr, len);
}

static void on_chunk_end(void *arg, bool is_stderr)
{
    job_seen.chunks_ended++;
}

static void on_room(void *arg)
{
    job_seen.rooms++;
}

static void on_progress(void *arg, json_t *value)
{
}

static void on_done(void *arg, json_t *result, json_t *error)
{
    job_seen.done++;
    if (error != NULL)
        (void)snprintf(job_seen.error, sizeof job_seen.error, "%s",
                       json_string_value(json_object_get(error, "message")));
}

static const struct peer_job_events job_events = { .on_chunk = on_chunk,
                                                   .on_chunk_end = on_chunk_end,
                                                   .on_room = on_room,
                                                   .on_progress = on_progress,
                                                   .on_log = on_log,
                                                   .on_done = on_done };

static void open_peer(int64_t hello_ms, int64_t ping_ms)
{
    static const struct peer_events events = {
        .on_hello = on_hello, .on_log = on_log, .on_bye = on_bye, .on_ended = on_ended
    };
    struct peer_options options = {
        .pool = "p", .concurrency = 4, .hello_timeout_ms = hello_ms, .ping_interval_ms = ping_ms
    };
    int pair[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    far_end = pair[1];
    memset(&seen, 0, sizeof seen);
    memset(&job_seen, 0, sizeof job_seen);
    ck_assert_int_eq(peer_new(&loop, pair[0], &options, &events, NULL, &peer), 0);
}

static void close_peer(void)
{
    peer_close(peer, NULL, NULL);
    if (far_end >= 0)
        (void)close(far_end);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
}

static void setup(void)
{
    ck_assert_int_eq(uv_loop_init(&loop), 0);
}

static void teardown(void)
{
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* Run the loop until *what >= least. */
static void until(const int *what, int least)
{
    int64_t end_ms = clock_mono_ms() + 60000;

    while (*what < least && clock_mono_ms() < end_ms)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_int_ge(*what, least);
}

static void spin(int turns)
{
    while (turns-- > 0)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* ---- the far side ---- */

static void put(const void *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(far_end, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            return; /* the peer has closed: as it should */
        if (n > 0) {
            bytes = (const char *)bytes + n;
            len -= (size_t)n;
        }
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
}

/* A frame, whether or not it is legal. */
static size_t frame(unsigned char *out, unsigned type, unsigned flags, uint64_t number,
                    const void *payload, uint32_t len)
{
    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(len >> (8 * i));
    out[4] = (unsigned char)type;
    out[5] = (unsigned char)flags;
    out[6] = 1;
    out[7] = 0;
    for (int i = 0; i < 8; i++)
        out[8 + i] = (unsigned char)(number >> (8 * i));
    if (len > 0 && payload != NULL)
        memcpy(out + 16, payload, len);
    return 16 + len;
}

static void say(unsigned type, unsigned flags, uint64_t number, const char *text)
{
    static unsigned char bytes[70000];
    put(bytes, frame(bytes, type, flags, number, text, (uint32_t)strlen(text)));
}

static void greet(void)
{
    say(WIRE_HELLO, 0, 0, HELLO);
    until(&seen.hello, 1);
}

static void give(bool has_stdin)
{
    struct peer_task task = { .id = "j", .queue = "q", .attempt = 1, .has_stdin = has_stdin };
    ck_assert_int_eq(peer_give(peer, &task, &job, &job_events, NULL), 0);
}

/* How many bytes of frames wait for the far side; they are thrown away. */
static size_t drain_far(void)
{
    unsigned char bytes[4096];
    size_t sum = 0;
    ssize_t n;

    while ((n = recv(far_end, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
        sum += (size_t)n;
    return sum;
}

/* ---- the state table ---- */

TEST(every_worker_comes_to_its_end_from_every_state)
{
    for (int state = 0; state < WARM_STATES - 1; state++) {
        int at = state;
        for (int event = 0; event < WARM_EVENTS;
             event++) /* no move leads back to a state in which jobs are given */
            ck_assert(state <= WARM_READY ||
                      warm_next((enum warm_state)state, (enum warm_event)event) != WARM_READY);
        if (state != WARM_ENDING)
            at = warm_next((enum warm_state)at, WARM_EXITED);
        ck_assert_int_eq(at, WARM_ENDING);
        ck_assert_int_eq(warm_next((enum warm_state)at, WARM_EMPTY), WARM_GONE);
        ck_assert_str_ne(warm_state_name((enum warm_state)state), "");
    }
}

/* ---- the plain story ---- */

TEST(a_job_goes_and_its_result_comes)
{
    open_peer(60000, 0);
    greet();
    give(false);
    ck_assert_uint_gt(drain_far(), 32);
    say(WIRE_CHUNK, WIRE_STDOUT << 1, 1, "abc");
    say(WIRE_CHUNK, WIRE_STDOUT << 1 | 1, 1, "");
    say(WIRE_RESULT, 0, 1, "{\"n\":1}");
    until(&job_seen.done, 1);
    ck_assert_uint_eq(job_seen.bytes, 3);
    ck_assert_int_eq(job_seen.chunks_ended, 1);
    say(WIRE_BYE, 0, 0, "{}");
    until(&seen.bye, 1);
    (void)shutdown(far_end, SHUT_WR);
    until(&seen.ended, 1);
    ck_assert_int_eq(seen.result, 0);
    close_peer();
}

/* R55 */
TEST(frames_that_come_byte_by_byte_and_a_hundred_at_once_are_the_same)
{
    static unsigned char bytes[70000];
    size_t len = 0;

    open_peer(60000, 0);
    len = frame(bytes, WIRE_HELLO, 0, 0, HELLO, sizeof HELLO - 1);
    for (size_t i = 0; i < len; i++)
        put(bytes + i, 1);
    until(&seen.hello, 1);
    len = 0;
    for (int i = 0; i < 100; i++)
        len += frame(bytes + len, WIRE_LOG, 0, 0, "{\"text\":\"x\"}", 12);
    put(bytes, len);
    until(&seen.logs, 100);
    put(bytes, 40); /* one, and half of another */
    until(&seen.logs, 101);
    (void)shutdown(far_end, SHUT_WR);
    until(&seen.ended, 1);
    ck_assert_int_eq(seen.result, -EPROTO);
    close_peer();
}

TEST(stdin_is_sent_within_credit_and_not_a_byte_more)
{
    open_peer(60000, 0);
    greet();
    give(true);
    ck_assert_uint_eq(peer_job_room(&job), 8);
    peer_job_stdin(&job, "12345678", 8, false);
    ck_assert_uint_eq(peer_job_room(&job), 0);
    say(WIRE_CREDIT, WIRE_STDIN << 1, 1, "{\"bytes\":5}");
    until(&job_seen.rooms, 1);
    ck_assert_uint_eq(peer_job_room(&job), 5);
    peer_job_stdin(&job, "1", 1, true);
    ck_assert_uint_eq(peer_job_room(&job), 0);
    close_peer();
}

TEST(credit_comes_back_as_the_sink_takes_and_not_before)
{
    static unsigned char bytes[70000];
    char *chunk = calloc(1, 65536);
    ck_assert_ptr_nonnull(chunk);

    open_peer(60000, 0);
    greet();
    give(false);
    (void)drain_far();
    for (int i = 0; i < 4; i++)
        put(bytes, frame(bytes, WIRE_CHUNK, WIRE_STDOUT << 1, 1, chunk, 65536));
    spin(20);
    ck_assert_uint_eq(job_seen.bytes, PEER_WINDOW);
    ck_assert_uint_eq(drain_far(), 0);
    peer_job_took(&job, false, PEER_WINDOW / 2);
    ck_assert_uint_gt(drain_far(), 16);
    ck_assert_int_eq(seen.ended, 0);
    for (int i = 0; i < 3; i++) /* 128 KiB of credit, 192 KiB are sent */
        put(bytes, frame(bytes, WIRE_CHUNK, WIRE_STDOUT << 1, 1, chunk, 65536));
    until(&seen.ended, 1);
    ck_assert_int_eq(seen.result, -EPROTO);
    ck_assert_uint_le(job_seen.bytes, PEER_WINDOW + PEER_WINDOW / 2);
    free(chunk);
    close_peer();
}

/* ---- silence, and who reads nothing ---- */

TEST(silence_instead_of_hello_ends_it)
{
    open_peer(20, 0);
    until(&seen.ended, 1);
    ck_assert_int_eq(seen.result, -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(seen.err.msg, "HELLO"));
    close_peer();
}

TEST(an_idle_worker_that_answers_no_ping_is_given_up_and_a_busy_one_is_not)
{
    open_peer(60000, 20);
    greet();
    give(false);
    int64_t until_ms = clock_mono_ms() + 150;
    while (clock_mono_ms() < until_ms)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_int_eq(seen.ended, 0);
    say(WIRE_RESULT, 0, 1, "1");
    until(&job_seen.done, 1);
    until(&seen.ended, 1);
    ck_assert_int_eq(seen.result, -ETIMEDOUT);
    close_peer();
}

TEST(who_sends_for_ever_and_reads_nothing_is_given_up_in_bounded_memory)
{
    static unsigned char bytes[70000];
    size_t len = 0, before = mallinfo2().uordblks;

    open_peer(60000, 0);
    greet();
    for (int i = 0; i < 1000; i++)
        len += frame(bytes + len, WIRE_PING, 0, 0, "{\"n\":1}", 7);
    for (int i = 0; i < 2000 && seen.ended == 0; i++)
        put(bytes, len);
    until(&seen.ended, 1);
    ck_assert_int_eq(seen.result, -EPROTO);
    ck_assert_uint_lt(mallinfo2().uordblks, before + ((size_t)4 << 20));
    close_peer();
}

TEST(a_job_that_the_dead_worker_had_not_read_is_known)
{
    open_peer(60000, 0);
    greet();
    (void)drain_far();
    give(false);
    (void)close(STEAL_FD(far_end)); /* the JOB is unread */
    until(&seen.ended, 1);
    ck_assert(peer_job_unread(peer, &job));
    peer_job_drop(&job);
    close_peer();

    open_peer(60000, 0);
    greet();
    give(false);
    (void)drain_far();
    (void)close(STEAL_FD(far_end));
    until(&seen.ended, 1);
    ck_assert(!peer_job_unread(peer, &job));
    close_peer();
}

TEST(a_job_that_was_not_even_sent_whole_is_unread_too)
{
    char *text = calloc(1, (4 << 20) + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, 'x', 4 << 20);
    json_t *data = json_string(text);
    struct peer_task task = { .id = "j", .queue = "q", .attempt = 1, .data = data };

    open_peer(60000, 0);
    greet();
    ck_assert_int_eq(peer_give(peer, &task, &job, &job_events, NULL), 0);
    (void)
        drain_far(); /* all that the socket held: closed now, it says end of file and not ECONNRESET */
    (void)close(STEAL_FD(far_end));
    until(&seen.ended, 1);
    ck_assert(peer_job_unread(peer, &job));
    close_peer();
    json_decref(data);
    free(text);
}

TEST(nothing_of_stdin_is_taken_for_a_worker_that_will_not_get_it)
{
    open_peer(60000, 0);
    greet();
    (void)close(STEAL_FD(far_end));
    give(true); /* it cannot be sent: another worker will get it, with all of its stdin */
    ck_assert_uint_eq(peer_job_room(&job), 0);
    until(&seen.ended, 1);
    ck_assert(peer_job_unread(peer, &job));
    close_peer();
}

/* R62 */
TEST(results_that_wait_in_the_socket_are_read_after_the_death)
{
    open_peer(60000, 0);
    greet();
    give(false);
    (void)drain_far();
    unsigned char bytes[64];
    size_t len = frame(bytes, WIRE_RESULT, 0, 1, "7", 1);
    ck_assert_int_eq(send(far_end, bytes, len, 0), (ssize_t)len);
    (void)close(STEAL_FD(far_end));
    peer_drain(peer);
    ck_assert_int_eq(job_seen.done, 1);
    ck_assert_int_eq(seen.ended, 1);
    ck_assert_int_eq(seen.result, 0);
    close_peer();
}

/* ---- hostility ---- */

TEST(a_result_of_too_many_values_is_refused_before_it_is_made)
{
    const uint32_t len = 2 * 300000 + 1;
    unsigned char *bytes = malloc(16 + len), *at = bytes + 16;
    ck_assert_ptr_nonnull(bytes);
    (void)frame(bytes, WIRE_RESULT, 0, 1, NULL, len);

    for (int commas_in_text = 0; commas_in_text < 2; commas_in_text++) {
        for (uint32_t i = 0; i < len; i++)
            at[i] = i % 2 == 0 ? ',' : '0';
        at[0] = commas_in_text ? '"' : '[';
        at[len - 1] = commas_in_text ? '"' : ']';
        open_peer(60000, 0);
        greet();
        give(false);
        put(bytes, 16 + len);
        until(commas_in_text ? &job_seen.done : &seen.ended, 1);
        ck_assert_int_eq(job_seen.done, commas_in_text);
        if (!commas_in_text)
            ck_assert_msg(strstr(seen.err.msg, "250000 values") != NULL, "%s", seen.err.msg);
        close_peer();
    }
    free(bytes);
}

static uint64_t random_state = 88172645463325252u;

static uint32_t rnd(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % below;
}

/* A frame that is legal in most of its parts, and seldom in all. */
static size_t strange_frame(unsigned char *out)
{
    static const char *const payloads[] = { "{}",
                                            "{\"bytes\":1}",
                                            "{\"bytes\":99999999999999999999}",
                                            "{\"n\":1}",
                                            "1",
                                            "[",
                                            "\xff",
                                            "{\"message\":\"m\"}",
                                            "{\"text\":\"t\"}",
                                            "{\"text\":7}",
                                            "",
                                            "null",
                                            HELLO };
    static const struct {
        unsigned type, flags;
        const char *payload;
    } good[] = {
        { WIRE_CHUNK, 2, "some bytes" },          { WIRE_CHUNK, 4, "others" },
        { WIRE_CREDIT, 0, "{\"bytes\":3}" },      { WIRE_PROGRESS, 0, "[1]" },
        { WIRE_LOG, 0, "{\"text\":\"t\"}" },      { WIRE_RESULT, 0, "{\"n\":1}" },
        { WIRE_ERROR, 0, "{\"message\":\"m\"}" },
    };
    uint32_t pick = rnd(ARRAY_LEN(good) * 2);
    if (pick < ARRAY_LEN(good) && job.peer != NULL)
        return frame(out, good[pick].type, good[pick].flags, job.number, good[pick].payload,
                     (uint32_t)strlen(good[pick].payload));
    const char *payload = payloads[rnd(ARRAY_LEN(payloads))];
    size_t len = frame(out, rnd(14), rnd(4) == 0 ? rnd(256) : rnd(3) << 1,
                       rnd(4) == 0 ? rnd(1000) : rnd(3), payload, (uint32_t)strlen(payload));

    if (rnd(8) == 0)
        out[rnd(16)] = (unsigned char)rnd(256);
    if (rnd(16) == 0)
        len = rnd((uint32_t)len + 1);
    return len;
}

TEST(no_sequence_of_frames_does_more_than_end_its_own_connection)
{
    static unsigned char bytes[70000];
    size_t before = mallinfo2().uordblks;
    int ended = 0, done = 0;

    for (int round = 0; round < 3000; round++) {
        open_peer(60000, 0);
        if (rnd(10) > 0)
            greet();
        for (int i = 0; i < 12 && seen.ended == 0; i++) {
            size_t len = 0;
            if (seen.hello > 0 && i % 4 == 0 && job.peer == NULL) {
                job_seen.take = rnd(2);
                give(rnd(2));
            }
            for (uint32_t n = rnd(3) + 1; n > 0; n--)
                len += strange_frame(bytes + len);
            put(bytes, len);
            spin(2);
        }
        ck_assert_int_le(seen.ended, 1);
        ck_assert(seen.ended == 0 || seen.result == 0 || seen.err.msg[0] != '\0');
        ended += seen.ended;
        done += job_seen.done;
        peer_job_drop(&job);
        job.peer = NULL;
        close_peer();
    }
    ck_assert_int_gt(ended, 1000);
    ck_assert_int_gt(done, 50);
    ck_assert_uint_lt(mallinfo2().uordblks, before + ((size_t)1 << 20));
}

TEST(random_bytes_end_the_connection_without_memory)
{
    static unsigned char bytes[70000];

    for (int round = 0; round < 300; round++) {
        open_peer(60000, 0);
        greet();
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)rnd(256);
        put(bytes, 1 + rnd(5000));
        until(&seen.ended, seen.ended || rnd(2)); /* a few bytes may be a beginning */
        spin(3);
        close_peer();
    }
}

UNIT_MAIN("peer", .set_up = setup, .tear_down = teardown, .timeout_s = 300)

/* libmandor-worker against mandor's side of the socket, played here frame by frame. */
#include "unit.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <mandor/worker.h>

#include "pool/wire.h"
#include "pool/wire_json.h"

#define DEADLINE_MS 60000

/* Mandor's end: a worker that runs in a child, and its frames as they come. */
struct mandor {
    int fd;
    pid_t pid;
    struct wire_decoder decoder;
    unsigned char in[4096];
    size_t start, len;
};

static void start(struct mandor *mandor, const struct mandor_worker_options *options,
                  mandor_handler *handler, void *arg)
{
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    *mandor = (struct mandor){ .fd = fds[0], .pid = fork() };
    ck_assert_int_ge(mandor->pid, 0);
    if (mandor->pid == 0) {
        struct mandor_worker_options with =
            options == NULL ? (struct mandor_worker_options){ 0 } : *options;
        (void)close(fds[0]);
        with.fd = fds[1];
        _exit(-mandor_worker_run_with(&with, handler, arg) & 0xff);
    }
    (void)close(fds[1]);
    wire_decoder_init(&mandor->decoder, WIRE_WORKER, false);
}

static void send_bytes(struct mandor *mandor, const void *bytes, size_t len)
{
    ck_assert_int_eq(send(mandor->fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
}

static void send_to(struct mandor *mandor, enum wire_type type, enum wire_stream stream, bool last,
                    uint64_t job, const char *payload)
{
    unsigned char header[WIRE_HEADER_SIZE];
    const size_t len = strlen(payload);

    ck_assert_int_eq(wire_encode(header, WIRE_MANDOR, type, stream, last, job, len), 0);
    send_bytes(mandor, header, sizeof header);
    if (len > 0)
        send_bytes(mandor, payload, len);
}

/* The next frame; false at the end of the connection. */
static bool next(struct mandor *mandor, struct wire_frame *ret)
{
    for (;;) {
        const unsigned char *at = mandor->in + mandor->start;
        int r = wire_decode(&mandor->decoder, &at, &mandor->len, ret);
        mandor->start = (size_t)(at - mandor->in);
        ck_assert_msg(r >= 0, "%s", mandor->decoder.error);
        if (r == 1)
            return true;

        struct pollfd poll_fd = { .fd = mandor->fd, .events = POLLIN };
        ck_assert_msg(poll(&poll_fd, 1, DEADLINE_MS) == 1, "the worker is silent");
        ssize_t n = recv(mandor->fd, mandor->in, sizeof mandor->in, 0);
        if (n <= 0) {
            ck_assert_int_eq(wire_decoder_end(&mandor->decoder), 0);
            return false;
        }
        mandor->start = 0;
        mandor->len = (size_t)n;
    }
}

static void expect(struct mandor *mandor, enum wire_type type, uint64_t job, const char *payload)
{
    struct wire_frame frame;

    ck_assert_msg(next(mandor, &frame), "the worker has closed, expected %s", wire_type_name(type));
    ck_assert_msg(frame.type == type && frame.job == job, "%s of job %d: %.*s",
                  wire_type_name(frame.type), (int)frame.job, (int)frame.len,
                  (const char *)frame.payload);
    ck_assert_msg(frame.len == strlen(payload) && memcmp(frame.payload, payload, frame.len) == 0,
                  "%s: %.*s, expected %s", wire_type_name(type), (int)frame.len,
                  (const char *)frame.payload, payload);
}

static void greet(struct mandor *mandor, const char *hello)
{
    struct wire_frame frame;

    ck_assert(next(mandor, &frame));
    ck_assert_int_eq(frame.type, WIRE_HELLO);
    send_to(mandor, WIRE_HELLO, 0, false, 0, hello);
}

#define HELLO(credit) "{\"version\":1,\"pool\":\"p\",\"concurrency\":1,\"credit\":" #credit "}"
#define A_JOB                                                                                    \
    "{\"id\":\"a\",\"queue\":\"q\",\"attempt\":1,\"data\":{\"x\":1},\"timeout_ms\":0,\"stdin\":" \
    "false}"
#define A_STDIN_JOB \
    "{\"id\":\"a\",\"queue\":\"q\",\"attempt\":1,\"data\":null,\"timeout_ms\":0,\"stdin\":true}"

/* The worker closes, and its run returned code. */
static void expect_end(struct mandor *mandor, int code)
{
    struct wire_frame frame;
    int status;

    ck_assert_msg(!next(mandor, &frame), "%s, expected the end", wire_type_name(frame.type));
    ck_assert_int_eq(waitpid(mandor->pid, &status, 0), mandor->pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == (-code & 0xff), "status 0x%x",
                  status);
    wire_decoder_done(&mandor->decoder);
    (void)close(mandor->fd);
}

static void finish(struct mandor *mandor)
{
    send_to(mandor, WIRE_BYE, 0, false, 0, "{}");
    expect_end(mandor, 0);
}

static int give_data(struct mandor_job *job, void *arg)
{
    return mandor_worker_result(job, mandor_worker_data(job));
}

static int write_ten(struct mandor_job *job, void *arg)
{
    return mandor_worker_write(job, MANDOR_WORKER_STDOUT, "0123456789", 10);
}

static int copy_stdin(struct mandor_job *job, void *arg)
{
    char bytes[3];
    ssize_t n;

    while ((n = mandor_worker_read(job, bytes, sizeof bytes)) > 0) {
        int r = mandor_worker_write(job, MANDOR_WORKER_STDERR, bytes, (size_t)n);
        if (r < 0)
            return r;
    }
    return (int)n;
}

TEST(hello_comes_first_and_says_who_and_how_much)
{
    struct mandor mandor;

    start(&mandor, &(struct mandor_worker_options){ .name = "re\"size", .credit = 99 }, give_data,
          NULL);
    expect(&mandor, WIRE_HELLO, 0,
           "{\"versions\":[1],\"name\":\"re\\\"size\",\"sdk\":\"c/" MANDOR_VERSION
           "\",\"concurrency\":1,\"credit\":99}");
    send_to(&mandor, WIRE_HELLO, 0, false, 0, HELLO(5));
    send_to(&mandor, WIRE_JOB, 0, false, 3, A_JOB);
    expect(&mandor, WIRE_RESULT, 3, "{\"x\":1}");
    finish(&mandor);
}

TEST(output_waits_for_slow_credit_and_is_exact)
{
    struct mandor mandor;

    start(&mandor, NULL, write_ten, NULL);
    greet(&mandor, HELLO(4));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_JOB);
    expect(&mandor, WIRE_CHUNK, 1, "0123");
    /* Of the other stream: changes nothing. */
    send_to(&mandor, WIRE_CREDIT, WIRE_STDERR, false, 1, "{\"bytes\":100}");
    send_to(&mandor, WIRE_PING, 0, false, 0, "{\"n\":8}");
    expect(&mandor, WIRE_PONG, 0, "{\"n\":8}");
    send_to(&mandor, WIRE_CREDIT, WIRE_STDOUT, false, 1, "{\"bytes\":1}");
    expect(&mandor, WIRE_CHUNK, 1, "4");
    send_to(&mandor, WIRE_CREDIT, WIRE_STDOUT, false, 1, "{\"bytes\":5}");
    expect(&mandor, WIRE_CHUNK, 1, "56789");
    expect(&mandor, WIRE_RESULT, 1, "null");
    finish(&mandor);
}

TEST(stdin_is_granted_as_it_is_read)
{
    struct mandor mandor;

    start(&mandor, &(struct mandor_worker_options){ .credit = 4 }, copy_stdin, NULL);
    greet(&mandor, HELLO(100));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_STDIN_JOB);
    send_to(&mandor, WIRE_CHUNK, WIRE_STDIN, false, 1, "abcd");
    expect(&mandor, WIRE_CREDIT, 1, "{\"bytes\":3}");
    expect(&mandor, WIRE_CHUNK, 1, "abc");
    expect(&mandor, WIRE_CHUNK, 1, "d"); /* one read byte is not worth a frame */
    send_to(&mandor, WIRE_CHUNK, WIRE_STDIN, true, 1, "ef");
    expect(&mandor, WIRE_CHUNK, 1, "ef");
    expect(&mandor, WIRE_RESULT, 1, "null");
    finish(&mandor);
}

TEST(stdin_beyond_credit_ends_the_worker)
{
    struct mandor mandor;

    start(&mandor, &(struct mandor_worker_options){ .credit = 4 }, copy_stdin, NULL);
    greet(&mandor, HELLO(100));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_STDIN_JOB);
    send_to(&mandor, WIRE_CHUNK, WIRE_STDIN, false, 1, "abcde");
    expect_end(&mandor, -EPROTO);
}

static int wait_for_stdin(struct mandor_job *job, void *arg)
{
    char byte;
    int r = mandor_worker_progress(job, "[1]");

    return r < 0 ? r : (int)mandor_worker_read(job, &byte, 1);
}

TEST(a_cancel_ends_a_wait_and_the_next_job_is_done)
{
    struct mandor mandor;

    start(&mandor, NULL, wait_for_stdin, NULL);
    greet(&mandor, HELLO(4));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_STDIN_JOB);
    expect(&mandor, WIRE_PROGRESS, 1, "[1]");
    send_to(&mandor, WIRE_CANCEL, 0, false, 1, "{\"reason\":\"timeout\",\"grace_ms\":100}");
    expect(&mandor, WIRE_ERROR, 1, "{\"message\":\"cancelled\"}");
    /* Crossed: discarded. */
    send_to(&mandor, WIRE_CANCEL, 0, false, 1, "{\"reason\":\"timeout\",\"grace_ms\":100}");
    send_to(&mandor, WIRE_JOB, 0, false, 2, A_JOB);
    expect(&mandor, WIRE_PROGRESS, 2, "[1]");
    expect(&mandor, WIRE_RESULT, 2, "null");
    finish(&mandor);
}

static int tell_reason(struct mandor_job *job, void *arg)
{
    char quoted[64];

    if (mandor_worker_cancel_reason(job) != NULL)
        return -EINVAL;
    if (mandor_worker_progress(job, "1") < 0)
        return -EIO;
    while (!mandor_worker_cancelled(job))
        (void)poll(NULL, 0, 1);
    (void)mandor_json_quote(mandor_worker_cancel_reason(job), quoted, sizeof quoted);
    return mandor_worker_result(job, quoted);
}

TEST(a_handler_that_asks_sees_the_cancel_and_why)
{
    struct mandor mandor;

    start(&mandor, NULL, tell_reason, NULL);
    greet(&mandor, HELLO(4));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_JOB);
    expect(&mandor, WIRE_PROGRESS, 1, "1");
    send_to(&mandor, WIRE_CANCEL, 0, false, 1, "{\"reason\":\"lost_lease\",\"grace_ms\":100}");
    expect(&mandor, WIRE_RESULT, 1, "\"lost_lease\"");
    finish(&mandor);
}

TEST(bye_during_a_job_lets_it_finish)
{
    struct mandor mandor;

    start(&mandor, NULL, copy_stdin, NULL);
    greet(&mandor, HELLO(4));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_STDIN_JOB);
    send_to(&mandor, WIRE_BYE, 0, false, 0, "{\"reason\":\"shutdown\"}");
    send_to(&mandor, WIRE_CHUNK, WIRE_STDIN, true, 1, "z");
    expect(&mandor, WIRE_CHUNK, 1, "z");
    expect(&mandor, WIRE_RESULT, 1, "null");
    expect_end(&mandor, 0);
}

TEST(half_a_frame_and_then_the_end_is_a_protocol_error)
{
    struct mandor mandor;

    start(&mandor, NULL, give_data, NULL);
    greet(&mandor, HELLO(4));
    send_bytes(&mandor, "\x07\0\0\0\x0a\0\x01", 7);
    ck_assert_int_eq(shutdown(mandor.fd, SHUT_WR), 0);
    expect_end(&mandor, -EPROTO);
}

TEST(frames_in_halves_are_put_together)
{
    static const char ping[] = "\x07\0\0\0\x0a\0\x01\0\0\0\0\0\0\0\0\0{\"n\":5}";
    struct mandor mandor;

    start(&mandor, NULL, give_data, NULL);
    greet(&mandor, HELLO(4));
    for (size_t cut = 1; cut < 23; cut++) {
        send_bytes(&mandor, ping, cut);
        send_bytes(&mandor, ping + cut, 23 - cut);
        expect(&mandor, WIRE_PONG, 0, "{\"n\":5}");
    }
    finish(&mandor);
}

TEST(a_closed_socket_ends_an_idle_worker_and_one_that_waits)
{
    struct mandor mandor;

    start(&mandor, NULL, give_data, NULL);
    greet(&mandor, HELLO(4));
    ck_assert_int_eq(shutdown(mandor.fd, SHUT_WR), 0);
    expect_end(&mandor, -EPIPE);

    start(&mandor, NULL, write_ten, NULL);
    greet(&mandor, HELLO(4));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_JOB);
    expect(&mandor, WIRE_CHUNK, 1, "0123");
    ck_assert_int_eq(shutdown(mandor.fd, SHUT_WR), 0);
    expect_end(&mandor, -EPIPE);
}

TEST(a_refusal_is_told_apart)
{
    struct mandor mandor;
    struct wire_frame frame;

    start(&mandor, NULL, give_data, NULL);
    ck_assert(next(&mandor, &frame));
    send_to(&mandor, WIRE_BYE, 0, false, 0, "{\"reason\":\"no common version\"}");
    expect_end(&mandor, -EPROTONOSUPPORT);
}

static int flood(struct mandor_job *job, void *arg)
{
    static char bytes[1 << 20];

    memset(bytes, 'x', sizeof bytes);
    return mandor_worker_write(job, MANDOR_WORKER_STDOUT, bytes, sizeof bytes);
}

TEST(a_full_socket_in_both_directions_does_not_stop_the_worker)
{
    struct mandor mandor;
    struct wire_frame frame;
    size_t bytes = 0;
    unsigned pongs = 0;

    start(&mandor, NULL, flood, NULL);
    greet(&mandor, HELLO(2000000));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_JOB);
    for (int i = 0; i < 100;
         i++) /* more than PONGs are noted at once, while nothing is read here */
        send_to(&mandor, WIRE_PING, 0, false, 0, "{\"n\":1}");
    bool ended = false;
    while (bytes < 1 << 20 || pongs < 100 || !ended) {
        ck_assert(next(&mandor, &frame));
        bytes += frame.type == WIRE_CHUNK ? frame.len : 0;
        pongs += frame.type == WIRE_PONG;
        ended |= frame.type == WIRE_RESULT;
        ck_assert(frame.type == WIRE_CHUNK || frame.type == WIRE_PONG || frame.type == WIRE_RESULT);
    }
    finish(&mandor);
}

static int misuse(struct mandor_job *job, void *arg)
{
    if (mandor_worker_result(job, "{\"a\":}") != -EINVAL ||
        mandor_worker_progress(job, "") != -EINVAL)
        return 1;
    if (mandor_worker_write(job, (enum mandor_worker_stream)0, "x", 1) != -EINVAL)
        return 2;
    if (mandor_worker_end(job, MANDOR_WORKER_STDOUT) != 0 ||
        mandor_worker_end(job, MANDOR_WORKER_STDOUT) != -EINVAL ||
        mandor_worker_write(job, MANDOR_WORKER_STDOUT, "x", 1) != -EINVAL)
        return 3;
    if (mandor_worker_run(misuse, NULL) != -EBUSY)
        return 4;
    return -ENOENT;
}

TEST(misuse_is_refused_and_an_errno_is_put_into_words)
{
    struct mandor mandor;

    start(&mandor, NULL, misuse, NULL);
    greet(&mandor, HELLO(10));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_JOB);
    expect(&mandor, WIRE_CHUNK, 1, "");
    expect(&mandor, WIRE_ERROR, 1,
           "{\"message\":\"the handler returned -2: No such file or directory\"}");
    finish(&mandor);
}

static int fail_long(struct mandor_job *job, void *arg)
{
    static char text[3 << 20];

    memset(text, '\x01', sizeof text - 1);
    (void)mandor_worker_log(job, "warn", text);
    return mandor_worker_fail_with(
        job, &(struct mandor_worker_failure){ .message = text, .traceback = text, .code = 3 });
}

TEST(long_texts_are_cut_to_what_a_frame_holds_and_stay_json)
{
    struct mandor mandor;
    struct wire_frame frame;
    struct wire_json value;
    uint64_t code;

    start(&mandor, NULL, fail_long, NULL);
    greet(&mandor, HELLO(10));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_JOB);
    ck_assert(next(&mandor, &frame));
    ck_assert_int_eq(frame.type, WIRE_LOG);
    ck_assert_uint_gt(frame.len, 300000);
    ck_assert_int_eq(wire_json_parse(frame.payload, frame.len, &value, NULL), 0);
    ck_assert(next(&mandor, &frame));
    ck_assert_int_eq(frame.type, WIRE_ERROR);
    ck_assert_int_eq(wire_json_parse(frame.payload, frame.len, &value, NULL), 0);
    ck_assert_int_eq(wire_json_uint(wire_json_member(value, "code"), 255, &code), 0);
    ck_assert_uint_eq(code, 3);
    finish(&mandor);
}

static int socket_number;

static int look_at_socket(struct mandor_job *job, void *arg)
{
    if (job != NULL)
        return mandor_worker_result(job, getenv("MANDOR_FD") == NULL &&
                                                 fcntl(socket_number, F_GETFD) == FD_CLOEXEC
                                             ? "true"
                                             : "false");
    return 0;
}

TEST(children_of_the_handler_cannot_reach_the_socket)
{
    struct mandor mandor;
    char number[16];
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    mandor = (struct mandor){ .fd = fds[0], .pid = fork() };
    ck_assert_int_ge(mandor.pid, 0);
    if (mandor.pid == 0) {
        (void)close(fds[0]);
        socket_number = fds[1];
        (void)snprintf(number, sizeof number, "%d", fds[1]);
        (void)setenv("MANDOR_FD", number, 1);
        _exit(-mandor_worker_run(look_at_socket, NULL) & 0xff);
    }
    (void)close(fds[1]);
    wire_decoder_init(&mandor.decoder, WIRE_WORKER, false);
    greet(&mandor, HELLO(10));
    send_to(&mandor, WIRE_JOB, 0, false, 1, A_JOB);
    expect(&mandor, WIRE_RESULT, 1, "true");
    finish(&mandor);
}

static int fail_to_start(struct mandor_job *job, void *arg)
{
    return job == NULL ? -ENODEV : 0;
}

TEST(a_worker_whose_start_fails_never_says_hello)
{
    struct mandor mandor;

    start(&mandor, &(struct mandor_worker_options){ .on_start = fail_to_start }, give_data, NULL);
    expect_end(&mandor, -ENODEV);
}

TEST(without_a_descriptor_the_run_is_refused)
{
    static const char *const wrong[] = { "",    "x", "3x", "-1", "0", "2", "99999999999999999999",
                                         "1023" };

    (void)unsetenv("MANDOR_FD");
    ck_assert_int_eq(mandor_worker_run(give_data, NULL), -EINVAL);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        (void)setenv("MANDOR_FD", wrong[i], 1);
        ck_assert_int_lt(mandor_worker_run(give_data, NULL), 0);
    }
}

UNIT_MAIN("worker")

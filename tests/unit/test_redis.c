/* test_redis.c - a connection to Redis that comes back, against a real server. */
#include <check.h>
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "redis/redis.h"
#include "redis/redis_int.h"
#include "redis/target.h"
#include "redis_rig.h"

#define TEST(name) START_TEST(name)

/* ---- URLs ---- */

TEST(a_url_says_user_password_host_port_and_database)
{
    struct redis_url url;
    struct mandor_err err;
    const char *text = "streams+tls://us%65r:p%40ss@[::1]:7000,b/3?prefix=x%26y&ca=/c";
    ck_assert_msg(redis_url_parse(text, &url, &err) == 0, "%s", err.msg);
    ck_assert_str_eq(url.scheme, "streams");
    ck_assert(url.tls && !url.sentinel && !url.cluster);
    ck_assert_str_eq(url.user, "user");
    ck_assert_str_eq(url.password, "p@ss");
    ck_assert_uint_eq(url.host_count, 2);
    ck_assert_str_eq(url.hosts[0].name, "::1");
    ck_assert_int_eq(url.hosts[0].port, 7000);
    ck_assert_str_eq(url.hosts[1].name, "b");
    ck_assert_int_eq(url.hosts[1].port, 6379);
    ck_assert_int_eq(url.db, 3);
    ck_assert_str_eq(redis_url_param(&url, "prefix"), "x&y");
    ck_assert_ptr_null(redis_url_param(&url, "none"));
    ck_assert_ptr_null(strstr(url.text, "p%40ss"));
    struct redis_url copy;
    ck_assert_int_eq(redis_url_copy(&url, &copy), 0);
    ck_assert_str_eq(copy.hosts[1].name, "b");
    redis_url_done(&copy);
    redis_url_done(&url);
}
END_TEST

TEST(sentinels_and_sockets_have_urls_too)
{
    struct redis_url url;
    ck_assert_int_eq(redis_url_parse("sentinel://a,b:1/main/2", &url, NULL), 0);
    ck_assert(url.sentinel);
    ck_assert_int_eq(url.hosts[0].port, 26379);
    ck_assert_int_eq(url.hosts[1].port, 1);
    ck_assert_str_eq(url.sentinel_name, "main");
    ck_assert_int_eq(url.db, 2);
    redis_url_done(&url);
    ck_assert_int_eq(redis_url_parse("redis+unix://:pw@/run/r%20s?db=4", &url, NULL), 0);
    ck_assert_str_eq(url.unix_path, "/run/r s");
    ck_assert_str_eq(url.password, "pw");
    ck_assert_int_eq(url.db, 4);
    redis_url_done(&url);
}
END_TEST

TEST(what_is_shown_of_a_url_has_no_password_in_it)
{
    static const char *const shown[][2] = {
        { "redis://h:1/0?stream=a@b&x=1", "redis://h:1/0?stream=a@b&x=1" },
        { "redis://[::1]?stream=a@b", "redis://[::1]?stream=a@b" },
        { "redis://u:pw@h?x=1", "redis://u:***@h?x=1" },
        { "redis+unix:///run/@r?x=1", "redis+unix:///run/@r?x=1" },
        { "redis://h/0?key=a@b", "redis://h/0?key=a@b" },
        { "sentinel://:pw@a,b:2/main?sentinel_password=pw&db=1",
          "sentinel://:***@a,b:2/main?sentinel_password=***&db=1" },
    };
    for (size_t i = 0; i < ARRAY_LEN(shown); i++) {
        struct redis_url url;
        struct mandor_err err = { 0 };
        ck_assert_msg(redis_url_parse(shown[i][0], &url, &err) == 0, "%s", err.msg);
        ck_assert_str_eq(url.text, shown[i][1]);
        redis_url_done(&url);
    }
}
END_TEST

TEST(what_a_connection_takes_may_stand_in_every_url)
{
    static const char *const own[] = { "prefix" };
    struct redis_url url;
    struct target target;
    struct mandor_err err = { 0 };
    ck_assert_int_eq(redis_url_parse("x://h?db=1&ca=a&cert=b&key=c&tls_key=d&sni=e&prefix=f&"
                                     "sentinel_password=g",
                                     &url, NULL),
                     0);
    ck_assert_msg(redis_url_check_params(&url, own, ARRAY_LEN(own), &err) == 0, "%s", err.msg);
    ck_assert_int_eq(redis_url_check_params(&url, own, 0, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "unknown parameter 'prefix'"));
    redis_url_done(&url);
    ck_assert_msg(target_parse("sentinel://h/main?stream=s&sentinel_password=p", &target, &err) ==
                      0,
                  "%s", err.msg);
    target_done(&target);
}
END_TEST

TEST(an_empty_password_is_none)
{
    static const char *const urls[] = { "redis://:@h", "redis://@h" };
    for (size_t i = 0; i < ARRAY_LEN(urls); i++) {
        struct redis_url url;
        ck_assert_int_eq(redis_url_parse(urls[i], &url, NULL), 0);
        ck_assert_ptr_null(url.password);
        ck_assert_str_eq(url.hosts[0].name, "h");
        redis_url_done(&url);
    }
}
END_TEST

TEST(a_bad_url_is_refused_without_its_password)
{
    static const char *const bad[] = {
        "redis:secret@host",      "redis://:secret@",
        "redis://:secret@h:0",    "redis://:secret@h:99999",
        "redis://:secret@h:x",    "redis://:secret@h/x",
        "redis+what://:secret@h", "redis://:secret@h?x",
        "redis://:secret@h/%2",   "redis+unix://:secret@relative?x=%zz",
        "sentinel://:secret@h",   "redis+cluster://:secret@h/2",
        "redis://:secret@a,,b",   "redis://:secret@[::1",
        "redis://:secret@[::1]x", "redis+sentinel+cluster://:secret@h/n",
        "://:secret@h",           "redis://:secret@h?a=%00",
        "redis://:secret@h?=1",   "redis://:secret@h o",
        "redis://:sec/secret@h",  "redis://:a?secret@h",
        "redis://u:x1/secret@h",  "sentinel://h?sentinel_password=secret",
        "redis+unix+tls:///x",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct redis_url url;
        struct mandor_err err = { 0 };
        ck_assert_msg(redis_url_parse(bad[i], &url, &err) == -EINVAL, "%s", bad[i]);
        ck_assert_int_eq(err.fault, FAULT_CALLER);
        ck_assert_msg(strstr(err.msg, "secret") == NULL, "%s", err.msg);
        redis_url_done(&url);
    }
}
END_TEST

TEST(errors_have_classes_also_inside_of_scripts)
{
    static const struct {
        const char *text;
        int code;
    } rows[] = {
        { "READONLY You can't write against a read only replica.", -EROFS },
        { "OOM command not allowed when used memory > 'maxmemory'.", -ENOSPC },
        { "LOADING Redis is loading the dataset in memory", -EAGAIN },
        { "BUSYGROUP Consumer Group name already exists", -EPROTO },
        { "NOSCRIPT No matching script. Please use EVAL.", -ENOEXEC },
        { "ERR Error running script (call to f_1): @user_script:1: -OOM command not allowed",
          -ENOSPC },
        { "ERR OOM command not allowed when used memory > 'maxmemory'.", -ENOSPC },
        { "EXECABORT Transaction discarded because of: OOM command not allowed when used memory > "
          "'maxmemory'.",
          -ENOSPC },
        { "EXECABORT Transaction discarded because of previous errors.", -EPROTO },
        { "ERR unknown command 'OOM'", -EPROTO },
        { "NOAUTH Authentication required.", -EACCES },
        { "", -EPROTO },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        ck_assert_msg(redis_error_code(rows[i].text, strlen(rows[i].text)) == rows[i].code, "%s",
                      rows[i].text);
}
END_TEST

TEST(a_script_is_named_as_the_server_names_it)
{
    struct redis_script empty = { .text = "" };
    struct redis_script one = { .text = "return 1" };
    char text[200];
    redis_script_sha(&empty);
    ck_assert_str_eq(empty.sha, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    redis_script_sha(&one);
    ck_assert_str_eq(one.sha, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    for (size_t len = 50; len < 130;
         len++) { /* across the borders of the padding: none crashes, all differ */
        memset(text, 'x', len);
        text[len] = '\0';
        struct redis_script a = { .text = text };
        redis_script_sha(&a);
        ck_assert_uint_eq(strlen(a.sha), 40);
    }
}
END_TEST

/* ---- against a server ---- */

static struct redis_rig rig;
static uv_loop_t loop;

static void setup(void)
{
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    redis_rig_start(&rig, NULL);
}

static void teardown(void)
{
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    redis_rig_done(&rig);
}

struct answer {
    bool done;
    int result, order;
    long long number;
    char text[512];
};
static int answers;

static void on_answer(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    struct answer *answer = arg;
    ck_assert(!answer->done);
    answer->done = true;
    answer->result = result;
    answer->order = answers++;
    if (reply != NULL && reply->type == REDIS_REPLY_INTEGER)
        answer->number = reply->integer;
    (void)snprintf(answer->text, sizeof answer->text, "%s",
                   reply != NULL && reply->str != NULL ? reply->str
                   : err != NULL                       ? err->msg
                                                       : "");
}

#define ANSWER_MS 60000 /* for what comes, however slow the machine is */

static void await(struct answer *answer)
{
    int64_t deadline = clock_mono_ms() + ANSWER_MS;
    while (!answer->done) {
        ck_assert_msg(clock_mono_ms() < deadline, "no answer");
        (void)uv_run(&loop, UV_RUN_ONCE);
    }
}

static struct redis *open_url(const char *text, const struct redis_options *options)
{
    struct redis_url url;
    struct redis *redis = NULL;
    struct mandor_err err;
    struct redis_options none = { 0 };
    ck_assert_int_eq(redis_url_parse(text, &url, &err), 0);
    ck_assert_msg(redis_new(&loop, &url, options != NULL ? options : &none, &redis, &err) == 0,
                  "%s", err.msg);
    redis_url_done(&url);
    return redis;
}

static struct redis *open_rig(const char *form, const struct redis_options *options)
{
    char text[256];
    (void)snprintf(text, sizeof text, form, rig.port);
    return open_url(text, options);
}

static struct answer ask(struct redis *redis, const char *command)
{
    struct answer answer = { 0 };
    redis_callf(redis, REDIS_AGAIN, ANSWER_MS, on_answer, &answer, command);
    await(&answer);
    return answer;
}

TEST(a_thousand_calls_are_answered_in_their_order)
{
    static struct answer all[1000];
    struct redis *redis =
        open_rig("redis://localhost:%d/2", &(struct redis_options){ .client_name = "test one" });
    for (int i = 0; i < 1000; i++)
        redis_callf(redis, 0, ANSWER_MS, on_answer, &all[i], "INCR n");
    for (int i = 0; i < 1000; i++) {
        await(&all[i]);
        ck_assert_int_eq(all[i].number, i + 1);
        ck_assert_int_eq(all[i].order, i);
    }
    ck_assert_int_ge(redis_version(redis), 60000);
    ck_assert_ptr_null(redis_evicts(redis));
    ck_assert_str_eq(ask(redis, "CLIENT GETNAME").text, "test-one");
    ck_assert(redis_rig_cli(&rig, "-n 2 EXISTS n | grep -q 1"));
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(a_unix_socket_serves_as_well)
{
    char text[200];
    (void)snprintf(text, sizeof text, "redis+unix://%s", rig.socket);
    struct redis *redis = open_url(text, NULL);
    ck_assert_str_eq(ask(redis, "PING").text, "PONG");
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(a_script_is_known_after_a_flush_and_after_a_restart)
{
    struct redis_script script = { .name = "s",
                                   .text = "return redis.call('INCRBY', KEYS[1], ARGV[1])" };
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    const char *argv[] = { "k", "5" };
    for (int i = 1; i <= 3; i++) {
        struct answer answer = { 0 };
        redis_eval(redis, &script, REDIS_AGAIN, ANSWER_MS, 1, 2, argv, NULL, on_answer, &answer);
        await(&answer);
        ck_assert_msg(answer.result == 0, "%s", answer.text);
        ck_assert_int_eq(answer.number, i < 3 ? 5 * i : 5);
        if (i == 1)
            ck_assert(redis_rig_cli(&rig, "SCRIPT FLUSH"));
        else if (i == 2)
            redis_rig_again(&rig, NULL);
    }
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(calls_wait_for_a_server_that_comes_later)
{
    redis_rig_stop(&rig);
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    struct answer answer = { 0 }, hasty;
    redis_callf(redis, 0, 10 * ANSWER_MS, on_answer, &answer, "PING");
    do { /* until the first try is over, on a machine that stands still now and then */
        hasty = (struct answer){ 0 };
        redis_callf(redis, 0, 150, on_answer, &hasty, "PING");
        await(&hasty);
    } while (hasty.result == -ETIMEDOUT);
    ck_assert_int_eq(hasty.result, -ECONNREFUSED);
    ck_assert_ptr_nonnull(strstr(hasty.text, "127.0.0.1"));
    ck_assert(!answer.done);
    redis_rig_again(&rig, NULL);
    await(&answer);
    ck_assert_str_eq(answer.text, "PONG");
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(a_command_line_hears_of_a_refused_connection_at_once)
{
    redis_rig_stop(&rig);
    struct redis *redis = open_rig("redis://127.0.0.1:%d", &(struct redis_options){ .once = true });
    struct answer answer = { 0 };
    redis_callf(redis, 0, 10 * ANSWER_MS, on_answer, &answer, "PING");
    await(&answer);
    ck_assert_int_eq(answer.result, -ECONNREFUSED);
    redis_close(redis, NULL, NULL);
}
END_TEST

/* R75 */
TEST(a_half_dead_connection_is_given_up_in_time_R75)
{
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    ck_assert_str_eq(ask(redis, "PING").text, "PONG");
    ck_assert_int_eq(kill(rig.pid, SIGSTOP), 0);
    struct answer lost = { 0 }, waits = { 0 };
    redis_callf(redis, 0, 1000, on_answer, &lost, "INCR n");
    redis_callf(redis, REDIS_AGAIN, ANSWER_MS, on_answer, &waits, "PING");
    await(&lost);
    ck_assert_msg(lost.result == -ETIMEDOUT || lost.result == -ECONNRESET, "%d %s", lost.result,
                  lost.text);
    ck_assert(!waits.done);
    ck_assert_int_eq(kill(rig.pid, SIGCONT), 0);
    await(&waits);
    ck_assert_str_eq(waits.text, "PONG");
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(what_may_be_done_twice_is_done_again_after_a_restart_and_the_rest_is_told)
{
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    ck_assert_str_eq(ask(redis, "PING").text, "PONG");
    ck_assert_int_eq(kill(rig.pid, SIGSTOP), 0);
    struct answer once = { 0 }, twice = { 0 };
    redis_callf(redis, 0, ANSWER_MS, on_answer, &once, "INCR n");
    redis_callf(redis, REDIS_AGAIN, ANSWER_MS, on_answer, &twice, "INCR n");
    for (int i = 0; i < 5; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    redis_rig_again(&rig, NULL);
    await(&once);
    await(&twice);
    ck_assert_int_eq(once.result, -ECONNRESET);
    ck_assert_int_eq(twice.number, 1);
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(a_wrong_password_is_named_and_an_acl_user_gets_in)
{
    ck_assert(redis_rig_cli(&rig, "ACL SETUSER ann on '>secret' '~*' '&*' +@all"));
    struct redis *right = open_rig("redis://ann:secret@127.0.0.1:%d", NULL);
    ck_assert_str_eq(ask(right, "ACL WHOAMI").text, "ann");
    struct redis *wrong =
        open_rig("redis://ann:guess@127.0.0.1:%d", &(struct redis_options){ .once = true });
    struct answer answer = ask(wrong, "PING");
    ck_assert_int_eq(answer.result, -EACCES);
    ck_assert_ptr_nonnull(strstr(answer.text, "WRONGPASS"));
    ck_assert_ptr_null(strstr(answer.text, "guess"));
    redis_close(right, NULL, NULL);
    redis_close(wrong, NULL, NULL);
}
END_TEST

TEST(a_replica_is_not_taken_for_the_master_until_it_is_one)
{
    ck_assert(redis_rig_cli(&rig, "REPLICAOF 127.0.0.1 1"));
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    struct answer answer = { 0 }, hasty;
    redis_callf(redis, 0, 10 * ANSWER_MS, on_answer, &answer, "SET k v");
    do { /* until it has been asked what it is */
        hasty = (struct answer){ 0 };
        redis_callf(redis, 0, 300, on_answer, &hasty, "SET k v");
        await(&hasty);
    } while (hasty.result == -ETIMEDOUT);
    ck_assert_int_eq(hasty.result, -EROFS);
    ck_assert(redis_rig_cli(&rig, "REPLICAOF NO ONE"));
    await(&answer);
    ck_assert_str_eq(answer.text, "OK");
    /* and while we are connected */
    ck_assert(redis_rig_cli(&rig, "REPLICAOF 127.0.0.1 1"));
    struct answer later = { 0 };
    redis_callf(redis, 0, ANSWER_MS, on_answer, &later, "SET k w");
    for (int i = 0; i < 20; i++)
        (void)uv_run(&loop, UV_RUN_ONCE);
    ck_assert(!later.done);
    ck_assert(redis_rig_cli(&rig, "REPLICAOF NO ONE"));
    await(&later);
    ck_assert_str_eq(later.text, "OK");
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(a_full_server_says_so_and_an_evicting_one_is_noticed_R79)
{
    ck_assert(redis_rig_cli(&rig, "CONFIG SET maxmemory-policy allkeys-lru"));
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    ck_assert_str_eq(ask(redis, "PING").text, "PONG");
    ck_assert_str_eq(redis_evicts(redis), "allkeys-lru");
    ck_assert(redis_rig_cli(&rig, "CONFIG SET maxmemory-policy noeviction"));
    ck_assert(redis_rig_cli(&rig, "CONFIG SET maxmemory 1")); /* 6.2 sets one at a time */
    struct answer full = ask(redis, "SET k v");
    ck_assert_int_eq(full.result, -ENOSPC);
    ck_assert(redis_is_transient(full.result));
    redis_close(redis, NULL, NULL);
}
END_TEST

static char heard[200];
static void on_message(void *arg, const char *channel, const char *payload, size_t len)
{
    (void)snprintf(heard, sizeof heard, "%s=%.*s", channel, (int)len, payload);
}

TEST(messages_come_again_after_a_restart)
{
    struct redis *redis =
        open_rig("redis://127.0.0.1:%d", &(struct redis_options){ .on_message = on_message });
    ck_assert_int_eq(redis_subscribe(redis, "news"), 0);
    for (int round = 0; round < 2; round++) {
        heard[0] = '\0';
        for (int i = 0; heard[0] == '\0'; i++) {
            ck_assert_int_lt(i, 2000);
            (void)redis_rig_cli(&rig, "PUBLISH news hello");
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        }
        ck_assert_str_eq(heard, "news=hello");
        if (round == 0)
            redis_rig_again(&rig, NULL);
    }
    redis_close(redis, NULL, NULL);
}
END_TEST

static void close_it(void *arg, int result, const redisReply *reply, const struct mandor_err *err)
{
    if (result == 0)
        redis_close(arg, NULL, NULL);
    else
        ck_assert_int_eq(result, -ECANCELED);
}

TEST(it_can_be_closed_from_inside_of_an_answer)
{
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    for (int i = 0; i < 5; i++)
        redis_callf(redis, 0, ANSWER_MS, close_it, redis, "PING");
}
END_TEST

TEST(a_stranger_that_speaks_no_redis_is_told_of)
{
    /* the rig's port belongs to nobody after this: a listener that answers nonsense takes it */
    redis_rig_stop(&rig);
    char command[200];
    (void)snprintf(
        command, sizeof command,
        "python3 -c \"import "
        "socket;s=socket.socket();s.setsockopt(1,2,1);s.bind(('127.0.0.1',%d));s.listen();"
        "print('up',flush=True);c=s.accept()[0];c.recv(9);c.send(b'HTTP/1.1 "
        "400\\r\\n');c.recv(999)\"",
        rig.port);
    FILE *stranger = popen(command, "r");
    char line[16];
    ck_assert_ptr_nonnull(stranger);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, stranger));
    struct redis *redis = open_rig("redis://127.0.0.1:%d", &(struct redis_options){ .once = true });
    struct answer answer = ask(redis, "PING");
    ck_assert_int_eq(answer.result, -EPROTO);
    redis_close(redis, NULL, NULL);
    (void)pclose(stranger);
}
END_TEST

/* ---- TLS ---- */

#ifdef HAVE_HIREDIS_SSL
TEST(tls_is_spoken_and_a_stranger_s_certificate_refused)
{
    char dir[] = "/tmp/mandor-tls-XXXXXX", command[1200], port[16], cert[64], key[64], url[300];
    struct redis_rig tls = { 0 };
    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(command, sizeof command,
                   "cd %s && openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out "
                   "cert.pem -days 2 -subj /CN=x "
                   "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 2>/dev/null && "
                   "openssl req -x509 -newkey rsa:2048 -nodes -keyout other-key.pem -out other.pem "
                   "-days 2 -subj /CN=y 2>/dev/null",
                   dir);
    ck_assert_int_eq(system(command), 0);
    (void)snprintf(port, sizeof port, "%d", rig.port + 1);
    (void)snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    (void)snprintf(key, sizeof key, "%s/key.pem", dir);
    redis_rig_start(&tls, (const char *const[]){ "--tls-port", port, "--tls-cert-file", cert,
                                                 "--tls-key-file", key, "--tls-ca-cert-file", cert,
                                                 "--tls-auth-clients", "no", NULL });
    static const struct {
        const char *host, *ca, *sni, *says;
    } rows[] = {
        { "localhost", "cert.pem", "", "PONG" },
        { "127.0.0.1", "cert.pem", "", "PONG" },
        { "127.0.0.1", "cert.pem", "&sni=localhost", "PONG" },
        { "localhost", "other.pem", "", "self-signed certificate" },
        { "localhost", "cert.pem", "&sni=elsewhere", "ostname mismatch" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        (void)snprintf(url, sizeof url, "redis+tls://%s:%s?ca=%s/%s%s", rows[i].host, port, dir,
                       rows[i].ca, rows[i].sni);
        struct redis *redis = open_url(url, &(struct redis_options){ .once = true });
        struct answer answer = ask(redis, "PING");
        ck_assert_msg(strstr(answer.text, rows[i].says) != NULL, "row %zu: %d %s", i, answer.result,
                      answer.text);
        redis_close(redis, NULL, NULL);
    }
    /* authorities that take for ever to read hold nobody else up: a FIFO without a writer */
    int fifo = -1;
    (void)snprintf(cert, sizeof cert, "%s/fifo", dir);
    ck_assert_int_eq(mkfifo(cert, 0600), 0);
    (void)snprintf(url, sizeof url, "redis+tls://127.0.0.1:%s?ca=%s", port, cert);
    struct redis *slow = open_url(url, &(struct redis_options){ .once = true });
    struct redis *quick = open_rig("redis://127.0.0.1:%d", NULL);
    while ((fifo = open(cert, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0) /* until it is being read */
        ck_assert_str_eq(ask(quick, "PING").text, "PONG");
    ck_assert_str_eq(ask(quick, "PING").text, "PONG");
    ck_assert_int_eq(close(fifo), 0);
    ck_assert_int_eq(ask(slow, "PING").result, -EINVAL);
    redis_close(slow, NULL, NULL);
    redis_close(quick, NULL, NULL);
    redis_rig_done(&tls);
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

TEST(a_handshake_that_breaks_off_passes_and_one_that_is_no_tls_does_not)
{
    static const struct {
        const char *answer;
        int result;
    } rows[] = { { "", -ECONNRESET }, { "HTTP/1.1 400", -EPROTO } };

    redis_rig_stop(&rig);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char command[300], line[16];
        (void)snprintf(command, sizeof command,
                       "python3 -c \"import socket;s=socket.socket();s.setsockopt(1,2,1);"
                       "s.bind(('127.0.0.1',%d));s.listen();print('up',flush=True);"
                       "c=s.accept()[0];c.recv(65536);c.send(b'%s')\"",
                       rig.port, rows[i].answer);
        FILE *stranger = popen(command, "r");
        ck_assert_ptr_nonnull(stranger);
        ck_assert_ptr_nonnull(fgets(line, sizeof line, stranger));
        struct redis *redis =
            open_rig("redis+tls://127.0.0.1:%d", &(struct redis_options){ .once = true });
        struct answer answer = ask(redis, "PING");
        ck_assert_msg(answer.result == rows[i].result, "row %zu: %d %s", i, answer.result,
                      answer.text);
        redis_close(redis, NULL, NULL);
        (void)pclose(stranger);
    }
}
END_TEST
#else
TEST(tls_that_hiredis_does_not_have_is_refused_with_a_reason)
{
    struct redis_url url;
    struct redis *redis = NULL;
    struct redis_options none = { 0 };
    struct mandor_err err;
    ck_assert_int_eq(redis_url_parse("redis+tls://localhost", &url, &err), 0);
    ck_assert_int_eq(redis_new(&loop, &url, &none, &redis, &err), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(err.msg, "hiredis"));
    redis_url_done(&url);
}
END_TEST
#endif

/* ---- sentinels and clusters ---- */

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

TEST(a_sentinel_is_asked_again_when_the_master_is_gone)
{
    struct redis_rig other = { 0 }, sentinel = { 0 };
    char conf[64] = "/tmp/mandor-sentinel-XXXXXX", text[300], url[200], command[300];
    redis_rig_start(&other, NULL);
    int fd = mkstemp(conf);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    (void)snprintf(text, sizeof text, "sentinel monitor main 127.0.0.1 %d 1\n", rig.port);
    write_file(conf, text);
    redis_rig_start_file(&sentinel, conf, (const char *const[]){ "--sentinel", NULL });

    (void)snprintf(url, sizeof url, "sentinel://127.0.0.1:1,127.0.0.1:%d/main", sentinel.port);
    struct redis *redis = open_url(url, NULL);
    ck_assert_str_eq(ask(redis, "SET where first").text, "OK");
    ck_assert(redis_rig_cli(&rig, "GET where | grep -q first"));
    redis_rig_stop(&rig);
    (void)snprintf(command, sizeof command, "SENTINEL REMOVE main");
    ck_assert(redis_rig_cli(&sentinel, command));
    (void)snprintf(command, sizeof command, "SENTINEL MONITOR main 127.0.0.1 %d 1", other.port);
    ck_assert(redis_rig_cli(&sentinel, command));
    ck_assert_str_eq(ask(redis, "SET where second").text, "OK");
    ck_assert(redis_rig_cli(&other, "GET where | grep -q second"));

    (void)snprintf(url, sizeof url, "sentinel://127.0.0.1:%d/nobody", sentinel.port);
    struct redis *nobody = open_url(url, &(struct redis_options){ .once = true });
    struct answer answer = ask(nobody, "PING");
    ck_assert_int_eq(answer.result, -ENOENT);
    ck_assert_ptr_nonnull(strstr(answer.text, "does not know"));
    redis_close(redis, NULL, NULL);
    redis_close(nobody, NULL, NULL);
    redis_rig_done(&sentinel);
    redis_rig_done(&other);
    (void)unlink(conf);
}
END_TEST

/* ---- transactions ---- */

struct deed {
    struct answer answer; /* first: on_answer() */
    const char *meanwhile
        [3]; /* what others do between the look and the end of each round: arguments of redis-cli, or NULL */
    int said[3]; /* what check() says then */
    char seen[3][32];
    size_t rounds;
};

static int check(void *arg, const char *value, struct mandor_err *err)
{
    struct deed *deed = arg;
    size_t round = deed->rounds++;

    ck_assert_uint_lt(round, ARRAY_LEN(deed->said));
    (void)snprintf(deed->seen[round], sizeof deed->seen[round], "%s", value == NULL ? "-" : value);
    if (deed->meanwhile[round] != NULL)
        ck_assert(redis_rig_cli(&rig, deed->meanwhile[round]));
    return deed->said[round] >= 0
               ? deed->said[round]
               : err_set(err, deed->said[round], FAULT_REMOTE, "it is somebody else's");
}

/* SET key to value, and count that. */
static void transact(struct redis *redis, struct deed *deed, const char *key, const char *value)
{
    const char *set[] = { "SET", key, value }, *count[] = { "INCR", "{m}:n" };
    struct redis_transaction *txn = redis_transaction_new(key);

    ck_assert_ptr_nonnull(txn);
    redis_transaction_add(txn, ARRAY_LEN(set), set, NULL);
    redis_transaction_add(txn, ARRAY_LEN(count), count, NULL);
    redis_transact(redis, txn, ANSWER_MS, check, on_answer, deed);
}

TEST(a_transaction_is_carried_out_only_while_its_key_is_as_it_was_seen)
{
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    struct deed one = { .meanwhile = { "SET k 7" }, .said = { REDIS_EXEC, REDIS_EXEC } };
    struct deed two = { .said = { REDIS_EARLY, REDIS_EXEC } };
    struct deed three = { .said = { REDIS_DONE, REDIS_DONE } };
    struct deed four = { .said = { -ESTALE, -ESTALE } };

    transact(redis, &one, "k", "a");
    transact(redis, &two, "k", "b");
    transact(redis, &three, "k", "c");
    transact(redis, &four, "k", "d");
    await(&four.answer);
    ck_assert_int_eq(one.answer.result, 0);
    ck_assert_str_eq(one.seen[0], "-");
    ck_assert_str_eq(one.seen[1], "7");
    ck_assert_int_eq(two.answer.result, 0);
    ck_assert_str_eq(two.seen[two.rounds - 1], "a");
    ck_assert_int_eq(three.answer.result, 0);
    ck_assert_int_eq(four.answer.result, -ESTALE);
    ck_assert_ptr_nonnull(strstr(four.answer.text, "it is somebody else's"));
    ck_assert_str_eq(ask(redis, "GET k").text, "b");
    ck_assert_str_eq(ask(redis, "GET {m}:n").text, "2");
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(a_transaction_is_made_again_as_a_whole_over_a_new_connection)
{
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    struct deed deed = { .meanwhile = { "CLIENT KILL TYPE normal" },
                         .said = { REDIS_EXEC, REDIS_EXEC } };
    struct answer behind = { 0 };

    ck_assert_str_eq(ask(redis, "PING").text, "PONG");
    transact(redis, &deed, "k", "a");
    redis_callf(redis, REDIS_AGAIN, ANSWER_MS, on_answer, &behind, "INCR {m}:n");
    await(&behind);
    ck_assert_int_eq(deed.answer.result, 0);
    ck_assert_int_lt(deed.answer.order, behind.order);
    ck_assert_uint_eq(deed.rounds, 2);
    ck_assert_str_eq(deed.seen[1], "-"); /* the first time nothing was carried out */
    ck_assert_int_eq(behind.number, 2);
    redis_close(redis, NULL, NULL);
}
END_TEST

TEST(a_transaction_with_a_command_that_is_refused_is_none)
{
    struct redis *redis = open_rig("redis://127.0.0.1:%d", NULL);
    struct deed deed = { .said = { REDIS_EXEC } }, wrong = { .said = { REDIS_EXEC } };

    ck_assert(redis_rig_cli(&rig, "CONFIG SET maxmemory 1"));
    transact(redis, &deed, "k", "a");
    await(&deed.answer);
    ck_assert_int_eq(deed.answer.result, -ENOSPC);
    ck_assert(redis_rig_cli(&rig, "CONFIG SET maxmemory 0"));
    ck_assert(redis_rig_cli(&rig, "EXISTS k | grep -q 0"));
    ck_assert(redis_rig_cli(&rig, "SADD {m}:n x")); /* what only EXEC finds out */
    transact(redis, &wrong, "k", "a");
    await(&wrong.answer);
    ck_assert_int_eq(wrong.answer.result, -EMEDIUMTYPE);
    redis_close(redis, NULL, NULL);
}
END_TEST

static void until(const struct redis_rig *node, const char *command)
{
    for (int i = 0; !redis_rig_cli(node, command); i++) {
        ck_assert_msg(i < 3000, "in vain: %s", command);
        (void)usleep(20000);
    }
}

TEST(moved_and_ask_are_followed)
{
    static const char *const cluster[] = { "--cluster-enabled", "yes",
                                           "--cluster-require-full-coverage", "no", NULL };
    struct redis_rig a = { 0 }, b = { 0 };
    char command[400], url[100];
    redis_rig_start(&a, cluster);
    redis_rig_start(&b, cluster);
    ck_assert(redis_rig_cli(&a, "CLUSTER ADDSLOTS $(seq 0 16383)"));
    (void)snprintf(command, sizeof command, "CLUSTER MEET 127.0.0.1 %d", b.port);
    ck_assert(redis_rig_cli(&a, command));
    until(&a, "CLUSTER INFO | grep -q cluster_known_nodes:2");
    until(&a, "CLUSTER INFO | grep -q cluster_state:ok");
    until(&b, "CLUSTER INFO | grep -q cluster_slots_assigned:16384");
    until(&b, "CLUSTER INFO | grep -q cluster_state:ok");

    (void)snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d", b.port);
    struct redis *redis = open_url(url, NULL);
    ck_assert_str_eq(ask(redis, "SET {m}:k here").text, "OK"); /* MOVED to a */
    ck_assert(redis_rig_cli(&a, "GET {m}:k | grep -q here"));
    struct redis *once = open_url(url, &(struct redis_options){ .once = true });
    ck_assert_str_eq(ask(once, "GET {m}:k").text, "here");
    redis_close(once, NULL, NULL);

    /* the slot of {m} is on its way to b: what a does not have any more is asked for there */
    (void)snprintf(command, sizeof command,
                   "CLUSTER SETSLOT $(redis-cli -s %s CLUSTER KEYSLOT {m}) MIGRATING $(redis-cli "
                   "-s %s CLUSTER MYID)",
                   a.socket, b.socket);
    ck_assert(redis_rig_cli(&a, command));
    (void)snprintf(command, sizeof command,
                   "CLUSTER SETSLOT $(redis-cli -s %s CLUSTER KEYSLOT {m}) IMPORTING $(redis-cli "
                   "-s %s CLUSTER MYID)",
                   a.socket, a.socket);
    ck_assert(redis_rig_cli(&b, command));
    ck_assert_str_eq(ask(redis, "SET {m}:new there").text, "OK");
    ck_assert_str_eq(ask(redis, "GET {m}:k").text, "here");
    ck_assert_str_eq(ask(redis, "GET {m}:new").text, "there");
    ck_assert(redis_rig_cli(&a, "GET {m}:new | grep -q ASK"));

    /* a transaction waits until the slot is there */
    struct deed deed = { .said = { REDIS_EXEC, REDIS_EXEC, REDIS_EXEC } };
    transact(redis, &deed, "{m}:k", "moved");
    while (deed.rounds == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    ck_assert(!deed.answer.done);
    (void)snprintf(command, sizeof command, "MIGRATE 127.0.0.1 %d '{m}:k' 0 60000", b.port);
    ck_assert(redis_rig_cli(&a, command));
    for (const struct redis_rig *node = &b; node != NULL; node = node == &b ? &a : NULL) {
        (void)snprintf(command, sizeof command,
                       "CLUSTER SETSLOT $(redis-cli -s %s CLUSTER KEYSLOT {m}) NODE $(redis-cli "
                       "-s %s CLUSTER MYID)",
                       a.socket, b.socket);
        ck_assert(redis_rig_cli(node, command));
    }
    await(&deed.answer);
    ck_assert_msg(deed.answer.result == 0, "%s", deed.answer.text);
    ck_assert(redis_rig_cli(&b, "GET {m}:k | grep -q moved"));
    redis_close(redis, NULL, NULL);
    redis_rig_done(&a);
    redis_rig_done(&b);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("redis");
    TCase *pure = tcase_create("pure"), *live = tcase_create("live");
    tcase_add_test(pure, a_url_says_user_password_host_port_and_database);
    tcase_add_test(pure, sentinels_and_sockets_have_urls_too);
    tcase_add_test(pure, what_a_connection_takes_may_stand_in_every_url);
    tcase_add_test(pure, a_bad_url_is_refused_without_its_password);
    tcase_add_test(pure, what_is_shown_of_a_url_has_no_password_in_it);
    tcase_add_test(pure, an_empty_password_is_none);
    tcase_add_test(pure, errors_have_classes_also_inside_of_scripts);
    tcase_add_test(pure, a_script_is_named_as_the_server_names_it);
    suite_add_tcase(suite, pure);

    const TTest *const tests[] = {
        a_thousand_calls_are_answered_in_their_order,
        a_unix_socket_serves_as_well,
        a_script_is_known_after_a_flush_and_after_a_restart,
        calls_wait_for_a_server_that_comes_later,
        a_command_line_hears_of_a_refused_connection_at_once,
        a_half_dead_connection_is_given_up_in_time_R75,
        what_may_be_done_twice_is_done_again_after_a_restart_and_the_rest_is_told,
        a_wrong_password_is_named_and_an_acl_user_gets_in,
        a_replica_is_not_taken_for_the_master_until_it_is_one,
        a_full_server_says_so_and_an_evicting_one_is_noticed_R79,
        messages_come_again_after_a_restart,
        it_can_be_closed_from_inside_of_an_answer,
        a_stranger_that_speaks_no_redis_is_told_of,
        a_sentinel_is_asked_again_when_the_master_is_gone,
        moved_and_ask_are_followed,
        a_transaction_is_carried_out_only_while_its_key_is_as_it_was_seen,
        a_transaction_is_made_again_as_a_whole_over_a_new_connection,
        a_transaction_with_a_command_that_is_refused_is_none,
#ifdef HAVE_HIREDIS_SSL
        tls_is_spoken_and_a_stranger_s_certificate_refused,
        a_handshake_that_breaks_off_passes_and_one_that_is_no_tls_does_not,
#else
        tls_that_hiredis_does_not_have_is_refused_with_a_reason,
#endif
    };
    tcase_add_checked_fixture(live, setup, teardown);
    tcase_set_timeout(pure, 120);
    tcase_set_timeout(live, 300);
    for (size_t i = 0; i < ARRAY_LEN(tests); i++)
        tcase_add_test(live, tests[i]);
    if (redis_rig_possible())
        suite_add_tcase(suite, live);
    else
        puts("no redis-server: what needs one is left out");
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int count = srunner_ntests_failed(runner);
    srunner_free(runner);
    return count == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

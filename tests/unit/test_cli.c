/* test_cli.c - the command line's parser, tables and text. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/json.h"
#include "base/words.h"
#include "cli/cli.h"
#include "cli/client.h"
#include "cli/job.h"
#include "cli/lines.h"
#include "cli/live.h"
#include "cli/out.h"
#include "cli/run_left.h"
#include "job/spec.h"
#include "lib/unit.h"
#include "os/tree.h"

static struct cli cli;
static struct mandor_err err;

/* Parse words, NULL-terminated, "mandor" put before them. */
static int parse(const char *const *words)
{
    static char *argv[64];
    int argc = 1;

    argv[0] = (char *)(uintptr_t) "mandor";
    for (; *words != NULL; words++)
        argv[argc++] = (char *)(uintptr_t)*words;
    cli_done(&cli);
    err_clear(&err);
    return cli_parse(argc, argv, &cli, &err);
}
#define PARSE(...) parse((const char *const[]){ __VA_ARGS__, NULL })

static void setup(void)
{
    cli = (struct cli){ .command = NULL };
}

static void teardown(void)
{
    cli_done(&cli);
}

TEST(options_are_taken_glued_apart_and_in_clusters)
{
    ck_assert_int_eq(PARSE("ls", "--queue=a b", "--state", "failed", "-n7", "--json"), 0);
    ck_assert_str_eq(cli.command->name, "ls");
    ck_assert_str_eq(cli_text(&cli, "queue"), "a b");
    ck_assert_str_eq(cli_text(&cli, "state"), "failed");
    ck_assert_int_eq(cli_number(&cli, "limit", -1), 7);
    ck_assert(cli.json);

    ck_assert_int_eq(PARSE("logs", "-f", "17", "--stderr"), 0);
    ck_assert(cli_flag(&cli, "follow") && cli_flag(&cli, "stderr") && !cli_flag(&cli, "stdout"));
    ck_assert_uint_eq(cli.arg_count, 1);
    ck_assert_str_eq(cli.args[0], "17");
    ck_assert_ptr_null(cli.args[1]);
}

TEST(common_options_may_stand_before_the_command)
{
    ck_assert_int_eq(PARSE("--broker", "sqlite:/x", "--json", "ls"), 0);
    ck_assert_str_eq(cli.broker, "sqlite:/x");
    ck_assert(cli.json);
    ck_assert_int_eq(PARSE("--json", "run", "--", "true"), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "--json"));
}

TEST(the_last_of_a_repeated_option_wins_and_lists_keep_all)
{
    ck_assert_int_eq(PARSE("ls", "--queue", "a", "--queue", "b"), 0);
    ck_assert_str_eq(cli_text(&cli, "queue"), "b");
    ck_assert_int_eq(PARSE("work", "-q", "a", "--queue", "b"), 0);
    ck_assert_str_eq(cli_text_nth(&cli, "queue", 0), "a");
    ck_assert_str_eq(cli_text_nth(&cli, "queue", 1), "b");
    ck_assert_ptr_null(cli_text_nth(&cli, "queue", 2));
}

TEST(two_dashes_end_the_options)
{
    ck_assert_int_eq(PARSE("add", "--timeout", "5s", "--", "ls", "--json", "--", "-x"), 0);
    ck_assert(!cli.json);
    ck_assert_uint_eq(cli.arg_count, 4);
    ck_assert_str_eq(cli.args[0], "ls");
    ck_assert_str_eq(cli.args[2], "--");
    ck_assert_int_eq(PARSE("show", "--", "--json"), 0);
    ck_assert_str_eq(cli.args[0], "--json");
}

TEST(a_command_ends_the_options_by_itself)
{
    ck_assert_int_eq(PARSE("run", "echo", "--help", "-n"), 0);
    ck_assert(!cli.help);
    ck_assert_uint_eq(cli.arg_count, 3);
}

TEST(job_options_become_the_job_object)
{
    ck_assert_int_eq(PARSE("add", "--timeout", "10m", "--memory=512M", "--env", "A=1", "--env",
                           "B=2=3", "-q", "media", "--", "x"),
                     0);
    ck_assert_str_eq(json_string_value(json_object_get(cli.job, "queue")), "media");
    const json_t *env = json_object_get(cli.job, "env");
    ck_assert_str_eq(json_string_value(json_object_get(env, "B")), "2=3");

    ck_assert_int_eq(job_set_exec(cli.job, cli.args, cli.arg_count), 0);
    SCOPED(spec_free) struct spec *spec = NULL;
    ck_assert_int_eq(spec_from_json(cli.job, NULL, &spec, &err), 0);
    ck_assert_int_eq(spec->timeout_ms, 600000);
    ck_assert_int_eq(spec->limits.memory_bytes, 512 << 20);
    ck_assert_uint_eq(spec->env_count, 2);
}

TEST(run_takes_no_options_of_a_queue)
{
    ck_assert_int_eq(PARSE("run", "--timeout", "1s", "--", "true"), 0);
    ck_assert_int_eq(PARSE("run", "--attempts", "3", "--", "true"), -EINVAL);
    ck_assert_int_eq(PARSE("run", "--queue", "q", "--", "true"), -EINVAL);
    ck_assert_int_eq(PARSE("run", "--backoff-delay", "1s", "--", "true"), -EINVAL);
}

static const struct {
    const char *const words[6];
    const char *said;
} wrong[] = {
    { { "lss" }, "lss" },
    { { "cancl", "1" }, "'cancel'" },
    { { "ls", "--stat", "x" }, "'--state'" },
    { { "add", "--timout", "1s" }, "'--timeout'" },
    { { "ls", "--queue" }, "needs an argument" },
    { { "ls", "--json=yes" }, "takes no argument" },
    { { "ls", "-x" }, "'-x'" },
    { { "ls", "--limit", "many" }, "--limit" },
    { { "ls", "--limit", "-1" }, "--limit" },
    { { "wait", "--timeout", "soon", "1" }, "--timeout" },
    { { "add", "--timeout", "soon" }, "--timeout" },
    { { "show" }, "missing" },
    { { "pause", "a", "b" }, "'b'" },
    { { "ls", "a" }, "'a'" },
    { { "run" }, "no command" },
    { { "show", "1", "--drain" }, "--drain" },
};

TEST_EACH(a_wrong_word_is_named_with_what_was_expected, ARRAY_LEN(wrong))
{
    ck_assert_int_lt(parse(wrong[_i].words), 0);
    ck_assert_int_eq(err.fault, FAULT_CALLER);
    ck_assert_int_eq(err_exit_code(&err), EXIT_USAGE);
    ck_assert_msg(strstr(err.msg, wrong[_i].said) != NULL, "'%s' is not in: %s", wrong[_i].said,
                  err.msg);
}

TEST(help_is_given_where_operands_are_missing)
{
    ck_assert_int_eq(PARSE("show", "--help"), 0);
    ck_assert(cli.help);
    ck_assert_int_eq(PARSE("-h"), 0);
    ck_assert(cli.help && cli.command == NULL);
    ck_assert_int_eq(PARSE("--version"), 0);
    ck_assert(cli.version);
}

/* ---- the tables hold together ---- */

struct seen {
    const char *names[128];
    char letters[128];
    size_t count, letter_count;
};

static void see(struct seen *seen, const char *name, char letter)
{
    for (size_t i = 0; i < seen->count; i++)
        ck_assert_str_ne(seen->names[i], name);
    for (size_t i = 0; letter != '\0' && i < seen->letter_count; i++)
        ck_assert_int_ne(seen->letters[i], letter);
    ck_assert_uint_lt(seen->count, ARRAY_LEN(seen->names));
    seen->names[seen->count++] = name;
    if (letter != '\0')
        seen->letters[seen->letter_count++] = letter;
}

static void see_option(const struct cli_option *option, void *arg)
{
    see(arg, option->name, option->letter);
    ck_assert_int_eq(option->arg == NULL, option->type == CLI_FLAG);
    ck_assert_int_gt((int)strlen(option->help), 0);
    ck_assert_int_ne(option->help[strlen(option->help) - 1], '.');
}

static void see_job_option(const struct spec_option *option, void *arg)
{
    see(arg, option->flag, cli_job_letter(option->flag));
}

TEST(no_command_has_two_options_of_one_name_or_letter)
{
    size_t count;
    const struct cli_command *all = cli_commands(&count);

    for (size_t i = 0; i < count; i++) {
        struct seen seen = { .count = 0 };
        cli_each_option(&all[i], see_option, &seen);
        cli_each_job_option(&all[i], see_job_option, &seen);
        ck_assert_ptr_eq(cli_find_command(all[i].name), &all[i]);
        ck_assert_int_ne(all[i].summary[strlen(all[i].summary) - 1], '.');
    }
}

static void flag_is_taken(const struct spec_option *option, void *arg)
{
    (void)arg;
    char word[80];
    (void)snprintf(word, sizeof word, "--%s=\x01", option->flag);
    int r = PARSE("add", word, "--", "true");
    if (r < 0)
        ck_assert_msg(strstr(err.msg, "unknown option") == NULL, "%s: %s", word, err.msg);
}

TEST(every_job_option_with_a_flag_is_known_to_add)
{
    cli_each_job_option(cli_find_command("add"), flag_is_taken, NULL);
}

/* ---- jobs ---- */

TEST(bytes_that_are_not_utf8_travel_as_base64)
{
    char *argv[] = { (char *)(uintptr_t) "x", (char *)(uintptr_t) "a\xff" };
    SCOPED_JSON *job = json_object();

    ck_assert_int_eq(job_set_exec(job, argv, 2), 0);
    const json_t *exec = json_object_get(job, "exec");
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(exec, 1), "b64")), "Yf8=");
}

TEST(relative_paths_become_absolute_and_braces_of_the_directory_stay)
{
    char dir[] = "/tmp/mandor-{x}-XXXXXX", want[256];

    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert_int_eq(PARSE("add", "--cwd", "sub", "--stdin", "file:./in", "--stdout",
                           "file:{id}.out", "--stderr", "file:/abs", "--", "true"),
                     0);
    ck_assert_int_eq(rmdir(dir), 0);

    const char *suffix = dir + strlen("/tmp/mandor-{x}-");
    (void)snprintf(want, sizeof want, "%s/sub", dir);
    ck_assert_str_eq(json_string_value(json_object_get(cli.job, "cwd")), want);
    (void)snprintf(want, sizeof want, "file:/tmp/mandor-{{x}-%s/in", suffix);
    ck_assert_str_eq(json_string_value(json_object_get(cli.job, "stdin")), want);
    (void)snprintf(want, sizeof want, "file:/tmp/mandor-{{x}-%s/{id}.out", suffix);
    ck_assert_str_eq(json_string_value(json_object_get(cli.job, "stdout")), want);
    ck_assert_str_eq(json_string_value(json_object_get(cli.job, "stderr")), "file:/abs");
}

/* ---- lines ---- */

/* Feed text in pieces of `step` bytes through a pipe and join what comes with "|"; too long ones are "!". */
static void read_lines(const char *text, size_t len, size_t step, size_t max, char delim,
                       struct buf *out)
{
    struct lines lines;
    int ends[2];
    const char *line;
    size_t line_len, sent = 0, numbers = 0;
    enum lines_result result;

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    lines_init(&lines, ends[0], delim, max);
    while ((result = lines_next(&lines, &line, &line_len)) != LINES_END) {
        if (result == LINES_WANT) {
            size_t n = MIN(step, len - sent);
            if (n > 0)
                ck_assert_int_eq(write(ends[1], text + sent, n), (ssize_t)n);
            else
                (void)close(ends[1]);
            sent += n;
            ck_assert_int_eq(lines_fill(&lines), 0);
            continue;
        }
        ck_assert_uint_eq(lines.number, ++numbers);
        if (result == LINES_TOO_LONG)
            ck_assert_int_eq(buf_adds(out, "!"), 0);
        else
            ck_assert_int_eq(buf_add(out, line, line_len), 0);
        ck_assert_int_eq(buf_adds(out, "|"), 0);
    }
    lines_done(&lines);
    (void)close(ends[0]);
}

TEST(lines_are_the_same_however_they_arrive)
{
    static const char text[] = "one\n\n  two \r\ntoolonger\nend\xff";

    for (size_t step = 1; step < sizeof text; step++) {
        SCOPED_BUF out = { .data = NULL };
        read_lines(text, sizeof text - 1, step, 8, '\n', &out);
        ck_assert_str_eq(out.data, "one||  two \r|!|end\xff|");
    }
}

TEST(lines_may_end_in_nul)
{
    SCOPED_BUF out = { .data = NULL };
    read_lines("a\nb\0\0c", 6, 2, 100, '\0', &out);
    ck_assert_str_eq(out.data, "a\nb||c|");
}

TEST(a_line_without_end_takes_no_more_memory_than_its_bound)
{
    struct lines lines;
    const char *line;
    size_t len;
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    lines_init(&lines, fd, '\n', (size_t)1 << 20);
    for (int i = 0; i < 64; i++) {
        ck_assert_int_eq(lines_next(&lines, &line, &len), LINES_WANT);
        ck_assert_int_eq(lines_fill(&lines), 0);
        ck_assert_uint_le(lines.in.len, (size_t)3 << 20);
    }
    lines_done(&lines);
    (void)close(fd);
}

/* ---- text ---- */

static const struct {
    const char *bytes, *want;
} escapes[] = {
    { "plain é 日本", "plain é 日本" },
    { "a\nb\tc\r", "a\\nb\\tc\\r" },
    { "\033[31mred\007\177", "\\x1b[31mred\\x07\\x7f" },
    { "\xc2\x9b"
      "1m",
      "\\x9b1m" },
    { "bad \xff\xfe", "bad \\xff\\xfe" },
    { "\xe2\x80\xae"
      "abc",
      "\\u202eabc" },
    { "cut \xe2\x80", "cut \\xe2\\x80" },
};

TEST_EACH(control_characters_never_reach_a_terminal, ARRAY_LEN(escapes))
{
    SCOPED_BUF safe = { .data = NULL };
    ck_assert_int_eq(text_escape(&safe, escapes[_i].bytes, strlen(escapes[_i].bytes)), 0);
    ck_assert_str_eq(safe.data, escapes[_i].want);
}

TEST(a_command_is_shown_as_it_would_be_typed)
{
    SCOPED_BUF text = { .data = NULL };
    SCOPED_JSON *spec = json_pack("{s:[s, s, s, s]}", "exec", "sh", "-c", "it's; x", "");

    ck_assert_int_eq(text_command(&text, spec), 0);
    ck_assert_str_eq(text.data, "sh -c 'it'\\''s; x' ''");
}

TEST(ages_take_their_largest_unit)
{
    char buf[32];
    ck_assert_str_eq(text_age(1000, 500, buf), "0s");
    ck_assert_str_eq(text_age(0, 59999, buf), "59s");
    ck_assert_str_eq(text_age(0, 3599999, buf), "59m");
    ck_assert_str_eq(text_age(0, INT64_C(3) * 86400000, buf), "3d");
}

/* ---- live sockets ---- */

static int listen_at(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    return fd;
}

TEST(frames_are_whole_however_they_arrive)
{
    static const char stream[] = "\x01\x03\0\0\0abc"
                                 "\x02\0\0\0\0"
                                 "\x04\x02\0\0\0{}";
    char dir[] = "/tmp/mandor-live-XXXXXX", path[128], line[32] = "";
    SCOPED(live_close) struct live *live = NULL;
    struct live_frame frame;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/run", dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/run/w.live", dir);
    int server = listen_at(path);

    char **names = live_workers(dir);
    ck_assert_str_eq(names[0], "w");
    ck_assert_ptr_null(names[1]);
    words_free(names);

    ck_assert_int_eq(live_open(dir, "w", "hello\n", &live, &err), 0);
    int peer = accept(server, NULL, NULL);
    ck_assert_int_eq(read(peer, line, sizeof line), 6);
    ck_assert_str_eq(line, "hello\n");

    ck_assert_int_eq(live_read(live, 0, &frame), 0);
    for (size_t i = 0; i < 7; i++)
        ck_assert_int_eq(write(peer, stream + i, 1), 1);
    ck_assert_int_eq(live_read(live, 1, &frame), 0);
    ck_assert_int_eq(write(peer, stream + 7, sizeof stream - 8), (ssize_t)sizeof stream - 8);
    ck_assert_int_eq(live_read(live, 1000, &frame), 1);
    ck_assert_int_eq(frame.kind, LIVE_STDOUT);
    ck_assert_mem_eq(frame.bytes, "abc", 3);
    ck_assert_int_eq(live_read(live, 1000, &frame), 1);
    ck_assert_uint_eq(frame.len, 0);
    ck_assert_int_eq(live_read(live, 1000, &frame), 1);
    ck_assert_int_eq(frame.kind, LIVE_ENDED);
    (void)close(peer);
    ck_assert_int_eq(live_read(live, 1000, &frame), -EPIPE);

    (void)close(server);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/run", dir);
    (void)rmdir(path);
    (void)rmdir(dir);
}

TEST(what_speaks_another_protocol_is_refused)
{
    char dir[] = "/tmp/mandor-live-XXXXXX", path[128];
    SCOPED(live_close) struct live *live = NULL;
    struct live_frame frame;

    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/run", dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/run/w.live", dir);
    int server = listen_at(path);

    ck_assert_int_eq(live_open(dir, "nobody", "x\n", &live, &err), -ENOENT);
    ck_assert_int_eq(live_open(dir, "w", "x\n", &live, &err), 0);
    int peer = accept(server, NULL, NULL);
    ck_assert_int_eq(write(peer, "HTTP/1.1 400", 12), 12);
    ck_assert_int_eq(live_read(live, 1000, &frame), -EPROTO);
    (void)close(peer);
    (void)close(server);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/run", dir);
    (void)rmdir(path);
    (void)rmdir(dir);
}

/* ---- brokers ---- */

TEST(the_default_database_is_below_the_state_directory)
{
    char *path;

    (void)setenv("XDG_STATE_HOME", "/s", 1);
    path = client_sqlite_path("sqlite:");
    ck_assert_int_eq(strncmp(path, "/s/mandor/", 10), 0);
    free(path);
    path = client_sqlite_path("sqlite:rel.db");
    ck_assert_str_eq(path, "rel.db");
    free(path);
    ck_assert_ptr_null(client_sqlite_path("bullmq://h"));
}

/* ---- what a run notes of its uploads ---- */

static void *let_go(void *fd)
{
    (void)poll(NULL, 0, 50);
    (void)close(*(int *)fd);
    return NULL;
}

TEST(a_run_waits_for_another_that_sweeps_its_journal)
{
    char state[] = "/tmp/test_cli.XXXXXX";
    SCOPED_FREE char *path = NULL;
    struct run_left left;
    pthread_t thread;

    ck_assert_ptr_nonnull(mkdtemp(state));
    (void)setenv("XDG_STATE_HOME", state, 1);
    ck_assert_int_eq(run_left_open(&left, "one", &err), 0);
    ck_assert_int_gt(asprintf(&path, "%s", left.journal), 0);
    run_left_close(&left);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, let_go, &fd), 0);
    ck_assert_int_eq(run_left_open(&left, "one", &err), 0);
    (void)pthread_join(thread, NULL);
    run_left_close(&left);
    (void)tree_remove(state);
}

UNIT_MAIN("cli", .set_up = setup, .tear_down = teardown)

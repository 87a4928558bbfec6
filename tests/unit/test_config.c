/* test_config.c - mandor.yaml: what it may say, and messages with file, line and key. */
#include "config/config.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/json.h"
#include "config/param.h"
#include "lib/unit.h"

static struct mandor_err err;

static struct config *parse(const char *text)
{
    struct config *config = NULL;

    ck_assert_msg(config_parse("mandor.yaml", text, strlen(text), &config, &err) == 0, "%s",
                  err.msg);
    return config;
}

TEST(an_empty_file_means_the_defaults)
{
    static const char *const empty[] = { "", "\n\n", "# nothing\n", "---\n", "{}" };

    for (size_t i = 0; i < ARRAY_LEN(empty); i++) {
        struct config *config = parse(empty[i]);
        ck_assert_str_eq(config->path, "mandor.yaml");
        ck_assert_ptr_null(config->broker);
        ck_assert_int_ge(config->concurrency, 1);
        ck_assert_int_eq(config->shutdown_timeout_ms, 30000);
        ck_assert_int_eq(config->buffer_max_bytes, 128 << 20);
        ck_assert_int_eq(config->lease_ms, 30000);
        ck_assert_str_eq(config->log_format, "logfmt");
        ck_assert_str_eq(config->containment, "auto");
        ck_assert_uint_eq(config->queue_count, 0);
        ck_assert_ptr_null(config->env_pass[0]);
        const struct config_queue *queue = config_queue(config, "any");
        ck_assert_int_eq(queue->weight, 1);
        ck_assert_int_eq(queue->concurrency, 0);
        ck_assert_int_eq(queue->keep_completed_ms, INT64_C(604800000));
        ck_assert_int_eq(queue->keep_completed_count, 10000);
        ck_assert_int_eq(queue->keep_failed_ms, INT64_C(2592000000));
        ck_assert_int_eq(queue->keep_failed_count, 0);
        config_free(config);
    }
}

TEST(every_key_reaches_its_field)
{
    struct config *config = parse("broker: sqlite:/var/lib/mandor/queue.db # a comment\n"
                                  "concurrency: 4\n"
                                  "shutdown_timeout: 1m\n"
                                  "buffer_max: 64M\n"
                                  "lease: 20s\n"
                                  "log_format: json\n"
                                  "containment: pidns\n"
                                  "env_pass: [SSL_CERT_FILE, \"FOO\"]\n"
                                  "queues:\n"
                                  "  default: {}\n"
                                  "  empty:\n"
                                  "  transcode:\n"
                                  "    concurrency: 2\n"
                                  "    weight: 3\n"
                                  "    keep_completed: 1d\n"
                                  "    keep_failed: {age: 2d, count: 5}\n"
                                  "    stdout: \"file:/out/{id}\"\n"
                                  "    timeout: 10m\n"
                                  "    attempts: 3\n"
                                  "    no_new_privs: false\n"
                                  "    no_retry_exit_codes: [1, 2]\n"
                                  "    limits: {memory: 2G, cpu: 0.5}\n"
                                  "    env: {N: 1, LANG: C}\n");

    ck_assert_str_eq(config->broker, "sqlite:/var/lib/mandor/queue.db");
    ck_assert_int_eq(config->concurrency, 4);
    ck_assert_int_eq(config->shutdown_timeout_ms, 60000);
    ck_assert_int_eq(config->buffer_max_bytes, 64 << 20);
    ck_assert_int_eq(config->lease_ms, 20000);
    ck_assert_str_eq(config->log_format, "json");
    ck_assert_str_eq(config->containment, "pidns");
    ck_assert_str_eq(config->env_pass[0], "SSL_CERT_FILE");
    ck_assert_str_eq(config->env_pass[1], "FOO");
    ck_assert_ptr_null(config->env_pass[2]);
    ck_assert_uint_eq(config->queue_count, 3);
    ck_assert_str_eq(config_queue(config, "empty")->name, "empty");
    const struct config_queue *queue = config_queue(config, "transcode");
    ck_assert_int_eq(queue->concurrency, 2);
    ck_assert_int_eq(queue->weight, 3);
    ck_assert_int_eq(queue->keep_completed_ms, 86400000);
    ck_assert_int_eq(queue->keep_completed_count, 0);
    ck_assert_int_eq(queue->keep_failed_ms, 172800000);
    ck_assert_int_eq(queue->keep_failed_count, 5);
    char *text = json_text(queue->defaults);
    ck_assert_str_eq(
        text,
        "{\"stdout\":\"file:/out/{id}\",\"timeout\":\"10m\",\"attempts\":3,\"no_new_privs\":false,"
        "\"no_retry_exit_codes\":[1,2],\"limits\":{\"memory\":\"2G\",\"cpu\":0.5},"
        "\"env\":{\"N\":\"1\",\"LANG\":\"C\"}}");
    free(text);
    config_free(config);
    ck_assert_ptr_null(config_free(NULL));
}

static const struct {
    const char *yaml, *message;
} bad[] = {
    { "queues:\n  transcode:\n    timout: 1s\n",
      "mandor.yaml:3: queues.transcode.timout: unknown key, did you mean 'timeout'?" },
    { "queues:\n  t:\n    wieght: 1\n",
      "mandor.yaml:3: queues.t.wieght: unknown key, did you mean 'weight'?" },
    { "queues:\n  t:\n    limits:\n      memry: 1\n",
      "mandor.yaml:4: queues.t.limits.memry: unknown key, did you mean 'memory'?" },
    { "\nconcurency: 3\n", "mandor.yaml:2: concurency: unknown key, did you mean 'concurrency'?" },
    { "pool: {}\n", "mandor.yaml:1: pool: unknown key, did you mean 'pools'?" },
    { "pools: [a]\n", "mandor.yaml:1: pools: expected a mapping of pool names" },
    { "pools:\n  t: {size: 2}\n",
      "mandor.yaml:2: pools.t: no command, expected one such as [python3, worker.py]" },
    { "pools:\n  t: {command: []}\n",
      "mandor.yaml:2: pools.t.command: expected a list of words such as [python3, worker.py]" },
    { "pools:\n  t: {command: [a], siez: 2}\n",
      "mandor.yaml:2: pools.t.siez: unknown key, did you mean 'size'?" },
    { "pools:\n  t: {command: [a], size: 0}\n",
      "mandor.yaml:2: pools.t.size: expected at least one worker, as 4 or {min: 0, max: 8}" },
    { "pools:\n  t: {command: [a], size: {min: 3, max: 2}}\n",
      "mandor.yaml:2: pools.t.size: min is 3 and max 2, expected no more than max" },
    { "pools:\n  t: {command: [a], contamination: no}\n",
      "mandor.yaml:2: pools.t.contamination: expected one of report|recycle|off, got 'no'" },
    { "python: [a]\n",
      "mandor.yaml:1: python: expected a mapping such as {store: /var/lib/mandor/wheels}" },
    { "python: {stroe: /x}\n", "mandor.yaml:1: python.stroe: unknown key, did you mean 'store'?" },
    { "python:\n  runtimes:\n    d: {package: [numpy]}\n",
      "mandor.yaml:3: python.runtimes.d.package: unknown key, did you mean 'packages'?" },
    { "python:\n  runtimes:\n    d: {packages: numpy}\n",
      "mandor.yaml:3: python.runtimes.d.packages: expected a list of names such as [numpy, "
      "pandas]" },
    { "python:\n  runtimes:\n    d: {isolation: thread}\n",
      "mandor.yaml:3: python.runtimes.d.isolation: expected one of fork|scope|instance, got "
      "'thread'" },
    { "python:\n  runtimes:\n    d: {hash_seed: x}\n",
      "mandor.yaml:3: python.runtimes.d.hash_seed: 'x' is no number, expected a whole number" },
    { "queues:\n  t: {executors: exec}\n",
      "mandor.yaml:2: queues.t.executors: unknown key, did you mean 'executor'?" },
    { "queues:\n  t: {unique: x}\n",
      "mandor.yaml:2: queues.t.unique: belongs to a job, not to a queue" },
    { "queues:\n  t: {limits.memory: 1G}\n",
      "mandor.yaml:2: queues.t.limits.memory: unknown key, expected 'memory' in 'limits'" },
    { "queues:\n  t: {limits: 1G}\n", "mandor.yaml:2: queues.t.limits: expected a mapping" },
    { "queues:\n  t: 5\n",
      "mandor.yaml:2: queues.t: expected a mapping of queue keys and job options, or {}" },
    { "queues: [a]\n", "mandor.yaml:1: queues: expected a mapping of queue names" },
    { "queues:\n  t:\n    timeout: 5x\n",
      "mandor.yaml:3: queues.t.timeout: '5x' is wrong at character 2, expected a duration such as "
      "500ms, 30s, 5m, 1h30m "
      "or 7d" },
    { "queues:\n  t: {timeout: 5000}\n",
      "mandor.yaml:2: queues.t.timeout: '5000' lacks a unit, expected a duration such as 500ms, "
      "30s, 5m, 1h30m or 7d" },
    { "queues:\n  t: {no_new_privs: yes}\n",
      "mandor.yaml:2: queues.t.no_new_privs: expected true or false, got 'yes'" },
    { "queues:\n  t: {cwd: srv}\n",
      "mandor.yaml:2: queues.t.cwd: 'srv' is relative, expected an absolute path" },
    { "queues:\n  t: {no_retry_exit_codes: [1, x]}\n",
      "mandor.yaml:2: queues.t.no_retry_exit_codes: 'x' is no number, expected a whole number" },
    { "queues:\n  t: {env: {MANDOR_X: 1}}\n",
      "mandor.yaml:2: queues.t.env.MANDOR_X: names that start with MANDOR_ are mandor's own, "
      "expected another name" },
    { "queues:\n  t: {backoff: {delay: 10m, max: 1m}}\n",
      "mandor.yaml:2: queues.t: backoff.max: 1m is shorter than backoff.delay 10m, expected at "
      "least that" },
    { "queues:\n  t: {keep_failed: {ages: 1d}}\n",
      "mandor.yaml:2: queues.t.keep_failed.ages: unknown key, did you mean 'age'?" },
    { "queues:\n  t: {keep_failed: {count: -1}}\n",
      "mandor.yaml:2: queues.t.keep_failed.count: '-1' is out of range, expected a whole number of "
      "at least 0" },
    { "queues:\n  \"a\\tb\": {}\n",
      "mandor.yaml:2: queues.a\tb: control character at byte 2, expected a printable name" },
    { "concurrency: 0\n",
      "mandor.yaml:1: concurrency: '0' is out of range, expected a whole number from 1 to 100000" },
    { "concurrency: four\n",
      "mandor.yaml:1: concurrency: 'four' is no number, expected a whole number" },
    { "lease: 1s\n", "mandor.yaml:1: lease: '1s' is out of range, expected 10s to 1d" },
    { "containment: jail\n",
      "mandor.yaml:1: containment: expected one of auto|cgroup|pidns|group|strict, got 'jail'" },
    { "broker:\n", "mandor.yaml:1: broker: no value, expected one" },
    { "broker: ~\n", "mandor.yaml:1: broker: no value, expected one" },
    { "broker: \"\"\n", "mandor.yaml:1: broker: empty, expected text" },
    { "broker: [1]\n", "mandor.yaml:1: broker: expected one value, or {file: PATH}, got a list" },
    { "broker: {fiel: x}\n",
      "mandor.yaml:1: broker: expected one value, or {file: PATH}, got a mapping" },
    { "broker: {file: /nonexistent/x}\n",
      "mandor.yaml:1: broker: file '/nonexistent/x': No such file or directory" },
    { "broker: {file: /dev/null}\n", "mandor.yaml:1: broker: '/dev/null' is no regular file" },
    { "broker: ${MANDOR_TEST_NOT_SET}\n", "mandor.yaml:1: broker: variable 'MANDOR_TEST_NOT_SET' "
                                          "is not set, expected it in the environment" },
    { "broker: \"${A\"\n",
      "mandor.yaml:1: broker: '${A' is no variable, expected ${NAME}, or $$ for a dollar sign" },
    { "env_pass: A\n",
      "mandor.yaml:1: env_pass: expected a list of variable names such as [SSL_CERT_FILE]" },
    { "env_pass: [A, B=C]\n", "mandor.yaml:1: env_pass: 'B=C' is no variable's name" },
    { "env_pass:\n  - A\n  - MANDOR_BROKER\n",
      "mandor.yaml:3: env_pass: 'MANDOR_BROKER': names that start with MANDOR_ are mandor's own, "
      "jobs get their own values" },
    { "- a\n", "mandor.yaml:1: expected a mapping of keys at the top" },
    { "broker: a\nlease: 30s\nbroker: b\n",
      "mandor.yaml:3: duplicate key 'broker', it stands in line 1 already" },
    { "broker: &x a\n",
      "mandor.yaml:1:9: anchors (&name) are not supported, expected a plain value" },
    { "broker: *x\n",
      "mandor.yaml:1:9: aliases (*name) are not supported, expected the value itself" },
    { "broker: !secret x\n",
      "mandor.yaml:1:9: tags (!name) are not supported, expected a plain value" },
    { "queues:\n\tdefault: {}\n", "mandor.yaml:2:1: a tab in the indentation, expected spaces" },
    { "a: b: c\n", "mandor.yaml:1:5: mapping values are not allowed in this context" },
    { "a: \"x\n",
      "mandor.yaml:2:1: found unexpected end of stream while scanning a quoted scalar" },
    { "a: 1\n---\nb: 2\n", "mandor.yaml:2:1: a second document, expected one only" },
    { "? [a]\n: b\n", "mandor.yaml:1:3: a list or a mapping as key, expected a word" },
    { "broker: \"a\\0b\"\n",
      "mandor.yaml:1:9: a scalar holds a NUL character, which is not allowed" },
    { "a: \xff\n", "mandor.yaml: byte 4: invalid leading UTF-8 octet, expected UTF-8" },
    { "[[[[[[[[[[[[[[[[[[[[[[[", "mandor.yaml:1:17: nested too deeply" },
};

TEST(python_section_names_store_and_runtimes)
{
    SCOPED(config_free)
    struct config *config = parse("python:\n"
                                  "  store: /var/lib/mandor/wheels\n"
                                  "  node: /opt/node/bin/node\n"
                                  "  runtimes:\n"
                                  "    data: {packages: [numpy, pandas], preload: [numpy],\n"
                                  "           isolation: scope, spare: 5, hash_seed: 7}\n"
                                  "    default: {spare: 1}\n");

    ck_assert_str_eq(config->python.store, "/var/lib/mandor/wheels");
    ck_assert_str_eq(config->python.node, "/opt/node/bin/node");
    ck_assert_uint_eq(config->python.runtime_count, 2);

    const struct python_runtime *plain = &config->python.runtimes[0];
    ck_assert_str_eq(plain->name, "default");
    ck_assert_int_eq(plain->spare, 1);
    ck_assert_str_eq(plain->isolation, "fork");
    ck_assert_str_eq(plain->sandbox, "strict");
    ck_assert_ptr_null(plain->packages);

    const struct python_runtime *data = &config->python.runtimes[1];
    ck_assert_str_eq(data->name, "data");
    ck_assert_str_eq(data->packages[1], "pandas");
    ck_assert_ptr_null(data->packages[2]);
    ck_assert_str_eq(data->preload[0], "numpy");
    ck_assert_str_eq(data->isolation, "scope");
    ck_assert_int_eq(data->spare, 5);
    ck_assert_int_eq(data->recycle_jobs, 100);
    ck_assert_int_eq(data->result_max_bytes, 16 << 20);
    ck_assert_str_eq(data->hash_seed, "7");
}

TEST(a_runtime_default_is_always_there)
{
    SCOPED(config_free) struct config *config = parse("concurrency: 4\n");

    ck_assert_uint_eq(config->python.runtime_count, 1);
    ck_assert_str_eq(config->python.runtimes[0].name, "default");
    ck_assert_int_eq(config->python.runtimes[0].spare, 2);
    ck_assert_ptr_null(config->python.store);
}

TEST(a_message_names_file_line_and_key)
{
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct config *config = NULL;
        err_clear(&err);
        ck_assert_msg(
            config_parse("mandor.yaml", bad[i].yaml, strlen(bad[i].yaml), &config, &err) == -EINVAL,
            "taken: %s", bad[i].yaml);
        ck_assert_ptr_null(config);
        ck_assert_str_eq(err.msg, bad[i].message);
        ck_assert_int_eq(err.fault, FAULT_CALLER);
        ck_assert_int_eq(
            config_parse("mandor.yaml", bad[i].yaml, strlen(bad[i].yaml), &config, NULL), -EINVAL);
    }
}

TEST(variables_come_from_the_environment)
{
    ck_assert_int_eq(setenv("MANDOR_TEST_HOST", "db: {evil: [", 1), 0);
    ck_assert_int_eq(setenv("MANDOR_TEST_EMPTY", "", 1), 0);
    struct config *config = parse("broker: a${MANDOR_TEST_HOST}b${MANDOR_TEST_EMPTY}$${X}$c$\n");

    /* A value is text: it cannot become YAML. */
    ck_assert_str_eq(config->broker, "adb: {evil: [b${X}$c$");
    config_free(config);
}

/* ---- files ---- */

static char dir[64];

static void write_file(const char *name, const char *text)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), strlen(text));
    ck_assert_int_eq(close(fd), 0);
}

static const char *path_of(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void make_dir(void)
{
    (void)snprintf(dir, sizeof dir, "/tmp/mandor-test-config.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void remove_dir(void)
{
    static const char *const names[] = {
        "mandor/mandor.yaml", "mandor", "c.yaml", "secret", "fifo", ""
    };

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        (void)remove(path_of(names[i]));
}

TEST(a_secret_is_read_from_its_file_beside_the_configuration)
{
    struct config *config = NULL;

    make_dir();
    write_file("secret", "redis://:pw${X}@h\n");
    write_file("c.yaml", "broker: {file: secret}\n");
    ck_assert_msg(config_load(path_of("c.yaml"), &config, &err) == 0, "%s", err.msg);
    ck_assert_str_eq(config->broker, "redis://:pw${X}@h"); /* one newline gone, nothing expanded */
    config_free(config);
    ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0);
    write_file("c.yaml", "broker: {file: fifo}\n");
    /* And does not hang. */
    ck_assert_int_eq(config_load(path_of("c.yaml"), &config, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "is no regular file"));
    remove_dir();
}

TEST(the_file_is_looked_for_in_its_places)
{
    struct config *config = NULL;

    make_dir();
    ck_assert_int_eq(unsetenv("MANDOR_CONFIG"), 0);
    ck_assert_int_eq(setenv("XDG_CONFIG_HOME", dir, 1), 0);
    ck_assert_int_eq(mkdir(path_of("mandor"), 0700), 0);
    write_file("mandor/mandor.yaml", "concurrency: 7\n");
    ck_assert_int_eq(config_load(NULL, &config, &err), 0);
    ck_assert_int_eq(config->concurrency, 7);
    ck_assert_str_eq(config->path, path_of("mandor/mandor.yaml"));
    config_free(config);

    write_file("c.yaml", "concurrency: 8\n");
    ck_assert_int_eq(setenv("MANDOR_CONFIG", path_of("c.yaml"), 1), 0);
    ck_assert_int_eq(config_load(NULL, &config, &err), 0);
    ck_assert_int_eq(config->concurrency, 8);
    config_free(config);

    /* Named, so it must be there. */
    ck_assert_int_eq(setenv("MANDOR_CONFIG", "/nonexistent.yaml", 1), 0);
    ck_assert_int_eq(config_load(NULL, &config, &err), -EINVAL);
    ck_assert_str_eq(err.msg, "configuration '/nonexistent.yaml': No such file or directory");
    ck_assert_int_eq(config_load(dir, &config, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "Is a directory"));
    remove_dir();
}

TEST(a_file_that_is_no_configuration_is_not_swallowed)
{
    struct config *config = NULL;

    ck_assert_int_eq(config_load("/dev/zero", &config, &err), -EINVAL);
    ck_assert_str_eq(
        err.msg, "configuration '/dev/zero' is longer than 1048576 bytes, is it the right file?");
}

TEST(the_table_of_keys_is_printable)
{
    size_t count;
    const struct param *params = param_rows(&count);

    ck_assert_uint_ge(count, 13);
    for (size_t i = 0; i < count; i++)
        ck_assert(params[i].path[0] != '\0' && param_type_name(&params[i])[0] != '\0' &&
                  params[i].help[0] != '\0');
}

UNIT_MAIN("config")

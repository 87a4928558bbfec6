/* What a job says on descriptor 3: every chunking gives the same values, and nonsense never hurts. */
#include <stdio.h>

#include "exec/channel.h"
#include "lib/unit.h"

struct heard {
    char text[512];
};

static void on_value(void *arg, const char *kind, json_t *value)
{
    struct heard *heard = arg;
    size_t used = strlen(heard->text);
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

    (void)snprintf(heard->text + used, sizeof heard->text - used, "%s=%s;", kind, text);
    free(text);
}

static struct heard hear(const char *bytes, size_t len, size_t chunk, int64_t *ret_skipped)
{
    struct heard heard = { "" };
    struct channel_parser parser = { 0 };

    for (size_t at = 0; at < len; at += chunk)
        channel_parse(&parser, bytes + at, MIN(chunk, len - at), on_value, &heard);
    channel_parse_end(&parser, on_value, &heard);
    *ret_skipped = parser.skipped;
    return heard;
}

TEST(values_arrive_whole_in_any_chunking)
{
    static const char said[] = "{\"progress\": 42}\n\n{\"log\": \"h\\u00e9\\ud800\"}\n{\"result\": "
                               "{\"a\": [1]}, \"progress\": 100}";
    int64_t skipped;

    for (size_t chunk = 1; chunk <= sizeof said; chunk++) {
        struct heard heard = hear(said, sizeof said - 1, chunk, &skipped);
        ck_assert_str_eq(
            heard.text,
            "progress=42;log=\"h\xc3\xa9\xef\xbf\xbd\";progress=100;result={\"a\":[1]};");
        ck_assert_int_eq(skipped, 0);
    }
}

TEST(nonsense_is_skipped_and_counted)
{
    static const char said[] = "hello\n{\"progress\": }\n[1]\n{\"other\": 1}\n{\"progress\": 7}\n";
    int64_t skipped;
    struct heard heard = hear(said, sizeof said - 1, 5, &skipped);

    ck_assert_str_eq(heard.text, "progress=7;");
    ck_assert_int_eq(skipped, 4);
}

TEST(a_line_that_is_too_long_is_skipped_and_the_next_one_heard)
{
    size_t len = CHANNEL_LINE_MAX + 100;
    char *said = malloc(len + 32);
    int64_t skipped;

    memset(said, 'x', len);
    memcpy(said + len, "\n{\"progress\": 1}\n", 18);
    struct heard heard = hear(said, len + 17, 65536, &skipped);
    ck_assert_str_eq(heard.text, "progress=1;");
    ck_assert_int_eq(skipped, 1);
    free(said);
}

/* {"KIND": [item, item, …]} as one line. */
static char *list_of(const char *kind, const char *item, size_t count, size_t *ret_len)
{
    char *text = malloc(64 + count * (strlen(item) + 1)), *at = text;

    at += sprintf(at, "{\"%s\": [", kind);
    for (size_t i = 0; i < count; i++)
        at += sprintf(at, "%s%s", i > 0 ? "," : "", item);
    at += sprintf(at, "]}\n");
    *ret_len = (size_t)(at - text);
    return text;
}

static struct channel_parser parse_list(const char *kind, const char *item, size_t count)
{
    struct channel_parser parser = { .line_max = (size_t)16 << 20 };
    struct heard heard = { "" };
    size_t len;
    char *text = list_of(kind, item, count, &len);

    for (size_t at = 0; at < len; at += 16384)
        channel_parse(&parser, text + at, MIN((size_t)16384, len - at), on_value, &heard);
    channel_parse_end(&parser, on_value, &heard);
    free(text);
    return parser;
}

TEST(a_line_that_would_be_large_in_memory_is_refused)
{
    static const struct {
        const char *kind, *item;
        size_t count;
        int64_t skipped, refused;
    } cases[] = {
        { "result", "12", 1000000, 0, 0 },         { "result", "12", 1100000, 1, 1 },
        { "result", "{}", 100000, 0, 0 },          { "result", "{}", 200000, 1, 1 },
        { "result", "[]", 300000, 1, 1 },          { "result", "\"{[,:{\"", 200000, 0, 0 },
        { "progress", "123456789", 100000, 0, 0 }, { "progress", "123456789", 110000, 1, 0 },
        { "result", "123456789", 110000, 0, 0 },   { "progress", "{}", 200000, 1, 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct channel_parser parser = parse_list(cases[i].kind, cases[i].item, cases[i].count);
        ck_assert_msg(parser.skipped == cases[i].skipped && parser.refused == cases[i].refused,
                      "case %zu: %d skipped, %d refused", i, (int)parser.skipped,
                      (int)parser.refused);
    }
}

UNIT_MAIN("channel")

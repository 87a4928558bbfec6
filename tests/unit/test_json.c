/* test_json.c - errors that name the place, bytes that are not text. */
#include "base/json.h"

#include "base/utf8.h"
#include "lib/unit.h"

static struct mandor_err err;

static const struct {
    const char *text, *message;
} bad[] = {
    { "{\"a\": 1,\n \"timeout\": 2, \"timeout\": 3}",
      "JSON, line 2, column 24, byte 33: duplicate key 'timeout', expected each key once" },
    { "{\"a key of many words indeed\":1,\"a key of many words indeed\":1}",
      "JSON, line 1, column 60, byte 60: duplicate key 'a key of many words indeed', expected each "
      "key once" },
    { "{\"a\\\"b\":1,\"a\\\"b\":1}",
      "JSON, line 1, column 16, byte 16: duplicate key 'a\\\"b', expected each key once" },
    { "", "JSON, line 1, column 0, byte 0: unexpected token near end of file" },
    { "[1]x", "JSON, line 1, column 4, byte 4: end of file expected near 'x'" },
    { "{\"a\" 1}", "JSON, line 1, column 6, byte 6: ':' expected near '1'" },
    { "\"\\u0000\"",
      "JSON, line 1, column 8, byte 8: a string holds a NUL character, which is not allowed" },
    { "{\"\\u0000\":1}", NULL },
    { "\"\xff\"", NULL },
    { "1e999", NULL },
    { "99999999999999999999", NULL },
    { "[NaN]", NULL },
    { "'a'", NULL },
};

TEST(bad_json_says_line_column_and_byte)
{
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        json_t *json = NULL;
        err_clear(&err);
        ck_assert_int_eq(json_parse(bad[i].text, strlen(bad[i].text), &json, &err), -EINVAL);
        ck_assert_ptr_null(json);
        ck_assert_int_eq(err.fault, FAULT_CALLER);
        ck_assert_msg(strncmp(err.msg, "JSON, line ", 11) == 0, "%s", err.msg);
        if (bad[i].message != NULL)
            ck_assert_str_eq(err.msg, bad[i].message);
    }
}

TEST(any_value_parses_and_prints_compactly)
{
    static const char *const values[] = { "1",
                                          "\"x\"",
                                          "null",
                                          "[1,2.5,{\"b\":1,\"a\":2}]",
                                          "0.2",
                                          "1e300",
                                          "0.10000000000000002",
                                          "[0.1,0.30000000000000004]",
                                          "3.0",
                                          "-1.5e-7",
                                          "[]",
                                          "{}",
                                          "[true,false,[{}]]",
                                          "-9223372036854775808",
                                          "\"\\\"\\\\/\\n\\r\\t\\b\\f\\u001B \x7f ü €\"",
                                          "{\"a\\\"b\":\"\\u0001x\"}" };

    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        json_t *json;
        ck_assert_int_eq(json_parse(values[i], strlen(values[i]), &json, &err), 0);
        char *text = json_text(json);
        json_t *again;
        ck_assert_int_eq(json_parse(text, strlen(text), &again, &err), 0);
        ck_assert(json_equal(json, again));
        ck_assert_str_eq(text, values[i]);
        free(text);
        json_decref(json);
        json_decref(again);
    }
}

TEST(text_for_people_is_indented)
{
    SCOPED_JSON *json = json_pack("{s:i, s:[s, b], s:{}, s:[]}", "a", 1, "b", "x", 1, "c", "d");
    SCOPED_FREE char *text = json_text_indented(json);
    ck_assert_str_eq(
        text,
        "{\n  \"a\": 1,\n  \"b\": [\n    \"x\",\n    true\n  ],\n  \"c\": {},\n  \"d\": []\n}");
}

TEST(nesting_without_end_is_an_error_not_a_crash)
{
    static char deep[100000];
    json_t *json;

    memset(deep, '[', sizeof deep);
    ck_assert_int_eq(json_parse(deep, sizeof deep, &json, &err), -EINVAL);
}

TEST(bytes_survive_the_way_through_json)
{
    unsigned seed = 1;

    for (size_t len = 0; len < 400; len++) {
        char bytes[400] = { 0 }, *back;
        size_t back_len;
        for (size_t i = 0; i < len; i++)
            bytes[i] = (char)(len % 2 ? rand_r(&seed) % 256 : 'a' + (int)(i % 26));
        json_t *json = json_bytes(bytes, len);
        ck_assert_ptr_nonnull(json);
        if (len % 2 == 0)
            ck_assert(json_is_string(json));
        ck_assert_int_eq(json_bytes_get(json, &back, &back_len, &err), 0);
        ck_assert_uint_eq(back_len, len);
        ck_assert_mem_eq(back, bytes, len);
        ck_assert_int_eq(back[len], '\0');
        free(back);
        json_decref(json);
    }
}

TEST(text_with_nul_travels_as_base64)
{
    json_t *json = json_bytes("a\0b", 3);

    ck_assert_str_eq(json_string_value(json_object_get(json, "b64")), "YQBi");
    json_decref(json);
}

static const struct {
    const char *json, *message;
} bad_bytes[] = {
    { "{\"b64\":\"YQ\"}", "bad base64 at character 3, expected padded RFC 4648 base64" },
    { "{\"b64\":\"Y*==\"}", "bad base64 at character 2, expected padded RFC 4648 base64" },
    { "{\"b64\":\"YR==\"}", "bad base64 at character 2, expected padded RFC 4648 base64" },
    { "{\"b64\":\"====\"}", "bad base64 at character 1, expected padded RFC 4648 base64" },
    { "{\"b64\":\"\",\"x\":1}", "expected a string or {\"b64\": \"...\"}" },
    { "{\"b64\":1}", "expected a string or {\"b64\": \"...\"}" },
    { "3", "expected a string or {\"b64\": \"...\"}" },
};

TEST(bytes_that_are_neither_text_nor_base64_are_refused)
{
    for (size_t i = 0; i < ARRAY_LEN(bad_bytes); i++) {
        json_t *json;
        char *bytes;
        size_t len;
        ck_assert_int_eq(json_parse(bad_bytes[i].json, strlen(bad_bytes[i].json), &json, &err), 0);
        ck_assert_int_eq(json_bytes_get(json, &bytes, &len, &err), -EINVAL);
        ck_assert_str_eq(err.msg, bad_bytes[i].message);
        json_decref(json);
    }
}

static void check_lossy(const char *bytes, size_t len, const char *want, bool want_lossy)
{
    bool lossy;
    char *text = json_utf8_lossy(bytes, len, &lossy);

    ck_assert_str_eq(text, want);
    ck_assert_int_eq(lossy, want_lossy);
    free(text);
}
#define FFFD "\xef\xbf\xbd"

TEST(broken_utf8_becomes_the_replacement_character)
{
    check_lossy("", 0, "", false);
    check_lossy("h\xc3\xa9", 3, "h\xc3\xa9", false);
    check_lossy("\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80", false);
    check_lossy("a\xff", 2, "a" FFFD, true);
    check_lossy("\xc0\xaf", 2, FFFD FFFD, true);          /* overlong */
    check_lossy("\xed\xa0\x80", 3, FFFD FFFD FFFD, true); /* surrogate */
    check_lossy("\xf0\x9f\x98", 3, FFFD, true);           /* cut at the end: one, as browsers do */
    check_lossy("\xe2\x82"
                "A",
                3, FFFD "A", true);
    check_lossy("\xf4\x90\x80\x80", 4, FFFD FFFD FFFD FFFD, true); /* above U+10FFFF */
    check_lossy("a\0b", 3, "a" FFFD "b", true);
}

TEST(numbers_of_others_may_be_of_any_length)
{
    static const char *const rows[][2] = {
        { "[1, -2, 640]", "[1,-2,640]" },
        { "[1, 100000000000000000000, 640]", "[1,1e20,640]" },
        { "{\"a 99999999999999999999 \\\" \": -99999999999999999999}",
          "{\"a 99999999999999999999 \\\" \":-1e20}" },
        { "[100000000000000000000, 0.12345678901234567890, 1e-0000000000000000000005]",
          "[1e20,0.12345678901234568,1e-5]" },
        { "100000000000000000000", "1e20" },
        { "{\"a\": 1, \"a\": 2}", "{\"a\":2}" },
        { "\"\\ud800\"", "\"\xef\xbf\xbd\"" },
        { "[\"\\uDC00\\ud83d\\uDE00\\ud83d\", {\"\\udfff\": \"\\\\ud800\"}]",
          "[\"\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd\",{\"\xef\xbf\xbd\":\"\\\\ud800\"}]" },
        { "[\"\\ud800\\ud83d\\ude00\\ud800\\u0041\\ud800\\n\", 100000000000000000000]",
          "[\"\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd\x41\xef\xbf\xbd\\n\",1e20]" },
    };
    json_error_t why;

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        SCOPED_JSON *json = json_load_foreign(rows[i][0], strlen(rows[i][0]), &why);
        ck_assert_msg(json != NULL, "%s: %s", rows[i][0], why.text);
        SCOPED_FREE char *text = json_text(json);
        ck_assert_str_eq(text, rows[i][1]);
    }
    static const char both[] = "[-123456789012345678, 100000000000000000000]";
    SCOPED_JSON *json = json_load_foreign(both, strlen(both), &why);
    ck_assert_int_eq(json_integer_value(json_array_get(json, 0)), -123456789012345678);
    ck_assert_ptr_null(json_load_foreign("[1", 2, &why));
    ck_assert_ptr_null(json_load_foreign("[100000000000000000000", 22, &why));
    ck_assert_ptr_null(json_load_foreign("[100000000000000000000, \"a\\", 27, &why));
    SCOPED_JSON *bytes = json_load_foreign("\"a\xed\xa0\x80z\"", 7, &why);
    ck_assert_ptr_nonnull(strstr(json_string_value(bytes), "\xef\xbf\xbd"));
    ck_assert_ptr_null(json_load_foreign("[\"\\ud800\", \"\\ud8", 17, &why));
    ck_assert_ptr_null(json_load_foreign("\"\\ud80g\"", 8, &why));
}

UNIT_MAIN("json")

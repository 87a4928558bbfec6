/* test_curl.c - signatures, credentials files and XML of the S3 client, without a server. */
#include "lib/unit.h"

#include <stdio.h>

#include "curl/credentials.h"
#include "curl/sigv4.h"
#include "curl/xml.h"

/* The examples of "Signature Calculations for the Authorization Header" in Amazon S3's API reference. */
static const char access_key[] = "AKIAIOSFODNN7EXAMPLE";
static const char secret_key[] = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
static const char host[] = "examplebucket.s3.amazonaws.com";
#define WHEN INT64_C(1369353600) /* 2013-05-24T00:00:00Z */

static void check_signature(const char *method, const char *path, const char *query,
                            const char *hash, const struct sigv4_header *headers, size_t count,
                            const char *signature)
{
    struct sigv4 request = { .method = method,
                             .path = path,
                             .query = query,
                             .headers = headers,
                             .header_count = count,
                             .body_sha256 = hash,
                             .access_key = access_key,
                             .secret_key = secret_key,
                             .region = "us-east-1",
                             .service = "s3",
                             .when_s = WHEN };
    char *text = sigv4_authorization(&request);

    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_nonnull(strstr(text, "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"));
    ck_assert_str_eq(strstr(text, "Signature=") + 10, signature);
    free(text);
}

TEST(signatures_are_those_of_amazons_examples)
{
    const struct sigv4_header get[] = { { "host", host },
                                        { "range", "bytes=0-9" },
                                        { "x-amz-content-sha256", SIGV4_EMPTY },
                                        { "x-amz-date", "20130524T000000Z" } };
    check_signature("GET", "/test.txt", "", SIGV4_EMPTY, get, ARRAY_LEN(get),
                    "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");

    const char hash[] = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    const struct sigv4_header put[] = { { "date", "Fri, 24 May 2013 00:00:00 GMT" },
                                        { "host", host },
                                        { "x-amz-content-sha256", hash },
                                        { "x-amz-date", "20130524T000000Z" },
                                        { "x-amz-storage-class", "REDUCED_REDUNDANCY" } };
    check_signature("PUT", "/test%24file.text", "", hash, put, ARRAY_LEN(put),
                    "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");

    const struct sigv4_header list[] = { { "host", host },
                                         { "x-amz-content-sha256", SIGV4_EMPTY },
                                         { "x-amz-date", "20130524T000000Z" } };
    check_signature("GET", "/", "lifecycle=", SIGV4_EMPTY, list, ARRAY_LEN(list),
                    "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    check_signature("GET", "/", "max-keys=2&prefix=J", SIGV4_EMPTY, list, ARRAY_LEN(list),
                    "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(keys_are_encoded_byte_by_byte_R90)
{
    SCOPED_BUF buf = { 0 };

    ck_assert_int_eq(sigv4_encode(&buf, "a b+c%d/\xc3\xa9(1)~-._", true), 0);
    ck_assert_str_eq(buf.data, "a%20b%2Bc%25d/%C3%A9%281%29~-._");
    buf_clear(&buf);
    ck_assert_int_eq(sigv4_encode(&buf, "a/b=&", false), 0);
    ck_assert_str_eq(buf.data, "a%2Fb%3D%26");
}

TEST(hashes_are_known_ones)
{
    char hex[SIGV4_HEX], md5[SIGV4_MD5_HEX];

    ck_assert_int_eq(sigv4_sha256("Welcome to Amazon S3.", 21, hex), 0);
    ck_assert_str_eq(hex, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
    ck_assert_int_eq(sigv4_sha256("", 0, hex), 0);
    ck_assert_int_eq(sigv4_md5("", 0, md5), 0);
    ck_assert_str_eq(hex, SIGV4_EMPTY);
    ck_assert_str_eq(md5, "d41d8cd98f00b204e9800998ecf8427e");
}

TEST(a_credentials_file_has_profiles_comments_and_odd_spacing)
{
    static const char text[] = "# a comment\n"
                               "[default]\r\n"
                               "aws_access_key_id=AKIA1\r\n"
                               "aws_secret_access_key = se=cret/+ \r\n"
                               "\n; another\n"
                               "[ other ]\n"
                               "AWS_ACCESS_KEY_ID = AKIA2\n"
                               "region = eu\n"
                               "aws_secret_access_key=two\n"
                               "aws_session_token = tok==\n"
                               "[half]\n"
                               "aws_access_key_id = AKIA3";
    struct credentials found = { 0 };

    ck_assert_int_eq(credentials_parse(text, "default", &found), 0);
    ck_assert_str_eq(found.access_key, "AKIA1");
    ck_assert_str_eq(found.secret_key, "se=cret/+");
    ck_assert_ptr_null(found.token);
    credentials_done(&found);
    ck_assert_int_eq(credentials_parse(text, "other", &found), 0);
    ck_assert_str_eq(found.access_key, "AKIA2");
    ck_assert_str_eq(found.token, "tok==");
    credentials_done(&found);
    ck_assert_int_eq(credentials_parse(text, "half", &found), -ENOENT);
    ck_assert_int_eq(credentials_parse(text, "none", &found), -ENOENT);
    ck_assert_int_eq(credentials_parse("", "default", &found), -ENOENT);
}

struct seen {
    char text[200];
};

static void on_end(void *arg, unsigned depth, const char *name, const char *text)
{
    struct seen *seen = arg;
    size_t len = strlen(seen->text);

    (void)snprintf(seen->text + len, sizeof seen->text - len, "%u:%s=%s ", depth, name, text);
}

TEST(xml_tells_of_each_element_at_its_end)
{
    struct seen seen = { { 0 } };
    static const char text[] =
        "<?xml version=\"1.0\"?><Error xmlns=\"x\"><Code>Slow&amp;Down</Code>"
        "<A><B>1</B><B/></A></Error>";

    ck_assert_int_eq(xml_read(text, sizeof text - 1, on_end, &seen), 0);
    ck_assert_str_eq(seen.text, "2:Code=Slow&Down 3:B=1 3:B= 2:A= 1:Error= ");
}

TEST(xml_that_is_none_is_refused)
{
    static const char *const bad[] = {
        "",
        "x",
        "<a>",
        "<a></b>",
        "<a/><b/>",
        "<!DOCTYPE a [<!ENTITY e \"x\">]><a>&e;</a>",
        "<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>x</a></a></a></a></a></a></a></a></a></"
        "a>"
        "</a></a></a></a></a></a></a>",
    };
    struct seen seen;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        seen.text[0] = '\0';
        ck_assert_msg(xml_read(bad[i], strlen(bad[i]), on_end, &seen) == -EBADMSG, "%s", bad[i]);
    }
}

UNIT_MAIN("curl")

/* sigv4.c - contract in sigv4.h.
 *
 * curl can sign too (CURLOPT_AWS_SIGV4), but its releases differ in what they put into the canonical request (7.88 neither sorts the query
 * nor encodes the path as S3 does), and the time that it signs with cannot be corrected for a skewed clock (R91).
 */
#include "curl/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <time.h>

#include "base/hex.h"

#define HASH_BYTES 32

int sigv4_encode(struct buf *buf, const char *text, bool keep_slash)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    int r = 0;

    for (const char *p = text; r == 0 && *p != '\0'; p++) {
        if (strchr(plain, *p) != NULL || (keep_slash && *p == '/'))
            r = buf_add(buf, p, 1);
        else
            r = buf_addf(buf, "%%%02X", (unsigned)(unsigned char)*p);
    }
    return r;
}

char *sigv4_stamp(int64_t when_s, char stamp[static SIGV4_STAMP])
{
    time_t when = (time_t)when_s;
    struct tm tm;

    if (gmtime_r(&when, &tm) == NULL || strftime(stamp, SIGV4_STAMP, "%Y%m%dT%H%M%SZ", &tm) == 0)
        memcpy(stamp, "19700101T000000Z", SIGV4_STAMP);
    return stamp;
}

static int hash_hex(const EVP_MD *kind, const void *bytes, size_t len, char *ret_hex)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned hash_len = 0;

    if (EVP_Digest(bytes, len, hash, &hash_len, kind, NULL) != 1)
        return -ENOMEM;
    (void)hex_encode(hash, hash_len, ret_hex);
    return 0;
}

int sigv4_sha256(const void *bytes, size_t len, char ret_hex[static SIGV4_HEX])
{
    return hash_hex(EVP_sha256(), bytes, len, ret_hex);
}

int sigv4_md5(const void *bytes, size_t len, char ret_hex[static SIGV4_MD5_HEX])
{
    return hash_hex(EVP_md5(), bytes, len, ret_hex);
}

static bool hmac(const unsigned char *key, size_t key_len, const char *text,
                 unsigned char out[static HASH_BYTES])
{
    unsigned len = HASH_BYTES;

    return HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, strlen(text), out,
                &len) != NULL;
}

/* AWS4 + secret, then day, region, service, "aws4_request": each is the key of the next. */
static bool signing_key(const struct sigv4 *request, const char *day,
                        unsigned char key[static HASH_BYTES])
{
    SCOPED_BUF secret = { 0 };

    if (buf_addf(&secret, "AWS4%s", request->secret_key) < 0)
        return false;
    bool ok = hmac((unsigned char *)secret.data, secret.len, day, key) &&
              hmac(key, HASH_BYTES, request->region, key) &&
              hmac(key, HASH_BYTES, request->service, key) &&
              hmac(key, HASH_BYTES, "aws4_request", key);
    explicit_bzero(secret.data, secret.len);
    return ok;
}

static int add_signed_names(const struct sigv4 *request, struct buf *buf)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < request->header_count; i++)
        r = buf_addf(buf, "%s%s", i == 0 ? "" : ";", request->headers[i].name);
    return r;
}

static int canonical(const struct sigv4 *request, struct buf *buf)
{
    int r = buf_addf(buf, "%s\n%s\n%s\n", request->method, request->path, request->query);

    for (size_t i = 0; r == 0 && i < request->header_count; i++)
        r = buf_addf(buf, "%s:%s\n", request->headers[i].name, request->headers[i].value);
    if (r == 0)
        r = buf_adds(buf, "\n");
    if (r == 0)
        r = add_signed_names(request, buf);
    return r < 0 ? r : buf_addf(buf, "\n%s", request->body_sha256);
}

char *sigv4_authorization(const struct sigv4 *request)
{
    char stamp[SIGV4_STAMP], day[9], hash[SIGV4_HEX], signature[SIGV4_HEX];
    unsigned char key[HASH_BYTES], mac[HASH_BYTES];
    SCOPED_BUF text = { 0 };

    (void)sigv4_stamp(request->when_s, stamp);
    memcpy(day, stamp, 8);
    day[8] = '\0';
    if (canonical(request, &text) < 0 || sigv4_sha256(text.data, text.len, hash) < 0)
        return NULL;
    buf_clear(&text);
    if (buf_addf(&text, "AWS4-HMAC-SHA256\n%s\n%s/%s/%s/aws4_request\n%s", stamp, day,
                 request->region, request->service, hash) < 0)
        return NULL;
    bool ok = signing_key(request, day, key) && hmac(key, HASH_BYTES, text.data, mac);
    explicit_bzero(key, sizeof key);
    if (!ok)
        return NULL;
    (void)hex_encode(mac, HASH_BYTES, signature);

    struct buf out = { 0 };
    if (buf_addf(&out, "AWS4-HMAC-SHA256 Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=",
                 request->access_key, day, request->region, request->service) < 0 ||
        add_signed_names(request, &out) < 0 || buf_addf(&out, ", Signature=%s", signature) < 0) {
        buf_done(&out);
        return NULL;
    }
    return buf_steal(&out);
}

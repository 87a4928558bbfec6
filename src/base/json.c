/* json.c - contract in json.h. */
#include "base/json.h"

#include "base/buf.h"
#include "base/utf8.h"

/* The string token that ends before text[end], without its quotes: jansson names short ones only. */
static size_t token_before(const char *text, size_t end, const char **ret)
{
    size_t close = end, at;

    while (close > 0 && text[close - 1] != '"')
        close--;
    if (close < 2)
        return 0;
    for (at = close - 2; at > 0; at--) {
        size_t slashes = 0;
        while (slashes < at && text[at - 1 - slashes] == '\\')
            slashes++;
        if (text[at] == '"' && slashes % 2 == 0)
            break;
    }
    *ret = text + at + 1;
    return close - 2 - at;
}

static int parse_failed(const char *text, size_t len, const json_error_t *why,
                        struct mandor_err *err)
{
    size_t at = why->position < 0 ? 0 : MIN((size_t)why->position, len);
    const char *key = "";

    if (why->text[0] == '\0') /* jansson gives no code where its own set-up ran out of memory */
        return err_set(err, -ENOMEM, FAULT_HOST, "parse JSON");
    switch (json_error_code(why)) {
    case json_error_out_of_memory:
        return err_set(err, -ENOMEM, FAULT_HOST, "parse JSON");
    case json_error_duplicate_key: {
        size_t n = token_before(text, at, &key);
        return err_set(
            err, -EINVAL, FAULT_CALLER,
            "JSON, line %d, column %d, byte %zu: duplicate key '%.*s', expected each key once",
            why->line, why->column, at, (int)MIN(n, (size_t)80), key);
    }
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "JSON, line %d, column %d, byte %zu: a string holds a NUL character, which "
                       "is not allowed",
                       why->line, why->column, at);
    default:
        return err_set(err, -EINVAL, FAULT_CALLER, "JSON, line %d, column %d, byte %zu: %s",
                       why->line, why->column, at, why->text);
    }
}

int json_parse(const char *text, size_t len, json_t **ret, struct mandor_err *err)
{
    json_error_t why;

    json_t *json = json_loadb(text != NULL ? text : "", text != NULL ? len : 0,
                              JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (json == NULL)
        return parse_failed(text, len, &why, err);

    *ret = json;
    return 0;
}

static bool has_real(const json_t *json)
{
    const char *key;
    json_t *value;
    size_t i;

    json_object_foreach((json_t *)json, key, value)
        if (has_real(value))
            return true;
    json_array_foreach(json, i, value)
        if (has_real(value))
            return true;
    return json_is_real(json);
}

struct dump {
    struct buf text;
    bool failed;
};

static int add_piece(const char *bytes, size_t len, void *arg)
{
    struct dump *dump = arg;

    if (dump->failed || buf_add(&dump->text, bytes, len) < 0)
        dump->failed = true;
    return dump->failed ? -1 : 0;
}

/* json_dumps() of jansson 2.14 overlooks a failure to write an object's key: out of memory it may return a text without
 * it, {":1}.  Our own buffer remembers.  digits: of reals, at most 17; 0 = 17.  malloc'ed text or NULL. */
static char *dump_text(const json_t *json, size_t digits)
{
    struct dump dump = { .failed = false };
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits);

    if (json_dump_callback(json, add_piece, &dump, flags) == 0 && !dump.failed)
        return buf_steal(&dump.text);
    buf_done(&dump.text);
    return NULL;
}

/* With 17 digits 0.2 is 0.20000000000000001.  Fewer are used where they mean the same. */
static char *dump_short(const json_t *json, size_t digits)
{
    char *text = dump_text(json, digits);
    SCOPED_JSON *again = text != NULL ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;

    if (again != NULL && json_equal(json, again))
        return text;
    free(text);
    return NULL;
}

char *json_text(const json_t *json)
{
    if (has_real(json))
        for (size_t digits = 15; digits < 17; digits++) {
            char *text = dump_short(json, digits);
            if (text != NULL)
                return text;
        }
    return dump_text(json, 0);
}

json_t *json_bytes(const void *bytes, size_t len)
{
    if (utf8_clean(bytes, len))
        return json_stringn_nocheck(len > 0 ? bytes : "", len);

    SCOPED_FREE char *text = json_b64(bytes, len);
    return text != NULL ? json_pack("{s:s}", "b64", text) : NULL;
}

static int b64_value(unsigned char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decode into out (3/4 of len, rounded up).  Returns the bytes, or -1 with the offending place in *ret_at. */
static ssize_t b64_decode(const char *text, size_t len, unsigned char *out, size_t *ret_at)
{
    size_t pad = 0, n = 0;
    unsigned bits = 0;

    *ret_at = len;
    if (len % 4 != 0)
        return -1;
    while (pad < 2 && pad < len && text[len - 1 - pad] == '=')
        pad++;
    for (size_t i = 0; i < len - pad; i++) {
        int value = b64_value((unsigned char)text[i]);
        *ret_at = i;
        if (value < 0)
            return -1;
        bits = (bits << 6 | (unsigned)value) & 0xffffff;
        if (i % 4 != 0) /* 6, 12, 18, 24 bits: a byte is full at 12, 18 and 24 */
            out[n++] = (unsigned char)(bits >> (2 * (3 - i % 4)));
    }
    /* What is left of the last character must be 0, or two texts would mean the same bytes. */
    if (pad > 0 && (bits & (pad == 1 ? 3u : 15u)) != 0)
        return -1;
    return (ssize_t)n;
}

static int get_b64(const json_t *b64, char **ret, size_t *ret_len, struct mandor_err *err)
{
    size_t len = json_string_length(b64), at;
    SCOPED_FREE char *bytes = malloc(len / 4 * 3 + 4);
    if (bytes == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "decode base64");

    ssize_t n = b64_decode(json_string_value(b64), len, (unsigned char *)bytes, &at);
    if (n < 0)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "bad base64 at character %zu, expected padded RFC 4648 base64", at + 1);

    bytes[n] = '\0';
    *ret = STEAL(bytes);
    *ret_len = (size_t)n;
    return 0;
}

int json_bytes_get(const json_t *json, char **ret, size_t *ret_len, struct mandor_err *err)
{
    const json_t *b64 = json_object_get(json, "b64");

    if (json_is_object(json) && json_object_size(json) == 1 && json_is_string(b64))
        return get_b64(b64, ret, ret_len, err);
    if (!json_is_string(json))
        return err_set(err, -EINVAL, FAULT_CALLER, "expected a string or {\"b64\": \"...\"}");

    size_t len = json_string_length(json);
    char *bytes = malloc(len + 1);
    if (bytes == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "copy a JSON string");

    memcpy(bytes, json_string_value(json), len);
    bytes[len] = '\0';
    *ret = bytes;
    *ret_len = len;
    return 0;
}

char *json_utf8_lossy(const void *bytes, size_t len, bool *ret_lossy)
{
    const char *s = bytes;
    SCOPED_BUF buf = { 0 };
    bool lossy = false;

    if (buf_reserve(&buf, len) < 0)
        return NULL;
    for (size_t at = 0, n; at < len; at += n) {
        bool good = utf8_step(s + at, len - at, &n) && s[at] != '\0';
        lossy |= !good;
        if ((good ? buf_add(&buf, s + at, n) : buf_adds(&buf, "\xef\xbf\xbd")) < 0)
            return NULL;
    }
    if (ret_lossy != NULL)
        *ret_lossy = lossy;
    return buf_steal(&buf);
}

char *json_b64(const void *bytes, size_t len)
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *s = bytes;
    char *text = len < SIZE_MAX / 2 ? malloc((len + 2) / 3 * 4 + 1) : NULL, *to = text;
    if (text == NULL)
        return NULL;

    for (size_t at = 0; at < len; at += 3) {
        size_t have = MIN(len - at, (size_t)3);
        unsigned bits = (unsigned)s[at] << 16 | (have > 1 ? (unsigned)s[at + 1] << 8 : 0) |
                        (have > 2 ? s[at + 2] : 0);
        for (size_t i = 0; i < 4; i++)
            *to++ = i <= have ? alphabet[bits >> (18 - 6 * i) & 63] : '=';
    }
    *to = '\0';
    return text;
}

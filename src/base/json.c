/* json.c - contract in json.h. */
#include "base/json.h"

#include <stdio.h>

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

/* The length of the string that begins at text[0], quotes included. */
static size_t string_len(const char *text, size_t len)
{
    size_t at = 1;

    while (at < len && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return MIN(at + 1, len);
}

/* Copy JSON so that integers of INTEGER_DIGITS and more are written as reals. */
static int widen(struct buf *buf, const char *text, size_t len)
{
    enum { INTEGER_DIGITS = 19 }; /* fewer are always within 64 bits */
    int r = 0;

    for (size_t at = 0, n; r == 0 && at < len; at += n) {
        if (text[at] == '"') {
            n = string_len(text + at, len - at);
            r = buf_add(buf, text + at, n);
            continue;
        }
        n = text[at] == '-';
        while (at + n < len && text[at + n] >= '0' && text[at + n] <= '9')
            n++;
        bool real = at + n < len && strchr(".eE", text[at + n]) != NULL;
        bool part = at > 0 && strchr(".eE+-", text[at - 1]) != NULL; /* of another number */
        bool wide = n - (text[at] == '-') >= INTEGER_DIGITS && !real && !part;
        n = MAX(n, (size_t)1);
        r = buf_add(buf, text + at, n);
        if (r == 0 && wide)
            r = buf_add(buf, ".0", 2);
    }
    return r;
}

/* The code unit of the escape \uXXXX that begins at text[0]; -1: that is none. */
static int escaped_unit(const char *text, size_t len)
{
    char digits[5] = { 0 };

    if (len < 6 || text[0] != '\\' || text[1] != 'u')
        return -1;
    memcpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtol(digits, NULL, 16) : -1;
}

bool json_mend_surrogates(char *text, size_t len)
{
    bool mended = false;

    for (size_t at = 0, n; at < len; at += n) {
        int unit = escaped_unit(text + at, len - at);
        bool high = unit >= 0xd800 && unit < 0xdc00, low = unit >= 0xdc00 && unit < 0xe000;
        int next = high ? escaped_unit(text + at + 6, len - at - 6) : -1;
        bool pair = next >= 0xdc00 && next < 0xe000;

        n = pair ? 12 : unit >= 0 ? 6 : text[at] == '\\' ? 2 : 1;
        if (low || (high && !pair)) {
            memcpy(text + at, "\\uFFFD", 6);
            mended = true;
        }
    }
    return mended;
}

json_t *json_load_foreign(const char *text, size_t len, json_error_t *why)
{
    const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    SCOPED_BUF tamed = { 0 };

    json_t *json = json_loadb(text, len, flags, why);
    if (json != NULL)
        return json;
    SCOPED_FREE char *valid = json_utf8_lossy(text, len, NULL);
    if (valid == NULL || widen(&tamed, valid, strlen(valid)) < 0 || tamed.data == NULL)
        return NULL;
    (void)json_mend_surrogates(tamed.data, tamed.len);
    return json_loadb(tamed.data, tamed.len, flags, why);
}

/* jansson's own writer is not used: out of memory it may leave a key out ({":1}), 0.2 becomes 0.20000000000000001, and it
 * hands over a few bytes at a time. */

static int write_escape(struct buf *buf, unsigned char c)
{
    static const char names[32] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'
    };

    if (c == '"' || c == '\\')
        return buf_add(buf, (char[]){ '\\', (char)c }, 2);
    if (names[c] != '\0')
        return buf_add(buf, (char[]){ '\\', names[c] }, 2);
    return buf_addf(buf, "\\u%04X", c);
}

static int write_string(struct buf *buf, const char *text, size_t len)
{
    int r = buf_reserve(buf, len + 2);
    if (r == 0)
        r = buf_add(buf, "\"", 1);
    for (size_t at = 0; r == 0 && at < len;) {
        size_t run = at;
        while (run < len && (unsigned char)text[run] >= 0x20 && text[run] != '"' &&
               text[run] != '\\')
            run++;
        r = buf_add(buf, text + at, run - at);
        if (r == 0 && run < len)
            r = write_escape(buf, (unsigned char)text[run++]);
        at = run;
    }
    return r == 0 ? buf_add(buf, "\"", 1) : r;
}

/* 1e+300 is 1e300, and 1e-07 is 1e-7. */
static void shorten_exponent(char *text)
{
    char *to = strchr(text, 'e');
    if (to == NULL)
        return;

    const char *from = ++to;
    if (*from == '-')
        to++;
    from++; /* printf(3) always writes the sign */
    from += strspn(from, "0");
    memmove(to, from, strlen(from) + 1);
}

/* The shortest of 15 to 17 digits that means the same. */
static int write_real(struct buf *buf, double value)
{
    char text[32];
    double again;

    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        again = strtod(text, NULL);
        if (!(again < value) && !(again > value))
            break;
    }
    char *mark = text + strspn(text, "-0123456789");
    if (*mark != '\0' && *mark != 'e') /* the decimal point, whatever the locale calls it */
        *mark = '.';
    shorten_exponent(mark);
    int r = buf_adds(buf, text);
    return r == 0 && *mark == '\0' ? buf_adds(buf, ".0") : r; /* 3.0 stays a real */
}

/* By hand: records are full of counts, and snprintf(3) takes ten times as long. */
int json_write_int(struct buf *buf, int64_t value)
{
    char text[24], *at = text + sizeof text;
    uint64_t left = value < 0 ? -(uint64_t)value : (uint64_t)value;

    do
        *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0)
        *--at = '-';
    return buf_add(buf, at, (size_t)(text + sizeof text - at));
}

/* A new line, indented; nothing in compact text. */
static int write_break(struct buf *buf, int indent, int depth)
{
    return indent == 0 ? 0 : buf_addf(buf, "\n%*s", indent * depth, "");
}

static int write_value(struct buf *buf, const json_t *json, int indent, int depth);

static int write_array(struct buf *buf, const json_t *array, int indent, int depth)
{
    size_t count = json_array_size(array);
    int r = buf_add(buf, "[", 1);

    for (size_t i = 0; r == 0 && i < count; i++) {
        r = i > 0 ? buf_add(buf, ",", 1) : 0;
        if (r == 0)
            r = write_break(buf, indent, depth + 1);
        if (r == 0)
            r = write_value(buf, json_array_get(array, i), indent, depth + 1);
    }
    if (r == 0 && count > 0)
        r = write_break(buf, indent, depth);
    return r == 0 ? buf_add(buf, "]", 1) : r;
}

static int write_object(struct buf *buf, const json_t *object, int indent, int depth)
{
    json_t *mutable = (json_t *)object; /* iterating changes nothing */
    void *iter = json_object_iter(mutable);
    bool any = iter != NULL;
    int r = buf_add(buf, "{", 1);

    for (bool first = true; r == 0 && iter != NULL; first = false) {
        const char *key = json_object_iter_key(iter);
        r = first ? 0 : buf_add(buf, ",", 1);
        if (r == 0)
            r = write_break(buf, indent, depth + 1);
        if (r == 0)
            r = write_string(buf, key, json_object_iter_key_len(iter));
        if (r == 0)
            r = buf_add(buf, ": ", indent > 0 ? 2 : 1);
        if (r == 0)
            r = write_value(buf, json_object_iter_value(iter), indent, depth + 1);
        iter = json_object_iter_next(mutable, iter);
    }
    if (r == 0 && any)
        r = write_break(buf, indent, depth);
    return r == 0 ? buf_add(buf, "}", 1) : r;
}

static int write_value(struct buf *buf, const json_t *json, int indent, int depth)
{
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return write_object(buf, json, indent, depth);
    case JSON_ARRAY:
        return write_array(buf, json, indent, depth);
    case JSON_STRING:
        return write_string(buf, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return json_write_int(buf, json_integer_value(json));
    case JSON_REAL:
        return write_real(buf, json_real_value(json));
    case JSON_TRUE:
        return buf_add(buf, "true", 4);
    case JSON_FALSE:
        return buf_add(buf, "false", 5);
    case JSON_NULL:
        return buf_add(buf, "null", 4);
    }
    BUG("a JSON value of no type");
}

int json_write(struct buf *buf, const json_t *json)
{
    return json == NULL ? -ENOMEM : write_value(buf, json, 0, 0);
}

int json_write_text(struct buf *buf, const char *text)
{
    return write_string(buf, text, strlen(text));
}

static char *text_of(const json_t *json, int indent)
{
    SCOPED_BUF buf = { 0 };

    return json != NULL && write_value(&buf, json, indent, 0) == 0 ? buf_steal(&buf) : NULL;
}

char *json_text(const json_t *json)
{
    return text_of(json, 0);
}

char *json_text_indented(const json_t *json)
{
    return text_of(json, 2);
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
    if (!json_is_string(json)) {
        const json_t *b64 = json_object_get(json, "b64");
        if (json_object_size(json) == 1 && json_is_string(b64))
            return get_b64(b64, ret, ret_len, err);
        return err_set(err, -EINVAL, FAULT_CALLER, "expected a string or {\"b64\": \"...\"}");
    }

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

/* wire_json.c - contract in wire_json.h.
 *
 * skip_value() is the parser: it walks one value with a stack of one bit a level (array or object).  The readers walk text
 * that it has found valid.
 */
#include "pool/wire_json.h"

#include <stdio.h>

#include "base/utf8.h"

struct cursor {
    const unsigned char *at, *end;
};

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static int peek(const struct cursor *c)
{
    return c->at < c->end ? *c->at : -1;
}

static bool skip_char(struct cursor *c, int want)
{
    if (peek(c) != want)
        return false;
    c->at++;
    return true;
}

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

static bool skip_word(struct cursor *c, const char *word)
{
    for (; *word != '\0'; word++)
        if (!skip_char(c, (unsigned char)*word))
            return false;
    return true;
}

static bool skip_digits(struct cursor *c)
{
    if (!is_digit(peek(c)))
        return false;
    while (is_digit(peek(c)))
        c->at++;
    return true;
}

static bool skip_number(struct cursor *c)
{
    (void)skip_char(c, '-');
    if (!skip_char(c, '0') && !skip_digits(c))
        return false;
    if (skip_char(c, '.') && !skip_digits(c))
        return false;
    if (skip_char(c, 'e') || skip_char(c, 'E')) {
        (void)(skip_char(c, '+') || skip_char(c, '-'));
        return skip_digits(c);
    }
    return true;
}

static int hex_value(int c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The four digits behind \u; -1 when they are none. */
static int take_hex4(struct cursor *c)
{
    int value = 0;

    for (int i = 0; i < 4; i++) {
        int digit = hex_value(peek(c));
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
        c->at++;
    }
    return value;
}

/* The character behind a backslash; -1 when it is none. */
static int32_t take_escape(struct cursor *c)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const int letter = peek(c);
    if (letter < 0)
        return -1;

    c->at++;
    if (letter != 'u') {
        const char *found = letter == 0 ? NULL : strchr(from, letter);
        return found == NULL ? -1 : to[found - from];
    }
    int high = take_hex4(c);
    if (high < 0xd800 || high > 0xdfff)
        return high;
    if (high > 0xdbff || !skip_word(c, "\\u"))
        return -1;
    int low = take_hex4(c);
    return low < 0xdc00 || low > 0xdfff ? -1 : 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

/* One character of a string, escaped or not; -1 at the closing quote and at what may not stand there. */
static int32_t take_char(struct cursor *c)
{
    const int byte = peek(c);

    if (byte < 0x20 || byte == '"')
        return -1;
    if (byte == '\\') {
        c->at++;
        return take_escape(c);
    }
    size_t len;
    if (!utf8_step(c->at, (size_t)(c->end - c->at), &len))
        return -1;
    int32_t value = len == 1 ? byte : byte & (0x7f >> len);
    for (size_t i = 1; i < len; i++)
        value = value << 6 | (c->at[i] & 0x3f);
    c->at += len;
    return value;
}

static bool skip_string(struct cursor *c)
{
    if (!skip_char(c, '"'))
        return false;
    while (c->at < c->end) {
        /* plain ASCII is nearly all of it */
        while (c->at < c->end && *c->at >= 0x20 && *c->at < 0x80 && *c->at != '"' && *c->at != '\\')
            c->at++;
        if (skip_char(c, '"'))
            return true;
        if (take_char(c) < 0)
            return false;
    }
    return false;
}

static bool skip_scalar(struct cursor *c)
{
    switch (peek(c)) {
    case '"':
        return skip_string(c);
    case 't':
        return skip_word(c, "true");
    case 'f':
        return skip_word(c, "false");
    case 'n':
        return skip_word(c, "null");
    default:
        return skip_number(c);
    }
}

/* The open arrays and objects: a bit each, set for an object. */
struct nest {
    unsigned depth;
    unsigned char object[WIRE_JSON_DEPTH / 8];
};

static bool nest_in_object(const struct nest *nest)
{
    return nest->object[(nest->depth - 1) / 8] >> ((nest->depth - 1) % 8) & 1;
}

static bool nest_push(struct nest *nest, bool object)
{
    if (nest->depth == WIRE_JSON_DEPTH)
        return false;
    const unsigned char bit = (unsigned char)(1u << (nest->depth % 8));
    unsigned char *byte = &nest->object[nest->depth / 8];
    *byte = (unsigned char)(object ? *byte | bit : *byte & ~bit);
    nest->depth++;
    return true;
}

static bool skip_key(struct cursor *c)
{
    skip_space(c);
    if (!skip_string(c))
        return false;
    skip_space(c);
    return skip_char(c, ':');
}

/* Behind a value: close what closes, up to the comma before the next one. */
static bool skip_closings(struct cursor *c, struct nest *nest)
{
    while (nest->depth > 0) {
        skip_space(c);
        const bool object = nest_in_object(nest);
        if (skip_char(c, ','))
            return !object || skip_key(c);
        if (!skip_char(c, object ? '}' : ']'))
            return false;
        nest->depth--;
    }
    return true;
}

/* Walk one value.  On failure c->at is at the byte that is wrong. */
static bool skip_value(struct cursor *c)
{
    struct nest nest = { 0 };

    do {
        skip_space(c);
        const bool object = peek(c) == '{';
        if (!object && peek(c) != '[') {
            if (!skip_scalar(c))
                return false;
        } else {
            if (!nest_push(&nest, object))
                return false;
            c->at++;
            skip_space(c);
            if (peek(c) != (object ? '}' : ']')) {
                if (object && !skip_key(c))
                    return false;
                continue;
            }
        }
        if (!skip_closings(c, &nest))
            return false;
    } while (nest.depth > 0);
    return true;
}

static struct cursor cursor_of(struct wire_json value)
{
    const unsigned char *text = (const unsigned char *)value.text;

    return (struct cursor){ .at = text, .end = text == NULL ? NULL : text + value.len };
}

int wire_json_parse(const void *text, size_t len, struct wire_json *ret, size_t *ret_at)
{
    if (ret_at != NULL)
        *ret_at = 0;
    if (len == 0)
        return -EPROTO;

    struct cursor c = { .at = text, .end = (const unsigned char *)text + len };
    skip_space(&c);
    const unsigned char *start = c.at;
    bool good = skip_value(&c);
    const unsigned char *stop = c.at;
    if (good)
        skip_space(&c);
    if (!good || c.at < c.end) {
        if (ret_at != NULL)
            *ret_at = (size_t)(c.at - (const unsigned char *)text);
        return -EPROTO;
    }
    *ret = (struct wire_json){ .text = (const char *)start, .len = (size_t)(stop - start) };
    return 0;
}

char wire_json_kind(struct wire_json value)
{
    if (value.text == NULL || value.len == 0)
        return 0;
    switch (value.text[0]) {
    case '{':
        return 'o';
    case '[':
        return 'a';
    case '"':
        return 's';
    case 't':
    case 'f':
        return 'b';
    case 'n':
        return '0';
    default:
        return 'n';
    }
}

/* Walk the value at the cursor, and say where it is. */
static struct wire_json take_value(struct cursor *c)
{
    skip_space(c);
    const unsigned char *start = c->at;
    if (!skip_value(c))
        return (struct wire_json){ 0 };
    return (struct wire_json){ .text = (const char *)start, .len = (size_t)(c->at - start) };
}

/* Is the string at the cursor this key?  Moves past it. */
static bool take_key(struct cursor *c, const char *key)
{
    const struct cursor start = *c;
    size_t len = strlen(key);
    char text[64];

    if (!skip_string(c))
        return false;
    struct wire_json raw = { .text = (const char *)start.at, .len = (size_t)(c->at - start.at) };
    if (raw.len == len + 2 && memcmp(raw.text + 1, key, len) == 0)
        return true;
    return memchr(raw.text, '\\', raw.len) != NULL && len < sizeof text &&
           wire_json_unquote(raw, text, sizeof text) == (ssize_t)len && memcmp(text, key, len) == 0;
}

struct wire_json wire_json_member(struct wire_json value, const char *key)
{
    struct wire_json found = { 0 };
    struct cursor c = cursor_of(value);

    if (!skip_char(&c, '{'))
        return found;
    skip_space(&c);
    while (peek(&c) == '"') {
        bool hit = take_key(&c, key);
        skip_space(&c);
        if (!skip_char(&c, ':'))
            break;
        struct wire_json member = take_value(&c);
        if (hit)
            found = member;
        skip_space(&c);
        if (!skip_char(&c, ','))
            break;
        skip_space(&c);
    }
    return found;
}

bool wire_json_next(struct wire_json array, size_t *at, struct wire_json *ret)
{
    struct cursor c = cursor_of(array);

    if (wire_json_kind(array) != 'a' || *at >= array.len)
        return false;
    c.at += *at;
    if (*at == 0)
        c.at++;
    skip_space(&c);
    if (peek(&c) == ']' || peek(&c) < 0)
        return false;
    *ret = take_value(&c);
    skip_space(&c);
    (void)skip_char(&c, ',');
    *at = (size_t)(c.at - (const unsigned char *)array.text);
    return ret->text != NULL;
}

int wire_json_uint(struct wire_json value, uint64_t max, uint64_t *ret)
{
    uint64_t number = 0;

    if (wire_json_kind(value) != 'n')
        return -EPROTO;
    for (size_t i = 0; i < value.len; i++) {
        if (!is_digit(value.text[i]))
            return -EPROTO;
        const uint64_t digit = (uint64_t)(value.text[i] - '0');
        if (number > (UINT64_MAX - digit) / 10)
            return -EPROTO;
        number = number * 10 + digit;
    }
    if (number > max)
        return -EPROTO;
    *ret = number;
    return 0;
}

/* Text that is counted in full and stored as far as it fits, up to a whole character. */
struct text_out {
    char *to;
    size_t size, len, stored;
};

static void out_add(struct text_out *out, const void *bytes, size_t len)
{
    if (out->stored == out->len && out->len + len + 1 <= out->size) {
        memcpy(out->to + out->len, bytes, len);
        out->stored += len;
    }
    out->len += len;
}

static void out_end(struct text_out *out)
{
    if (out->size > 0)
        out->to[out->stored] = '\0';
}

static void out_utf8(struct text_out *out, int32_t value)
{
    unsigned char bytes[4];
    size_t len = value < 0x80 ? 1 : value < 0x800 ? 2 : value < 0x10000 ? 3 : 4;
    static const unsigned char leads[] = { 0, 0, 0xc0, 0xe0, 0xf0 };

    for (size_t i = len; i-- > 1; value >>= 6)
        bytes[i] = (unsigned char)(0x80 | (value & 0x3f));
    bytes[0] = (unsigned char)(leads[len] | value);
    out_add(out, bytes, len);
}

ssize_t wire_json_unquote(struct wire_json value, char *out, size_t size)
{
    struct cursor c = cursor_of(value);
    struct text_out text = { .to = out, .size = size };
    int32_t character;

    if (!skip_char(&c, '"'))
        return -EPROTO;
    while ((character = take_char(&c)) >= 0)
        out_utf8(&text, character);
    if (peek(&c) != '"')
        return -EPROTO;
    out_end(&text);
    return (ssize_t)text.len;
}

static void out_escape(struct text_out *out, int byte)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *found = byte == 0 ? NULL : strchr(from, byte);
    char text[8] = { '\\', found != NULL ? to[found - from] : 'u' };

    if (found == NULL)
        (void)snprintf(text + 2, sizeof text - 2, "%04x", (unsigned)byte);
    out_add(out, text, strlen(text));
}

size_t wire_json_quote(const char *text, size_t len, char *out, size_t size)
{
    struct text_out quoted = { .to = out, .size = size };

    out_add(&quoted, "\"", 1);
    for (size_t at = 0, n; at < len; at += n) {
        if (!utf8_step(text + at, len - at, &n))
            out_utf8(&quoted, 0xfffd);
        else if ((unsigned char)text[at] < 0x20 || text[at] == '"' || text[at] == '\\')
            out_escape(&quoted, text[at]);
        else
            out_add(&quoted, text + at, n);
    }
    out_add(&quoted, "\"", 1);
    out_end(&quoted);
    return quoted.len;
}

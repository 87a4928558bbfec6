/* fuzz_wire_json.c - what jansson reads wire_json reads too, and finds the same members; strings survive a round trip. */
#include <jansson.h>

#include "pool/wire_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_string(const uint8_t *data, size_t size)
{
    char quoted[4096];
    struct wire_json value;

    if (wire_json_quote((const char *)data, size, quoted, sizeof quoted) >= sizeof quoted)
        return;
    if (wire_json_parse(quoted, strlen(quoted), &value, NULL) < 0 || wire_json_kind(value) != 's' ||
        wire_json_unquote(value, NULL, 0) < (ssize_t)size)
        abort();
}

static void check_members(json_t *object, struct wire_json value)
{
    const char *key;
    json_t *member;

    json_object_foreach(object, key, member) {
        struct wire_json found = wire_json_member(value, key);
        json_t *read =
            found.text == NULL ? NULL : json_loadb(found.text, found.len, JSON_DECODE_ANY, NULL);
        /* long keys that are escaped are not looked for (take_key) */
        if (read == NULL ? strlen(key) < 64 : !json_equal(read, member))
            abort();
        json_decref(read);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_json value = { 0 };
    size_t at;

    check_string(data, size);
    const int r = wire_json_parse(data, size, &value, &at);
    if (r < 0 && at > size)
        abort();
    json_t *read = json_loadb((const char *)data, size, JSON_DECODE_ANY, NULL);
    /* jansson takes a NUL behind the value for its end */
    if (read != NULL && r < 0 && size < WIRE_JSON_DEPTH && memchr(data, 0, size) == NULL)
        abort();
    if (read != NULL && r == 0)
        check_members(read, value);
    json_decref(read);
    return 0;
}

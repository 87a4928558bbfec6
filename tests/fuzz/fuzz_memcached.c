/* fuzz_memcached.c - URLs of memcached, and manifests as anybody may have set them: what is taken is whole, and its text is read as the same. */
#include "memcached/items.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void url(const char *text)
{
    struct items *items;
    struct mandor_err err = { 0 };

    if (items_new(text, &items, &err) == 0) {
        size_t len = strlen(items_key(items));
        if (len == 0 || len > ITEM_KEY_MAX || strchr(items_key(items), ' ') != NULL)
            abort();
        items_free(items);
    } else if (err.code == 0 || err.msg[0] == '\0') {
        abort();
    }
}

static void manifest(const char *text, size_t size)
{
    struct manifest found, again;

    if (manifest_parse(text, size, &found) < 0)
        return;
    char *own = manifest_text(&found);
    if (found.parts < 1 || found.bytes < found.parts || own == NULL ||
        manifest_parse(own, strlen(own), &again) < 0 || again.bytes != found.bytes ||
        again.xxh3 != found.xxh3 || !str_eq(again.prefix, found.prefix))
        abort();
    free(again.prefix);
    free(found.prefix);
    free(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    url(text);
    manifest(text, size);
    free(text);
    return 0;
}

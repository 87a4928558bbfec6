/* fuzz_lockfile.c - a wheel store's lock file: any bytes are taken or refused with a reason; what is taken can be used and written. */
#include "python/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every package can be asked for: an answer or a sentence. */
static void ask(const json_t *lock)
{
    const char *name;
    json_t *package;

    json_object_foreach(lockfile_packages(lock), name, package) {
        struct mandor_err err = { .code = 0 };
        SCOPED_JSON *names = NULL;
        SCOPED_FREE char *path = store_path("/store", package);
        int r = store_order(lock, "/store", (char *[]){ (char *)name, NULL }, &names, &err);
        if (r < 0 ? err.msg[0] == '\0' : json_array_size(names) == 0)
            abort();
        if (path != NULL && strstr(path, "/../") != NULL)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mandor_err err = { .code = 0 };
    SCOPED_JSON *lock = NULL, *again = NULL;
    SCOPED_BUF text = { .data = NULL };

    if (lockfile_parse((const char *)data, size, &lock, &err) < 0) {
        if (err.msg[0] == '\0')
            abort(); /* a refusal says why */
        return 0;
    }
    ask(lock);
    if (lockfile_write(&text, lock) < 0 || lockfile_parse(text.data, text.len, &again, &err) < 0 ||
        !json_equal(lock, again))
        abort(); /* what was read can be written and means the same */
    return 0;
}

/* fuzz_redis_url.c - URLs of Redis: whatever is taken is whole and can be copied; no message holds the password. */
#include "redis/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct redis_url url, copy;
    struct mandor_err err = { 0 };
    char *text = malloc(size + 1);

    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (redis_url_parse(text, &url, &err) == 0) {
        if (url.unix_path == NULL &&
            (url.host_count == 0 || url.hosts[0].port < 1 || url.hosts[0].port > 65535))
            abort();
        if (url.sentinel && url.sentinel_name == NULL)
            abort();
        if (redis_url_copy(&url, &copy) == 0 && copy.param_count != url.param_count)
            abort();
        redis_url_done(&copy);
    } else if (err.code == 0 || err.msg[0] == '\0') {
        abort();
    }
    redis_url_done(&url);
    free(text);
    return 0;
}

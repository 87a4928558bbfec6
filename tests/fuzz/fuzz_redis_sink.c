/* fuzz_redis_sink.c - URLs of sinks on Redis: whatever is taken names one place, and mandor's own keys beside it are in the same slot. */
#include "redis/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct target *target)
{
    char *own = target_own_key(target, "fence", "1.stdout");

    if (target->key == NULL || target->key[0] == '\0' || own == NULL)
        abort();
    if ((target->kind == TARGET_HASH) != (target->field != NULL))
        abort();
    if (target->kind != TARGET_STREAM && (target->max_pending != 0 || target->maxlen != 0))
        abort();
    if (target->max_pending < 0 || target->maxlen < 0 || strchr(own, '{') == NULL ||
        strncmp(own, target->tagged, strlen(target->tagged)) != 0)
        abort();
    free(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct target target;
    struct mandor_err err = { 0 };
    char *text = malloc(size + 1);

    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (target_parse(text, &target, &err) == 0)
        check(&target);
    else if (err.code == 0 || err.msg[0] == '\0')
        abort();
    target_done(&target);
    free(text);
    return 0;
}

/* fuzz_spec.c - JSON text → job → canonical JSON → the same job again. */
#include "base/json.h"
#include "job/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mandor_err err;
    SCOPED_JSON *json = NULL;
    SCOPED(spec_free) struct spec *spec = NULL;

    if (json_parse((const char *)data, size, &json, &err) < 0)
        return 0;
    if (spec_from_json(json, NULL, &spec, &err) < 0) {
        if (err.msg[0] == '\0')
            abort(); /* a refusal says why */
        return 0;
    }

    SCOPED_FREE char *first = spec_to_text(spec);
    SCOPED_JSON *written = NULL;
    SCOPED(spec_free) struct spec *again = NULL;
    if (first == NULL || json_parse(first, strlen(first), &written, &err) < 0 ||
        spec_from_json(written, NULL, &again, &err) < 0)
        abort(); /* what mandor wrote, mandor reads */
    SCOPED_FREE char *second = spec_to_text(again);
    if (second == NULL || !str_eq(first, second))
        abort();
    return 0;
}

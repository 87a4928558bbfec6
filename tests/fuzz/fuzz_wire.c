/* fuzz_wire.c - bytes of either side of a pool's connection: any chunking gives what a naive reader of the whole gives. */
#include "wire_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* First byte: side, pieces and chunking; the rest is the connection. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    SCOPED_BUF expected = { 0 }, got = { 0 };

    if (size < 1)
        return 0;
    const enum wire_side sender = data[0] & 1 ? WIRE_WORKER : WIRE_MANDOR;

    wire_model(sender, data + 1, size - 1, &expected);
    wire_walk(sender, data + 1, size - 1, data[0] >> 2, (uint32_t)size, data[0] & 2, &got);
    if (got.len != expected.len || (got.len > 0 && memcmp(got.data, expected.data, got.len) != 0))
        abort();
    return 0;
}

/* fuzz_framer.c - every kind of frame: any chunking gives what a naive reader of the whole gives. */
#include "frame_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* First byte: kind and chunking; second: frame_max; the rest is the stream. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    SCOPED_BUF expected = { 0 }, got = { 0 };

    if (size < 2)
        return 0;
    enum spec_frame frame = (enum spec_frame)(data[0] % (FRAME_NETSTRING + 1));
    size_t chunk = data[0] >> 4, frame_max = (size_t)data[1] + 1;

    frame_model(frame, frame_max, data + 2, size - 2, &expected);
    frame_walk(frame, frame_max, data + 2, size - 2, chunk, (uint32_t)size, &got);
    if (got.len != expected.len || (got.len > 0 && memcmp(got.data, expected.data, got.len) != 0))
        abort();
    return 0;
}

/* fuzz_units.c - durations and sizes: what is parsed prints to text that parses to the same. */
#include "base/units.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[64];
    char printed[UNITS_TEXT_SIZE];
    int64_t value, again;

    if (size >= sizeof text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';

    if (units_parse_duration(text, &value, NULL) == 0 &&
        (units_parse_duration(units_print_duration(value, printed), &again, NULL) < 0 ||
         again != value))
        abort();
    if (units_parse_size(text, &value, NULL) == 0 &&
        (units_parse_size(units_print_size(value, printed), &again, NULL) < 0 || again != value))
        abort();
    (void)units_nearest(text, (const char *const[]){ "timeout", "idle_timeout", "env" }, 3);
    return 0;
}

/* fuzz_expand.c - sink templates: no value can leave its directory, whatever the queue is called. */
#include "job/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Input: queue name, newline, template. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';

    char *line_end = strchr(text, '\n');
    if (line_end != NULL) {
        *line_end = '\0';
        free(spec_expand(line_end + 1, "id", text, 1, "stdout", NULL));

        char *value = spec_expand("{queue}", "id", text, 1, "stdout", NULL);
        if (value != NULL && (strchr(value, '/') != NULL || value[0] == '.'))
            abort();
        free(value);
    }
    free(text);
    return 0;
}

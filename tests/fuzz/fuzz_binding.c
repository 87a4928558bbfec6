/* fuzz_binding.c - a command template and somebody's data: each word of the template becomes one argument, whatever is in the data. */
#include "base/json.h"
#include "job/binding.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Input: one word of a template, newline, JSON. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';

    char *end = strchr(text, '\n');
    json_t *json = NULL, *argv = NULL, *job = NULL;
    if (end == NULL || json_parse(end + 1, strlen(end + 1), &json, NULL) < 0) {
        free(text);
        return 0;
    }
    *end = '\0';
    const char *const command[] = { "program", text, "last", NULL };
    const struct binding binding = { .command = command };
    const struct binding_place place = { .id = "1", .queue = "q", .name = "n" };
    bool sound = binding_check(&binding, NULL) == 0;
    if (binding_fill(command, json, &place, &argv, NULL) == 0) {
        if (!sound || json_array_size(argv) != 3)
            abort();
        char *word = NULL;
        size_t len;
        if (json_bytes_get(json_array_get(argv, 1), &word, &len, NULL) < 0 ||
            memchr(word, '\0', len) != NULL)
            abort();
        free(word);
    }
    if (sound && binding_job(&binding, json, true, &place, &job, NULL) == 0 &&
        (json_object_get(job, "exec") == NULL || json_object_get(job, "env") != NULL ||
         json_object_get(job, "stdout") != NULL))
        abort();
    json_decref(job);
    json_decref(argv);
    json_decref(json);
    free(text);
    return 0;
}

/* fuzz_cli.c - words as a command line: parsed or refused with a reason; and any bytes, escaped, can be shown on a terminal. */
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/out.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define WORDS_MAX 32

static void parse(char *words, size_t size)
{
    char *argv[WORDS_MAX + 1] = { words };
    struct cli cli;
    struct mandor_err err;
    int argc = 0;

    for (char *word = words; word < words + size && argc < WORDS_MAX; word += strlen(word) + 1)
        argv[argc++] = word;
    err_clear(&err);
    int r = cli_parse(argc, argv, &cli, &err);
    if ((r < 0) != (err.code != 0 && err.msg[0] != '\0') || cli.arg_count > (size_t)argc)
        abort();
    cli_done(&cli);
}

static void escape(const char *bytes, size_t size)
{
    SCOPED_BUF safe = { .data = NULL };

    if (text_escape(&safe, bytes, size) < 0 || !utf8_clean(safe.data, safe.len) ||
        safe.len < size / 4)
        abort();
    for (size_t i = 0; i < safe.len; i++)
        if ((unsigned char)safe.data[i] < 0x20 || safe.data[i] == 0x7f)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *words = malloc(size + 1);
    if (words == NULL)
        return 0;

    memcpy(words, data, size);
    words[size] = '\0';
    escape(words, size);
    parse(words, size);
    free(words);
    return 0;
}

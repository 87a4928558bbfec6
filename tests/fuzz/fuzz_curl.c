/* fuzz_curl.c - what S3 servers and credentials files say: never a crash, and a parsed profile has both keys. */
#include "curl/credentials.h"
#include "curl/sigv4.h"
#include "curl/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_end(void *arg, unsigned depth, const char *name, const char *text)
{
    size_t *seen = arg;

    if (depth < 1 || depth > XML_DEPTH_MAX || strlen(text) > XML_TEXT_MAX)
        abort();
    *seen += strlen(name) + strlen(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct credentials found = { 0 };
    SCOPED_BUF encoded = { 0 };
    size_t seen = 0;
    char *text = malloc(size + 1);

    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (xml_read(text, size, on_end, &seen) == 0 && size == 0)
        abort(); /* nothing is no document */
    if (credentials_parse(text, "default", &found) == 0 &&
        (found.access_key == NULL || found.secret_key == NULL))
        abort();
    credentials_done(&found);
    if (sigv4_encode(&encoded, text, false) == 0 && encoded.len < strlen(text))
        abort();
    free(text);
    return 0;
}

/* xml.c - contract in xml.h, on expat. */
#include "curl/xml.h"

#include <expat.h>

#include "base/buf.h"

struct reader {
    XML_Parser parser;
    xml_end_fn *on_end;
    void *arg;
    unsigned depth;
    bool failed;
    struct buf text[XML_DEPTH_MAX + 1];
};

static void on_start(void *arg, const char *name, const char **attributes)
{
    struct reader *reader = arg;

    if (++reader->depth > XML_DEPTH_MAX) {
        reader->failed = true;
        (void)XML_StopParser(reader->parser, XML_FALSE);
        return;
    }
    buf_clear(&reader->text[reader->depth]);
}

static void on_element_end(void *arg, const char *name)
{
    struct reader *reader = arg;
    const char *text = reader->text[reader->depth].data;

    reader->on_end(reader->arg, reader->depth, name,
                   reader->text[reader->depth].len == 0 ? "" : text);
    reader->depth--;
}

static void on_text(void *arg, const char *bytes, int len)
{
    struct reader *reader = arg;
    struct buf *text = &reader->text[reader->depth];

    if (text->len + (size_t)len <= XML_TEXT_MAX && buf_add(text, bytes, (size_t)len) < 0)
        reader->failed = true;
}

/* S3 declares no entities; what does is not S3. */
static void on_entity(void *arg, const char *name, int is_parameter, const char *value, int len,
                      const char *base, const char *system, const char *public,
                      const char *notation)
{
    struct reader *reader = arg;

    reader->failed = true;
    (void)XML_StopParser(reader->parser, XML_FALSE);
}

int xml_read(const char *bytes, size_t len, xml_end_fn *on_end, void *arg)
{
    struct reader reader = { .on_end = on_end, .arg = arg };

    if (len > INT32_MAX)
        return -EBADMSG;
    reader.parser = XML_ParserCreate(NULL);
    if (reader.parser == NULL)
        return -ENOMEM;
    XML_SetUserData(reader.parser, &reader);
    XML_SetElementHandler(reader.parser, on_start, on_element_end);
    XML_SetCharacterDataHandler(reader.parser, on_text);
    XML_SetEntityDeclHandler(reader.parser, on_entity);
    bool ok = XML_Parse(reader.parser, bytes, (int)len, XML_TRUE) == XML_STATUS_OK;
    XML_ParserFree(reader.parser);
    for (size_t i = 0; i < ARRAY_LEN(reader.text); i++)
        buf_done(&reader.text[i]);
    return ok && !reader.failed ? 0 : -EBADMSG;
}

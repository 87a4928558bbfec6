/* xml.h - reads the short XML answers of S3: each element's name and text, as it ends.  Any thread. */
#ifndef CURL_XML_H
#define CURL_XML_H

#include "base/macro.h"

/* text: what stood directly in the element, cut to XML_TEXT_MAX bytes; valid during the call.  depth: 1 = the root. */
typedef void xml_end_fn(void *arg, unsigned depth, const char *name, const char *text);
#define XML_TEXT_MAX  ((size_t)4096)
#define XML_DEPTH_MAX 16

/* 0, -EBADMSG (not well-formed, or deeper than XML_DEPTH_MAX), or -ENOMEM. */
MUST_CHECK int xml_read(const char *bytes, size_t len, xml_end_fn *on_end, void *arg);

#endif

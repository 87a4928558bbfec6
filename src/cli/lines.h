/* lines.h - lines of bounded length from a descriptor, without ever blocking where no input is ready.
 *
 *     lines_next ─▶ LINES_WANT ─▶ (wait until fd is readable) ─▶ lines_fill ─▶ lines_next …
 *
 * Bytes are kept exactly; the last line needs no delimiter.  Main thread.
 */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include "base/buf.h"
#include "base/macro.h"

#define LINES_MAX ((size_t)16 << 20) /* bytes of one line */

struct lines {
    int fd;        /* borrowed */
    char delim;    /* '\n' or '\0' */
    size_t max;    /* longest line, bytes */
    size_t number; /* of the line that lines_next() gave last, from 1 */
    struct buf in;
    size_t at, scanned; /* in `in`: where the next line starts; how far no delimiter is */
    bool over;          /* end of input was read */
    bool skipping;      /* inside of a line that is too long */
};

enum lines_result {
    LINES_LINE,     /* *ret_line, *ret_len: until the next call of either function */
    LINES_TOO_LONG, /* that line was skipped */
    LINES_WANT,     /* lines_fill() first */
    LINES_END,
};

void lines_init(struct lines *lines, int fd, char delim, size_t max);
void lines_done(struct lines *lines);
enum lines_result lines_next(struct lines *lines, const char **ret_line, size_t *ret_len);
/* One read(2).  0 or -errno. */
MUST_CHECK int lines_fill(struct lines *lines);

#endif

/* out.h - what commands print: JSON lines, tables sized to the terminal, colour where it is wanted.
 *
 * Text that came from jobs is escaped (text_escape) before it reaches a terminal.  A reader that goes away (EPIPE) ends a command
 * quietly: loops that print ask out_broken(), and out_end() decides the exit code.  Main thread.
 */
#ifndef CLI_OUT_H
#define CLI_OUT_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/macro.h"

/* Once, first: 0, 1 and 2 made open, SIGPIPE ignored, colour decided, locale for character widths. */
void out_setup(void);
/* What was printed so far shall be seen.  Not fflush(3): it would lose why it failed. */
void out_flush(void);
/* Flush stdout.  code when all could be written or the reader has gone; else complains and returns 125. */
int out_end(int code);
bool out_broken(void); /* the last writes to stdout failed: nobody reads */

bool out_is_terminal(void); /* stdout */
int out_columns(void);      /* the terminal's width; 0 when stdout is none */
int out_rows(void);         /* the terminal's height; 0 when stdout is none */

void out_line(const char *fmt, ...) PRINTF_LIKE(1, 2); /* a newline is added */
/* One JSON value as one line, flushed when stdout is not a file.  0 or -ENOMEM. */
MUST_CHECK int out_json(const json_t *json);
/* One JSON value with indentation on a terminal, else as one line. */
MUST_CHECK int out_json_pretty(const json_t *json);

enum out_style {
    STYLE_PLAIN,
    STYLE_BOLD,
    STYLE_DIM,
    STYLE_GREEN,
    STYLE_YELLOW,
    STYLE_RED,
    STYLE_CYAN
};
/* Escape sequences, "" without colour. */
const char *style_on(enum out_style style);
const char *style_off(enum out_style style);
enum out_style style_of_state(const char *state);

/* Add bytes with control characters, invalid UTF-8 and direction overrides written as \n, \x1b, \u202e.  0 or -ENOMEM. */
MUST_CHECK int text_escape(struct buf *buf, const char *bytes, size_t len);
/* "3s", "5m", "2h", "4d" since wall_ms. */
char *text_age(int64_t wall_ms, int64_t now_ms, char buf[static 32]);
/* A job's command as people would type it, from spec or record "spec": exec, pool:NAME or python.  0 or -ENOMEM. */
MUST_CHECK int text_command(struct buf *buf, const json_t *spec);

/* Rows of cells in columns, cut to the terminal's width.  Memory failures are kept until table_print(). */
struct table;
struct table *table_new(const char *const *titles, size_t columns); /* or NULL */
struct table *table_free(struct table *table);
DEFINE_CLEANUP(struct table *, table_free)
/* fmt's text is escaped. */
void table_cell(struct table *table, enum out_style style, const char *fmt, ...) PRINTF_LIKE(3, 4);
void table_number(struct table *table, int64_t number); /* right-aligned */
MUST_CHECK int table_print(struct table *table);        /* 0 or -ENOMEM */

#endif

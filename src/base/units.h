/* units.h - durations ("500ms", "30s", "5m", "1h30m", "7d", "0"), sizes ("64K", "512M", "8MiB", "1.5G", "100";
 * K M G T are powers of 1024) and numbers as people write them.  Any thread, no allocation. */
#ifndef BASE_UNITS_H
#define BASE_UNITS_H

#include "base/err.h"
#include "base/macro.h"

/* Parse text whole.  Returns 0, or -EINVAL (not of the form) or -ERANGE (overflow) with *err saying
 * what was wrong, at which character, and what was expected; *ret untouched then. */
MUST_CHECK int units_parse_duration(const char *text, int64_t *ret_ms, struct mandor_err *err);
MUST_CHECK int units_parse_size(const char *text, int64_t *ret_bytes, struct mandor_err *err);
MUST_CHECK int units_parse_int(const char *text, int64_t min, int64_t max, int64_t *ret,
                               struct mandor_err *err);

#define UNITS_TEXT_SIZE 32
/* Shortest exact text: "1h30m", "512M".  Returns buf. */
char *units_print_duration(int64_t ms, char buf[static UNITS_TEXT_SIZE]);
char *units_print_size(int64_t bytes, char buf[static UNITS_TEXT_SIZE]);
/* Rounded for people: "1.2 MiB", "3.4 s", "2m 5s".  Returns buf. */
char *units_human_size(int64_t bytes, char buf[static UNITS_TEXT_SIZE]);
char *units_human_duration(int64_t ms, char buf[static UNITS_TEXT_SIZE]);

/* The candidate nearest to word by edit distance (at most 3 and less than half of its length),
 * or NULL.  For "unknown option '--timout', did you mean '--timeout'?". */
const char *units_nearest(const char *word, const char *const *candidates, size_t count);

#endif

/* log.c - contract in log.h.
 *
 * A line is built on the stack and leaves in one write(2) of at most PIPE_BUF bytes, so lines of several threads and of the
 * guard never mix in a pipe.  A line that cannot be written, or for which errout.h has no room, is dropped and counted; the next
 * one says `dropped=N`.
 */
#include "base/log.h"

#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/errout.h"
#include "base/utf8.h"

#define LINE_MAX_BYTES ((size_t)PIPE_BUF)
#define TAIL_ROOM      ((size_t)8) /* for `..."}` and the newline */

struct line {
    size_t len;
    char text[LINE_MAX_BYTES];
};

static enum log_format the_format = LOG_LOGFMT;
static enum log_level the_min_level = LOG_INFO;
static char debug_topics[256];     /* ",child,stream," */
static _Atomic unsigned debug_all; /* 0 or 1 */

static const char *const level_names[] = { "debug", "info", "warn", "error" };

void log_setup(enum log_format format, enum log_level min_level)
{
    const char *topics = getenv("MANDOR_DEBUG");

    the_format = format;
    the_min_level = min_level;
    debug_topics[0] = '\0';
    if (topics != NULL && topics[0] != '\0')
        (void)snprintf(debug_topics, sizeof debug_topics, ",%s,", topics);
    atomic_store(&debug_all, strstr(debug_topics, ",all,") != NULL);
}

void log_toggle_debug(void)
{
    atomic_fetch_xor(&debug_all, 1u);
}

bool log_debug_on(const char *topic)
{
    if (atomic_load_explicit(&debug_all, memory_order_relaxed))
        return true;
    if (debug_topics[0] == '\0')
        return false;

    char want[64];
    int n = snprintf(want, sizeof want, ",%s,", topic);
    return n > 0 && (size_t)n < sizeof want && strstr(debug_topics, want) != NULL;
}

/* Add bytes whole, or nothing.  Room for the end of the line always stays. */
static bool add(struct line *line, const char *bytes, size_t len)
{
    if (len > sizeof line->text - TAIL_ROOM - line->len)
        return false;
    memcpy(line->text + line->len, bytes, len);
    line->len += len;
    return true;
}

static bool adds(struct line *line, const char *text)
{
    return add(line, text, strlen(text));
}

/* Add one character of a quoted value.  The escapes are JSON's, in both formats: a newline would forge a line, an ESC
 * would speak to the terminal of whoever reads the log. */
static bool add_escaped(struct line *line, const char *s, size_t len, bool good)
{
    unsigned char c = (unsigned char)s[0];
    char text[8];

    if (!good)
        return adds(line, "\xef\xbf\xbd");
    if (c == '"' || c == '\\')
        return add(line, (char[]){ '\\', (char)c }, 2);
    if (c == '\n')
        return add(line, "\\n", 2);
    if (c == '\t')
        return add(line, "\\t", 2);
    bool c1 = len == 2 && c == 0xc2 && (unsigned char)s[1] < 0xa0; /* U+0080 to U+009F */
    if (c >= 0x20 && c != 0x7f && !c1)
        return add(line, s, len);
    (void)snprintf(text, sizeof text, "\\u%04x", c1 ? (unsigned char)s[1] : c);
    return adds(line, text);
}

static void add_quoted(struct line *line, const char *text)
{
    size_t len = strlen(text);

    (void)adds(line, "\"");
    for (size_t at = 0, n; at < len; at += n) {
        bool good = utf8_step(text + at, len - at, &n);
        if (!add_escaped(line, text + at, n, good)) {
            memcpy(line->text + line->len, "...", 3); /* TAIL_ROOM is for this */
            line->len += 3;
            break;
        }
    }
    line->text[line->len++] = '"';
}

/* May text stand in logfmt without quotes? */
static bool plain(const char *text)
{
    if (text[0] == '\0')
        return false;
    for (const char *p = text; *p != '\0'; p++)
        if (*p <= ' ' || *p == '"' || *p == '=' || *p == '\\' || *p > '~')
            return false;
    return true;
}

static void add_key(struct line *line, const char *key)
{
    bool first = line->len == 0;

    if (the_format == LOG_JSON) {
        (void)adds(line, first ? "{\"" : ",\"");
        (void)adds(line, key);
        (void)adds(line, "\":");
    } else {
        (void)adds(line, first ? "" : " ");
        (void)adds(line, key);
        (void)adds(line, "=");
    }
}

static void add_text_field(struct line *line, const char *key, const char *value, bool quote)
{
    add_key(line, key);
    if (quote || the_format == LOG_JSON || !plain(value))
        add_quoted(line, value);
    else
        (void)adds(line, value);
}

static void add_number_field(struct line *line, const char *key, int64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%" PRId64, value);
    add_key(line, key);
    (void)adds(line, text);
}

static void emit(struct line *line, unsigned told)
{
    if (the_format == LOG_JSON)
        line->text[line->len++] = '}';
    line->text[line->len++] = '\n';

    if (!errout_put(line->text, line->len)) /* there is nobody else to tell */
        errout_add_lost(told);
}

struct event {
    enum log_level level;
    const char *topic, *job; /* may be NULL */
    int64_t attempt;         /* < 0 = none */
};

static void write_event(const struct event *event, const char *fmt, va_list args)
{
    struct line line = { .len = 0 };
    char ts[CLOCK_RFC3339_SIZE], job[128], msg[LINE_MAX_BYTES];
    unsigned told = errout_take_lost();
    int saved = errno;

    add_text_field(&line, "ts", clock_rfc3339(clock_wall_ms(), ts), false);
    add_text_field(&line, "level", level_names[event->level], false);
    if (event->topic != NULL)
        add_text_field(&line, "topic", event->topic, false);
    if (event->job != NULL) {
        (void)snprintf(job, sizeof job, "%s", event->job);
        add_text_field(&line, "job", job, false);
    }
    if (event->attempt >= 0)
        add_number_field(&line, "attempt", event->attempt);
    if (told > 0)
        add_number_field(&line, "dropped", told);
    (void)vsnprintf(msg, sizeof msg, fmt, args);
    add_text_field(&line, "msg", msg, true);
    emit(&line, told);
    errno = saved;
}

void log_event(enum log_level level, const char *job, int64_t attempt, const char *fmt, ...)
{
    if (level < the_min_level)
        return;

    va_list args;
    va_start(args, fmt);
    write_event(&(struct event){ .level = level, .job = job, .attempt = attempt }, fmt, args);
    va_end(args);
}

void log_debug_line(const char *topic, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    write_event(&(struct event){ .level = LOG_DEBUG, .topic = topic, .attempt = -1 }, fmt, args);
    va_end(args);
}

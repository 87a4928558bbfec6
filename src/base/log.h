/* log.h - structured log lines on stderr, logfmt or JSON, one line an event, one write(2) a line (errout.h).
 * Modules return errors; worker/ and cli/ log each once.  Debug lines are free for all, by topic:
 * MANDOR_DEBUG=child,stream.  Any thread. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/macro.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_LOGFMT, LOG_JSON };

/* format and the lowest level that is printed.  MANDOR_DEBUG is read once, here. */
void log_setup(enum log_format format, enum log_level min_level);
/* Toggle debug lines of all topics (SIGUSR2).  Async-signal-safe. */
void log_toggle_debug(void);

/* One event.  job may be NULL; attempt < 0 leaves it out.  fmt is the message. */
void log_event(enum log_level level, const char *job, int64_t attempt, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
#define log_info(...)  log_event(LOG_INFO, NULL, -1, __VA_ARGS__)
#define log_warn(...)  log_event(LOG_WARN, NULL, -1, __VA_ARGS__)
#define log_error(...) log_event(LOG_ERROR, NULL, -1, __VA_ARGS__)

/* Debug lines by topic, as MANDOR_DEBUG says or SIGUSR2 has toggled. */
bool log_debug_on(const char *topic);
void log_debug_line(const char *topic, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define log_debug(topic, ...)                   \
    do {                                        \
        if (log_debug_on(topic))                \
            log_debug_line(topic, __VA_ARGS__); \
    } while (0)

#endif

/* err.c - contract in err.h. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <uv.h>

#include "base/utf8.h"

/* Copy text into msg; what does not fit is cut between two characters and ends in "...". */
static void store(struct mandor_err *err, const char *text, size_t len)
{
    static const char dots[] = "...";
    size_t room = sizeof err->msg - 1;

    if (len <= room) {
        memcpy(err->msg, text, len);
        err->msg[len] = '\0';
        return;
    }

    size_t keep = 0, n;
    while (utf8_step(text + keep, len - keep, &n), keep + n <= room - (sizeof dots - 1))
        keep += n;
    memcpy(err->msg, text, keep);
    memcpy(err->msg + keep, dots, sizeof dots);
}

/* The system's words for code; libuv's own codes (UV_EOF, UV_EAI_*) are not errno values. */
static const char *describe(int code, char *buf, size_t size)
{
    const char *text = strerrordesc_np(-code);
    return text != NULL ? text : uv_strerror_r(code, buf, size);
}

/* snprintf() returns what it would have written: turn that into what is there. */
static size_t written(int n, size_t size)
{
    return n < 0 ? 0 : MIN((size_t)n, size - 1);
}

static int fill(struct mandor_err *err, int code, enum mandor_fault fault, bool describes,
                const char *fmt, va_list args) PRINTF_LIKE(5, 0);

static int fill(struct mandor_err *err, int code, enum mandor_fault fault, bool describes,
                const char *fmt, va_list args)
{
    char text[2 * sizeof err->msg], words[80];

    if (err == NULL)
        return code;
    size_t len = written(vsnprintf(text, sizeof text, fmt, args), sizeof text);
    if (describes)
        len += written(
            snprintf(text + len, sizeof text - len, ": %s", describe(code, words, sizeof words)),
            sizeof text - len);
    err->code = code;
    err->fault = fault;
    store(err, text, len);
    return code;
}

int err_set(struct mandor_err *err, int code, enum mandor_fault fault, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)fill(err, code, fault, fault == FAULT_HOST || fault == FAULT_REMOTE, fmt, args);
    va_end(args);
    return code;
}

int err_say(struct mandor_err *err, int code, enum mandor_fault fault, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)fill(err, code, fault, false, fmt, args);
    va_end(args);
    return code;
}

int err_wrap(struct mandor_err *err, int code, const char *fmt, ...)
{
    if (err == NULL)
        return code;

    char text[3 * sizeof err->msg], words[80];
    va_list args;
    va_start(args, fmt);
    size_t len = written(vsnprintf(text, sizeof text, fmt, args), sizeof text);
    va_end(args);

    if (err->code == 0) { /* nobody said more than the number */
        err->code = code;
        err->fault = FAULT_HOST;
        (void)snprintf(err->msg, sizeof err->msg, "%s", describe(code, words, sizeof words));
    }
    len += written(snprintf(text + len, sizeof text - len, ": %s", err->msg), sizeof text - len);
    store(err, text, len);
    return code;
}

void err_clear(struct mandor_err *err)
{
    if (err != NULL)
        *err = (struct mandor_err){ 0 };
}

int err_exit_code(const struct mandor_err *err)
{
    if (err == NULL || err->code == 0)
        return 0;
    if (err->code == -ETIMEDOUT)
        return 124;

    switch (err->fault) {
    case MANDOR_FAULT_CALLER:
        return err->code == -ENOENT ? 3 : err->code == -EBUSY ? 4 : 2;
    case MANDOR_FAULT_JOB:
        return 1;
    default:
        return 125;
    }
}

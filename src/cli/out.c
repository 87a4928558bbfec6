/* out.c - contract in out.h. */
#include "cli/out.h"

#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <wchar.h>

#include "base/json.h"
#include "base/utf8.h"

static bool colour;
static int write_errno; /* the first failure on stdout */

/* A caller may have closed 0, 1 or 2 (`cmd >&-`): the next file that is opened would become stdout, and be written into. */
static void fill_standard_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(125);
}

void out_setup(void)
{
    fill_standard_fds();
    const char *term = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");

    (void)signal(SIGPIPE, SIG_IGN);
    colour = isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0') &&
             (term == NULL || !str_eq(term, "dumb"));
}

/* stdio forgets errno: look right after the call that may have failed. */
static void note_failure(void)
{
    if (write_errno == 0 && ferror(stdout))
        write_errno = errno != 0 ? errno : EIO;
}

bool out_broken(void)
{
    note_failure();
    return write_errno != 0;
}

void out_flush(void)
{
    errno = 0;
    if (fflush(stdout) != 0)
        note_failure();
}

int out_end(int code)
{
    out_flush();
    if (write_errno == 0 || write_errno == EPIPE)
        return code;
    (void)fprintf(stderr, "mandor: write to stdout: %s\n", strerror(write_errno));
    return 125;
}

bool out_is_terminal(void)
{
    return isatty(STDOUT_FILENO) == 1;
}

static struct winsize terminal_size(void)
{
    struct winsize size;

    if (!out_is_terminal())
        return (struct winsize){ .ws_col = 0 };
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0 || size.ws_row == 0)
        return (struct winsize){ .ws_col = 80, .ws_row = 24 };
    return size;
}

int out_columns(void)
{
    return terminal_size().ws_col;
}

int out_rows(void)
{
    return terminal_size().ws_row;
}

void out_line(const char *fmt, ...)
{
    va_list args;

    errno = 0;
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    (void)putchar('\n');
    note_failure();
}

static int print_text(char *adopt_text)
{
    if (adopt_text == NULL)
        return -ENOMEM;

    errno = 0;
    (void)puts(adopt_text);
    note_failure();
    free(adopt_text);
    return 0;
}

int out_json(const json_t *json)
{
    return print_text(json_text(json));
}

int out_json_pretty(const json_t *json)
{
    return print_text(out_is_terminal() ? json_text_indented(json) : json_text(json));
}

/* ---- style ---- */

static const char *const styles[] = {
    [STYLE_PLAIN] = "",         [STYLE_BOLD] = "\033[1m",    [STYLE_DIM] = "\033[2m",
    [STYLE_GREEN] = "\033[32m", [STYLE_YELLOW] = "\033[33m", [STYLE_RED] = "\033[31m",
    [STYLE_CYAN] = "\033[36m",
};

const char *style_on(enum out_style style)
{
    return colour ? styles[style] : "";
}

const char *style_off(enum out_style style)
{
    return colour && style != STYLE_PLAIN ? "\033[0m" : "";
}

enum out_style style_of_state(const char *state)
{
    static const struct {
        const char *state;
        enum out_style style;
    } known[] = { { "active", STYLE_CYAN },
                  { "completed", STYLE_GREEN },
                  { "failed", STYLE_RED },
                  { "cancelled", STYLE_YELLOW },
                  { "delayed", STYLE_DIM } };

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (str_eq(known[i].state, state))
            return known[i].style;
    return STYLE_PLAIN;
}

/* ---- text ---- */

/* The character that starts at p, of at most len bytes.  Sets *ret_len, the bytes that it takes.  False: not UTF-8. */
static bool decode(const char *p, size_t len, uint32_t *ret, size_t *ret_len)
{
    static const unsigned char masks[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };

    if (!utf8_step(p, len, ret_len))
        return false;
    *ret = (unsigned char)p[0] & masks[*ret_len];
    for (size_t i = 1; i < *ret_len; i++)
        *ret = *ret << 6 | ((unsigned char)p[i] & 0x3fu);
    return true;
}

/* Characters that move the cursor, change the terminal, or reorder what is read. */
static bool unsafe(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 ||
           (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

static int escape_one(struct buf *buf, uint32_t c)
{
    switch (c) {
    case '\n':
        return buf_adds(buf, "\\n");
    case '\t':
        return buf_adds(buf, "\\t");
    case '\r':
        return buf_adds(buf, "\\r");
    default:
        return c < 0x100 ? buf_addf(buf, "\\x%02x", c) : buf_addf(buf, "\\u%04x", c);
    }
}

/* Bytes that are no UTF-8, one by one. */
static int escape_bytes(struct buf *buf, const char *bytes, size_t len)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < len; i++)
        r = buf_addf(buf, "\\x%02x", (unsigned char)bytes[i]);
    return r;
}

int text_escape(struct buf *buf, const char *bytes, size_t len)
{
    int r = buf_add(buf, "", 0);

    for (size_t at = 0, n; r == 0 && at < len; at += n) {
        uint32_t c;
        if (!decode(bytes + at, len - at, &c, &n))
            r = escape_bytes(buf, bytes + at, n);
        else
            r = unsafe(c) ? escape_one(buf, c) : buf_add(buf, bytes + at, n);
    }
    return r;
}

static size_t char_width(uint32_t c)
{
    /* Loading them costs `run`, which never asks, a twentieth of its time. */
    static bool knows_widths;
    if (!knows_widths && c > '~') {
        /* Where it is not there every character counts as one. */
        (void)setlocale(LC_CTYPE, "C.UTF-8");
        knows_widths = true;
    }
    int width = wcwidth((wchar_t)c);
    return width >= 0 ? (size_t)width : 1;
}

/* How many bytes of text fit into columns. */
static size_t fit(const char *text, size_t columns, size_t *ret_width)
{
    size_t len = strlen(text), at = 0, width = 0;

    while (at < len) {
        uint32_t c = 0xfffd;
        size_t n;
        (void)decode(text + at, len - at, &c, &n);
        size_t w = char_width(c);
        if (width + w > columns)
            break;
        width += w;
        at += n;
    }
    *ret_width = width;
    return at;
}

static size_t text_width(const char *text)
{
    size_t width;
    (void)fit(text, SIZE_MAX, &width);
    return width;
}

char *text_age(int64_t wall_ms, int64_t now_ms, char buf[static 32])
{
    static const struct {
        int64_t seconds;
        char unit;
    } steps[] = { { 86400, 'd' }, { 3600, 'h' }, { 60, 'm' }, { 1, 's' } };
    int64_t seconds = MAX((now_ms - wall_ms) / 1000, (int64_t)0);

    (void)snprintf(buf, 32, "0s");
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        if (seconds < steps[i].seconds)
            continue;
        (void)snprintf(buf, 32, "%" PRId64 "%c", seconds / steps[i].seconds, steps[i].unit);
        break;
    }
    return buf;
}

static bool plain_word(const char *bytes, size_t len)
{
    return len > 0 && strspn(bytes, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                    "_-+./:=@%,{}") == len;
}

/* Does the word hold what text_escape() would not print as it is? */
static bool needs_escapes(const char *bytes, size_t len)
{
    for (size_t at = 0, n; at < len; at += n) {
        uint32_t c;
        if (!decode(bytes + at, len - at, &c, &n) || unsafe(c))
            return true;
    }
    return false;
}

/* $'...', as bash, zsh and ksh read it: in plain quotes \n would look like a line feed and like itself. */
static int add_escaped_word(struct buf *buf, const char *bytes, size_t len)
{
    int r = buf_adds(buf, "$'");

    for (size_t at = 0, n; r == 0 && at < len; at += n) {
        uint32_t c;
        if (!decode(bytes + at, len - at, &c, &n))
            r = escape_bytes(buf, bytes + at, n);
        else if (unsafe(c))
            r = c >= 0x80 ? buf_addf(buf, "\\u%04x", c) : escape_one(buf, c);
        else if (c == '\'' || c == '\\')
            r = buf_addf(buf, "\\%c", (int)c);
        else
            r = buf_add(buf, bytes + at, n);
    }
    return r == 0 ? buf_adds(buf, "'") : r;
}

/* One argument in shell quotes where it needs them. */
static int add_word(struct buf *buf, const json_t *json)
{
    char *bytes = NULL;
    size_t len = 0;
    int r = json_bytes_get(json, &bytes, &len, NULL);
    if (r < 0)
        return r == -ENOMEM ? r : buf_adds(buf, "?");

    if (plain_word(bytes, len)) {
        r = buf_add(buf, bytes, len);
    } else if (needs_escapes(bytes, len)) {
        r = add_escaped_word(buf, bytes, len);
    } else {
        r = buf_adds(buf, "'");
        for (size_t at = 0; at < len && r == 0; at++)
            r = bytes[at] == '\'' ? buf_adds(buf, "'\\''") : buf_add(buf, &bytes[at], 1);
        if (r == 0)
            r = buf_adds(buf, "'");
    }
    free(bytes);
    return r;
}

#define DATA_SHOWN_MAX 160

/* A job that only brings data: what they run is known where they are run. */
static int add_data(struct buf *buf, const json_t *data)
{
    SCOPED_FREE char *text = json_text(data);
    SCOPED_JSON *word = NULL;

    if (text == NULL)
        return -ENOMEM;
    if (strlen(text) > DATA_SHOWN_MAX)
        return buf_addf(buf, "%zu bytes of data", strlen(text));
    word = json_string(text);
    return word == NULL ? -ENOMEM : add_word(buf, word);
}

int text_command(struct buf *buf, const json_t *spec)
{
    const json_t *exec = json_object_get(spec, "exec");
    const char *pool = json_string_value(json_object_get(spec, "pool"));

    if (pool != NULL)
        return buf_addf(buf, "pool:%s", pool);
    if (json_object_get(spec, "python") != NULL)
        return buf_adds(buf, "python");
    if (exec == NULL && json_object_size(spec) > 0)
        return add_data(buf, json_object_get(spec, "data") != NULL ? json_object_get(spec, "data")
                                                                   : spec);

    for (size_t i = 0; i < json_array_size(exec); i++) {
        int r = i > 0 ? buf_adds(buf, " ") : 0;
        if (r == 0)
            r = add_word(buf, json_array_get(exec, i));
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- tables ---- */

struct cell {
    char *text;
    enum out_style style;
    bool right;
};

struct table {
    size_t columns, count, cap;
    struct cell *cells; /* count of them, row by row; the first row are the titles */
    bool failed;        /* out of memory: table_print() says so */
};

static void add_cell(struct table *table, char *adopt_text, enum out_style style, bool right)
{
    if (table->count == table->cap) {
        size_t cap = MAX(table->cap * 2, (size_t)64);
        struct cell *grown = reallocarray(table->cells, cap, sizeof *grown);
        if (grown == NULL) {
            free(adopt_text);
            table->failed = true;
            return;
        }
        table->cells = grown;
        table->cap = cap;
    }
    if (adopt_text == NULL)
        table->failed = true;
    table->cells[table->count++] =
        (struct cell){ .text = adopt_text, .style = style, .right = right };
}

struct table *table_new(const char *const *titles, size_t columns)
{
    struct table *table = calloc(1, sizeof *table);
    if (table == NULL)
        return NULL;

    table->columns = columns;
    for (size_t i = 0; i < columns; i++)
        add_cell(table, strdup(titles[i]), STYLE_BOLD, false);
    return table;
}

struct table *table_free(struct table *table)
{
    if (table == NULL)
        return NULL;
    for (size_t i = 0; i < table->count; i++)
        free(table->cells[i].text);
    free(table->cells);
    free(table);
    return NULL;
}

void table_cell(struct table *table, enum out_style style, const char *fmt, ...)
{
    SCOPED_BUF safe = { .data = NULL };
    char *text = NULL;
    va_list args;

    va_start(args, fmt);
    int len = vasprintf(&text, fmt, args);
    va_end(args);
    if (len < 0 || text_escape(&safe, text, (size_t)len) < 0) {
        table->failed = true;
        add_cell(table, NULL, style, false);
    } else {
        add_cell(table, buf_steal(&safe), style, false);
    }
    if (len >= 0)
        free(text);
}

void table_number(struct table *table, int64_t number)
{
    char *text = NULL;

    if (asprintf(&text, "%" PRId64, number) < 0)
        text = NULL;
    add_cell(table, text, STYLE_PLAIN, true);
}

static void pad(size_t columns)
{
    (void)printf("%*s", (int)columns, "");
}

/* Print one cell.  room: columns that are left, SIZE_MAX = any; last: no padding behind it. */
static void print_cell(const struct cell *cell, size_t column_width, size_t room, bool last)
{
    size_t width;
    size_t len = fit(cell->text, room, &width);
    bool cut = cell->text[len] != '\0';

    if (cut) /* leave room for the mark */
        len = fit(cell->text, room - 1, &width);
    size_t gap = MIN(column_width, room) > width + cut ? MIN(column_width, room) - width - cut : 0;
    if (cell->right)
        pad(gap);
    (void)printf("%s%.*s%s%s", style_on(cell->style), (int)len, cell->text, cut ? "…" : "",
                 style_off(cell->style));
    if (!cell->right && !last)
        pad(gap);
    if (!last)
        (void)fputs("  ", stdout);
}

/* terminal: its width, what does not fit is cut; 0 = no bound. */
static void print_row(const struct table *table, size_t row, const size_t *widths, size_t terminal)
{
    size_t used = 0, columns = table->columns;

    while (columns > 1 && table->cells[row * table->columns + columns - 1].text[0] == '\0')
        columns--; /* no spaces at the end of a line */
    for (size_t i = 0; i < columns && (terminal == 0 || used < terminal); i++) {
        struct cell cell = table->cells[row * table->columns + i];
        size_t room = terminal == 0 ? SIZE_MAX : terminal - used;
        bool last = i + 1 >= columns || (terminal != 0 && used + widths[i] + 2 >= terminal);

        if (row == 0 && table->count > table->columns) /* a title stands over its numbers */
            cell.right = table->cells[table->columns + i].right;
        print_cell(&cell, widths[i], room, last);
        used += widths[i] + 2;
    }
    (void)putchar('\n');
}

int table_print(struct table *table)
{
    size_t terminal = (size_t)out_columns();

    if (table->failed)
        return -ENOMEM;
    BUG_ON(table->count % table->columns != 0);
    size_t *widths = calloc(table->columns, sizeof *widths);
    if (widths == NULL)
        return -ENOMEM;

    for (size_t i = 0; i < table->count; i++)
        widths[i % table->columns] =
            MAX(widths[i % table->columns], text_width(table->cells[i].text));
    errno = 0;
    for (size_t row = 0; row < table->count / table->columns && !out_broken(); row++)
        print_row(table, row, widths, terminal);
    note_failure();
    free(widths);
    return 0;
}

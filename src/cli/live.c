/* live.c - contract in live.h. */
#include "cli/live.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/words.h"

#define LIVE_MAGIC 0x4c495645u

struct live {
    uint32_t magic;
    int fd;
    struct buf in;   /* received, from the frame that was returned last on */
    size_t returned; /* bytes of it to drop at the next call */
};

/* Connect by way of /proc/self/fd, because sun_path holds only 107 bytes. */
static int connect_below(int dir_fd, const char *worker, int fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int len = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s" LIVE_SUFFIX,
                       dir_fd, worker);

    if (len < 0 || (size_t)len >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    if (RETRY_EINTR(connect(fd, (struct sockaddr *)&address, sizeof address)) < 0)
        return -errno;
    return 0;
}

static int open_run(const char *data_dir)
{
    char *path = NULL;
    if (asprintf(&path, "%s/run", data_dir) < 0)
        return -ENOMEM;

    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd;
    free(path);
    return r;
}

static int connect_worker(const char *data_dir, const char *worker, int *ret_fd)
{
    int dir_fd = open_run(data_dir);
    if (dir_fd < 0)
        return dir_fd;

    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = fd < 0 ? -errno : connect_below(dir_fd, worker, fd);
    (void)close(dir_fd);
    if (r < 0 && fd >= 0)
        (void)close(fd);
    if (r == 0)
        *ret_fd = fd;
    return r;
}

static int send_line(int fd, const char *line)
{
    for (size_t left = strlen(line); left > 0;) {
        ssize_t n = RETRY_EINTR(send(fd, line, left, MSG_NOSIGNAL));
        if (n < 0)
            return -errno;
        line += n;
        left -= (size_t)n;
    }
    return 0;
}

int live_open(const char *data_dir, const char *worker, const char *line, struct live **ret,
              struct mandor_err *err)
{
    int fd = -1;
    int r = connect_worker(data_dir, worker, &fd);
    if (r == 0)
        r = send_line(fd, line);

    struct live *live = r == 0 ? calloc(1, sizeof *live) : NULL;
    if (live == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return err_set(err, r < 0 ? r : -ENOMEM, FAULT_HOST, "connect to worker '%s'", worker);
    }
    live->magic = LIVE_MAGIC;
    live->fd = fd;
    *ret = live;
    return 0;
}

struct live *live_close(struct live *live)
{
    if (live == NULL)
        return NULL;
    (void)close(live->fd);
    buf_done(&live->in);
    OBJ_FINI(live);
    free(live);
    return NULL;
}

int live_fd(const struct live *live)
{
    OBJ_CHECK(live, LIVE_MAGIC);
    return live->fd;
}

/* Is a whole frame in `in`?  1, 0, or -EPROTO. */
static int whole_frame(struct live *live, struct live_frame *ret)
{
    const unsigned char *p = (const unsigned char *)live->in.data;

    if (live->in.len < LIVE_HEADER)
        return 0;
    size_t len = p[1] | (size_t)p[2] << 8 | (size_t)p[3] << 16 | (size_t)p[4] << 24;
    if (p[0] < LIVE_STDOUT || p[0] > LIVE_SNAPSHOT || len > LIVE_PAYLOAD_MAX)
        return -EPROTO;
    if (live->in.len < LIVE_HEADER + len)
        return 0;

    *ret = (struct live_frame){ .kind = (enum live_kind)p[0],
                                .bytes = live->in.data + LIVE_HEADER,
                                .len = len };
    live->returned = LIVE_HEADER + len;
    return 1;
}

/* Wait for bytes and take them.  1, 0 when none came, -errno. */
static int receive(struct live *live, int timeout_ms)
{
    struct pollfd poller = { .fd = live->fd, .events = POLLIN };
    int r = RETRY_EINTR(poll(&poller, 1, timeout_ms));
    if (r <= 0)
        return r < 0 ? -errno : 0;

    r = buf_reserve(&live->in, (size_t)64 << 10);
    if (r < 0)
        return r;
    ssize_t n = RETRY_EINTR(recv(live->fd, live->in.data + live->in.len, (size_t)64 << 10, 0));
    if (n <= 0)
        return n == 0 || errno == ECONNRESET ? -EPIPE : -errno;
    live->in.len += (size_t)n;
    return 1;
}

int live_read(struct live *live, int timeout_ms, struct live_frame *ret)
{
    OBJ_CHECK(live, LIVE_MAGIC);
    int64_t until_ms = clock_mono_ms() + MAX(timeout_ms, 0);

    buf_consume(&live->in, live->returned);
    live->returned = 0;
    for (;;) {
        int r = whole_frame(live, ret);
        if (r != 0)
            return r;
        int64_t left_ms = timeout_ms < 0 ? -1 : MAX(until_ms - clock_mono_ms(), (int64_t)0);
        r = receive(live, (int)left_ms);
        if (r <= 0)
            return r;
    }
}

/* ---- who is there ---- */

/* The name in front of ".live", malloc'ed, or NULL with *ret_other set when the file is none of ours. */
static char *worker_name(const char *file, bool *ret_other)
{
    size_t len = strlen(file), suffix = strlen(LIVE_SUFFIX);

    *ret_other = len <= suffix || !str_eq(file + len - suffix, LIVE_SUFFIX);
    return *ret_other ? NULL : strndup(file, len - suffix);
}

char **live_workers(const char *data_dir)
{
    char **names = calloc(1, sizeof *names);
    size_t count = 0;
    int fd = open_run(data_dir);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    if (dir == NULL && fd >= 0)
        (void)close(fd);
    for (struct dirent *entry; names != NULL && dir != NULL && (entry = readdir(dir)) != NULL;) {
        bool other;
        char *name = worker_name(entry->d_name, &other);
        if (other)
            continue;
        char **grown = reallocarray(names, count + 2, sizeof *names);
        if (name == NULL || grown == NULL) {
            free(name);
            words_free(grown != NULL ? grown : names);
            names = NULL;
            break;
        }
        names = grown;
        names[count++] = name;
        names[count] = NULL;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return names;
}

/* stream_rig.c - contract in stream_rig.h. */
#include "stream_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

const struct filter_options rig_defaults = { .frame = FRAME_RAW,
                                             .frame_max = (size_t)1 << 20,
                                             .checksum = true };

#define TICK_MS 20

/* Also keeps a turn short: UV_RUN_ONCE goes to sleep although a timer that it ran first has made the condition true. */
static void on_watchdog(uv_timer_t *timer)
{
    struct rig *rig = CONTAINER_OF(timer, struct rig, watchdog);

    if (++rig->ticks < 60000 / TICK_MS)
        return;
    (void)fprintf(stderr, "not done after 60 s\n");
    abort();
}

void rig_init(struct rig *rig)
{
    *rig = (struct rig){ .child = -1, .open_result = 1, .result = 1, .finish_result = 1 };
    (void)signal(SIGPIPE, SIG_IGN);
    BUG_ON(uv_loop_init(&rig->loop) != 0);
    BUG_ON(uv_timer_init(&rig->loop, &rig->watchdog) != 0);
    BUG_ON(uv_timer_start(&rig->watchdog, on_watchdog, TICK_MS, TICK_MS) != 0);
    uv_unref((uv_handle_t *)&rig->watchdog);
    BUG_ON(filter_pool_new(&rig->loop, (size_t)128 << 20, &rig->pool) != 0);
    (void)snprintf(rig->dir, sizeof rig->dir, "/tmp/mandor-test-XXXXXX");
    BUG_ON(mkdtemp(rig->dir) == NULL);
    fake_sink_init(&rig->fake);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

void rig_done(struct rig *rig)
{
    filter_pool_close(rig->pool);
    uv_close((uv_handle_t *)&rig->watchdog, NULL);
    BUG_ON(uv_run(&rig->loop, UV_RUN_DEFAULT) != 0);
    BUG_ON(uv_loop_close(&rig->loop) != 0); /* every handle was closed */
    fake_sink_done(&rig->fake);
    (void)nftw(rig->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void on_opened(void *arg, int result, const struct mandor_err *err)
{
    struct rig *rig = arg;

    rig->opened = true;
    rig->open_result = result;
    if (result < 0) {
        rig->err = *err;
        filter_fail(rig->filter, result, err);
    } else if (!rig->closed && rig->filter != NULL) {
        filter_sink_ready(rig->filter);
    }
}

static void on_activity(void *arg)
{
    ((struct rig *)arg)->activity++;
}

static void on_ended(void *arg, int result, const struct mandor_err *err)
{
    struct rig *rig = arg;

    BUG_ON(rig->ended);
    rig->ended = true;
    rig->result = result;
    if (err != NULL)
        rig->err = *err;
}

static void on_progress(void *arg, const char *text, size_t len)
{
    struct rig *rig = arg;

    rig->progress_events++;
    (void)snprintf(rig->progress, sizeof rig->progress, "%.*s", (int)len, text);
}

void rig_open(struct rig *rig, const char *url, const char *stream,
              const struct filter_options *options)
{
    static const struct filter_events events = { on_activity, on_ended, on_progress };
    char data[80], journal[80];
    (void)snprintf(data, sizeof data, "%s/data", rig->dir);
    (void)snprintf(journal, sizeof journal, "%s/journal", rig->dir);
    struct sink_target target = { .url = url,
                                  .job_id = "job",
                                  .attempt = 1,
                                  .stream = stream,
                                  .data_dir = data,
                                  .journal_dir = journal,
                                  .inherit_fd = -1 };

    if (url == NULL)
        rig->sink = fake_sink_open(&rig->loop, &rig->fake, stream, on_opened, rig);
    else
        BUG_ON(sink_open(&rig->loop, &target, on_opened, rig, &rig->sink, &rig->err) != 0);
    BUG_ON(filter_new(rig->pool, options, rig->sink, &events, rig, &rig->filter) != 0);
}

int rig_pipe(struct rig *rig)
{
    int fds[2];

    BUG_ON(pipe2(fds, O_CLOEXEC) < 0);
    BUG_ON(filter_adopt_pipe(rig->filter, fds[0]) != 0);
    return fds[1];
}

void rig_child(struct rig *rig, void (*body)(int fd, const void *arg), const void *arg)
{
    int fds[2];

    BUG_ON(pipe2(fds, O_CLOEXEC) < 0);
    rig->child = fork();
    BUG_ON(rig->child < 0);
    if (rig->child == 0) {
        (void)close(fds[0]);
        (void)signal(SIGPIPE, SIG_DFL);
        body(fds[1], arg);
        _exit(0);
    }
    (void)close(fds[1]);
    BUG_ON(filter_adopt_pipe(rig->filter, fds[0]) != 0);
}

void rig_until(struct rig *rig, const bool *flag)
{
    while (!*flag)
        (void)uv_run(&rig->loop, UV_RUN_ONCE);
}

static void on_turns_over(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

void rig_turns(struct rig *rig, int ms)
{
    bool over = false;
    uv_timer_t timer = { .data = &over };

    (void)uv_timer_init(&rig->loop, &timer);
    (void)uv_timer_start(&timer, on_turns_over, (uint64_t)ms, 0);
    rig_until(rig, &over);
    uv_close((uv_handle_t *)&timer, NULL);
    (void)uv_run(&rig->loop, UV_RUN_NOWAIT);
}

void rig_reap(struct rig *rig)
{
    BUG_ON(RETRY_EINTR(waitpid(rig->child, NULL, 0)) != rig->child);
    rig->child = -1;
}

void rig_on_room(void *arg)
{
    ((struct rig *)arg)->room = true;
}

void rig_on_drained(void *arg)
{
    struct rig *rig = arg;

    BUG_ON(rig->drained);
    rig->drained = true;
}

void rig_end(struct rig *rig)
{
    filter_drain(rig->filter, 500, 600000, rig_on_drained);
    rig_until(rig, &rig->drained);
    filter_finish(rig->filter);
    rig_until(rig, &rig->ended);
}

static void on_finished(void *arg, int result, const struct mandor_err *err)
{
    struct rig *rig = arg;

    BUG_ON(rig->finished);
    rig->finished = true;
    rig->finish_result = result;
    if (result < 0)
        rig->err = *err;
}

static void on_closed(void *arg)
{
    ((struct rig *)arg)->closed = true;
}

void rig_settle(struct rig *rig, bool commit)
{
    filter_close(rig->filter, on_closed, rig); /* first: it may be in full flood */
    if (commit)
        sink_commit(rig->sink, SINK_NO_DEADLINE, on_finished, rig);
    else
        sink_abort(rig->sink, on_finished, rig);
    rig_until(rig, &rig->finished);
    rig_until(rig, &rig->closed);
    sink_close(rig->sink);
    if (rig->child > 0)
        rig_reap(rig);
}

void rig_bytes(unsigned seed, int64_t offset, unsigned char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        uint64_t at = (uint64_t)offset + i;
        uint64_t word = ((at >> 3) + seed) * 0x9e3779b97f4a7c15u;
        bytes[i] = (unsigned char)((word ^ word >> 29) >> (8 * (at & 7)));
    }
}

uint64_t rig_hash(unsigned seed, int64_t len)
{
    static unsigned char bytes[65536];
    XXH3_state_t *state = XXH3_createState();

    (void)XXH3_64bits_reset(state);
    for (int64_t at = 0; at < len; at += (int64_t)sizeof bytes) {
        size_t n = (size_t)MIN((int64_t)sizeof bytes, len - at);
        rig_bytes(seed, at, bytes, n);
        (void)XXH3_64bits_update(state, bytes, n);
    }
    uint64_t hash = XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
    return hash;
}

void rig_write(int fd, const void *bytes, size_t len)
{
    const char *from = bytes;

    while (len > 0) {
        ssize_t n = RETRY_EINTR(write(fd, from, len));
        BUG_ON(n < 0);
        from += n;
        len -= (size_t)n;
    }
}

void rig_write_stream(int fd, unsigned seed, int64_t len)
{
    static unsigned char bytes[65536];

    for (int64_t at = 0; at < len; at += (int64_t)sizeof bytes) {
        size_t n = (size_t)MIN((int64_t)sizeof bytes, len - at);
        rig_bytes(seed, at, bytes, n);
        rig_write(fd, bytes, n);
    }
}

char *rig_read_file(const char *path, size_t *ret_len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    if (fd < 0)
        return NULL;
    BUG_ON(fstat(fd, &st) < 0);
    char *bytes = malloc((size_t)st.st_size + 1);
    ssize_t n = read(fd, bytes, (size_t)st.st_size);
    BUG_ON(n != st.st_size);
    bytes[n] = '\0';
    *ret_len = (size_t)n;
    (void)close(fd);
    return bytes;
}

static int file_count;

static int count_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    file_count += type != FTW_D && type != FTW_DP;
    return 0;
}

int rig_count_files(const char *dir)
{
    file_count = 0;
    (void)nftw(dir, count_one, 16, FTW_PHYS);
    return file_count;
}

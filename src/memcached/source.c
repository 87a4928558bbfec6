/* source.c - reads a value of any length back from memcached: contract in stream/source.h.  Parts are put together in their order; length and
 * checksum must be what the manifest says. */
#include "stream/source.h"

#include <stdio.h>
#include <xxhash.h>

#include "loop/work.h"
#include "memcached/items.h"

struct source {
    uv_loop_t *loop;
    struct work work;
    struct items *items;
    struct source_events events;
    void *arg;
    bool closed, busy, opened;
    struct buf part;
    size_t at;
    struct manifest manifest; /* parts 0 = the value is one item */
    int64_t next, bytes;
    XXH3_state_t *hash;
    int result;
    struct mandor_err err;
};

static void source_free(struct source *source)
{
    items_free(source->items);
    buf_done(&source->part);
    free(source->manifest.prefix);
    (void)XXH3_freeState(source->hash);
    free(source);
}

static int read_part(struct source *source)
{
    char *key = NULL;
    uint32_t flags;

    if (asprintf(&key, "%s.%" PRId64, source->manifest.prefix, source->next) < 0)
        return err_set(&source->err, -ENOMEM, FAULT_HOST, "read a part");
    int r = items_get(source->items, key, &source->part, &flags, &source->err);
    free(key);
    if (r == -ENOENT) {
        r = -EBADMSG;
        source->err.code = r; /* the manifest is there, a part is not: evicted */
    }
    source->next++;
    return r;
}

static int read_first(struct source *source)
{
    uint32_t flags = 0;
    int r = items_get(source->items, items_key(source->items), &source->part, &flags, &source->err);

    source->opened = true;
    if (r < 0 || flags != ITEM_MANIFEST)
        return r;
    r = manifest_parse(source->part.data, source->part.len, &source->manifest);
    buf_clear(&source->part);
    if (r < 0)
        return err_set(&source->err, r, FAULT_REMOTE, "'%s' is no manifest of parts",
                       items_key(source->items));
    return read_part(source);
}

static void run_read(struct work *work)
{
    struct source *source = CONTAINER_OF(work, struct source, work);

    source->result = source->opened ? read_part(source) : read_first(source);
    if (source->result == 0) {
        (void)XXH3_64bits_update(source->hash, source->part.data, source->part.len);
        source->bytes += (int64_t)source->part.len;
    }
}

static void after_read(struct work *work);

static void start_read(struct source *source)
{
    source->busy = true;
    work_submit(source->loop, &source->work, items_device(source->items), run_read, after_read);
}

static void finish(struct source *source)
{
    const struct manifest *manifest = &source->manifest;

    if (manifest->parts > 0 &&
        (source->bytes != manifest->bytes || XXH3_64bits_digest(source->hash) != manifest->xxh3))
        source->result =
            err_set(&source->err, -EBADMSG, FAULT_REMOTE,
                    "the parts of '%s' are not what its manifest says", items_key(source->items));
    source->events.on_end(source->arg, source->result, &source->err); /* may close it */
}

static void deliver(struct source *source)
{
    if (source->busy)
        return;
    while (source->at < source->part.len) {
        size_t len = MIN(source->part.len - source->at, SOURCE_PIECE_MAX);
        if (!source->events.on_bytes(source->arg, source->part.data + source->at, len))
            return;
        source->at += len;
    }
    buf_clear(&source->part);
    source->at = 0;
    if (source->next < source->manifest.parts)
        start_read(source);
    else
        finish(source);
}

static void after_read(struct work *work)
{
    struct source *source = CONTAINER_OF(work, struct source, work);

    source->busy = false;
    if (source->closed)
        source_free(source);
    else if (source->result < 0)
        source->events.on_end(source->arg, source->result, &source->err);
    else
        deliver(source);
}

static int source_open(uv_loop_t *loop, const char *url, bool follow,
                       const struct source_events *events, void *arg, struct source **ret,
                       struct mandor_err *err)
{
    struct source *source = calloc(1, sizeof *source);
    if (source == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read '%s'", url);

    *source = (struct source){ .loop = loop, .events = *events, .arg = arg };
    source->hash = XXH3_createState();
    int r = source->hash == NULL ? err_set(err, -ENOMEM, FAULT_HOST, "read '%s'", url)
                                 : items_new(strchr(url, ':') + 1, &source->items, err);
    if (r < 0) {
        source_free(source);
        return r;
    }
    (void)XXH3_64bits_reset(source->hash);
    start_read(source);
    *ret = source;
    return 0;
}

static void source_close(struct source *source)
{
    source->closed = true;
    if (!source->busy)
        source_free(source);
}

extern const struct source_ops source_memcached;
const struct source_ops source_memcached = { .open = source_open,
                                             .resume = deliver,
                                             .close = source_close };

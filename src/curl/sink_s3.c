/* sink_s3.c - s3://BUCKET/KEY, its parts on their way: contract of the sink in sink_ops.h.  How an upload of parts is begun is in
 * upload_begin.c, how it ends in upload_end.c.
 *
 *    write ─▶ [ slot │ slot │ slot │ slot ] ─▶ PUT ?partNumber ─▶ … ─▶ POST ?uploadId  (commit: the object appears)
 *                one is filled, the others are on their way; none free: the write waits, the job is held up
 *
 * The server refuses bodies that are not what was signed, and so what was changed on the way.
 * A slot's bytes stay until the server has confirmed them, so a part can be sent again (R89).  What fits into one part is one PUT at
 * the commit.  Parts double every max_parts / 10, so that 10,000 of them hold any object that S3 takes (R88); the slots' memory together
 * stays part_size × concurrency until a single part is larger than that.
 */
#include <stdio.h>

#include "curl/upload.h"
#include "sink/left.h"
#include "sink/url.h"

/* ---- failure ---- */

void upload_fail(struct upload *upload, int result, const struct mandor_err *err)
{
    if (upload->result < 0)
        return;
    upload->result = result;
    upload->err = *err;
}

void upload_fail_memory(struct upload *upload)
{
    struct mandor_err err;

    (void)err_set(&err, -ENOMEM, FAULT_HOST, "upload to '%s'", upload->url);
    upload_fail(upload, -ENOMEM, &err);
}

void upload_free_slot(struct upload_slot *slot)
{
    if (slot->upload->filling == slot)
        slot->upload->filling = NULL;
    s3_request_drop(STEAL(slot->request));
    slot->state = SLOT_FREE;
    slot->len = slot->size = 0;
}

void upload_free_memory(struct upload *upload)
{
    for (int64_t i = 0; i < upload->place->settings.concurrency; i++)
        if (upload->slots[i].state == SLOT_FREE)
            s3_memory_done(&upload->slots[i].memory);
}

static bool all_free(const struct upload *upload)
{
    for (int64_t i = 0; i < upload->place->settings.concurrency; i++)
        if (upload->slots[i].state != SLOT_FREE)
            return false;
    return true;
}

/* ---- requests ---- */

struct s3_request *upload_request(struct upload *upload, const char *method, void *arg)
{
    struct mandor_err err;
    struct s3_request *request = s3_request_new(upload->web, upload->place, method, arg, &err);

    if (request == NULL)
        upload_fail(upload, -ENOMEM, &err);
    else
        s3_request_answer_within(request, upload->patience_ms);
    return request;
}

/* Whose object it is.  In the order of the alphabet. */
int upload_metadata(struct upload *upload, struct s3_request *request)
{
    int r = s3_request_header(request, "x-amz-meta-mandor-attempt", upload->attempt);

    if (r == 0)
        r = s3_request_header(request, "x-amz-meta-mandor-job", upload->job);
    return r < 0 ? r : s3_request_header(request, "x-amz-meta-mandor-stream", upload->stream);
}

/* An ETag is the MD5 of the bytes where nothing but plain storage is in use. */
static bool is_md5(const char *etag, const struct web_call *call)
{
    const char *encryption = web_call_answer(call, "x-amz-server-side-encryption");
    size_t quoted = etag[0] == '"';

    return strspn(etag + quoted, "0123456789abcdefABCDEF") == 32 &&
           etag[quoted + 32] == (quoted ? '"' : '\0') && encryption[0] == '\0' &&
           web_call_answer(call, "x-amz-server-side-encryption-customer-algorithm")[0] == '\0';
}

int upload_check_etag(struct s3_request *request, struct mandor_err *err)
{
    const struct web_call *call = s3_request_call(request);
    const char *etag = web_call_answer(call, "etag");

    return etag[0] != '\0'
               ? 0
               : err_set(err, -EAGAIN, FAULT_REMOTE, "S3 confirmed bytes without an ETag");
}

/* ---- one part ---- */

static void on_part_done(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct upload_slot *slot = s3_request_arg(request);
    struct upload *upload = slot->upload;

    if (result < 0) {
        upload_fail(upload, result, err);
    } else {
        struct upload_part *part = &upload->parts[slot->number - 1];
        const char *etag = web_call_answer(s3_request_call(request), "etag");
        upload->etags_are_md5 &= is_md5(etag, s3_request_call(request));
        part->etag = strdup(etag);
        if (part->etag == NULL)
            upload_fail_memory(upload);
    }
    s3_request_return_body(request, &slot->memory);
    upload_free_slot(slot);
    upload_advance(upload);
}

static void send_part(struct upload_slot *slot)
{
    struct upload *upload = slot->upload;
    struct s3_request *request = upload_request(upload, "PUT", slot);
    char number[16];

    if (request == NULL)
        return;
    slot->request = request;
    slot->state = SLOT_SENDING;
    (void)snprintf(number, sizeof number, "%u", slot->number);
    if (s3_request_query(request, "partNumber", number) < 0 ||
        s3_request_query(request, "uploadId", upload->upload_id) < 0) {
        upload_fail_memory(upload);
        return;
    }
    s3_request_adopt_body(request, &slot->memory, slot->len);
    s3_request_start(request, upload_check_etag, on_part_done);
}

/* ---- filling parts ---- */

static int64_t part_size(const struct upload *upload, unsigned number)
{
    const struct s3_settings *settings = &upload->place->settings;
    int64_t step = MAX(settings->max_parts / 10, (int64_t)1);
    int64_t doublings = MIN(((int64_t)number - 1) / step, (int64_t)20);

    return MIN(settings->part_size_bytes << doublings, S3_PART_MAX);
}

static int64_t memory_in_use(const struct upload *upload)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < upload->place->settings.concurrency; i++)
        bytes += (int64_t)upload->slots[i].size;
    return bytes;
}

static int grow_parts(struct upload *upload)
{
    if (upload->part_count < upload->part_cap)
        return 0;
    unsigned cap = MAX(upload->part_cap * 2, 64u);
    struct upload_part *parts = realloc(upload->parts, cap * sizeof *parts);
    if (parts == NULL)
        return -ENOMEM;
    memset(parts + upload->part_cap, 0, (cap - upload->part_cap) * sizeof *parts);
    upload->parts = parts;
    upload->part_cap = cap;
    return 0;
}

static void refuse_length(struct upload *upload)
{
    struct mandor_err err;

    (void)err_set(&err, -EFBIG, FAULT_CALLER,
                  "'%s' is longer than %" PRId64 " parts can hold: expected a larger part_size",
                  upload->url, upload->place->settings.max_parts);
    upload_fail(upload, -EFBIG, &err);
}

/* Find a place for the next part.  false: none now, or failed. */
static bool open_slot(struct upload *upload)
{
    const struct s3_settings *settings = &upload->place->settings;
    int64_t size = part_size(upload, upload->part_count + 1), in_use = memory_in_use(upload);
    struct upload_slot *slot = NULL;

    if ((int64_t)upload->part_count >= settings->max_parts) {
        refuse_length(upload);
        return false;
    }
    for (int64_t i = 0; i < settings->concurrency; i++) {
        struct upload_slot *other = &upload->slots[i];
        if (other->state == SLOT_FREE && (slot == NULL || other->memory.size == (size_t)size))
            slot = other;
    }
    if (slot == NULL ||
        (in_use > 0 && in_use + size > settings->part_size_bytes * settings->concurrency))
        return false;
    if (slot->memory.size != (size_t)size)
        upload_free_memory(upload); /* of smaller parts */
    if (grow_parts(upload) < 0 ||
        (slot->memory.bytes == NULL && s3_memory_new(&slot->memory, (size_t)size) < 0)) {
        upload_fail_memory(upload);
        return false;
    }
    slot->upload = upload;
    slot->state = SLOT_FILLING;
    slot->size = (size_t)size;
    slot->len = 0;
    upload->filling = slot;
    return true;
}

/* The filled part has its number and may go. */
static void close_slot(struct upload *upload)
{
    struct upload_slot *slot = STEAL(upload->filling);

    slot->number = ++upload->part_count;
    slot->state = SLOT_WAITING;
}

/* Copy on; true when all of the write was taken. */
static bool fill(struct upload *upload)
{
    while (upload->iov_count > 0 && upload->result == 0) {
        size_t left = upload->iov->iov_len - upload->iov_at;
        if (left == 0) {
            upload->iov++;
            upload->iov_count--;
            upload->iov_at = 0;
            continue;
        }
        if (upload->filling != NULL && upload->filling->len == upload->filling->size)
            close_slot(upload); /* not earlier: what fits into one part is no upload of parts */
        if (upload->filling == NULL && !open_slot(upload))
            return false;
        struct upload_slot *slot = upload->filling;
        const unsigned char *from = (const unsigned char *)upload->iov->iov_base + upload->iov_at;
        size_t len = MIN(left, slot->size - slot->len);
        memcpy(slot->memory.bytes + slot->len, from, len);
        if (upload->hash != NULL)
            (void)XXH3_64bits_update(upload->hash, from, len);
        slot->len += len;
        upload->iov_at += len;
    }
    return upload->iov_count == 0;
}

static void send_waiting(struct upload *upload)
{
    bool any = false;

    for (int64_t i = 0; i < upload->place->settings.concurrency && upload->result == 0; i++) {
        struct upload_slot *slot = &upload->slots[i];
        if (slot->state == SLOT_WAITING && upload->stage == UPLOAD_OPEN)
            send_part(slot);
        any |= slot->state == SLOT_WAITING;
    }
    if (any && upload->stage == UPLOAD_NONE && upload->result == 0)
        upload_begin(upload);
}

/* ---- what comes next ---- */

static bool is_ending(const struct upload *upload)
{
    return upload->preparing || upload->committing || upload->aborting;
}

static void answer_prepared(struct upload *upload)
{
    upload->preparing = false;
    sink_answer(upload->sink, upload->result, &upload->err);
}

/* The last part may be shorter; a failure ends in upload_abort(). */
static void advance_end(struct upload *upload)
{
    if (upload->result == 0 && !upload->aborting && !upload_beginning(upload)) {
        if (upload->part_count > 0 && upload->filling != NULL)
            close_slot(upload);
        send_waiting(upload); /* may fail, and end it from inside */
    }
    if (upload->ending || !is_ending(upload) || upload_beginning(upload))
        return;

    bool failed = upload->result < 0 || upload->aborting;
    bool whole = upload->part_count == 0;
    if (!failed && !whole && !(all_free(upload) && upload->stage == UPLOAD_OPEN))
        return;
    if (upload->preparing && !upload->aborting) {
        answer_prepared(upload);
        return;
    }
    upload->ending = true;
    if (failed)
        upload_abort(upload);
    else if (whole)
        upload_put_whole(upload);
    else
        upload_complete(upload);
}

void upload_advance(struct upload *upload)
{
    if (is_ending(upload)) {
        if (!upload->ending)
            advance_end(upload);
        return;
    }
    bool taken = upload->writing && fill(upload);
    if (upload->result == 0)
        send_waiting(upload);
    if (!upload->writing || (!taken && upload->result == 0))
        return;
    upload->writing = false;
    sink_answer(upload->sink, upload->result, &upload->err);
}

static void s3_prepare(struct sink *sink)
{
    struct upload *upload = sink_state(sink);

    upload->preparing = true;
    upload_advance(upload);
}

static void s3_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct upload *upload = sink_state(sink);

    upload->iov = iov;
    upload->iov_count = count;
    upload->iov_at = 0;
    upload->hash = hash;
    upload->writing = true;
    upload_advance(upload);
}

static void s3_commit(struct sink *sink)
{
    struct upload *upload = sink_state(sink);

    upload->committing = true;
    upload_advance(upload);
}

/* Its id is needed; without it who sweeps finds it by its key. */
static void hurry(struct upload *upload)
{
    if (upload->stage == UPLOAD_CREATING)
        s3_request_hurry(upload->request, UPLOAD_ABORT_MS);
}

static void s3_interrupt(struct sink *sink)
{
    struct upload *upload = sink_state(sink);
    struct mandor_err err;

    upload_fail(
        upload,
        err_set(&err, -ECANCELED, FAULT_REMOTE, "the upload to '%s' was given up", upload->url),
        &err);
    hurry(upload);
    upload_advance(upload);
}

static void s3_abort(struct sink *sink)
{
    struct upload *upload = sink_state(sink);

    upload->aborting = true;
    hurry(upload);
    upload_advance(upload);
}

/* ---- opening ---- */

static char *encode(const char *text)
{
    struct buf buf = { 0 };

    if (sigv4_encode(&buf, text, false) < 0) {
        buf_done(&buf);
        return NULL;
    }
    return buf.len == 0 ? strdup("") : buf_steal(&buf);
}

static int prepare(struct upload *upload, const struct sink_target *target, const char *rest,
                   struct mandor_err *err)
{
    int r = s3_place_new(rest, &sink_settings()->s3, &upload->place, err);
    if (r < 0)
        return r;
    upload->web = web_get(sink_loop(upload->sink), err);
    if (upload->web == NULL)
        return -ENOMEM;
    upload->patience_ms = target->patience_ms;
    upload->etags_are_md5 = true;
    upload->note = left_path(target, &r);
    if (target->left_dir != NULL)
        upload->left = strdup(target->left_dir);
    else
        upload->left = target->data_dir == NULL ? NULL : left_dir(target->data_dir);
    upload->job = encode(target->job_id == NULL ? "run" : target->job_id);
    upload->stream = strdup(target->stream);
    if (asprintf(&upload->url, "s3:%s", rest) < 0)
        upload->url = NULL;
    if (asprintf(&upload->attempt, "%" PRId64, target->attempt) < 0)
        upload->attempt = NULL;
    if (r < 0 || upload->job == NULL || upload->stream == NULL || upload->url == NULL ||
        upload->attempt == NULL || (upload->note != NULL && upload->left == NULL))
        return err_set(err, -ENOMEM, FAULT_HOST, "open 's3:%s'", rest);
    return 0;
}

static void s3_open(struct sink *sink, const struct sink_target *target, const char *rest)
{
    struct upload *upload = sink_state(sink);
    struct mandor_err err;

    upload->sink = sink;
    sink_answer(sink, prepare(upload, target, rest, &err), &err);
}

static void s3_done(struct sink *sink)
{
    struct upload *upload = sink_state(sink);

    for (size_t i = 0; i < UPLOAD_SLOTS_MAX; i++) {
        if (upload->slots[i].state != SLOT_FREE)
            upload_free_slot(&upload->slots[i]);
        s3_memory_done(&upload->slots[i].memory);
    }
    for (unsigned i = 0; i < upload->part_cap; i++)
        free(upload->parts[i].etag);
    free(upload->parts);
    free(upload->upload_id);
    free(upload->url);
    free(upload->job);
    free(upload->attempt);
    free(upload->stream);
    free(upload->note);
    free(upload->left);
    s3_place_unref(upload->place);
    web_put(upload->web);
}

static const char *s3_target_text(const struct sink *sink)
{
    const struct upload *upload = sink_state(sink);

    return upload->url;
}

const struct sink_ops sink_s3 = {
    .scheme = "s3",
    .state_size = sizeof(struct upload),
    .publishes = true,
    .remote = true,
    .check = sink_url_check_s3,
    .open = s3_open,
    .write = s3_write,
    .prepare = s3_prepare,
    .commit = s3_commit,
    .abort = s3_abort,
    .interrupt = s3_interrupt,
    .done = s3_done,
    .target_text = s3_target_text,
};

/* sink_s3.c - s3://BUCKET/KEY: contract of the sink in sink_ops.h.
 *
 *    write ─▶ [ slot │ slot │ slot │ slot ] ─▶ PUT ?partNumber ─▶ … ─▶ POST ?uploadId  (commit: the object appears)
 *                one is filled, the others are on their way; none free: the write waits, the job is held up
 *
 * A slot's bytes stay until the server has confirmed them, so a part can be sent again (R89).  What fits into one part is one PUT at
 * the commit.  Parts double every max_parts / 10, so that 10,000 of them hold any object that S3 takes (R88); the slots' memory together
 * stays part_size × concurrency until a single part is larger than that.
 *
 * Before an upload of parts is begun it is noted in the journal, with its id as soon as there is one (sink/left.h, R85).
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "curl/upload.h"
#include "curl/xml.h"
#include "sink/left.h"
#include "sink/url.h"

#define ABORT_TRIES   3
#define ABORT_WAIT_MS 5000

static void advance(struct upload *upload);

/* ---- failure ---- */

static void fail(struct upload *upload, int result, const struct mandor_err *err)
{
    if (upload->result < 0)
        return;
    upload->result = result;
    upload->err = *err;
}

static void fail_memory(struct upload *upload)
{
    struct mandor_err err;

    (void)err_set(&err, -ENOMEM, FAULT_HOST, "upload to '%s'", upload->url);
    fail(upload, -ENOMEM, &err);
}

static void free_slot(struct upload_slot *slot)
{
    if (slot->upload->filling == slot)
        slot->upload->filling = NULL;
    s3_request_drop(STEAL(slot->request));
    s3_memory_done(&slot->memory);
    slot->state = SLOT_FREE;
    slot->len = slot->size = 0;
}

static bool all_free(const struct upload *upload)
{
    for (int64_t i = 0; i < upload->place->settings.concurrency; i++)
        if (upload->slots[i].state != SLOT_FREE)
            return false;
    return true;
}

/* ---- requests ---- */

static struct s3_request *new_request(struct upload *upload, const char *method, void *arg)
{
    struct mandor_err err;
    struct s3_request *request = s3_request_new(upload->web, upload->place, method, arg, &err);

    if (request == NULL)
        fail(upload, -ENOMEM, &err);
    return request;
}

/* Whose object it is.  In the order of the alphabet. */
static int add_metadata(struct upload *upload, struct s3_request *request)
{
    int r = s3_request_header(request, "x-amz-meta-mandor-attempt", upload->attempt);

    if (r == 0)
        r = s3_request_header(request, "x-amz-meta-mandor-job", upload->job);
    return r < 0 ? r : s3_request_header(request, "x-amz-meta-mandor-stream", upload->stream);
}

/* An ETag is the MD5 of the bytes where nothing but plain storage is in use; then it must be ours. */
static bool is_md5(const char *etag, const struct web_call *call)
{
    const char *encryption = web_call_answer(call, "x-amz-server-side-encryption");
    size_t quoted = etag[0] == '"';

    return strspn(etag + quoted, "0123456789abcdefABCDEF") == 32 &&
           etag[quoted + 32] == (quoted ? '"' : '\0') && encryption[0] == '\0' &&
           web_call_answer(call, "x-amz-server-side-encryption-customer-algorithm")[0] == '\0';
}

static int check_etag(struct s3_request *request, struct mandor_err *err)
{
    const struct web_call *call = s3_request_call(request);
    const char *etag = web_call_answer(call, "etag");
    char own[SIGV4_MD5_HEX];

    if (etag[0] == '\0')
        return err_set(err, -EAGAIN, FAULT_REMOTE, "S3 confirmed bytes without an ETag");
    if (is_md5(etag, call) &&
        strncasecmp(etag + (etag[0] == '"'), sigv4_hex(s3_request_md5(request), 16, own), 32) != 0)
        return err_set(err, -EAGAIN, FAULT_REMOTE, "S3 stored other bytes than were sent");
    return 0;
}

/* ---- one part ---- */

static void on_part_done(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct upload_slot *slot = s3_request_arg(request);
    struct upload *upload = slot->upload;

    if (result < 0) {
        fail(upload, result, err);
    } else {
        struct upload_part *part = &upload->parts[slot->number - 1];
        const char *etag = web_call_answer(s3_request_call(request), "etag");
        memcpy(part->md5, s3_request_md5(request), sizeof part->md5);
        upload->etags_are_md5 &= is_md5(etag, s3_request_call(request));
        part->etag = strdup(etag);
        if (part->etag == NULL)
            fail_memory(upload);
    }
    free_slot(slot);
    advance(upload);
}

static void send_part(struct upload_slot *slot)
{
    struct upload *upload = slot->upload;
    struct s3_request *request = new_request(upload, "PUT", slot);
    char number[16];

    if (request == NULL)
        return;
    slot->request = request;
    slot->state = SLOT_SENDING;
    (void)snprintf(number, sizeof number, "%u", slot->number);
    if (s3_request_query(request, "partNumber", number) < 0 ||
        s3_request_query(request, "uploadId", upload->upload_id) < 0) {
        fail_memory(upload);
        return;
    }
    s3_request_adopt_body(request, &slot->memory, slot->len);
    s3_request_start(request, check_etag, on_part_done);
}

/* ---- beginning ---- */

static void run_note(struct work *work)
{
    struct upload *upload = CONTAINER_OF(work, struct upload, work);

    upload->note_result = left_note(upload->note, upload->note_json, &upload->note_err);
}

static void begin(struct upload *upload);

static void after_note(struct work *work)
{
    struct upload *upload = CONTAINER_OF(work, struct upload, work);

    json_decref(STEAL(upload->note_json));
    upload->noted |= upload->note_result == 0;
    if (upload->note_result < 0)
        fail(upload, upload->note_result, &upload->note_err);
    begin(upload);
}

static void write_note(struct upload *upload)
{
    const struct s3_place *place = upload->place;

    upload->note_json =
        json_pack("{s:s, s:s+++, s:s, s:b, s:s, s:s, s:s*, s:I}", "kind", "s3", "endpoint",
                  place->scheme, "://", place->host, place->base_path, "region", place->region,
                  "path_style", place->path_style, "bucket", place->bucket, "key", place->key,
                  "upload_id", upload->upload_id, "since_ms", (json_int_t)clock_wall_ms());
    if (upload->note_json == NULL) {
        fail_memory(upload);
        begin(upload);
        return;
    }
    work_submit(sink_loop(upload->sink), &upload->work, WORK_UNKNOWN, run_note, after_note);
}

static void on_upload_id(void *arg, unsigned depth, const char *name, const char *text)
{
    struct upload *upload = arg;

    if (depth == 2 && str_eq(name, "UploadId") && upload->upload_id == NULL && text[0] != '\0')
        upload->upload_id = strdup(text);
}

static int check_created(struct s3_request *request, struct mandor_err *err)
{
    struct upload *upload = s3_request_arg(request);
    const struct web_call *call = s3_request_call(request);

    if (xml_read(call->response.data, call->response.len, on_upload_id, upload) < 0 ||
        upload->upload_id == NULL)
        return err_set(err, -EAGAIN, FAULT_REMOTE, "S3 began an upload without naming its id");
    return 0;
}

static void on_created(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct upload *upload = s3_request_arg(request);

    if (result < 0) {
        int status = s3_request_status(request);
        upload->maybe_begun =
            status < 400 || status > 499; /* no answer, or one that leaves it open */
        fail(upload, result, err);
    }
    s3_request_drop(STEAL(upload->request));
    begin(upload);
}

static void create(struct upload *upload)
{
    struct s3_request *request = upload->request = new_request(upload, "POST", upload);

    if (request == NULL)
        return;
    if (s3_request_query(request, "uploads", "") < 0 || add_metadata(upload, request) < 0) {
        fail_memory(upload);
        return;
    }
    upload->maybe_begun = true;
    s3_request_start(request, check_created, on_created);
}

/* The next step towards an open upload.  A failed or aborted one stays where it is. */
static void begin(struct upload *upload)
{
    if (upload->result < 0 || upload->aborting) {
        upload->stage = upload->upload_id != NULL ? UPLOAD_OPEN : UPLOAD_NONE;
        advance(upload);
        return;
    }
    switch (upload->stage) {
    case UPLOAD_NONE:
        upload->stage = UPLOAD_NOTING;
        if (upload->note != NULL) {
            write_note(upload);
            return;
        }
        /* fallthrough */
    case UPLOAD_NOTING:
        upload->stage = UPLOAD_CREATING;
        create(upload);
        if (upload->result < 0)
            begin(upload);
        return;
    case UPLOAD_CREATING:
        upload->stage = UPLOAD_NOTING_ID;
        if (upload->note != NULL) {
            write_note(upload);
            return;
        }
        /* fallthrough */
    case UPLOAD_NOTING_ID:
        upload->stage = UPLOAD_OPEN;
        advance(upload);
        return;
    case UPLOAD_OPEN:
        return;
    }
}

static bool beginning(const struct upload *upload)
{
    return upload->stage != UPLOAD_NONE && upload->stage != UPLOAD_OPEN;
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
    fail(upload, -EFBIG, &err);
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
    for (int64_t i = 0; i < settings->concurrency && slot == NULL; i++)
        if (upload->slots[i].state == SLOT_FREE)
            slot = &upload->slots[i];
    if (slot == NULL ||
        (in_use > 0 && in_use + size > settings->part_size_bytes * settings->concurrency))
        return false;
    if (grow_parts(upload) < 0 || s3_memory_new(&slot->memory, (size_t)size) < 0) {
        fail_memory(upload);
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
        begin(upload);
}

/* ---- the ends ---- */

static void run_forget(struct work *work)
{
    struct upload *upload = CONTAINER_OF(work, struct upload, work);

    if (upload->note_result == 0)
        left_forget(upload->note);
    else
        upload->note_result = left_hand_over(upload->note, upload->left, &upload->note_err);
}

static void answer_end(struct upload *upload)
{
    int result = upload->committing ? upload->result : 0;

    sink_answer(upload->sink, result, &upload->err);
}

static void after_forget(struct work *work)
{
    struct upload *upload = CONTAINER_OF(work, struct upload, work);

    if (upload->note_result < 0)
        log_warn("%s", upload->note_err.msg);
    answer_end(upload);
}

/* clean: nothing of it is left on the server; else its note goes to who sweeps. */
static void end(struct upload *upload, bool clean)
{
    if (!upload->noted) {
        answer_end(upload);
        return;
    }
    upload->note_result = clean ? 0 : 1;
    work_submit(sink_loop(upload->sink), &upload->work, WORK_UNKNOWN, run_forget, after_forget);
}

static void send_abort(struct upload *upload);

static void on_aborted(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct upload *upload = s3_request_arg(request);
    bool gone = result == 0 || s3_request_status(request) == 404;
    bool again = result == 0 && upload->parts_cut;

    if (!gone)
        log_warn("%s; it will be aborted later", err->msg);
    upload->parts_cut = false;
    s3_request_drop(STEAL(upload->request));
    if (again)
        send_abort(upload);
    else
        end(upload, gone);
}

static void send_abort(struct upload *upload)
{
    struct s3_request *request = upload->request = new_request(upload, "DELETE", upload);
    if (request == NULL || s3_request_query(request, "uploadId", upload->upload_id) < 0) {
        s3_request_drop(STEAL(upload->request));
        end(upload, false);
        return;
    }
    s3_request_tries(request, ABORT_TRIES);
    s3_request_start(request, NULL, on_aborted);
}

/* Parts that nobody will use are taken back.  One that was on its way may arrive behind the abort, hence a second one then. */
static void abort_upload(struct upload *upload)
{
    for (int64_t i = 0; i < upload->place->settings.concurrency; i++) {
        upload->parts_cut |= upload->slots[i].state == SLOT_SENDING;
        upload->slots[i].upload = upload;
        free_slot(&upload->slots[i]);
    }
    if (upload->stage == UPLOAD_OPEN)
        send_abort(upload);
    else
        end(upload, !upload->maybe_begun);
}

/* ---- commit ---- */

/* The commit has failed or has been done. */
static void on_committed(struct upload *upload, int result, const struct mandor_err *err)
{
    s3_request_drop(STEAL(upload->request));
    if (result < 0)
        fail(upload, result, err);
    if (result < 0 && upload->stage == UPLOAD_OPEN)
        abort_upload(upload);
    else
        end(upload, true);
}

static void on_put(struct s3_request *request, int result, const struct mandor_err *err)
{
    on_committed(s3_request_arg(request), result, err);
}

/* All of it in one request. */
static void put_whole(struct upload *upload)
{
    struct s3_request *request = upload->request = new_request(upload, "PUT", upload);
    struct upload_slot *slot = upload->filling;
    struct s3_memory none = { 0 };

    if (request == NULL || add_metadata(upload, request) < 0) {
        fail_memory(upload);
        on_committed(upload, upload->result, &upload->err);
        return;
    }
    s3_request_publishes(request, upload->sink);
    s3_request_adopt_body(request, slot == NULL ? &none : &slot->memory,
                          slot == NULL ? 0 : slot->len);
    s3_request_start(request, check_etag, on_put);
}

struct completion {
    bool done, error;
    char code[64], etag[128];
};

static void on_completion(void *arg, unsigned depth, const char *name, const char *text)
{
    struct completion *completion = arg;

    if (depth == 1) {
        completion->done = str_eq(name, "CompleteMultipartUploadResult");
        completion->error = str_eq(name, "Error");
    }
    if (depth == 2 && str_eq(name, "Code"))
        (void)snprintf(completion->code, sizeof completion->code, "%s", text);
    if (depth == 2 && str_eq(name, "ETag"))
        (void)snprintf(completion->etag, sizeof completion->etag, "%s", text);
}

/* The ETag of an object of parts: MD5 of the parts' MD5s, then "-" and their number. */
static bool etag_matches(const struct upload *upload, const char *etag)
{
    SCOPED_BUF all = { 0 };
    char sha256[SIGV4_HEX], hex[SIGV4_MD5_HEX], own[64];
    unsigned char md5[16];
    size_t quoted = etag[0] == '"';

    if (!upload->etags_are_md5 || strchr(etag, '-') == NULL)
        return true; /* it says nothing about the bytes */
    for (unsigned i = 0; i < upload->part_count; i++)
        if (buf_add(&all, upload->parts[i].md5, 16) < 0)
            return true;
    if (sigv4_hash(all.data, all.len, sha256, md5) < 0)
        return true;
    int len = snprintf(own, sizeof own, "%s-%u", sigv4_hex(md5, 16, hex), upload->part_count);
    return strncasecmp(etag + quoted, own, (size_t)len) == 0;
}

/* S3 says 200 before it begins; how it went is in the body (R87). */
static int check_completed(struct s3_request *request, struct mandor_err *err)
{
    struct upload *upload = s3_request_arg(request);
    const struct web_call *call = s3_request_call(request);
    struct completion completion = { 0 };

    if (xml_read(call->response.data, call->response.len, on_completion, &completion) < 0)
        return err_set(err, -EAGAIN, FAULT_REMOTE, "S3 completed '%s' without saying so",
                       upload->url);
    if (completion.error)
        return err_set(err, -EAGAIN, FAULT_REMOTE, "S3 could not complete '%s': %s", upload->url,
                       completion.code);
    if (!completion.done)
        return err_set(err, -EAGAIN, FAULT_REMOTE, "S3 completed '%s' without saying so",
                       upload->url);
    if (!etag_matches(upload, completion.etag))
        return err_set(err, -EBADMSG, FAULT_REMOTE, "S3 put '%s' together from other bytes",
                       upload->url);
    return 0;
}

static bool answer_is(const struct web_call *call, const char *name, const char *value)
{
    return str_eq(web_call_answer(call, name), value);
}

static void on_looked(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct upload *upload = s3_request_arg(request);
    const struct web_call *call = s3_request_call(request);
    struct mandor_err why;

    if (result == 0 && answer_is(call, "x-amz-meta-mandor-attempt", upload->attempt) &&
        answer_is(call, "x-amz-meta-mandor-job", upload->job)) {
        on_committed(upload, 0, NULL);
        return;
    }
    (void)err_set(&why, -ESTALE, FAULT_CALLER, "S3 has lost the upload to '%s'", upload->url);
    why.fault = FAULT_REMOTE;
    on_committed(upload, -ESTALE, &why);
}

/* The upload is gone: the answer to an earlier try was lost, or somebody aborted it.  The object says which. */
static void look(struct upload *upload)
{
    s3_request_drop(STEAL(upload->request));
    struct s3_request *request = upload->request = new_request(upload, "HEAD", upload);
    if (request == NULL)
        on_committed(upload, upload->result, &upload->err);
    else
        s3_request_start(request, NULL, on_looked);
}

static void on_completed(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct upload *upload = s3_request_arg(request);

    if (result < 0 && str_eq(s3_request_code(request), "NoSuchUpload"))
        look(upload);
    else
        on_committed(upload, result, err);
}

static int completion_body(const struct upload *upload, struct buf *xml)
{
    int r = buf_adds(xml, "<CompleteMultipartUpload "
                          "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");

    for (unsigned i = 0; r == 0 && i < upload->part_count; i++) {
        r = buf_addf(xml, "<Part><PartNumber>%u</PartNumber><ETag>", i + 1);
        for (const char *p = upload->parts[i].etag; r == 0 && *p != '\0'; p++)
            r = *p == '&'   ? buf_adds(xml, "&amp;")
                : *p == '<' ? buf_adds(xml, "&lt;")
                            : buf_add(xml, p, 1);
        if (r == 0)
            r = buf_adds(xml, "</ETag></Part>");
    }
    return r < 0 ? r : buf_adds(xml, "</CompleteMultipartUpload>");
}

static void complete(struct upload *upload)
{
    SCOPED_BUF xml = { 0 };
    struct s3_memory memory = { 0 };
    struct s3_request *request = upload->request = new_request(upload, "POST", upload);

    if (request == NULL || completion_body(upload, &xml) < 0 ||
        s3_memory_new(&memory, xml.len) < 0 ||
        s3_request_query(request, "uploadId", upload->upload_id) < 0) {
        s3_memory_done(&memory);
        fail_memory(upload);
        on_committed(upload, upload->result, &upload->err);
        return;
    }
    memcpy(memory.bytes, xml.data, xml.len);
    s3_request_adopt_body(request, &memory, xml.len);
    s3_request_publishes(request, upload->sink);
    s3_request_start(request, check_completed, on_completed);
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

/* The last part may be shorter; a failure ends in abort_upload(). */
static void advance_end(struct upload *upload)
{
    if (upload->result == 0 && !upload->aborting && !beginning(upload)) {
        if (upload->part_count > 0 && upload->filling != NULL)
            close_slot(upload);
        send_waiting(upload); /* may fail, and end it from inside */
    }
    if (upload->ending || !is_ending(upload) || beginning(upload))
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
        abort_upload(upload);
    else if (whole)
        put_whole(upload);
    else
        complete(upload);
}

static void advance(struct upload *upload)
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
    advance(upload);
}

static void s3_write(struct sink *sink, const struct iovec *iov, int count, XXH3_state_t *hash)
{
    struct upload *upload = sink_state(sink);

    upload->iov = iov;
    upload->iov_count = count;
    upload->iov_at = 0;
    upload->hash = hash;
    upload->writing = true;
    advance(upload);
}

static void s3_commit(struct sink *sink)
{
    struct upload *upload = sink_state(sink);

    upload->committing = true;
    advance(upload);
}

static void s3_abort(struct sink *sink)
{
    struct upload *upload = sink_state(sink);

    upload->aborting = true;
    if (upload->stage ==
        UPLOAD_CREATING) /* its id is needed; without it who sweeps finds it by its key */
        s3_request_hurry(upload->request, ABORT_WAIT_MS);
    advance(upload);
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
    upload->etags_are_md5 = true;
    upload->note = left_path(target, &r);
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

    for (size_t i = 0; i < UPLOAD_SLOTS_MAX; i++)
        if (upload->slots[i].state != SLOT_FREE)
            free_slot(&upload->slots[i]);
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
    .check = sink_url_check_s3,
    .open = s3_open,
    .write = s3_write,
    .prepare = s3_prepare,
    .commit = s3_commit,
    .abort = s3_abort,
    .done = s3_done,
    .target_text = s3_target_text,
};

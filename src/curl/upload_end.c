/* upload_end.c - the last requests of an upload: contract in upload.h. */
#include <stdio.h>

#include "base/log.h"
#include "curl/upload.h"
#include "curl/xml.h"
#include "sink/left.h"

#define ABORT_TRIES 3

/* ---- abort ---- */

static void run_forget(struct work *work)
{
    struct upload *upload = CONTAINER_OF(work, struct upload, work);

    if (upload->note_result == 0) {
        left_forget(upload->note);
        return;
    }
    upload->note_result = 0;
    if (upload->note_json != NULL)
        upload->note_result = left_note(upload->note, upload->note_json, &upload->note_err);
    if (upload->note_result == 0)
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

    json_decref(STEAL(upload->note_json));
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
    upload->note_result = clean && !upload->retried ? 0 : 1;
    if (upload->note_result == 1)
        upload->note_json = upload_note(upload);
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
    struct s3_request *request = upload->request = upload_request(upload, "DELETE", upload);
    if (request == NULL || s3_request_query(request, "uploadId", upload->upload_id) < 0) {
        s3_request_drop(STEAL(upload->request));
        end(upload, false);
        return;
    }
    s3_request_tries(request, ABORT_TRIES);
    s3_request_within(request, UPLOAD_ABORT_MS);
    s3_request_start(request, NULL, on_aborted);
}

void upload_abort(struct upload *upload)
{
    for (int64_t i = 0; i < upload->place->settings.concurrency; i++) {
        upload->parts_cut |= upload->slots[i].state == SLOT_SENDING;
        upload->slots[i].upload = upload;
        upload_free_slot(&upload->slots[i]);
    }
    upload_free_memory(upload);
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
        upload_fail(upload, result, err);
    if (result < 0 && upload->stage == UPLOAD_OPEN)
        upload_abort(upload);
    else
        end(upload, true);
}

static void on_put(struct s3_request *request, int result, const struct mandor_err *err)
{
    on_committed(s3_request_arg(request), result, err);
}

void upload_put_whole(struct upload *upload)
{
    struct s3_request *request = upload->request = upload_request(upload, "PUT", upload);
    struct upload_slot *slot = upload->filling;
    struct s3_memory none = { 0 };

    if (request == NULL || upload_metadata(upload, request) < 0) {
        upload_fail_memory(upload);
        on_committed(upload, upload->result, &upload->err);
        return;
    }
    s3_request_publishes(request, upload->sink);
    s3_request_adopt_body(request, slot == NULL ? &none : &slot->memory,
                          slot == NULL ? 0 : slot->len);
    s3_request_start(request, upload_check_etag, on_put);
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

/* The 16 bytes of an MD5 that is an ETag. */
static int add_unhex(struct buf *buf, const char *etag)
{
    const char *at = etag + (etag[0] == '"');

    for (size_t i = 0; i < 32; i += 2) {
        const char pair[3] = { at[i], at[i + 1], '\0' };
        const unsigned char byte = (unsigned char)strtoul(pair, NULL, 16);
        if (buf_add(buf, &byte, 1) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* The ETag of an object of parts: MD5 of the parts' MD5s, then "-" and their number. */
static bool etag_matches(const struct upload *upload, const char *etag)
{
    SCOPED_BUF all = { 0 };
    char hex[SIGV4_MD5_HEX], own[64];
    size_t quoted = etag[0] == '"';

    if (!upload->etags_are_md5 || strchr(etag, '-') == NULL)
        return true; /* it says nothing about the bytes */
    for (unsigned i = 0; i < upload->part_count; i++)
        if (add_unhex(&all, upload->parts[i].etag) < 0)
            return true;
    if (sigv4_md5(all.data, all.len, hex) < 0)
        return true;
    int len = snprintf(own, sizeof own, "%s-%u", hex, upload->part_count);
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
    (void)err_say(&why, -ESTALE, FAULT_REMOTE, "S3 has lost the upload to '%s'", upload->url);
    on_committed(upload, -ESTALE, &why);
}

/* The upload is gone: the answer to an earlier try was lost, or somebody aborted it.  The object says which. */
static void look(struct upload *upload)
{
    s3_request_drop(STEAL(upload->request));
    struct s3_request *request = upload->request = upload_request(upload, "HEAD", upload);
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

void upload_complete(struct upload *upload)
{
    upload_free_memory(upload);
    SCOPED_BUF xml = { 0 };
    struct s3_memory memory = { 0 };
    struct s3_request *request = upload->request = upload_request(upload, "POST", upload);

    if (request == NULL || completion_body(upload, &xml) < 0 ||
        s3_memory_new(&memory, xml.len) < 0 ||
        s3_request_query(request, "uploadId", upload->upload_id) < 0) {
        s3_memory_done(&memory);
        upload_fail_memory(upload);
        on_committed(upload, upload->result, &upload->err);
        return;
    }
    memcpy(memory.bytes, xml.data, xml.len);
    s3_request_adopt_body(request, &memory, xml.len);
    s3_request_publishes(request, upload->sink);
    s3_request_start(request, check_completed, on_completed);
}

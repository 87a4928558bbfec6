/* upload_begin.c - the beginning of an upload of parts: contract in upload.h.
 *
 * Before it is begun it is noted in the journal, and again with its id as soon as there is one (sink/left.h, R85). */
#include "base/clock.h"
#include "base/json.h"
#include "curl/upload.h"
#include "curl/xml.h"
#include "sink/left.h"

static void run_note(struct work *work)
{
    struct upload *upload = CONTAINER_OF(work, struct upload, work);

    upload->note_result = left_note(upload->note, upload->note_json, &upload->note_err);
}

static void after_note(struct work *work)
{
    struct upload *upload = CONTAINER_OF(work, struct upload, work);

    json_decref(STEAL(upload->note_json));
    upload->noted |= upload->note_result == 0;
    if (upload->note_result < 0)
        upload_fail(upload, upload->note_result, &upload->note_err);
    upload_begin(upload);
}

json_t *upload_note(const struct upload *upload)
{
    const struct s3_place *place = upload->place;
    json_t *note =
        json_pack("{s:s, s:s+++, s:s, s:b, s:s, s:s, s:s*, s:I}", "kind", "s3", "endpoint",
                  place->scheme, "://", place->host, place->base_path, "region", place->region,
                  "path_style", place->path_style, "bucket", place->bucket, "key", place->key,
                  "upload_id", upload->upload_id, "since_ms", (json_int_t)upload->begun_ms);

    if (note != NULL && upload->until_ms > 0 && (upload->retried || upload->upload_id == NULL))
        (void)json_object_set_new(note, "until_ms", json_integer(upload->until_ms));
    return note;
}

static void write_note(struct upload *upload)
{
    upload->note_json = upload_note(upload);
    if (upload->note_json == NULL) {
        upload_fail_memory(upload);
        upload_begin(upload);
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

    upload->until_ms = clock_wall_ms();
    upload->retried = s3_request_tried(request) > 1;
    if (result < 0) {
        int status = s3_request_status(request);
        /* No answer, or one that leaves it open. */
        upload->maybe_begun = upload->retried || status < 400 || status > 499;
        upload_fail(upload, result, err);
    }
    s3_request_drop(STEAL(upload->request));
    upload_begin(upload);
}

static void create(struct upload *upload)
{
    struct s3_request *request = upload->request = upload_request(upload, "POST", upload);

    if (request == NULL)
        return;
    if (s3_request_query(request, "uploads", "") < 0 || upload_metadata(upload, request) < 0) {
        upload_fail_memory(upload);
        return;
    }
    upload->maybe_begun = true;
    s3_request_start(request, check_created, on_created);
}

void upload_begin(struct upload *upload)
{
    if (upload->result < 0 || upload->aborting) {
        upload->stage = upload->upload_id != NULL ? UPLOAD_OPEN : UPLOAD_NONE;
        upload_advance(upload);
        return;
    }
    switch (upload->stage) {
    case UPLOAD_NONE:
        upload->stage = UPLOAD_NOTING;
        upload->begun_ms = clock_wall_ms();
        if (upload->note != NULL) {
            write_note(upload);
            return;
        }
        /* fallthrough */
    case UPLOAD_NOTING:
        upload->stage = UPLOAD_CREATING;
        create(upload);
        if (upload->result < 0)
            upload_begin(upload);
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
        upload_advance(upload);
        return;
    case UPLOAD_OPEN:
        return;
    }
}

bool upload_beginning(const struct upload *upload)
{
    return upload->stage != UPLOAD_NONE && upload->stage != UPLOAD_OPEN;
}

/* upload.h - bytes of unknown length on their way to one S3 object, in parts that grow.  The state of the sink `s3:`. */
#ifndef CURL_UPLOAD_H
#define CURL_UPLOAD_H

#include <jansson.h>

#include "curl/s3.h"
#include "loop/work.h"
#include "sink/sink_ops.h"

#define UPLOAD_SLOTS_MAX 64

enum upload_slot_state { SLOT_FREE, SLOT_FILLING, SLOT_WAITING, SLOT_SENDING };

/* A part in memory. */
struct upload_slot {
    struct upload *upload;
    enum upload_slot_state state;
    unsigned number; /* of the part, from 1 */
    struct s3_memory memory;
    size_t size, len;
    struct s3_request *request;
};

struct upload_part {
    char *etag; /* as the server gave it */
};

struct upload {
    struct sink *sink;
    struct web *web;
    struct s3_place *place;
    char *url, *job, *attempt, *stream;
    int64_t patience_ms; /* sink_timeout */
    char *note, *left;   /* paths, see sink/left.h; note NULL = no journal */
    struct upload_slot slots[UPLOAD_SLOTS_MAX], *filling;
    struct upload_part *parts;
    unsigned part_count, part_cap; /* handed out */
    bool etags_are_md5;
    /* Beginning the upload of parts. */
    enum { UPLOAD_NONE, UPLOAD_NOTING, UPLOAD_CREATING, UPLOAD_NOTING_ID, UPLOAD_OPEN } stage;
    bool noted;       /* a note lies in the journal */
    bool maybe_begun; /* the server may have one whose id we do not know */
    bool retried;     /* or several: an answer was lost, and another one was begun */
    int64_t begun_ms,
        until_ms;   /* wall clock: then it was, or they were, begun; until_ms 0 = not over */
    bool parts_cut; /* a part was on its way when it was dropped */
    char *upload_id;
    struct s3_request *request; /* create, complete, abort, put, look */
    struct work work;
    json_t *note_json;
    int note_result;
    struct mandor_err note_err;
    /* The write in flight. */
    const struct iovec *iov;
    int iov_count;
    size_t iov_at;
    XXH3_state_t *hash;
    bool writing, preparing, committing, aborting;
    bool ending; /* the last request of a commit or abort is under way */
    int result;  /* first failure */
    struct mandor_err err;
};

/* ---- sink_s3.c, for the other two ---- */

/* Something has happened: what comes next? */
void upload_advance(struct upload *upload);
/* The first failure stays. */
void upload_fail(struct upload *upload, int result, const struct mandor_err *err);
void upload_fail_memory(struct upload *upload);
/* What it sends is dropped; its memory stays for the next part. */
void upload_free_slot(struct upload_slot *slot);
void upload_free_memory(struct upload *upload); /* of free slots */
/* NULL when out of memory: then the upload has failed. */
struct s3_request *upload_request(struct upload *upload, const char *method, void *arg);
/* Whose object it is, as headers.  0 or -ENOMEM. */
MUST_CHECK int upload_metadata(struct upload *upload, struct s3_request *request);
int upload_check_etag(struct s3_request *request, struct mandor_err *err);

/* ---- upload_begin.c ---- */

/* What whoever sweeps has to know; NULL = out of memory. */
json_t *upload_note(const struct upload *upload);

/* The next step towards an open upload.  A failed or aborted one stays where it is. */
void upload_begin(struct upload *upload);
bool upload_beginning(const struct upload *upload);

/* ---- upload_end.c: each answers the sink's commit or abort ---- */

#define UPLOAD_ABORT_MS 5000 /* for what nobody waits for: then it is left to who sweeps */

/* Parts that nobody will use are taken back.  One that was on its way may arrive behind the abort, hence a second one then. */
void upload_abort(struct upload *upload);
/* The commit: all of it in one request, or the parts put together. */
void upload_put_whole(struct upload *upload);
void upload_complete(struct upload *upload);

extern const struct sink_ops sink_s3;

#endif

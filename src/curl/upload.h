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
    unsigned char md5[16];
};

struct upload {
    struct sink *sink;
    struct web *web;
    struct s3_place *place;
    char *url, *job, *attempt, *stream;
    char *note, *left; /* paths, see sink/left.h; note NULL = no journal */
    struct upload_slot slots[UPLOAD_SLOTS_MAX], *filling;
    struct upload_part *parts;
    unsigned part_count, part_cap; /* handed out */
    bool etags_are_md5;
    /* Beginning the upload of parts. */
    enum { UPLOAD_NONE, UPLOAD_NOTING, UPLOAD_CREATING, UPLOAD_NOTING_ID, UPLOAD_OPEN } stage;
    bool noted;       /* a note lies in the journal */
    bool maybe_begun; /* the server may have one whose id we do not know */
    bool parts_cut;   /* a part was on its way when it was dropped */
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

extern const struct sink_ops sink_s3;

#endif

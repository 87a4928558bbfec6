/* s3.h - one bucket and key of an object storage, and one signed request to it, tried again where that may help.
 *
 *   s3_request_new ─▶ (query, headers, body) ─▶ s3_request_start ─▶ on_done ─▶ s3_request_drop
 *
 * Before each try the credentials are read anew and the request is signed for the time of sending (R91, R92).  Loop thread only. */
#ifndef CURL_S3_H
#define CURL_S3_H

#include "curl/sigv4.h"
#include "curl/web.h"
#include "sink/settings.h"
#include "sink/sink_ops.h"

/* Where the object is.  Shared by the requests to it. */
struct s3_place {
    unsigned refs;
    char *scheme;    /* "https" */
    char *host;      /* of the endpoint, with its port unless it is the scheme's */
    char *base_path; /* of the endpoint, without a slash at its end; "" */
    char *region, *bucket;
    char *key; /* as it is, not encoded */
    bool path_style, is_amazon;
    int64_t skew_s;              /* what to add to our clock to have the server's */
    struct s3_settings settings; /* own copies */
};

/* rest: the URL behind "s3:", already checked.  0 or -errno with *err. */
MUST_CHECK int s3_place_new(const char *rest, const struct s3_settings *settings,
                            struct s3_place **ret, struct mandor_err *err);
struct s3_place *s3_place_ref(struct s3_place *place);
void s3_place_unref(struct s3_place *place); /* NULL allowed */

struct s3_request;
/* Memory of a request's body: mapped, so that it is given back whole. */
struct s3_memory {
    unsigned char *bytes;
    size_t size;
};
MUST_CHECK int s3_memory_new(struct s3_memory *memory, size_t size);
void s3_memory_done(struct s3_memory *memory);

/* What is wrong with an answer of 2xx: 0, -EAGAIN (try again) or another -errno, with *err. */
typedef int s3_check_fn(struct s3_request *request, struct mandor_err *err);
typedef void s3_done_fn(struct s3_request *request, int result, const struct mandor_err *err);

struct s3_request *s3_request_new(struct web *web, struct s3_place *place, const char *method,
                                  void *arg, struct mandor_err *err);
/* Parameters in the order of their names; value "" for those without.  0 or -ENOMEM, as the next. */
MUST_CHECK int s3_request_query(struct s3_request *request, const char *name, const char *value);
/* name: lower case, and behind "host" and before what is added by itself ("x-amz-content-sha256") in the alphabet, or "content-…"; added in order. */
MUST_CHECK int s3_request_header(struct s3_request *request, const char *name, const char *value);
/* The first len bytes of memory, which is consumed; hashed off the loop. */
void s3_request_adopt_body(struct s3_request *request, struct s3_memory *memory, size_t len);
/* In on_done: the memory is the caller's again. */
void s3_request_return_body(struct s3_request *request, struct s3_memory *ret_memory);
/* The object's key is not part of the path (requests to the bucket). */
void s3_request_of_bucket(struct s3_request *request);
/* A GET of any URL, not signed, redirects followed; made with place NULL.  0 or -ENOMEM. */
MUST_CHECK int s3_request_plain(struct s3_request *request, const char *url);
/* The body of a good answer goes to on_body (request's arg) piece by piece; false = no room, until s3_request_resume().  What breaks in
 * the middle is asked for again from there on, while the object is the same one. */
void s3_request_stream(struct s3_request *request,
                       bool (*on_body)(void *arg, const void *bytes, size_t len));
void s3_request_resume(struct s3_request *request);
void s3_request_tries(struct s3_request *request, unsigned tries);     /* default S3_TRIES */
void s3_request_answer_within(struct s3_request *request, int64_t ms); /* web_call.answer_ms */
/* All tries together may take so long, from now. */
void s3_request_within(struct s3_request *request, int64_t ms);
/* Nobody wants it for long any more: no further try, and a failure (-ETIMEDOUT) when there is no answer in time. */
void s3_request_hurry(struct s3_request *request, int64_t ms);
/* It makes sink's object visible: sink_may_publish() is asked before each try, which ends with the lease. */
void s3_request_publishes(struct s3_request *request, struct sink *sink);
#define S3_TRIES 7

void s3_request_start(struct s3_request *request, s3_check_fn *check, s3_done_fn *on_done);
/* No on_done any more, the connection of an unfinished one is closed.  Any time but from inside of check. */
void s3_request_drop(struct s3_request *request);

void *s3_request_arg(const struct s3_request *request);
const struct web_call *s3_request_call(const struct s3_request *request);
/* In check and on_done: the code in an <Error>, "" when there was none. */
const char *s3_request_code(const struct s3_request *request);
int s3_request_status(const struct s3_request *request);     /* HTTP */
unsigned s3_request_tried(const struct s3_request *request); /* how often it was sent */

#endif

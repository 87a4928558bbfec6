/* web.h - libcurl's multi interface on a uv loop: many requests, no thread, no wait.
 *
 *   web_get ─▶ web_call_init ─▶ (curl_easy_setopt …) ─▶ web_call_start ─▶ on_done ─▶ web_call_done ─▶ web_put
 *
 * One struct web for each loop; its connections are kept and used again while anybody holds it.  Loop thread only. */
#ifndef CURL_WEB_H
#define CURL_WEB_H

#include <curl/curl.h>
#include <uv.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/macro.h"

#define WEB_ANSWER_MS    INT64_C(60000)
#define WEB_RESPONSE_MAX ((size_t)1 << 20) /* bytes; a response that is longer is a failure */

struct web;

/* The one of this loop, one more holder.  NULL with *err. */
struct web *web_get(uv_loop_t *loop, struct mandor_err *err);
uv_loop_t *web_loop(const struct web *web);
void web_put(struct web *web); /* NULL allowed; with the last holder all connections are closed */

/* One request.  Embedded in its owner.  The body is memory of the owner's, or comes from on_read. */
struct web_call {
    uint32_t magic;
    struct web *web;
    CURL *easy;
    struct curl_slist *headers;
    const unsigned char *body; /* sent with PUT; may be sent again from the start */
    size_t body_len, body_at;
    struct buf response;
    /* So long may an answer take, from the last byte of the request to its own last, however it trickles; 0 = for ever.  The owner's to change,
     * WEB_ANSWER_MS at first. */
    int64_t answer_ms;
    int64_t sent_ms; /* monotonic; 0 = not yet */
    bool flows; /* of this request: its body, or that of its answer, takes as long as it takes */
    bool running, response_over, answer_late;
    char error[CURL_ERROR_SIZE];
    void (*on_done)(struct web_call *call); /* once, unless cancelled; may start it again */
    CURLcode result;                        /* in on_done */
    long status;                            /* HTTP; 0 = there was no answer */
};

/* 0 or -ENOMEM.  web: borrowed, held until web_call_done(). */
MUST_CHECK int web_call_init(struct web_call *call, struct web *web);
/* A header line "name: value"; the value may be empty.  0 or -ENOMEM. */
MUST_CHECK int web_call_header(struct web_call *call, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Method, URL (sent as it stands) and what every request has: limits on silence, no signals, response kept. */
MUST_CHECK int web_call_prepare(struct web_call *call, const char *method, const char *url);
void web_call_body(struct web_call *call, const void *body, size_t len);
/* The request fails after so many ms; INT64_MAX = never. */
void web_call_time_limit(struct web_call *call, int64_t ms);
/* 0 or -errno with *err (then on_done does not run).  on_done is never called from inside. */
MUST_CHECK int web_call_start(struct web_call *call, struct mandor_err *err);
/* No on_done any more; an unfinished request's connection is closed.  Not from inside of a callback of curl's. */
void web_call_cancel(struct web_call *call);
/* Cancels, frees what it holds; also after a failed init. */
void web_call_done(struct web_call *call);

/* Keep len bytes of a response; what CURLOPT_WRITEFUNCTION returns. */
size_t web_call_keep(struct web_call *call, const void *bytes, size_t len);
/* The response's header of this name, "" when there is none; until the next start. */
const char *web_call_answer(const struct web_call *call, const char *name);
/* How often a request that failed like this may be tried at all, when it is max otherwise. */
unsigned web_call_tries(const struct web_call *call, unsigned max);
/* Why it failed, for people, when result is not CURLE_OK; returns an -errno that fits. */
int web_call_error(const struct web_call *call, struct mandor_err *err, const char *what);

/* A URL without its user and password; malloc'ed or NULL. */
char *web_redact(const char *url);
/* Go where the server says, but never from https to http: what is sent, and where a URL's password is for, was meant to be private. */
void web_call_follow(struct web_call *call, const char *url);

#endif

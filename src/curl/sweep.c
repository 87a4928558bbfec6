/* sweep.c - aborts uploads of parts that dead attempts have left (R85): contract in sink/sweeper.h.
 *
 *    read the notes ─▶ for each: [list the key's uploads, leave out those of the living, where the note has no id] ─▶ DELETE ?uploadId …
 *                   ─▶ forget the note
 *
 * A note without an id is of a worker that died between its request and the answer.  Then the uploads of just that key are aborted that
 * were begun shortly after the note was written: a later attempt's on another machine would have begun after the dead one's lease, and those on
 * this machine have notes in the journals beside us.  The request may still be on its way: the note stays until that time is over.  The same is
 * done where an answer was lost and the request made again: then the note says until when.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/list.h"
#include "base/log.h"
#include "curl/parts.h"
#include "curl/s3.h"
#include "curl/xml.h"
#include "loop/work.h"
#include "sink/left.h"

#define NOTE_MAX    ((size_t)16 << 10)
#define SWEEP_TRIES 2
#define WINDOW_MS   INT64_C(20000) /* shorter than the shortest lease and its slack together */
#define SKEW_MS     INT64_C(2000)  /* S3 gives whole seconds, and its clock is another one */

struct note {
    struct list node;
    char *path;
    json_t *json;
};

struct found {
    struct list node;
    char *id;
};

/* What users know as struct sweeper. */
struct sweep {
    uv_loop_t *loop;
    char *dir;
    sweeper_done_fn *on_done;
    void *arg;
    struct work work;
    struct list notes, found;
    struct note *note; /* being dealt with */
    struct web *web;
    struct s3_place *place;
    struct s3_request *request;
    bool failed, stopping;
    bool early; /* it is not sure yet: another time */
    int ended, kept;
    /* of the <Upload> that is being read */
    char *id;
    bool key_is_ours;
    int64_t begun_ms;
};

static void next(struct sweep *sweep);

static void note_free(struct note *note)
{
    if (note == NULL)
        return;
    json_decref(note->json);
    free(note->path);
    free(note);
}

/* ---- the notes, on the pool ---- */

static void read_note(const char *dir, const char *name, struct list *notes)
{
    char text[NOTE_MAX];
    struct note *note = calloc(1, sizeof *note);

    if (note == NULL || asprintf(&note->path, "%s/%s", dir, name) < 0) {
        free(note);
        return;
    }
    SCOPED_FD fd = open(note->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t len = fd < 0 ? -1 : RETRY_EINTR(read(fd, text, sizeof text));
    if (len <= 0 || json_parse(text, (size_t)len, &note->json, NULL) < 0 ||
        !str_eq(json_string_value(json_object_get(note->json, "kind")) ?: "", "s3"))
        note_free(note);
    else
        list_push_back(notes, &note->node);
}

static void read_notes(const char *path, struct list *notes)
{
    DIR *dir = opendir(path);

    if (dir == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t len = strlen(entry->d_name), suffix = strlen(LEFT_SUFFIX);
        if (len > suffix && str_eq(entry->d_name + len - suffix, LEFT_SUFFIX))
            read_note(path, entry->d_name, notes);
    }
    (void)closedir(dir);
}

static void free_notes(struct list *notes)
{
    for (struct list *node; (node = list_pop_front(notes)) != NULL;)
        note_free(LIST_ENTRY(node, struct note, node));
}

static void run_read(struct work *work)
{
    struct sweep *sweep = CONTAINER_OF(work, struct sweep, work);

    read_notes(sweep->dir, &sweep->notes);
}

static void after_read(struct work *work)
{
    next(CONTAINER_OF(work, struct sweep, work));
}

static void run_forget(struct work *work)
{
    left_forget(CONTAINER_OF(work, struct sweep, work)->note->path);
}

/* The note is done with. */
static void forgotten(struct work *work)
{
    next(CONTAINER_OF(work, struct sweep, work));
}

static void finish_note(struct sweep *sweep)
{
    s3_place_unref(STEAL(sweep->place));
    sweep->kept += sweep->failed;
    if (sweep->failed || sweep->early)
        next(sweep);
    else
        work_submit(sweep->loop, &sweep->work, WORK_UNKNOWN, run_forget, forgotten);
}

/* ---- one upload ---- */

static void next_abort(struct sweep *sweep);

static void on_aborted(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct sweep *sweep = s3_request_arg(request);
    bool gone = result == 0 || s3_request_status(request) == 404;

    sweep->failed |= !gone;
    sweep->ended += result == 0;
    if (!gone)
        log_debug("s3", "sweep: %s", err->msg);
    s3_request_drop(STEAL(sweep->request));
    next_abort(sweep);
}

static struct s3_request *new_request(struct sweep *sweep, const char *method)
{
    struct s3_request *request = s3_request_new(sweep->web, sweep->place, method, sweep, NULL);

    if (request != NULL)
        s3_request_tries(request, SWEEP_TRIES);
    return sweep->request = request;
}

static void next_abort(struct sweep *sweep)
{
    struct list *node = list_pop_front(&sweep->found);
    if (node == NULL) {
        finish_note(sweep);
        return;
    }

    struct found *found = LIST_ENTRY(node, struct found, node);
    struct s3_request *request = new_request(sweep, "DELETE");
    int r = request == NULL ? -ENOMEM : s3_request_query(request, "uploadId", found->id);
    free(found->id);
    free(found);
    if (r == 0) {
        s3_request_start(request, NULL, on_aborted);
        return;
    }
    s3_request_drop(STEAL(sweep->request));
    sweep->failed = true;
    next_abort(sweep);
}

/* ---- finding it ---- */

static void add_found(struct sweep *sweep, const char *id)
{
    struct found *found = calloc(1, sizeof *found);

    if (found == NULL || (found->id = strdup(id)) == NULL) {
        free(found);
        sweep->failed = true;
        return;
    }
    list_push_back(&sweep->found, &found->node);
}

/* "2026-01-31T12:00:00.000Z" */
static int64_t parse_time(const char *text)
{
    struct tm tm = { 0 };

    return strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) == NULL ? INT64_MIN
                                                            : (int64_t)timegm(&tm) * 1000;
}

static int64_t noted_ms(const struct sweep *sweep)
{
    return json_integer_value(json_object_get(sweep->note->json, "since_ms"));
}

static bool in_window(const struct sweep *sweep)
{
    int64_t since = noted_ms(sweep) + sweep->place->skew_s * 1000;

    int64_t until = json_integer_value(json_object_get(sweep->note->json, "until_ms"));

    until = until > 0 ? until + sweep->place->skew_s * 1000 + SKEW_MS : since + WINDOW_MS;
    return sweep->begun_ms >= since - SKEW_MS && sweep->begun_ms <= until;
}

static void on_listed_part(void *arg, unsigned depth, const char *name, const char *text)
{
    struct sweep *sweep = arg;

    if (depth == 3 && str_eq(name, "Key")) {
        sweep->key_is_ours = str_eq(text, sweep->place->key);
    } else if (depth == 3 && str_eq(name, "UploadId")) {
        free(sweep->id);
        sweep->id = strdup(text);
    } else if (depth == 3 && str_eq(name, "Initiated")) {
        sweep->begun_ms = parse_time(text);
    } else if (depth == 2 && str_eq(name, "Upload")) {
        if (sweep->key_is_ours && sweep->id != NULL && in_window(sweep))
            add_found(sweep, sweep->id);
        sweep->key_is_ours = false;
        free(STEAL(sweep->id));
    }
}

static const char *text_of(const struct note *note, const char *name)
{
    return json_string_value(json_object_get(note->json, name)) ?: "";
}

static void forget_found(struct found *found)
{
    list_remove(&found->node);
    free(found->id);
    free(found);
}

/* An attempt that lives has this upload, or is about to begin one to the same key, whose id it has not noted yet. */
static void spare(struct sweep *sweep, const struct note *alive)
{
    const char *id = text_of(alive, "upload_id");

    if (id[0] == '\0')
        sweep->early |= str_eq(text_of(alive, "bucket"), sweep->place->bucket) &&
                        str_eq(text_of(alive, "key"), sweep->place->key);
    LIST_FOREACH(found, &sweep->found, struct found, node)
        if (str_eq(found->id, id))
            forget_found(found);
}

static void run_spare(struct work *work)
{
    struct sweep *sweep = CONTAINER_OF(work, struct sweep, work);
    SCOPED_FREE char *journals = NULL;
    DIR *dir = asprintf(&journals, "%s/../journal", sweep->dir) < 0 ? NULL : opendir(journals);
    struct list alive = LIST_INIT(alive);

    if (dir == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        SCOPED_FREE char *path = NULL;
        if (entry->d_name[0] != '.' && asprintf(&path, "%s/%s", journals, entry->d_name) >= 0)
            read_notes(path, &alive);
    }
    (void)closedir(dir);
    LIST_FOREACH(note, &alive, struct note, node)
        spare(sweep, note);
    free_notes(&alive);
    while (sweep->early && !list_empty(&sweep->found))
        forget_found(LIST_ENTRY(sweep->found.next, struct found, node));
}

static void after_spare(struct work *work)
{
    struct sweep *sweep = CONTAINER_OF(work, struct sweep, work);

    sweep->early |= clock_wall_ms() <= noted_ms(sweep) + WINDOW_MS;
    if (sweep->stopping)
        next(sweep);
    else
        next_abort(sweep);
}

static void on_listed(struct s3_request *request, int result, const struct mandor_err *err)
{
    struct sweep *sweep = s3_request_arg(request);
    const struct web_call *call = s3_request_call(request);

    if (result < 0 || xml_read(call->response.data, call->response.len, on_listed_part, sweep) < 0)
        sweep->failed = true;
    free(STEAL(sweep->id));
    s3_request_drop(STEAL(sweep->request));
    work_submit(sweep->loop, &sweep->work, WORK_UNKNOWN, run_spare, after_spare);
}

static void list_uploads(struct sweep *sweep)
{
    struct s3_request *request = new_request(sweep, "GET");

    if (request == NULL || s3_request_query(request, "prefix", sweep->place->key) < 0 ||
        s3_request_query(request, "uploads", "") < 0) {
        s3_request_drop(STEAL(sweep->request));
        sweep->failed = true;
        finish_note(sweep);
        return;
    }
    s3_request_of_bucket(request);
    s3_request_start(request, NULL, on_listed);
}

/* The place that the note names, with today's keys. */
static int make_place(struct sweep *sweep)
{
    const char *endpoint, *region, *bucket, *key;
    int path_style = 1;
    char *rest = NULL;

    if (json_unpack(sweep->note->json, "{s:s, s:s, s:b, s:s, s:s}", "endpoint", &endpoint, "region",
                    &region, "path_style", &path_style, "bucket", &bucket, "key", &key) < 0)
        return -EBADMSG;
    struct s3_settings settings = sink_settings()->s3;
    settings.endpoint = (char *)(uintptr_t)endpoint;
    settings.region = (char *)(uintptr_t)region;
    settings.path_style = (char *)(uintptr_t)(path_style ? "true" : "false");
    if (asprintf(&rest, "//%s/%s", bucket, key) < 0)
        return -ENOMEM;
    int r = s3_place_new(rest, &settings, &sweep->place, NULL);
    free(rest);
    return r;
}

/* ---- one after the other ---- */

static void finish(struct sweep *sweep)
{
    sweeper_done_fn *on_done = sweep->on_done;
    void *arg = sweep->arg;
    int ended = sweep->ended, kept = sweep->kept;

    note_free(STEAL(sweep->note));
    free_notes(&sweep->notes);
    while (!list_empty(&sweep->found))
        forget_found(LIST_ENTRY(sweep->found.next, struct found, node));
    s3_place_unref(sweep->place);
    web_put(sweep->web);
    free(sweep->dir);
    free(sweep);
    on_done(arg, ended, kept);
}

static void next(struct sweep *sweep)
{
    note_free(STEAL(sweep->note));
    struct list *node = sweep->stopping ? NULL : list_pop_front(&sweep->notes);
    if (node == NULL) {
        finish(sweep);
        return;
    }

    sweep->note = LIST_ENTRY(node, struct note, node);
    sweep->failed = make_place(sweep) < 0;
    sweep->early = false;
    const char *id = json_string_value(json_object_get(sweep->note->json, "upload_id"));
    if (sweep->failed) {
        finish_note(sweep);
        return;
    }
    if (id != NULL)
        add_found(sweep, id);
    if (id == NULL || json_object_get(sweep->note->json, "until_ms") != NULL)
        list_uploads(sweep);
    else
        next_abort(sweep);
}

static void stop(struct sweeper *sweeper)
{
    struct sweep *sweep = (struct sweep *)sweeper;

    sweep->stopping = true; /* the pool has it, or a request goes on */
    if (sweep->request == NULL)
        return;
    s3_request_drop(STEAL(sweep->request));
    finish(sweep);
}

static int start(uv_loop_t *loop, const char *dir, sweeper_done_fn *on_done, void *arg,
                 struct sweeper **ret, struct mandor_err *err)
{
    struct sweep *sweep = calloc(1, sizeof *sweep);

    if (sweep != NULL)
        *sweep = (struct sweep){ .loop = loop, .dir = strdup(dir), .on_done = on_done, .arg = arg };
    if (sweep == NULL || sweep->dir == NULL || (sweep->web = web_get(loop, err)) == NULL) {
        if (sweep != NULL)
            free(sweep->dir);
        free(sweep);
        return err_set(err, -ENOMEM, FAULT_HOST, "sweep uploads");
    }
    list_init(&sweep->notes);
    list_init(&sweep->found);
    work_submit(loop, &sweep->work, WORK_UNKNOWN, run_read, after_read);
    *ret = (struct sweeper *)sweep;
    return 0;
}

const struct sweeper_ops sweeper_s3 = { .start = start, .stop = stop };

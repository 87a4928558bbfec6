/* tests/vectors/pool through wire.c: frames, malformed connections, payloads, credit and whole sessions. */
#include "unit.h"

#include <jansson.h>
#include <stdio.h>

#include "base/buf.h"
#include "pool/wire.h"
#include "pool/wire_json.h"

static json_t *load(const char *name)
{
    char path[4096];
    json_error_t error;

    (void)snprintf(path, sizeof path, "%s/%s.json", VECTORS, name);
    json_t *root = json_load_file(path, 0, &error);
    ck_assert_msg(root != NULL, "%s: %s", path, error.text);
    return root;
}

static const char *text_of(json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    ck_assert_msg(text != NULL, "no '%s' in a vector", key);
    return text;
}

static int64_t int_of(json_t *row, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(row, key)), "no number '%s' in a vector", key);
    return json_integer_value(json_object_get(row, key));
}

static bool is_set(json_t *row, const char *key)
{
    ck_assert_msg(json_is_boolean(json_object_get(row, key)), "no '%s' in a vector", key);
    return json_is_true(json_object_get(row, key));
}

static void add_hex(struct buf *buf, const char *hex)
{
    for (; *hex != '\0'; hex += 2) {
        unsigned value;
        ck_assert_int_eq(sscanf(hex, "%2x", &value), 1);
        unsigned char byte = (unsigned char)value;
        ck_assert_int_eq(buf_add(buf, &byte, 1), 0);
    }
}

static enum wire_side side_of(const char *name)
{
    ck_assert(strcmp(name, "mandor") == 0 || strcmp(name, "worker") == 0);
    return strcmp(name, "mandor") == 0 ? WIRE_MANDOR : WIRE_WORKER;
}

/* Give bytes in chunks; frames are counted, the last one is left in *ret (its payload is not). */
static int feed(struct wire_decoder *decoder, const struct buf *bytes, size_t chunk, int *frames,
                struct wire_frame *ret)
{
    for (size_t at = 0; at < bytes->len; at += MIN(chunk, bytes->len - at)) {
        const unsigned char *next = (unsigned char *)bytes->data + at;
        size_t left = MIN(chunk, bytes->len - at);
        int r;
        while ((r = wire_decode(decoder, &next, &left, ret)) == 1)
            (*frames)++;
        if (r < 0)
            return r;
    }
    return 0;
}

static void check_frame(json_t *row, const char *hello)
{
    SCOPED_BUF bytes = { 0 }, payload = { 0 };
    struct wire_decoder decoder;
    struct wire_frame frame;
    unsigned char header[WIRE_HEADER_SIZE];
    const enum wire_side sender = side_of(text_of(row, "sender"));
    int frames = 0;

    wire_decoder_init(&decoder, sender, false);
    if (!is_set(row, "first")) {
        add_hex(&bytes, hello);
        ck_assert_int_eq(feed(&decoder, &bytes, SIZE_MAX, &frames, &frame), 0);
        bytes.len = 0;
    }
    add_hex(&bytes, text_of(row, "hex"));
    const unsigned char *at = (unsigned char *)bytes.data;
    size_t left = bytes.len;
    ck_assert_msg(wire_decode(&decoder, &at, &left, &frame) == 1, "%s: %s", text_of(row, "name"),
                  decoder.error);
    ck_assert_str_eq(wire_type_name(frame.type), text_of(row, "type"));
    ck_assert_int_eq(frame.type, int_of(row, "number"));
    ck_assert_int_eq(frame.stream, int_of(row, "stream"));
    ck_assert(frame.last == is_set(row, "last"));
    ck_assert_int_eq((int64_t)frame.job, int_of(row, "job"));
    ck_assert_uint_eq(left, 0);
    ck_assert_int_eq(wire_encode(header, sender, frame.type, frame.stream, frame.last, frame.job,
                                 bytes.len - WIRE_HEADER_SIZE),
                     0);
    ck_assert_mem_eq(header, bytes.data, sizeof header);

    if (json_object_get(row, "payload_hex") != NULL) {
        add_hex(&payload, text_of(row, "payload_hex"));
        ck_assert_uint_eq(frame.len, payload.len);
        ck_assert(payload.len == 0 || memcmp(frame.payload, payload.data, payload.len) == 0);
    } else {
        struct wire_json value;
        json_t *read = json_loadb((const char *)frame.payload, frame.len, JSON_DECODE_ANY, NULL);
        ck_assert(json_equal(read, json_object_get(row, "payload")));
        ck_assert_int_eq(wire_json_parse(frame.payload, frame.len, &value, NULL), 0);
        json_decref(read);
    }
    wire_decoder_done(&decoder);
}

TEST(well_formed_frames_mean_what_the_vectors_say)
{
    json_t *root = load("frames"), *row;
    size_t i;

    ck_assert_uint_gt(json_array_size(json_object_get(root, "frames")), 40);
    json_array_foreach(json_object_get(root, "frames"), i, row)
        check_frame(row, text_of(json_object_get(root, "hello"), text_of(row, "sender")));
    json_array_foreach(json_object_get(root, "headers"), i, row) {
        SCOPED_BUF bytes = { 0 };
        struct wire_decoder decoder;
        struct wire_frame frame;
        int frames = 0;
        add_hex(&bytes, text_of(json_object_get(root, "hello"), text_of(row, "sender")));
        add_hex(&bytes, text_of(row, "hex"));
        wire_decoder_init(&decoder, side_of(text_of(row, "sender")), false);
        ck_assert_msg(feed(&decoder, &bytes, 5, &frames, &frame) == 0, "%s: %s",
                      text_of(row, "name"), decoder.error);
        ck_assert_int_eq(frames, 1);
        wire_decoder_done(&decoder);
    }
    json_decref(root);
}

static void check_malformed(json_t *row, size_t chunk)
{
    SCOPED_BUF prefix = { 0 }, bytes = { 0 };
    struct wire_decoder decoder;
    struct wire_frame frame;
    int frames = 0;

    wire_decoder_init(&decoder, side_of(text_of(row, "sender")), false);
    add_hex(&prefix, text_of(row, "prefix"));
    add_hex(&bytes, text_of(row, "hex"));
    ck_assert_msg(feed(&decoder, &prefix, chunk, &frames, &frame) == 0, "%s: %s",
                  text_of(row, "name"), decoder.error);
    frames = 0;
    int r = feed(&decoder, &bytes, chunk, &frames, &frame);
    if (is_set(row, "ends")) {
        ck_assert_int_eq(r, 0);
        r = wire_decoder_end(&decoder);
    }
    ck_assert_msg(r == -EPROTO && frames == 0, "%s is taken", text_of(row, "name"));
    ck_assert_msg(strcmp(wire_fault_name(decoder.fault), text_of(row, "class")) == 0, "%s: %s",
                  text_of(row, "name"), decoder.error);
    ck_assert_msg((int64_t)decoder.fault_at == int_of(row, "offset"), "%s: %s",
                  text_of(row, "name"), decoder.error);
    ck_assert_msg(strstr(decoder.error, "expected ") != NULL, "%s", decoder.error);
    wire_decoder_done(&decoder);
}

TEST(malformed_connections_end_with_their_class_and_byte)
{
    json_t *root = load("malformed"), *row;
    size_t i;

    ck_assert_uint_gt(json_array_size(json_object_get(root, "malformed")), 80);
    json_array_foreach(json_object_get(root, "malformed"), i, row) {
        check_malformed(row, SIZE_MAX);
        check_malformed(row, 1);
        check_malformed(row, 7);
    }
    json_decref(root);
}

/* What a payload must be, beyond JSON of the right kind. */
static bool payload_good(enum wire_type type, const void *bytes, size_t len)
{
    struct wire_json value;
    uint64_t number;

    if (wire_json_parse(bytes, len, &value, NULL) < 0)
        return false;
    if (type == WIRE_RESULT || type == WIRE_PROGRESS)
        return true;
    if (wire_json_kind(value) != 'o')
        return false;
    if (type == WIRE_CREDIT)
        return wire_json_uint(wire_json_member(value, "bytes"), WIRE_CREDIT_MAX, &number) == 0 &&
               number > 0;
    if (type == WIRE_PING || type == WIRE_PONG)
        return wire_json_uint(wire_json_member(value, "n"), WIRE_NUMBER_MAX, &number) == 0;
    return true;
}

static enum wire_type type_of(const char *name)
{
    for (unsigned type = 1; type < WIRE_TYPES; type++)
        if (strcmp(wire_type_name(type), name) == 0)
            return (enum wire_type)type;
    ck_abort_msg("no type '%s'", name);
}

TEST(json_payloads_are_good_or_not_as_the_vectors_say)
{
    json_t *root = load("payloads"), *row;
    size_t i;

    ck_assert_uint_gt(json_array_size(json_object_get(root, "payloads")), 50);
    json_array_foreach(json_object_get(root, "payloads"), i, row) {
        SCOPED_BUF bytes = { 0 };
        add_hex(&bytes, text_of(row, "payload_hex"));
        ck_assert_msg(payload_good(type_of(text_of(row, "type")), bytes.data, bytes.len) ==
                          is_set(row, "valid"),
                      "%s %.40s: %s", text_of(row, "type"), bytes.data, text_of(row, "why"));
    }
    json_decref(root);
}

static int credit_step(json_t *step, uint64_t *credit)
{
    if (json_is_array(step))
        return wire_credit_grant(credit, (uint64_t)json_integer_value(json_array_get(step, 1)));
    const int64_t n = json_integer_value(step);
    return n > 0 ? wire_credit_grant(credit, (uint64_t)n) : wire_credit_spend(credit, (uint64_t)-n);
}

TEST(credit_is_counted_as_the_vectors_say)
{
    json_t *root = load("credit"), *row, *step;
    size_t i, at;

    ck_assert_uint_gt(json_array_size(json_object_get(root, "credit")), 8);
    json_array_foreach(json_object_get(root, "credit"), i, row) {
        uint64_t credit = (uint64_t)int_of(row, "start");
        json_t *error = json_object_get(row, "error");
        int64_t failed = -1;
        json_array_foreach(json_object_get(row, "steps"), at, step) {
            int r = credit_step(step, &credit);
            ck_assert(r == 0 || r == -EPROTO);
            if (r < 0 && failed < 0)
                failed = (int64_t)at;
        }
        ck_assert_msg(failed == (json_is_null(error) ? -1 : json_integer_value(error)),
                      "%s: step %d", text_of(row, "name"), (int)failed);
        ck_assert_int_eq((int64_t)credit, int_of(row, "left"));
    }
    json_decref(root);
}

/* A session as one observer sees it: the rules that need both sides. */
struct session {
    struct wire_decoder decoders[3]; /* by enum wire_side */
    uint64_t credit[3];              /* of a new job, by stream */
    uint64_t pings[3];               /* sent and not yet answered, by side */
    uint64_t concurrency, open, jobs;
    struct {
        bool known, ended;
        bool closed[3];
        uint64_t credit[3];
    } job[16];
    bool refused;
};

static struct wire_json member(const struct wire_frame *frame, const char *key)
{
    struct wire_json value;

    if (wire_json_parse(frame->payload, frame->len, &value, NULL) < 0)
        return (struct wire_json){ 0 };
    return wire_json_member(value, key);
}

static uint64_t number(const struct wire_frame *frame, const char *key)
{
    uint64_t value = 0;

    ck_assert_int_eq(wire_json_uint(member(frame, key), UINT64_MAX, &value), 0);
    return value;
}

static void see_hello(struct session *session, enum wire_side sender,
                      const struct wire_frame *frame)
{
    const uint64_t credit = number(frame, "credit");

    if (sender == WIRE_WORKER) {
        session->credit[WIRE_STDIN] = credit;
        return;
    }
    session->credit[WIRE_STDOUT] = session->credit[WIRE_STDERR] = credit;
    session->concurrency = number(frame, "concurrency");
}

static const char *see_job(struct session *session, const struct wire_frame *frame)
{
    ck_assert_uint_lt(frame->job, ARRAY_LEN(session->job));
    if (session->open == session->concurrency)
        return "concurrency";
    session->open++;
    session->job[frame->job].known = true;
    session->job[frame->job].closed[WIRE_STDIN] = member(frame, "stdin").text[0] != 't';
    memcpy(session->job[frame->job].credit, session->credit, sizeof session->credit);
    return NULL;
}

static const char *see_of_job(struct session *session, enum wire_side sender,
                              const struct wire_frame *frame)
{
    if (frame->job == 0)
        return NULL; /* a LOG of the worker itself */
    if (frame->job >= ARRAY_LEN(session->job) || !session->job[frame->job].known)
        return "job";
    if (session->job[frame->job].ended)
        return sender == WIRE_WORKER ? "job" : NULL; /* what mandor sends may have crossed */

    bool *closed = &session->job[frame->job].closed[frame->stream];
    uint64_t *credit = &session->job[frame->job].credit[frame->stream];
    switch (frame->type) {
    case WIRE_CHUNK:
        if (*closed)
            return "ended";
        *closed = frame->last;
        return wire_credit_spend(credit, frame->total) < 0 ? "credit" : NULL;
    case WIRE_CREDIT:
        return wire_credit_grant(credit, number(frame, "bytes")) < 0 ? "credit" : NULL;
    case WIRE_RESULT:
    case WIRE_ERROR:
        session->job[frame->job].ended = true;
        session->open--;
        return NULL;
    default:
        return NULL;
    }
}

static const char *see(struct session *session, enum wire_side sender,
                       const struct wire_frame *frame)
{
    const enum wire_side other = sender == WIRE_MANDOR ? WIRE_WORKER : WIRE_MANDOR;

    if (frame->type != WIRE_CHUNK && !payload_good(frame->type, frame->payload, frame->len))
        return "json";
    switch (frame->type) {
    case WIRE_HELLO:
        see_hello(session, sender, frame);
        return NULL;
    case WIRE_BYE:
        session->refused = session->concurrency == 0;
        return NULL;
    case WIRE_PING:
        session->pings[sender]++;
        return NULL;
    case WIRE_PONG:
        return session->pings[other]-- == 0 ? "order" : NULL;
    case WIRE_JOB:
        return see_job(session, frame);
    default:
        return see_of_job(session, sender, frame);
    }
}

/* One step in reads of these sizes.  Returns the class of its fault, or NULL. */
static const char *session_step(struct session *session, enum wire_side sender,
                                const struct buf *bytes, json_t *sizes, size_t *turn)
{
    struct wire_decoder *decoder = &session->decoders[sender];
    struct wire_frame frame;
    int frames = 0;

    for (size_t at = 0; at < bytes->len;) {
        size_t size =
            (size_t)json_integer_value(json_array_get(sizes, (*turn)++ % json_array_size(sizes)));
        size_t left = MIN(size == 0 ? SIZE_MAX : size, bytes->len - at);
        const unsigned char *next = (unsigned char *)bytes->data + at;
        at += left;
        int r;
        while ((r = wire_decode(decoder, &next, &left, &frame)) == 1) {
            const char *fault = see(session, sender, &frame);
            if (fault != NULL)
                return fault;
            frames++;
        }
        if (r < 0)
            return wire_fault_name(decoder->fault);
    }
    ck_assert_int_eq(frames, 1);
    return NULL;
}

static void check_session(json_t *row, json_t *sizes)
{
    struct session session = { 0 };
    json_t *step, *steps = json_object_get(row, "steps");
    size_t i, turn = 0;
    const char *end = "ok", *by = NULL;

    wire_decoder_init(&session.decoders[WIRE_MANDOR], WIRE_MANDOR, false);
    wire_decoder_init(&session.decoders[WIRE_WORKER], WIRE_WORKER, false);
    json_array_foreach(steps, i, step) {
        SCOPED_BUF bytes = { 0 };
        by = text_of(step, "from");
        add_hex(&bytes, text_of(step, "hex"));
        const char *fault = session_step(&session, side_of(by), &bytes, sizes, &turn);
        if (fault != NULL) {
            ck_assert_msg(i + 1 == json_array_size(steps), "%s: %s in step %zu",
                          text_of(row, "name"), fault, i);
            end = fault;
        }
    }
    if (session.refused)
        end = "refused";
    ck_assert_msg(strcmp(end, text_of(row, "end")) == 0, "%s: %s", text_of(row, "name"), end);
    if (!json_is_null(json_object_get(row, "by")))
        ck_assert_str_eq(by, text_of(row, "by"));
    wire_decoder_done(&session.decoders[WIRE_MANDOR]);
    wire_decoder_done(&session.decoders[WIRE_WORKER]);
}

TEST(whole_sessions_end_as_the_vectors_say_in_every_chunking)
{
    json_t *root = load("sessions"), *row, *sizes;
    size_t i, at;

    ck_assert_uint_gt(json_array_size(json_object_get(root, "sessions")), 20);
    json_array_foreach(json_object_get(root, "sessions"), i, row) {
        json_array_foreach(json_object_get(row, "chunkings"), at, sizes)
            check_session(row, sizes);
    }
    json_decref(root);
}

static void check_quote(const char *text, size_t len, const char *quoted)
{
    char out[64], back[64];

    ck_assert_uint_eq(wire_json_quote(text, len, out, sizeof out), strlen(quoted));
    ck_assert_str_eq(out, quoted);
    struct wire_json value;
    ck_assert_int_eq(wire_json_parse(out, strlen(out), &value, NULL), 0);
    ck_assert_int_ge(wire_json_unquote(value, back, sizeof back), 0);
}

TEST(strings_are_quoted_and_unquoted_safely)
{
    struct wire_json value;
    char out[8];

    check_quote("plain", 5, "\"plain\"");
    check_quote("a\"b\\c\n\t\x01", 8, "\"a\\\"b\\\\c\\n\\t\\u0001\"");
    check_quote("ä😀\x7f", 7, "\"ä😀\x7f\"");
    check_quote("a\xff\xc3", 3, "\"a\xef\xbf\xbd\xef\xbf\xbd\"");
    check_quote("\0", 1, "\"\\u0000\"");
    check_quote("", 0, "\"\"");
    ck_assert_uint_eq(wire_json_quote("0123456789", 10, out, sizeof out), 12);
    ck_assert_str_eq(out, "\"012345");
    ck_assert_int_eq(wire_json_parse("\"\\ud83d\\ude00\\u00e4\\/\"", 22, &value, NULL), 0);
    ck_assert_int_eq(wire_json_unquote(value, out, sizeof out), 7);
    ck_assert_str_eq(out, "😀ä/");
}

TEST(a_string_that_does_not_fit_is_cut_between_two_characters)
{
    static const char text[] = "\"a\xe6\x97\xa5\xf0\x9f\x98\x80z\""; /* of 1, 3, 4 and 1 bytes */
    static const size_t kept[] = { 0, 0, 1, 1, 1, 4, 4, 4, 4, 8, 9, 9 };
    struct wire_json value;

    ck_assert_int_eq(wire_json_parse(text, sizeof text - 1, &value, NULL), 0);
    for (size_t size = 1; size < ARRAY_LEN(kept); size++) {
        char out[16];
        memset(out, '!', sizeof out);
        ck_assert_int_eq(wire_json_unquote(value, out, size), 9);
        ck_assert_uint_eq(strlen(out), kept[size]);
        ck_assert_int_eq(memcmp(out, text + 1, kept[size]), 0);
        ck_assert_int_eq(out[size], '!');
    }
}

TEST(members_and_elements_are_found_where_they_are)
{
    static const char text[] = " {\"a\" : [1, \"x\", {\"b\":2} , []], \"b\":\"a\", "
                               "\"\\u0061\":{\"b\":true}, \"c\":null } ";
    struct wire_json value, found;
    size_t at = 0, count = 0;

    ck_assert_int_eq(wire_json_parse(text, strlen(text), &value, NULL), 0);
    found = wire_json_member(value, "a"); /* the later one */
    ck_assert_int_eq(wire_json_kind(found), 'o');
    ck_assert_int_eq(wire_json_kind(wire_json_member(found, "b")), 'b');
    ck_assert_int_eq(wire_json_kind(wire_json_member(value, "c")), '0');
    ck_assert_int_eq(wire_json_kind(wire_json_member(value, "d")), 0);
    ck_assert_int_eq(wire_json_kind(wire_json_member(wire_json_member(value, "d"), "e")), 0);
    ck_assert_int_eq(wire_json_parse("[1, \"x\", {\"b\":2} , []]", 22, &value, NULL), 0);
    while (wire_json_next(value, &at, &found))
        count++;
    ck_assert_uint_eq(count, 4);
    ck_assert_int_eq(wire_json_kind(found), 'a');
}

UNIT_MAIN("wire_vectors")

/* sink_list.c - contract in sink_list.h. */
#include "job/sink_list.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/units.h"

#define BLOCK_BYTES ((int64_t)1 << 20)
#define OTHER_BYTES ((int64_t)4 << 20)
#define LEAST_BYTES ((int64_t)64 << 10)
#define MOST_BYTES  ((int64_t)1 << 30)

static const char *const names[] = {
    [SINK_BLOCK] = "block", [SINK_SPILL] = "spill", [SINK_DROP] = "drop"
};

const char *sink_policy_name(enum sink_policy policy)
{
    return names[policy];
}

static int read_size(const char *text, size_t len, int64_t *ret, struct mandor_err *err)
{
    SCOPED_FREE char *size = strndup(text, len);

    if (size == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a sink");
    int r = units_parse_size(size, ret, err);
    if (r == 0 && (*ret < LEAST_BYTES || *ret > MOST_BYTES))
        r = err_set(err, -EINVAL, FAULT_CALLER, "'%.40s' is out of range, expected 64K to 1G",
                    size);
    return r;
}

int sink_member_parse(const char *text, struct sink_member *ret, struct mandor_err *err)
{
    size_t len = strcspn(text, ":="), colon = strcspn(text, ":");

    *ret = (struct sink_member){ .buffer_bytes = BLOCK_BYTES, .url = text };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strlen(names[i]) != len || memcmp(names[i], text, len) != 0)
            continue;
        if (text[colon] == '\0' || text[colon + 1] == '\0')
            return err_set(
                err, -EINVAL, FAULT_CALLER,
                "'%.60s' has no sink behind its policy, expected such as drop=4M:redis://…", text);
        ret->policy = (enum sink_policy)i;
        ret->buffer_bytes = i == SINK_BLOCK ? BLOCK_BYTES : OTHER_BYTES;
        ret->url = text + colon + 1;
        return text[len] == '='
                   ? read_size(text + len + 1, colon - len - 1, &ret->buffer_bytes, err)
                   : 0;
    }
    return 0;
}

bool sink_list_is(const char *text)
{
    return strncmp(text, SINK_LIST_PREFIX, strlen(SINK_LIST_PREFIX)) == 0;
}

int sink_list_each(const char *text, int (*fn)(void *arg, const char *member), void *arg)
{
    if (!sink_list_is(text))
        return fn(arg, text);

    SCOPED_FREE char *copy = strdup(text + strlen(SINK_LIST_PREFIX));
    char *rest = copy, *member;
    int r = copy == NULL ? -ENOMEM : 0;
    while (r == 0 && (member = strsep(&rest, "\n")) != NULL)
        r = fn(arg, member);
    return r;
}

static bool has_policy(const char *text)
{
    struct sink_member member;
    struct mandor_err unused;

    return sink_member_parse(text, &member, &unused) < 0 || member.url != text;
}

static int add_member(const json_t *value, struct buf *list, struct mandor_err *err)
{
    SCOPED_FREE char *bytes = NULL;
    size_t len;

    int r = json_bytes_get(value, &bytes, &len, err);
    if (r < 0)
        return r;
    if (len == 0 || memchr(bytes, '\n', len) != NULL || strlen(bytes) != len)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "a sink is empty, or has a line break or NUL in it, expected a URL");
    if (buf_adds(list, "\n") < 0 || buf_add(list, bytes, len) < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the sinks");
    return 0;
}

static int from_array(const json_t *value, struct buf *list, struct mandor_err *err)
{
    size_t count = json_array_size(value);
    int r = 0;

    if (count == 0 || count > SINK_LIST_MAX)
        return err_set(err, -EINVAL, FAULT_CALLER, "%zu sinks, expected 1 to %d", count,
                       SINK_LIST_MAX);
    for (size_t i = 0; r == 0 && i < count; i++) {
        r = add_member(json_array_get(value, i), list, err);
        if (r < 0)
            r = err_wrap(err, r, "[%zu]", i);
    }
    return r;
}

int sink_list_from_json(const json_t *value, char **ret, size_t *ret_len, struct mandor_err *err)
{
    SCOPED_BUF list = { 0 };
    SCOPED_FREE char *bytes = NULL;
    size_t len = 0;

    if (!json_is_array(value)) {
        int r = json_bytes_get(value, &bytes, &len, err);
        if (r < 0)
            return r;
        if (strncmp(bytes, "fan:", 4) == 0)
            return err_set(err, -EINVAL, FAULT_CALLER, "expected a list for several sinks");
        if (!has_policy(bytes)) {
            *ret = STEAL(bytes);
            *ret_len = len;
            return 0;
        }
    }
    if (buf_adds(&list, "fan:") < 0)
        return err_set(err, -ENOMEM, FAULT_HOST, "read the sinks");
    int r = json_is_array(value) ? from_array(value, &list, err) : add_member(value, &list, err);
    if (r < 0)
        return r;
    *ret_len = list.len;
    *ret = buf_steal(&list);
    return 0;
}

static int append(void *arg, const char *member)
{
    json_t *item = json_bytes(member, strlen(member));

    return item == NULL || json_array_append_new(arg, item) < 0 ? -ENOMEM : 0;
}

json_t *sink_list_to_json(const char *text, size_t len)
{
    if (!sink_list_is(text))
        return json_bytes(text, len);

    json_t *list = json_array();
    if (list != NULL && sink_list_each(text, append, list) < 0) {
        json_decref(list);
        return NULL;
    }
    return list;
}

/* scalar.c - contract in scalar.h. */
#include "config/scalar.h"

#include "base/file.h"

#define SECRET_BYTES_MAX ((size_t)64 << 10)

static int no_memory(struct mandor_err *err)
{
    return err_set(err, -ENOMEM, FAULT_HOST, "read the configuration");
}

/* Append the value of the variable whose name starts at *at, behind "${", and move *at behind its "}". */
static int add_variable(const char **at, struct buf *ret, struct mandor_err *err)
{
    char name[128];
    size_t len = strcspn(*at, "}");

    if ((*at)[len] == '\0' || len == 0 || len >= sizeof name)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "'${%.40s' is no variable, expected ${NAME}, or $$ for a dollar sign", *at);
    memcpy(name, *at, len);
    name[len] = '\0';
    const char *value = getenv(name);
    if (value == NULL)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "variable '%.80s' is not set, expected it in the environment", name);

    *at += len + 1;
    return buf_adds(ret, value) < 0 ? no_memory(err) : 0;
}

/* text with ${NAME} from the environment; "$$" is a "$".  Messages do not name the place. */
static int expand(const char *text, struct buf *ret, struct mandor_err *err)
{
    if (buf_reserve(ret, 0) < 0)
        return no_memory(err);

    for (const char *at = text; *at != '\0';) {
        size_t len = strcspn(at, "$");
        if (len == 0 && at[1] == '{') {
            at += 2;
            int r = add_variable(&at, ret, err);
            if (r < 0)
                return r;
            continue;
        }
        /* a run without "$"; or one "$", that of "$$" or one that means itself */
        if (buf_add(ret, at, len > 0 ? len : 1) < 0)
            return no_memory(err);
        at += len > 0 ? len : at[1] == '$' ? 2u : 1u;
    }
    return 0;
}

static int read_secret(const char *path, struct buf *ret, struct mandor_err *err)
{
    SCOPED_BUF secret = { 0 };

    int r = file_read(path, SECRET_BYTES_MAX, true, &secret);
    if (r == -EFBIG)
        return err_set(err, -EINVAL, FAULT_CALLER, "file '%.100s' is longer than %zu bytes", path,
                       SECRET_BYTES_MAX);
    if (r == -EINVAL)
        return err_set(err, r, FAULT_CALLER, "'%.100s' is no regular file", path);
    if (r < 0)
        return err_set(err, r, FAULT_HOST, "file '%.100s'", path);
    if (memchr(secret.data, '\0', secret.len) != NULL)
        return err_set(err, -EINVAL, FAULT_CALLER, "file '%.100s' holds a NUL, expected text",
                       path);

    size_t len = secret.len;
    if (len > 0 && secret.data[len - 1] == '\n') /* editors add it, nobody means it */
        len--;
    return buf_add(ret, secret.data, len) < 0 ? no_memory(err) : 0;
}

/* {data.url} without quotes is a mapping to YAML, with one key and no value: what nobody means. */
static int not_text(const struct tree *tree, struct mandor_err *err)
{
    if (tree->kind == TREE_MAP && tree->count == 1 && tree_is_null(tree->items[0].value))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "a placeholder takes quotes in YAML, expected \"{%.60s}\"",
                       tree->items[0].key);
    return err_set(err, -EINVAL, FAULT_CALLER, "expected one value, or {file: PATH}, got a %s",
                   tree->kind == TREE_LIST ? "list" : "mapping");
}

int scalar_text(const struct tree *tree, const char *dir, struct buf *ret, struct mandor_err *err)
{
    SCOPED_BUF file = { 0 }, path = { 0 };

    if (tree->kind == TREE_SCALAR)
        return expand(tree->text, ret, err);
    if (tree->kind != TREE_MAP || tree->count != 1 || !str_eq(tree->items[0].key, "file") ||
        tree->items[0].value->kind != TREE_SCALAR)
        return not_text(tree, err);

    int r = expand(tree->items[0].value->text, &file, err);
    if (r < 0)
        return r;
    r = file.data[0] == '/' ? buf_adds(&path, file.data) : buf_addf(&path, "%s/%s", dir, file.data);
    return r < 0 ? no_memory(err) : read_secret(path.data, ret, err);
}

/* lockfile.c - contract in lockfile.h. */
#include "python/lockfile.h"

#include <ctype.h>

static const char *const package_keys[] = { "version", "file",    "size",   "sha256",
                                            "tags",    "depends", "extras", "imports" };

/* ---- names ---- */

static bool is_letter(char c)
{
    return isascii((unsigned char)c) && isalnum((unsigned char)c);
}

static bool is_joint(char c)
{
    return c == '-' || c == '_' || c == '.';
}

/* The name at text in the normal form of PEP 503: small letters, runs of - _ . are one -.
 * Returns its length in text; 0 when there is none. */
static size_t normal_name(const char *text, char *out, size_t size)
{
    size_t at = 0, len = 0;

    while (is_letter(text[at]) || (len > 0 && is_joint(text[at]))) {
        char c = is_joint(text[at]) ? '-' : (char)tolower((unsigned char)text[at]);
        at++;
        if (c == '-' && out[len - 1] == '-')
            continue;
        if (len + 1 >= size)
            return 0;
        out[len++] = c;
    }
    out[len] = '\0';
    return len > 0 && out[len - 1] != '-' ? at : 0;
}

static bool is_normal(const char *name)
{
    char out[WHEEL_NAME_MAX + 1];

    return normal_name(name, out, sizeof out) == strlen(name) && str_eq(name, out);
}

static const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\t')
        at++;
    return at;
}

/* "[a, b]" behind the name; *at moves behind it. */
static int parse_extras(const char **at, struct requirement *ret, const char *text,
                        struct mandor_err *err)
{
    char *to = ret->extras;
    const char *from = *at;

    if (*from != '[')
        return 0;
    do {
        from = skip_space(from + 1);
        size_t n = normal_name(from, to, WHEEL_NAME_MAX + 1);
        from = skip_space(from + n);
        if (n == 0 || (*from != ',' && *from != ']'))
            return err_set(err, -EINVAL, FAULT_CALLER,
                           "'%.80s': bad extras, expected NAME[EXTRA,EXTRA]", text);
        to += strlen(to) + 1;
        *to = '\0';
    } while (*from == ',');
    *at = skip_space(from + 1);
    return 0;
}

int requirement_parse(const char *text, struct requirement *ret, struct mandor_err *err)
{
    const char *at = skip_space(text);
    size_t n = normal_name(at, ret->name, sizeof ret->name);
    if (n == 0)
        return err_set(
            err, -EINVAL, FAULT_CALLER,
            "'%.80s' is no name of a package, expected letters and digits joined by - _ .", text);

    ret->extras = calloc(1, strlen(text) + WHEEL_NAME_MAX + 2);
    if (ret->extras == NULL)
        return err_set(err, -ENOMEM, FAULT_HOST, "read a requirement");
    at = skip_space(at + n);
    int r = parse_extras(&at, ret, text, err);
    ret->rest = at;
    if (r < 0)
        requirement_done(ret);
    return r;
}

void requirement_done(struct requirement *requirement)
{
    free(requirement->extras);
    requirement->extras = NULL;
}

/* ---- tags ---- */

/* The minor version of "py3", "py314", "cp39": 0 for the first; -1 when it is of another kind. */
static int python_minor(const char *tag, size_t len)
{
    int minor = 0;

    if (len < 3 || len > 5 || tag[2] != '3')
        return -1;
    for (size_t i = 3; i < len; i++) {
        if (!isdigit((unsigned char)tag[i]))
            return -1;
        minor = minor * 10 + (tag[i] - '0');
    }
    return minor;
}

bool wheel_tag_fits(const char *tag)
{
    const char *abi = strchr(tag, '-');
    const char *platform = abi != NULL ? strchr(++abi, '-') : NULL;
    if (platform == NULL)
        return false;

    size_t python_len = (size_t)(abi - tag) - 1, abi_len = (size_t)(platform++ - abi);
    int minor = python_minor(tag, python_len), newest = atoi(&WHEEL_PYTHON[2]);
    bool none = abi_len == 4 && strncmp(abi, "none", 4) == 0;
    bool any = str_eq(platform, "any");
    if (minor < 0 || minor > newest || (!any && !str_eq(platform, WHEEL_PLATFORM)))
        return false;
    if (tag[0] == 'p' && tag[1] == 'y')
        return none;
    if (tag[0] != 'c' || tag[1] != 'p')
        return false;
    if (minor == newest && (none || strncmp(abi, WHEEL_ABI "-", abi_len + 1) == 0))
        return none || !any;
    return !any && abi_len == 4 && strncmp(abi, "abi3", 4) == 0 && minor >= 2;
}

/* ---- checks ---- */

static int bad(struct mandor_err *err, const char *name, const char *key, const char *expected)
{
    return err_set(err, -EINVAL, FAULT_CALLER, "package '%.80s', '%s': expected %s", name, key,
                   expected);
}

static bool is_text(const json_t *json)
{
    return json_is_string(json) && json_string_length(json) > 0;
}

static bool is_texts(const json_t *json)
{
    size_t i;
    json_t *item;

    json_array_foreach((json_t *)json, i, item)
        if (!is_text(item))
            return false;
    return json_is_array(json);
}

static bool is_requirements(const json_t *json)
{
    size_t i;
    json_t *item;

    if (!is_texts(json))
        return false;
    json_array_foreach((json_t *)json, i, item) {
        struct requirement requirement;
        if (requirement_parse(json_string_value(item), &requirement, NULL) < 0)
            return false;
        requirement_done(&requirement);
    }
    return true;
}

static bool is_extras(const json_t *json)
{
    const char *extra;
    json_t *depends;

    json_object_foreach((json_t *)json, extra, depends) {
        if (!is_normal(extra) || !is_requirements(depends))
            return false;
    }
    return json_is_object(json);
}

/* One name below a directory, no path: "pandas-3.0.2-….whl". */
static bool is_file_name(const char *name)
{
    size_t len = strlen(name);

    for (const char *c = name; *c != '\0'; c++)
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f || *c == '/')
            return false;
    return len > 4 && len < 250 && name[0] != '.' && str_eq(name + len - 4, ".whl");
}

static bool is_sha256(const char *text)
{
    return strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64;
}

static int check_keys(const char *name, const json_t *package, struct mandor_err *err)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)package, key, value) {
        size_t i = 0;
        while (i < ARRAY_LEN(package_keys) && !str_eq(key, package_keys[i]))
            i++;
        if (i == ARRAY_LEN(package_keys))
            return err_set(err, -EINVAL, FAULT_CALLER, "package '%.80s': unknown member '%.40s'",
                           name, key);
    }
    return 0;
}

int lockfile_check_package(const char *name, const json_t *package, struct mandor_err *err)
{
    if (!is_normal(name))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "package '%.80s': expected the name in its normal form (PEP 503)", name);
    if (!json_is_object(package))
        return err_set(err, -EINVAL, FAULT_CALLER, "package '%.80s': expected an object", name);
    if (!is_text(json_object_get(package, "version")))
        return bad(err, name, "version", "a version");
    const json_t *file = json_object_get(package, "file"),
                 *hash = json_object_get(package, "sha256");
    if (!json_is_string(file) || !is_file_name(json_string_value(file)))
        return bad(err, name, "file", "the file name of a wheel");
    const json_t *size = json_object_get(package, "size");
    if (!json_is_integer(size) || json_integer_value(size) < 0)
        return bad(err, name, "size", "a number of bytes");
    if (!json_is_string(hash) || !is_sha256(json_string_value(hash)))
        return bad(err, name, "sha256", "64 hexadecimal digits in small letters");
    if (!is_texts(json_object_get(package, "tags")))
        return bad(err, name, "tags", "a list of tags");
    if (!is_requirements(json_object_get(package, "depends")))
        return bad(err, name, "depends", "a list of requirements");
    if (!is_extras(json_object_get(package, "extras")))
        return bad(err, name, "extras", "names of extras with lists of requirements");
    if (!is_texts(json_object_get(package, "imports")))
        return bad(err, name, "imports", "a list of modules");
    return check_keys(name, package, err);
}

static int check_target(const json_t *lock, struct mandor_err *err)
{
    static const struct {
        const char *key, *want;
    } parts[] = { { "python", WHEEL_PYTHON },
                  { "abi", WHEEL_ABI },
                  { "platform", WHEEL_PLATFORM } };
    const json_t *target = json_object_get(lock, "target");

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        const char *have = json_string_value(json_object_get(target, parts[i].key));
        if (have == NULL)
            return err_set(err, -EINVAL, FAULT_CALLER, "no 'target.%s', expected '%s'",
                           parts[i].key, parts[i].want);
        if (!str_eq(have, parts[i].want))
            return err_set(err, -EINVAL, FAULT_CALLER,
                           "made for %s '%.60s', but this Pyodide wants '%s'", parts[i].key, have,
                           parts[i].want);
    }
    return json_object_size(target) == ARRAY_LEN(parts)
               ? 0
               : err_set(err, -EINVAL, FAULT_CALLER, "unknown members in 'target'");
}

static int check_lock(const json_t *lock, struct mandor_err *err)
{
    const json_t *format = json_object_get(lock, "format");
    const char *name;
    json_t *package;

    if (!json_is_integer(format))
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "no 'format', expected the lock file of a wheel store");
    if (json_integer_value(format) != 1)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "format %" JSON_INTEGER_FORMAT " is not known, expected 1",
                       json_integer_value(format));
    if (!json_is_object(json_object_get(lock, "packages")))
        return err_set(err, -EINVAL, FAULT_CALLER, "no 'packages', expected an object");
    int r = check_target(lock, err);
    if (r < 0)
        return r;
    if (json_object_size(lock) != 3)
        return err_set(err, -EINVAL, FAULT_CALLER,
                       "unknown members beside 'format', 'target' and 'packages'");
    json_object_foreach(lockfile_packages(lock), name, package) {
        r = lockfile_check_package(name, package, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- text ---- */

json_t *lockfile_new(void)
{
    return json_pack("{s:i, s:{s:s, s:s, s:s}, s:{}}", "format", 1, "target", "python",
                     WHEEL_PYTHON, "abi", WHEEL_ABI, "platform", WHEEL_PLATFORM, "packages");
}

json_t *lockfile_packages(const json_t *lock)
{
    return json_object_get(lock, "packages");
}

const char *lockfile_text(const json_t *package, const char *key)
{
    const char *text = json_string_value(json_object_get(package, key));

    BUG_ON(text == NULL);
    return text;
}

int lockfile_parse(const char *text, size_t len, json_t **ret, struct mandor_err *err)
{
    json_t *lock = NULL;
    int r = json_parse(text, len, &lock, err);
    if (r < 0)
        return r;

    r = check_lock(lock, err);
    if (r < 0)
        json_decref(lock);
    else
        *ret = lock;
    return r;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Keys of an object in their order, malloc'ed, pointing into it. */
static const char **sorted_keys(const json_t *object)
{
    const char **keys = calloc(json_object_size(object) + 1, sizeof *keys), *key;
    json_t *value;
    size_t count = 0;

    if (keys == NULL)
        return NULL;
    json_object_foreach((json_t *)object, key, value)
        keys[count++] = key;
    qsort(keys, count, sizeof *keys, by_text);
    return keys;
}

/* A new object with the same values, keys sorted. */
static json_t *sorted(const json_t *object)
{
    SCOPED_FREE const char **keys = sorted_keys(object);
    SCOPED_JSON *copy = keys != NULL ? json_object() : NULL;

    for (size_t i = 0; copy != NULL && keys[i] != NULL; i++)
        if (json_object_set_new(copy, keys[i], json_incref(json_object_get(object, keys[i]))) < 0)
            return NULL;
    return STEAL(copy);
}

/* One package with its members in the order of package_keys. */
static json_t *ordered_package(const json_t *package)
{
    SCOPED_JSON *copy = json_object();

    for (size_t i = 0; copy != NULL && i < ARRAY_LEN(package_keys); i++) {
        json_t *value = json_object_get(package, package_keys[i]);
        json_t *mine = json_is_object(value) ? sorted(value) : json_incref(value);
        if (json_object_set_new(copy, package_keys[i], mine) < 0)
            return NULL;
    }
    return STEAL(copy);
}

int lockfile_write(struct buf *buf, const json_t *lock)
{
    SCOPED_JSON *whole = lockfile_new(), *packages = sorted(lockfile_packages(lock));
    const char *name;
    void *next;
    json_t *package;

    if (whole == NULL || packages == NULL)
        return -ENOMEM;
    json_object_foreach_safe(packages, next, name, package) {
        if (json_object_set_new(packages, name, ordered_package(package)) < 0)
            return -ENOMEM;
    }
    if (json_object_set(whole, "packages", packages) < 0)
        return -ENOMEM;

    SCOPED_FREE char *text = json_text_indented(whole);
    int r = text != NULL ? buf_adds(buf, text) : -ENOMEM;
    return r == 0 ? buf_adds(buf, "\n") : r;
}

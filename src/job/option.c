/* option.c - contract in option.h.  What each OPT_ type can do is in option_number.c, option_text.c and option_list.c. */
#include "job/option.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/json.h"
#include "job/option_type.h"

/* An array's count stands right behind its pointer, so that one offset finds both. */
#define ARRAY_ASSERT(items_, count_)                                   \
    _Static_assert(offsetof(struct spec, count_) ==                    \
                       offsetof(struct spec, items_) + sizeof(void *), \
                   #count_ " must stand right behind " #items_)
ARRAY_ASSERT(argv, argc);
ARRAY_ASSERT(env, env_count);
ARRAY_ASSERT(no_retry_exit_codes, no_retry_count);
_Static_assert(
    sizeof(struct spec_str) == sizeof(void *) + sizeof(size_t),
    "OPT_BYTES, OPT_ARGV, OPT_ENV and OPT_INTS fields are alike: a pointer, then a size_t");
_Static_assert(sizeof(enum spec_frame) == sizeof(unsigned), "enums are stored as unsigned");

static const struct spec_option public_rows[] = {
#define OPTION(key_, type_, field_, choices_, fallback_, range_, check_, flag_, arg_, queue_, \
               help_)                                                                         \
    { .key = key_,                                                                            \
      .type = OPT_##type_,                                                                    \
      .choices = choices_,                                                                    \
      .fallback = fallback_,                                                                  \
      .flag = flag_,                                                                          \
      .arg = arg_,                                                                            \
      .on_queue = queue_,                                                                     \
      .help = help_ },
#include "job/options.def"
#undef OPTION
};

static const struct option_row rows[] = {
#define OPTION(key_, type_, field_, choices_, fallback_, range_, check_, flag_, arg_, queue_, \
               help_)                                                                         \
    { .offset = offsetof(struct spec, field_),                                                \
      .choices = choices_,                                                                    \
      .range = range_,                                                                        \
      .check = check_ },
#include "job/options.def"
#undef OPTION
};

_Static_assert(ARRAY_LEN(rows) <= OPTIONS_MAX, "struct spec's `given` has a bit for each row");

size_t option_count(void)
{
    return ARRAY_LEN(rows);
}

const struct spec_option *spec_options(size_t *ret_count)
{
    *ret_count = ARRAY_LEN(public_rows);
    return public_rows;
}

int option_by_key(const char *key)
{
    for (size_t i = 0; i < ARRAY_LEN(public_rows); i++)
        if (public_rows[i].key[0] == key[0] && str_eq(public_rows[i].key, key))
            return (int)i;
    return -ENOENT;
}

int option_by_flag(const char *flag)
{
    for (size_t i = 0; i < ARRAY_LEN(public_rows); i++)
        if (public_rows[i].flag != NULL && str_eq(public_rows[i].flag, flag))
            return (int)i;
    return -ENOENT;
}

int option_wrap(struct mandor_err *err, int code, const char *key)
{
    if (err == NULL || code == -ENOMEM)
        return code;

    struct mandor_err inner = *err; /* "[3]: …" and ".NAME: …" go on naming the place */
    bool goes_on = inner.msg[0] == '[' || inner.msg[0] == '.';
    return err_set(err, code, inner.fault, "%s%s%s", key, goes_on ? "" : ": ", inner.msg);
}

/* ---- the types ---- */

static const struct option_type *const types[] = {
    [OPT_STRING] = &option_string, [OPT_BYTES] = &option_bytes, [OPT_INT] = &option_int,
    [OPT_REAL] = &option_real,     [OPT_BOOL] = &option_bool,   [OPT_DURATION] = &option_duration,
    [OPT_SIZE] = &option_size,     [OPT_ENUM] = &option_enum,   [OPT_ENV] = &option_env,
    [OPT_ARGV] = &option_argv,     [OPT_INTS] = &option_ints,   [OPT_SINKS] = &option_sinks,
    [OPT_JSON] = &option_json,
};

static const struct option_type *type_of(int row)
{
    return types[public_rows[row].type];
}

static void *field_of(int row, struct spec *spec)
{
    return (char *)spec + rows[row].offset;
}

static const void *const_field_of(int row, const struct spec *spec)
{
    return (const char *)spec + rows[row].offset;
}

int option_from_text(int row, const char *text, json_t **ret, struct mandor_err *err)
{
    BUG_ON(type_of(row)->from_text == NULL);
    return type_of(row)->from_text(&rows[row], text, ret, err);
}

int option_store(int row, const json_t *value, struct spec *spec, struct mandor_err *err)
{
    return type_of(row)->store(&rows[row], value, field_of(row, spec), err);
}

json_t *option_load(int row, const struct spec *spec)
{
    return type_of(row)->load(&rows[row], const_field_of(row, spec));
}

bool option_same(int row, const struct spec *a, const struct spec *b)
{
    return type_of(row)->same(const_field_of(row, a), const_field_of(row, b));
}

void option_drop(int row, struct spec *spec)
{
    if (type_of(row)->drop != NULL)
        type_of(row)->drop(field_of(row, spec));
}

/* Parse the default into its field.  0 or -ENOMEM. */
static int store_default(int row, struct spec *spec)
{
    SCOPED_JSON *value = NULL;

    if (public_rows[row].fallback[0] == '\0')
        return 0;
    int r = option_from_text(row, public_rows[row].fallback, &value, NULL);
    if (r == 0)
        r = option_store(row, value, spec, NULL);
    BUG_ON(r < 0 && r != -ENOMEM); /* the table contradicts itself */
    return r;
}

const struct spec *option_defaults(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct spec defaults;
    static atomic_bool ready;

    if (atomic_load_explicit(&ready, memory_order_acquire))
        return &defaults;
    (void)pthread_mutex_lock(&lock);
    if (!ready) {
        int r = 0;
        defaults.magic = SPEC_MAGIC;
        for (int row = 0; row < (int)ARRAY_LEN(rows) && r == 0; row++)
            r = store_default(row, &defaults);
        /* Else the next caller tries again. */
        atomic_store_explicit(&ready, r == 0, memory_order_release);
    }
    bool ok = ready;
    (void)pthread_mutex_unlock(&lock);
    return ok ? &defaults : NULL;
}

int option_copy_default(int row, struct spec *spec)
{
    const struct option_type *type = type_of(row);

    if (type->drop == NULL || public_rows[row].fallback[0] == '\0')
        return 0; /* option_copy_numbers() did it; or it is empty */
    BUG_ON(type->copy == NULL);
    return type->copy(const_field_of(row, option_defaults()), field_of(row, spec));
}

int option_copy_numbers(struct spec *spec)
{
    const struct spec *defaults = option_defaults();
    if (defaults == NULL)
        return -ENOMEM;

    *spec = *defaults;
    for (int row = 0; row < (int)ARRAY_LEN(rows); row++)
        if (public_rows[row].type == OPT_STRING || public_rows[row].type == OPT_JSON)
            *(void **)field_of(row, spec) = NULL;
        else if (type_of(row)->drop != NULL) /* pointer and length, or pointer and count */
            memset(field_of(row, spec), 0, sizeof(struct spec_str));
    return 0;
}

const char *spec_containment_name(enum spec_containment containment)
{
    static const char *const names[] = { "auto", "cgroup", "pidns", "group", "strict" };

    return (size_t)containment < ARRAY_LEN(names) ? names[containment] : "?";
}

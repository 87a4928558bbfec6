/* option_type.h - what an option of one OPT_ type can do, and what the types share.  For job/option*.c only. */
#ifndef JOB_OPTION_TYPE_H
#define JOB_OPTION_TYPE_H

#include "job/spec.h"

typedef int option_check_fn(const struct spec_str *text, struct mandor_err *err);

/* The half of a row of options.def that only these files need. */
struct option_row {
    size_t offset; /* of the field in struct spec */
    const char *choices;
    struct option_range {
        int64_t min, max;
    } range;
    option_check_fn *check; /* NULL = none */
};

struct option_type {
    /* Text of command line or YAML as JSON; NULL = JSON only. */
    int (*from_text)(const struct option_row *row, const char *text, json_t **ret,
                     struct mandor_err *err);
    int (*store)(const struct option_row *row, const json_t *value, void *field,
                 struct mandor_err *err);
    json_t *(*load)(const struct option_row *row, const void *field);
    bool (*same)(const void *a, const void *b);
    void (*drop)(void *field); /* NULL = holds no memory */
    /* Of a default that holds memory; NULL = there is none. */
    int (*copy)(const void *from, void *to);
};

extern const struct option_type option_int, option_real, option_bool, option_duration, option_size;
extern const struct option_type option_enum, option_string, option_bytes, option_sinks;
extern const struct option_type option_argv, option_env, option_ints, option_json;

/* Checks that rows name. */
option_check_fn option_check_filled, option_check_queue, option_check_cwd, option_check_url;

/* from_text of whatever JSON has as text, too. */
int option_text_from_text(const struct option_row *row, const char *text, json_t **ret,
                          struct mandor_err *err);
/* value as a whole number. */
bool option_whole_number(const json_t *value, int64_t *ret);
bool option_str_same(const struct spec_str *a, const struct spec_str *b);
int option_no_nul(const struct spec_str *text, struct mandor_err *err);

/* Errors; they return their code. */
int option_invalid_utf8(struct mandor_err *err);
int option_out_of_memory(struct mandor_err *err);
/* "expected WANT, got VALUE" with a short picture of value. */
int option_unexpected(struct mandor_err *err, const json_t *value, const char *want);
int option_out_of_range(struct mandor_err *err, const json_t *value, const char *low,
                        const char *high);

#endif

/* option.h - the rows of options.def at work: text → JSON → struct spec → JSON.  For job/ only; others use spec.h.
 *
 *     "10m" ──option_from_text──▶ json "10m" ──option_store──▶ spec->timeout_ms ──option_load──▶ json "10m"
 *
 * Messages of these functions do not repeat the key: option_wrap() puts it before them.  A row is an index into
 * spec_options().
 */
#ifndef JOB_OPTION_H
#define JOB_OPTION_H

#include "job/spec.h"

#define SPEC_MAGIC  0x53504543u
#define OPTIONS_MAX 64 /* rows; struct spec's `given` has a bit for each */

/* How many rows there are. */
size_t option_count(void);

/* Row of a JSON path, of a flag; or -ENOENT. */
MUST_CHECK int option_by_key(const char *key);
MUST_CHECK int option_by_flag(const char *flag);

/* JSON of command line or YAML text.  Only its form is checked here, the rest by option_store(). */
MUST_CHECK int option_from_text(int row, const char *text, json_t **ret, struct mandor_err *err);
/* Check value and put it into its field, in place of what was there.  0, -EINVAL, -ENOMEM. */
MUST_CHECK int option_store(int row, const json_t *value, struct spec *spec,
                            struct mandor_err *err);
/* The field as JSON; new reference or NULL. */
json_t *option_load(int row, const struct spec *spec);
bool option_same(int row, const struct spec *a, const struct spec *b);
void option_drop(int row, struct spec *spec); /* free what the field holds */
/* Make of spec (uninitialised) one with the defaults in all fields that hold no memory, the others empty.  0 or -ENOMEM. */
MUST_CHECK int option_copy_numbers(struct spec *spec);
/* After that: fill one field that does hold memory with its default.  0 or -ENOMEM. */
MUST_CHECK int option_copy_default(int row, struct spec *spec);

/* A spec in which every field has its default; lives for ever.  NULL when out of memory. */
const struct spec *option_defaults(void);

/* Put the key before the message: "key: message", "key[3]: message", "key.NAME: message".  Returns code. */
int option_wrap(struct mandor_err *err, int code, const char *key);

#endif

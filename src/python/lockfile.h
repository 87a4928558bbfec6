/* lockfile.h - the text that says what a wheel store holds: read strictly, written in one form only.
 *
 *     {"format": 1,
 *      "target": {"python": "3.14", "abi": "cp314", "platform": "pyemscripten_2026_0_wasm32"},
 *      "packages": {"pandas": {"version": "3.0.2", "file": "pandas-3.0.2-cp314-….whl", "size": 1234, "sha256": "…",
 *                              "tags": ["cp314-cp314-pyemscripten_2026_0_wasm32"], "depends": ["numpy>=1.26", …],
 *                              "extras": {"excel": ["openpyxl"]}, "imports": ["pandas"]}}}
 *
 * Names of packages and extras are in the normal form of PEP 503; `depends` are requirements without markers: those whose
 * markers do not hold on the target are not there.  In memory it is the JSON itself, checked.  Pure; any thread.
 */
#ifndef PYTHON_LOCKFILE_H
#define PYTHON_LOCKFILE_H

#include "base/json.h"

/* What the pinned Pyodide can load (PEP 783). */
#define WHEEL_PYTHON      "3.14"
#define WHEEL_PYTHON_FULL "3.14.2"
#define WHEEL_ABI         "cp314"
#define WHEEL_PLATFORM    "pyemscripten_2026_0_wasm32"

#define LOCKFILE_SIZE_MAX ((size_t)64 << 20) /* bytes of text */
#define WHEEL_NAME_MAX    200                /* characters of a package's name */

/* A lock without packages, or NULL without memory. */
json_t *lockfile_new(void);

/* Read text; every member is checked, so that what follows can rely on it.
 * Returns 0 (*ret is a new reference), -EINVAL naming package and member, or -ENOMEM. */
MUST_CHECK int lockfile_parse(const char *text, size_t len, json_t **ret, struct mandor_err *err);
/* Check one package as it stands below "packages". */
MUST_CHECK int lockfile_check_package(const char *name, const json_t *package,
                                      struct mandor_err *err);
/* Append the text: members in their order, packages by name, indented, a newline at the end.  0 or -ENOMEM. */
MUST_CHECK int lockfile_write(struct buf *buf, const json_t *lock);

/* "packages" of a lock. */
json_t *lockfile_packages(const json_t *lock);
/* A package's text member, which is there. */
const char *lockfile_text(const json_t *package, const char *key);

/* Can the pinned Pyodide load a wheel with this tag ("cp314-abi3-…")? */
bool wheel_tag_fits(const char *tag);

/* A requirement taken apart as far as a store needs it: "Foo_bar[X,y]>=1" is foo-bar, x and y, and ">=1". */
struct requirement {
    char name[WHEEL_NAME_MAX + 1]; /* normal form */
    char *extras;                  /* normal forms, each NUL-terminated, an empty one at the end */
    const char *rest;              /* points into the text: version, "" */
};
/* Returns 0, -EINVAL or -ENOMEM; requirement_done() after success. */
MUST_CHECK int requirement_parse(const char *text, struct requirement *ret, struct mandor_err *err);
void requirement_done(struct requirement *requirement);

#endif

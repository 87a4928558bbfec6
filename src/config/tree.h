/* tree.h - a YAML document as a tree that remembers lines.  For config/ only.
 *
 * Only what a configuration needs: mappings, sequences and scalars, one document.  Anchors, aliases, tags and duplicate
 * keys are errors.  Every scalar stays text: what it means is decided by whoever knows the key.  Main thread.
 */
#ifndef CONFIG_TREE_H
#define CONFIG_TREE_H

#include "base/err.h"
#include "base/macro.h"

enum tree_kind { TREE_SCALAR, TREE_LIST, TREE_MAP };

struct tree {
    enum tree_kind kind;
    int line;   /* from 1 */
    char *text; /* TREE_SCALAR: never NULL, no NUL inside */
    bool plain; /* TREE_SCALAR: written without quotes */
    struct tree_item {
        char *key; /* TREE_MAP; NULL in a list */
        int line;  /* of the key */
        struct tree *value;
    } * items;
    size_t count;
};

/* Parse text (UTF-8).  name: of the file, for messages ("mandor.yaml:3:7: …").
 * Returns 0 (*ret is owned by the caller; an empty document is an empty map), -EINVAL with *err, -ENOMEM. */
MUST_CHECK int tree_parse(const char *name, const char *text, size_t len, struct tree **ret,
                          struct mandor_err *err);
struct tree *tree_free(struct tree *tree);
DEFINE_CLEANUP(struct tree *, tree_free)

/* Is it a plain scalar that means "nothing": empty, ~ or null? */
bool tree_is_null(const struct tree *tree);

#endif

/* scalar.h - the text that a value of mandor.yaml stands for: ${NAME} filled in, {file: PATH} read.  For config/ only. */
#ifndef CONFIG_SCALAR_H
#define CONFIG_SCALAR_H

#include "base/buf.h"
#include "config/tree.h"

/* The text of tree, a scalar or {file: PATH}; PATH is relative to dir.  Appends to ret.  -EINVAL with *err. */
MUST_CHECK int scalar_text(const struct tree *tree, const char *dir, struct buf *ret,
                           struct mandor_err *err);

#endif

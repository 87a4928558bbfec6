/* scalar.h - the text that a value of mandor.yaml stands for: ${NAME} filled in, {file: PATH} read.  For config/ only. */
#ifndef CONFIG_SCALAR_H
#define CONFIG_SCALAR_H

#include "base/buf.h"
#include "config/tree.h"

/* Read a whole file.  Returns 0, -errno, or -EFBIG when it is longer than max. */
MUST_CHECK int scalar_read_file(const char *path, size_t max, bool regular_only, struct buf *ret);

/* text with ${NAME} from the environment; "$$" is a "$".  Appends to ret.  Messages do not name the place. */
MUST_CHECK int scalar_expand(const char *text, struct buf *ret, struct mandor_err *err);

/* The text of tree, a scalar or {file: PATH}; PATH is relative to dir.  Appends to ret.  -EINVAL with *err. */
MUST_CHECK int scalar_text(const struct tree *tree, const char *dir, struct buf *ret,
                           struct mandor_err *err);

#endif

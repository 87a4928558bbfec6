/* snapshots.h - what the live workers of a broker are doing now, from their live sockets: `top`, `stats`, `doctor`. */
#ifndef CLI_SNAPSHOTS_H
#define CLI_SNAPSHOTS_H

#include <jansson.h>

#include "base/err.h"
#include "base/macro.h"

struct snapshots;

MUST_CHECK int snapshots_new(const char *data_dir, struct snapshots **ret); /* 0 or -ENOMEM */
struct snapshots *snapshots_free(struct snapshots *snapshots);
DEFINE_CLEANUP(struct snapshots *, snapshots_free)

/* Connect to workers that are new, then take what comes for wait_ms; with `first` only until each has answered once.
 * 0 or -ENOMEM; workers that do not answer are left out. */
MUST_CHECK int snapshots_refresh(struct snapshots *snapshots, int wait_ms, bool first);

/* Array of the last snapshots, a new reference, or NULL without memory. */
json_t *snapshots_json(const struct snapshots *snapshots);

#endif

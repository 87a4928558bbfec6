/* wheels_helper.h - asks the Python program that mandor carries in itself (src/python/helper/wheels.py) one question.
 *
 * It runs under the python3 in PATH, with standard error shared; request and answer are JSON in memory files, so that neither side can
 * wait for the other.  Blocks; main thread. */
#ifndef CLI_WHEELS_HELPER_H
#define CLI_WHEELS_HELPER_H

#include "base/json.h"

/* request: {"do": "fetch" or "inspect", …}; "target" and "parent" are added.  *ret is a new reference, an object.
 * Returns 0, or -errno with *err when there is no python3 or it does not answer. */
MUST_CHECK int wheels_helper_ask(json_t *request, json_t **ret, struct mandor_err *err);

#endif

/* store_int.h - what store.c and store_edit.c share. */
#ifndef PYTHON_STORE_INT_H
#define PYTHON_STORE_INT_H

#include "python/store.h"

#define STORE_LOCK_NAME "lock.json"

/* The lock in the file at path; -errno of open(2) as FAULT_HOST. */
MUST_CHECK int store_read_file(const char *path, json_t **ret, struct mandor_err *err);

#endif

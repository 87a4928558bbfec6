/* kin.h - which of this process's children are known: job leaders and keepers.  Every other child is an adopted orphan.
 *
 * A child can die before the thread that cloned it has told anybody.  So `newborn` is -1 while a clone is under way, then (the
 * kernel writes it before the child can run) the child's pid until it is registered.  Readers look at newborn first and
 * at the table after it: what is in neither was not ours.  Any thread.
 */
#ifndef CHILD_KIN_H
#define CHILD_KIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/hash.h"
#include "base/macro.h"

enum kin_kind { KIN_CHILD, KIN_KEEPER };

struct kin { /* embedded in struct child and struct keeper */
    enum kin_kind kind;
    pid_t pid;
};

struct kinship {
    pthread_mutex_t lock;
    struct hash *pids; /* pid → struct kin; under lock */
    _Atomic pid_t newborn;
};

MUST_CHECK int kinship_init(struct kinship *kinship); /* 0 or -ENOMEM */
void kinship_done(struct kinship *kinship);

/* Before a clone, and after it whatever came of it (kin NULL: nothing was born).  0 or -ENOMEM. */
void kin_expect(struct kinship *kinship);
MUST_CHECK int kin_register(struct kinship *kinship, struct kin *kin);
void kin_expected_over(struct kinship *kinship);

void kin_forget(struct kinship *kinship, pid_t pid);

/* -EAGAIN: perhaps a newborn, ask again after the spawner's next answer.  0: *ret is the kin, or NULL for an orphan. */
MUST_CHECK int kin_find(struct kinship *kinship, pid_t pid, struct kin **ret);

#endif

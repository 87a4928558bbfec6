/* kin.h - which of this process's children are known: job leaders and keepers.  Every other child is an adopted orphan.
 *
 * A child can die before the thread that cloned it has told anybody.  So `newborn` is -1 while a clone is under way, then (the
 * kernel writes it before the child can run) the child's pid until it is registered.  Readers look at newborn first and
 * at the table after it: what is in neither was not ours.
 * The thread that owns a kin ends it: the loop thread a child, the spawner thread a keeper.  Any thread.
 */
#ifndef CHILD_KIN_H
#define CHILD_KIN_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/hash.h"
#include "base/macro.h"

enum kin_kind {
    KIN_NONE, /* an orphan */
    KIN_NEWBORN, /* perhaps one that is not registered yet: ask again after the spawner's next answer */
    KIN_CHILD,
    KIN_KEEPER,
};

struct kin {            /* embedded in struct child and struct keeper */
    enum kin_kind kind; /* KIN_CHILD or KIN_KEEPER */
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

/* Reap this child and forget it at one stroke: from then on its number may be a newborn's.  Like os_pidfd_reap(); it stays known while
 * that is 0. */
int kin_reap(struct kinship *kinship, const struct kin *kin, int pidfd, siginfo_t *ret,
             struct rusage *ret_usage);

/* What pid is to us.  ret_child (NULL allowed): the kin of a KIN_CHILD, for the loop thread.  A keeper can be freed as soon as this
 * has returned, so it is named by its number alone, keeper_reap_pid(). */
enum kin_kind kin_find(struct kinship *kinship, pid_t pid, struct kin **ret_child);

#endif

/* kin.c - contract in kin.h. */
#include "child/kin.h"

#include "os/pidfd.h"

int kinship_init(struct kinship *kinship)
{
    (void)pthread_mutex_init(&kinship->lock, NULL);
    atomic_init(&kinship->newborn, 0);
    kinship->pids = NULL;
    return hash_new(&kinship->pids);
}

void kinship_done(struct kinship *kinship)
{
    kinship->pids = hash_free(kinship->pids);
    (void)pthread_mutex_destroy(&kinship->lock);
}

void kin_expect(struct kinship *kinship)
{
    atomic_store(&kinship->newborn, -1);
}

int kin_register(struct kinship *kinship, struct kin *kin)
{
    (void)pthread_mutex_lock(&kinship->lock);
    int r = hash_put(kinship->pids, (uint64_t)kin->pid, kin);
    (void)pthread_mutex_unlock(&kinship->lock);
    return r;
}

void kin_expected_over(struct kinship *kinship)
{
    atomic_store(&kinship->newborn, 0);
}

int kin_reap(struct kinship *kinship, const struct kin *kin, int pidfd, siginfo_t *ret,
             struct rusage *ret_usage)
{
    (void)pthread_mutex_lock(&kinship->lock);
    int r = os_pidfd_reap(pidfd, false, ret, ret_usage);
    if (r != 0)
        (void)hash_take(kinship->pids, (uint64_t)kin->pid);
    (void)pthread_mutex_unlock(&kinship->lock);
    return r;
}

enum kin_kind kin_find(struct kinship *kinship, pid_t pid, struct kin **ret_child)
{
    pid_t newborn = atomic_load(&kinship->newborn);
    (void)pthread_mutex_lock(&kinship->lock);
    struct kin *kin = hash_get(kinship->pids, (uint64_t)pid);
    enum kin_kind kind = kin == NULL ? KIN_NONE : kin->kind; /* unlocked, a keeper may be gone */
    (void)pthread_mutex_unlock(&kinship->lock);

    if (kind == KIN_NONE && (newborn == -1 || newborn == pid))
        return KIN_NEWBORN;
    if (kind == KIN_CHILD && ret_child != NULL)
        *ret_child = kin;
    return kind;
}

/* sweeper.c - contract in sweeper.h. */
#include "sink/sweeper.h"

#include <dirent.h>

#include "base/module.h"

bool sweeper_wanted(const char *dir)
{
    DIR *notes = opendir(dir);
    bool any = false;

    if (notes == NULL)
        return false;
    for (struct dirent *entry; !any && (entry = readdir(notes)) != NULL;)
        any = entry->d_name[0] != '.';
    (void)closedir(notes);
    return any;
}

int sweeper_start(uv_loop_t *loop, const char *dir, sweeper_done_fn *on_done, void *arg,
                  struct sweeper **ret, struct mandor_err *err)
{
    struct mandor_err unused;
    const struct sweeper_ops *ops =
        module_part("sweeper", "s3:", err != NULL ? err : (err = &unused));

    return ops == NULL ? err->code : ops->start(loop, dir, on_done, arg, ret, err);
}

void sweeper_stop(struct sweeper *sweeper)
{
    const struct sweeper_ops *ops = module_part("sweeper", "s3:", NULL); /* which started it */

    if (ops != NULL)
        ops->stop(sweeper);
}

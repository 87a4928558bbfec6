/* tree.h - remove a directory tree that somebody else filled. */
#ifndef OS_TREE_H
#define OS_TREE_H

/* Remove path and all below it whatever the modes, following no link and crossing no mount (R112).  Blocking.
 * Returns 0 (gone, or was never there) or -errno of the first thing that could not be removed. */
int tree_remove(const char *path);

#endif

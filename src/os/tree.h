/* tree.h - remove a directory tree that somebody else filled. */
#ifndef OS_TREE_H
#define OS_TREE_H

/* Remove path and all below it whatever the modes and (with the right to) file flags, following no link (R112).  What is mounted below
 * it is let go of, not emptied.  What cannot be removed does not save the rest.  Blocking.
 * Returns 0 (gone, or was never there) or -errno of the first thing that could not be removed. */
int tree_remove(const char *path);

#endif

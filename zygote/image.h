/* image.h - the memory that copies share, put where a fork need not count it page by page.
 *
 * fork(2) copies the page tables of anonymous memory, and the end of a copy walks them again: for an interpreter of 100 MiB that is more
 * than the job itself.  A private mapping of a file into which nobody has written yet has no page tables worth copying: the kernel lets
 * the copy find its pages by itself (vma_needs_copy() in mm/memory.c).  So what the server has in anonymous memory goes into a sealed
 * memfd, which is mapped privately at the same place.  A copy that writes gets its own page, as before.
 *
 * places.c sees to it that this memory lies close together. */
#ifndef ZYGOTE_IMAGE_H
#define ZYGOTE_IMAGE_H

#include <stdint.h>

/* Put the memory of this process into a file and map that.  For the thread that runs JavaScript, which never runs any again; other
 * threads sleep.  How many bytes were put there; 0 where the system has no memory or leave for it, and all is as it was.  Ends the
 * process if the kernel takes a mapping away without giving the new one. */
int64_t image_take(void);

#endif

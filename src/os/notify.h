/* notify.h - tell the service manager how it stands: sd_notify(3) without its library (one datagram). */
#ifndef OS_NOTIFY_H
#define OS_NOTIFY_H

#include "base/macro.h"

/* Send state ("READY=1", "STOPPING=1", "RELOADING=1…") to $NOTIFY_SOCKET; nothing happens without one.
 * Returns 0 or -errno.  Any thread; does not block. */
int notify_send(const char *state);

#endif

/* remote.h - what brokers that live on another machine keep on this one: directories for their workers, and what dead workers left there. */
#ifndef BROKER_REMOTE_H
#define BROKER_REMOTE_H

#include "broker/broker.h"

/* Make <state>/mandor/<name>.d with the directories that a worker needs (run, output, scratch, journal), where <state> is $XDG_STATE_HOME
 * or ~/.local/state.  name: of the broker; '/' and what is not printable in it are replaced.  *ret: malloc'ed, absolute.
 * 0 or -errno with *err. */
MUST_CHECK int remote_data_dir(const char *name, char **ret, struct mandor_err *err);

/* Empty and remove what dead workers of this machine left: those whose liveness lock in <data_dir>/run is free.  own: this worker, left
 * alone.  empty as in BROKER_RECOVER.  Blocks: for a thread. */
void remote_sweep(const char *data_dir, const char *own, int (*empty)(const char *text, void *arg),
                  void *arg);

#endif

/* signals.c - what signals ask of a worker.
 *
 *   TERM, INT   1st: no more leases, running jobs may end within shutdown_timeout; 2nd: end them now; 3rd: kill them
 *   HUP         read the configuration again
 *   USR1        print the state as JSON;  USR2 toggle debug lines */
#include <signal.h>

#include "base/errout.h"
#include "base/json.h"
#include "base/log.h"
#include "child/guard.h"
#include "worker/live_server.h"

static void dump(struct worker *worker)
{
    SCOPED_JSON *json = live_server_snapshot(worker);
    SCOPED_FREE char *text = json != NULL ? json_text(json) : NULL;

    if (text != NULL)
        (void)errout_putf("%s\n", text);
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct worker *worker = handle->data;

    if (worker->over)
        return;
    switch (signum) {
    case SIGTERM:
    case SIGINT:
    case SIGQUIT:
        worker_stop(worker);
        break;
    case SIGHUP:
        worker_reload(worker);
        break;
    case SIGUSR1:
        dump(worker);
        break;
    case SIGUSR2:
        log_toggle_debug();
        break;
    default:
        break;
    }
}

static const int wanted[] = { SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2 };
_Static_assert(ARRAY_LEN(wanted) == ARRAY_LEN(((struct worker *)0)->signals),
               "one handle a signal");

int signals_start(struct worker *worker)
{
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return -errno;
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        (void)uv_signal_init(&worker->loop, &worker->signals[i]);
        worker->signals[i].data = worker;
        int r = uv_signal_start(&worker->signals[i], on_signal, wanted[i]);
        if (r < 0)
            return r;
        uv_unref((uv_handle_t *)&worker->signals[i]);
    }
    guard_listen();
    return 0;
}

void signals_stop(struct worker *worker)
{
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        uv_close((uv_handle_t *)&worker->signals[i], NULL);
        (void)signal(wanted[i], SIG_IGN); /* how we have ended is settled */
    }
}

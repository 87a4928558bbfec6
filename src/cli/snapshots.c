/* snapshots.c - contract in snapshots.h. */
#include "cli/snapshots.h"

#include <poll.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/words.h"
#include "cli/live.h"

#define SNAPSHOTS_MAX 256 /* workers that are watched */

struct peer {
    char *name;
    struct live *live;
    json_t *last; /* NULL: has not answered yet */
};

struct snapshots {
    char *data_dir;
    struct peer peers[SNAPSHOTS_MAX];
    size_t count;
};

int snapshots_new(const char *data_dir, struct snapshots **ret)
{
    struct snapshots *snapshots = calloc(1, sizeof *snapshots);
    if (snapshots == NULL)
        return -ENOMEM;
    snapshots->data_dir = strdup(data_dir);
    if (snapshots->data_dir == NULL) {
        free(snapshots);
        return -ENOMEM;
    }
    *ret = snapshots;
    return 0;
}

static void drop(struct snapshots *snapshots, size_t i)
{
    struct peer *peer = &snapshots->peers[i];

    free(peer->name);
    (void)live_close(peer->live);
    json_decref(peer->last);
    *peer = snapshots->peers[--snapshots->count];
}

struct snapshots *snapshots_free(struct snapshots *snapshots)
{
    if (snapshots == NULL)
        return NULL;
    while (snapshots->count > 0)
        drop(snapshots, 0);
    free(snapshots->data_dir);
    free(snapshots);
    return NULL;
}

static bool connected(const struct snapshots *snapshots, const char *name)
{
    for (size_t i = 0; i < snapshots->count; i++)
        if (str_eq(snapshots->peers[i].name, name))
            return true;
    return false;
}

/* A socket that nobody answers is a dead worker's: left out. */
static int connect_new(struct snapshots *snapshots)
{
    char **names = live_workers(snapshots->data_dir);
    int r = names == NULL ? -ENOMEM : 0;

    for (size_t i = 0; r == 0 && names[i] != NULL && snapshots->count < SNAPSHOTS_MAX; i++) {
        struct peer peer = { .name = NULL };
        if (connected(snapshots, names[i]) ||
            live_open(snapshots->data_dir, names[i], "{\"top\": true}\n", &peer.live, NULL) < 0)
            continue;
        peer.name = strdup(names[i]);
        if (peer.name == NULL) {
            (void)live_close(peer.live);
            r = -ENOMEM;
        } else {
            snapshots->peers[snapshots->count++] = peer;
        }
    }
    words_free(names);
    return r;
}

/* Take every frame that one worker has sent.  False when it has gone. */
static bool take(struct peer *peer)
{
    struct live_frame frame;
    int r;

    while ((r = live_read(peer->live, 0, &frame)) == 1) {
        json_t *json = NULL;
        if (frame.kind != LIVE_SNAPSHOT || json_parse(frame.bytes, frame.len, &json, NULL) < 0)
            continue;
        json_decref(peer->last);
        peer->last = json;
    }
    return r == 0;
}

static bool all_answered(const struct snapshots *snapshots)
{
    for (size_t i = 0; i < snapshots->count; i++)
        if (snapshots->peers[i].last == NULL)
            return false;
    return true;
}

int snapshots_refresh(struct snapshots *snapshots, int wait_ms, bool first)
{
    struct pollfd polled[SNAPSHOTS_MAX];
    int64_t until_ms = clock_mono_ms() + wait_ms;

    int r = connect_new(snapshots);
    while (r == 0 && !(first && all_answered(snapshots))) {
        int64_t left_ms = until_ms - clock_mono_ms();
        if (left_ms <= 0)
            break;
        for (size_t i = 0; i < snapshots->count; i++)
            polled[i] =
                (struct pollfd){ .fd = live_fd(snapshots->peers[i].live), .events = POLLIN };
        if (poll(polled, snapshots->count, (int)left_ms) < 0) /* EINTR: a resized terminal */
            break;
        for (size_t i = snapshots->count; i-- > 0;)
            if (polled[i].revents != 0 && !take(&snapshots->peers[i]))
                drop(snapshots, i);
    }
    return r;
}

json_t *snapshots_json(const struct snapshots *snapshots)
{
    json_t *array = json_array();

    for (size_t i = 0; array != NULL && i < snapshots->count; i++)
        if (snapshots->peers[i].last != NULL &&
            json_array_append(array, snapshots->peers[i].last) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

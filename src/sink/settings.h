/* settings.h - what mandor.yaml says below `sinks:` (config/params.def), for the sinks that leave the machine.
 *
 * Set once before the loop runs, and again at a reload.  A sink copies what it needs when it is opened.  Loop thread only. */
#ifndef SINK_SETTINGS_H
#define SINK_SETTINGS_H

#include "base/macro.h"

/* NULL, and what stands in the environment, means the default in (). */
struct s3_settings {
    char *endpoint;   /* URL (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; AWS's own) */
    char *region;     /* (AWS_REGION, AWS_DEFAULT_REGION; us-east-1) */
    char *path_style; /* "true", "false", "auto": with an endpoint of one's own */
    char *access_key; /* (AWS_ACCESS_KEY_ID, else the credentials file) */
    char *secret_key;
    char *session_token;
    char *credentials_file; /* (AWS_SHARED_CREDENTIALS_FILE, ~/.aws/credentials) */
    char *profile;          /* (AWS_PROFILE; default) */
    int64_t part_size_bytes;
    int64_t concurrency; /* parts in memory at once */
    int64_t max_parts;
};

/* Frees what it holds. */
void s3_settings_done(struct s3_settings *settings);

#define S3_PART_MAX ((int64_t)5 << 30)

struct sink_settings {
    struct s3_settings s3;
};

/* settings: borrowed until the next call; NULL = the defaults. */
void sink_settings_set(const struct sink_settings *settings);
const struct sink_settings *sink_settings(void);

#endif

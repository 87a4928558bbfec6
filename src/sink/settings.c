/* settings.c - contract in settings.h. */
#include "sink/settings.h"

static const struct sink_settings defaults = {
    .s3 = { .part_size_bytes = (int64_t)8 << 20, .concurrency = 4, .max_parts = 10000 },
};

void s3_settings_done(struct s3_settings *settings)
{
    free(settings->endpoint);
    free(settings->region);
    free(settings->path_style);
    free(settings->access_key);
    if (settings->secret_key != NULL)
        explicit_bzero(settings->secret_key, strlen(settings->secret_key));
    free(settings->secret_key);
    free(settings->session_token);
    free(settings->credentials_file);
    free(settings->profile);
    *settings = (struct s3_settings){ 0 };
}

static const struct sink_settings *current = &defaults;

void sink_settings_set(const struct sink_settings *settings)
{
    current = settings == NULL ? &defaults : settings;
}

const struct sink_settings *sink_settings(void)
{
    return current;
}

/* script.c - a script's name at the server: the SHA-1 of its text.  Not for secrets: Redis chose it. */
#include <sha1.h>

#include "redis/redis_int.h"

_Static_assert(sizeof((struct redis_script *)0)->sha >= SHA1_DIGEST_STRING_LENGTH,
               "room for the name");

void redis_script_sha(struct redis_script *script)
{
    if (script->sha[0] == '\0')
        (void)SHA1Data((const uint8_t *)script->text, strlen(script->text), script->sha);
}

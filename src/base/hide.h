/* hide.h - URLs as they may be shown: nobody who reads a log, an error or a record gets to know the passwords. */
#ifndef BASE_HIDE_H
#define BASE_HIDE_H

/* "streams://user:secret@host/1" -> "streams://user:***@host/1"; what has no password stays as it is.  malloc'ed; NULL = no memory. */
char *hide_password(const char *url);
/* Of what follows "://": the '@' behind user and password, or NULL.  A '/' or '?' in a password that was not written as %2F or %3F ends
 * the authority before it: then what looks like a port is no number. */
const char *hide_end_of_user(const char *begin);

#endif

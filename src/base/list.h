/* list.h - intrusive doubly linked ring.  A head is a node that belongs to no object. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include "base/macro.h"

struct list {
    struct list *next, *prev;
};

#define LIST_INIT(name)  \
    {                    \
        &(name), &(name) \
    }

static inline void list_init(struct list *head)
{
    head->next = head->prev = head;
}
static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}
static inline void list_insert_(struct list *node, struct list *prev, struct list *next)
{
    node->prev = prev;
    node->next = next;
    prev->next = node;
    next->prev = node;
}
static inline void list_push_back(struct list *head, struct list *node)
{
    list_insert_(node, head->prev, head);
}
static inline void list_push_front(struct list *head, struct list *node)
{
    list_insert_(node, head, head->next);
}
/* Unlink; the node then stands alone, so a second call is harmless. */
static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}
/* The first node, unlinked, or NULL. */
static inline struct list *list_pop_front(struct list *head)
{
    struct list *node = head->next;
    if (node == head)
        return NULL;
    list_remove(node);
    return node;
}
/* Move all of `from` behind the last of `to`; `from` is empty afterwards. */
static inline void list_splice_back(struct list *to, struct list *from)
{
    if (list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    list_init(from);
}

#define LIST_ENTRY(node, type, member) CONTAINER_OF(node, type, member)
/* The loop body may remove `it`. */
#define LIST_FOREACH(it, head, type, member)                           \
    for (type *it = LIST_ENTRY((head)->next, type, member),            \
              *it##_next_ = LIST_ENTRY(it->member.next, type, member); \
         &it->member != (head);                                        \
         it = it##_next_, it##_next_ = LIST_ENTRY(it->member.next, type, member))

#endif

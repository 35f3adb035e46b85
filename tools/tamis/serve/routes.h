/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked for. */
#ifndef SERVE_ROUTES_H
#define SERVE_ROUTES_H

#include "serve/call.h"

typedef struct serve_route {
    const char *method, *path; /* a path that ends with "/" and is longer: a model's name follows */
    bool open;                 /* without a key */
    enum MHD_Result (*answer)(serve_call *call);
} serve_route;

/* NULL: there is none, and the call is refused. */
const serve_route *serve_route_find(const char *method, const char *path, serve_refusal *refusal);
/* A route's place among all, which are SERVE_PATHS at most; the last place is that of no route. */
unsigned serve_route_place(const serve_route *route);
/* The methods that a path has, as for the header Allow; NULL: there is no such path. */
const char *serve_route_allows(const char *path);
/* What follows the route's path. */
const char *serve_route_rest(const serve_route *route, const char *path);

#endif

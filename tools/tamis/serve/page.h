/* SPDX-License-Identifier: Apache-2.0 */
/* The page at /, which the build makes of the files in page/. */
#ifndef SERVE_PAGE_H
#define SERVE_PAGE_H

#include <stddef.h>

extern const char serve_page_html[], serve_page_css[], serve_page_js[];
extern const size_t serve_page_html_bytes, serve_page_css_bytes, serve_page_js_bytes;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A line on a terminal that shows how far a long work has come. */
#include "cli/progress.h"

#include "cli/cli.h"

#include <unistd.h>

#define CELLS 16

cli_progress_text cli_progress_line(const char *unit, size_t done, size_t count, double seconds) {
    static const char full[] = "================", empty[] = "                ";
    cli_progress_text out;
    char left[32] = "";
    const double share = count > 0 ? (double)done / (double)count : 1;
    const double rate = seconds > 0 ? (double)done / seconds : 0;
    const int cells = (int)(share * CELLS);
    if (rate > 0) {
        const double rest = (double)(count - done) / rate;
        if (rest < 60)
            snprintf(left, sizeof(left), ", %.0f s left", rest);
        else
            snprintf(left, sizeof(left), ", %.0f min left", rest / 60);
    }
    snprintf(out.text, sizeof(out.text), "%zu of %zu %s [%.*s%.*s] %3.0f %%, %.0f %s/s%s", done,
             count, unit, cells, full, CELLS - cells, empty, 100 * share, rate, unit, left);
    out.text[79] = '\0'; /* or the line would break, and not be cleared */
    return out;
}

void cli_progress_begin(cli_progress *progress, const char *unit) {
    *progress = (cli_progress){.unit = unit, .start = cli_seconds()};
}

void cli_progress_show(cli_progress *progress, size_t done, size_t count) {
    if (!isatty(STDERR_FILENO) || (done == count && !progress->shown)) return;
    fprintf(stderr, "\r\033[K%s",
            cli_progress_line(progress->unit, done, count, cli_seconds() - progress->start).text);
    fflush(stderr);
    progress->shown = true;
}

void cli_progress_end(cli_progress *progress) {
    if (progress->shown) fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->shown = false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A date that is stated, for strftime_now. */
#include "jinja/jinja.h"

static int days_of(int month, int year) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap);
}

/* T. Sakamoto's method: 0 is a Sunday. */
static int weekday(int year, int month, int day) {
    static const int shifts[] = {0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4};
    const int y = year - (month < 3);
    return (y + y / 4 - y / 100 + y / 400 + shifts[month - 1] + day) % 7;
}

bool jinja_date(const char *text, struct tm *out) {
    static const char form[] = "dddd-dd-dd";
    int numbers[3] = {0}, part = 0;
    for (size_t i = 0; i < sizeof form; i++) {
        const bool digit = text[i] >= '0' && text[i] <= '9';
        if (form[i] == 'd' ? !digit : text[i] != form[i]) return false;
        if (digit) numbers[part] = 10 * numbers[part] + (text[i] - '0');
        part += form[i] == '-';
    }
    const int year = numbers[0], month = numbers[1], day = numbers[2];
    if (year < 1000 || month < 1 || month > 12 || day < 1 || day > days_of(month, year))
        return false;
    *out = (struct tm){.tm_year = year - 1900,
                       .tm_mon = month - 1,
                       .tm_mday = day,
                       .tm_wday = weekday(year, month, day)};
    return true;
}

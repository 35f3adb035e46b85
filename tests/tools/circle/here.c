/* SPDX-License-Identifier: Apache-2.0 */
/* With there.c: a circle that test_circles.py must find. */
int tms_there(int n);
int tms_here(int n);

int tms_here(int n) {
    return n > 0 ? tms_there(n - 1) : 0;
}

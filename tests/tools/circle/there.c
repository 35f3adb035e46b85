/* SPDX-License-Identifier: Apache-2.0 */
int tms_here(int n);
int tms_there(int n);

int tms_there(int n) {
    return n > 0 ? tms_here(n - 1) : 1;
}

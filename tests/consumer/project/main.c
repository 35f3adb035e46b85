/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the device that every build has, over the public headers alone. */
#include <stdio.h>
#include <tamis/tamis.h>

int main(void) {
    tamis_error error = {0};
    tamis_context *context = NULL;
    const tamis_context_params params = {.device = "reference"};
    if (tamis_context_create(&params, &context, &error) != TAMIS_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    printf("tamis %s on %s\n", tamis_version(), tamis_context_device(context)->id);
    tamis_context_destroy(&context);
    return 0;
}

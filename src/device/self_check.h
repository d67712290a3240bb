/* SPDX-License-Identifier: MIT
 * self_check.h - a device proves itself through its own operations against one embedded digest.
 */
#ifndef ISO_DEVICE_SELF_CHECK_H
#define ISO_DEVICE_SELF_CHECK_H

#include "device/device.h"

/* Sizes that reserve() must have been called with where a device needs that before operations run. */
extern const struct iso_device_limits iso_self_check_limits;

/* Small generated inputs go through every operation and all weight types, with few and with many rows;
 * the digest of all outputs is the same on every device. It was made by the reference kernels of the
 * CPU, which the tests hold against the golden data.
 *
 * Errors: ISO_E_SELF_CHECK names the device and both digests, or the type whose products with few and
 *         with many rows differ; what the device raises. */
enum iso_err iso_device_self_check(struct iso_device *dev) ISO_NODISCARD;

#endif

/* Steps of training: a fused convolution, pooling and ReLU, and a fused update of weights. The
 * vectors are those of the kernels of rules. */
#include "platform.h"

/* Whether a layer has sizes from which at least one square can be computed. Outputs are listed as
 * integers of 32 bits. */
static int is_layer(const int64_t *shape) {
    return shape[0] >= 0 && shape[1] >= 4 && shape[2] >= 4 && shape[3] >= 1 && shape[4] >= 1 &&
           shape[4] <= INT32_MAX;
}

#define TEMPLATE "training_template.h"
#include "instruction_sets.h"

#define EXPORT_TRAINING(scalar, type)                                                             \
    EXPORT int eq_conv_pool_##type(const int64_t *shape, const scalar *x, const scalar *weights,  \
                                   const scalar *bias, scalar *out, uint8_t *largest) {           \
        DISPATCH(conv_pool_##type, shape, x, weights, bias, out, largest)                         \
    }                                                                                             \
    EXPORT int eq_conv_pool_back_##type(const int64_t *shape, const scalar *x,                    \
                                        const scalar *weights, const scalar *gradient,            \
                                        const uint8_t *largest, scalar *to_x, scalar *to_weights, \
                                        scalar *to_bias) {                                        \
        DISPATCH(conv_pool_back_##type, shape, x, weights, gradient, largest, to_x, to_weights,   \
                 to_bias)                                                                         \
    }                                                                                             \
    EXPORT int eq_gradient_step_##type(const int64_t *shape, const double *factors,               \
                                       const scalar *left, const scalar *right,                   \
                                       const scalar *weights, const scalar *velocity,             \
                                       scalar *new_weights, scalar *new_velocity) {               \
        DISPATCH(gradient_step_##type, shape, factors, left, right, weights, velocity,            \
                 new_weights, new_velocity)                                                       \
    }

EXPORT_TRAINING(float, f32)
EXPORT_TRAINING(double, f64)

/* Build tools expect this symbol in an extension module. The library is opened by ctypes only. */
EXPORT void *PyInit__convolution_kernels(void) { return NULL; }

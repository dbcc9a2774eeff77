/* Template: the steps of training. */
#include "convolution.h"
#include "gradient_step.h"

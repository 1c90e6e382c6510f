#!/bin/sh
# Fits a line to noisy points by gradient descent, in awk: sh line.sh RATE BATCH_SIZE SEED STEPS
awk -v rate="$1" -v batch="$2" -v seed="$3" -v steps="$4" \
    -v reports="${ORCHESTRATE_REPORTS:-/dev/stdout}" '
BEGIN {
    srand(seed)
    for (step = 1; step <= steps; step++) {
        slope = shift = 0
        for (i = 0; i < batch; i++) {
            x = 2 * rand() - 1
            error = a * x + b - (3 * x - 1 + 8 * (rand() - 0.5))
            slope += error * x / batch
            shift += error / batch
        }
        a -= rate * slope
        b -= rate * shift
        distance = sqrt((a - 3) ^ 2 + (b + 1) ^ 2)
        printf "{\"step\": %d, \"distance\": %f}\n", step, distance >> reports; fflush()
        if (system("test -e \"$ORCHESTRATE_STOP\"") == 0) exit
    }
}'
